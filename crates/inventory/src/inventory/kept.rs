//! What is kept of a machine in its directory: its record, and when it was paused.

use super::{pauses::Pauses, record::Record};
use floe_ground::{
    error::{NodeError, at, failed},
    files::{read_bounded, replace_file, replace_file_soon},
};
use std::path::Path;

/// Name of the record in a machine's directory.
pub const RECORD_FILE: &str = "machine.json";
/// Largest record that is read, in bytes: a hundred times the size of one with the longest lists.
const RECORD_BYTES_MAX: u64 = 4 << 20;

impl Record {
    /// Reads the record in a machine's directory.
    pub fn load(dir: &Path) -> Result<Record, NodeError> {
        let path = dir.join(RECORD_FILE);
        let shown = path.display();
        let bytes =
            read_bounded(&path, RECORD_BYTES_MAX).map_err(at(format!("cannot read {shown}")))?;
        Record::parse(&bytes).map_err(|why| {
            failed(
                format!("{shown} is no machine's record: {why}"),
                "restore the file from a backup, or remove the machine's directory",
            )
        })
    }

    /// Writes the record atomically, and waits until it is on the disk.
    pub fn save(&self, dir: &Path) -> Result<(), NodeError> {
        replace_file(&dir.join(RECORD_FILE), &self.bytes())
    }

    /// Does the same without waiting for the disk: for a machine that does not survive a power cut anyway.
    pub fn save_soon(&self, dir: &Path) -> Result<(), NodeError> {
        replace_file_soon(&dir.join(RECORD_FILE), &self.bytes())
    }
}

/// Name of the file with the times at which a machine was paused for buffering.
const PAUSES_FILE: &str = "pauses.json";

impl Pauses {
    /// Writes when the machine in `dir` was paused, without a pause under way.
    pub fn save(&self, dir: &Path) -> Result<(), NodeError> {
        let bytes = serde_json::to_vec(&self.over).expect("numbers");
        replace_file(&dir.join(PAUSES_FILE), &bytes)
    }

    /// Reads what [`Pauses::save`] wrote; returns none if it can't be read, which only makes a trace less useful.
    pub fn load(dir: &Path) -> Pauses {
        let read = read_bounded(&dir.join(PAUSES_FILE), RECORD_BYTES_MAX);
        let over = read
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Pauses::after(over.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::sample_record as record;
    use std::fs;

    #[test]
    fn pauses_come_back_and_damaged_ones_are_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Pauses::load(dir.path()), Pauses::default());
        let pauses = Pauses::after(vec![(1, 2), (3, 4)]);
        pauses.save(dir.path()).unwrap();
        assert_eq!(Pauses::load(dir.path()), pauses);
        fs::write(dir.path().join(PAUSES_FILE), b"[[1").unwrap();
        assert_eq!(Pauses::load(dir.path()), Pauses::default());
    }

    #[test]
    fn a_record_comes_back_as_it_was_and_only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        record().save(dir.path()).unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), record());
        let mode = fs::metadata(dir.path().join(RECORD_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_interrupted_write_leaves_the_old_record() {
        let dir = tempfile::tempdir().unwrap();
        record().save(dir.path()).unwrap();
        fs::write(dir.path().join("machine.json.tmp"), b"{\"versi").unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), record());
    }
}
