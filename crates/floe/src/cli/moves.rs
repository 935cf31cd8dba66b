//! Commands that have machines go on on another node of the cluster, and come back: move and recall. Each takes several machines, and each
//! of those gets its turn, whatever became of the others.

use std::process::ExitCode;

use clap::Args;

use super::error::CliError;
use super::output::bytes;
use super::power::Turns;
use super::{Context, args, progress};
use floe_api::client::Client;
use floe_api::{MachineInfo, MachineStatus, MoveReport, MoveRequest, RecallRequest};

/// Move machines to another node of the cluster, where they go on with their memory, disks, names, ports and limits
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe cluster members        # which nodes there are
  floe move web --to beta     # beta brings what it lacks of web, and web goes on there
Example: to a strong host for a while, and back with what it has changed there
  floe move web --to beta --keep
  floe recall web --from beta
Example: make a host empty before it is maintained
  floe move --all --to beta

Only what the other node does not have crosses the network, encrypted: an image that both have is not sent. Most of it is copied
ahead, while the machine runs, so that it stands still only for what it changes meanwhile. One that is parked is woken for it,
and parked there. Programs in the guest go on where they were; connections to its forwarded ports are cut, and new ones are
answered at the other host. Whatever is killed or cut on the way, the machine runs on one of the two nodes: on this one until it
is given away, on the other from then on. Ctrl-C before that takes it back.

A node that is gone for good leaves the other one waiting for its word; floe ps says so, and
  floe move web --here        # lets it go on on this node all the same
If the other node has it run then, it runs on both until they hear of each other: one of the two is stopped and kept as an image, and
nothing of it is merged.")]
pub struct Move {
    /// The machines
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    machines: Vec<String>,
    /// All machines of this node that are not stopped, but those that another node has or may have
    #[arg(long, conflicts_with = "here")]
    all: bool,
    /// The node, by its name in the cluster or by https://ADDRESS:PORT
    #[arg(long, value_name = "NODE", required_unless_present = "here")]
    to: Option<String>,
    /// Let machines go on here that were given to a node, or come from one, that is gone for good
    #[arg(long, conflicts_with = "to")]
    here: bool,
    /// Copy nothing ahead while a machine runs: less work for both nodes, and it stands still for longer
    #[arg(long, conflicts_with = "here")]
    still: bool,
    /// Keep what a machine was here for 36 hours, or until the node ends, so that less is sent when it comes back
    #[arg(long, conflicts_with = "here")]
    keep: bool,
    #[command(flatten)]
    hooks: args::HooksArgs,
}

impl Move {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let names = match self.all {
            true => not_stopped(&cx.client()?)?,
            false => self.machines,
        };
        let request = MoveRequest {
            to: self.to,
            here: self.here,
            still: self.still,
            keep: self.keep,
            hooks_s: self.hooks.hooks,
        };
        let turns = Turns::take(cx, &names, |client, name| {
            let done = progress::follow(cx.out, client.move_machine(name, &request)?)?;
            if cx.out.json {
                return Ok::<_, CliError>(());
            }
            cx.out.text(&match done.outcome.moved {
                Some(moved) => told(name, &moved),
                None => format!("{name} is this node's again\n"),
            })
        })?;
        Ok(turns.failed.unwrap_or(ExitCode::SUCCESS))
    }
}

/// Bring machines back from the node that they were moved to from here, with what they have changed there
#[derive(Debug, Args)]
#[command(after_help = "\
Example: to a strong host for a while, and back
  floe move web --to beta --keep
  floe recall web --from beta

That is floe move, asked for from the node that gave the machines away; no other node can ask for them. Ctrl-C ends the wait, and
they come all the same.")]
pub struct Recall {
    /// The machines
    #[arg(required = true)]
    machines: Vec<String>,
    /// The node that has them, by its name in the cluster or by https://ADDRESS:PORT
    #[arg(long, value_name = "NODE")]
    from: String,
}

impl Recall {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let request = RecallRequest { from: self.from };
        let turns = Turns::take(cx, &self.machines, |client, name| {
            let done = progress::follow(cx.out, client.recall(name, &request)?)?;
            if cx.out.json {
                return Ok::<_, CliError>(());
            }
            let is_parked = |machine: MachineInfo| machine.status == MachineStatus::Parked;
            let more = match done.outcome.machine.is_some_and(is_parked) {
                true => format!(", and is parked: floe wake {name} lets it go on"),
                false => String::new(),
            };
            cx.out.text(&format!("{name} is back{more}\n"))
        })?;
        Ok(turns.failed.unwrap_or(ExitCode::SUCCESS))
    }
}

/// Returns the names of the machines that have something to lose by standing still.
fn not_stopped(client: &Client) -> Result<Vec<String>, CliError> {
    let stopped = [MachineStatus::Stopped, MachineStatus::Failed];
    let machines = client.machines()?.machines.into_iter();
    let machines = machines.filter(|machine| !stopped.contains(&machine.status));
    // those that another node has, or may have, are not this one's to give
    let machines = machines.filter(|machine| machine.moves.is_none());
    Ok(machines.map(|machine| machine.name).collect())
}

fn told(name: &str, moved: &MoveReport) -> String {
    let sent = bytes(moved.wire_bytes);
    let still = moved.down_ms / 1e3;
    let to = &moved.to;
    match moved.trouble.as_str() {
        "" => format!("{name} runs on {to}: {sent} sent, it stood still for {still:.1} s\n"),
        why => format!("{name} is on {to} and does not run there yet: {why}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_machine_is_and_what_it_took_is_told_in_words() {
        let mut moved = MoveReport {
            to: "beta".into(),
            wire_bytes: 3 << 20,
            down_ms: 2400.0,
            trouble: String::new(),
        };
        assert_eq!(
            told("web", &moved),
            "web runs on beta: 3.0 MiB sent, it stood still for 2.4 s\n"
        );
        moved.trouble = "no memory is left".into();
        assert!(told("web", &moved).ends_with("does not run there yet: no memory is left\n"));
    }
}
