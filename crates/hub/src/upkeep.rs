//! The catalogue's file: where it is, how it is made, opened and copied, and its list of damaged packs.
//!
//! Nothing but SQLite ever opens that file, nor the two beside it. A process that closes a file gives up all locks that it holds
//! on it (POSIX locks belong to the process, not to the open file), those of SQLite's connections too. Then the next command that
//! ends beside the hub believes that it is alone, and removes the write-ahead log under the hub, with every change that the
//! hub has acknowledged or will. So the path is known here only; a test over the source keeps it so.

use super::HubError;
use super::catalogue::{Catalogue, Rows, hash};
use super::disk::{entries, sync_folder};
use super::schema;
use floe_image::Hash;
use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, OpenFlags};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// The catalogue's file in the hub's folder.
const FILE: &str = "hub.db";
/// The copy of it, for when it can't be read.
const BACKUP: &str = "hub.db.backup";
/// How long a writer waits for another process's write to end.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

impl Catalogue {
    /// Opens the catalogue of the hub in `dir`; creates it if it is missing.
    pub fn open(dir: &Path) -> Result<Self, HubError> {
        let path = dir.join(FILE);
        check_not_lost(dir, &path)?;
        make(dir, &path)?;
        let (db, found) = open_current(&path).map_err(HubError::catalogue(&path))?;
        if found != schema::VERSION {
            return Err(HubError::CatalogueVersion {
                path,
                found,
                known: schema::VERSION,
            });
        }
        let catalogue = Catalogue {
            db: Mutex::new(db),
            reads: Mutex::new(connect(&path).map_err(HubError::catalogue(&path))?),
            holdings: RwLock::default(),
            stored: Mutex::default(),
            path,
        };
        catalogue.reload_holdings().map_err(catalogue.failed())?;
        Ok(catalogue)
    }

    /// Copies the whole catalogue to the file beside it, atomically.
    pub fn back_up(&self) -> Result<(), HubError> {
        let path = self.path.with_file_name(BACKUP);
        let failed = |what| HubError::file(what, &path);
        let folder = path.parent().unwrap_or(Path::new("."));
        let work = tempfile::TempDir::new_in(folder).map_err(failed("cannot copy to"))?;
        let copy = work.path().join("copy");
        // SQLite syncs the copy as it syncs the catalogue
        let name = copy.to_string_lossy();
        let copied = self.db.lock().execute("VACUUM INTO ?1", [&*name]);
        copied.map_err(self.failed())?;
        let moved = std::fs::rename(&copy, &path).and_then(|()| sync_folder(folder));
        moved.map_err(failed("cannot copy to"))
    }

    /// Records whether a pack is damaged.
    pub fn note_damaged(&self, pack: &Hash, damaged: bool) -> Rows<()> {
        let change = match damaged {
            true => "INSERT OR IGNORE INTO damaged VALUES (?1)",
            false => "DELETE FROM damaged WHERE pack = ?1",
        };
        self.change(|db| {
            db.execute(change, [pack.as_bytes()])?;
            if !damaged {
                // what replaced it may be compressed in another way
                db.execute(
                    "UPDATE packs SET root = NULL WHERE id = ?1",
                    [pack.as_bytes()],
                )?;
            }
            Ok(())
        })
    }

    /// Returns the packs that were found damaged and not yet replaced.
    pub fn damaged_packs(&self) -> Rows<Vec<Hash>> {
        let db = self.reads.lock();
        let mut rows = db.prepare("SELECT pack FROM damaged")?;
        let rows = rows.query_map([], |row| hash(row, 0))?;
        rows.collect()
    }
}

/// Returns an error if the catalogue is missing although there are images: the next start of the hub would remove them as litter,
/// also if a command had made an empty catalogue meanwhile.
fn check_not_lost(dir: &Path, path: &Path) -> Result<(), HubError> {
    let empty = match std::fs::metadata(path) {
        Ok(found) => found.len() == 0,
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        Err(error) => return Err(HubError::file("cannot look at", path)(error)),
    };
    let repo = dir.join("repo/images");
    let has_images = || match entries(&repo) {
        Err(HubError::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(false),
        found => found.map(|found| !found.is_empty()),
    };
    if empty && has_images()? {
        let path = path.to_owned();
        return Err(HubError::CatalogueLost { path, repo });
    }
    Ok(())
}

/// Makes an empty catalogue unless there is one. It is for this user alone; SQLite gives the files beside it the same mode. It gets its
/// name when nobody has it open, so that no locks are lost, and when it has its journal's kind, which several processes at once
/// cannot change.
fn make(dir: &Path, path: &Path) -> Result<(), HubError> {
    let failed = || HubError::file("cannot make", path);
    if path.try_exists().map_err(failed())? {
        return Ok(());
    }
    let file = tempfile::Builder::new().tempfile_in(dir);
    let file = file.map_err(failed())?.into_temp_path();
    connect(&file)
        .and_then(|db| db.pragma_update(None, "journal_mode", "WAL"))
        .map_err(HubError::catalogue(path))?;
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() != ErrorKind::AlreadyExists => Err(failed()(error.error)),
        _ => Ok(()), // made, by us or by another process meanwhile
    }
}

/// Opens the catalogue's file for changes, and brings its schema up to date. Also returns which version it has then.
fn open_current(path: &Path) -> Rows<(Connection, i64)> {
    let mut db = connect(path)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "foreign_keys", true)?;
    let version = schema::bring_up(&mut db)?;
    Ok((db, version))
}

fn connect(path: &Path) -> Rows<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    Ok(db)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_catalogue_names_its_file_and_what_to_do() {
        let told = |error: HubError, path: &Path| {
            let told = error.to_string();
            assert!(told.contains(&path.display().to_string()), "{told}");
            assert!(told.contains(BACKUP), "{told}");
        };
        // its log can't be opened
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        drop(Catalogue::open(dir.path()).unwrap());
        std::fs::create_dir(dir.path().join("hub.db-wal")).unwrap();
        told(Catalogue::open(dir.path()).err().unwrap(), &path);
        // it is damaged
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        std::fs::write(&path, [b'x'; 8192]).unwrap();
        told(Catalogue::open(dir.path()).err().unwrap(), &path);
        // it is damaged while it is open
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let catalogue = Catalogue::open(dir.path()).unwrap();
        for table in ["tokens", "users"] {
            let drop = format!("PRAGMA foreign_keys = off; DROP TABLE {table}");
            catalogue.db.lock().execute_batch(&drop).unwrap();
        }
        told(catalogue.users().unwrap_err(), &path);
        told(catalogue.create_token("anna").unwrap_err(), &path);
        told(catalogue.revoke_tokens("anna").unwrap_err(), &path);
    }
}
