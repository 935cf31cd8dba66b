//! `floe hub ...`: the server that images are published on.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::error::CliError;
use super::output::{bytes, table};
use super::{Context, args, interrupt};
use floe_front::telemetry::{LogOptions, init_logs};
use floe_hub::{Anonymous, HubOptions, QuotaWish, Tls};

/// Default address of a hub: reachable from this host only.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:4500";

/// Serve images to many hosts, and manage who may publish
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example: a hub on the network, and a token for its first user
  floe hub token create alice
  floe hub serve --listen 0.0.0.0:4500 --tls self-signed --tls-name hub.example")]
pub enum Hub {
    Serve(Serve),
    #[command(subcommand)]
    Token(Token),
    #[command(visible_alias = "users")]
    Quota(QuotaArgs),
}

/// Show what users have and may have, or set what one may have
///
/// A running hub applies a change at once. A smaller quota removes nothing, but nothing more is accepted.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: what everybody has and may have
  floe hub quota
Example: more room for one user
  floe hub quota alice --bytes 100G --images 50 --traces 200")]
pub struct QuotaArgs {
    /// The user; by default all users
    user: Option<String>,
    /// Most bytes of the packs of its images and unfinished uploads, such as 100G (1T unless set)
    #[arg(long, value_parser = args::size, value_name = "SIZE", requires = "user")]
    bytes: Option<u64>,
    /// Most images, unfinished uploads included (1000 unless set)
    #[arg(long, value_name = "N", requires = "user")]
    images: Option<u64>,
    /// Most traces that the user has sent and that are kept, whoever owns the images (1000 unless set)
    #[arg(long, value_name = "N", requires = "user")]
    traces: Option<u64>,
    #[command(flatten)]
    hub: Folder,
}

/// Serve until Ctrl-C or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "\
Example: with a certificate of one's own authority (clients use the printed CA file with --ca)
  floe hub serve --listen 0.0.0.0:4500 --tls self-signed --tls-name hub.example
Example: with a certificate from elsewhere
  floe hub serve --listen 0.0.0.0:443 --tls-cert chain.pem --tls-key key.pem

Metrics for Prometheus are at /metrics, a page for people at /.")]
pub struct Serve {
    /// Address and port; port 0 picks a free one
    #[arg(long, default_value = LISTEN_DEFAULT)]
    listen: SocketAddr,
    /// The hub's folder; by default hub/ in floe's state directory
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// How connections are protected
    #[arg(long, value_enum, default_value = "off", conflicts_with = "tls_cert")]
    tls: TlsMode,
    /// A further name or address that the self-signed certificate is for (repeatable)
    #[arg(long, value_name = "NAME")]
    tls_name: Vec<String>,
    /// Certificate chain as PEM, leaf first
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Refuse everything without a token, public images too
    #[arg(long)]
    private: bool,
    /// Also accept traces of machines without a token, for images that everybody may read
    #[arg(long, conflicts_with = "private")]
    anonymous_traces: bool,
    /// Write the log as JSON lines
    #[arg(long)]
    log_json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TlsMode {
    /// Plain HTTP: this host only, or behind a proxy that does TLS
    Off,
    /// A certificate from its own authority, made at the first start
    SelfSigned,
}

/// Make, list and revoke the tokens with which users publish
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  floe hub token create alice\n  floe hub token ls")]
pub enum Token {
    /// Make a token for a user (a new user if need be) and print it, once
    #[command(after_help = "\
Example: the user keeps it for this hub
  floe login https://hub.example
Example: a script has it for this hub
  export FLOE_HUB=https://hub.example FLOE_TOKEN=$(floe hub token create ci)")]
    Create {
        /// The user
        user: String,
        #[command(flatten)]
        hub: Folder,
    },
    /// List users and how many tokens each has
    #[command(after_help = "Example:\n  floe hub token ls --json")]
    Ls {
        #[command(flatten)]
        hub: Folder,
    },
    /// Revoke all tokens of a user
    #[command(after_help = "Example:\n  floe hub token revoke alice")]
    Revoke {
        /// The user
        user: String,
        #[command(flatten)]
        hub: Folder,
    },
}

#[derive(Debug, Args)]
pub struct Folder {
    /// The hub's folder; by default hub/ in floe's state directory
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
}

impl Folder {
    fn path(self, cx: &Context) -> PathBuf {
        self.dir.unwrap_or_else(|| cx.home.hub())
    }
}

#[derive(serde::Serialize)]
struct CreatedToken {
    user: String,
    token: String,
}

#[derive(serde::Serialize)]
struct User {
    user: String,
    tokens: u64,
}

#[derive(serde::Serialize)]
struct Users {
    users: Vec<User>,
}

/// How much of something a user has, and may have.
#[derive(serde::Serialize)]
struct Share {
    used: u64,
    quota: u64,
    /// Whether the quota was set for this user and is not the default.
    set: bool,
}

#[derive(serde::Serialize)]
struct UserShares {
    user: String,
    bytes: Share,
    images: Share,
    traces: Share,
}

#[derive(serde::Serialize)]
struct Quotas {
    users: Vec<UserShares>,
}

#[derive(serde::Serialize)]
struct Revoked {
    user: String,
    revoked: usize,
}

/// Where a hub answers: what `hub serve` and `up` print first.
#[derive(serde::Serialize)]
pub struct Answers {
    /// Its address as a URL.
    pub url: String,
    /// The file that clients need with `--ca`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// SHA-256 of its certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

impl Answers {
    /// Returns this for a running hub.
    pub fn of(hub: &floe_hub::HubHandle) -> Answers {
        Answers {
            url: hub.url(),
            ca_file: hub.ca_file().map(Into::into),
            fingerprint: hub.fingerprint().map(Into::into),
        }
    }

    /// Returns this as text for people.
    pub fn text(&self) -> String {
        let mut text = format!("hub answers on {}\n", self.url);
        if let Some(ca) = &self.ca_file {
            text += &format!("  clients use --ca {}\n", ca.display());
        }
        if let Some(fingerprint) = &self.fingerprint {
            text += &format!("  certificate {fingerprint}\n");
        }
        text
    }
}

impl Hub {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        match self {
            Hub::Serve(serve) => serve.run(cx, None),
            Hub::Token(token) => token.run(cx),
            Hub::Quota(quota) => quota.run(cx),
        }
    }
}

impl Serve {
    /// Serves until a signal. `pool_bytes`: the memory for substrates, if it is a pool.
    pub(super) fn run(self, cx: &Context, pool_bytes: Option<u64>) -> Result<(), CliError> {
        init_logs(&LogOptions {
            json: self.log_json,
            verbosity: cx.verbose,
        });
        let mut options = HubOptions::new(self.dir.unwrap_or_else(|| cx.home.hub()), self.listen);
        options.tls = match (self.tls_cert, self.tls_key, self.tls) {
            (Some(cert), Some(key), _) => Tls::Files { cert, key },
            (_, _, TlsMode::SelfSigned) => Tls::SelfSigned {
                names: self.tls_name,
            },
            (_, _, TlsMode::Off) if !self.tls_name.is_empty() => {
                return Err(CliError::usage(
                    "--tls-name has no meaning without a self-signed certificate",
                    "add --tls self-signed",
                ));
            }
            _ => Tls::Off,
        };
        if self.private {
            options.anonymous = Anonymous::Denied;
        }
        options.anonymous_traces = self.anonymous_traces;
        options.pool_bytes = pool_bytes;
        let open = options.tls == Tls::Off && !options.listen.ip().is_loopback();
        floe_store::private::set_umask();
        let hub = floe_hub::serve(options)?;
        cx.out.announcement(&Answers::of(&hub), Answers::text);
        if open {
            eprintln!(
                "note: tokens and images cross the network in the clear; add --tls self-signed, or a proxy that does TLS"
            );
        }
        interrupt::wait_for_stop().map_err(|e| CliError::failed("cannot wait for signals", e))?;
        hub.shutdown();
        Ok(())
    }
}

impl QuotaArgs {
    fn run(self, cx: &Context) -> Result<(), CliError> {
        let dir = self.hub.path(cx);
        let wish = QuotaWish {
            bytes: self.bytes,
            images: self.images,
            traces: self.traces,
        };
        if let Some(user) = self
            .user
            .as_deref()
            .filter(|_| wish != QuotaWish::default())
        {
            floe_hub::set_quota(&dir, user, &wish)?;
        }
        let share = |used, quota, wish: Option<u64>| Share {
            used,
            quota,
            set: wish.is_some(),
        };
        let users: Vec<UserShares> = floe_hub::quotas(&dir)?
            .into_iter()
            .filter(|found| self.user.as_ref().is_none_or(|user| *user == found.user))
            .map(|found| UserShares {
                bytes: share(found.used.bytes, found.quota.bytes, found.wish.bytes),
                images: share(found.used.images, found.quota.images, found.wish.images),
                traces: share(found.traces, found.quota.traces, found.wish.traces),
                user: found.user,
            })
            .collect();
        if let Some(user) = self.user.filter(|_| users.is_empty()) {
            return Err(CliError::usage(
                format!("this hub has no user {user}"),
                "see `floe hub quota` for all; `floe hub token create NAME` makes one",
            ));
        }
        cx.out.value(&Quotas { users }, |list| {
            let of = |share: &Share, show: fn(u64) -> String| {
                format!("{} of {}", show(share.used), show(share.quota))
            };
            let row = |u: &UserShares| {
                vec![
                    u.user.clone(),
                    of(&u.bytes, bytes),
                    of(&u.images, |n| n.to_string()),
                    of(&u.traces, |n| n.to_string()),
                ]
            };
            let titles = ["USER", ">STORED", ">IMAGES", ">TRACES"];
            table(&titles, list.users.iter().map(row))
        })
    }
}

impl Token {
    fn run(self, cx: &Context) -> Result<(), CliError> {
        match self {
            Token::Create { user, hub } => {
                let token = floe_hub::create_token(&hub.path(cx), &user)?;
                cx.out
                    .value(&CreatedToken { user, token }, |t| format!("{}\n", t.token))
            }
            Token::Ls { hub } => {
                let users = floe_hub::users(&hub.path(cx))?;
                let users = users
                    .into_iter()
                    .map(|(user, tokens)| User { user, tokens })
                    .collect();
                cx.out.value(&Users { users }, |list| {
                    let row = |u: &User| vec![u.user.clone(), u.tokens.to_string()];
                    table(&["USER", ">TOKENS"], list.users.iter().map(row))
                })
            }
            Token::Revoke { user, hub } => {
                let revoked = floe_hub::revoke_tokens(&hub.path(cx), &user)?;
                cx.out.value(&Revoked { user, revoked }, |r| {
                    format!("{} tokens of {} revoked\n", r.revoked, r.user)
                })
            }
        }
    }
}
