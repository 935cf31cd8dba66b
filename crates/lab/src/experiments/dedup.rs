//! `dedup`: one disk imported in seven formats, and ten different Debian guests in one repository. What is stored is
//! compared with one import, and with each guest in a repository of its own; an import of a disk that the repository has
//! already is compared with one into an empty repository.
use anyhow::{Context as _, bail, ensure};
use floe_api::{ImportRequest, Outcome};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, interleave};
use floe_testbed::live::Node;
use floe_testbed::workload;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What one disk is imported as: the name of the copy, and `qemu-img`'s options for it.
const FORMATS: [(&str, &[&str]); 7] = [
    ("raw", &["-O", "raw"]),
    ("qcow2", &["-O", "qcow2"]),
    ("qcow2-packed", &["-O", "qcow2", "-c"]),
    ("vmdk", &["-O", "vmdk"]),
    ("vdi", &["-O", "vdi"]),
    ("vhdx", &["-O", "vhdx"]),
    // without it, the size is rounded up to whole cylinders
    ("vpc", &["-O", "vpc", "-o", "force_size=on"]),
];

/// Size of the short version's disk, for which no guest has to be built.
const QUICK_DISK_BYTES: u64 = 256 << 20;
const QUICK_DATA_BYTES: u64 = 48 << 20;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("dedup", context.quick);
    let disk = if context.quick {
        let path = context.scratch.join("disk.raw");
        workload::sparse_disk(&path, QUICK_DISK_BYTES, QUICK_DATA_BYTES)?;
        path
    } else {
        Guest::debian()?.disk()
    };
    formats(context, &disk, &mut report)?;
    speed(context, &disk, &mut report)?;
    if context.quick {
        report.note("the family of guests is measured in full runs only");
    } else {
        family(context, &Guest::family()?, &mut report)?;
    }
    Ok(report)
}

/// Imports one disk in each format into one repository.
fn formats(context: &Context, disk: &Path, report: &mut Report) -> anyhow::Result<()> {
    let node = Node::start(None, &context.scratch.join("formats"), false)?;
    let mut after_one = 0;
    for (name, options) in FORMATS {
        let copy = convert(disk, &context.scratch.join(name), options)?;
        let outcome = import(&node, &copy, name)?;
        fs::remove_file(&copy)?;
        if after_one == 0 {
            after_one = stored_bytes(&node)?;
        } else if outcome.stored.is_some_and(|stored| stored.new_chunks > 0) {
            report.note(format!(
                "the import of {name} stored chunks that an earlier one did not"
            ));
        }
    }
    let after_seven = stored_bytes(&node)?;
    report
        .add_value("seven_over_one", "x", after_seven as f64 / after_one as f64)
        .against("one import", "MB", after_one as f64 / 1e6);
    Ok(())
}

/// Times imports of a disk that the repository has already against imports into an empty one.
fn speed(context: &Context, disk: &Path, report: &mut Report) -> anyhow::Result<()> {
    let full = Node::start(None, &context.scratch.join("full"), false)?;
    import(&full, disk, "first")?;
    let (mut known_round, mut new_round) = (0, 0);
    let mut known = || {
        known_round += 1;
        let start = Instant::now();
        import(&full, disk, &format!("again{known_round}"))?;
        Ok(start.elapsed().as_secs_f64())
    };
    let mut new = || {
        new_round += 1;
        let home = context.scratch.join(format!("empty{new_round}"));
        let empty = Node::start(None, &home, false)?;
        let start = Instant::now();
        import(&empty, disk, "first")?;
        Ok(start.elapsed().as_secs_f64())
    };
    let times = interleave(context.pick(5, 1), &mut [&mut known, &mut new])?;
    let [known, new] = times
        .try_into()
        .map_err(|_| anyhow::anyhow!("two candidates were run"))?;
    report
        .add("known_over_new_speed", "x", &new.over(&known))
        .against("an import into an empty repository", "s", new.median());
    Ok(())
}

/// Imports different guests, each into a repository of its own and all into one.
fn family(context: &Context, guests: &Path, report: &mut Report) -> anyhow::Result<()> {
    let mut disks: Vec<PathBuf> = fs::read_dir(guests)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    disks.retain(|path| path.extension().is_some_and(|extension| extension == "raw"));
    disks.sort();
    ensure!(!disks.is_empty(), "{} holds no disk", guests.display());
    let together = Node::start(None, &context.scratch.join("family"), false)?;
    let mut apart_bytes = 0;
    for (number, disk) in disks.iter().enumerate() {
        let name = format!("guest{number}");
        let home = context.scratch.join(&name);
        let alone = Node::start(None, &home, false)?;
        import(&alone, disk, &name)?;
        apart_bytes += stored_bytes(&alone)?;
        drop(alone);
        fs::remove_dir_all(&home)?;
        import(&together, disk, &name)?;
    }
    let together_bytes = stored_bytes(&together)?;
    report
        .add_value(
            "family_ratio",
            "x",
            together_bytes as f64 / apart_bytes as f64,
        )
        .against(
            "each guest in a repository of its own",
            "MB",
            apart_bytes as f64 / 1e6,
        );
    report.note(format!(
        "the family is {} Debian guests of different packages",
        disks.len()
    ));
    Ok(())
}

fn import(node: &Node, disk: &Path, name: &str) -> anyhow::Result<Outcome> {
    let request = ImportRequest {
        disks: vec![disk.display().to_string()],
        name: Some(name.into()),
        // an image is named by what it holds: without this, equal disks would be one image
        labels: [("copy".to_owned(), name.to_owned())].into(),
        ..Default::default()
    };
    Ok(node.client.import(&request)?.finish(|_| {})?)
}

/// Returns the bytes of all files in the node's repository.
fn stored_bytes(node: &Node) -> anyhow::Result<u64> {
    fn below(dir: &Path) -> anyhow::Result<u64> {
        let mut bytes = 0;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            bytes += if meta.is_dir() {
                below(&entry.path())?
            } else {
                meta.len()
            };
        }
        Ok(bytes)
    }
    let bytes = below(&node.home.join("repo"))?;
    ensure!(bytes > 0, "the import stored nothing");
    Ok(bytes)
}

fn convert(disk: &Path, to: &Path, options: &[&str]) -> anyhow::Result<PathBuf> {
    let done = Command::new("qemu-img")
        .args(["convert", "-f", "raw"])
        .args(options)
        .args([disk, to])
        .output()
        .context("qemu-img is missing; install the Debian package qemu-utils")?;
    if !done.status.success() {
        bail!(
            "qemu-img convert {options:?}: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        );
    }
    Ok(to.to_path_buf())
}
