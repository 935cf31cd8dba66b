//! The state that all requests share, and the housekeeping.

use super::catalogue::{Catalogue, now_unix_s};
use super::disk::{entries, is_damage, on_disk, remove_file, remove_folder, write_durably};
use super::error::{ApiError, ApiResult, HubError};
use super::packs::{Packs, Scope};
use super::pool::Pool;
use super::quota::Asked;
use super::swarm::Swarms;
use super::tokens::Tokens;
use super::visible::VisibleImage;
use super::{HubOptions, Limits};
use floe_front::turns::Room;
use floe_front::{Gate, Memory, Party};
use floe_image::{Hash, PackRef};
use floe_traces::{TraceStore, Trainer};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Requests that are processed at the same time, per processor; the total has a minimum and a maximum. The work is mostly
/// hashing and packing, and a little waiting for the disk.
const SLOTS_PER_PROCESSOR: usize = 4;
const SLOTS_MIN: usize = 8;
const SLOTS_MAX: usize = 64;
/// Long operations (commits, trainings that a request waits for) at the same time. They have their own slots, as each
/// may take minutes.
const LONG_SLOTS: usize = 4;
/// The part of each processor's time that strangers may use while users are active.
const STRANGERS_SHARE: f64 = 0.125;
/// Time between two copies of the catalogue.
const BACKUP_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Time between two searches for stale uploads and unused packs.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(600);
/// Most uploads whose scopes are kept in memory.
const UPLOADS_REMEMBERED_MAX: usize = 8;

/// The packs that an upload may build on, in memory.
#[derive(Clone)]
pub(crate) struct Remembered {
    /// Packs of images that its owner may read.
    pub visible: Arc<Scope>,
    /// Packs that were sent, and how many there were when this scope was made.
    pub staged: Option<(usize, Arc<Scope>)>,
}

/// The state of a hub: see the module's documentation.
pub(crate) struct Hub {
    pub limits: Limits,
    pub anonymous: super::Anonymous,
    pub catalogue: Catalogue,
    pub packs: Packs,
    pub tokens: Tokens,
    pub asked: Asked,
    /// Which images have a thumbnail: that never changes for an id, and finding out may mean reading megabytes of manifest.
    pub thumbnails: Mutex<HashMap<Hash, bool>>,
    pub traces: Arc<TraceStore>,
    pub trainer: Trainer,
    /// Substrates in memory, if this hub is a pool.
    pub pool: Option<Pool>,
    pub swarms: Swarms,
    /// Held while files are moved into or out of the published folders, so that removing unused packs never runs
    /// beside a commit. It is held while they are synced: it only orders changes, no reader takes it.
    pub publishing: Mutex<()>,
    /// Held while a trace is added and synced, and while traces are removed with their image. It only orders these changes.
    pub tracing: Mutex<()>,
    /// Where requests wait for their turn.
    pub gate: Gate,
    /// The same for long operations.
    pub long_gate: Gate,
    /// The bound on memory for bodies and answers.
    pub memory: Memory,
    /// See [`HubOptions::anonymous_traces`].
    pub anonymous_traces: bool,
    remembered: Mutex<HashMap<String, Remembered>>,
    dir: PathBuf,
}

impl Hub {
    /// Opens the hub's folder and cleans up after a crash.
    pub fn open(options: &HubOptions) -> Result<Hub, HubError> {
        let dir = options.dir.clone();
        for folder in [
            dir.clone(),
            dir.join("staging"),
            dir.join("repo/images"),
            dir.join("repo/packs"),
        ] {
            floe_store::private::make_dirs(&folder)
                .map_err(HubError::file("cannot create", &folder))?;
        }
        let closed = floe_store::private::close_to_others(&dir, &[], &[])
            .map_err(HubError::file("cannot close to others", &dir))?;
        if closed.changed > 0 {
            tracing::info!(changed = closed.changed, dir = %dir.display(), "files and directories were open to other users; they are closed now");
        }
        let catalogue = Catalogue::open(&dir)?;
        let limits = options.limits.clone();
        let folder = dir.join("traces");
        let no_traces = |source| HubError::File {
            what: "cannot open",
            path: folder.clone(),
            source,
        };
        let traces = Arc::new(TraceStore::open(&folder).map_err(no_traces)?);
        let trainer = Trainer::start(
            traces.clone(),
            limits.training_quiet,
            Box::new(floe_traces::learn),
        );
        let trainer = trainer.map_err(no_traces)?;
        let hub = Hub {
            traces,
            trainer,
            pool: options.pool_bytes.map(Pool::new),
            swarms: Swarms::open(&dir)?,
            packs: Packs::new(
                dir.join("repo/packs"),
                limits.cache_bytes,
                limits.index_items_max,
            ),
            limits,
            anonymous: options.anonymous.clone(),
            catalogue,
            tokens: Tokens::default(),
            asked: Asked::default(),
            thumbnails: Mutex::default(),
            publishing: Mutex::new(()),
            tracing: Mutex::new(()),
            gate: Gate::new(room(SLOTS_MIN, SLOTS_MAX)),
            long_gate: Gate::new(room(LONG_SLOTS, LONG_SLOTS)),
            memory: Memory::new(options.limits.transfer_bytes_max),
            anonymous_traces: options.anonymous_traces,
            remembered: Mutex::default(),
            dir,
        };
        for pack in hub
            .catalogue
            .damaged_packs()
            .map_err(hub.catalogue.failed())?
        {
            hub.packs.mark_damaged(&pack);
        }
        hub.clear_litter()?;
        hub.measure_files()?;
        hub.back_up();
        hub.trainer.schedule_outdated().map_err(no_traces)?;
        Ok(hub)
    }

    fn manifest_path(&self, id: &Hash) -> PathBuf {
        self.dir.join("repo/images").join(id.to_string())
    }

    /// Returns the path of an image's manifest.
    pub fn manifest_of(&self, image: &VisibleImage) -> PathBuf {
        self.manifest_path(image.id())
    }

    /// Writes an image's manifest, unless it is there, and its layout. Returns what they take on the disk.
    pub fn put_files(&self, id: &Hash, manifest: &[u8], layout: &[u8]) -> std::io::Result<u64> {
        let path = self.manifest_path(id);
        if !path.try_exists()? {
            write_durably(&path, manifest)?;
        }
        write_durably(&path.with_extension("layout"), layout)?;
        Ok(on_disk(manifest.len() as u64) + on_disk(layout.len() as u64))
    }

    /// Removes an image's manifest and its layout.
    pub fn remove_files(&self, id: &Hash) -> std::io::Result<()> {
        let path = self.manifest_path(id);
        for path in [path.with_extension("layout"), path] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the folder of an upload. Keys are made by the catalogue; no text of a client becomes a path.
    pub fn staging(&self, key: &str) -> PathBuf {
        self.dir.join("staging").join(key)
    }

    /// Returns the path of a staged pack: in the upload's folder, or in the published one if a commit was interrupted after
    /// its files were moved and before its row was written.
    pub fn staged_pack_path(&self, key: &str, pack: &Hash) -> std::io::Result<PathBuf> {
        let staged = self.staging(key).join(format!("{pack}.pack"));
        Ok(match staged.try_exists()? {
            true => staged,
            false => self.packs.pack_path(pack),
        })
    }

    /// Returns the scope of a set of published packs.
    ///
    /// A pack whose index is damaged is left out: its items are answered as missing, the others can be read.
    pub fn scope_of(&self, packs: &[PackRef]) -> Result<Scope, HubError> {
        let mut whole = Vec::with_capacity(packs.len());
        for pack in packs {
            match self.packs.pack(pack, self.packs.pack_path(&pack.id)) {
                Ok(pack) => whole.push(pack),
                Err(HubError::File { source, .. }) if is_damage(&source) => {
                    self.found_damaged(&pack.id, &source);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Scope::new(whole))
    }

    /// Records that a stored pack is damaged: from now on nobody is told that the hub has its items, until it is sent
    /// again.
    pub fn found_damaged(&self, pack: &Hash, error: &dyn std::fmt::Display) {
        let is_known = self.packs.is_damaged(pack);
        // one that was removed is gone, not damaged: who still reads by an earlier layout finds that
        if is_known || matches!(self.catalogue.knows_pack(pack), Ok(false)) {
            return;
        }
        if !self.packs.mark_damaged(pack) {
            return;
        }
        tracing::error!(%pack, %error, "a stored pack is damaged; it is replaced when an image with it is pushed again");
        self.forget_uploads();
        if let Err(error) = self.catalogue.note_damaged(pack, true) {
            tracing::warn!(%pack, %error, "the damage could not be noted; it will be found again");
        }
    }

    /// Records that a damaged pack was replaced.
    pub fn mended(&self, pack: &Hash) -> Result<(), HubError> {
        self.swarms.forget_pack(pack);
        self.catalogue
            .note_damaged(pack, false)
            .map_err(self.catalogue.failed())?;
        self.packs.forget_damage(pack);
        Ok(())
    }

    /// Copies the catalogue to the file beside it, in case it can't be read one day.
    fn back_up(&self) {
        if let Err(error) = self.catalogue.back_up() {
            tracing::warn!(%error, "the catalogue was not copied; the copy before stays");
        }
    }

    /// Returns the scope of an image; loads it if it is not in memory. Blocks.
    pub fn load_scope(&self, image: &VisibleImage) -> ApiResult<Arc<Scope>> {
        let _one = self.packs.loading.lock();
        if let Some(scope) = self.packs.scope(image) {
            return Ok(scope);
        }
        loop {
            let packs = self.catalogue.packs(image)?;
            let scope = Arc::new(self.scope_of(&packs)?);
            self.packs.keep_scope(image, scope.clone());
            // a new publication may have forgotten the image's scope before this one, of the earlier packs, was kept
            if self.catalogue.packs(image)? == packs {
                return Ok(scope);
            }
            self.packs.forget_scope(image.id(), image.owner());
        }
    }

    /// Returns what is kept in memory for an upload.
    pub fn remembered(&self, key: &str) -> Option<Remembered> {
        self.remembered.lock().get(key).cloned()
    }

    /// Keeps an upload's scopes in memory; drops another upload's if there are too many.
    pub fn remember(&self, key: &str, packs: Remembered) {
        let mut all = self.remembered.lock();
        if all.len() >= UPLOADS_REMEMBERED_MAX
            && !all.contains_key(key)
            && let Some(other) = all.keys().next().cloned()
        {
            all.remove(&other);
        }
        all.insert(key.to_owned(), packs);
    }

    /// Drops the scopes of all uploads, because packs were removed.
    pub fn forget_uploads(&self) {
        self.remembered.lock().clear();
    }

    /// Drops an upload with its files.
    pub fn drop_upload(&self, key: &str) -> ApiResult<()> {
        self.catalogue.drop_upload(key)?;
        self.remembered.lock().remove(key);
        remove_folder(&self.staging(key));
        Ok(())
    }

    /// Removes the files of packs that nothing needs any more.
    pub fn sweep(&self) -> ApiResult<()> {
        let _publishing = self.publishing.lock();
        let unused = self.catalogue.forget_unused_packs()?;
        if !unused.is_empty() {
            self.forget_uploads();
        }
        for pack in unused {
            remove_file(&self.packs.pack_path(&pack));
            self.swarms.forget_pack(&pack);
        }
        Ok(())
    }

    /// Gives up layouts that were replaced, of one image or of all, and that no member of a swarm reads by any more. The files of their packs go
    /// with the next sweep.
    pub fn retire(&self, image: Option<&Hash>) -> ApiResult<()> {
        let is_used = |image: &Hash, layout: &[u8; 32], replaced_unix_s: u64| {
            let waits = self.swarms.waits_for_readers(replaced_unix_s);
            waits || self.swarms.named(image).contains(layout)
        };
        self.catalogue.retire(image, now_unix_s(), is_used)?;
        Ok(())
    }

    /// Returns an error unless the disk has room for this many bytes beyond the reserve.
    pub fn check_room(&self, bytes: u64) -> ApiResult<()> {
        let disk = rustix::fs::statvfs(&self.dir).map_err(std::io::Error::from)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free < bytes.saturating_add(self.limits.disk_reserve_bytes) {
            Err(ApiError::disk_full())
        } else {
            Ok(())
        }
    }

    /// Counts the manifests and layouts of images that an earlier hub has published.
    fn measure_files(&self) -> Result<(), HubError> {
        for (id, owner) in self
            .catalogue
            .unmeasured()
            .map_err(self.catalogue.failed())?
        {
            let manifest = self.manifest_path(&id);
            let mut bytes = 0;
            for path in [manifest.with_extension("layout"), manifest] {
                match std::fs::metadata(&path) {
                    Ok(found) => bytes += on_disk(found.len()),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(HubError::file("cannot look at", &path)(error)),
                }
            }
            self.catalogue
                .measured(&id, &owner, bytes)
                .map_err(self.catalogue.failed())?;
        }
        Ok(())
    }

    /// Removes files without a row, which a killed process left behind.
    fn clear_litter(&self) -> Result<(), HubError> {
        let keys = self
            .catalogue
            .upload_keys()
            .map_err(self.catalogue.failed())?;
        for (name, path) in entries(&self.dir.join("staging"))? {
            if !keys.contains(&name) {
                remove_folder(&path);
            }
        }
        let folder = self.dir.join("traces");
        let clear = || {
            for (id, owner) in self.traces.images()? {
                if !self.catalogue.holds(&id, &owner) {
                    self.traces.remove(&id, &owner)?;
                }
            }
            Ok(())
        };
        clear().map_err(HubError::file("cannot clear", &folder))?;
        for (_, folder) in entries(&self.dir.join("repo/packs"))? {
            for (name, path) in entries(&folder)? {
                let known = name
                    .strip_suffix(".pack")
                    .and_then(|id| id.parse::<Hash>().ok());
                if !known
                    .map(|id| self.catalogue.knows_pack(&id))
                    .transpose()
                    .map_err(self.catalogue.failed())?
                    .unwrap_or(false)
                {
                    remove_file(&path);
                }
            }
        }
        self.swarms
            .clear_litter(|pack| self.catalogue.knows_pack(pack).unwrap_or(true))?;
        for (name, path) in entries(&self.dir.join("repo/images"))? {
            let id = name
                .strip_suffix(".layout")
                .unwrap_or(&name)
                .parse::<Hash>()
                .ok();
            if !id.is_some_and(|id| self.catalogue.held(&id)) {
                remove_file(&path);
            }
        }
        Ok(())
    }

    /// Drops uploads that were not used for too long. Returns their number.
    pub fn expire_uploads(&self) -> ApiResult<usize> {
        let before = now_unix_s().saturating_sub(self.limits.upload_expiry.as_secs());
        let stale = self.catalogue.stale_uploads(before)?;
        for upload in &stale {
            tracing::info!(
                upload = upload.key,
                owner = upload.owner,
                "dropping a stale upload"
            );
            self.drop_upload(&upload.key)?;
        }
        if !stale.is_empty() {
            self.sweep()?;
        }
        Ok(stale.len())
    }
}

/// Returns the number of slots for this host's processors, between `min` and `max`.
fn room(min: usize, max: usize) -> Room {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Room {
        slots: (processors * SLOTS_PER_PROCESSOR).clamp(min, max),
        strangers_share: processors as f64 * STRANGERS_SHARE,
    }
}

/// Runs blocking work on a thread that may block, when it is the turn of `who`.
pub(crate) async fn blocking<T: Send + 'static>(
    hub: &Arc<Hub>,
    who: &Party,
    work: impl FnOnce(&Hub) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    behind(&hub.gate, hub, who, work).await
}

/// The same for operations that may take minutes.
pub(crate) async fn blocking_long<T: Send + 'static>(
    hub: &Arc<Hub>,
    who: &Party,
    work: impl FnOnce(&Hub) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    behind(&hub.long_gate, hub, who, work).await
}

pub(crate) async fn behind<T: Send + 'static>(
    gate: &Gate,
    hub: &Arc<Hub>,
    who: &Party,
    work: impl FnOnce(&Hub) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let turn = gate.enter(who).await;
    let turn = turn.ok_or_else(|| ApiError::busy("this did not get its turn for a minute"))?;
    apart(hub, move |hub| {
        // The turn ends with the work, not with the request, which may have been dropped.
        let _turn = turn;
        work(hub)
    })
    .await
}

/// Runs the hub's own or cheap blocking work at once, on a thread that may block; a panic becomes an error.
pub(crate) async fn apart<T: Send + 'static>(
    hub: &Arc<Hub>,
    work: impl FnOnce(&Hub) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let hub = hub.clone();
    tokio::task::spawn_blocking(move || work(&hub)).await?
}

/// Searches for stale uploads and for packs that nobody needs any more every `HOUSEKEEPING_INTERVAL`, until the runtime ends.
pub(crate) async fn housekeeping(hub: Arc<Hub>) {
    let mut interval = tokio::time::interval(HOUSEKEEPING_INTERVAL.min(hub.limits.upload_expiry));
    let mut copied = std::time::Instant::now();
    loop {
        interval.tick().await;
        if let Err(error) = apart(&hub, Hub::expire_uploads).await {
            tracing::warn!(error = %error.body.message, "cannot drop stale uploads");
        }
        let swept = apart(&hub, |hub| hub.retire(None).and_then(|()| hub.sweep()));
        if let Err(error) = swept.await {
            tracing::warn!(error = %error.body.message, "cannot remove packs that nobody needs");
        }
        if copied.elapsed() >= BACKUP_INTERVAL {
            copied = std::time::Instant::now();
            let copying = apart(&hub, |hub| {
                hub.back_up();
                Ok(())
            });
            drop(copying.await);
        }
    }
}
