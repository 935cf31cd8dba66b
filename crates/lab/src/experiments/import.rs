//! `import`: imports a sparse disk into the repository (read, find holes, hash, deduplicate, compress, write, fsync).
//! Compared with `zstd -3 -T0` of the same file, and of its data alone with all holes removed. Then files of all foreign formats are
//! imported, which must become the disk that is in them.
use anyhow::{Context as _, bail};
use floe_image::MachineConfig;
use floe_store::{Ingest, IngestOptions, Repository};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples, interleave};
use floe_testbed::workload;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Size of the short version's disk, for which no guest has to be built.
const QUICK_DISK_BYTES: u64 = 256 << 20;
const QUICK_DATA_BYTES: u64 = 48 << 20;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("import", context.quick);
    let disk = if context.quick {
        let path = context.scratch.join("disk.raw");
        workload::sparse_disk(&path, QUICK_DISK_BYTES, QUICK_DATA_BYTES)?;
        path
    } else {
        Guest::debian()?.disk().to_path_buf()
    };
    let dense = context.scratch.join("dense.raw");
    let data_bytes = workload::without_holes(&disk, &dense)?;
    let size = fs::metadata(&disk)?.len();
    // Both read it from memory: the work is to be compared, not the disk.
    std::io::copy(&mut File::open(&disk)?, &mut std::io::sink())?;

    let (mut stored, mut zstd_bytes) = (0, 0);
    let mut number = 0;
    let mut floe = || {
        number += 1;
        import(&context.scratch.join(format!("repo{number}")), &disk).map(|(seconds, bytes)| {
            stored = bytes;
            seconds
        })
    };
    let mut whole = || {
        zstd(&disk, &context.scratch.join("out.zst")).map(|(seconds, bytes)| {
            zstd_bytes = bytes;
            seconds
        })
    };
    let mut data = || zstd(&dense, &context.scratch.join("out.zst")).map(|(seconds, _)| seconds);
    let times = interleave(context.pick(5, 3), &mut [&mut floe, &mut whole, &mut data])?;
    let [ours, whole, data] = times
        .try_into()
        .map_err(|_| anyhow::anyhow!("three candidates were run"))?;

    let megabytes = |times: &Samples| {
        times
            .values()
            .iter()
            .map(|seconds| size as f64 / 1e6 / seconds)
            .collect::<Samples>()
    };
    report
        .add("import_vs_zstd", "x", &whole.over(&ours))
        .against(
            "zstd -3 -T0, of the sparse file",
            "MB/s",
            megabytes(&whole).median(),
        );
    report
        .add("import_mb_per_s", "MB/s", &megabytes(&ours))
        .against(
            "zstd -3 -T0, of the sparse file",
            "MB/s",
            megabytes(&whole).median(),
        );
    report
        .add("import_data_vs_zstd", "x", &data.over(&ours))
        .against(
            "zstd -3 -T0, of the data without the holes",
            "s",
            data.median(),
        );
    report
        .add_value("stored_mb", "MB", stored as f64 / 1e6)
        .against("zstd -3", "MB", zstd_bytes as f64 / 1e6);
    report.note(format!(
        "a disk of {} MB with {} MB of data, in the page cache; both results are fsynced",
        size / 1_000_000,
        data_bytes / 1_000_000
    ));
    super::foreign::measure(context, &mut report)?;
    Ok(report)
}

/// Returns the seconds that an import takes, and the bytes that it stores.
fn import(dir: &Path, disk: &Path) -> anyhow::Result<(f64, u64)> {
    let start = Instant::now();
    let repository = Repository::create(dir)?;
    let mut ingest = Ingest::new(&repository, IngestOptions::default())?;
    ingest.region_from_file("disk0", disk)?;
    let id = ingest.finish(MachineConfig::default())?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = repository.inspect(&id)?.pack_bytes;
    if bytes == 0 {
        bail!("the import of {} stored nothing", disk.display());
    }
    fs::remove_dir_all(dir)?;
    Ok((seconds, bytes))
}

fn zstd(from: &Path, to: &PathBuf) -> anyhow::Result<(f64, u64)> {
    let start = Instant::now();
    let status = Command::new("zstd")
        .args(["-3", "-T0", "-q", "-f", "-o"])
        .arg(to)
        .arg(from)
        .status();
    let status = status.context("zstd is missing; install the Debian package zstd")?;
    if !status.success() {
        bail!("zstd {}: {status}", from.display());
    }
    File::open(to)?.sync_all()?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = fs::metadata(to)?.len();
    fs::remove_file(to)?;
    Ok((seconds, bytes))
}
