//! Upkeep of the catalogue: a backup copy for when it can't be read, and the list of damaged packs.

use super::HubError;
use super::catalogue::{Catalogue, Rows, hash};
use floe_image::Hash;
use std::path::Path;

impl Catalogue {
    /// Copies the whole catalogue to a file, atomically.
    pub fn copy_to(&self, path: &Path) -> Result<(), HubError> {
        let failed = |what| HubError::file(what, path);
        let folder = path.parent().unwrap_or(Path::new("."));
        let work = tempfile::TempDir::new_in(folder).map_err(failed("cannot copy to"))?;
        let copy = work.path().join("copy");
        let name = copy.to_string_lossy();
        self.db.lock().execute("VACUUM INTO ?1", [&*name])?;
        let moved = || {
            std::fs::File::open(&copy)?.sync_all()?;
            std::fs::rename(&copy, path)?;
            std::fs::File::open(folder)?.sync_all()
        };
        moved().map_err(failed("cannot copy to"))
    }

    /// Records whether a pack is damaged.
    pub fn note_damaged(&self, pack: &Hash, damaged: bool) -> Rows<()> {
        let change = match damaged {
            true => "INSERT OR IGNORE INTO damaged VALUES (?1)",
            false => "DELETE FROM damaged WHERE pack = ?1",
        };
        self.change(|db| db.execute(change, [pack.as_bytes()]))?;
        Ok(())
    }

    /// Returns the packs that were found damaged and not yet replaced.
    pub fn damaged_packs(&self) -> Rows<Vec<Hash>> {
        let db = self.reads.lock();
        let mut rows = db.prepare("SELECT pack FROM damaged")?;
        let rows = rows.query_map([], |row| hash(row, 0))?;
        rows.collect()
    }
}
