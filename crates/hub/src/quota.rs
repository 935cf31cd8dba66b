//! Quotas: what a user may store, what the user stores, and the refusals.

use super::catalogue::{Catalogue, Rows, Upload, enter_pack, hash, now_unix_s, upload};
use super::disk::{BLOCK_BYTES, on_disk};
use super::error::{ApiError, ApiResult, HubError};
use super::replaced;
use super::{Limits, Quota, QuotaWish};
use axum::http::StatusCode;
use floe_image::{Hash, PackRef};
use parking_lot::Mutex;
use rand::TryRngCore;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What a user stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes that the files of the user's images and unfinished uploads take on the disk: packs, manifests and layouts. A pack
    /// counts once for all images, and once more for each upload for which it was sent.
    pub bytes: u64,
    /// Images, and unfinished uploads of other images.
    pub images: u64,
}

/// A user with what it stores and may store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserQuota {
    /// The user's name.
    pub user: String,
    /// Its bytes and images that are stored.
    pub used: Used,
    /// Its traces that are kept.
    pub traces: u64,
    /// The parts of its quota that the operator has set.
    pub wish: QuotaWish,
    /// The quota in force: what was set, and the defaults for the rest.
    pub quota: Quota,
}

/// The answer to a request to begin an upload.
pub(crate) enum Opened {
    /// It has begun, or goes on.
    Upload(Upload),
    /// The owner has as many unfinished uploads as one may have.
    TooMany,
    /// The owner would have this, which is more than its quota.
    BeyondQuota(Used),
}

impl QuotaWish {
    /// Returns the quota with the default for each part that was not set.
    pub fn or(&self, default: &Quota) -> Quota {
        Quota {
            bytes: self.bytes.unwrap_or(default.bytes),
            images: self.images.unwrap_or(default.images),
            traces: self.traces.unwrap_or(default.traces),
        }
    }
}

/// Counts what a user's images take: each pack once, as it is there once, and each manifest and layout.
fn stored(db: &Connection, owner: &str) -> Rows<u64> {
    let query =
        "SELECT (SELECT coalesce(sum((file_bytes + ?2 - 1) / ?2 * ?2), 0) FROM packs WHERE id IN
           (SELECT pack FROM image_packs WHERE owner = ?1)) +
         (SELECT coalesce(sum(bytes), 0) FROM image_files WHERE owner = ?1)";
    let bytes: i64 = db.query_row(query, params![owner, BLOCK_BYTES as i64], |row| row.get(0))?;
    Ok(bytes as u64)
}

/// Counts what a user has sent and not yet published: each upload for itself, as each has files of its own.
fn staged(db: &Connection, owner: &str) -> Rows<u64> {
    let query = "SELECT (SELECT coalesce(sum((p.file_bytes + ?2 - 1) / ?2 * ?2), 0) FROM uploads u
           JOIN upload_packs up ON up.upload = u.key JOIN packs p ON p.id = up.pack WHERE u.owner = ?1 AND up.staged) +
         (SELECT coalesce(sum(f.bytes), 0) FROM uploads u JOIN upload_files f ON f.upload = u.key WHERE u.owner = ?1)";
    let bytes: i64 = db.query_row(query, params![owner, BLOCK_BYTES as i64], |row| row.get(0))?;
    Ok(bytes as u64)
}

pub(super) fn used(db: &Connection, owner: &str) -> Rows<Used> {
    let images: i64 = db.query_row(
        "SELECT count(*) FROM (SELECT id FROM images WHERE owner = ?1 UNION SELECT image FROM uploads WHERE owner = ?1)",
        [owner],
        |row| row.get(0),
    )?;
    Ok(Used {
        bytes: stored(db, owner)? + staged(db, owner)?,
        images: images as u64,
    })
}

/// Records what the manifest and the layout of an owner's image take on the disk.
pub(super) fn enter_files(db: &Connection, owner: &str, id: &Hash, bytes: u64) -> Rows<()> {
    db.execute(
        "INSERT OR REPLACE INTO image_files VALUES (?1, ?2, ?3)",
        params![owner, id.as_bytes(), bytes as i64],
    )?;
    Ok(())
}

/// How many bytes a user may have sent and not yet published, and may have in all.
pub(super) struct Room {
    pub quota: Quota,
    pub staged_bytes_max: u64,
}

impl Catalogue {
    /// Returns what a user stores.
    pub fn used(&self, owner: &str) -> Rows<Used> {
        used(&self.reads.lock(), owner)
    }

    /// Returns the owner's open upload of `image`, whose manifest has `manifest_bytes`, or a new one if there is room for it. What
    /// the owner has is counted in the same transaction, so that any number of uploads that begin at once stay within the quota.
    pub fn open_upload(
        &self,
        owner: &str,
        (image, manifest_bytes): (&Hash, u64),
        uploads_max: usize,
        quota: &Quota,
    ) -> Rows<Opened> {
        let mut key = [0u8; 16];
        rand::rngs::OsRng
            .try_fill_bytes(&mut key)
            .map_err(|_| rusqlite::Error::InvalidQuery)?;
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let now = now_unix_s();
        self.change(|db| {
            let found = db
                .query_row(
                    "UPDATE uploads SET touched = ?3 WHERE owner = ?1 AND image = ?2 RETURNING key, owner, image, touched",
                    params![owner, image.as_bytes(), now as i64],
                    upload,
                )
                .optional()?;
            let mut used = used(db, owner)?;
            let known: bool = db.query_row(
                "SELECT EXISTS (SELECT 1 FROM images WHERE owner = ?1 AND id = ?2)",
                params![owner, image.as_bytes()],
                |row| row.get(0),
            )?;
            let more = u64::from(!known && found.is_none());
            used.images += more;
            if found.is_none() {
                used.bytes += on_disk(manifest_bytes);
            }
            if used.bytes > quota.bytes || (more > 0 && used.images > quota.images) {
                return Ok(Opened::BeyondQuota(used));
            }
            if let Some(found) = found {
                return Ok(Opened::Upload(found));
            }
            let open: i64 = db.query_row("SELECT count(*) FROM uploads WHERE owner = ?1", [owner], |row| row.get(0))?;
            if open as usize >= uploads_max {
                return Ok(Opened::TooMany);
            }
            db.execute(
                "INSERT INTO uploads VALUES (?1, ?2, ?3, ?4, ?4)",
                params![key, owner, image.as_bytes(), now as i64],
            )?;
            db.execute("INSERT INTO upload_files VALUES (?1, ?2)", params![key, on_disk(manifest_bytes) as i64])?;
            Ok(Opened::Upload(Upload { key, owner: owner.to_owned(), image: *image, touched_unix_s: now }))
        })
    }

    /// Returns what a user's images take. It is counted once after each change of any image, because a user may have a hundred
    /// thousand packs and each pack that is sent asks for it. `db` is the catalogue's own, so that nothing changes meanwhile.
    fn stored_bytes(&self, db: &Connection, owner: &str) -> Rows<u64> {
        if let Some(bytes) = self.stored.lock().get(owner) {
            return Ok(*bytes);
        }
        let bytes = stored(db, owner)?;
        self.stored.lock().insert(owner.to_owned(), bytes);
        Ok(bytes)
    }

    /// Returns an error unless an upload has this pack already or its owner may send it.
    fn check_pack(
        &self,
        db: &Connection,
        upload: &Upload,
        (pack, bytes): (&Hash, u64),
        room: &Room,
    ) -> Rows<ApiResult<()>> {
        let known = db.query_row(
            "SELECT EXISTS (SELECT 1 FROM upload_packs WHERE upload = ?1 AND pack = ?2 AND staged)",
            params![upload.key, pack.as_bytes()],
            |row| row.get(0),
        )?;
        if known {
            return Ok(Ok(()));
        }
        let staged = staged(db, &upload.owner)? + on_disk(bytes);
        if staged > room.staged_bytes_max {
            return Ok(Err(too_much_staged(&upload.owner, staged, room)));
        }
        let used = Used {
            bytes: self.stored_bytes(db, &upload.owner)? + staged,
            images: 0,
        };
        Ok(match used.bytes > room.quota.bytes {
            true => Err(exceeded(&upload.owner, &used, &room.quota)),
            false => Ok(()),
        })
    }

    /// Returns an error unless the owner of an upload may send this pack for it.
    pub(super) fn may_stage(
        &self,
        upload: &Upload,
        pack: (&Hash, u64),
        room: &Room,
    ) -> ApiResult<()> {
        self.check_pack(&self.db.lock(), upload, pack, room)?
    }

    /// Records a pack that was sent for an upload, which `place` puts where it belongs. The bound is checked in the same
    /// transaction, so that any number of packs that come at once stay within it.
    pub(super) fn stage(
        &self,
        upload: &Upload,
        pack: &PackRef,
        room: &Room,
        place: impl FnOnce() -> std::io::Result<()>,
    ) -> ApiResult<()> {
        self.change(|db| {
            let fits = self.check_pack(db, upload, (&pack.id, pack.file_bytes), room)?;
            let placed = fits.and_then(|()| Ok(place()?));
            if placed.is_ok() {
                enter_pack(db, &upload.key, pack, true)?;
                replaced::make_room(db, &upload.owner, room.quota.bytes, || {
                    Ok(self.stored_bytes(db, &upload.owner)? + staged(db, &upload.owner)?)
                })?;
            }
            Ok(placed)
        })?
    }

    /// Returns the images, each with its owner, whose manifests and layouts are not counted yet.
    pub fn unmeasured(&self) -> Rows<Vec<(Hash, String)>> {
        let db = self.reads.lock();
        let mut rows = db.prepare(
            "SELECT id, owner FROM images WHERE (owner, id) NOT IN (SELECT owner, image FROM image_files)",
        )?;
        let rows = rows.query_map([], |row| Ok((hash(row, 0)?, row.get(1)?)))?;
        rows.collect()
    }

    /// Records what an image's manifest and layout take on the disk.
    pub fn measured(&self, id: &Hash, owner: &str, bytes: u64) -> Rows<()> {
        self.change(|db| enter_files(db, owner, id, bytes))
    }

    /// Returns the parts of a user's quota that were set.
    pub fn quota(&self, user: &str) -> Rows<QuotaWish> {
        let found = self
            .reads
            .lock()
            .query_row(
                "SELECT bytes, images, traces FROM quotas WHERE user = ?1",
                [user],
                |row| {
                    let number = |column: usize| -> Rows<Option<u64>> {
                        Ok(row.get::<_, Option<i64>>(column)?.map(|n| n as u64))
                    };
                    Ok(QuotaWish {
                        bytes: number(0)?,
                        images: number(1)?,
                        traces: number(2)?,
                    })
                },
            )
            .optional()?;
        Ok(found.unwrap_or_default())
    }

    /// Sets the parts of a user's quota that `wish` names. The user is created if necessary.
    pub fn set_quota(&self, user: &str, wish: &QuotaWish) -> Result<(), HubError> {
        self.ensure_user(user)?;
        let number = |n: Option<u64>| n.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        self.change(|db| {
            db.execute(
                "INSERT INTO quotas VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET
                 bytes = coalesce(?2, bytes), images = coalesce(?3, images), traces = coalesce(?4, traces)",
                params![
                    user,
                    number(wish.bytes),
                    number(wish.images),
                    number(wish.traces)
                ],
            )
        })
        .map_err(self.failed())?;
        Ok(())
    }
}

/// Returns the refusal of what exceeds a quota.
pub(super) fn refused(message: String, fix: &str) -> ApiError {
    let fix = format!("{fix}, or ask the hub's operator for more (`floe hub quota NAME`)");
    ApiError::new(StatusCode::FORBIDDEN, "quota", message, fix)
}

/// Returns the refusal for a user who exceeds the quota, or would.
pub(super) fn exceeded(user: &str, used: &Used, quota: &Quota) -> ApiError {
    let (what, has, may) = if used.bytes > quota.bytes {
        ("bytes", used.bytes, quota.bytes)
    } else {
        ("images", used.images, quota.images)
    };
    refused(
        format!("{user} would have {has} {what} here, and may have {may}"),
        "remove images that are not needed (`floe image rm` with the hub's address)",
    )
}

fn too_much_staged(user: &str, staged: u64, room: &Room) -> ApiError {
    let max = room.staged_bytes_max;
    ApiError::new(
        StatusCode::TOO_MANY_REQUESTS,
        "quota",
        format!("{user} would have {staged} staged bytes, more than {max} are not allowed"),
        "commit or cancel an unfinished upload first",
    )
}

/// Longest time that a question waits for its turn; a client would give up later.
const QUESTION_WAIT_MAX: Duration = Duration::from_secs(10);

/// For each user who asks what the hub has, the time from which on it has asked no more than it may: it waits until then. Users who have
/// not asked for a while are forgotten.
#[derive(Default)]
pub(crate) struct Asked(Mutex<HashMap<String, Instant>>);

impl Asked {
    /// Enters a question about so many items. Returns how long it has to wait; `None`, and nothing is entered, if that is too long.
    pub(super) fn enter(
        &self,
        limits: &Limits,
        user: &str,
        items: u64,
        now: Instant,
    ) -> Option<Duration> {
        let time = |items: u64| {
            Duration::from_secs_f64(items as f64 / limits.have_items_per_s.max(1) as f64)
        };
        let mut asked = self.0.lock();
        asked.retain(|_, until| *until > now);
        let until = asked.get(user).copied().unwrap_or(now) + time(items);
        let wait = until.saturating_duration_since(now + time(limits.have_items_burst));
        (wait <= QUESTION_WAIT_MAX).then(|| {
            asked.insert(user.to_owned(), until);
            wait
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::Hub;
    use super::*;

    #[test]
    fn a_user_asks_at_its_pace_after_a_burst_and_others_at_theirs() {
        let limits = Limits {
            have_items_burst: 100,
            have_items_per_s: 10,
            ..Limits::default()
        };
        let (asked, now) = (Asked::default(), Instant::now());
        let at = |user, items, seconds| {
            let wait = asked.enter(&limits, user, items, now + Duration::from_secs(seconds));
            wait.map(|wait| wait.as_secs())
        };
        assert_eq!(at("ann", 60, 0), Some(0));
        assert_eq!(at("ann", 40, 0), Some(0));
        assert_eq!(at("ann", 50, 0), Some(5));
        assert_eq!(at("ann", 60, 0), None, "eleven seconds are too long");
        assert_eq!(
            at("ann", 50, 0),
            Some(10),
            "what was refused was not entered"
        );
        assert_eq!(at("bob", 100, 0), Some(0));
        assert_eq!(at("ann", 10, 1), Some(10));
        assert_eq!(
            at("ann", 100, 100),
            Some(0),
            "what was not asked is not saved up"
        );
        assert_eq!(at("ann", 10, 100), Some(1));
        assert_eq!(
            asked.0.lock().len(),
            1,
            "who has not asked lately is forgotten"
        );
    }

    #[test]
    fn images_of_an_earlier_hub_are_measured_when_it_starts() {
        let dir = tempfile::tempdir().unwrap();
        let options = crate::HubOptions::new(dir.path(), ([127, 0, 0, 1], 0).into());
        let hub = Hub::open(&options).unwrap();
        hub.catalogue.ensure_user("ann").unwrap();
        let id = Hash([1; 32]);
        hub.put_files(&id, &[0; 5000], &[0; 100]).unwrap();
        let image = params![id.as_bytes(), "ann"];
        let enter = "INSERT INTO images VALUES (?1, ?2, 0, 0, 0, 0, 0)";
        hub.catalogue.change(|db| db.execute(enter, image)).unwrap();
        assert_eq!(hub.catalogue.used("ann").unwrap().bytes, 0);
        drop(hub);
        let hub = Hub::open(&options).unwrap();
        let used = hub.catalogue.used("ann").unwrap();
        assert_eq!((used.bytes, used.images), (3 * BLOCK_BYTES, 1));
        assert_eq!(hub.catalogue.unmeasured().unwrap(), []);
    }
}
