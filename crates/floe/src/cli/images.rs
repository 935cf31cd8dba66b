//! `floe image ...`: the images in the local repository.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::error::CliError;
use super::outcome::{stored, verified};
use super::output::{age, bytes, fields, seconds, short, table, word};
use super::{Context, args, hub_images, progress};
use floe_api::{AgentReport, AgentStarter, ExportFormat, ImportFormat};

/// Build, import, list, check, name, lay out, copy and export images
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example: a first image, of Debian's packages
  floe image build debian
Example: a disk
  floe image import debian.qcow2 --name debian
  floe image ls")]
pub enum Image {
    #[command(subcommand)]
    Build(super::build::Build),
    Import(Import),
    Ls(Ls),
    Inspect(Inspect),
    Verify(Verify),
    Optimize(Optimize),
    Rm(Rm),
    Tag(Tag),
    Untag(Untag),
    Export(Export),
    Copy(super::transfer::Copy),
}

/// Make an image of disks (raw, qcow2, vmdk, vdi, vhdx, vhd) or of a kernel
///
/// Disks may be compressed with gzip, xz or zstd, or be in an OVA or tar archive: all disks that an OVA describes, in the order in
/// which its machine has them, or the only one of another archive. A VMDK of several files is named by the small file that describes
/// the others, which lie beside it. A file without a known format is taken for a raw disk if it has a partition table, a boot sector or
/// a file system, or is all zeros. A file that is truncated or no disk is refused, and so is a disk that is shorter than its own
/// partition table and file systems say. A first disk that only a UEFI firmware can boot, one with Windows on it, and disks with
/// sectors of 4096 bytes are noticed: the image's machines then get that firmware, disks and cards that Windows has drivers for, and
/// such sectors.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: a disk
  floe image import debian.qcow2 --name debian --memory 1G --cpus 2
Example: a download as it came
  floe image import cloud.img.xz --name cloud && floe image import appliance.ova --name appliance
Example: a disk in several files (disk.vmdk, disk-s001.vmdk, disk-s002.vmdk ...)
  floe image import disk.vmdk --name db
Example: Windows, or another system without VirtIO drivers, that a UEFI firmware boots
  floe image import win.vhdx --name win --firmware uefi --disk-model sata --network-model e1000
Example: a disk that others made, in which floe exec, cp and ssh work at once
  floe image import cloud.qcow2 --agent --name cloud && floe run cloud --name web --wait agent
  floe exec -it web -- bash
Example: bytes that cannot be recognized as a disk
  floe image import database.raw --format raw --name data
Example: a kernel that is booted directly
  floe image import --kernel vmlinuz --initrd initrd.img --cmdline 'console=ttyS0' --name tiny

--agent puts floe's agent into the root file system of the first disk: an ext2, ext3 or ext4 one, on the whole disk or in a
partition, of a system that systemd, System V's init or busybox's init starts. Your file is not changed. No kernel mounts that file
system: debugfs and e2fsck (package e2fsprogs) work on it, confined like qemu-img. For any other system, import it without --agent,
start it, and let floe agent install put the agent into it.")]
pub struct Import {
    /// Disk images; the first is the machine's first disk
    #[arg(required_unless_present = "kernel")]
    disks: Vec<PathBuf>,
    /// Assume this format for the disk images, whatever they look like
    #[arg(long, value_enum)]
    format: Option<ImportFormat>,
    /// Name of the image, NAME or NAME:TAG
    #[arg(long, short)]
    name: Option<String>,
    /// Linux kernel to boot directly
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Initial ramdisk
    #[arg(long, requires = "kernel")]
    initrd: Option<PathBuf>,
    /// Command line of the kernel
    #[arg(long, requires = "kernel")]
    cmdline: Option<String>,
    /// Put floe's agent into the system on the first disk; FILE is its program, by default floe-guest beside floe's own
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "", value_name = "FILE", requires = "disks")]
    agent: Option<OsString>,
    /// Memory of its machines unless run sets another size, such as 1G
    #[arg(long, value_parser = args::memory, value_name = "SIZE")]
    memory: Option<u64>,
    /// CPUs of its machines unless run sets another number
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    #[command(flatten)]
    hardware: super::hardware::HardwareArgs,
    /// A note to keep in the image (repeatable)
    #[arg(long, value_parser = args::label, value_name = "KEY=VALUE")]
    label: Vec<(String, String)>,
}

/// List images
#[derive(Debug, Args)]
///
/// OWN is what removing the image would free; SHARED is in packs that other images need as well.
#[command(after_help = "\
Example:
  floe image ls
  floe image ls --json | jq -r '.images[].id'
Example: those of a hub that your token may read, and those of one name
  floe image ls https://hub.example
  floe image ls https://hub.example/debian")]
pub struct Ls {
    /// A hub, or a name there; without it the images of this node
    hub: Option<String>,
    #[command(flatten)]
    access: super::login::Access,
}

/// Show what an image consists of
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  floe image inspect debian-booted")]
pub struct Inspect {
    /// Name, name:tag, id or the beginning of one
    image: String,
}

/// Read all of an image and check every hash
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  floe image verify debian && echo intact")]
pub struct Verify {
    /// Name, name:tag, id or the beginning of one
    image: String,
}

/// Lay an image's packs out by what its machines touch
///
/// Chunks that are used together are then stored side by side, in the order in which they are needed, so that one range
/// read of a directory, a web server or a bucket fetches them. The image's id does not change. Ctrl-C leaves everything
/// as it was.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: after some runs, before the image is published
  floe image optimize debian-booted && floe push debian-booted /srv/www/images
Example: one that was published in a directory, where it is
  floe image optimize /srv/www/images/debian-booted
Example: by the traces of other hosts
  floe image optimize debian-booted --traces first.trace second.trace")]
pub struct Optimize {
    /// Name, name:tag, id or the beginning of one; or the path of an image in a directory of images
    image: String,
    /// Files with traces (floe trace export writes them) that determine the layout; by default what is known of the image
    /// here: traces of its machines, the model of its hub, or the rehearsal of its capture
    #[arg(long, num_args = 1.., value_name = "FILE")]
    traces: Vec<PathBuf>,
}

/// Remove a name, and the image with its last one
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe image rm debian:old
  floe image rm --force 3f2a91
Example: from a hub, which asks first, unless --force
  floe image rm https://hub.example/debian:old")]
pub struct Rm {
    /// Name, name:tag, id or the beginning of one; or the address of one on a hub
    #[arg(required = true)]
    images: Vec<String>,
    /// Remove it with all of its names; from a hub, do not ask
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    access: super::login::Access,
}

/// Give an image an additional name
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  floe image tag debian-booted debian:ready")]
pub struct Tag {
    /// Name, name:tag, id or the beginning of one
    image: String,
    /// The new name, NAME or NAME:TAG
    name: String,
}

/// Take a name away from an image; the image stays until it is removed
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  floe image untag debian:ready")]
pub struct Untag {
    /// NAME or NAME:TAG
    name: String,
}

/// Write a region of an image to a file
#[derive(Debug, Args)]
#[command(after_help = "\
Example: the disk, for another program
  floe image export debian disk0 debian.qcow2 --format qcow2")]
pub struct Export {
    /// Name, name:tag, id or the beginning of one
    image: String,
    /// Region (floe image inspect lists them): disk0, ram, kernel ...
    region: String,
    /// File to write
    file: PathBuf,
    /// Format of the file
    #[arg(long, value_enum, default_value = "raw")]
    format: ExportFormat,
    /// Overwrite the file
    #[arg(long, short)]
    force: bool,
}

impl Image {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        match self {
            Image::Build(c) => c.run(cx)?,
            Image::Import(c) => c.run(cx)?,
            Image::Ls(Ls {
                hub: Some(hub),
                access,
            }) => hub_images::list(cx, &hub, &access)?,
            Image::Ls(_) => {
                let list = cx.client()?.images()?;
                cx.out.value(&list, |list| listing(&list.images))?;
            }
            Image::Inspect(c) => {
                let detail = cx.client()?.image(&c.image)?;
                cx.out.value(&detail, describe)?;
            }
            Image::Verify(c) => {
                let events = cx.client()?.verify_image(&c.image)?;
                return verified(cx, events);
            }
            Image::Optimize(c) => c.run(cx)?,
            Image::Rm(c) => c.run(cx)?,
            Image::Tag(c) => {
                cx.client()?.tag(&c.image, &c.name)?;
                cx.out
                    .acknowledge(&format!("{} is now also {}", c.image, c.name))?;
            }
            Image::Untag(c) => {
                cx.client()?.untag(&c.name)?;
                cx.out
                    .acknowledge(&format!("{} is no longer a name", c.name))?;
            }
            Image::Export(c) => c.run(cx)?,
            Image::Copy(c) => c.run(cx)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Import {
    fn run(self, cx: &Context) -> Result<(), CliError> {
        let path = |p: &Option<PathBuf>| p.as_deref().map(args::existing).transpose();
        let request = floe_api::ImportRequest {
            disks: self
                .disks
                .iter()
                .map(|p| args::existing(p))
                .collect::<Result<_, _>>()?,
            format: self.format,
            kernel: path(&self.kernel)?,
            initrd: path(&self.initrd)?,
            cmdline: self.cmdline,
            name: self.name,
            memory_bytes: self.memory,
            cpus: self.cpus,
            hardware: self.hardware.hardware(),
            agent: self.agent.as_deref().map(agent_path).transpose()?,
            labels: self.label.into_iter().collect(),
        };
        let done = progress::follow(cx.out, cx.client()?.import(&request)?)?;
        let agent = done.outcome.agent.as_ref().map(agent_line);
        let text = stored(&done.outcome, "imported") + &agent.unwrap_or_default();
        cx.out.text(&text)
    }
}

/// Returns the absolute path of the agent's program; an empty one stands for that which is installed.
fn agent_path(given: &OsStr) -> Result<String, CliError> {
    let given = Some(Path::new(given)).filter(|path| !path.as_os_str().is_empty());
    args::existing(&super::agent::program(given)?)
}

/// Describes where an import has put the agent.
fn agent_line(agent: &AgentReport) -> String {
    let place = match agent.partition {
        Some(number) => format!("partition {number} of the first disk"),
        None => "the first disk".to_owned(),
    };
    let starter = match agent.started_by {
        AgentStarter::Systemd => "systemd",
        AgentStarter::Busybox => "busybox's init",
        AgentStarter::Sysvinit => "init",
    };
    match agent.already_there {
        true => format!("  floe's agent was in {place} already; {starter} starts it\n"),
        false => format!("  floe's agent is in {place}; {starter} starts it at each boot\n"),
    }
}

fn listing(images: &[floe_api::ImageSummary]) -> String {
    let row = |image: &floe_api::ImageSummary| {
        vec![
            if image.names.is_empty() {
                "-".into()
            } else {
                image.names.join(", ")
            },
            short(&image.id),
            if image.live { "running" } else { "disk" }.into(),
            bytes(image.virtual_bytes),
            bytes(image.stored_bytes.saturating_sub(image.shared_bytes)),
            bytes(image.shared_bytes),
            age(image.created_unix_s),
        ]
    };
    table(
        &["NAME", "ID", "STATE", ">SIZE", ">OWN", ">SHARED", ">AGE"],
        images.iter().map(row),
    )
}

fn describe(image: &floe_api::ImageDetail) -> String {
    let text = |o: &Option<String>| o.clone().unwrap_or_default();
    let s = &image.summary;
    let labels: Vec<_> = image
        .summary
        .labels
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    let regions = image
        .regions
        .iter()
        .map(|r| vec![r.name.clone(), bytes(r.bytes), r.segments.to_string()]);
    let mut pairs = vec![
        ("id", s.id.clone()),
        ("names", s.names.join(", ")),
        ("parent", text(&s.parent)),
        (
            "state",
            if s.live {
                "of a running machine"
            } else {
                "disks only"
            }
            .into(),
        ),
        ("age", age(s.created_unix_s)),
        (
            "size",
            format!("{} of memory and disks", bytes(s.virtual_bytes)),
        ),
        // as in the columns of `floe image ls`
        (
            "own",
            format!(
                "{} of this node's disk, which go with it",
                bytes(s.stored_bytes.saturating_sub(s.shared_bytes))
            ),
        ),
        (
            "shared",
            format!(
                "{} of it with other images; all of it in {} packs",
                bytes(s.shared_bytes),
                image.packs
            ),
        ),
        ("machine", text(&image.machine_type)),
        ("qemu", text(&image.qemu_version)),
        ("accel", text(&image.accel)),
        ("cpu", text(&image.cpu_model)),
        ("flags", image.cpu_flags.join(" ")),
        (
            "cpus",
            image.cpus.map(|n| n.to_string()).unwrap_or_default(),
        ),
        ("memory", image.memory_bytes.map(bytes).unwrap_or_default()),
        ("cmdline", text(&image.cmdline)),
        ("firmware", word(&image.hardware.firmware)),
        ("disk model", word(&image.hardware.disk_model)),
        ("network model", word(&image.hardware.network_model)),
    ];
    // one on each line: what a device is called comes from the image, and may not begin a line of its own
    let devices = image.devices.iter().enumerate();
    pairs.extend(devices.map(|(n, device)| (if n == 0 { "devices" } else { "" }, device.clone())));
    pairs.push(("labels", labels.join(" ")));
    fields(&pairs) + "\n" + &table(&["REGION", ">SIZE", ">SEGMENTS"], regions)
}

impl Optimize {
    fn run(self, cx: &Context) -> Result<(), CliError> {
        let files = self.traces.iter().map(|p| args::existing(p));
        let request = floe_api::OptimizeRequest {
            image: args::image(&self.image)?,
            traces: files.collect::<Result<_, _>>()?,
        };
        let done = progress::follow(cx.out, cx.client()?.optimize(&request)?)?;
        let report = done.outcome.optimized.unwrap_or_default();
        let took = seconds(done.outcome.total_ms);
        cx.out.text(&laid_out(&self.image, &report, &took))
    }
}

fn laid_out(image: &str, report: &floe_api::OptimizeReport, took: &str) -> String {
    let count = |n: u64, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    let by = match report.by {
        floe_api::LaidOutBy::Files | floe_api::LaidOutBy::Traces => count(report.traces, "trace"),
        floe_api::LaidOutBy::Hub => format!("its hub's model of {}", count(report.traces, "trace")),
        floe_api::LaidOutBy::Rehearsal => "its rehearsal".into(),
    };
    let mut text = format!("laid out {image} by {by} in {took}\n");
    text += &format!(
        "  {} of {}: {} of {} before, {} of {} now\n",
        count(report.clusters, "group"),
        count(report.chunks, "chunk"),
        count(report.reads_before, "range read"),
        bytes(report.read_bytes_before),
        count(report.reads_after, "range read"),
        bytes(report.read_bytes_after),
    );
    text += &format!(
        "  {} in {} before, {} in {} now\n",
        bytes(report.bytes_before),
        count(report.packs_before, "pack"),
        bytes(report.bytes_after),
        count(report.packs_after, "pack"),
    );
    if report.shared_chunks > 0 {
        text += &format!(
            "  {} of it, {}, stays in packs of other images too and is stored twice now\n",
            bytes(report.shared_bytes),
            count(report.shared_chunks, "chunk"),
        );
    }
    text
}

impl Rm {
    fn run(mut self, cx: &Context) -> Result<(), CliError> {
        let on_hubs = |image: &String| hub_images::is_hub(image);
        let (hubs, here): (Vec<String>, _) = self.images.into_iter().partition(on_hubs);
        self.images = here;
        for image in hubs {
            hub_images::remove(cx, &image, &self.access, self.force)?;
        }
        if self.images.is_empty() {
            return Ok(());
        }
        let client = cx.client()?;
        let mut freed = floe_api::FreedReport::default();
        for image in self.images {
            let force = self.force;
            let report = client.remove_image(&floe_api::RemoveImageRequest { image, force })?;
            freed.freed_bytes += report.freed_bytes;
            freed.names.extend(report.names);
        }
        cx.out.value(&freed, |f| {
            format!(
                "removed {}; {} freed\n",
                f.names.join(", "),
                bytes(f.freed_bytes)
            )
        })
    }
}

impl Export {
    fn run(self, cx: &Context) -> Result<(), CliError> {
        let request = floe_api::ExportRequest {
            image: self.image,
            region: self.region,
            path: args::absolute(&self.file)?,
            format: self.format,
            force: self.force,
        };
        let done = progress::follow(cx.out, cx.client()?.export(&request)?)?;
        let path = done.outcome.path.unwrap_or(request.path);
        cx.out.text(&format!(
            "{} written to {path} in {}\n",
            request.region,
            seconds(done.outcome.total_ms)
        ))
    }
}
