//! `disk`: fio on a copy-on-write disk of the mount, with all of its data local and in the cache, compared with the same
//! raw file on the file system below. Both are opened with O_DIRECT, as QEMU opens floe's disks. The raw file through the
//! page cache (as with QEMU's `cache=writeback`) is shown as well.
use anyhow::{Context as _, bail};
use floe_image::MachineConfig;
use floe_mount::{DiskSpec, MachineSpec};
use floe_store::{Ingest, IngestOptions};
use floe_testbed::harness::{Context, Report, Samples, interleave};
use floe_testbed::local::{LocalMount, need};
use floe_testbed::workload;
use std::path::Path;
use std::process::Command;

/// A kind of access: fio's options and the figure that it yields.
struct Job {
    name: &'static str,
    rw: &'static str,
    block: &'static str,
    depth: u32,
    /// Number of blocks between flushes of writes: about as often as a guest's file system commits.
    flush_every: Option<u32>,
}

const JOBS: [Job; 4] = [
    Job {
        name: "seq_read",
        rw: "read",
        block: "1M",
        depth: 4,
        flush_every: None,
    },
    Job {
        name: "rand_read",
        rw: "randread",
        block: "4k",
        depth: 4,
        flush_every: None,
    },
    Job {
        name: "seq_write",
        rw: "write",
        block: "1M",
        depth: 4,
        flush_every: Some(256),
    },
    Job {
        name: "rand_write",
        rw: "randwrite",
        block: "4k",
        depth: 4,
        flush_every: Some(1024),
    },
];

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    need("fio", "fio")?;
    let mut report = Report::new("disk", context.quick);
    let bytes: u64 = context.pick(1 << 30, 64 << 20);
    let (rounds, seconds) = context.pick((5, 4), (2, 1));

    let raw = context.scratch.join("raw");
    std::fs::write(&raw, workload::noise(bytes as usize, 2))?;
    let local = LocalMount::new(&context.scratch, 4 * bytes)?;
    let mut ingest = Ingest::new(&local.repository, IngestOptions::default())?;
    ingest.region_from_file("disk0", &raw)?;
    let image = local.show(&ingest.finish(MachineConfig::default())?)?;
    let disk = |name: &str| DiskSpec {
        name: name.into(),
        base: Some("disk0".into()),
        size: bytes,
    };
    let machine = local.mount.add_machine(MachineSpec {
        name: "disk".into(),
        uid: 0,
        gid: 0,
        image,
        dir: context.scratch.join("machine"),
        disks: vec![disk("disk0"), disk("disk1")],
        base: None,
    })?;
    // Reads use the image's own chunks, writes go to another disk of the same image, so that neither affects the other.
    let path = |name: &str| machine.disk_path(name).context("the machine has this disk");
    let (read_disk, write_disk) = (path("disk0")?, path("disk1")?);
    // Read everything into the local cache.
    std::io::copy(&mut std::fs::File::open(&read_disk)?, &mut std::io::sink())?;

    for job in &JOBS {
        let ours = if job.flush_every.is_some() {
            &write_disk
        } else {
            &read_disk
        };
        let mut floe = || fio(job, ours, bytes, seconds, true);
        let mut direct = || fio(job, &raw, bytes, seconds, true);
        let mut cached = || fio(job, &raw, bytes, seconds, false);
        let speeds = interleave(rounds, &mut [&mut floe, &mut direct, &mut cached])?;
        let [floe, direct, cached]: [Samples; 3] = speeds
            .try_into()
            .map_err(|_| anyhow::anyhow!("three candidates were run"))?;
        let unit = "MB/s";
        report
            .add(&format!("{}_ratio", job.name), "x", &floe.over(&direct))
            .against("the raw file, O_DIRECT", unit, direct.median());
        report
            .add(&format!("{}_mb_per_s", job.name), unit, &floe)
            .against("the raw file, O_DIRECT", unit, direct.median());
        report
            .add(&format!("{}_vs_cached", job.name), "x", &floe.over(&cached))
            .against("the raw file, page cache", unit, cached.median());
    }
    report.note(format!("{} MB of incompressible data, 4 requests in flight, 1 MiB or 4 KiB each; writes flush every 256 MB or 4 MB", bytes / 1_000_000));
    Ok(report)
}

/// Returns MB per second.
fn fio(job: &Job, file: &Path, bytes: u64, seconds: u32, direct: bool) -> anyhow::Result<f64> {
    let mut command = Command::new("fio");
    command.args([
        "--name=lab",
        "--output-format=json",
        "--ioengine=libaio",
        "--time_based",
        "--randrepeat=1",
        "--allow_file_create=0",
    ]);
    command.arg(format!("--filename={}", file.display()));
    command.args([
        format!("--rw={}", job.rw),
        format!("--bs={}", job.block),
        format!("--iodepth={}", job.depth),
    ]);
    command.args([
        format!("--size={bytes}"),
        format!("--runtime={seconds}"),
        format!("--direct={}", u8::from(direct)),
    ]);
    if !direct {
        // By default, fio first drops the file's pages, so that nothing would be cached.
        command.arg("--invalidate=0");
    }
    if let Some(blocks) = job.flush_every {
        command.args([format!("--fsync={blocks}"), "--overwrite=0".into()]);
    }
    let output = command.output()?;
    if !output.status.success() {
        bail!(
            "fio {} on {}: {}",
            job.rw,
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let json: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("fio wrote no JSON")?;
    let side = if job.flush_every.is_some() {
        "write"
    } else {
        "read"
    };
    let bytes = json["jobs"][0][side]["io_bytes"]
        .as_f64()
        .context("fio told no bytes")?;
    let ms = json["jobs"][0][side]["runtime"]
        .as_f64()
        .context("fio told no time")?;
    Ok(bytes / 1e3 / ms.max(1.0))
}
