//! `advise`: is `floe advise` right? Jobs of a fixed size, short and long, that compute or wait, over two links: each is done on the device
//! and on the strong host, and what was advised while it ran on the device is held against what was measured. Nothing is fitted to these
//! runs: how long a job will take is reckoned from a run before.
use super::offload::site::{JOB_MAX, Link, MACHINE, Site};
use floe_api::{Advice, AdviceVerdict, AdviseRequest};
use floe_node::pays::GAIN_MIN;
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use std::time::Instant;

/// Memory of the guest.
const MEMORY_BYTES: u64 = 256 << 20;
/// How long jobs are to take on the device, in seconds: from far too short to long, most of them near what the ways take.
const COMPUTING_S: [f64; 10] = [6.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 90.0, 150.0, 300.0];
/// How long jobs wait that hardly compute, as for a sensor or a person, in seconds.
const WAITING_S: [u64; 4] = [10, 30, 60, 120];
/// How many units a job has whose time tells that of one.
const PROBE_UNITS: u32 = 8;
/// How many cases there are at least; a third of those pay, and a third do not, or advice that never changes would seem right.
const CASES_MIN: usize = 24;
/// How many are at least near the line, and how near that is, as the ratio of the two times.
const NEAR_MIN: usize = 2;
const NEAR: f64 = 1.5;

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
    /// How long it took on the device / by the strong host.
    gain: f64,
    /// How far what was said of the time by the strong host is from that time, as a part of it; if something was said.
    forecast_error: Option<f64>,
    told: String,
}

impl Outcome {
    /// Whether it was done sooner on the strong host.
    fn pays(&self) -> bool {
        self.gain >= GAIN_MIN
    }

    /// Whether it took nearly as long here as there.
    fn is_near(&self) -> bool {
        (1.0 / NEAR..=NEAR).contains(&self.gain)
    }
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
    let pays = all.iter().filter(|case| case.pays()).count();
    let near = all.iter().filter(|case| case.is_near()).count();
    report.add_mean("right_ratio", "x", &right);
    report.add_value("cases", "1", all.len() as f64);
    report.add_value("cases_that_pay", "1", pays as f64);
    report.add_value("cases_near", "1", near as f64);
    let errors: Samples = all.iter().filter_map(|case| case.forecast_error).collect();
    for (name, q) in [("forecast_error_p50", 0.5), ("forecast_error_max", 1.0)] {
        report.add_value(name, "x", errors.quantile(q));
    }
    for case in &all {
        report.note(&case.told);
    }
    if !context.quick
        && let Err(why) = proves(all.len(), pays, near)
    {
        report.fail(why);
    }
    Ok(report)
}

/// Returns why so many cases, of which so many pay and are near the line, prove nothing, if that is so.
fn proves(cases: usize, pays: usize, near: usize) -> Result<(), String> {
    let third = cases.div_ceil(3);
    if cases < CASES_MIN {
        return Err(format!("{cases} cases are fewer than {CASES_MIN}"));
    }
    if pays < third || cases - pays < third {
        return Err(format!(
            "{pays} of {cases} cases pay: a third is not on each side"
        ));
    }
    if near < NEAR_MIN {
        return Err(format!(
            "{near} of {cases} cases are near the line: too few to tell where it is"
        ));
    }
    Ok(())
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
    let said_s = advice.there_s;
    Ok(Outcome {
        right: (advice.verdict == AdviceVerdict::Offload) == (gain >= GAIN_MIN),
        gain,
        forecast_error: said_s.map(|said_s| (said_s / trip.total_s - 1.0).abs()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_that_lie_on_one_side_or_far_from_the_line_prove_nothing() {
        assert_eq!(proves(28, 14, 4), Ok(()));
        assert_eq!(proves(24, 8, NEAR_MIN), Ok(()));
        assert_eq!(proves(24, 16, NEAR_MIN), Ok(()));
        for (cases, pays, near) in [(23, 12, 4), (28, 9, 4), (28, 19, 4), (28, 14, 1)] {
            assert!(proves(cases, pays, near).is_err(), "{cases} {pays} {near}");
        }
        let of = |gain| Outcome {
            right: true,
            gain,
            forecast_error: None,
            told: String::new(),
        };
        assert!(of(1.05).pays() && !of(1.04).pays());
        assert!(of(0.7).is_near() && of(1.4).is_near());
        assert!(!of(0.6).is_near() && !of(1.6).is_near());
    }
}
