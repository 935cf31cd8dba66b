//! `floe pool export` and `floe pool import`: substrates on their way between hosts.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use clap::Args;

use super::error::CliError;
use super::login::Access;
use super::output::bytes;
use super::pool_shown::Visible;
use super::{Context, args, progress};
use floe_api::{Outcome, SubstrateExportRequest, SubstrateImportRequest};

/// Ending of a file with a substrate.
const FILE_ENDING: &str = ".floe";

/// Send a substrate to a hub, a bucket or a directory, or write it to a file
#[derive(Debug, Args)]
#[command(after_help = "\
Example: to a file, and to another host without one
  floe pool export shop-web shop-web.floe
  floe pool export shop-web - | ssh other floe pool import - --as shop-web
Example: to a hub, which gets only what it lacks
  floe pool export shop-web https://hub.example
  floe pool import https://hub.example/shop-web --as shop-web      # on the other host

The whole substrate is sent: its own chunks, its base image's, who may see it, and what its machines forget. On a hub a public one can
be read by everybody, others by you only.")]
pub struct Export {
    /// The substrate
    pub(super) substrate: String,
    /// A file whose name ends with .floe, - for standard output, the address of a hub or bucket, or a directory
    pub(super) to: String,
    /// Overwrite an existing file
    #[arg(long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) access: Access,
}

/// Bring a substrate here that another host exported
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe pool import shop-web.floe --as shop-web
Example: from a hub; only what is not here is fetched
  floe pool import https://hub.example/shop-web --as shop-web

Every chunk is checked, and the substrate exists here only once all of it has arrived. You own it then. Who else may see it stays as it
was (users are matched by name) unless you say otherwise. Only a substrate whose machines forget their identity can be shared.")]
pub struct Import {
    /// A file, - for standard input, or the address of the substrate on a hub, in a bucket or in a directory
    from: String,
    /// Name of the substrate here
    #[arg(long = "as", value_name = "NAME")]
    called: String,
    #[command(flatten)]
    visible: Visible,
    #[command(flatten)]
    trust: args::TrustArgs,
    #[command(flatten)]
    access: Access,
}

fn told(cx: &Context, what: &str, outcome: &Outcome) -> Result<(), CliError> {
    let of = outcome.transfer.clone().unwrap_or_default();
    cx.out.text(&format!(
        "{what}: {} moved, {} were there\n",
        bytes(of.wire_bytes),
        bytes(of.skipped_bytes)
    ))
}

/// A file that the node and this command both reach, for what comes from or goes to a pipe.
fn between() -> Result<tempfile::NamedTempFile, CliError> {
    let file = tempfile::Builder::new().suffix(FILE_ENDING).tempfile();
    file.map_err(|e| CliError::file("make a temporary file in", &std::env::temp_dir(), e))
}

impl Export {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let pipe = match &*self.to {
            "-" => Some(between()?),
            _ => None,
        };
        let to = match &pipe {
            Some(file) => args::absolute(file.path())?,
            None if self.to.contains("://") => self.to.clone(),
            None => args::absolute(Path::new(&self.to))?,
        };
        let request = SubstrateExportRequest {
            token: self.access.token_for(&to)?,
            ca: self.access.ca()?,
            force: self.force || pipe.is_some(),
            to,
        };
        let client = cx.client()?;
        let events = client.export_substrate(&self.substrate, &request)?;
        let Some(file) = pipe else {
            let done = progress::follow(cx.out, events)?;
            let what = format!("exported {} to {}", self.substrate, self.to);
            return told(cx, &what, &done.outcome);
        };
        // standard output is for the substrate alone
        events.finish(|_| ())?;
        // the node has put another file in its place
        let copied = File::open(file.path()).and_then(|mut file| {
            let mut out = io::stdout().lock();
            io::copy(&mut file, &mut out)?;
            out.flush()
        });
        copied.map_err(|e| CliError::file("write to standard output from", file.path(), e))
    }
}

impl Export {
    /// Exports the substrate, and then removes it here.
    pub(super) fn and_remove(self, cx: &Context) -> Result<(), CliError> {
        let (substrate, to) = (self.substrate.clone(), self.to.clone());
        self.run(cx).map_err(|mut error| {
            let again =
                format!("{substrate} is in this node's pool: floe pool export {substrate} {to}");
            error.0.fix = match error.0.fix.is_empty() {
                true => again,
                false => format!("{}; {again}", error.0.fix),
            };
            error
        })?;
        cx.client()?.remove_substrate(&substrate)?;
        Ok(())
    }
}

impl Import {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let mut pipe = None;
        let from = match &*self.from {
            "-" => {
                let mut file = between()?;
                io::copy(&mut io::stdin().lock(), &mut file)
                    .and_then(|_| file.flush())
                    .map_err(|e| CliError::file("write", file.path(), e))?;
                let path = args::absolute(file.path())?;
                pipe = Some(file);
                path
            }
            from if from.contains("://") => from.to_owned(),
            from => args::absolute(Path::new(from))?,
        };
        let request = SubstrateImportRequest {
            name: self.called,
            token: self.access.token_for(&from)?,
            ca: self.access.ca()?,
            visibility: self.visible.asked(),
            users: self.visible.restricted,
            trust: self.trust.trust,
            from,
        };
        let done = progress::follow(cx.out, cx.client()?.import_substrate(&request)?);
        drop(pipe);
        told(cx, &format!("imported {}", request.name), &done?.outcome)
    }
}
