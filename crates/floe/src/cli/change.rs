//! Commands that change a machine that exists: rename, disk.

use clap::{Args, Subcommand};

use super::error::CliError;
use super::output::{bytes, short, table};
use super::{Context, args};
use floe_api::{DiskList, ResizeRequest};

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

/// A machine's disks
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Example:\n  floe disk ls web\n  floe stop web && floe disk resize web disk0 20G && floe start web"
)]
pub enum DiskCommand {
    /// List a machine's disks with their sizes
    #[command(after_help = "Example:\n  floe disk ls web")]
    Ls {
        /// The machine
        machine: String,
    },
    /// Make a disk of a stopped machine larger
    #[command(after_help = "\
Example: then let the guest's partition and file system grow into it
  floe stop web && floe disk resize web disk0 20G && floe start web
  floe exec web -- growpart /dev/vda 1 && floe exec web -- resize2fs /dev/vda1

A later capture has the new size too. A disk is never made smaller: what is at its end would be lost.")]
    Resize {
        /// The machine
        machine: String,
        /// The disk: disk0, disk1 ...
        disk: String,
        /// Its new size, such as 20G
        #[arg(value_parser = args::size)]
        size: u64,
    },
}

impl DiskCommand {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        let list = match self {
            DiskCommand::Ls { machine } => client.disks(&machine)?,
            DiskCommand::Resize {
                machine,
                disk,
                size,
            } => client.resize_disk(&machine, &ResizeRequest { disk, bytes: size })?,
        };
        cx.out.value(&list, disks)
    }
}

fn disks(list: &DiskList) -> String {
    let row =
        |disk: &floe_api::DiskInfo| vec![disk.name.clone(), bytes(disk.bytes), short(&disk.image)];
    let rows: Vec<_> = list.disks.iter().map(row).collect();
    table(&["DISK", ">SIZE", "STANDS ON"], &rows)
}
