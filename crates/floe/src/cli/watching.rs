//! Commands that watch a node: wait, events, stats.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::output::{bytes, table, word};
use super::power::{EXIT_SWITCHED_OFF, Turns};
use super::{Context, args, stream, top};
use floe_api::client::Client;
use floe_api::{
    CardTraffic, EventsQuery, Happened, MachineInfo, MachineStatus, MachineUsage, NodeEvent,
    UsageList, UsageQuery, WaitFor, WaitQuery,
};

/// Wait until machines stop, run, stand still or answer
#[derive(Debug, Args)]
#[command(after_help = "\
Example: until its guest has powered down
  floe wait job && echo done
Example: until floe's agent in each of them answers, for at most five minutes
  floe wait web db --for answers --timeout 5m

With --for stopped the exit code is that of the machine's end: 0 if it powered down or was stopped, 6 if it had to be
switched off, 1 if its QEMU failed. A machine that is removed has stopped. Nothing is polled: the node tells.")]
pub struct Wait {
    /// The machines; all of them are waited for
    #[arg(required = true)]
    machines: Vec<String>,
    /// What to wait for
    #[arg(
        long = "for",
        value_enum,
        default_value = "stopped",
        value_name = "WHAT"
    )]
    what: WaitFor,
    /// The longest wait, such as 90s or 10m
    #[arg(long, value_parser = args::time_s, value_name = "TIME")]
    timeout: Option<u64>,
}

impl Wait {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let query = WaitQuery {
            what: self.what,
            timeout_s: self.timeout,
        };
        let turns = Turns::take(cx, &self.machines, |client, name| client.wait(name, &query))?;
        let ended = match query.what {
            WaitFor::Stopped => turns.done.iter().find_map(how_it_ended),
            _ => None,
        };
        let code = turns.show(cx, |m| match m.detail.as_str() {
            "" => format!("{} is {}\n", m.name, word(&m.status)),
            detail => format!("{} is {}: {detail}\n", m.name, word(&m.status)),
        })?;
        Ok(code.or(ended).unwrap_or(ExitCode::SUCCESS))
    }
}

/// Returns the exit code for a machine that did not end well.
fn how_it_ended(machine: &MachineInfo) -> Option<ExitCode> {
    if machine.switched_off {
        return Some(ExitCode::from(EXIT_SWITCHED_OFF));
    }
    (machine.status == MachineStatus::Failed).then_some(ExitCode::FAILURE)
}

/// Follow what happens on the node
#[derive(Debug, Args)]
#[command(after_help = "\
Example: everything, from now on
  floe events
Example: what became of one machine in the last hour, and what will
  floe events --since 1h --machine web
Example: what has happened in the last two minutes, and no more
  floe events --since 2m --once
Example: for programs, one JSON object a line
  floe events --json | jq -r 'select(.kind == \"machine.ended\").subject'

The node remembers its last 1024 events. Without --once it goes on until Ctrl-C.")]
pub struct Events {
    /// Begin with what has happened in this time, such as 10m or 1d, and go on with what happens
    #[arg(long, value_parser = args::time_s, value_name = "TIME")]
    since: Option<u64>,
    /// Show what has happened and end: what --since says, or all that the node remembers
    #[arg(long)]
    once: bool,
    /// Only what concerns this machine
    #[arg(long, value_name = "MACHINE")]
    machine: Option<String>,
}

impl Events {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let since = self.since.map(|s| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let then = now.unwrap_or_default();
            let then = then.saturating_sub(Duration::from_secs(s));
            then.as_millis() as u64
        });
        let query = EventsQuery {
            since_unix_ms: since,
            once: self.once,
        };
        for event in cx.client()?.events(&query)? {
            let event = event?;
            if concerns(&event, self.machine.as_deref()) {
                cx.out.value(&event, told)?;
            }
        }
        Ok(())
    }
}

/// Whether an event is shown: it is about the wanted machine, no machine was named, or it says that events were missed.
fn concerns(event: &NodeEvent, machine: Option<&str>) -> bool {
    let about = event.kind.to_string().starts_with("machine.");
    event.kind == Happened::Missed
        || machine.is_none_or(|machine| about && event.subject == machine)
}

fn told(event: &NodeEvent) -> String {
    let s = event.time_unix_ms / 1000 % 86_400;
    let (hours, minutes, seconds) = (s / 3600, s / 60 % 60, s % 60);
    let NodeEvent {
        kind,
        subject,
        detail,
        ..
    } = event;
    let text = format!("{hours:02}:{minutes:02}:{seconds:02}Z  {kind:<24} {subject}  {detail}");
    format!("{}\n", text.trim_end())
}

/// Show what running machines use of this host: processor, memory, disks, network
#[derive(Debug, Args)]
#[command(after_help = "\
Example: all that run, every second; q or Ctrl-C leaves
  floe stats
Example: for scripts
  floe stats web --once --json | jq '.machines[].own_bytes'
Example: with the traffic of each guest's cards
  floe stats --network

OWN is memory that nobody else uses, SHARED what clones and machines of the same image have in common. READ and WRITTEN
are what the guest does on its disks, FETCHED what its image's sources have sent for it. RECEIVED and SENT are what the guest itself counts
of its cards' traffic: QEMU does not count it, so with --network floe's agent starts a program in each guest at each look. Where none
answers there is a dash, and --json says why.
floe top shows how a machine streams.")]
pub struct Stats {
    /// Only these machines
    machines: Vec<String>,
    /// Show it once and end
    #[arg(long)]
    once: bool,
    /// Ask floe's agent in each guest for the traffic of its network cards
    #[arg(long)]
    network: bool,
}

/// The figures of one machine, with rates since the reading before.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    usage: MachineUsage,
    /// Percent of one CPU.
    cpu_percent: Option<f64>,
    disk_read_bytes_s: Option<f64>,
    disk_write_bytes_s: Option<f64>,
    fetched_bytes_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    received_bytes_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_bytes_s: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Look {
    machines: Vec<Row>,
}

impl Stats {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        for name in &self.machines {
            client.machine(name)?; // a name that is not there is an error, not an empty table
        }
        let mut before = UsageList::default();
        let look = || self.look(&client, &mut before);
        top::watch(cx, self.once, "floe stats: q leaves", look, text)
    }

    fn look(&self, client: &Client, before: &mut UsageList) -> Result<Look, CliError> {
        let mut now = client.usage(&UsageQuery {
            network: self.network,
        })?;
        for machine in &mut now.machines {
            if !self.machines.is_empty() && !self.machines.contains(&machine.name) {
                machine.name.clear();
            } else if machine.cpu_us == 0 {
                // without a control group the process knows it
                let used_s = top::cpu_seconds(machine.pid).unwrap_or_default();
                machine.cpu_us = (used_s * 1e6) as u64;
            }
        }
        now.machines.retain(|machine| !machine.name.is_empty());
        let machines = rows(&now, before);
        *before = now;
        Ok(Look { machines })
    }
}

fn rows(now: &UsageList, before: &UsageList) -> Vec<Row> {
    let then: HashMap<&str, &MachineUsage> = before
        .machines
        .iter()
        .map(|machine| (machine.name.as_str(), machine))
        .collect();
    let passed_s = now.at_unix_us.saturating_sub(before.at_unix_us) as f64 / 1e6;
    let row = |usage: &MachineUsage| {
        let then = then.get(usage.name.as_str());
        // another QEMU has begun anew
        let then = then.filter(|then| then.pid == usage.pid && passed_s > 0.0);
        let rate = |sum: fn(&MachineUsage) -> u64| {
            then.map(|then| sum(usage).saturating_sub(sum(then)) as f64 / passed_s)
        };
        let card = |sum: fn(&CardTraffic) -> Option<u64>| {
            let then = *then?;
            let (then, now) = (then.network.as_ref()?, usage.network.as_ref()?);
            // a guest that has booted again counts anew
            Some(sum(now)?.saturating_sub(sum(then)?) as f64 / passed_s)
        };
        Row {
            received_bytes_s: card(|card| card.received_bytes),
            sent_bytes_s: card(|card| card.sent_bytes),
            cpu_percent: rate(|u| u.cpu_us).map(|us_s| us_s / 1e4),
            disk_read_bytes_s: rate(|u| u.disk_read_bytes),
            disk_write_bytes_s: rate(|u| u.disk_write_bytes),
            fetched_bytes_s: rate(|u| u.fetched_bytes),
            usage: usage.clone(),
        }
    };
    now.machines.iter().map(row).collect()
}

fn text(seen: &Look) -> String {
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let per_s = |rate: Option<f64>| known(rate.map(|rate| format!("{}/s", bytes(rate as u64))));
    let row = |row: &Row| {
        vec![
            row.usage.name.clone(),
            word(&row.usage.status),
            known(row.cpu_percent.map(|cpu| format!("{cpu:.0} %"))),
            known(row.usage.own_bytes.map(bytes)),
            known(row.usage.shared_bytes.map(bytes)),
            bytes(row.usage.ram_bytes),
            per_s(row.disk_read_bytes_s),
            per_s(row.disk_write_bytes_s),
            known(row.fetched_bytes_s.map(stream::rate)),
        ]
    };
    let mut rows: Vec<_> = seen.machines.iter().map(row).collect();
    let mut titles = vec![
        "NAME", "STATE", ">CPU", ">OWN", ">SHARED", ">RAM", ">READ", ">WRITTEN", ">FETCHED",
    ];
    if seen.machines.iter().any(|row| row.usage.network.is_some()) {
        titles.extend([">RECEIVED", ">SENT"]);
        for (shown, row) in rows.iter_mut().zip(&seen.machines) {
            shown.extend([row.received_bytes_s, row.sent_bytes_s].map(per_s));
        }
    }
    table(&titles, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(at_unix_us: u64, sums: u64) -> UsageList {
        let machine = MachineUsage {
            name: "web".into(),
            status: MachineStatus::Running,
            pid: 7,
            ram_bytes: 1 << 30,
            cpu_us: sums,
            own_bytes: Some(3 << 20),
            shared_bytes: None,
            disk_read_bytes: sums,
            disk_write_bytes: 0,
            fetched_bytes: sums,
            network: None,
        };
        UsageList {
            at_unix_us,
            machines: vec![machine],
        }
    }

    #[test]
    fn rates_are_differences_between_two_looks_at_one_qemu() {
        let (then, now) = (usage(1_000_000, 1_000_000), usage(3_000_000, 2_000_000));
        let row = rows(&now, &then).remove(0);
        assert_eq!(row.cpu_percent, Some(50.0));
        assert_eq!(row.disk_read_bytes_s, Some(500_000.0));
        assert_eq!(row.disk_write_bytes_s, Some(0.0));
        let shown = text(&Look {
            machines: vec![row],
        });
        for part in ["web", "running", "50 %", "3.0 MiB", " - ", "4.0 Mbit/s"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let mut other = then;
        other.machines[0].pid = 8;
        assert_eq!(rows(&now, &other)[0].cpu_percent, None);
        assert_eq!(rows(&now, &UsageList::default())[0].cpu_percent, None);
    }

    #[test]
    fn an_event_is_one_line_and_another_machines_is_left_out() {
        let event = NodeEvent {
            time_unix_ms: 86_400_000 * 3 + 3_723_004,
            kind: Happened::MachineStarted,
            subject: "web".into(),
            detail: String::new(),
        };
        assert_eq!(told(&event), "01:02:03Z  machine.started          web\n");
        assert!(concerns(&event, None) && concerns(&event, Some("web")));
        assert!(!concerns(&event, Some("db")));
        let image = NodeEvent {
            kind: Happened::ImageAdded,
            ..event.clone()
        };
        assert!(!concerns(&image, Some("web")));
        let missed = NodeEvent {
            kind: Happened::Missed,
            ..event
        };
        assert!(concerns(&missed, Some("db")));
    }
}
