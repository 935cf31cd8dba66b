//! `offload`: a weak device lends its machine to a strong host and has it back. What is gained end to end for jobs of a fixed size, from
//! which work on it pays, and whether the model says so; for how long the machine stands still on both ways after a sync a minute before,
//! and what a second trip sends of what the first did. Compared with doing the job on the device.
pub(super) mod site;

use crate::guest::Guest;
use crate::harness::{Context, Report, Samples};
use floe_node::pays::{Case, Costs};
use site::{Link, Site, Trip, down};
use std::time::Duration;

/// Memory of the guest with programs.
const MEMORY_BYTES: u64 = 1 << 30;
/// Memory of the small guest.
const TINY_BYTES: u64 = 256 << 20;
/// How long before a trip the machine is synced.
const SYNC_BEFORE: Duration = Duration::from_secs(60);
/// What the guest changes meanwhile: 1 MB a minute that no compression makes smaller, half of it in memory and half on its disk.
const CHANGES: &str = "(while :; do head -c 50000 /dev/urandom >/dev/shm/c.$(cut -d. -f1 /proc/uptime); \
    head -c 50000 /dev/urandom >>/var/tmp/changes; sync; sleep 6; done) >/dev/null 2>&1 &";
/// The same of a guest without a disk.
const CHANGES_TINY: &str = "(while :; do head -c 100000 /dev/urandom >/tmp/c.$(cut -d. -f1 /proc/uptime); sleep 6; done) >/dev/null 2>&1 &";

/// A job of a fixed size.
struct Job {
    name: &'static str,
    command: &'static str,
}

/// Hashing, and a compile that takes minutes on the device.
const JOBS: [Job; 2] = [
    Job {
        name: "openssl",
        command: "n=0; while [ $n -lt 40 ]; do n=$((n+1)); head -c 16m /dev/zero | openssl dgst -sha512 >/dev/null; done",
    },
    Job {
        name: "compile",
        command: "apps compile 2",
    },
];

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("offload", context.quick);
    let mut errors = Samples::default();
    for link in Link::all().iter().take(context.pick(2, 1)) {
        gains(context, link, &mut report, &mut errors)?;
    }
    let worst = errors.values().iter().copied().fold(0.0, f64::max);
    report.add_value("model_error_max", "x", worst);
    stands_still(context, &mut report)?;
    report.note(format!(
        "the device has {} % of a core, its node included; the strong host has equal vCPUs and what is left; the image is on both sides. \
         End to end: from the command to the answer back on the device. The model is fitted to the first trip of each job and held against \
         the others. Names without a suffix: 7.2 Mbit/s and 120 ms; _50: 50 Mbit/s and 30 ms",
        site::DEVICE_PERCENT
    ));
    report.note(
        "the guest has no JavaScript interpreter, and QEMU's own migration is not run beside it: gain of a JavaScript suite and \
         migrate_over_ours are not measured here",
    );
    Ok(report)
}

/// Does each job on the device, and on the strong host.
fn gains(
    context: &Context,
    link: &Link,
    report: &mut Report,
    errors: &mut Samples,
) -> anyhow::Result<()> {
    let (guest, memory) = match context.quick {
        true => (Guest::tiny()?, TINY_BYTES),
        false => (Guest::apps()?, MEMORY_BYTES),
    };
    let scratch = context.scratch.join(format!("gain{}", link.suffix));
    let site = Site::new(&scratch, &guest, memory, link)?;
    let quick = [Job {
        name: "openssl",
        command: "n=0; while [ $n -lt 4 ]; do n=$((n+1)); head -c 4194304 /dev/zero | sha256sum >/dev/null; done",
    }];
    let jobs: &[Job] = if context.quick { &quick } else { &JOBS };
    for job in jobs {
        let here = site
            .device
            .tell(site::MACHINE, job.command, site::JOB_MAX)?;
        let here_s = here.as_secs_f64();
        let mut trips = Vec::new();
        for _ in 0..context.pick(3, 2) {
            trips.push(site.trip(job.command)?);
        }
        let gain = trips.iter().map(|trip| here_s / trip.total_s).collect();
        let suffix = link.suffix;
        report
            .add(&format!("gain_{}{suffix}", job.name), "x", &gain)
            .against("on the device", "s", here_s);
        let (case, costs) = fitted(here_s, &trips[0], link);
        let forecast = case.forecast(&costs);
        for trip in &trips[1..] {
            errors.push((forecast.there_s / trip.total_s - 1.0).abs());
        }
        // one that the strong host does no faster never pays, which is told
        match forecast.break_even_s {
            Some(work_s) => {
                report.add_value(&format!("break_even_s_{}{suffix}", job.name), "s", work_s);
                report.add_value(&format!("break_even_s{suffix}"), "s", work_s);
            }
            None => report.fail(format!("{} is no faster on the strong host", job.name)),
        }
    }
    Ok(())
}

/// Fits the model to one trip: how much faster the job was, and how long the ways took beside their bytes.
fn fitted(here_s: f64, trip: &Trip, link: &Link) -> (Case, Costs) {
    let case = Case {
        work_s: here_s,
        busy: 1.0,
        speedup: here_s / trip.job_s,
        up_bytes: trip.up_bytes,
        down_bytes: trip.down_bytes,
        up_bytes_s: link.bytes_s(),
        down_bytes_s: link.bytes_s(),
        round_trip_s: link.round_trip_s,
    };
    let without = Costs {
        still_s: 0.0,
        ..Costs::default()
    };
    let still_s = (trip.total_s - trip.job_s - case.ways_s(&without)).max(0.0);
    (case, Costs { still_s, ..without })
}

/// Measures for how long nobody answers on both ways, and what they send.
fn stands_still(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let (guest, memory, changes) = match context.quick {
        true => (Guest::tiny()?, TINY_BYTES, CHANGES_TINY),
        false => (Guest::debian()?, MEMORY_BYTES, CHANGES),
    };
    let link = &Link::all()[0];
    let site = Site::new(&context.scratch.join("still"), &guest, memory, link)?;
    let (mut there, mut back, mut closed, mut ratio) = (
        Samples::default(),
        Samples::default(),
        Samples::default(),
        Samples::default(),
    );
    // all of it goes over once, as nobody has synced it
    let before = site.wire();
    site.offload()?;
    let first = site.wire().0 - before.0;
    site.recall()?;
    site.device.tell(site::MACHINE, changes, site::JOB_MAX)?;
    let wait = context.pick(SYNC_BEFORE, Duration::from_secs(6));
    for _ in 0..context.pick(3, 1) {
        site.sync()?;
        std::thread::sleep(wait);
        let before = site.wire();
        let (stood, took) = down(&site.device, &site.cloud, || site.offload().map(drop))?;
        ratio.push((site.wire().0 - before.0) as f64 / first as f64);
        there.push(stood.as_secs_f64());
        closed.push(took.as_secs_f64());
        site.sync()?;
        std::thread::sleep(wait);
        let (stood, _) = down(&site.cloud, &site.device, || site.recall())?;
        back.push(stood.as_secs_f64());
    }
    report.add("down_s", "s", &there);
    report.add("down_back_s", "s", &back);
    report.add("closed_s", "s", &closed);
    report.add("second_over_first", "x", &ratio).against(
        "the first trip",
        "MB",
        first as f64 / 1e6,
    );
    Ok(())
}
