//! The record of a running machine, by which a later process can take it over.

use std::fs::File;
use std::io::{self, Read, Write};
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
/// The file in that directory that identifies QEMU's process. It exists before QEMU does, whereas the record is written when QEMU
/// answers.
pub(crate) const PROCESS: &str = "qemu.json";
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

/// What a file tells of a machine's QEMU.
pub(crate) enum Told {
    /// There is no file.
    Nothing,
    /// It can't be understood.
    Damaged,
    /// QEMU is this process, or was.
    Process(ProcessId),
}

/// Returns what QEMU wrote down of itself in `dir` before it began.
pub(crate) fn announced_in(dir: &Path) -> Result<Told, MachineError> {
    told(&dir.join(PROCESS), |bytes| {
        serde_json::from_slice(bytes).ok()
    })
}

/// Returns which process the record in `dir` names, whatever the record's version.
pub(crate) fn recorded_in(dir: &Path) -> Result<Told, MachineError> {
    #[derive(Deserialize)]
    struct Named {
        process: ProcessId,
    }
    told(&dir.join(FILE), |bytes| {
        let named: Option<Named> = serde_json::from_slice(bytes).ok();
        named.map(|named| named.process)
    })
}

fn told(
    path: &Path,
    process: impl FnOnce(&[u8]) -> Option<ProcessId>,
) -> Result<Told, MachineError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Told::Nothing),
        Err(error) => Err(MachineError::io(format!("read {}", path.display()))(error)),
        Ok(_) => Ok(process(&bytes).map_or(Told::Damaged, Told::Process)),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Machine, Process};

    #[test]
    fn a_qemu_whose_records_can_not_be_read_is_not_taken_for_one_that_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = || Machine::process_in(dir.path());
        assert!(in_dir().unwrap().is_none());
        let own = Process::hold(std::process::id()).unwrap().id();
        for file in ["machine.json", "qemu.json"] {
            let path = dir.path().join(file);
            std::os::unix::fs::symlink(&path, &path).unwrap();
            let told = in_dir().unwrap_err().to_string();
            assert!(told.contains(file), "{told}");
            std::fs::remove_file(&path).unwrap();
            // cut off by a power cut, after which no QEMU runs
            std::fs::write(&path, "").unwrap();
            assert!(in_dir().unwrap().is_none());
            let id = serde_json::json!({"pid": own.pid, "start_ticks": own.start_ticks});
            let whole = match file {
                "qemu.json" => id,
                _ => serde_json::json!({"version": 9, "process": id}),
            };
            std::fs::write(&path, whole.to_string()).unwrap();
            assert_eq!(in_dir().unwrap().unwrap().id(), own);
            std::fs::remove_file(&path).unwrap();
        }
    }
}
