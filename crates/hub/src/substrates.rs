//! Brings the substrates of a hub that is a pool into its memory, one after the other, and tells who may read them what is there.

use super::access::Viewer;
use super::disk::is_damage;
use super::error::{ApiError, ApiResult};
use super::packs::{Pack, Scope};
use super::pool::{Known, Pool};
use super::publish::{Used, read_segment, walk};
use super::state::{Hub, apart, blocking};
use super::visible::VisibleImage;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use floe_api::hub::{ErrorBody, PooledSubstrate, PooledSubstrates};
use floe_api::{PoolStatus, Visibility};
use floe_image::{CHUNK_SIZE, Hash, Kind, Manifest};
use floe_store::{POOL_SMALL_REGIONS, Packing, PoolItem};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often taking a substrate into memory is tried anew, because chunks that it has in common with others left meanwhile.
const TRIES_MAX: usize = 4;
/// How long until the substrates that could not be looked at when the hub started are looked for again; twice as long each time, up to
/// the second.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(300);
/// Least bytes that an item takes in the pool's memory, however well it is compressed.
const ITEM_BYTES_MIN: u64 = 49;

impl Pool {
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

    /// Takes a substrate into memory if it fits. `in_free_room`: only if no other substrate has to leave for it.
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
    let frame = hub.packs.frame_uncached(pack, number, file);
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
