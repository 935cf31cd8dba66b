//! The record of a running machine, by which a later process can take it over.

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

/// The record's file name in the machine's directory.
pub const FILE: &str = "machine.json";
/// The record's format version; there has been only one.
const VERSION: u32 = 1;
/// Largest record that is read, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// The record of a running machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// The machine's name.
    pub name: String,
    /// Its QEMU process.
    pub process: ProcessId,
    /// The complete configuration that the guest sees.
    pub config: MachineConfig,
    /// What holds its RAM.
    pub ram: RamBacking,
    /// What holds the memory blocks that were added to it, or to the machine that it was captured from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<RamBacking>,
    /// Ids of devices that the guest was asked to release and has perhaps not yet released.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removing: Vec<String>,
    /// Files of its disks.
    pub disks: Vec<PathBuf>,
    /// Its port forwards, as of the last change.
    pub forwards: Vec<PortForward>,
    /// How its instructions are executed.
    pub accel: Accel,
    /// The user that its QEMU runs as, if it has one of its own.
    pub user: Option<User>,
}

impl Record {
    /// Makes the record of a new machine.
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

    /// Reads the record of the machine in `dir`.
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

    /// Writes the record atomically: a reader sees either the old or the new one.
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
