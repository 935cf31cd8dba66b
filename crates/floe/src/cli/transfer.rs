//! `floe push` and `floe pull`: whole images over the network.

use clap::Args;

use super::error::CliError;
use super::images::seconds;
use super::login::Access;
use super::output::bytes;
use super::{Context, args, progress};

/// Publish a local image on a hub, or in a directory for any web server
#[derive(Debug, Args)]
#[command(after_help = "\
Example: only what the hub lacks is sent; after a cut it goes on where it was
  floe login https://hub.example
  floe push debian-booted https://hub.example --public
Example: a directory that any web server can serve
  floe push debian-booted /srv/www/images")]
pub struct Push {
    /// The local image
    image: String,
    /// Address of the hub, or a directory
    to: String,
    /// Name there; by default the local one
    #[arg(long, short)]
    name: Option<String>,
    /// Let everybody read it
    #[arg(long)]
    public: bool,
    #[command(flatten)]
    access: Access,
}

impl Push {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let to = args::image(&self.to)?;
        let request = floe_api::PushRequest {
            image: self.image,
            token: self.access.token_for(&to)?,
            to,
            name: self.name,
            ca: self.access.ca()?,
            public: self.public,
        };
        let done = progress::follow(cx.out, cx.client()?.push(&request)?)?;
        report(
            cx,
            &format!("pushed {} to {}", request.image, request.to),
            &done.outcome,
        )
    }
}

/// Fetch a whole image into the local repository
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe pull https://hub.example/debian-booted
  floe pull https://hub.example/team/web:v2 --name web
A machine does not need it: floe run ADDRESS fetches what it touches.")]
pub struct Pull {
    /// Address with the image's name
    from: String,
    /// Local name; by default the remote one
    #[arg(long, short)]
    name: Option<String>,
    #[command(flatten)]
    access: Access,
}

impl Pull {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let from = args::image(&self.from)?;
        let request = floe_api::PullRequest {
            token: self.access.token_for(&from)?,
            from,
            name: self.name,
            ca: self.access.ca()?,
        };
        let done = progress::follow(cx.out, cx.client()?.pull(&request)?)?;
        report(cx, &format!("pulled {}", request.from), &done.outcome)
    }
}

fn report(cx: &Context, what: &str, outcome: &floe_api::Outcome) -> Result<(), CliError> {
    if cx.out.json {
        return Ok(());
    }
    let t = outcome.transfer.clone().unwrap_or_default();
    let resumed = if t.resumed {
        ", went on after a cut"
    } else {
        ""
    };
    cx.out.text(&format!(
        "{what} in {}: {} over the network, {} were there{resumed}\n",
        seconds(outcome.total_ms),
        bytes(t.wire_bytes),
        bytes(t.skipped_bytes)
    ))
}
