//! `floe push`, `floe pull` and `floe image copy`: whole images over the network.

use clap::Args;

use super::authority::AuthorityArgs;
use super::error::CliError;
use super::login::{Access, TokenArgs};
use super::output::bytes;
use super::output::seconds;
use super::{Context, args, progress};

/// Publish a local image on a hub, in a bucket, or in a directory for any web server
///
/// Only what is not there is sent. A push that was cut off goes on where it was when it is run again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: only what the hub lacks is sent; after a cut it goes on where it was
  floe login https://hub.example
  floe push debian-booted https://hub.example --public
Example: stay until three of those that run it have all of it
  floe push debian-booted https://hub.example --seed=3
Example: a directory that any web server can serve
  floe push debian-booted /srv/www/images
Example: a bucket, with the keys of the node's environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION)
  floe push debian-booted s3://bucket/images && floe run s3://bucket/images/debian-booted
Example: Google's (GOOGLE_APPLICATION_CREDENTIALS), and Azure's (AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY)
  floe push debian-booted gs://bucket/images
  floe push debian-booted az://container/images")]
pub struct Push {
    /// The local image
    image: String,
    /// Address of the hub, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or a directory
    to: String,
    /// Name there; by default the local one
    #[arg(long, short)]
    name: Option<String>,
    /// Let everybody read it (on a hub; a bucket has a policy of its own)
    #[arg(long)]
    public: bool,
    /// Then give its pieces to the nodes that run it (on a hub): until so many others have had all of it (--seed=N), or until floe swarm
    /// leave (--seed)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "0", value_name = "N")]
    seed: Option<u32>,
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
            seed: self.seed.is_some(),
            seed_until: self.seed.filter(|others| *others > 0),
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
    trust: args::TrustArgs,
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
            trust: self.trust.trust,
        };
        let done = progress::follow(cx.out, cx.client()?.pull(&request)?)?;
        report(cx, &format!("pulled {}", request.from), &done.outcome)
    }
}

/// Copy an image between any two places
///
/// FROM is a local image or the address of one on a hub, in a bucket, on a web server or in a directory. TO is a hub, a bucket, a
/// directory, or a name on this node. Only what TO lacks is sent. Between two places elsewhere the data passes through the
/// memory of this node, some packs at a time, and nothing is stored on its disk but indices of packs (under 1 %).
#[derive(Debug, Args)]
#[command(after_help = "\
Example: from a hub to a bucket
  floe image copy https://hub.example/debian-booted s3://bucket/images
Example: from a web server to a hub, under another name
  floe image copy https://www.example/images/web https://hub.example --name web:v2
Example: to this node, as floe pull does
  floe image copy s3://bucket/images/debian-booted debian")]
pub struct Copy {
    /// The image: a local one, or an address with its name
    from: String,
    /// Address of a hub, a bucket (s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX), a directory (./DIR, /DIR), or a name on
    /// this node
    to: String,
    /// Name there; by default the one it has
    #[arg(long, short)]
    name: Option<String>,
    /// Let everybody read it (on a hub; a bucket has a policy of its own)
    #[arg(long)]
    public: bool,
    #[command(flatten)]
    trust: args::TrustArgs,
    #[command(flatten)]
    tokens: TokenArgs,
    #[command(flatten)]
    authorities: AuthorityArgs,
}

impl Copy {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let (from, to) = (args::image(&self.from)?, args::image(&self.to)?);
        let authorities = self.authorities.given([&*from, &*to])?;
        let request = floe_api::CopyRequest {
            tokens: self.tokens.tokens_for([&*from, &*to])?,
            ca: authorities.ca,
            cas: authorities.cas,
            name: self.name,
            public: self.public,
            trust: self.trust.trust,
            from,
            to,
        };
        let done = progress::follow(cx.out, cx.client()?.copy_image(&request)?)?;
        report(
            cx,
            &format!("copied {} to {}", request.from, request.to),
            &done.outcome,
        )
    }
}

fn report(cx: &Context, what: &str, outcome: &floe_api::Outcome) -> Result<(), CliError> {
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
