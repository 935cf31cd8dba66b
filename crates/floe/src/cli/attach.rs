//! Gives a machine devices, and takes them away: `floe attach`, `floe detach`.

use std::path::Path;

use clap::Args;
use floe_api::{AttachDiskRequest, AttachedDisk, ImportFormat};

use super::error::CliError;
use super::output::bytes;
use super::{Context, args, confirm, progress};

/// Give a machine another disk, or another network card
#[derive(Debug, Args)]
#[command(after_help = "\
Example: an empty disk of 20 GiB, which its guest formats and mounts
  floe attach web --disk data=20G
  floe exec web -- mkfs.ext4 /dev/disk/by-id/virtio-disk1
Example: what is in a file (qcow2, raw, vmdk, vdi, vhdx ..., also compressed), as the disk db
  floe attach web --disk db.qcow2
  floe attach web --disk db=/backup/monday.raw.gz
Example: which disks it has
  floe disk ls web
Example: a second card, and an address for it in the guest
  floe attach web --network
  floe exec web -- dhclient eth1
Example: which cards it was given
  floe ps web --json | jq .cards

A disk's file is copied: the machine writes to a disk of its own. The machine may run or be stopped; a card needs one that runs. Each
card is on a user network of its own (10.0.3.0/24 for nic1, 10.0.4.0/24 for nic2). Captures, restored machines and clones have all of
it too.")]
pub struct Attach {
    /// The machine
    machine: String,
    /// A disk: NAME=SIZE for an empty one, FILE or NAME=FILE for one with what is in the file
    #[arg(
        long,
        value_name = "NAME=SIZE|FILE",
        required_unless_present = "network"
    )]
    disk: Option<String>,
    /// Assume this format for the disk's file, whatever it looks like
    #[arg(long, value_enum, requires = "disk")]
    format: Option<ImportFormat>,
    /// A network card
    #[arg(long, conflicts_with = "disk")]
    network: bool,
}

impl Attach {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        let machine = &self.machine;
        let Some(disk) = &self.disk else {
            let attached = client.attach_card(machine)?;
            return cx.out.value(&attached, |attached| match attached.in_use {
                true => format!("{machine} has the card {}\n", attached.card),
                false => format!(
                    "{machine} has the card {}, which no driver in its guest uses yet (Linux needs virtio_net and PCI hot-plug)\n",
                    attached.card
                ),
            });
        };
        let (name, request) = new_disk(disk, self.format)?;
        let events = client.attach_disk(machine, &name, &request)?;
        let done = progress::follow(cx.out, events)?;
        let disk = done.outcome.disk;
        disk.map_or(Ok(()), |disk| cx.out.text(&told(machine, &disk)))
    }
}

/// Says what came of giving a machine a disk.
pub(super) fn told(machine: &str, disk: &AttachedDisk) -> String {
    let AttachedDisk {
        name,
        disk,
        bytes: size,
        in_use,
    } = disk;
    let has = format!("{machine} has the disk {name} ({}, {disk})", bytes(*size));
    match in_use {
        None => format!("{has} from its next start\n"),
        Some(true) => format!("{has}: in Linux it is /dev/disk/by-id/*{disk}\n"),
        Some(false) => format!(
            "{has}, which no driver in its guest uses yet: Linux needs virtio_blk and PCI hot-plug (modprobe virtio_blk shpchp), \
             Windows viostor of the virtio-win package; floe restart {machine} shows it to a guest without hot-plug\n"
        ),
    }
}

/// Reads `NAME=SIZE`, `FILE` or `NAME=FILE`. `format` is that of a file.
pub(super) fn new_disk(
    text: &str,
    format: Option<ImportFormat>,
) -> Result<(String, AttachDiskRequest), CliError> {
    if let Some((name, what)) = text.split_once('=').filter(|(name, _)| !name.contains('/')) {
        let request = match args::size(what) {
            Ok(bytes) => AttachDiskRequest {
                bytes: Some(bytes),
                ..Default::default()
            },
            Err(_) => file(Path::new(what), format)?,
        };
        return Ok((name.to_owned(), request));
    }
    let path = Path::new(text);
    if args::size(text).is_ok() && matches!(path.try_exists(), Ok(false)) {
        return Err(CliError::usage(
            format!("the disk of {text} has no name"),
            format!("give it one: --disk data={text}"),
        ));
    }
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let name = name.split('.').next().unwrap_or_default().to_lowercase();
    Ok((name, file(path, format)?))
}

fn file(path: &Path, format: Option<ImportFormat>) -> Result<AttachDiskRequest, CliError> {
    Ok(AttachDiskRequest {
        path: Some(args::existing(path)?),
        format,
        ..Default::default()
    })
}

/// Take away a disk or a network card that a machine was given
#[derive(Debug, Args)]
#[command(after_help = "\
Example: the guest must not use the disk any more; what is on it is gone then
  floe exec web -- umount /data
  floe detach web data
Example: a network card
  floe detach web nic1

The guest is asked to let it go, which takes some seconds; if it does not, it keeps it and the command says so. A disk that is mounted
in the guest is not taken away. To keep what is on a disk, capture the machine first (floe capture), or copy it out (floe cp).")]
pub struct Detach {
    /// The machine
    machine: String,
    /// The disk or the card: data, disk1, nic1 ...
    device: String,
    /// Do not ask whether what is on the disk may be lost
    #[arg(long)]
    force: bool,
}

impl Detach {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        let (machine, device) = (&self.machine, &self.device);
        let number = device.strip_prefix("nic").unwrap_or_default();
        if number.parse::<u32>().is_ok() {
            client.detach_card(machine, device)?;
        } else {
            let lost = format!("what is on the disk {device} of {machine} is lost with it. Go on?");
            if !self.force && !confirm::agrees(&lost)? {
                return Ok(());
            }
            client.detach_disk(machine, device)?;
        }
        cx.out
            .acknowledge(&format!("{machine} has no {device} any more"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_named_by_its_user_or_after_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("Db.tar.qcow2");
        std::fs::write(&path, "x").unwrap();
        let path = path.to_str().unwrap();
        let (name, request) = new_disk("data=20G", None).unwrap();
        assert_eq!(
            (name.as_str(), request.bytes, request.path),
            ("data", Some(20 << 30), None)
        );
        for (text, expected) in [(path.to_owned(), "db"), (format!("logs={path}"), "logs")] {
            let (name, request) = new_disk(&text, None).unwrap();
            assert_eq!((name.as_str(), request.bytes), (expected, None));
            assert!(request.path.unwrap().ends_with("/Db.tar.qcow2"));
        }
        assert!(
            new_disk("20G", None)
                .unwrap_err()
                .0
                .fix
                .contains("data=20G")
        );
        assert!(new_disk("/no/such=file", None).is_err());
        assert!(new_disk("data=/no/such", None).is_err());
    }

    #[test]
    fn a_disk_that_no_driver_uses_is_told_with_what_helps() {
        let disk = |in_use| AttachedDisk {
            name: "data".into(),
            disk: "disk1".into(),
            bytes: 1 << 30,
            in_use,
        };
        assert!(told("web", &disk(Some(true))).contains("/dev/disk/by-id/*disk1"));
        assert!(told("web", &disk(Some(false))).contains("modprobe virtio_blk"));
        assert!(told("web", &disk(None)).ends_with("from its next start\n"));
    }
}
