//! `floe mount`, `floe unmount` and `floe cache ...`: state on this host.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::error::CliError;
use super::outcome::verified;
use super::output::{bytes, fields, short, table};
use super::{Context, args};

/// Show an image's regions as plain files, for any VMM or tool
#[derive(Debug, Args)]
#[command(after_help = "\
Example: look into a disk without a machine
  floe mount debian-booted /mnt
  ls -l /mnt          # ram, disk0, device ...
  floe unmount /mnt
Example: what is mounted
  floe mount")]
pub struct Mount {
    /// A local image or the address of one; without it, the command lists what is mounted
    #[arg(requires = "dir")]
    image: Option<String>,
    /// An empty directory
    dir: Option<PathBuf>,
    #[command(flatten)]
    access: super::login::Access,
}

impl Mount {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        let (Some(image), Some(dir)) = (self.image, self.dir) else {
            return cx.out.value(&client.mounts()?, |list| {
                let row = |m: &floe_api::MountInfo| vec![short(&m.image), m.path.clone()];
                table(&["IMAGE", "DIRECTORY"], list.mounts.iter().map(row))
            });
        };
        let from = args::image(&image)?;
        let request = floe_api::MountRequest {
            token: self.access.token_for(&from)?,
            image: from,
            path: args::existing(&dir)?,
            ca: self.access.ca()?,
        };
        let mount = client.mount(&request)?;
        cx.out.value(&mount, |m| {
            format!("{image} ({}) is at {}\n", short(&m.image), m.path)
        })
    }
}

/// Remove an image's view from a directory
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  floe unmount /mnt")]
pub struct Unmount {
    /// The directory
    dir: PathBuf,
}

impl Unmount {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        // The path is not canonicalised, because that would access the mount, which may hang.
        cx.client()?.unmount(&args::absolute(&self.dir)?)?;
        cx.out
            .acknowledge(&format!("{} is unmounted", self.dir.display()))
    }
}

/// The local cache of chunks, shared by all images and machines
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  floe cache ls\n  floe cache gc")]
pub enum Cache {
    /// Show how full the cache is
    #[command(after_help = "Example:\n  floe cache ls --json")]
    Ls,
    /// Remove what no image and no machine needs
    #[command(after_help = "Example:\n  floe image rm old && floe cache gc")]
    Gc,
    /// Read all of the cache and check every hash; damaged chunks are dropped and fetched again when needed
    #[command(after_help = "Example:\n  floe cache verify")]
    Verify,
}

impl Cache {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let client = cx.client()?;
        match self {
            Cache::Ls => cx.out.value(&client.cache()?, describe)?,
            Cache::Gc => cx.out.value(&client.cache_gc()?, |f| {
                format!("{} freed\n", bytes(f.freed_bytes))
            })?,
            Cache::Verify => return verified(cx, client.cache_verify()?),
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn describe(c: &floe_api::CacheInfo) -> String {
    let reads = c.hits.saturating_add(c.misses);
    let percent = (c.hits as f64 / reads.max(1) as f64) * 100.0;
    fields(&[
        ("path", c.path.clone()),
        (
            "used",
            format!("{} of {}", bytes(c.used_bytes), bytes(c.budget_bytes)),
        ),
        (
            "pinned",
            format!("{} by running machines", bytes(c.pinned_bytes)),
        ),
        ("chunks", c.chunks.to_string()),
        (
            "hits",
            format!("{} of {reads} reads ({percent:.1} %)", c.hits),
        ),
    ])
}
