//! Gives a running machine devices, and takes them away: `floe attach`, `floe detach`.

use clap::Args;

use super::Context;
use super::error::CliError;

/// Give a running machine another network card
#[derive(Debug, Args)]
#[command(after_help = "\
Example: a second card, and an address for it in the guest
  floe attach web --network
  floe exec web -- dhclient eth1
Example: which cards it was given
  floe ps web --json | jq .cards

Each card is on a user network of its own (10.0.3.0/24 for nic1, 10.0.4.0/24 for nic2). Captures, restored machines and clones
have it too.")]
pub struct Attach {
    /// The machine
    machine: String,
    /// A network card
    #[arg(long, required = true)]
    network: bool,
}

impl Attach {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let attached = cx.client()?.attach_card(&self.machine)?;
        let machine = &self.machine;
        cx.out.value(&attached, |attached| match attached.in_use {
            true => format!("{machine} has the card {}\n", attached.card),
            false => format!(
                "{machine} has the card {}, which no driver in its guest uses yet (Linux needs virtio_net and PCI hot-plug)\n",
                attached.card
            ),
        })
    }
}

/// Take a network card away that a running machine was given
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe detach web nic1

The guest is asked to let it go, which takes some seconds; one that keeps it goes on with it, and that is said.")]
pub struct Detach {
    /// The machine
    machine: String,
    /// The card: nic1, nic2 ...
    card: String,
}

impl Detach {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        cx.client()?.detach_card(&self.machine, &self.card)?;
        let done = format!("{} has no {} any more", self.machine, self.card);
        super::images::acknowledge(cx, &done)
    }
}
