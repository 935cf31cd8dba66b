//! `offload`: a weak device lends its machine to a strong host and has it back. What is gained end to end for jobs of a fixed size, from
//! which work on it pays, and whether the model says so; for how long the machine stands still on both ways after a sync a minute before,
//! and what a second trip sends of what the first did. Compared with doing the job on the device, and with QEMU's own live migration.
mod curve;
mod migration;
pub(super) mod site;

use curve::Done;
use floe_contention::io::DEVICE_PERCENT;
use floe_node::pays::{Case, Costs};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use site::{Link, Site, Trip, down};
use std::collections::BTreeMap;
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
/// What a boot, or a way without a sync before it, is taken to last, in seconds: for the estimate at the start alone.
const STEP_S: f64 = 45.0;

/// A job of a fixed size.
struct Job {
    name: &'static str,
    command: &'static str,
    /// Whether it is done over the first link alone, because it takes long.
    once: bool,
    /// What it is taken to last on the device, in seconds: for the estimate at the start alone.
    about_s: f64,
}

/// Hashing, a suite of programs in JavaScript which fails if it computes anything wrong, and a compile that takes minutes on the device.
const JOBS: [Job; 3] = [
    Job {
        name: "openssl",
        command: "n=0; while [ $n -lt 40 ]; do n=$((n+1)); head -c 16m /dev/zero | openssl dgst -sha512 >/dev/null; done",
        once: false,
        about_s: 120.0,
    },
    Job {
        name: "js",
        command: "duk /srv/apps/suite.js",
        once: false,
        about_s: 120.0,
    },
    Job {
        name: "compile",
        command: "apps compile 2",
        once: true,
        about_s: 600.0,
    },
];
/// A short one, for a guest that has nothing else.
const QUICK: [Job; 1] = [Job {
    name: "openssl",
    command: "n=0; while [ $n -lt 4 ]; do n=$((n+1)); head -c 4194304 /dev/zero | sha256sum >/dev/null; done",
    once: false,
    about_s: 10.0,
}];

/// What the first link has told of a job.
struct Known {
    /// How long it takes on the device, in seconds.
    here_s: f64,
    /// How much faster it is on the strong host.
    speedup: f64,
    costs: Costs,
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("offload", context.quick);
    let mut links = Vec::from(Link::fixed());
    match context.quick {
        true => links.truncate(1),
        false => links.push(Link::lte()?),
    }
    let minutes = estimate_s(context, links.len()) / 60.0;
    eprintln!("offload: {} links, some {minutes:.0} minutes", links.len());
    let (mut errors, mut known, mut all) = (Samples::default(), BTreeMap::new(), Vec::new());
    for link in &links {
        all.extend(gains(context, link, &mut known, &mut report, &mut errors)?);
    }
    let worst = errors.values().iter().copied().fold(0.0, f64::max);
    report.add_value("model_error_max", "x", worst);
    let plot = curve::draw(&links, &all);
    report.plots.insert("offload-break-even".into(), plot);
    let answered = stands_still(context, &links[0], &mut report)?;
    migrates(context, &links[0], &answered, &mut report)?;
    report.note(format!(
        "the device has {} % of a core, its node included; the strong host has equal vCPUs and what is left; the image is on both sides. \
         End to end: from the command to the answer back on the device. How much faster a job is, and how long the ways take beside their \
         bytes, is fitted to the first trip of each job over the first link, and held against all other trips, whose bytes are given. Names \
         without a suffix: 7.2 Mbit/s and 120 ms; _50: 50 Mbit/s and 30 ms; _lte: a recorded link",
        DEVICE_PERCENT
    ));
    report.note(
        "the JavaScript suite is the lab's own (guests/suite.js) and runs in Duktape, which only interprets: an engine that compiles while \
         it runs, as a phone's browser does, may gain more or less",
    );
    Ok(report)
}

/// The jobs, and how many trips each makes over a link.
fn jobs(context: &Context) -> (&'static [Job], usize) {
    match context.quick {
        true => (&QUICK, 2),
        false => (&JOBS, 2),
    }
}

/// How often the machine goes to and fro to see for how long it stands still, and how often QEMU moves one.
fn rounds(context: &Context) -> usize {
    context.pick(2, 1)
}

/// Returns roughly how long all of it takes, in seconds.
fn estimate_s(context: &Context, links: usize) -> f64 {
    let (jobs, trips) = jobs(context);
    let each = |job: &Job| {
        let links = if job.once { 1 } else { links };
        // here once, and there five times as fast
        job.about_s + (links * trips) as f64 * (job.about_s / 5.0 + STEP_S)
    };
    let gains = jobs.iter().map(each).sum::<f64>() + links as f64 * 2.0 * STEP_S;
    let wait_s = wait(context).as_secs_f64();
    // boot and first trip; three waits and ways, one more from an image that is made anew, and one of QEMU's, which boots anew
    gains + 2.0 * STEP_S + rounds(context) as f64 * (5.0 * wait_s + 8.0 * STEP_S)
}

fn wait(context: &Context) -> Duration {
    context.pick(SYNC_BEFORE, Duration::from_secs(6))
}

/// Does each job on the device, and on the strong host. Returns what was gained.
fn gains(
    context: &Context,
    link: &Link,
    known: &mut BTreeMap<&'static str, Known>,
    report: &mut Report,
    errors: &mut Samples,
) -> anyhow::Result<Vec<Done>> {
    let (guest, memory) = match context.quick {
        true => (Guest::tiny()?, TINY_BYTES),
        false => (Guest::apps()?, MEMORY_BYTES),
    };
    let scratch = context.scratch.join(format!("gain{}", link.suffix));
    let site = Site::new(&scratch, &guest, memory, link)?;
    let (jobs, count) = jobs(context);
    let mut all = Vec::new();
    for job in jobs {
        if job.once && known.contains_key(job.name) {
            continue;
        }
        // the device alone is the same, whatever the link
        let here_s = match known.get(job.name) {
            Some(known) => known.here_s,
            None => {
                let here = site
                    .device
                    .tell(site::MACHINE, job.command, site::JOB_MAX)?;
                here.as_secs_f64()
            }
        };
        let mut trips = Vec::new();
        for _ in 0..count {
            trips.push(site.trip(job.command)?);
        }
        let gain: Samples = trips.iter().map(|trip| here_s / trip.total_s).collect();
        let suffix = link.suffix;
        report
            .add(&format!("gain_{}{suffix}", job.name), "x", &gain)
            .against("on the device", "s", here_s);
        // what it is fitted to proves nothing
        let tested = usize::from(!known.contains_key(job.name));
        let known = known
            .entry(job.name)
            .or_insert_with(|| fitted(here_s, &trips[0], link));
        for trip in &trips[tested..] {
            let forecast = case(known, trip, link).forecast(&known.costs);
            errors.push((forecast.there_s / trip.total_s - 1.0).abs());
        }
        // later trips send less, since both sides know what the machine was
        let Some(last) = trips.last() else { continue };
        let last_case = case(known, last, link);
        let model_s = last_case.forecast(&known.costs).break_even_s;
        breaks_even(report, job, suffix, model_s, last.break_even_s(here_s));
        all.push(Done {
            link: link.suffix,
            case: last_case,
            costs: known.costs,
            gains: gain.values().to_vec(),
        });
    }
    Ok(all)
}

/// Tells from how much work on the device on a job pays: by the model, and by what its last trip took.
fn breaks_even(
    report: &mut Report,
    job: &Job,
    suffix: &str,
    model_s: Option<f64>,
    measured_s: Option<f64>,
) {
    // one that the strong host does no faster never pays, which is told
    let (Some(model_s), Some(measured_s)) = (model_s, measured_s) else {
        report.fail(format!("{} is no faster on the strong host", job.name));
        return;
    };
    for (what, work_s) in [
        ("break_even_s", model_s),
        ("break_even_measured_s", measured_s),
    ] {
        report.add_value(&format!("{what}_{}{suffix}", job.name), "s", work_s);
        if job.name == JOBS[0].name {
            report.add_value(&format!("{what}{suffix}"), "s", work_s);
        }
    }
}

/// Returns a trip as the model sees it: its bytes and its link, and what is known of its job.
fn case(known: &Known, trip: &Trip, link: &Link) -> Case {
    Case {
        work_s: known.here_s,
        busy: 1.0,
        speedup: known.speedup,
        up_bytes: trip.up_bytes,
        down_bytes: trip.down_bytes,
        up_bytes_s: link.up_bytes_s(),
        down_bytes_s: link.down_bytes_s(),
        round_trip_s: link.round_trip_s,
    }
}

/// Fits the model to one trip: how much faster the job was, and how long the ways took beside their bytes.
fn fitted(here_s: f64, trip: &Trip, link: &Link) -> Known {
    let without = Costs {
        still_s: 0.0,
        ..Costs::default()
    };
    let mut known = Known {
        here_s,
        speedup: here_s / trip.job_s,
        costs: without,
    };
    let ways_s = case(&known, trip, link).ways_s(&without);
    known.costs.still_s = (trip.total_s - trip.job_s - ways_s).max(0.0);
    known
}

/// After how long a machine answered on the strong host, by what that knew of its memory.
struct Answered {
    /// Nothing.
    nothing_s: f64,
    /// What it was when it came back a minute before.
    later: Samples,
}

/// Measures for how long nobody answers on both ways, and what they send, of a machine of whose memory the strong host has nothing at first.
fn stands_still(context: &Context, link: &Link, report: &mut Report) -> anyhow::Result<Answered> {
    let (guest, memory, changes) = small(context)?;
    let site = Site::booted(&context.scratch.join("still"), &guest, memory, link)?;
    let (mut there, mut back, mut closed, mut unsynced) = (
        Samples::default(),
        Samples::default(),
        Samples::default(),
        Samples::default(),
    );
    let (mut synced, mut ratio) = (Samples::default(), Samples::default());
    // all of it goes over once, as nobody has synced it
    let before = site.wire();
    let (nothing_s, first_down_s) = site.answers_there()?;
    let first = site.wire().0 - before.0;
    site.recall()?;
    site.device.tell(site::MACHINE, changes, site::JOB_MAX)?;
    let mut later = Samples::default();
    for _ in 0..rounds(context) {
        std::thread::sleep(wait(context));
        let (answers_s, down_s) = site.answers_there()?;
        later.push(answers_s);
        unsynced.push(down_s);
        site.recall()?;
        // what the sync sends is a part of what the way costs
        let before = site.wire();
        site.sync()?;
        synced.push((site.wire().0 - before.0) as f64 / 1e6);
        std::thread::sleep(wait(context));
        let (stood, took) = down(&site.device, &site.cloud, || site.offload().map(drop))?;
        ratio.push((site.wire().0 - before.0) as f64 / first as f64);
        there.push(stood.as_secs_f64());
        closed.push(took.as_secs_f64());
        site.sync()?;
        std::thread::sleep(wait(context));
        let (stood, _) = down(&site.cloud, &site.device, || site.recall())?;
        back.push(stood.as_secs_f64());
    }
    report.add("down_s", "s", &there);
    report.add("down_back_s", "s", &back);
    report.add_value("down_first_s", "s", first_down_s);
    report.add("down_unsynced_s", "s", &unsynced);
    report.add("closed_s", "s", &closed);
    report.add("sync_mb", "MB", &synced);
    report.add("second_over_first", "x", &ratio).against(
        "the first trip",
        "MB",
        first as f64 / 1e6,
    );
    Ok(Answered { nothing_s, later })
}

/// The guest that changes a little, its memory, and the command with which it does.
fn small(context: &Context) -> anyhow::Result<(Guest, u64, &'static str)> {
    Ok(match context.quick {
        true => (Guest::tiny()?, TINY_BYTES, CHANGES_TINY),
        false => (Guest::debian()?, MEMORY_BYTES, CHANGES),
    })
}

/// Has a guest that has changed for a while go to the strong host for the first time, by floe and by QEMU alone in turn: what both sides have
/// before is its image, which for QEMU is its disk. Other ways of floe, by what the strong host `known` before, are held against QEMU's, too.
fn migrates(
    context: &Context,
    link: &Link,
    known: &Answered,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (guest, memory, changes) = small(context)?;
    let (mut ours, mut stood, mut sent) =
        (Samples::default(), Samples::default(), Samples::default());
    let (mut answers, mut still) = (Samples::default(), Samples::default());
    for round in 0..rounds(context) {
        let scratch = context.scratch.join(format!("first{round}"));
        let site = Site::new(&scratch, &guest, memory, link)?;
        site.device.tell(site::MACHINE, changes, site::JOB_MAX)?;
        std::thread::sleep(wait(context));
        let before = site.wire();
        let (answers_s, down_s) = site.answers_there()?;
        ours.push(answers_s);
        stood.push(down_s);
        sent.push((site.wire().0 - before.0) as f64 / 1e6);
        drop(site);
        let scratch = context.scratch.join(format!("migration{round}"));
        let changing = (changes, wait(context));
        let went = migration::migrated(&scratch, &guest, memory, link, changing)?;
        answers.push(went.answers_s);
        still.push(went.still_s);
    }
    let (qemus, qemus_s) = ("QEMU's own live migration", answers.median());
    for (name, ours) in [
        ("migrate_over_ours", &ours),
        ("migrate_over_later", &known.later),
    ] {
        report
            .add(name, "x", &answers.over(ours))
            .against(qemus, "s", qemus_s);
    }
    report
        .add_value("migrate_over_booted", "x", qemus_s / known.nothing_s)
        .against(qemus, "s", qemus_s);
    report.add("ours_down_s", "s", &stood);
    report.add("ours_mb", "MB", &sent);
    report.add("migrate_down_s", "s", &still);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trip of 15 s over a link of 7.2 Mbit/s, of which the job takes 5 s and the bytes 4 s.
    const TRIP: Trip = Trip {
        total_s: 15.0,
        job_s: 5.0,
        up_bytes: 2.7e6,
        down_bytes: 0.9e6,
    };

    #[test]
    fn a_job_of_the_break_even_takes_as_long_on_the_device_as_by_its_trip() {
        // it is five times as fast, and the ways take 10 s
        let work_s = TRIP.break_even_s(25.0).unwrap();
        assert!((work_s - 12.5).abs() < 1e-9, "{work_s}");
        assert!((10.0 + work_s / 5.0 - work_s).abs() < 1e-9);
        assert_eq!(TRIP.break_even_s(5.0), None);
    }

    #[test]
    fn the_model_says_of_the_trip_that_it_was_fitted_to_what_was_measured() {
        let link = &Link::fixed()[0];
        let known = fitted(40.0, &TRIP, link);
        assert_eq!(known.speedup, 8.0);
        // 30 round trips of 120 ms are in it, too
        assert!((known.costs.still_s - 2.4).abs() < 1e-9);
        let forecast = case(&known, &TRIP, link).forecast(&known.costs);
        assert!((forecast.there_s - TRIP.total_s).abs() < 1e-9);
        // and of one with twice the bytes what they take more
        let more = Trip {
            up_bytes: 2.0 * TRIP.up_bytes,
            ..TRIP
        };
        let forecast = case(&known, &more, link).forecast(&known.costs);
        assert!((forecast.there_s - 18.0).abs() < 1e-9);
    }
}
