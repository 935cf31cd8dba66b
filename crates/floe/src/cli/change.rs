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
#[command(after_help = "Example:\n  floe disk ls web\n  floe disk resize web disk0 20G")]
pub enum DiskCommand {
    /// List a machine's disks with their sizes
    #[command(after_help = "Example:\n  floe disk ls web")]
    Ls {
        /// The machine
        machine: String,
    },
    /// Make a disk larger, while its machine runs or is stopped
    #[command(after_help = "\
Example: then let the guest's partition and file system grow into it
  floe disk resize web disk0 20G
  floe exec web -- growpart /dev/vda 1 && floe exec web -- resize2fs /dev/vda1

The guest sees the new size at once. Disks of the models sata, ide and nvme can't tell it of one: such a machine is stopped
first. A later capture has the new size too. A disk is never made smaller: what is at its end would be lost.")]
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
        match self {
            DiskCommand::Ls { machine } => cx.out.value(&client.disks(&machine)?, disks),
            DiskCommand::Resize {
                machine,
                disk,
                size,
            } => {
                let request = ResizeRequest { disk, bytes: size };
                let list = client.resize_disk(&machine, &request)?;
                cx.out.value(&list, |list| {
                    disks(list) + &in_the_guest(&machine, &request.disk)
                })
            }
        }
    }
}

/// Says what is left to do in the guest of a disk that has become larger.
fn in_the_guest(machine: &str, disk: &str) -> String {
    let number: Option<u8> = disk.strip_prefix("disk").and_then(|n| n.parse().ok());
    let letter = number
        .and_then(|n| (b'a'..=b'z').nth(n.into()))
        .map(char::from);
    let device = format!("/dev/vd{}", letter.unwrap_or('a'));
    format!(
        "\nNow the guest's partition and file system can grow into it, such as ext4 on the first partition:\n  \
         floe exec {machine} -- growpart {device} 1\n  floe exec {machine} -- resize2fs {device}1\n"
    )
}

fn disks(list: &DiskList) -> String {
    let row =
        |disk: &floe_api::DiskInfo| vec![disk.name.clone(), bytes(disk.bytes), short(&disk.image)];
    let rows: Vec<_> = list.disks.iter().map(row).collect();
    table(&["DISK", ">SIZE", "STANDS ON"], &rows)
}
