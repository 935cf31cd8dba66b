//! Keeps substrates in memory, in a hub that was started as a pool (`floe pool serve`).
//!
//! ```text
//! published, read, or there at the start -> waits in a queue -> one thread reads and compresses it -> memory
//! a read -> items of its image that are in memory; the rest comes from the packs
//! ```
//! A substrate is an image whose label says so. All that it needs is held, also what it has of its base image, since another host may
//! lack that: chunk by chunk, each once for all substrates. Packs on the disk are complete, so memory may lose anything at any time: to
//! the budget (those that were read least recently go, whole), or with this process, after which those that were published last come
//! back. Who may read an image is decided before anything here is asked, and only items of that image are looked up.
//!
//! Locks: `known`, `queue`, the stock's. None is held while another is taken, or while something is read, compressed or unpacked.

use super::access::Viewer;
use super::error::{ApiError, ApiResult};
use super::publish::{Used, read_segment, walk};
use super::shelf::{Pack, Scope};
use super::state::{Hub, apart, blocking, is_damage};
use super::visible::VisibleImage;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use floe_api::hub::{ErrorBody, PooledSubstrate, PooledSubstrates};
use floe_api::{PoolStatus, SUBSTRATE_LABEL, Visibility};
use floe_image::{CHUNK_SIZE, Hash, Kind, MachineConfig, Manifest};
use floe_store::{POOL_SMALL_REGIONS, Packing, PoolItem, SubstratePool};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often an admission is tried when chunks that it counted on go meanwhile.
const TRIES_MAX: usize = 4;
/// How long until the substrates that could not be looked at when the hub started are looked for again; twice as long each time, up to
/// the second.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(300);
/// Least bytes that an item takes in the pool's memory, however well it is compressed.
const ITEM_BYTES_MIN: u64 = 49;

/// What lists show of a substrate and the catalogue does not have.
#[derive(Clone)]
struct Known {
    machine: String,
    cpus: u32,
    memory_bytes: u64,
    /// It does not fit the budget, or can't be read: it is not tried again before it is published again.
    stays_out: bool,
}

impl Known {
    fn of(config: &MachineConfig) -> Option<Known> {
        let machine = config.labels.get(SUBSTRATE_LABEL)?;
        Some(Known {
            machine: machine.chars().take(64).collect(),
            cpus: config.cpus_now().unwrap_or(1),
            memory_bytes: config.memory_bytes_now().unwrap_or_default(),
            stays_out: false,
        })
    }
}

/// Substrates that are to be brought into memory, each once.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Hash>,
    /// How long it took after the start until memory was full of what was there.
    warm: Option<Duration>,
}

/// The substrates in memory: see the module.
pub(crate) struct Pool {
    stock: Mutex<SubstratePool>,
    known: RwLock<BTreeMap<Hash, Known>>,
    queue: Mutex<Queue>,
    came: tokio::sync::Notify,
}

impl Pool {
    /// Returns a pool that takes `budget_bytes` of memory at most, and holds nothing yet.
    pub fn new(budget_bytes: u64) -> Pool {
        Pool {
            stock: Mutex::new(SubstratePool::new(budget_bytes)),
            known: RwLock::default(),
            queue: Mutex::default(),
            came: tokio::sync::Notify::new(),
        }
    }

    /// Notes an image that was published just now; a substrate is brought into memory.
    pub fn note(&self, id: &Hash, manifest: &Manifest) {
        if let Some(known) = Known::of(&manifest.config) {
            self.known.write().insert(*id, known);
            self.want(id);
        }
    }

    /// Lets an image go that nobody holds any more.
    pub fn forget(&self, id: &Hash) {
        if self.known.write().remove(id).is_some() {
            self.stock.lock().release(id);
            self.settle();
        }
    }

    /// Notes that an image is read. A substrate that is not in memory comes back into it.
    pub fn used(&self, id: &Hash) {
        let may_be_there = matches!(self.known.read().get(id), Some(known) if !known.stays_out);
        if may_be_there && !self.stock.lock().touch(id) {
            self.want(id);
        }
    }

    fn leave_out(&self, id: &Hash) {
        if let Some(known) = self.known.write().get_mut(id) {
            known.stays_out = true;
        }
    }

    fn want(&self, id: &Hash) {
        let waiting = &mut self.queue.lock().waiting;
        if !waiting.contains(id) {
            waiting.push_back(*id);
            self.came.notify_one();
        }
    }

    /// Compresses anew what lost neighbours when substrates left. The stock is free in between, for reads.
    fn settle(&self) {
        while self.stock.lock().thin_some() {}
    }

    /// Returns these items, if all of them are in memory.
    pub fn items(&self, kind: Kind, wanted: &[Hash]) -> Option<Vec<Vec<u8>>> {
        let wants: Vec<(Kind, Hash)> = wanted.iter().map(|hash| (kind, *hash)).collect();
        let (pieces, rest) = self.stock.lock().find(&wants);
        if !rest.is_empty() {
            return None;
        }
        let these: HashSet<&Hash> = wanted.iter().collect();
        let mut found: HashMap<Hash, Vec<u8>> = HashMap::new();
        for piece in pieces {
            let read = piece.read(&mut |_, hash, bytes| {
                if these.contains(&hash) {
                    found.insert(hash, bytes.to_vec());
                }
            });
            if let Err(error) = read {
                tracing::warn!(%error, "memory of the pool went bad; the packs are read");
                return None;
            }
        }
        wanted.iter().map(|hash| found.remove(hash)).collect()
    }

    /// Reads and compresses the items that are lacking. Returns whether they fit `bytes_max`.
    fn read(
        hub: &Hub,
        scope: &Scope,
        lacking: &HashMap<(Kind, Hash), PoolItem>,
        packing: &mut Packing,
        bytes_max: u64,
    ) -> ApiResult<bool> {
        let mut left = lacking.len();
        let mut done = HashSet::new();
        for pack in &scope.packs {
            if left == 0 {
                break;
            }
            let mut file: Option<File> = None;
            for number in 0..pack.index.frame_count() {
                let hashes = pack.index.frame_hashes(number);
                let Some(info) = pack.index.frame(number) else {
                    continue;
                };
                let wanted: Vec<(usize, PoolItem)> = hashes
                    .iter()
                    .enumerate()
                    .filter_map(|(slot, hash)| Some((slot, *lacking.get(&(info.kind, *hash))?)))
                    .filter(|(_, item)| done.insert((item.kind, item.hash)))
                    .collect();
                if wanted.is_empty() {
                    continue;
                }
                left -= wanted.len();
                push_frame(hub, pack, number, &wanted, &mut file, packing)?;
                if packing.packed_bytes() > bytes_max {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Takes a substrate into memory if it fits. `in_free_room`: only into what no other substrate takes.
    fn take_in(&self, hub: &Hub, id: &Hash, in_free_room: bool) -> ApiResult<bool> {
        let is_known = self.known.read().contains_key(id);
        if !is_known || self.stock.lock().touch(id) {
            return Ok(is_known); // it was removed meanwhile, or is there
        }
        let Some(image) = as_its_owner(hub, id) else {
            return Ok(false);
        };
        let bytes = std::fs::read(hub.manifest_of(&image))?;
        let manifest = Manifest::decode_verified(&bytes, id)
            .map_err(|error| ApiError::invalid(error.to_string()))?;
        let scope = hub.load_scope(&image)?;
        let used = walk(hub, &manifest, &scope)?;
        let free_bytes = || {
            let stock = self.stock.lock();
            stock.budget_bytes().saturating_sub(stock.usage().bytes)
        };
        let budget_bytes = self.stock.lock().budget_bytes();
        if used.bytes / CHUNK_SIZE as u64 * ITEM_BYTES_MIN > budget_bytes {
            return Ok(false);
        }
        let items = items_of(&scope, &used, &small_chunks(hub, &manifest, &scope)?);
        for _ in 0..TRIES_MAX {
            let (lacking, mut packing) = self.stock.lock().plan(&items);
            let bytes_max = match in_free_room {
                true => free_bytes(),
                false => budget_bytes,
            };
            let by_hash = lacking.iter().map(|item| ((item.kind, item.hash), *item));
            if !Self::read(hub, &scope, &by_hash.collect(), &mut packing, bytes_max)? {
                return Ok(false);
            }
            let packed = packing.finish()?;
            if in_free_room && packed.growth_bytes_max(items.len()) > free_bytes() {
                return Ok(false);
            }
            let admitted = self.stock.lock().admit(*id, &items, packed, budget_bytes);
            // others that went meanwhile took along what this one has in common with them
            let Ok(admitted) = admitted else { continue };
            self.settle();
            if !self.known.read().contains_key(id) {
                self.stock.lock().release(id); // it was removed meanwhile
            }
            return Ok(admitted.held);
        }
        Ok(false)
    }

    /// Notes the substrates that are there and not known yet. Returns them, those that were published last first, and whether every
    /// image could be looked at.
    fn find_all(&self, hub: &Hub) -> (Vec<Hash>, bool) {
        let images = match hub.catalogue.by_age() {
            Ok(images) => images,
            Err(error) => {
                tracing::warn!(%error, "which substrates there are can't be read");
                return (Vec::new(), false);
            }
        };
        let (mut found, mut all_read) = (Vec::new(), true);
        for (pushed, id) in images {
            if self.known.read().contains_key(&id) {
                continue;
            }
            match known_of(hub, &id) {
                Ok(Some(known)) => {
                    self.known.write().insert(id, known);
                    found.push((pushed, id));
                }
                Ok(None) => {}
                Err(error) => {
                    stays(&id, &error);
                    all_read = false;
                }
            }
        }
        found.sort_unstable();
        let ids = found.into_iter().rev().map(|(_, id)| id);
        (ids.collect(), all_read)
    }

    /// Brings back what was in memory before, as far as it fits. Returns whether all that there may be was looked at.
    fn warm(&self, hub: &Hub) -> bool {
        let began = Instant::now();
        let (all, all_read) = self.find_all(hub);
        let mut count = 0;
        for id in &all {
            match self.take_in(hub, id, true) {
                Ok(held) => count += usize::from(held),
                Err(error) => stays(id, &error),
            }
        }
        // those that were published last are the last to go
        for id in all.iter().rev() {
            self.stock.lock().touch(id);
        }
        let took = began.elapsed();
        self.queue.lock().warm.get_or_insert(took);
        tracing::info!(
            substrates = all.len(),
            in_memory = count,
            seconds = took.as_secs_f64(),
            "the pool is warm"
        );
        all_read
    }

    fn status(&self, seen: &[PooledSubstrate]) -> PoolStatus {
        let (budget_bytes, usage) = {
            let stock = self.stock.lock();
            (stock.budget_bytes(), stock.usage())
        };
        let warm = self.queue.lock().warm;
        PoolStatus {
            budget_bytes,
            used_bytes: usage.bytes,
            compressed_bytes: usage.compressed_bytes,
            raw_bytes: usage.raw_bytes,
            referred_bytes: usage.referred_bytes,
            substrates: seen.len() as u64,
            in_memory: seen.iter().filter(|one| one.in_memory).count() as u64,
            warming: warm.is_none(),
            warm_ms: warm.map(|took| took.as_secs_f64() * 1e3),
            ..Default::default()
        }
    }

    /// Returns the substrates that a viewer may read, by name.
    fn seen_by(&self, hub: &Hub, viewer: Option<&str>) -> ApiResult<Vec<PooledSubstrate>> {
        let mut seen = Vec::new();
        for row in hub.catalogue.images(viewer)? {
            let Some(known) = self.known.read().get(&row.id).cloned() else {
                continue;
            };
            let readers = hub.catalogue.readers_of(&row.id, &row.owner);
            let named = row.tags.first().map(|(name, tag)| match tag.as_str() {
                "latest" => name.clone(),
                tag => format!("{name}:{tag}"),
            });
            seen.push(PooledSubstrate {
                name: named.unwrap_or_default(),
                image: row.id.to_string(),
                owner: row.owner,
                visibility: match (row.public, readers.is_empty()) {
                    (true, _) => Visibility::Public,
                    (false, false) => Visibility::Restricted,
                    (false, true) => Visibility::Private,
                },
                users: readers.iter().map(|user| user.to_string()).collect(),
                docked_unix_s: row.created_unix_s,
                machine: known.machine,
                cpus: known.cpus,
                memory_bytes: known.memory_bytes,
                stored_bytes: row.stored_bytes,
                in_memory: self.stock.lock().holds(&row.id),
            });
        }
        seen.sort_by(|a, b| (&a.name, &a.owner).cmp(&(&b.name, &b.owner)));
        Ok(seen)
    }
}

/// Returns an image as its first owner sees it, if anybody has it: the pool reads what no caller asks for.
fn as_its_owner(hub: &Hub, id: &Hash) -> Option<VisibleImage> {
    let owner = hub
        .catalogue
        .holdings
        .read()
        .get(id)?
        .first()?
        .owner
        .clone();
    hub.catalogue.visible(id, Some(&owner))
}

/// Returns what is shown of an image if it is a substrate. An error does not say that it is none.
fn known_of(hub: &Hub, id: &Hash) -> ApiResult<Option<Known>> {
    let Some(image) = as_its_owner(hub, id) else {
        return Ok(None);
    };
    let bytes = match std::fs::read(hub.manifest_of(&image)) {
        // it was removed meanwhile
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    match Manifest::decode_verified(&bytes, id) {
        Ok(manifest) => Ok(Known::of(&manifest.config)),
        Err(error) => {
            // it is no better the next time
            tracing::warn!(image = id.short(), %error, "an image's manifest is damaged");
            Ok(None)
        }
    }
}

fn stays(id: &Hash, error: &ApiError) {
    let why = &error.body.message;
    tracing::warn!(image = id.short(), %why, "a substrate stays on the disk");
}

/// Reads a frame, and compresses those of its items that are wanted.
fn push_frame(
    hub: &Hub,
    pack: &Pack,
    number: u32,
    wanted: &[(usize, PoolItem)],
    file: &mut Option<File>,
    packing: &mut Packing,
) -> ApiResult<()> {
    let damaged = |error: &dyn std::fmt::Display| {
        hub.found_damaged(&pack.reference.id, error);
        ApiError::invalid(format!("pack {}: {error}", pack.reference.id))
    };
    let frame = hub.shelf.frame_uncached(pack, number, file);
    let frame = frame.map_err(|error| match is_damage(&error) {
        true => damaged(&error),
        false => error.into(),
    })?;
    for (slot, item) in wanted {
        let bytes = frame.item(*slot as u16).map_err(|error| damaged(&error))?;
        item.kind
            .verify(&item.hash, bytes)
            .map_err(|error| damaged(&error))?;
        packing.push(item, bytes)?;
    }
    Ok(())
}

/// Returns the chunks of an image's small parts, which other machines have almost alike.
fn small_chunks(hub: &Hub, manifest: &Manifest, scope: &Scope) -> ApiResult<HashSet<Hash>> {
    let mut small = HashSet::new();
    let regions = manifest.regions.iter();
    for region in regions.filter(|region| POOL_SMALL_REGIONS.contains(&&*region.name)) {
        for id in region.segments.iter().filter(|id| !id.is_zero()) {
            if let Some(place) = scope.find(Kind::Segment, id) {
                small.extend(read_segment(hub, scope, place, id)?.hashes());
            }
        }
    }
    Ok(small)
}

/// Returns what an image uses of its packs, in their order.
fn items_of(scope: &Scope, used: &Used, small: &HashSet<Hash>) -> Vec<PoolItem> {
    let mut items = Vec::new();
    for (pack, masks) in scope.packs.iter().zip(&used.masks) {
        for (number, mask) in masks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            let Some(info) = pack.index.frame(number as u32) else {
                continue;
            };
            let hashes = pack.index.frame_hashes(number as u32).iter().enumerate();
            let marked = hashes.filter(|(slot, _)| mask & (1 << slot) != 0);
            items.extend(marked.map(|(_, hash)| PoolItem {
                kind: info.kind,
                hash: *hash,
                small: info.kind == Kind::Chunk && small.contains(hash),
            }));
        }
    }
    items
}

/// Brings what is there into memory. Returns whether all of it could be looked at.
async fn warm(hub: &Arc<Hub>) -> bool {
    let warmed = apart(hub, |hub| {
        Ok(hub.pool.as_ref().is_none_or(|pool| pool.warm(hub)))
    });
    warmed.await.unwrap_or(true) // a panic, which would come again
}

/// Brings substrates into memory one after the other, until the runtime ends: those that are there, then those that come.
pub(crate) async fn keep(hub: Arc<Hub>) {
    let Some(pool) = &hub.pool else { return };
    let (mut all_read, mut again) = (warm(&hub).await, LOOK_AGAIN);
    loop {
        let next = pool.queue.lock().waiting.pop_front();
        let Some(id) = next else {
            let comes = pool.came.notified();
            if all_read {
                comes.await;
            } else if tokio::time::timeout(again, comes).await.is_err() {
                all_read = warm(&hub).await;
                again = (again * 2).min(LOOK_AGAIN_MAX);
            }
            continue;
        };
        let taken = apart(&hub, move |hub| match &hub.pool {
            Some(pool) => pool.take_in(hub, &id, false),
            None => Ok(false),
        });
        let held = taken.await.unwrap_or_else(|error| {
            stays(&id, &error);
            false
        });
        if !held {
            pool.leave_out(&id);
        }
    }
}

fn no_pool() -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "no-pool",
        "this hub keeps no substrates in memory",
        "start it with floe pool serve; its images are there all the same",
    )
}

/// How full the pool is, and how many of the substrates in it the client may read.
#[utoipa::path(get, path = "/v1/pool", tag = "pool",
    responses((status = 200, body = PoolStatus), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn status(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
) -> ApiResult<Json<PoolStatus>> {
    let name = viewer.name().map(str::to_owned);
    let found = blocking(&hub, viewer.party(), move |hub| {
        let pool = hub.pool.as_ref().ok_or_else(no_pool)?;
        Ok(pool.status(&pool.seen_by(hub, name.as_deref())?))
    });
    Ok(Json(found.await?))
}

/// The substrates that the client may read, by name.
#[utoipa::path(get, path = "/v1/pool/substrates", tag = "pool",
    responses((status = 200, body = PooledSubstrates), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn list(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
) -> ApiResult<Json<PooledSubstrates>> {
    let name = viewer.name().map(str::to_owned);
    let found = blocking(&hub, viewer.party(), move |hub| {
        let pool = hub.pool.as_ref().ok_or_else(no_pool)?;
        pool.seen_by(hub, name.as_deref())
    });
    let substrates = found.await?;
    Ok(Json(PooledSubstrates { substrates }))
}
