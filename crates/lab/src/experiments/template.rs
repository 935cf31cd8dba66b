//! `template`: a new machine of a template whose disk has 2 to 20 GB, until its QEMU runs. Compared with a copy of that disk, which a
//! template that is a file needs for each machine (table 3.1 of the dissertation on VM Substrate).
use super::activate::forget;
use anyhow::{Context as _, ensure};
use floe_api::{RunRequest, Wait};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, interleave};
use floe_testbed::live::{Node, import_request};
use rand::Rng as _;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Sizes of the templates' disks, GB.
const SIZES_GB: [u64; 4] = [2, 5, 10, 20];
/// Bytes of a GB in a full and in a quick run.
const GB: u64 = 1_000_000_000;
const GB_QUICK: u64 = 16_000_000;
/// What is written at a time, bytes.
const PIECE: usize = 1_000_000;
/// Sectors of a disk are whole.
const SECTOR: u64 = 512;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("template", context.quick);
    let guest = Guest::tiny()?;
    let node = Node::start(None, &context.scratch.join("node"), false)?;
    let (disk, copy) = (
        context.scratch.join("template.raw"),
        context.scratch.join("copy.raw"),
    );
    for size in SIZES_GB {
        fill(&disk, size * context.pick(GB, GB_QUICK))?;
        let image = format!("template{size}");
        let mut request = import_request(&guest, &image, guest.cmdline()?);
        request.disks = vec![disk.display().to_string()];
        node.client.import(&request)?.finish(|_| {})?;
        let mut new = || {
            let request = RunRequest {
                image: image.clone(),
                name: Some("new".into()),
                cold: true,
                wait: Wait::None,
                ..RunRequest::default()
            };
            let ms = node.run(&request, |_| {})?.total_ms;
            node.remove("new")?;
            Ok(ms)
        };
        let mut copied = || {
            forget(&disk)?;
            let ms = copied_ms(&disk, &copy)?;
            std::fs::remove_file(&copy)?;
            Ok(ms)
        };
        let all = interleave(context.pick(3, 1), &mut [&mut new, &mut copied])?;
        report
            .add(&format!("new_ms_{size}gb"), "ms", &all[0])
            .against("cp of its disk", "ms", all[1].median());
        std::fs::remove_file(&disk)?;
    }
    report.note(
        "a busybox with a disk of so many GB without holes; cp writes all of it and flushes it, from a disk whose file is not in \
         memory; the new machine runs from its image, which was imported before, until its CPU executes",
    );
    Ok(report)
}

/// Writes a disk without holes.
fn fill(path: &Path, bytes: u64) -> anyhow::Result<()> {
    ensure!(bytes.is_multiple_of(SECTOR), "{bytes} bytes are no disk");
    let mut piece = vec![0u8; PIECE];
    rand::rng().fill(&mut piece[..]);
    let mut file = File::create(path)?;
    for number in 0..bytes / PIECE as u64 {
        piece[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Copies a file, every byte of it, and returns how long that took until it was on the disk, in ms.
fn copied_ms(from: &Path, to: &Path) -> anyhow::Result<f64> {
    let began = Instant::now();
    let status = Command::new("cp")
        .args(["--reflink=never", "--sparse=never"])
        .args([from, to])
        .status()
        .context("cannot run cp")?;
    ensure!(status.success(), "cp: {status}");
    File::open(to)?.sync_all()?;
    Ok(began.elapsed().as_secs_f64() * 1000.0)
}
