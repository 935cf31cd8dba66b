//! The command that takes a machine back to where it was captured: rollback.

use clap::Args;

use super::error::CliError;
use super::machines::{WaitArgs, started};
use super::{Context, confirm};

/// Take a machine back to an image that was captured from it
#[derive(Debug, Args)]
#[command(after_help = "\
Example: try something, and go back
  floe capture web --name web-before
  floe exec web -- apt-get -y full-upgrade
  floe rollback web web-before
Example: but keep what it is now
  floe rollback web web-before --keep web-after

Memory, disks, devices and size are the image's again; the machine keeps its name, addresses, ports, networks and user, its limits follow
its size, and it goes on where it was captured. It may run, be stopped or be parked before. What it has done since is lost; the command
asks before that, unless you give --force or --keep. An image of another machine is refused: floe run makes a machine of that.")]
pub struct Rollback {
    /// The machine
    machine: String,
    /// The image, captured from it
    image: String,
    /// Capture the machine under this name first; it must run for that
    #[arg(long, value_name = "NAME")]
    keep: Option<String>,
    /// Do not ask whether what it has done since may be lost
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    wait: WaitArgs,
    /// Let it go on even if this host has too little memory for it: when its memory is full, the host may end machines
    #[arg(long)]
    overcommit: bool,
}

impl Rollback {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let lost = format!(
            "{} goes back to {}, and what it has done since is lost. Go on?",
            self.machine, self.image
        );
        if self.keep.is_none() && !self.force && !confirm::agrees(&lost)? {
            return Ok(());
        }
        let request = floe_api::RollbackRequest {
            image: self.image,
            keep: self.keep,
            start: floe_api::StartRequest {
                overcommit: self.overcommit,
                ..self.wait.request()
            },
        };
        started(cx, cx.client()?.rollback(&self.machine, &request)?).map(drop)
    }
}
