//! Commands about forks: fork, family, kill.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::error::CliError;
use super::output::{bytes, table, until, word};
use super::power::Turns;
use super::{Context, args, outcome, progress};
use floe_api::client::{Client, ClientError};
use floe_api::{CloneState, ErrorCode};

/// Clone a running machine: n clones continue from this very moment, and so does the machine itself
#[derive(Debug, Args)]
#[command(after_help = "\
Example: four clones of web, called web.1 to web.4
  floe fork web -n 4
Example: the same of an image that holds a running machine
  floe fork debian-booted -n 4
Example: on this host and two others of its cluster (floe cluster --help)
  floe fork web -n 8 --hosts here,beta,gamma --settle
Example: on nodes that Slurm allocates, given back when the clones have ended
  floe fork web -n 8 --placement slurm
Example: until all of them have switched themselves off
  floe fork web -n 8 --wait
Example: for ten minutes; then they are removed, whatever they do
  floe fork web -n 8 --ttl 10m
Example: look at them, and end them
  floe family web
  floe kill --all web

A clone has all that its parent had in memory and on its disks. It has no ports of the host: floe forward adds some. The
exit code is 0 only if all clones run.")]
pub struct Fork {
    /// A machine, or an image with a running machine in it
    machine: String,
    /// How many clones
    #[arg(long = "clones", short = 'n', default_value_t = 1, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(floe_api::CLONES_MAX)))]
    clones: u32,
    /// Nodes to run them on: members of this node's cluster by name or address (floe cluster members), names of known hosts
    /// (floe hosts), or here
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    hosts: Vec<String>,
    /// Also use hosts that are in no cluster with this one, as http://ADDRESS:PORT of their pages: the machine's memory
    /// and the pages' token cross the network in clear text, so only on a network that nobody else is in
    #[arg(long)]
    insecure: bool,
    /// With --insecure, the token of those pages, if it is not that of this node's page
    #[arg(
        long,
        env = "FLOE_HOSTS_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    hosts_token: Option<String>,
    /// Make clones independent soon: the other nodes fetch what their clones have not touched, and this one stores the
    /// fork at once
    #[arg(long)]
    settle: bool,
    /// Whether what one of the other nodes reads is sent to all of them by multicast; what does not arrive that way each
    /// reads from this node itself
    #[arg(long, value_enum, default_value_t, value_name = "USE")]
    multicast: floe_api::MulticastUse,
    /// Who decides which nodes take the clones: simple counts memory and CPUs, slurm asks Slurm for an allocation, other
    /// names are programs of the operator; without --hosts among all known hosts
    #[arg(long, value_name = "PLUG-IN")]
    placement: Option<String>,
    /// Start clones on this host even if it has too little memory for them: when its memory is full, it may end machines
    #[arg(long)]
    overcommit: bool,
    #[command(flatten)]
    hooks: args::HooksArgs,
    /// Remove each clone with its disks after this time, such as 10m, whatever it does then
    #[arg(long, value_parser = args::time_s, value_name = "TIME")]
    ttl: Option<u64>,
    /// Stay until every clone has ended: its guest switched itself off, or it was stopped or killed
    #[arg(long)]
    wait: bool,
}

impl Fork {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let request = floe_api::ForkRequest {
            clones: self.clones,
            hosts: self.hosts,
            insecure: self.insecure,
            hosts_token: self.hosts_token,
            settle: self.settle,
            multicast: self.multicast,
            placement: self.placement,
            overcommit: self.overcommit,
            hooks_s: self.hooks.hooks,
            ttl_s: self.ttl,
        };
        let client = cx.client()?;
        let fork = begun(cx, &client, &self.machine, &request)?;
        if self.wait {
            wait(&client, &fork)?;
        }
        complete(&fork)
    }
}

/// Forks a machine, and tells of its clones.
fn begun(
    cx: &Context,
    client: &Client,
    machine: &str,
    request: &floe_api::ForkRequest,
) -> Result<floe_api::ForkReport, CliError> {
    let done = progress::follow(cx.out, client.fork(machine, request)?)?;
    let fork = outcome::result(done.outcome.fork, "the fork")?;
    cx.out.text(&told(&fork, done.outcome.pause_ms))?;
    Ok(fork)
}

/// Does so, and fails unless all clones run.
pub(super) fn forked(
    cx: &Context,
    client: &Client,
    machine: &str,
    request: &floe_api::ForkRequest,
) -> Result<(), CliError> {
    complete(&begun(cx, client, machine, request)?)
}

/// How often awaited clones are checked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Waits until no clone of a fork runs any more.
fn wait(client: &Client, fork: &floe_api::ForkReport) -> Result<(), CliError> {
    let not_there = |error: &ClientError| error.to_api().code == ErrorCode::NotFound;
    loop {
        let alive = match client.family(&fork.parent) {
            Ok(family) => alive(&family, &fork.id),
            Err(error) if not_there(&error) => 0,
            Err(error) => return Err(error.into()),
        };
        if alive == 0 {
            return Ok(());
        }
        // clones may be on other hosts, whose ends are no events of this node
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Counts the clones of a fork that may still do something. A clone whose host does not answer counts as well.
fn alive(member: &floe_api::Family, fork: &str) -> usize {
    use floe_api::MachineStatus::{Failed, Stopped};
    let ended = match member.status {
        Some(Stopped | Failed) => true,
        Some(_) => false,
        None => member.detail == floe_api::CLONE_ENDED,
    };
    let own = member.fork.as_deref() == Some(fork) && !ended;
    let below: usize = member.clones.iter().map(|clone| alive(clone, fork)).sum();
    usize::from(own) + below
}

/// Returns an error unless all clones run: a partial fork is no success.
fn complete(fork: &floe_api::ForkReport) -> Result<(), CliError> {
    if fork.running == fork.asked {
        return Ok(());
    }
    Err(CliError::new(
        ErrorCode::Failed,
        format!(
            "{} of {} clones of {} run",
            fork.running, fork.asked, fork.parent
        ),
        format!(
            "use those that do, or end them with floe kill --all {}",
            fork.parent
        ),
    ))
}

fn told(fork: &floe_api::ForkReport, pause_ms: Option<f64>) -> String {
    let row = |clone: &floe_api::CloneInfo| {
        let time = clone.running_ms.map(|ms| format!("{ms:.0}"));
        vec![
            clone.name.clone(),
            clone.number.to_string(),
            clone_state(clone.state).into(),
            clone.host.clone().unwrap_or_default(),
            time.unwrap_or_default(),
            clone.detail.clone(),
        ]
    };
    let titles = ["NAME", ">CLONE", "STATE", "HOST", ">MS", ""];
    let mut text = table(&titles, fork.clones.iter().map(row));
    text += &format!("\n{} of {} run", fork.running, fork.asked);
    if let Some(pause_ms) = pause_ms {
        text += &format!("; {} stood still for {pause_ms:.0} ms", fork.parent);
    }
    text += &format!("; descriptor {}", bytes(fork.descriptor_bytes));
    if let Some(multicast) = &fork.multicast {
        text += &format!("; multicast {}", multicast.group);
    }
    text += "\n";
    if let Some(ends) = fork.clones.iter().find_map(|clone| clone.ends_unix_s) {
        text += &format!("they are removed in {}\n", until(ends));
    }
    if let Some(ticket) = &fork.ticket {
        text += &format!("on {ticket}, until the clones have ended\n");
    }
    text
}

fn clone_state(state: CloneState) -> &'static str {
    match state {
        CloneState::Running => "running",
        CloneState::Failed => "failed",
        CloneState::NotGranted => "not granted",
    }
}

/// Show the nodes that forks know by name, and the room that each has
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe hosts
They are listed in the file hosts of floe's state directory, one a line, a name and an address:
  alpha here
  beta https://10.0.0.2:7071
The addresses are those of members of this node's cluster (floe cluster members). Addresses of pages (http://) are asked only if the
node was started with --insecure-hosts, with the token of this node's page.")]
pub struct Hosts {}

impl Hosts {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let list = cx.client()?.hosts()?;
        cx.out.value(&list, |list| {
            let row = |host: &floe_api::HostInfo| {
                let room = host.room.unwrap_or_default();
                vec![
                    host.name.clone(),
                    host.address.clone(),
                    room.clones.to_string(),
                    room.free_cpus.to_string(),
                    bytes(room.free_memory_bytes),
                    host.detail.clone(),
                ]
            };
            let head = ["NAME", "ADDRESS", ">CLONES", ">CPUS", ">MEMORY", ""];
            table(&head, list.hosts.iter().map(row))
        })
    }
}

/// Show a machine's parents and clones as a tree, and which clones of its last fork could not be started
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  floe family web\n  floe family web --json | jq '.clones[].name'"
)]
pub struct Family {
    /// A machine, or an image that was forked
    machine: String,
}

impl Family {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let family = cx.client()?.family(&self.machine)?;
        cx.out.value(&family, |family| {
            let mut rows = Vec::new();
            tree(family, 0, &mut rows);
            table(&["NAME", ">CLONE", "STATUS", "HOST", "NEEDS", ""], rows)
        })
    }
}

fn tree(member: &floe_api::Family, depth: usize, rows: &mut Vec<Vec<String>>) {
    let number = member.number.map(|number| number.to_string());
    rows.push(vec![
        format!("{}{}", "  ".repeat(depth), member.name),
        number.unwrap_or_default(),
        member.status.map_or_else(|| "-".into(), |one| word(&one)),
        member.host.clone().unwrap_or_default(),
        if member.settled {
            ""
        } else {
            "its parent's node"
        }
        .into(),
        member.detail.clone(),
    ]);
    for clone in &member.clones {
        tree(clone, depth + 1, rows);
    }
    for clone in &member.missing {
        rows.push(vec![
            format!("{}{}", "  ".repeat(depth + 1), clone.name),
            clone.number.to_string(),
            clone_state(clone.state).into(),
            clone.host.clone().unwrap_or_default(),
            String::new(),
            clone.detail.clone(),
        ]);
    }
}

/// End clones and remove their disks
#[derive(Debug, Args)]
#[command(
    after_help = "Example: one clone\n  floe kill web.3\nExample: all clones of web; web goes on\n  floe kill --all web"
)]
pub struct Kill {
    /// Clones; with --all, machines whose clones are to be ended
    #[arg(required = true)]
    machines: Vec<String>,
    /// End all clones of the machines, and clones of those, instead
    #[arg(long)]
    all: bool,
}

impl Kill {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let request = floe_api::KillRequest { all: self.all };
        let turns = Turns::take(cx, &self.machines, |client, name| {
            client.kill(name, &request)
        })?;
        if turns.done.is_empty() {
            return Ok(turns.failed.unwrap_or(ExitCode::SUCCESS));
        }
        let mut report = floe_api::KillReport::default();
        for killed in turns.done {
            report.ended.extend(killed.ended);
            report.failed.extend(killed.failed);
        }
        cx.out.value(&report, |report| match report.ended.len() {
            0 => "there were no clones\n".to_owned(),
            _ => format!("ended {}\n", report.ended.join(", ")),
        })?;
        match report.failed.is_empty() {
            true => Ok(turns.failed.unwrap_or(ExitCode::SUCCESS)),
            false => Err(CliError::new(
                ErrorCode::Failed,
                format!("not ended: {}", report.failed.join("; ")),
                "see floe family",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clone(number: u32, state: CloneState) -> floe_api::CloneInfo {
        floe_api::CloneInfo {
            number,
            name: format!("web.{number}"),
            host: None,
            state,
            detail: String::new(),
            address: None,
            running_ms: (state == CloneState::Running).then_some(41.6),
            ends_unix_s: None,
        }
    }

    #[test]
    fn half_a_fork_is_told_clone_by_clone_and_ends_with_an_error() {
        let fork = floe_api::ForkReport {
            parent: "web".into(),
            asked: 2,
            granted: 2,
            running: 1,
            clones: vec![clone(1, CloneState::Running), clone(2, CloneState::Failed)],
            ..Default::default()
        };
        let text = told(&fork, None);
        assert!(text.contains("web.1") && text.contains("42"), "{text}");
        assert!(text.contains("1 of 2 run"), "{text}");
        assert_eq!(complete(&fork).unwrap_err().exit_code(), 1);
        let whole = floe_api::ForkReport { running: 2, ..fork };
        assert!(complete(&whole).is_ok());
    }

    #[test]
    fn a_clone_counts_until_it_is_known_to_have_ended() {
        let clone = |status, detail: &str| floe_api::Family {
            fork: Some("f".into()),
            status,
            detail: detail.into(),
            ..Default::default()
        };
        let family = floe_api::Family {
            clones: vec![
                clone(Some(floe_api::MachineStatus::Running), ""),
                clone(Some(floe_api::MachineStatus::Stopped), ""),
                clone(None, "it has ended"),
                clone(None, "no answer"),
            ],
            ..Default::default()
        };
        assert_eq!(alive(&family, "f"), 2);
        assert_eq!(alive(&family, "another"), 0);
    }

    #[test]
    fn a_family_is_shown_as_a_tree() {
        let family = floe_api::Family {
            name: "web".into(),
            settled: true,
            clones: vec![floe_api::Family {
                name: "web.1".into(),
                number: Some(1),
                ..Default::default()
            }],
            missing: vec![floe_api::CloneInfo {
                detail: "no space".into(),
                ..clone(2, CloneState::Failed)
            }],
            ..Default::default()
        };
        let mut rows = Vec::new();
        tree(&family, 0, &mut rows);
        assert_eq!(rows[1][0], "  web.1");
        assert_eq!(rows[1][4], "its parent's node");
        let missing = ["  web.2", "2", "failed", "", "", "no space"];
        assert_eq!(rows[2], missing);
    }
}
