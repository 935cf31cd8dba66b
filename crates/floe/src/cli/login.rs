//! `floe login` and `floe logout`, and the choice of the token that a command sends to a hub.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::output::table;
use super::{Context, args};
use floe_api::ErrorCode;
use floe_api::credentials::{Credentials, HubAddress, Kept, TOKEN_CHARACTERS_MAX, check_token};
use floe_node::transfer::{Cancel, HubClient, TransferError};

/// How long a login waits for the hub.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);
/// The variable that holds a token for the hub that [`HUB`] names.
const TOKEN: &str = "FLOE_TOKEN";
/// The variable that names the hub that [`TOKEN`] is for.
const HUB: &str = "FLOE_HUB";

/// Options for the token that a hub gets.
#[derive(Clone, Debug, Args)]
pub struct TokenArgs {
    /// Token for the hub that this command names, instead of the one of floe login or of FLOE_TOKEN with FLOE_HUB. Other users
    /// of this host can see it in the list of processes
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Send the token to http:// on another host, where everybody on the way can read it
    #[arg(long, env = "FLOE_INSECURE_TOKEN", value_parser = clap::builder::FalseyValueParser::new())]
    pub insecure_token: bool,
}

/// How the one hub that a command names is spoken to.
#[derive(Clone, Debug, Args)]
pub struct Access {
    #[command(flatten)]
    tokens: TokenArgs,
    /// File with the certificate authority of a hub that made its own certificate
    #[arg(long, env = "FLOE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl Access {
    /// Returns the token for the hub that a command names.
    pub fn token_for(&self, address: &str) -> Result<Option<String>, CliError> {
        Ok(self.tokens.tokens_for([address])?.into_values().next())
    }

    /// Returns the absolute path of the file with a hub's authority.
    pub fn ca(&self) -> Result<Option<String>, CliError> {
        self.ca.as_deref().map(args::existing).transpose()
    }
}

impl TokenArgs {
    /// Returns the token for each hub that a command names.
    pub fn tokens_for<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a str>,
    ) -> Result<BTreeMap<String, String>, CliError> {
        let mut tokens = BTreeMap::new();
        let mut given = self.token.as_deref();
        if let Some(token) = given {
            check_token(token)
                .map_err(|why| CliError::usage(format!("--token: {why}"), NO_TOKEN))?;
        }
        let kept = Credentials::file();
        for hub in addresses.into_iter().filter_map(HubAddress::of) {
            if tokens.contains_key(hub.as_str()) {
                continue;
            }
            // a token on the command line is for the first hub that the command names
            let found = match given.take() {
                Some(token) => Some(Kept {
                    token: token.to_owned(),
                    insecure: false,
                }),
                None => match of_environment(&hub)? {
                    None => kept_for(kept.as_deref(), &hub)?,
                    found => found,
                },
            };
            let Some(found) = found else {
                continue;
            };
            if !hub.is_safe() && !self.insecure_token && !found.insecure {
                return Err(in_the_clear(&hub));
            }
            tokens.insert(hub.to_string(), found.token);
        }
        Ok(tokens)
    }
}

const NO_TOKEN: &str =
    "leave it out for what is public, or give the one that `floe hub token create` printed";

fn in_the_clear(hub: &HubAddress) -> CliError {
    CliError::new(
        ErrorCode::Refused,
        format!(
            "the token for {hub} would cross the network in the clear, for everybody on the way to read"
        ),
        "use the hub's https:// address, or send it all the same with --insecure-token (FLOE_INSECURE_TOKEN=1)",
    )
}

/// Returns the token of the environment if it is for this hub. A token without a hub is an error: it used to be sent to
/// whatever server a command named.
fn of_environment(hub: &HubAddress) -> Result<Option<Kept>, CliError> {
    let variable = |name: &str| match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(CliError::usage(
            format!("{name}: {error}"),
            "set it to text",
        )),
    };
    let Some(token) = variable(TOKEN)? else {
        return Ok(None);
    };
    check_token(&token).map_err(|why| {
        CliError::usage(
            format!("{TOKEN} is set, but {why}"),
            format!("unset {TOKEN}, or set it to a hub's token"),
        )
    })?;
    let Some(named) = variable(HUB)?.filter(|named| !named.is_empty()) else {
        return Err(CliError::usage(
            format!("{TOKEN} is set, but not for which hub, so it is not sent to {hub}"),
            format!(
                "set {HUB}={hub} as well, or keep the token with `floe login {hub}` and unset {TOKEN}"
            ),
        ));
    };
    let named = HubAddress::of(&named).ok_or_else(|| {
        CliError::usage(
            format!("{HUB}={named} is no hub's address"),
            format!("set it to the hub that {TOKEN} is for, such as https://hub.example"),
        )
    })?;
    Ok((named == *hub).then_some(Kept {
        token,
        insecure: false,
    }))
}

fn kept_for(file: Option<&Path>, hub: &HubAddress) -> Result<Option<Kept>, CliError> {
    let Some(file) = file else {
        return Ok(None);
    };
    Ok(load(file)?.get(hub).cloned())
}

fn load(file: &Path) -> Result<Credentials, CliError> {
    Credentials::load(file).map_err(|error| {
        let fix = "repair the file, or remove it and `floe login` again";
        CliError::new(
            ErrorCode::Failed,
            format!("cannot read {}: {error}", file.display()),
            fix,
        )
    })
}

fn file() -> Result<PathBuf, CliError> {
    Credentials::file().ok_or_else(|| {
        CliError::usage(
            "there is no place for a user's credentials",
            "set HOME or XDG_CONFIG_HOME",
        )
    })
}

fn save(credentials: &mut Credentials, file: &Path) -> Result<(), CliError> {
    credentials
        .save(file)
        .map_err(|e| CliError::file("write", file, e))
}

fn hub_of(address: &str) -> Result<HubAddress, CliError> {
    HubAddress::of(address).ok_or_else(|| {
        CliError::usage(
            format!("{address:?} is no hub's address"),
            "write for example https://hub.example:4500",
        )
    })
}

/// Keep a token for a hub, so that commands that name this hub send it, and only to it
#[derive(Debug, Args)]
#[command(after_help = "\
Example: the token is asked for, or read from standard input
  floe login https://hub.example
  floe login https://hub.example < token
Example: what is kept
  floe login --list

It is kept in floe/credentials.json in $XDG_CONFIG_HOME or ~/.config, readable by you only. The hub of floe up on this host
needs no login: the node knows its token.")]
pub struct Login {
    /// The hub's address
    #[arg(required_unless_present = "list")]
    hub: Option<String>,
    /// List the hubs that have a token
    #[arg(long, conflicts_with = "hub")]
    list: bool,
    /// Keep the token without asking the hub whether it is valid
    #[arg(long)]
    unchecked: bool,
    /// Send the token to http:// on another host, now and by later commands; everybody on the way can read it
    #[arg(long, env = "FLOE_INSECURE_TOKEN", value_parser = clap::builder::FalseyValueParser::new())]
    insecure_token: bool,
    /// File with the certificate authority of a hub that made its own certificate
    #[arg(long, env = "FLOE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Forget the token of a hub
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe logout https://hub.example

The token stays good for who has a copy: floe hub token revoke ends it on the hub.")]
pub struct Logout {
    /// The hub's address
    hub: String,
}

#[derive(Serialize)]
struct Entry {
    hub: HubAddress,
    insecure: bool,
}

#[derive(Serialize)]
struct Entries {
    hubs: Vec<Entry>,
}

#[derive(Serialize)]
struct LoggedIn {
    hub: HubAddress,
    file: PathBuf,
}

impl Login {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let file = file()?;
        let mut credentials = load(&file)?;
        let Some(address) = self.hub.as_deref() else {
            let entries = credentials.hubs().map(|(hub, kept)| Entry {
                hub: hub.clone(),
                insecure: kept.insecure,
            });
            let entries = Entries {
                hubs: entries.collect(),
            };
            return cx.out.value(&entries, |entries| {
                let how = |entry: &Entry| match entry.insecure {
                    true => "in the clear",
                    false => "",
                };
                let row = |entry: &Entry| vec![entry.hub.to_string(), how(entry).to_owned()];
                table(&["HUB", "SENT"], entries.hubs.iter().map(row))
            });
        };
        let hub = hub_of(address)?;
        if !hub.is_safe() && !self.insecure_token {
            return Err(in_the_clear(&hub));
        }
        let token = read_token(&hub)?;
        if !self.unchecked {
            ask(&hub, &token, self.ca.as_deref())?;
        }
        let kept = Kept {
            token,
            insecure: !hub.is_safe(),
        };
        credentials.put(hub.clone(), kept);
        save(&mut credentials, &file)?;
        cx.out.value(&LoggedIn { hub, file }, |done| {
            format!(
                "the token for {} is kept in {}\n",
                done.hub,
                done.file.display()
            )
        })
    }
}

/// Reads a token from standard input. At a terminal, it asks for the token and does not show what is typed.
fn read_token(hub: &HubAddress) -> Result<String, CliError> {
    let failed = |error: std::io::Error| CliError::failed("cannot read the token", error);
    let stdin = std::io::stdin();
    let terminal = stdin.is_terminal();
    let mut text = String::new();
    if terminal {
        let _ = write!(std::io::stderr(), "token for {hub}: ");
        super::interrupt::exit_on_signals(); // restores the echo on a signal
        let quiet = super::terminal::Raw::without_echo();
        let read = stdin.read_line(&mut text);
        drop(quiet);
        let _ = writeln!(std::io::stderr());
        read.map_err(failed)?;
    } else {
        let most = TOKEN_CHARACTERS_MAX as u64 + 64;
        stdin
            .lock()
            .take(most)
            .read_to_string(&mut text)
            .map_err(failed)?;
    }
    let token = text.trim();
    check_token(token)
        .map_err(|why| CliError::usage(why, "give the one that `floe hub token create` printed"))?;
    Ok(token.to_owned())
}

/// Asks the hub whether the token is valid.
fn ask(hub: &HubAddress, token: &str, ca: Option<&Path>) -> Result<(), CliError> {
    let cancel = Cancel::default();
    let client = HubClient::impatient(hub.as_str(), Some(token), ca, &cancel, ASK_TIMEOUT);
    let known = client.and_then(|client| client.images());
    known.map(drop).map_err(|error| {
        let (code, fix) = match &error {
            TransferError::Refused { .. } => (ErrorCode::Refused, "give a token of this hub"),
            TransferError::Unreachable { .. } => (
                ErrorCode::Unreachable,
                "check the address, or keep the token with --unchecked",
            ),
            _ => (ErrorCode::Failed, ""),
        };
        CliError::new(code, error.to_string(), fix)
    })
}

impl Logout {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let (file, hub) = (file()?, hub_of(&self.hub)?);
        let mut credentials = load(&file)?;
        if !credentials.remove(&hub) {
            return Err(CliError::new(
                ErrorCode::NotFound,
                format!("no token is kept for {hub}"),
                "see `floe login --list`",
            ));
        }
        save(&mut credentials, &file)?;
        cx.out
            .acknowledge(&format!("the token for {hub} is forgotten"))
    }
}
