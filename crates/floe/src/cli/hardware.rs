//! Options of `floe run` and `floe image import` about a machine's hardware, and what cloud-init in its guest sets up. The node
//! decides what is possible; this only reads files.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;

use super::args;
use super::error::CliError;
use floe_api::{BootFirst, DiskModel, Firmware, Hardware, NetworkModel, SeedRequest};

/// Most bytes of a file that is sent to the node: more than the node takes of any.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Hardware of a machine that is started cold.
#[derive(Debug, Args)]
pub struct HardwareArgs {
    /// What starts the operating system: uefi keeps its variables in the machine and its captures
    #[arg(long, value_enum)]
    firmware: Option<Firmware>,
    /// How disks are connected. Windows has drivers for sata; sata and ide allow four disks; a machine with nvme can't be captured
    #[arg(long, value_enum)]
    disk_model: Option<DiskModel>,
    /// The network card. Windows has a driver for e1000
    #[arg(long, value_enum)]
    network_model: Option<NetworkModel>,
}

impl HardwareArgs {
    pub(super) fn hardware(&self) -> Hardware {
        Hardware {
            firmware: self.firmware,
            disk_model: self.disk_model,
            network_model: self.network_model,
        }
    }
}

/// A CD-ROM for a cold start.
#[derive(Debug, Args)]
pub struct CdromArgs {
    /// Give it a CD-ROM or DVD: a file of this host, of which the machine keeps a copy. It boots from it if its disks are empty
    #[arg(long, value_name = "FILE.iso")]
    cdrom: Option<PathBuf>,
    /// What it tries to boot first
    #[arg(long, value_enum)]
    boot: Option<BootFirst>,
}

impl CdromArgs {
    pub(super) fn file(&self) -> Result<Option<String>, CliError> {
        self.cdrom.as_deref().map(args::existing).transpose()
    }

    pub(super) fn first(&self) -> Option<BootFirst> {
        self.boot
    }
}

/// What cloud-init in the guest sets up.
#[derive(Debug, Args)]
pub struct SeedArgs {
    /// File for cloud-init in the guest: what to set up, beginning with #cloud-config, or with #! if it is a script
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
    /// File with more meta-data for cloud-init; what floe writes otherwise is added if it isn't in there
    #[arg(long, value_name = "FILE")]
    meta_data: Option<PathBuf>,
    /// File with the network's configuration for cloud-init
    #[arg(long, value_name = "FILE")]
    network_config: Option<PathBuf>,
    /// File with a public SSH key that may log in as the guest's default user (repeatable)
    #[arg(long, value_name = "FILE.pub")]
    ssh_key: Vec<PathBuf>,
    /// The guest's host name; by default the machine's name
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
}

impl SeedArgs {
    /// Reads the files; `None` if nothing is to be set up.
    pub(super) fn seed(&self) -> Result<Option<SeedRequest>, CliError> {
        let file = |path: &Option<PathBuf>| path.as_deref().map(text).transpose();
        let seed = SeedRequest {
            user_data: file(&self.user_data)?,
            meta_data: file(&self.meta_data)?,
            network_config: file(&self.network_config)?,
            ssh_keys: self
                .ssh_key
                .iter()
                .map(|path| text(path))
                .collect::<Result<_, _>>()?,
            hostname: self.hostname.clone(),
        };
        Ok(Some(seed).filter(|seed| *seed != SeedRequest::default()))
    }
}

/// Reads a small text file.
fn text(path: &Path) -> Result<String, CliError> {
    let read = || {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| CliError::file("read", path, error))?;
    let bad = |why: &str| {
        let what = format!("{} {why}", path.display());
        Err(CliError::usage(what, "check the path"))
    };
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return bad(&format!("has more than {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).or_else(|_| bad("is no text (UTF-8)"))
}
