//! `floe down`: ends the node.

use clap::Args;

use super::Context;
use super::error::CliError;
use super::images::acknowledge;
use crate::api::ShutdownRequest;

/// End the node; machines go on and the next node takes them over
#[derive(Debug, Args)]
#[command(after_help = "\
Example: update floe under running machines
  floe down && apt upgrade floe && floe up
Example: before the host is switched off
  floe down --machines")]
pub struct Down {
    /// Power the machines down too
    #[arg(long)]
    machines: bool,
}

impl Down {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let stop_machines = self.machines;
        cx.client()?.shutdown(&ShutdownRequest { stop_machines })?;
        acknowledge(cx, "the node ends")
    }
}
