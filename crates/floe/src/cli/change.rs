//! Commands that change a machine that exists: rename, disk.

use clap::{Args, Subcommand};

use super::error::CliError;
use super::output::{bytes, short, table};
use super::{Context, args};
use floe_api::{DiskInfo, DiskList, DiskModel, ResizeRequest, TrimReport};

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
        /// The disk: disk0, disk1 ..., or the name that it was given
        disk: String,
        /// Its new size, such as 20G
        #[arg(value_parser = args::size)]
        size: u64,
    },
    /// Have a machine's guest give back what it does not use of its disks
    #[command(after_help = "\
Example: after much was deleted in it
  floe disk trim web

Needs floe's agent in the guest. The node asks the guests of machines that run once a day by itself, when they are quiet; floe node
--no-trim switches that off, floe limit --trim off for one machine.")]
    Trim {
        /// The machine
        machine: String,
    },
}

impl DiskCommand {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        match self {
            DiskCommand::Ls { machine } => cx.out.value(&client.disks(&machine)?, disks),
            DiskCommand::Trim { machine } => cx
                .out
                .value(&client.trim(&machine)?, |done| trimmed(&machine, done)),
            DiskCommand::Resize {
                machine,
                disk,
                size,
            } => {
                let request = ResizeRequest { disk, bytes: size };
                let list = client.resize_disk(&machine, &request)?;
                cx.out.value(&list, |list| {
                    disks(list) + &in_the_guest(&machine, &request.disk, list)
                })
            }
        }
    }
}

fn trimmed(machine: &str, done: &TrimReport) -> String {
    let mut text = match done.places {
        0 => format!("no file system in {machine} can tell its disk what it does not use\n"),
        _ => format!(
            "{machine} takes {} less on this host: its guest told of {} that it does not use\n",
            bytes(done.freed_bytes),
            bytes(done.bytes)
        ),
    };
    for refused in &done.refused {
        text += &format!("  not done: {refused}\n");
    }
    text
}

/// Says what is left to do in the guest of a disk that has become larger.
fn in_the_guest(machine: &str, disk: &str, list: &DiskList) -> String {
    let named = list
        .disks
        .iter()
        .find(|known| known.alias.as_deref() == Some(disk));
    let disk = named.map_or(disk, |known| known.name.as_str());
    let Some((device, partition)) = device(disk, list) else {
        return "\nNow the guest's partition and file system can grow into it.\n".to_owned();
    };
    format!(
        "\nNow the guest's partition and file system can grow into it, such as ext4 on the first partition:\n  \
         floe exec {machine} -- growpart {device} 1\n  floe exec {machine} -- resize2fs {partition}\n"
    )
}

/// Returns what Linux calls a disk, and the first partition on it: disks of one kind are counted in their order.
fn device(disk: &str, list: &DiskList) -> Option<(String, String)> {
    let of = |disk: &DiskInfo| Some((disk.name.strip_prefix("disk")?.parse().ok()?, disk.model?));
    let mut known: Vec<(u32, DiskModel)> = list.disks.iter().filter_map(of).collect();
    known.sort_by_key(|(number, _)| *number);
    let number: u32 = disk.strip_prefix("disk")?.parse().ok()?;
    let kind = |model: DiskModel| match model {
        DiskModel::Virtio => "vd",
        DiskModel::Scsi | DiskModel::Sata | DiskModel::Ide => "sd",
        DiskModel::Nvme => "nvme",
    };
    let model = known.iter().find(|(known, _)| *known == number)?.1;
    let before = known
        .iter()
        .filter(|(known, other)| *known < number && kind(*other) == kind(model))
        .count();
    if model == DiskModel::Nvme {
        let name = format!("/dev/nvme{before}n1");
        return Some((name.clone(), format!("{name}p1")));
    }
    let letter = char::from((b'a'..=b'z').nth(before)?);
    let name = format!("/dev/{}{letter}", kind(model));
    Some((name.clone(), format!("{name}1")))
}

fn disks(list: &DiskList) -> String {
    let name = |disk: &DiskInfo| disk.alias.clone().unwrap_or_default();
    let row = |disk: &DiskInfo| {
        vec![
            disk.name.clone(),
            name(disk),
            bytes(disk.bytes),
            short(&disk.image),
        ]
    };
    let rows = list.disks.iter().map(row);
    table(&["DISK", "NAME", ">SIZE", "STANDS ON"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_the_name_that_linux_gives_it() {
        let disk = |name: &str, model| DiskInfo {
            name: name.into(),
            bytes: 1 << 30,
            alias: None,
            image: String::new(),
            model,
        };
        let list = DiskList {
            disks: vec![
                disk("disk10", Some(DiskModel::Nvme)),
                disk("disk0", Some(DiskModel::Scsi)),
                disk("disk1", Some(DiskModel::Virtio)),
                disk("disk2", Some(DiskModel::Scsi)),
                disk("disk3", Some(DiskModel::Virtio)),
                disk("disk4", None),
            ],
        };
        for (disk, name, partition) in [
            ("disk0", "/dev/sda", "/dev/sda1"),
            ("disk1", "/dev/vda", "/dev/vda1"),
            ("disk2", "/dev/sdb", "/dev/sdb1"),
            ("disk3", "/dev/vdb", "/dev/vdb1"),
            ("disk10", "/dev/nvme0n1", "/dev/nvme0n1p1"),
        ] {
            assert_eq!(device(disk, &list), Some((name.into(), partition.into())));
        }
        assert_eq!(device("disk4", &list), None);
        assert!(in_the_guest("web", "disk2", &list).contains("growpart /dev/sdb 1"));
    }
}
