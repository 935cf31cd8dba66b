//! Commands that have machines go on on another node of the cluster, and come back: move, recall and drain. Each takes several machines, and each
//! of those gets its turn, whatever became of the others.

use std::cell::Cell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::error::CliError;
use super::output::bytes;
use super::power::Turns;
use super::{Context, args, copy, progress};
use floe_api::client::Client;
use floe_api::{
    ErrorCode, Family, KillRequest, MachineInfo, MachineStatus, MoveReport, MoveRequest,
    RecallRequest,
};
use floe_guest::copy::Together;

/// Move machines to another node of the cluster, where they go on with their memory, disks, names, ports and limits
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe cluster members        # which nodes there are
  floe move web --to beta     # beta brings what it lacks of web, and web goes on there
Example: to a strong host for a while, and back with what it has changed there
  floe move web --to beta --keep
  floe recall web --from beta
Example: make a host empty before it is maintained, onto one node; floe drain takes all that have room
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
    /// All machines of this node that are not stopped, except those that another node has or may have
    #[arg(long, conflicts_with = "here")]
    all: bool,
    /// The node, by its name in the cluster or by https://ADDRESS:PORT
    #[arg(long, value_name = "NODE", required_unless_present = "here")]
    to: Option<String>,
    /// Let machines go on here whose other node (they were given to it, or come from it) is gone for good
    #[arg(long, conflicts_with = "to")]
    here: bool,
    /// Copy nothing ahead while a machine runs: less work for both nodes, and it stands still for longer
    #[arg(long, conflicts_with = "here")]
    still: bool,
    /// Keep what a machine was here for 36 hours, or until the node ends or its disk is full, so that less is sent when it comes back
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
            ..Default::default()
        };
        let turns = Turns::take(cx, &names, |client, name| {
            let done = progress::follow(cx.out, client.move_machine(name, &request)?)?;
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
  floe offload web --to beta
  floe recall web
Example: only what the job has made; what else the machine has become there is thrown away
  floe recall web --results /root/out --into .
Example: one that was moved there for good
  floe recall web --from beta
Example: the results of each of the clones that floe offload -n has made, into results/web.1, results/web.2 ...
  floe recall web --clones --results /srv/out --into results
Example: beta is gone for good
  floe recall web --force

That is floe move, asked for from the node that gave the machines away; no other node can ask for them. Ctrl-C ends the wait, and
they come all the same. One that has become larger there first gives that back; if its guest can't, it stays there.
With --force a machine that was lent goes on here from what it was when it was last synced (floe sync), or when it went, without what
it has done since. If the other node has it run all the same, it does so until it hears of this; what it did is kept there as an image.")]
pub struct Recall {
    /// The machines
    #[arg(required = true)]
    machines: Vec<String>,
    /// The node that has them, by its name in the cluster or by https://ADDRESS:PORT; by default the one that they were lent to
    #[arg(long, value_name = "NODE")]
    from: Option<String>,
    /// Let them go on here without that node, which is gone for good
    #[arg(long, conflicts_with = "from")]
    force: bool,
    /// Bring back this file or directory of the guest alone (repeatable), by its whole path, with at most 64 MiB; the machine goes on here
    /// from what it was when it was lent or last synced
    #[arg(long, value_name = "PATH", conflicts_with_all = ["from", "force"])]
    results: Vec<String>,
    /// Have the results of the clones that run on other nodes (floe offload -n): each one's come into a folder of its name, without a limit
    /// of size, and then the clone is removed
    #[arg(long, requires = "results")]
    clones: bool,
    /// The directory of this host for the results; by default the one in which the command is typed
    #[arg(long, value_name = "DIR", requires = "results")]
    into: Option<PathBuf>,
}

impl Recall {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let into = self.into.clone().unwrap_or_else(|| PathBuf::from("."));
        let into = match self.results.is_empty() {
            true => None,
            false => Some(args::existing(&into)?),
        };
        if let (true, Some(into)) = (self.clones, &into) {
            return self.clones_come(cx, into);
        }
        let request = RecallRequest {
            from: self.from,
            results: self.results,
            into,
        };
        let forces = MoveRequest {
            here: true,
            ..Default::default()
        };
        let turns = Turns::take(cx, &self.machines, |client, name| {
            let events = match self.force {
                true => client.move_machine(name, &forces)?,
                false => client.recall(name, &request)?,
            };
            let done = progress::follow(cx.out, events)?;
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

impl Recall {
    /// Brings results of the clones that the machines have on other nodes, and ends each one whose results are all here.
    fn clones_come(&self, cx: &Context, into: &str) -> Result<ExitCode, CliError> {
        let mut names = HashSet::new();
        for path in &self.results {
            if !names.insert(Path::new(path).file_name()) {
                return Err(CliError::usage(
                    format!("{path} would take the place of another with its name"),
                    "bring back the directory that has them, or one of them",
                ));
            }
        }
        let client = cx.client()?;
        let mut clones = Vec::new();
        for name in &self.machines {
            let before = clones.len();
            collect_away(&client.family(name)?, name, &mut clones);
            if clones.len() == before {
                return Err(CliError::new(
                    ErrorCode::NotFound,
                    format!("{name} has no clones on other nodes"),
                    format!("floe family {name} shows those that it has"),
                ));
            }
        }
        let turns = Turns::take(cx, &clones, |client, clone| {
            let dir = format!("{into}/{clone}");
            self.clone_gives(cx, clone, into, Path::new(&dir))?;
            let killed = client.kill(clone, &KillRequest::default());
            killed.map_err(|error| {
                let mut error = CliError::from(error);
                error.0.message = format!("{} (its results are in {dir})", error.0.message);
                error
            })?;
            cx.out
                .text(&format!("the results of {clone} are in {dir}\n"))
        })?;
        Ok(turns.failed.unwrap_or(ExitCode::SUCCESS))
    }

    /// Brings all results of a clone to a directory below `into`, or none.
    fn clone_gives(
        &self,
        cx: &Context,
        clone: &str,
        into: &str,
        dir: &Path,
    ) -> Result<(), CliError> {
        let partial = format!("{into}/.{clone}.partial");
        let unwritten = |error| CliError::file("write results to", dir, error);
        let together = Together::begin(PathBuf::from(&partial)).map_err(unwritten)?;
        for path in &self.results {
            copy::out_of(cx, clone, path, &partial, "")?;
        }
        together.put_in(dir).map_err(unwritten)
    }
}

/// Collects the names of the clones that a machine of a family has on other nodes.
fn collect_away(member: &Family, of: &str, names: &mut Vec<String>) {
    for clone in &member.clones {
        if member.name == of && clone.host.is_some() {
            names.push(clone.name.clone());
        }
        collect_away(clone, of, names);
    }
}

/// Make this host empty before it is maintained: move its machines to other nodes of the cluster
#[derive(Debug, Args)]
#[command(after_help = "\
Example: to whichever nodes have room
  floe drain
Example: to one of these
  floe drain --to beta,gamma

Each machine that is not stopped goes to one of the nodes that can have it, as by floe move: with its memory, disks, name, ports and
limits. The nodes take turns. A machine that no node can have stays and is named with the reasons, and the exit code is that of the first
such: one with a --network, for instance. Machines that are lent stay with the nodes that have them.")]
pub struct Drain {
    /// The nodes, by their names in the cluster; by default all other members
    #[arg(long, value_delimiter = ',', value_name = "NODE")]
    to: Vec<String>,
    /// Copy nothing ahead while a machine runs: less work for both nodes, and it stands still for longer
    #[arg(long)]
    still: bool,
    #[command(flatten)]
    hooks: args::HooksArgs,
}

impl Drain {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let client = cx.client()?;
        let names = not_stopped(&client)?;
        let nodes = match self.to.is_empty() {
            true => other_members(&client)?,
            false => self.to.clone(),
        };
        if names.is_empty() {
            cx.out
                .text("no machine of this host has anything to lose\n")?;
        }
        let turn = Cell::new(0);
        let turns = Turns::take(cx, &names, |client, name| {
            let first = turn.replace(turn.get() + 1) % nodes.len().max(1);
            let (later, sooner) = nodes.split_at(first);
            self.goes(cx, client, name, &[sooner, later].concat())
        })?;
        Ok(turns.failed.unwrap_or(ExitCode::SUCCESS))
    }

    /// Moves a machine to the first of the nodes that can have it.
    fn goes(
        &self,
        cx: &Context,
        client: &Client,
        name: &str,
        nodes: &[String],
    ) -> Result<(), CliError> {
        let mut why = Vec::new();
        for node in nodes {
            let request = MoveRequest {
                to: Some(node.clone()),
                still: self.still,
                hooks_s: self.hooks.hooks,
                ..Default::default()
            };
            let done = progress::follow(cx.out, client.move_machine(name, &request)?);
            match done {
                Ok(done) => {
                    let moved = done.outcome.moved;
                    return moved.map_or(Ok(()), |moved| cx.out.text(&told(name, &moved)));
                }
                // another may have it; what was given to this one is not offered to another
                Err(error) if is_still_here(client, name)? => why.push(error.0),
                Err(error) => return Err(error),
            }
        }
        let words = why.iter().map(|why| why.message.as_str());
        let words = words.collect::<Vec<_>>().join("; ");
        Err(CliError::new(
            why.first().map_or(ErrorCode::Refused, |why| why.code),
            match words.is_empty() {
                true => format!("{name} stays: this node's cluster has no other member"),
                false => format!("{name} stays: {words}"),
            },
            format!(
                "floe park {name} stores it on this host; floe cluster join has a node with room take part"
            ),
        ))
    }
}

/// Whether a machine is this node's to give.
fn is_still_here(client: &Client, name: &str) -> Result<bool, CliError> {
    let mut all = client.machines()?.machines.into_iter();
    let found = all.find(|machine| machine.name == name);
    Ok(found.is_some_and(|machine| machine.moves.is_none()))
}

/// Returns the names of the other members of the cluster.
fn other_members(client: &Client) -> Result<Vec<String>, CliError> {
    let members = client.cluster()?.members.into_iter();
    let others = members.filter(|member| !member.this);
    Ok(others.map(|member| member.name).collect())
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

/// Tells where a machine is, and what it took.
pub(super) fn told(name: &str, moved: &MoveReport) -> String {
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
