//! Enters an image that is complete and verified, with all that the catalogue knows of it, in one transaction.

use super::catalogue::{Catalogue, Publication, Rows, insert_pack, now_unix_s};
use super::quota::{Used, enter_files, used};
use super::{names, readers, replaced};
use rusqlite::params;

impl Catalogue {
    /// Makes an image visible in one transaction: completely or not at all. If its owner would exceed the quota, nothing
    /// changes, and what the owner would have used is returned.
    pub fn publish(&self, new: &Publication<'_>) -> Rows<Result<(), Used>> {
        let stored: u64 = new.packs.iter().map(|pack| pack.file_bytes).sum();
        let now = now_unix_s() as i64;
        {
            let mut db = self.db.lock();
            let db = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let before = used(&db, new.owner)?;
            replaced::keep(&db, new, now as u64)?;
            db.execute(
                "INSERT INTO images VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                 ON CONFLICT DO UPDATE SET public = ?3, stored_bytes = ?7",
                params![
                    new.id.as_bytes(),
                    new.owner,
                    new.public,
                    new.created_unix_s as i64,
                    now,
                    new.raw_bytes as i64,
                    stored as i64
                ],
            )?;
            db.execute(
                "DELETE FROM image_packs WHERE image = ?1 AND owner = ?2",
                params![new.id.as_bytes(), new.owner],
            )?;
            for (seq, pack) in new.packs.iter().enumerate() {
                insert_pack(&db, pack)?;
                db.execute(
                    "INSERT INTO image_packs VALUES (?1, ?2, ?3, ?4)",
                    params![new.id.as_bytes(), new.owner, seq as i64, pack.id.as_bytes()],
                )?;
            }
            enter_files(&db, new.owner, &new.id, new.files_bytes)?;
            readers::set(&db, new)?;
            if let Some(name) = new.name {
                names::point(&db, new.owner, name, &new.id)?;
            }
            names::settle(&db, new.owner, &new.id)?;
            if let Some(key) = new.upload {
                db.execute("DELETE FROM uploads WHERE key = ?1", [key])?;
            }
            // An owner who is over the quota already may still make changes that use no more.
            let after = used(&db, new.owner)?;
            let more_bytes = after.bytes > new.quota.bytes && after.bytes > before.bytes;
            let more_images = after.images > new.quota.images && after.images > before.images;
            if more_bytes || more_images {
                return Ok(Err(after)); // dropping the transaction undoes it
            }
            replaced::make_room(&db, new.owner, new.quota.bytes, || Ok(after.bytes))?;
            db.commit()?;
            self.stored.lock().clear();
        }
        self.reload_holdings()?;
        Ok(Ok(()))
    }
}
