//! Users, tokens, images, tags and unfinished uploads, and who may read what, in SQLite.
//!
//! A *holding* is one owner's copy of an image: the same manifest can be held privately by one user and publicly by
//! another, each with the packs that its readers may read. A row here is what publishes an image: files without a
//! row are garbage, and the row is written last. The write-ahead log with `synchronous=FULL` makes every acknowledged
//! change survive a killed process and a power cut.
//!
//! The question of every read request (who holds this image?) is answered from memory, as only this process changes images.
//! Tokens may be created by another process (`floe hub token create`), so `Catalogue::tokens_since` looks for changes in
//! the file. How the file itself is made and opened is in `upkeep`.

use super::{HubError, Quota};
use floe_image::{Hash, ImageName, PackRef};
use parking_lot::{Mutex, RwLock};
use rand::TryRngCore;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of random bytes in a token.
const TOKEN_BYTES: usize = 32;
/// Prefix of every token, so that secret scanners find leaked ones.
const TOKEN_PREFIX: &str = "floe_";

/// One owner's copy of an image, with what read requests need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub owner: Arc<str>,
    pub public: bool,
    /// Further users who may read it.
    pub readers: Vec<Arc<str>>,
}

/// One owner's copy of an image, with what lists show.
#[derive(Clone, Debug)]
pub(crate) struct ImageRow {
    pub id: Hash,
    pub owner: String,
    pub public: bool,
    pub created_unix_s: u64,
    pub pushed_unix_s: u64,
    pub raw_bytes: u64,
    pub stored_bytes: u64,
    /// Whether one of its packs was found damaged and is not replaced yet.
    pub damaged: bool,
    /// `(name, tag)`.
    pub tags: Vec<(String, String)>,
}

/// An image that is complete and verified, about to be made visible.
pub(crate) struct Publication<'a> {
    pub id: Hash,
    pub owner: &'a str,
    pub public: bool,
    /// Further users who may read it.
    pub readers: &'a [String],
    pub created_unix_s: u64,
    pub raw_bytes: u64,
    pub packs: &'a [PackRef],
    /// What its manifest and its layout take on the disk, in bytes.
    pub files_bytes: u64,
    /// The name that is to point to it.
    pub name: Option<&'a ImageName>,
    /// Key of the upload that this completes.
    pub upload: Option<&'a str>,
    /// What its owner may store, this image included.
    pub quota: Quota,
    /// The layouts that members of the image's swarm read by, by their names.
    pub named: &'a HashSet<[u8; 32]>,
}

/// An unfinished upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Upload {
    pub key: String,
    pub owner: String,
    pub image: Hash,
    pub touched_unix_s: u64,
}

/// A pack that an unfinished upload needs.
#[derive(Clone, Debug)]
pub(crate) struct UploadPack {
    pub pack: PackRef,
    /// Whether it was sent for this upload. Otherwise the hub had it already, and it is protected from removal until
    /// the commit.
    pub staged: bool,
}

/// Users by the hashes of their tokens.
pub(crate) type TokenUsers = HashMap<Hash, Arc<str>>;

/// The hub's database: see the module's documentation.
pub(crate) struct Catalogue {
    /// Its file.
    pub(super) path: PathBuf,
    pub(super) db: Mutex<Connection>,
    /// For reading alone: who reads does not wait while a change is synced to the disk.
    pub(super) reads: Mutex<Connection>,
    pub(super) holdings: RwLock<HashMap<Hash, Vec<Holding>>>,
    /// Bytes that each owner's images take, as counted since the last change, by whoever has `db`.
    pub(super) stored: Mutex<HashMap<String, u64>>,
}

pub(super) type Rows<T> = rusqlite::Result<T>;

impl Catalogue {
    pub(super) fn reload_holdings(&self) -> Rows<()> {
        let mut held: HashMap<Hash, Vec<Holding>> = HashMap::new();
        {
            let db = self.reads.lock();
            let mut readers = readers(&db)?;
            let mut rows =
                db.prepare("SELECT id, owner, public FROM images ORDER BY pushed, owner")?;
            let rows = rows.query_map([], |row| {
                Ok((
                    hash(row, 0)?,
                    Holding {
                        owner: row.get::<_, String>(1)?.into(),
                        public: row.get(2)?,
                        readers: Vec::new(),
                    },
                ))
            })?;
            for row in rows {
                let (id, mut holding) = row?;
                let key = (id, holding.owner.to_string());
                holding.readers = readers.remove(&key).unwrap_or_default();
                held.entry(id).or_default().push(holding);
            }
        }
        metrics::gauge!(floe_front::telemetry::HUB_IMAGES).set(held.len() as f64);
        *self.holdings.write() = held;
        Ok(())
    }

    pub(super) fn change<T>(&self, apply: impl FnOnce(&Transaction<'_>) -> Rows<T>) -> Rows<T> {
        let mut db = self.db.lock();
        let change = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let value = apply(&change)?;
        change.commit()?;
        Ok(value)
    }

    /// Returns a function that makes the error that tells an operator what failed, and in which file.
    pub(super) fn failed(&self) -> impl FnOnce(rusqlite::Error) -> HubError {
        HubError::catalogue(&self.path)
    }

    // ---- users and tokens

    /// Creates `user` unless it exists.
    pub fn ensure_user(&self, user: &str) -> Result<(), HubError> {
        if !is_user_name(user) {
            return Err(HubError::UserName(user.to_owned()));
        }
        self.change(|db| {
            db.execute(
                "INSERT OR IGNORE INTO users VALUES (?1, ?2)",
                params![user, now_unix_s() as i64],
            )
        })
        .map_err(self.failed())?;
        Ok(())
    }

    /// Creates a token for `user`, who is created if necessary. Only the token's hash is stored; as a token is 256 random
    /// bits, a plain hash is as good as a slow one.
    pub fn create_token(&self, user: &str) -> Result<String, HubError> {
        self.ensure_user(user)?;
        let mut secret = [0u8; TOKEN_BYTES];
        rand::rngs::OsRng
            .try_fill_bytes(&mut secret)
            .map_err(|e| HubError::Options(format!("the kernel gives no random bytes: {e}")))?;
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let token = format!("{TOKEN_PREFIX}{hex}");
        let hashed = Hash::of(token.as_bytes());
        self.change(|db| {
            db.execute(
                "INSERT INTO tokens VALUES (?1, ?2, ?3)",
                params![hashed.as_bytes(), user, now_unix_s() as i64],
            )
        })
        .map_err(self.failed())?;
        Ok(token)
    }

    /// Revokes all tokens of `user`. Returns how many there were.
    pub fn revoke_tokens(&self, user: &str) -> Result<usize, HubError> {
        self.change(|db| db.execute("DELETE FROM tokens WHERE user = ?1", [user]))
            .map_err(self.failed())
    }

    /// Returns the users, each with the number of its tokens.
    pub fn users(&self) -> Result<Vec<(String, u64)>, HubError> {
        let db = self.reads.lock();
        let read = || {
            let mut rows = db.prepare(
                "SELECT name, (SELECT count(*) FROM tokens WHERE user = name) FROM users ORDER BY name",
            )?;
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))?;
            rows.collect::<Rows<_>>()
        };
        read().map_err(self.failed())
    }

    /// Returns the user of a token, given by its hash.
    pub fn token_user(&self, hashed: &Hash) -> Rows<Option<String>> {
        let db = self.reads.lock();
        let mut rows = db.prepare("SELECT user FROM tokens WHERE hash = ?1")?;
        rows.query_row([hashed.as_bytes()], |row| row.get(0))
            .optional()
    }

    /// Returns the current version and, if another connection has changed anything since `version`, all tokens by
    /// hash.
    pub fn tokens_since(&self, version: Option<i64>) -> Rows<(i64, Option<TokenUsers>)> {
        let db = self.reads.lock();
        let now = db.query_row("PRAGMA data_version", [], |row| row.get(0))?;
        if version == Some(now) {
            return Ok((now, None));
        }
        let mut rows = db.prepare("SELECT hash, user FROM tokens")?;
        let rows = rows.query_map([], |row| {
            Ok((hash(row, 0)?, row.get::<_, String>(1)?.into()))
        })?;
        Ok((now, Some(rows.collect::<Rows<_>>()?)))
    }

    // ---- images

    /// Returns whether `owner` holds the image.
    pub fn holds(&self, id: &Hash, owner: &str) -> bool {
        let held = self.holdings.read();
        held.get(id)
            .is_some_and(|holdings| holdings.iter().any(|h| *h.owner == *owner))
    }

    /// Returns whether anybody holds the image.
    pub fn held(&self, id: &Hash) -> bool {
        self.holdings.read().contains_key(id)
    }

    /// Returns the images that `viewer` may see, newest first.
    pub fn images(&self, viewer: Option<&str>) -> Rows<Vec<ImageRow>> {
        let db = self.reads.lock();
        let mut rows = db.prepare(
            "SELECT id, owner, public, created, pushed, raw_bytes, stored_bytes, EXISTS
             (SELECT 1 FROM image_packs p JOIN damaged d ON d.pack = p.pack WHERE p.image = images.id AND p.owner = images.owner)
             FROM images WHERE public OR owner = ?1 OR (id, owner, ?1) IN readers ORDER BY pushed DESC, id",
        )?;
        let mut tags = db.prepare(
            "SELECT name, tag FROM tags WHERE image = ?1 AND owner = ?2 ORDER BY name, tag",
        )?;
        let rows = rows.query_map([viewer], |row| {
            Ok(ImageRow {
                id: hash(row, 0)?,
                owner: row.get(1)?,
                public: row.get(2)?,
                created_unix_s: row.get::<_, i64>(3)? as u64,
                pushed_unix_s: row.get::<_, i64>(4)? as u64,
                raw_bytes: row.get::<_, i64>(5)? as u64,
                stored_bytes: row.get::<_, i64>(6)? as u64,
                damaged: row.get(7)?,
                tags: Vec::new(),
            })
        })?;
        rows.map(|row| {
            let mut row = row?;
            let named = tags.query_map(params![row.id.as_bytes(), row.owner], |tag| {
                Ok((tag.get(0)?, tag.get(1)?))
            })?;
            row.tags = named.collect::<Rows<_>>()?;
            Ok(row)
        })
        .collect()
    }

    /// Returns the pack if `viewer` may read all of it: it belongs to a public image or to one of the viewer's own, or did and is kept for its
    /// swarm.
    pub fn pack_readable(&self, pack: &Hash, viewer: Option<&str>) -> Rows<Option<PackRef>> {
        self.reads
            .lock()
            .prepare_cached(
                "SELECT p.id, p.file_bytes, p.index_offset, p.index_bytes, p.root FROM packs p WHERE p.id = ?1 AND EXISTS
                 (SELECT 1 FROM (SELECT image, owner FROM image_packs WHERE pack = ?1 UNION ALL
                                 SELECT image, owner FROM replaced_packs WHERE pack = ?1) ip
                  JOIN images i ON i.id = ip.image AND i.owner = ip.owner
                  WHERE i.public OR i.owner = ?2 OR (i.id, i.owner, ?2) IN readers)",
            )?
            .query_row(params![pack.as_bytes(), viewer], |row| pack_ref(row, 0))
            .optional()
    }

    /// Returns the packs of images that `owner` may read: those of image `first`, then the owner's, then others,
    /// newest images first.
    pub fn visible_packs(&self, owner: &str, first: Option<&Hash>) -> Rows<Vec<PackRef>> {
        let db = self.reads.lock();
        let mut rows = db.prepare(
            "SELECT p.id, p.file_bytes, p.index_offset, p.index_bytes, p.root FROM images i
             JOIN image_packs ip ON ip.image = i.id AND ip.owner = i.owner JOIN packs p ON p.id = ip.pack
             WHERE i.public OR i.owner = ?1 OR (i.id, i.owner, ?1) IN readers GROUP BY p.id
             ORDER BY max(i.id IS ?2) DESC, max(i.owner = ?1) DESC, max(i.pushed) DESC, p.id",
        )?;
        let rows = rows.query_map(
            params![owner, first.map(|id| id.as_bytes().as_slice())],
            |row| pack_ref(row, 0),
        )?;
        rows.collect()
    }

    /// Returns whether a public image holds the pack.
    pub fn is_public_pack(&self, pack: &Hash) -> Rows<bool> {
        self.pack_readable(pack, None).map(|found| found.is_some())
    }

    /// Removes an owner's holding with its tags. Returns whether it existed.
    pub fn remove(&self, id: &Hash, owner: &str) -> Rows<bool> {
        let changed = self.change(|db| {
            db.execute(
                "DELETE FROM images WHERE id = ?1 AND owner = ?2",
                params![id.as_bytes(), owner],
            )
        })?;
        self.stored.lock().clear();
        self.reload_holdings()?;
        Ok(changed > 0)
    }

    /// Deletes the rows of packs that no image, no swarm and no upload needs, and returns the packs so that their files can be
    /// removed.
    pub fn forget_unused_packs(&self) -> Rows<Vec<Hash>> {
        self.change(|db| {
            let mut rows = db.prepare(
                "DELETE FROM packs WHERE NOT EXISTS (SELECT 1 FROM image_packs WHERE pack = packs.id)
                 AND NOT EXISTS (SELECT 1 FROM replaced_packs WHERE pack = packs.id)
                 AND NOT EXISTS (SELECT 1 FROM upload_packs WHERE pack = packs.id) RETURNING id",
            )?;
            let rows = rows.query_map([], |row| hash(row, 0))?;
            rows.collect()
        })
    }

    /// Returns whether the catalogue knows the pack.
    pub fn knows_pack(&self, pack: &Hash) -> Rows<bool> {
        self.reads.lock().query_row(
            "SELECT EXISTS (SELECT 1 FROM packs WHERE id = ?1)",
            [pack.as_bytes()],
            |r| r.get(0),
        )
    }

    /// Returns whether anybody holds the image, as the file says and not as it is remembered.
    pub fn knows_image(&self, id: &Hash) -> Rows<bool> {
        self.reads.lock().query_row(
            "SELECT EXISTS (SELECT 1 FROM images WHERE id = ?1)",
            [id.as_bytes()],
            |row| row.get(0),
        )
    }

    // ---- uploads

    /// Returns the upload with this key if it belongs to `owner`.
    pub fn upload(&self, key: &str, owner: &str) -> Rows<Option<Upload>> {
        self.change(|db| {
            db.query_row(
                "UPDATE uploads SET touched = ?3 WHERE key = ?1 AND owner = ?2 RETURNING key, owner, image, touched",
                params![key, owner, now_unix_s() as i64],
                upload,
            )
            .optional()
        })
    }

    /// Records published packs that this upload needs.
    pub fn need_packs(&self, key: &str, packs: &[PackRef]) -> Rows<()> {
        self.change(|db| {
            packs
                .iter()
                .try_for_each(|pack| enter_pack(db, key, pack, false))
        })
    }

    /// Records the root of the file of a pack.
    pub fn note_root(&self, pack: &Hash, root: &Hash) -> Rows<()> {
        self.change(|db| {
            db.execute(
                "UPDATE packs SET root = ?2 WHERE id = ?1",
                params![pack.as_bytes(), root.as_bytes()],
            )
        })?;
        Ok(())
    }

    /// Returns the packs of an upload, in the order in which they were recorded.
    pub fn upload_packs(&self, key: &str) -> Rows<Vec<UploadPack>> {
        let db = self.reads.lock();
        let mut rows = db.prepare(
            "SELECT p.id, p.file_bytes, p.index_offset, p.index_bytes, p.root, u.staged FROM upload_packs u
             JOIN packs p ON p.id = u.pack WHERE u.upload = ?1 ORDER BY u.rowid",
        )?;
        let rows = rows.query_map([key], |row| {
            Ok(UploadPack {
                pack: pack_ref(row, 0)?,
                staged: row.get(5)?,
            })
        })?;
        rows.collect()
    }

    /// Returns the uploads that were last used before `before_unix_s`.
    pub fn stale_uploads(&self, before_unix_s: u64) -> Rows<Vec<Upload>> {
        let db = self.reads.lock();
        let mut rows =
            db.prepare("SELECT key, owner, image, touched FROM uploads WHERE touched < ?1")?;
        let rows = rows.query_map([before_unix_s as i64], upload)?;
        rows.collect()
    }

    /// Returns the keys of all uploads.
    pub fn upload_keys(&self) -> Rows<Vec<String>> {
        let db = self.reads.lock();
        let mut rows = db.prepare("SELECT key FROM uploads")?;
        let rows = rows.query_map([], |row| row.get(0))?;
        rows.collect()
    }

    /// Deletes an upload's rows.
    pub fn drop_upload(&self, key: &str) -> Rows<()> {
        self.change(|db| db.execute("DELETE FROM uploads WHERE key = ?1", [key]))?;
        Ok(())
    }
}

/// The readers of each holding, by image and owner.
type Readers = HashMap<(Hash, String), Vec<Arc<str>>>;

/// Returns the readers of all images.
fn readers(db: &Connection) -> Rows<Readers> {
    let mut rows = db.prepare("SELECT image, owner, user FROM readers ORDER BY user")?;
    let rows = rows.query_map([], |row| {
        let user: String = row.get(2)?;
        Ok(((hash(row, 0)?, row.get(1)?), Arc::from(user)))
    })?;
    let mut readers = Readers::new();
    for row in rows {
        let (holding, user) = row?;
        readers.entry(holding).or_default().push(user);
    }
    Ok(readers)
}

/// Records a pack. Its root is found out of the file that is kept: another upload may have sent that.
pub(super) fn insert_pack(db: &Connection, pack: &PackRef) -> Rows<()> {
    db.execute(
        "INSERT OR IGNORE INTO packs (id, file_bytes, index_offset, index_bytes) VALUES (?1, ?2, ?3, ?4)",
        params![
            pack.id.as_bytes(),
            pack.file_bytes as i64,
            pack.index_offset as i64,
            pack.index_bytes
        ],
    )?;
    Ok(())
}

/// Records a pack that an upload needs, or was sent for it.
pub(super) fn enter_pack(db: &Connection, key: &str, pack: &PackRef, staged: bool) -> Rows<()> {
    insert_pack(db, pack)?;
    db.execute(
        "INSERT INTO upload_packs VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET staged = max(staged, ?3)",
        params![key, pack.id.as_bytes(), staged],
    )?;
    Ok(())
}

pub(super) fn hash(row: &Row<'_>, column: usize) -> Rows<Hash> {
    Ok(Hash(row.get::<_, [u8; 32]>(column)?))
}

pub(super) fn pack_ref(row: &Row<'_>, from: usize) -> Rows<PackRef> {
    Ok(PackRef {
        id: hash(row, from)?,
        file_bytes: row.get::<_, i64>(from + 1)? as u64,
        index_offset: row.get::<_, i64>(from + 2)? as u64,
        index_bytes: row.get(from + 3)?,
        root: row.get::<_, Option<[u8; 32]>>(from + 4)?.map(Hash),
    })
}

/// Returns an upload that a row describes: key, owner, image, time of last use.
pub(super) fn upload(row: &Row<'_>) -> Rows<Upload> {
    Ok(Upload {
        key: row.get(0)?,
        owner: row.get(1)?,
        image: hash(row, 2)?,
        touched_unix_s: row.get::<_, i64>(3)? as u64,
    })
}

fn is_user_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    (1..=64).contains(&name.len())
        && name.chars().all(inner)
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
}

/// Returns the milliseconds since 1970.
pub(crate) fn now_unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Returns the seconds since 1970.
pub(crate) fn now_unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
