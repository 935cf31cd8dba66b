//! Where vCPUs run: `floe sched`.

use clap::Subcommand;

use super::Context;
use super::error::CliError;
use super::output::{fields, table};
use floe_api::{CpuSched, SchedActing, SchedMachine, SchedReport};

/// Show where machines' vCPUs run on this host, and how long they wait for a core
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example: all machines side by side
  floe sched status
Example: keep the vCPUs of each machine on different cores
  floe node --cpu-sched balance
Example: for scripts
  floe sched status --json | jq -c '.machines[] | [.name, .stacking_pct, .steal_pct]'

Two vCPUs of one machine that share a core can't run at the same time: one spins on a lock that the other holds, until that gets the
core again. --cpu-sched balance gives each cores of its own; sbco also lets one that is behind borrow from one that is ahead.")]
pub enum Sched {
    /// Show all machines that run
    #[command(after_help = "\
Example:
  floe sched status

STACKED   looks in which vCPUs at work shared a core without need   DISTANCE  places apart in run queues; - where only a kernel could tell
LAG       how much less the last vCPU has run than their mean       STEAL     of the time that they wanted to run, how much they waited

A node with --cpu-sched off looks only when it is asked: its figures are of the time since the last question.")]
    Status,
}

impl Sched {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let Sched::Status = self;
        cx.out.value(&cx.client()?.sched()?, status)
    }
}

fn order(order: CpuSched) -> &'static str {
    match order {
        CpuSched::Sbco => "apart and close together in time (sbco)",
        CpuSched::Balance => "apart (balance)",
        CpuSched::Off => "where the kernel places them (off)",
    }
}

fn acting(report: &SchedReport) -> Option<String> {
    let text = match report.acting {
        SchedActing::Off => return None,
        SchedActing::Acts => "yes",
        SchedActing::Tries => "it compares: everything is undone for some seconds at times",
        SchedActing::DoesNotHelp => "no, it does not help here",
        SchedActing::Costly => "no, looking at so many vCPUs costs too much",
        SchedActing::Refused => "no, the kernel refuses",
    };
    Some(text.into())
}

fn status(report: &SchedReport) -> String {
    let mut pairs = vec![("vCPUs", order(report.order).to_owned())];
    if let Some(acting) = acting(report) {
        pairs.push(("acting", acting));
        if !report.why.is_empty() {
            pairs.push(("said last", report.why.clone()));
        }
        pairs.push(("moved", format!("{} times", report.moves)));
        if report.order == CpuSched::Sbco {
            let lent = match report.lends {
                true => format!("{} times", report.loans),
                false => "never: the kernel refuses".to_owned(),
            };
            pairs.push(("lent", lent));
        }
        pairs.push(("cost", format!("{:.2} % of a core", report.own_cpu_pct)));
    }
    let mut text = fields(&pairs);
    if report.machines.is_empty() {
        return text;
    }
    text.push('\n');
    let titles = [
        "MACHINE",
        ">VCPUS",
        ">STACKED",
        ">DISTANCE",
        ">LAG",
        ">STEAL",
        "STATE",
    ];
    text + &table(&titles, report.machines.iter().map(row))
}

fn row(machine: &SchedMachine) -> Vec<String> {
    let [stacked, lag, steal] = figures(Some(machine));
    let state = match (machine.apart, machine.borrowing, machine.why.as_str()) {
        (true, 0, _) => "apart".to_owned(),
        (true, borrowing, _) => format!("apart, {borrowing} borrow"),
        (false, _, why) => why.to_owned(),
    };
    vec![
        machine.name.clone(),
        machine.vcpus.to_string(),
        stacked,
        machine
            .distance
            .map_or_else(|| "-".into(), |distance| format!("{distance:.1}")),
        lag,
        steal,
        state,
    ]
}

/// How often a machine's vCPUs shared a core, how far the last is behind, and how long they waited.
pub(super) fn figures(machine: Option<&SchedMachine>) -> [String; 3] {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let percent = |part: f64| format!("{part:.0} %");
    [
        or_none(machine.and_then(|one| one.stacking_pct).map(percent)),
        or_none(
            machine
                .and_then(|one| one.lag_ms)
                .map(|ms| format!("{ms:.0} ms")),
        ),
        or_none(machine.and_then(|one| one.steal_pct).map(percent)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> SchedReport {
        let web = SchedMachine {
            name: "web".into(),
            vcpus: 2,
            apart: true,
            stacking_pct: Some(12.4),
            lag_ms: Some(31.0),
            steal_pct: Some(74.6),
            borrowing: 1,
            ..Default::default()
        };
        let one = SchedMachine {
            name: "one".into(),
            vcpus: 1,
            why: "one thread runs all of its vCPUs".into(),
            ..Default::default()
        };
        SchedReport {
            order: CpuSched::Sbco,
            acting: SchedActing::Acts,
            lends: true,
            moves: 4,
            loans: 7,
            own_cpu_pct: 0.034,
            machines: vec![one, web],
            ..Default::default()
        }
    }

    #[test]
    fn machines_are_shown_side_by_side_and_what_nobody_can_see_is_a_dash() {
        let text = status(&report());
        for part in [
            "close together",
            "7 times",
            "0.03 % of a core",
            "12 %",
            "31 ms",
            "75 %",
            "apart, 1 borrow",
            "one thread",
            " -",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn who_has_stopped_says_why_and_who_is_off_claims_nothing() {
        let stopped = SchedReport {
            acting: SchedActing::DoesNotHelp,
            why: "it does not help: siblings were kept apart".into(),
            lends: false,
            ..report()
        };
        let text = status(&stopped);
        assert!(text.contains("no, it does not help here"), "{text}");
        assert!(text.contains("siblings were kept apart"), "{text}");
        assert!(text.contains("never: the kernel refuses"), "{text}");
        let text = status(&SchedReport::default());
        assert!(text.contains("where the kernel places them"), "{text}");
        assert!(!text.contains("moved"), "{text}");
    }
}
