//! Makes an image out of packs and publishes it; changes its visibility and removes it.
//!
//! An image becomes visible only after its Merkle tree was walked: the manifest's segments are read and hashed, and each
//! chunk that they name must be in a pack of the scope, every item of which was checked when it was received. Then files
//! are moved to their places, and one transaction in the catalogue makes the image visible.
//!
//! A pack that the public may read must not contain anything private: one that also has other chunks (of a private image
//! that the owner built on) is written anew without them.

use super::allowed;
use super::catalogue::Publication;
use super::disk::{is_damage, remove_file, sync_folder};
use super::error::{ApiError, ApiResult};
use super::packs::{Place, Scope};
use super::quota;
use super::state::Hub;
use super::visible::OwnImage;
use floe_image::{
    Hash, ImageName, Kind, Layout, Manifest, PackRef, PackWriter, SEGMENT_SPAN, Segment,
    compress_frame,
};
use std::io;
use std::path::{Path, PathBuf};

/// zstd level of frames that the hub writes itself.
const LEVEL: i32 = 3;

/// The items of each frame of each pack that an image uses.
pub(crate) struct Used {
    /// Masks by pack and frame: one bit per item.
    pub masks: Vec<Vec<u16>>,
    /// Raw bytes of these items.
    pub bytes: u64,
}

impl Used {
    fn new(scope: &Scope) -> Used {
        Used {
            masks: scope
                .packs
                .iter()
                .map(|pack| vec![0; pack.index.frame_count() as usize])
                .collect(),
            bytes: 0,
        }
    }

    /// Marks an item. Returns whether it was not marked before.
    fn mark(&mut self, kind: Kind, place: Place) -> bool {
        let mask = &mut self.masks[place.pack as usize][place.at.frame as usize];
        let bit = 1 << place.at.slot;
        let first = *mask & bit == 0;
        *mask |= bit;
        if first {
            self.bytes += kind.raw_size() as u64;
        }
        first
    }
}

/// Walks the tree from the manifest down. Returns the used items; an error if any is missing or wrong.
pub(crate) fn walk(hub: &Hub, manifest: &Manifest, scope: &Scope) -> ApiResult<Used> {
    let mut used = Used::new(scope);
    let mut missing = 0u64;
    let mut first_missing = None;
    let mut miss = |kind: Kind, hash: &Hash, place: String| {
        missing += 1;
        first_missing.get_or_insert_with(|| format!("{} {hash} ({place})", kind.name()));
    };
    for region in &manifest.regions {
        for (number, id) in region.segments.iter().enumerate() {
            if id.is_zero() {
                continue;
            }
            let place = || {
                format!(
                    "region {}, bytes from {}",
                    region.name,
                    number as u64 * SEGMENT_SPAN
                )
            };
            let Some(found) = scope.find(Kind::Segment, id) else {
                miss(Kind::Segment, id, place());
                continue;
            };
            let seen = !used.mark(Kind::Segment, found);
            let segment = read_segment(hub, scope, found, id)?;
            let chunks = (region.chunks() - number as u64 * segment.hashes().len() as u64) as usize;
            if segment
                .hashes()
                .iter()
                .skip(chunks)
                .any(|hash| !hash.is_zero())
            {
                return Err(ApiError::invalid(format!(
                    "a segment has chunks beyond its region's end ({})",
                    place()
                )));
            }
            if seen {
                continue;
            }
            for hash in segment.hashes().iter().filter(|hash| !hash.is_zero()) {
                match scope.find(Kind::Chunk, hash) {
                    Some(found) => {
                        used.mark(Kind::Chunk, found);
                    }
                    None => miss(Kind::Chunk, hash, place()),
                }
            }
            if used.bytes > hub.limits.image_bytes_max {
                return Err(ApiError::too_large(
                    "the image's content",
                    hub.limits.image_bytes_max,
                ));
            }
        }
        for hash in region.patched_chunks() {
            match scope.find(Kind::Chunk, &hash) {
                Some(found) => {
                    used.mark(Kind::Chunk, found);
                }
                None => miss(
                    Kind::Chunk,
                    &hash,
                    format!("a patch of region {}", region.name),
                ),
            }
        }
    }
    match first_missing {
        None => Ok(used),
        Some(first) => Err(ApiError::new(
            axum::http::StatusCode::CONFLICT,
            "incomplete",
            format!("{missing} items of the image are not here; the first is {first}"),
            "ask with /have what is missing, send it, and commit again",
        )),
    }
}

/// Reads a segment from its pack and checks its hash.
pub(crate) fn read_segment(
    hub: &Hub,
    scope: &Scope,
    place: Place,
    id: &Hash,
) -> ApiResult<Segment> {
    let pack = &scope.packs[place.pack as usize];
    let damaged = |error: &dyn std::fmt::Display| {
        hub.found_damaged(&pack.reference.id, error);
        ApiError::invalid(format!("segment {id}: {error}"))
    };
    let frame = hub.packs.frame_uncached(pack, place.at.frame, &mut None);
    let frame = frame.map_err(|error| match is_damage(&error) {
        true => damaged(&error),
        false => error.into(),
    })?;
    let bytes = frame.item(place.at.slot).map_err(|e| damaged(&e))?;
    Kind::Segment.verify(id, bytes).map_err(|e| damaged(&e))?;
    Segment::decode(bytes).map_err(|e| damaged(&e))
}

/// The packs of an image as they will be published, and the paths of the new ones.
struct Assembled {
    packs: Vec<PackRef>,
    raw_bytes: u64,
}

/// Checks that `scope` holds the image, and selects its packs. A pack that its readers may not read as a whole is written
/// anew into `folder`.
fn assemble(
    hub: &Hub,
    manifest: &Manifest,
    scope: &Scope,
    shared: bool,
    folder: &Path,
) -> ApiResult<Assembled> {
    let used = walk(hub, manifest, scope)?;
    let mut packs = Vec::new();
    for (pack, masks) in scope.packs.iter().zip(&used.masks) {
        if masks.iter().all(|mask| *mask == 0) {
            continue;
        }
        let whole = pack
            .index
            .frames()
            .iter()
            .zip(masks)
            .all(|(frame, mask)| mask.count_ones() == u32::from(frame.items));
        let kept = if !shared || whole || hub.catalogue.is_public_pack(&pack.reference.id)? {
            pack.reference
        } else {
            hub.check_room(pack.reference.file_bytes)?;
            floe_store::private::make_dirs(folder)?;
            strip(hub, pack, masks, folder)?
        };
        if !packs.contains(&kept) {
            packs.push(kept);
        }
    }
    Ok(Assembled {
        packs,
        raw_bytes: used.bytes,
    })
}

/// Writes a pack with the marked items of another pack.
fn strip(hub: &Hub, pack: &super::packs::Pack, masks: &[u16], folder: &Path) -> ApiResult<PackRef> {
    let out = tempfile::NamedTempFile::new_in(folder)?;
    let mut writer = PackWriter::new(io::BufWriter::new(out))?;
    let mut file = None;
    for (number, mask) in masks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
        let frame = hub.packs.frame_uncached(pack, number as u32, &mut file)?;
        let marked = |slot: &u16| mask & (1 << slot) != 0;
        let slots: Vec<u16> = (0..frame.info.items).filter(marked).collect();
        let all = pack.index.frame_hashes(number as u32);
        let hashes: Vec<Hash> = slots.iter().map(|slot| all[usize::from(*slot)]).collect();
        if slots.len() == usize::from(frame.info.items) {
            writer.push_frame(frame.info.kind, &hashes, &frame.compressed)?;
            continue;
        }
        let items = slots
            .iter()
            .map(|slot| frame.item(*slot))
            .collect::<Result<Vec<_>, _>>();
        let items = items.map_err(|e| ApiError::invalid(e.to_string()))?;
        writer.push_frame(
            frame.info.kind,
            &hashes,
            &compress_frame(frame.info.kind, &items, LEVEL),
        )?;
    }
    let (out, reference) = writer.finish()?;
    let out = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    out.as_file().sync_all()?;
    out.persist(folder.join(format!("{}.pack", reference.id)))
        .map_err(|e| e.error)?;
    Ok(reference)
}

/// The settings of a commit.
pub(crate) struct Wish<'a> {
    pub owner: &'a str,
    pub public: bool,
    /// Further users who may read it.
    pub readers: &'a [String],
    pub name: Option<&'a ImageName>,
    pub upload: Option<&'a str>,
}

/// The files of an image that is being published. If it does not become visible, those of which the catalogue knows nothing are removed
/// again when this is dropped: they count for nobody's quota, so that a user who is over it could fill the disk with them. Whoever has this
/// also holds `publishing`.
struct Litter<'a> {
    hub: &'a Hub,
    id: &'a Hash,
    packs: &'a [PackRef],
    is_published: bool,
}

impl Litter<'_> {
    /// Notes that the image is visible, so that its files stay.
    fn published(mut self) {
        self.is_published = true;
    }
}

impl Drop for Litter<'_> {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        let catalogue = &self.hub.catalogue;
        for pack in self.packs {
            // an error does not say that it knows nothing of it
            if matches!(catalogue.knows_pack(&pack.id), Ok(false)) {
                remove_file(&self.hub.packs.pack_path(&pack.id));
            }
        }
        if matches!(catalogue.knows_image(self.id), Ok(false))
            && let Err(error) = self.hub.remove_files(self.id)
        {
            tracing::warn!(image = %self.id, %error, "the manifest of an image that was not published stays until the next start");
        }
    }
}

/// Moves a pack of an image, which may be in `folder`, to its place; in the place of one that is damaged.
fn put_in(hub: &Hub, pack: &PackRef, folder: &Path) -> ApiResult<()> {
    let (from, to) = (
        folder.join(format!("{}.pack", pack.id)),
        hub.packs.pack_path(&pack.id),
    );
    let is_sent = from.try_exists()?;
    let mut is_mended = is_sent && hub.packs.is_damaged(&pack.id);
    if !to.try_exists()? {
        move_in(&from, &to)?;
    } else if is_sent && !is_whole(&to, &pack.id) {
        // The sent pack was checked when it was received.
        tracing::warn!(pack = %pack.id, "a damaged pack is replaced by what was sent");
        move_in(&from, &to)?;
        is_mended = true;
    }
    // also one whose file was lost, and one that is whole after all
    if is_mended {
        hub.mended(&pack.id)?;
    }
    Ok(())
}

/// Publishes an image whose packs are in `scope`. New packs are in `folder` or are made there.
pub(crate) fn publish(
    hub: &Hub,
    id: &Hash,
    manifest_bytes: &[u8],
    scope: &Scope,
    folder: &Path,
    wish: &Wish<'_>,
) -> ApiResult<u64> {
    let manifest = Manifest::decode_verified(manifest_bytes, id)
        .map_err(|e| ApiError::invalid(e.to_string()))?;
    let publishing = hub.publishing.lock();
    let shared = wish.public || !wish.readers.is_empty();
    let assembled = assemble(hub, &manifest, scope, shared, folder)?;
    let litter = Litter {
        hub,
        id,
        packs: &assembled.packs,
        is_published: false,
    };
    for pack in &assembled.packs {
        put_in(hub, pack, folder)?;
    }
    let layout = Layout {
        packs: assembled.packs.clone(),
    };
    let files_bytes = hub.put_files(id, manifest_bytes, &layout.encode())?;
    let quota = allowed::quota_of(hub, wish.owner)?;
    let published = hub.catalogue.publish(&Publication {
        id: *id,
        owner: wish.owner,
        public: wish.public,
        readers: wish.readers,
        created_unix_s: manifest.created_unix_s,
        raw_bytes: assembled.raw_bytes,
        packs: &assembled.packs,
        files_bytes,
        name: wish.name,
        upload: wish.upload,
        quota,
        named: &hub.swarms.named(id),
    })?;
    published.map_err(|used| quota::exceeded(wish.owner, &used, &quota))?;
    hub.packs.forget_scope(id, wish.owner);
    litter.published();
    drop(publishing);
    if let Some(pool) = &hub.pool {
        pool.note(id, &manifest);
    }
    Ok(assembled.raw_bytes)
}

/// Returns whether a stored pack has the content that its id says. It has at most some megabytes; the publisher waits
/// for this.
fn is_whole(path: &Path, id: &Hash) -> bool {
    std::fs::read(path).is_ok_and(|bytes| super::verify_pack(&bytes, id).is_ok())
}

fn move_in(from: &Path, to: &Path) -> io::Result<()> {
    let folder: PathBuf = to.parent().map(Path::to_owned).unwrap_or_default();
    if !folder.try_exists()? {
        floe_store::private::make_dirs(&folder)?;
        if let Some(above) = folder.parent() {
            sync_folder(above)?;
        }
    }
    std::fs::rename(from, to)?;
    sync_folder(&folder)
}

/// Makes an image visible to everybody, or to its owner alone.
pub(crate) fn set_visibility(hub: &Hub, image: &OwnImage, public: bool) -> ApiResult<()> {
    let scope = hub.scope_of(&hub.catalogue.packs(image)?)?;
    let bytes = std::fs::read(hub.manifest_of(image))?;
    let work = tempfile::TempDir::new_in(hub.staging(""))?;
    publish(
        hub,
        image.id(),
        &bytes,
        &scope,
        work.path(),
        &Wish {
            owner: image.owner(),
            public,
            readers: &[],
            name: None,
            upload: None,
        },
    )?;
    hub.forget_uploads();
    hub.sweep()
}

/// Removes an owner's holding with its traces and models, and the files that nobody else needs. Returns whether it
/// existed.
pub(crate) fn remove(hub: &Hub, image: &OwnImage) -> ApiResult<bool> {
    let (id, owner) = (image.id(), &**image.owner());
    let removed = hub.catalogue.remove(id, owner)?;
    hub.packs.forget_scope(id, owner);
    hub.forget_uploads();
    {
        let _publishing = hub.publishing.lock();
        let _tracing = hub.tracing.lock();
        if removed && !hub.catalogue.holds(id, owner) {
            hub.traces.remove(id, owner)?;
        }
        if removed && !hub.catalogue.held(id) {
            if let Some(pool) = &hub.pool {
                pool.forget(id);
            }
            hub.remove_files(id)?;
        }
    }
    hub.sweep()?;
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::super::Quota;
    use super::super::catalogue::Upload;
    use super::super::quota::Opened;
    use super::*;

    fn hub_of_ann() -> (tempfile::TempDir, Hub) {
        let dir = tempfile::tempdir().unwrap();
        let options = crate::HubOptions::new(dir.path(), ([127, 0, 0, 1], 0).into());
        let hub = Hub::open(&options).unwrap();
        hub.catalogue.ensure_user("ann").unwrap();
        (dir, hub)
    }

    fn opened_upload(hub: &Hub, id: &Hash) -> Upload {
        let opened = hub
            .catalogue
            .open_upload("ann", (id, 100), 8, &Quota::default());
        match opened.unwrap() {
            Opened::Upload(upload) => upload,
            _ => panic!("there is room"),
        }
    }

    #[test]
    fn what_is_not_published_leaves_no_files_that_count_for_nobody() {
        let (dir, hub) = hub_of_ann();
        let [known, unknown] = [1, 2].map(|name| PackRef {
            id: Hash([name; 32]),
            file_bytes: 1 << 20,
            index_offset: 100,
            index_bytes: 100,
            root: None,
        });
        let id = Hash([9; 32]);
        let upload = opened_upload(&hub, &id);
        hub.catalogue.need_packs(&upload.key, &[known]).unwrap();
        let packs = [known, unknown];
        for pack in &packs {
            let path = hub.packs.pack_path(&pack.id);
            floe_store::private::make_dirs(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"a pack").unwrap();
        }
        hub.put_files(&id, b"a manifest", b"a layout").unwrap();
        let there = || {
            let manifest = dir.path().join("repo/images").join(id.to_string());
            let packs = packs.map(|pack| hub.packs.pack_path(&pack.id));
            let files = packs.into_iter().chain([manifest]);
            files
                .map(|file| file.try_exists().unwrap())
                .collect::<Vec<bool>>()
        };
        let litter = || Litter {
            hub: &hub,
            id: &id,
            packs: &packs,
            is_published: false,
        };
        litter().published();
        assert_eq!(there(), [true, true, true]);
        drop(litter());
        assert_eq!(there(), [true, false, false], "an upload needs the first");
    }

    #[test]
    fn a_pack_that_was_lost_is_damaged_no_longer_once_it_was_sent_again() {
        let (_dir, hub) = hub_of_ann();
        let folder = hub.staging("one");
        floe_store::private::make_dirs(&folder).unwrap();
        let mut writer = PackWriter::new(Vec::<u8>::new()).unwrap();
        let chunk = [7u8; floe_image::CHUNK_SIZE];
        let frame = compress_frame(Kind::Chunk, &[&chunk], LEVEL);
        let hash = floe_image::chunk_hash(&chunk);
        writer.push_frame(Kind::Chunk, &[hash], &frame).unwrap();
        let (bytes, pack) = writer.finish().unwrap();
        let upload = opened_upload(&hub, &pack.id);
        hub.found_damaged(&pack.id, &"nobody knows it");
        assert!(!hub.packs.is_damaged(&pack.id), "it was removed");
        hub.catalogue.need_packs(&upload.key, &[pack]).unwrap();
        hub.found_damaged(&pack.id, &"its file is gone");
        assert!(hub.packs.is_damaged(&pack.id));
        std::fs::write(folder.join(format!("{}.pack", pack.id)), &bytes).unwrap();
        put_in(&hub, &pack, &folder).unwrap();
        assert!(!hub.packs.is_damaged(&pack.id));
        assert_eq!(hub.catalogue.damaged_packs().unwrap(), []);
        let there = std::fs::read(hub.packs.pack_path(&pack.id)).unwrap();
        assert_eq!(there, bytes);
    }
}
