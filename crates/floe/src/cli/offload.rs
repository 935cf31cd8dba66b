//! Commands for a device and a strong host: offload, sync, pair.

use std::io::BufRead;
use std::process::ExitCode;

use clap::Args;

use super::error::CliError;
use super::output::bytes;
use super::power::Turns;
use super::{Context, args, cluster, forks, moves, progress, resize};
use floe_api::client::Client;
use floe_api::{
    ClusterInit, ClusterInvite, ClusterJoin, ErrorCode, MoveRequest, Outcome, SyncReport,
    SyncRequest,
};

/// Have machines go on on a strong host for a while, with more CPUs and memory there; floe recall has them back
#[derive(Debug, Args)]
#[command(after_help = "\
Example: a long compile on a strong host, and back with what it has made
  floe offload phone --to cloud --cpus 8 --memory 8G
  floe recall phone
Example: ahead of time, so that little is left to be sent when it goes
  floe sync phone --to cloud
  floe offload phone --to cloud
Example: the same machine for four jobs at once, while this one goes on here
  floe offload phone --to cloud -n 4
  floe exec phone.1 -- make check
  floe recall phone --clones --results /srv/out --into results

That is floe move with a loan: what the machine was stays here, and it comes back to this node alone. Where it runs, it grows as by floe
resize; before it comes back its guest gives that back, or it stays there and says what is missing. Its screen and console are shown here
meanwhile (the page, floe console, floe logs, floe screenshot), what is typed there reaches it, and floe exec, floe cp and floe ssh reach
its guest. If the other node is gone for good, the machine goes on here from what it was when it went, or when it was last synced:
  floe recall phone --force
A side that comes back late after that is stopped and kept as an image, and nothing of it is merged. With -n the machine stays, and clones
of this moment run there (floe fork --hosts). What does not pay, or can't go there, floe advise says beforehand: a machine with a --network,
for instance, stays on its host.")]
pub struct Offload {
    /// The machines
    #[arg(required = true)]
    machines: Vec<String>,
    /// The node, by its name in the cluster or by https://ADDRESS:PORT
    #[arg(long, value_name = "NODE")]
    to: String,
    /// How many CPUs a machine is to have there; by default as many as here
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// How much memory it is to have there, such as 8G; by default as much as here
    #[arg(long, value_parser = args::memory, value_name = "SIZE")]
    memory: Option<u64>,
    /// Copy nothing ahead while a machine runs: less work for both nodes, and it stands still for longer
    #[arg(long, conflicts_with = "clones")]
    still: bool,
    /// How long it may run there without a word of this node, such as 10m: then it is parked there, and goes on once this node answers;
    /// floe recall --force waits for that time. By default it runs on, and after a forced recall on both until they hear of each other
    #[arg(long, value_name = "TIME", value_parser = args::time_s, conflicts_with = "clones")]
    lease: Option<u64>,
    /// Run so many clones of it there instead, while it goes on here
    #[arg(long = "clones", short = 'n', value_name = "N", conflicts_with_all = ["cpus", "memory"],
        value_parser = clap::value_parser!(u32).range(1..=i64::from(floe_api::CLONES_MAX)))]
    clones: Option<u32>,
    #[command(flatten)]
    hooks: args::HooksArgs,
}

impl Offload {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let turns = match self.clones {
            Some(clones) => Turns::take(cx, &self.machines, |client, name| {
                let request = floe_api::ForkRequest {
                    clones,
                    hosts: vec![self.to.clone()],
                    settle: true,
                    hooks_s: self.hooks.hooks,
                    ..Default::default()
                };
                forks::forked(cx, client, name, &request)
            })?,
            None => Turns::take(cx, &self.machines, |client, name| {
                let request = MoveRequest {
                    to: Some(self.to.clone()),
                    still: self.still,
                    hooks_s: self.hooks.hooks,
                    lend: true,
                    lease_s: self.lease,
                    cpus: self.cpus,
                    memory_bytes: self.memory,
                    ..Default::default()
                };
                self.offloaded(cx, client, name, &request)
            })?,
        };
        Ok(turns.failed.unwrap_or(ExitCode::SUCCESS))
    }

    fn offloaded(
        &self,
        cx: &Context,
        client: &Client,
        name: &str,
        request: &MoveRequest,
    ) -> Result<(), CliError> {
        let done = progress::follow(cx.out, client.move_machine(name, request)?)?;
        cx.out.text(&told(name, &done.outcome))?;
        let wants_more = self.cpus.is_some() || self.memory.is_some();
        match done.outcome.resized {
            Some(resized) => match resized.short.into_iter().next() {
                Some(short) => Err(CliError(short)),
                None => Ok(()),
            },
            None if wants_more => Err(CliError::new(
                ErrorCode::Refused,
                format!("{name} is on {}, with the size that it had", self.to),
                format!("floe resize {name} there tries again; floe recall {name} has it back"),
            )),
            None => Ok(()),
        }
    }
}

fn told(name: &str, outcome: &Outcome) -> String {
    let mut text = String::new();
    if let Some(moved) = &outcome.moved {
        text += &moves::told(name, moved);
    }
    if let Some(resized) = &outcome.resized {
        text += &format!("it has {} there\n", resize::size(resized.after));
    }
    text
}

/// Have the other node know what machines are, ahead of time, so that less is left to be sent when they go or come back
#[derive(Debug, Args)]
#[command(after_help = "\
Example: before it goes
  floe sync phone --to cloud
Example: every five minutes, or sooner once it has changed by 64 MiB, wherever it runs
  floe sync phone --to cloud --every 5m --threshold 64M
  floe sync phone --stop
Example: so that the other node can't read what lies there before the machine has come, and once it is back
  floe sync phone --to cloud --every 5m --sealed
Example: while it runs on the other node, so that less is lost if that is gone for good
  floe sync phone

The machine is captured while it runs, and the node that does not run it brings the chunks that it lacks, compressed and encrypted; what
is cut off goes on where it was. What has been sent is not sent again by floe offload or floe recall. While the machine is lent, what
was synced last is what floe recall --force goes on from. Sealed, all of it is sent once, also what the other node has of its image, and takes
as much again of this node's disk; the key (seal.key in this node's state directory) is told with floe offload or floe move, and kept in memory
there while it opens.")]
pub struct SyncCommand {
    /// The machines
    #[arg(required = true)]
    machines: Vec<String>,
    /// The node to which a machine will go, by its name in the cluster or by https://ADDRESS:PORT; a machine that is lent has its other node
    #[arg(long, value_name = "NODE", conflicts_with = "stop")]
    to: Option<String>,
    /// Do it from now on so often, such as 5m, until --stop
    #[arg(long, value_name = "TIME", value_parser = args::time_s, conflicts_with = "stop")]
    every: Option<u64>,
    /// And sooner once so much of its disks was written and of its memory touched for the first time, such as 64M
    #[arg(long, value_name = "SIZE", value_parser = args::size, requires = "every")]
    threshold: Option<u64>,
    /// End what --every has begun
    #[arg(long)]
    stop: bool,
    /// Seal from now on what the other node keeps while the machine does not run there, with a key that it is told when the machine goes there
    #[arg(long, conflicts_with_all = ["stop", "readable"])]
    sealed: bool,
    /// End that: what the other node keeps from now on is readable there
    #[arg(long, conflicts_with = "stop")]
    readable: bool,
}

impl SyncCommand {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let request = SyncRequest {
            to: self.to,
            every_s: self.every,
            threshold_bytes: self.threshold,
            stop: self.stop,
            sealed: (self.sealed || self.readable).then_some(self.sealed),
        };
        let turns = Turns::take(cx, &self.machines, |client, name| {
            let done = progress::follow(cx.out, client.sync(name, &request)?)?;
            cx.out.text(&match done.outcome.synced {
                Some(synced) => told_of(name, &synced),
                None => format!("{name} is no longer synced by itself\n"),
            })
        })?;
        Ok(turns.failed.unwrap_or(ExitCode::SUCCESS))
    }
}

fn told_of(name: &str, synced: &SyncReport) -> String {
    let with = &synced.with;
    match synced.wire_bytes {
        0 => format!("{name} is synced with {with}\n"),
        sent => format!("{name} is synced with {with}: {} sent\n", bytes(sent)),
    }
}

/// Make this device and a strong host know each other, once, so that machines can go there and come back
#[derive(Debug, Args)]
#[command(after_help = "\
Example: on the strong host, which prints what to type on the device
  cloud$  floe pair
  floe pair https://203.0.113.7:7071 floe1.6b0c...
  device$ floe pair https://203.0.113.7:7071 floe1.6b0c...
  device$ floe offload phone --to cloud
Example: without the invitation in the shell's history; it is asked for
  device$ floe pair https://203.0.113.7:7071

Each side makes a key of its own, and neither leaves its host; the invitation is good once, for an hour, and says by which certificate
the device can tell this host from an impostor. It is what floe cluster does: the two are a cluster, and floe cluster members, revoke and
leave are for them, too. Both must be able to reach each other at the port that is named: a device behind a router's NAT needs a VPN
first.")]
pub struct Pair {
    /// Address of the strong host, as floe pair printed it there; without it this is the strong host
    url: Option<String>,
    /// The invitation
    #[arg(requires = "url")]
    invitation: Option<String>,
    /// This node's name for the other; by default its host name
    #[arg(long)]
    name: Option<String>,
    /// Address and port on which this node answers the other; by default port 7071 of the address that leads to the network
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<std::net::SocketAddr>,
}

impl Pair {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        let Some(url) = self.url else {
            return invite(cx, &client, self.name, self.listen);
        };
        let invitation = match self.invitation {
            Some(invitation) => invitation,
            None => asked_for(&url)?,
        };
        let request = ClusterJoin {
            url,
            invitation,
            name: self.name,
            listen: self.listen,
        };
        cx.out.value(&client.cluster_join(&request)?, cluster::told)
    }
}

/// Makes the node one that can be paired with, if it is none, and prints what is to be typed on the device.
fn invite(
    cx: &Context,
    client: &Client,
    name: Option<String>,
    listen: Option<std::net::SocketAddr>,
) -> Result<(), CliError> {
    if !client.cluster()?.joined {
        let init = ClusterInit {
            name,
            listen,
            certificate_s: None,
        };
        client.cluster_init(&init)?;
    }
    let invited = client.cluster_invite(&ClusterInvite::default())?;
    cx.out.value(&invited, |invited| {
        format!("floe pair {} {}\n", invited.url, invited.invitation)
    })
}

/// Reads the invitation from standard input, so that it stands in no list of processes and no history.
fn asked_for(url: &str) -> Result<String, CliError> {
    eprintln!("The invitation that floe pair printed on {url}:");
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut text)
        .map_err(|error| CliError::failed("cannot read the invitation", error))?;
    match text.trim() {
        "" => Err(CliError::usage(
            "there is no invitation",
            "floe pair on the strong host prints one, with its address",
        )),
        invitation => Ok(invitation.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::{MoveReport, ResizeReport, Size};

    #[test]
    fn what_a_machine_has_there_is_told_in_words() {
        let outcome = Outcome {
            moved: Some(MoveReport {
                to: "cloud".into(),
                wire_bytes: 3 << 20,
                down_ms: 2400.0,
                trouble: String::new(),
            }),
            resized: Some(ResizeReport {
                after: Size {
                    cpus: 8,
                    memory_bytes: 8 << 30,
                },
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(
            told("phone", &outcome),
            "phone runs on cloud: 3.0 MiB sent, it stood still for 2.4 s\nit has 8 CPUs and 8.0 GiB of memory there\n"
        );
        let synced = SyncReport {
            with: "cloud".into(),
            wire_bytes: 0,
        };
        assert_eq!(told_of("phone", &synced), "phone is synced with cloud\n");
    }
}
