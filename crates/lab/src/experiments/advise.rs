//! `advise`: is `floe advise` right? Jobs of a fixed size, short and long, that compute or wait, over two links: each is done on the device
//! and on the strong host, and what was advised while it ran on the device is held against what was measured. Nothing is fitted to these
//! runs: how long a job will take is reckoned from a run before.
use super::offload::site::{JOB_MAX, Link, MACHINE, Site};
use crate::guest::Guest;
use crate::harness::{Context, Report, Samples};
use floe_api::{Advice, AdviceVerdict, AdviseRequest};
use floe_node::pays::GAIN_MIN;
use std::time::Instant;

/// Memory of the guest.
const MEMORY_BYTES: u64 = 256 << 20;
/// How long jobs are to take on the device, in seconds: from far too short to long, most of them near what the ways take.
const COMPUTING_S: [f64; 10] = [6.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 90.0, 150.0, 300.0];
/// How long jobs wait that hardly compute, as for a sensor or a person, in seconds.
const WAITING_S: [u64; 4] = [10, 30, 60, 120];
/// How many units a job has whose time tells that of one.
const PROBE_UNITS: u32 = 8;

/// Returns the command that computes for so many units.
fn computes(units: u32) -> String {
    format!(
        "n=0; while [ $n -lt {units} ]; do n=$((n+1)); head -c 1048576 /dev/zero | sha256sum >/dev/null; done"
    )
}

/// Returns the command that looks at something every second for so long.
fn waits(seconds: u64) -> String {
    format!(
        "n=0; while [ $n -lt {seconds} ]; do n=$((n+1)); sleep 1; cat /proc/uptime >/dev/null; done"
    )
}

/// What became of a case.
struct Outcome {
    right: bool,
    /// Whether it was done sooner on the strong host.
    pays: bool,
    told: String,
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("advise", context.quick);
    let mut all = Vec::new();
    for link in Link::fixed().iter().take(context.pick(2, 1)) {
        let scratch = context.scratch.join(format!("advise{}", link.suffix));
        let site = Site::new(&scratch, &Guest::tiny()?, MEMORY_BYTES, link)?;
        let probe = site.device.tell(MACHINE, &computes(PROBE_UNITS), JOB_MAX)?;
        let unit_s = probe.as_secs_f64() / f64::from(PROBE_UNITS);
        for work_s in COMPUTING_S.iter().take(context.pick(COMPUTING_S.len(), 2)) {
            let units = ((work_s / unit_s).round() as u32).max(1);
            let expected_s = f64::from(units) * unit_s;
            all.push(case(&site, link, &computes(units), expected_s)?);
        }
        for seconds in WAITING_S.iter().take(context.pick(WAITING_S.len(), 1)) {
            all.push(case(&site, link, &waits(*seconds), *seconds as f64)?);
        }
    }
    let right: Samples = all
        .iter()
        .map(|case| f64::from(u8::from(case.right)))
        .collect();
    let pays = all.iter().filter(|case| case.pays).count();
    report.add_mean("right_ratio", "x", &right);
    report.add_value("cases", "1", all.len() as f64);
    report.add_value("cases_that_pay", "1", pays as f64);
    for case in &all {
        report.note(&case.told);
    }
    Ok(report)
}

/// Does a job here and there, and asks for advice while it runs here. It pays if it is done sooner by more than [`GAIN_MIN`].
fn case(site: &Site, link: &Link, job: &str, expected_s: f64) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let in_background = format!("( {job} ) >/dev/null 2>&1 &");
    site.device.tell(MACHINE, &in_background, JOB_MAX)?;
    let advice = site.device.client.advise(
        MACHINE,
        &AdviseRequest {
            to: "cloud".into(),
            work_s: Some(expected_s),
            link_bytes_s: Some(link.up_bytes_s()),
            ..AdviseRequest::default()
        },
    )?;
    site.device.tell(MACHINE, "wait", JOB_MAX)?;
    let here_s = began.elapsed().as_secs_f64();
    let trip = site.trip(job)?;
    let gain = here_s / trip.total_s;
    let pays = gain >= GAIN_MIN;
    Ok(Outcome {
        right: (advice.verdict == AdviceVerdict::Offload) == pays,
        pays,
        told: told(&advice, here_s, trip.total_s),
    })
}

fn told(advice: &Advice, here_s: f64, there_s: f64) -> String {
    format!(
        "{here_s:.1} s on the device, {there_s:.1} s by the strong host: advised {:?} ({:.0} % busy, {:.1} times as fast, {:.1} s said)",
        advice.verdict,
        advice.busy * 100.0,
        advice.speedup,
        advice.there_s.unwrap_or_default()
    )
}
