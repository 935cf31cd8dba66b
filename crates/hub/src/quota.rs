//! Quotas: what a user may store, what the user stores, and the refusals.

use super::catalogue::{Catalogue, Rows, Upload};
use super::error::{ApiError, ApiResult, HubError};
use super::state::Hub;
use super::{Quota, QuotaWish};
use axum::http::StatusCode;
use rusqlite::{Connection, OptionalExtension, params};

/// What a user stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes of the packs of the user's images and unfinished uploads, each pack counted once.
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

/// What came of the wish to begin an upload.
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

pub(super) fn used(db: &Connection, owner: &str) -> Rows<Used> {
    db.query_row(
        "SELECT
           (SELECT coalesce(sum(file_bytes), 0) FROM packs WHERE id IN
             (SELECT pack FROM image_packs WHERE owner = ?1 UNION
              SELECT up.pack FROM uploads u JOIN upload_packs up ON up.upload = u.key WHERE u.owner = ?1 AND up.staged)),
           (SELECT count(*) FROM
             (SELECT id FROM images WHERE owner = ?1 UNION SELECT image FROM uploads WHERE owner = ?1))",
        [owner],
        |row| {
            Ok(Used {
                bytes: row.get::<_, i64>(0)? as u64,
                images: row.get::<_, i64>(1)? as u64,
            })
        },
    )
}

impl Catalogue {
    /// Returns what a user stores.
    pub fn used(&self, owner: &str) -> Rows<Used> {
        used(&self.reads.lock(), owner)
    }

    /// Returns the bytes of the packs of a user's images. They are counted once after each change of any image, because a
    /// user may have a hundred thousand packs and each pack that is sent asks for them.
    fn stored_bytes(&self, owner: &str) -> Rows<u64> {
        if let Some(bytes) = self.stored.lock().get(owner) {
            return Ok(*bytes);
        }
        let bytes: i64 = self.reads.lock().query_row(
            "SELECT coalesce(sum(file_bytes), 0) FROM packs WHERE id IN
             (SELECT pack FROM image_packs WHERE owner = ?1)",
            [owner],
            |row| row.get(0),
        )?;
        self.stored.lock().insert(owner.to_owned(), bytes as u64);
        Ok(bytes as u64)
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
        })?;
        Ok(())
    }
}

/// Returns the quota of `user`.
pub(super) fn of(hub: &Hub, user: &str) -> ApiResult<Quota> {
    Ok(hub.catalogue.quota(user)?.or(&hub.limits.quota))
}

fn refused(message: String, fix: &str) -> ApiError {
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

/// Returns an error unless `user` may send this many more bytes.
pub(super) fn check_bytes(hub: &Hub, user: &str, bytes: u64) -> ApiResult<()> {
    let quota = of(hub, user)?;
    let catalogue = &hub.catalogue;
    // The sum counts twice what is both stored and staged; only if it is too much, it is counted exactly.
    if catalogue.stored_bytes(user)? + catalogue.staged_bytes(user)? + bytes <= quota.bytes {
        return Ok(());
    }
    let mut used = catalogue.used(user)?;
    used.bytes += bytes;
    if used.bytes > quota.bytes {
        return Err(exceeded(user, &used, &quota));
    }
    Ok(())
}

/// Returns an error unless one more trace of `sender` may be kept. Traces of strangers are bounded per image only.
pub(super) fn check_traces(hub: &Hub, sender: Option<&str>) -> ApiResult<()> {
    let Some(user) = sender else { return Ok(()) };
    let (kept, quota) = (hub.traces.count_of(user), of(hub, user)?);
    if kept >= quota.traces {
        return Err(refused(
            format!(
                "{kept} traces of {user} are kept here, and {} may be",
                quota.traces
            ),
            "wait until newer ones displace them",
        ));
    }
    Ok(())
}
