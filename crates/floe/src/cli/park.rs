//! Commands that take a machine's memory off this host's, and let it go on: park and wake. Each takes several machines, and each of
//! those gets its turn, whatever became of the others.

use std::process::ExitCode;

use clap::Args;

use super::error::CliError;
use super::machines::{WaitArgs, started};
use super::output::bytes;
use super::power::Turns;
use super::progress;
use super::{Context, args};

/// Store machines' memory and end their QEMUs; they go on where they were when they are woken
#[derive(Debug, Args)]
#[command(after_help = "\
Example: a machine that nobody needs until tomorrow
  floe park web
  floe ps                 # web is parked: it takes disk space, and no memory
  floe wake web

A parked machine keeps its name, disks, addresses, limits and forwarded ports. The first connection to one of its ports wakes it
and is answered by its guest. Connections that are open while it is parked are cut. floe run --park-after parks a machine by itself.

For a while after a fork, at most two minutes, the memory of that moment is kept in memory, and neither the machine nor its clones can be
parked. --wait has it stored at once, and parks then.")]
pub struct Park {
    /// The machines
    #[arg(required = true)]
    machines: Vec<String>,
    /// Wait until the memory of the machine's forks is stored, and park it then; Ctrl-C ends the wait
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    hooks: args::HooksArgs,
}

impl Park {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let query = floe_api::ParkQuery {
            wait: self.wait,
            hooks_s: self.hooks.hooks,
        };
        let turns = Turns::take(cx, &self.machines, |client, name| {
            let done = progress::follow(cx.out, client.park(name, &query)?)?;
            let mut text = format!("{name} is parked");
            if let (Some(stored), Some(ms)) = (done.outcome.stored, done.outcome.pause_ms) {
                let size = bytes(stored.new_bytes_compressed);
                text += &format!(": {size} stored, its state was taken in {ms:.0} ms");
            }
            text += "\n";
            cx.out.text(&text)
        })?;
        Ok(turns.failed.unwrap_or(ExitCode::SUCCESS))
    }
}

/// Let parked machines go on where they were
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe wake web db
Example: and wait until its web server answers; Ctrl-C ends the wait, the machine goes on
  floe wake web --wait port=80

floe start wakes a parked machine too.")]
pub struct Wake {
    /// The machines
    #[arg(required = true)]
    machines: Vec<String>,
    #[command(flatten)]
    wait: WaitArgs,
    /// Wake them even if this host has too little memory for them: when its memory is full, the host may end machines
    #[arg(long)]
    overcommit: bool,
}

impl Wake {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let request = floe_api::StartRequest {
            overcommit: self.overcommit,
            ..self.wait.request()
        };
        let turns = Turns::take(cx, &self.machines, |client, name| {
            started(cx, client.wake(name, &request)?)
        })?;
        Ok(turns.failed.unwrap_or(ExitCode::SUCCESS))
    }
}
