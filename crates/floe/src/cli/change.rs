//! Commands that change a machine that exists: rename.

use clap::Args;

use super::Context;
use super::error::CliError;

/// Give a machine another name
#[derive(Debug, Args)]
#[command(after_help = "\
Example: keep what runs, and start its successor under the name that others know
  floe rename web web-old
  floe run debian --name web

The machine may run meanwhile. Its files keep the old name, where nobody sees it. Clones, machines with clones and machines
with a --network keep their names: others know them by it.")]
pub struct Rename {
    /// The machine
    machine: String,
    /// Its new name
    name: String,
}

impl Rename {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let renamed = cx.client()?.rename(&self.machine, &self.name)?;
        cx.out.value(&renamed, |m| {
            format!("{} is {} now\n", self.machine, m.name)
        })
    }
}
