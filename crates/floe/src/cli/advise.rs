//! Says whether it would pay to have a strong host do a machine's work: `floe advise`.

use clap::Args;

use super::error::CliError;
use super::output::{bytes, fields};
use super::{Context, args};
use floe_api::{Advice, AdviceVerdict, AdviseRequest};

/// Say whether it would pay to have a machine go on on a strong host and come back, and why
#[derive(Debug, Args)]
#[command(after_help = "\
Example: of a job that takes ten minutes here
  floe advise phone --to cloud --work 10m
Example: which jobs would pay; over a link that was not used yet, at 7.2 Mbit/s
  floe advise phone --to cloud --link 7.2M

The machine is looked at for two seconds: for which part of the time it needs its CPUs, and what it changes. How fast a core is here and
there is measured, and so is the round trip; the link's rate is what floe sync, floe move or floe offload saw last. A job pays if it
takes longer than the break-even: what the ways take, by how much faster it is there. A machine that waits for a person, a sensor or
the network is advised against, and so is one that somebody is using (a key, a button or a touch in the last ten seconds), or that
can't go there. The energy is a proxy with a phone's prices: 1.5 J a second of CPU, 2 J a million bytes, 0.2 J a second of
waiting.")]
pub struct Advise {
    /// The machine
    machine: String,
    /// The node, by its name in the cluster or by https://ADDRESS:PORT
    #[arg(long, value_name = "NODE")]
    to: String,
    /// How long the job takes here, such as 10m
    #[arg(long, value_name = "TIME", value_parser = args::time_s)]
    work: Option<u64>,
    /// How much faster that host's CPUs are, such as 8; by default it is measured
    #[arg(long, value_name = "TIMES")]
    speedup: Option<f64>,
    /// The link's rate in bits a second, such as 7.2M; by default what was seen last
    #[arg(long, value_name = "RATE", value_parser = bits)]
    link: Option<f64>,
    /// A round trip in milliseconds; by default it is measured
    #[arg(long, value_name = "MS")]
    rtt: Option<f64>,
}

impl Advise {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let request = AdviseRequest {
            to: self.to,
            work_s: self.work.map(|s| s as f64),
            speedup: self.speedup,
            link_bytes_s: self.link.map(|bits| bits / 8.0),
            round_trip_ms: self.rtt,
        };
        let advice = cx.client()?.advise(&self.machine, &request)?;
        cx.out.value(&advice, told)
    }
}

/// Parses a rate in bits a second: a number, and k, M or G for powers of 1000.
fn bits(text: &str) -> Result<f64, String> {
    let help = "write a number and a unit, such as 800k, 7.2M or 1G";
    let short = text.trim_end_matches("bit/s").trim_end();
    let units = [('k', 1e3), ('K', 1e3), ('M', 1e6), ('G', 1e9)];
    let with_unit = |(unit, factor): (char, f64)| Some((short.strip_suffix(unit)?, factor));
    let (number, factor) = units
        .into_iter()
        .find_map(with_unit)
        .unwrap_or((short, 1.0));
    match number.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number * factor),
        _ => Err(format!("{text:?} is no rate; {help}")),
    }
}

fn told(advice: &Advice) -> String {
    let to = &advice.to;
    let verdict = match advice.verdict {
        AdviceVerdict::Offload => format!("it pays to have it go on on {to}"),
        AdviceVerdict::Stay => "it stays here better".to_owned(),
        AdviceVerdict::Depends => "that depends".to_owned(),
    };
    let seconds = |s: Option<f64>| s.map(|s| format!("{s:.1} s")).unwrap_or_default();
    let joule = |j: Option<f64>| j.map(|j| format!("{j:.1} J")).unwrap_or_default();
    let rate = advice.link_bytes_s;
    let rate = rate.map(|rate| format!("{:.1} Mbit/s, ", rate * 8.0 / 1e6));
    let head = format!("{verdict}: {}\n", advice.why);
    head + &fields(&[
        ("busy", format!("{:.0} %", advice.busy * 100.0)),
        ("speed-up", format!("{:.1}", advice.speedup)),
        (
            "link",
            format!("{}{:.0} ms", rate.unwrap_or_default(), advice.round_trip_ms),
        ),
        ("there", bytes(advice.up_bytes)),
        ("back", bytes(advice.down_bytes)),
        ("break-even", seconds(advice.break_even_s)),
        ("here", seconds(advice.here_s)),
        (to.as_str(), seconds(advice.there_s)),
        ("energy here", joule(advice.here_joule)),
        ("energy there", joule(advice.there_joule)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_in_bits_and_powers_of_1000() {
        for (text, rate) in [
            ("7.2M", 7.2e6),
            ("800k", 8e5),
            ("1G", 1e9),
            ("50Mbit/s", 5e7),
            ("9600", 9600.0),
        ] {
            assert_eq!(bits(text), Ok(rate), "{text}");
        }
        for bad in ["", "M", "-1M", "0", "inf", "7.2X"] {
            assert!(bits(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn advice_is_told_with_its_figures() {
        let mut advice = Advice {
            to: "cloud".into(),
            verdict: AdviceVerdict::Offload,
            why: "jobs that take longer are done sooner".into(),
            busy: 0.97,
            speedup: 6.25,
            up_bytes: 20 << 20,
            down_bytes: 1 << 20,
            link_bytes_s: Some(9e5),
            round_trip_ms: 120.4,
            break_even_s: Some(40.0),
            here_s: Some(600.0),
            there_s: Some(130.0),
            here_joule: Some(900.0),
            there_joule: Some(70.0),
        };
        let text = told(&advice);
        assert!(
            text.starts_with("it pays to have it go on on cloud: jobs"),
            "{text}"
        );
        assert!(
            text.contains("7.2 Mbit/s, 120 ms") && text.contains("40.0 s"),
            "{text}"
        );
        advice.verdict = AdviceVerdict::Depends;
        advice.link_bytes_s = None;
        advice.there_s = None;
        let text = told(&advice);
        assert!(
            text.starts_with("that depends") && !text.contains("cloud "),
            "{text}"
        );
    }
}
