//! Whose disk requests go first: `floe io`.

use clap::Subcommand;

use super::Context;
use super::error::CliError;
use super::output::{bytes, fields, table};
use floe_api::{ErrorCode, IoClass, IoMachine, IoOrder, IoReport};

/// Show whose disk requests go first on this host, and how long each machine's wait
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example: all machines side by side
  floe io status
Example: one machine in detail
  floe io show web
Example: twice the share of others, and never more than a tenth of the disk while others want it
  floe limit web --io-weight 10 --io-cap 10

A person waits for what a guest reads soon after a key or a button was sent to it, by its screen or its
console on the page. Only requests count that the host's disk is accessed for: what the host has in memory is answered at once.")]
pub enum Io {
    /// Show the disk and all machines that use it
    #[command(after_help = "Example:\n  floe io status")]
    Status,
    /// Show one machine in detail
    #[command(after_help = "Example:\n  floe io show web")]
    Show {
        /// The machine
        machine: String,
    },
}

impl Io {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let report = cx.client()?.io()?;
        match self {
            Io::Status => cx.out.value(&report, status),
            Io::Show { machine } => {
                let of = of_machine(&report, &machine)?;
                cx.out.value(of, details)
            }
        }
    }
}

fn of_machine<'a>(report: &'a IoReport, name: &str) -> Result<&'a IoMachine, CliError> {
    let found = report.machines.iter().find(|machine| machine.name == name);
    found.ok_or_else(|| {
        let fix = match report.order {
            IoOrder::Vsip => {
                "floe ps lists the machines; one whose disks have not been used is not known here"
            }
            _ => "this node was started with --io fifo or off, and then no account is kept",
        };
        let what = format!("nothing is known of disk requests of a machine {name}");
        CliError::new(ErrorCode::NotFound, &what, fix)
    })
}

fn order(order: IoOrder) -> &'static str {
    match order {
        IoOrder::Vsip => "what a person waits for goes first (vsip)",
        IoOrder::Fifo => "first come, first served (fifo)",
        IoOrder::Off => "not at all (off)",
    }
}

fn status(report: &IoReport) -> String {
    let mut pairs = vec![("ordered", order(report.order).to_owned())];
    if report.order == IoOrder::Vsip {
        pairs.push((
            "disk",
            format!(
                "{:.0} requests/s predicted, {} of at most {} under way",
                report.capacity_per_s, report.in_flight, report.depth
            ),
        ));
        pairs.push(("kept free", milliseconds(report.held_us as f64)));
        pairs.push(("guard", format!("acted {} times", report.guarded)));
    }
    let mut text = fields(&pairs);
    if report.machines.is_empty() {
        return text;
    }
    let rows = report.machines.iter().map(|machine| {
        vec![
            machine.name.clone(),
            machine.weight.to_string(),
            cap(machine),
            format!("{:.1}", machine.requests_per_s),
            format!("{}/s", bytes(machine.bytes_per_s as u64)),
            machine.queued.to_string(),
            waits(&machine.interactive),
            waits(&machine.normal),
            waits(&machine.bulk),
        ]
    });
    text.push('\n');
    let titles = [
        "MACHINE",
        ">WEIGHT",
        ">CAP",
        ">REQ/S",
        ">RATE",
        ">QUEUED",
        ">INTERACTIVE",
        ">NORMAL",
        ">BULK",
    ];
    text += &table(&titles, &rows.collect::<Vec<_>>());
    text + "The last three: median and 99th percentile of the time from a request to its answer.\n"
}

fn cap(machine: &IoMachine) -> String {
    match (machine.cap_percent, machine.capped) {
        (100, _) => "-".into(),
        (percent, false) => format!("{percent}%"),
        (percent, true) => format!("{percent}% reached"),
    }
}

fn waits(class: &IoClass) -> String {
    match class.served {
        0 => "-".into(),
        _ => format!(
            "{} / {}",
            milliseconds(class.wait_p50_us as f64),
            milliseconds(class.wait_p99_us as f64)
        ),
    }
}

fn milliseconds(us: f64) -> String {
    match us {
        us if us < 10_000.0 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.0} ms", us / 1e3),
    }
}

fn inputs(machine: &IoMachine) -> String {
    match (machine.inputs, machine.since_input_ms) {
        (0, _) | (_, None) => "none; without any, nobody is taken to wait".to_owned(),
        (inputs, Some(ms)) => format!("{inputs}, the last one {:.1} s ago", ms as f64 / 1e3),
    }
}

fn details(machine: &IoMachine) -> String {
    let class = |class: &IoClass| match class.served {
        0 => "none".to_owned(),
        served => format!(
            "{served} served; waited {} on average, {} in the median, {} at the 99th percentile",
            milliseconds(class.wait_mean_us),
            milliseconds(class.wait_p50_us as f64),
            milliseconds(class.wait_p99_us as f64)
        ),
    };
    fields(&[
        ("machine", machine.name.clone()),
        ("weight", machine.weight.to_string()),
        ("cap", cap(machine)),
        (
            "rate",
            format!(
                "{:.1} requests and {} a second; {:.1} requests a second if all wanted all they can get",
                machine.requests_per_s,
                bytes(machine.bytes_per_s as u64),
                machine.predicted_per_s
            ),
        ),
        (
            "waiting",
            format!("{} queued, {} under way", machine.queued, machine.in_flight),
        ),
        (
            "may overtake",
            format!("{:.0} requests beyond its share", machine.ahead),
        ),
        ("inputs", inputs(machine)),
        ("interactive", class(&machine.interactive)),
        ("normal", class(&machine.normal)),
        ("bulk", class(&machine.bulk)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> IoReport {
        let served = IoClass {
            served: 9,
            wait_mean_us: 1500.0,
            wait_p50_us: 1000,
            wait_p99_us: 25_000,
        };
        let web = IoMachine {
            name: "web".into(),
            weight: 10,
            cap_percent: 25,
            capped: true,
            interactive: served,
            ..Default::default()
        };
        IoReport {
            capacity_per_s: 120.0,
            depth: 2,
            machines: vec![web],
            ..Default::default()
        }
    }

    #[test]
    fn the_disk_and_its_machines_are_shown_with_their_waits() {
        let text = status(&report());
        for part in [
            "120 requests/s",
            "web",
            "25% reached",
            "1.0 ms / 25 ms",
            "INTERACTIVE",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = details(&report().machines[0]);
        assert!(
            text.contains("9 served; waited 1.5 ms on average"),
            "{text}"
        );
        assert!(text.contains("none"), "{text}");
    }

    #[test]
    fn without_an_order_nothing_is_claimed_and_a_stranger_is_named() {
        let off = IoReport {
            order: IoOrder::Off,
            ..Default::default()
        };
        let text = status(&off);
        assert!(
            text.contains("not at all") && !text.contains("predicted"),
            "{text}"
        );
        assert!(of_machine(&off, "web").is_err());
        assert!(of_machine(&report(), "web").is_ok());
    }
}
