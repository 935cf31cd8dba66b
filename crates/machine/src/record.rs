//! What is written down of a running machine, so that a later process can take it over.

use std::io::Write;
use std::path::{Path, PathBuf};

use floe_image::MachineConfig;
use serde::{Deserialize, Serialize};

use crate::accel::Accel;
use crate::command::RamBacking;
use crate::error::MachineError;
use crate::exec::User;
use crate::process::ProcessId;
use crate::spec::PortForward;

/// The record's name in the machine's directory.
pub const FILE: &str = "machine.json";
/// The only version so far.
const VERSION: u32 = 1;
/// Largest record that is read.
const BYTES_MAX: u64 = 1 << 20;

/// A running machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// Its name.
    pub name: String,
    /// Its QEMU.
    pub process: ProcessId,
    /// What the guest sees, complete.
    pub config: MachineConfig,
    /// Where its RAM is.
    pub ram: RamBacking,
    /// Where the memory blocks are that were added to it, or to the machine that it was captured from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<RamBacking>,
    /// Devices that the guest was asked to let go and perhaps has not yet, by their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removing: Vec<String>,
    /// Its disks' files.
    pub disks: Vec<PathBuf>,
    /// Its forwards, as of the last change.
    pub forwards: Vec<PortForward>,
    /// How its instructions are run.
    pub accel: Accel,
    /// Its own user.
    pub user: Option<User>,
}

impl Record {
    /// A new record.
    pub(crate) fn new(
        spec: &crate::spec::Spec,
        config: MachineConfig,
        ram: RamBacking,
        blocks: Vec<RamBacking>,
        process: ProcessId,
    ) -> Record {
        Record {
            version: VERSION,
            name: spec.name.clone(),
            process,
            config,
            ram,
            blocks,
            removing: Vec::new(),
            disks: spec.disks.clone(),
            forwards: spec.forwards.clone(),
            accel: spec.accel.clone(),
            user: spec.user,
        }
    }

    /// Read the record of the machine in `dir`.
    pub fn load(dir: &Path) -> Result<Record, MachineError> {
        let not = |reason: String| MachineError::NotAdoptable {
            dir: dir.into(),
            reason,
        };
        let path = dir.join(FILE);
        let size = std::fs::metadata(&path)
            .map_err(|e| not(format!("{FILE}: {e}")))?
            .len();
        if size > BYTES_MAX {
            return Err(not(format!(
                "{FILE} has {size} bytes, more than {BYTES_MAX}"
            )));
        }
        let bytes = std::fs::read(&path).map_err(|e| not(format!("{FILE}: {e}")))?;
        let record: Record =
            serde_json::from_slice(&bytes).map_err(|e| not(format!("{FILE}: {e}")))?;
        if record.version != VERSION {
            return Err(not(format!(
                "{FILE} is of version {}, this floe knows {VERSION}: use a newer floe",
                record.version
            )));
        }
        Ok(record)
    }

    /// Write it so that a reader sees the old or the new one whole.
    pub(crate) fn save(&self, dir: &Path) -> Result<(), MachineError> {
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::Builder::new()
                .prefix(".machine")
                .tempfile_in(dir)?;
            file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            file.persist(dir.join(FILE)).map_err(|e| e.error)?;
            Ok(())
        };
        write().map_err(MachineError::io(format!(
            "write {}",
            dir.join(FILE).display()
        )))
    }
}
