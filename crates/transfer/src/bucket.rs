//! An image on its way to a bucket, which can't say what it lacks: the packs that are there are found by their names, and what is in
//! those of other images by their indices.
//!
//! Packs of the image that are there under their own names cost nothing to find. Then the indices of other packs are read (32 bytes
//! for a chunk of 4096; those that were read once stay on this host) until everything is found or a bound is reached: those of
//! the image's ancestors, of the images that were published last, and of no image, which an interrupted push has left. Nothing that is
//! there is changed or removed, so several pushes at once don't disturb each other; what makes the image visible is written last.

use super::plan::{Cover, Item};
use super::stock::{Content, Goods};
use super::upload::{INCOMPLETE, Upload};
use super::{Cancel, TransferError, check, passes, retry};
use bytes::Bytes;
use floe_api::hub::PACK_BYTES_MAX;
use floe_image::{Hash, ImageName, Layout, PackRef};
use floe_source::{Bucket, Listed, Source, SourceError};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

/// Of how many other images the packs are looked at, ancestors first, then the newest.
const IMAGES_LOOKED_AT_MAX: usize = 64;
/// How many packs of no image are looked at, the newest first: 32 GiB that an interrupted push may have left.
const LEFT_PACKS_MAX: usize = 4096;
/// Most bytes of indices that are read: those of about 32 GiB of chunks.
const INDEX_BYTES_MAX: u64 = 256 << 20;
/// How many indices are read at once.
const LOOKS_AT_ONCE: usize = 8;

pub(super) struct BucketUpload<'a> {
    bucket: &'a Bucket,
    name: Option<&'a ImageName>,
    goods: &'a Goods<'a>,
    cancel: &'a Cancel,
    missing: Vec<Item>,
    /// Packs that are there and are used.
    uses: Vec<PackRef>,
    /// The image is there, with all of its packs.
    is_published: bool,
    is_resumed: bool,
}

impl<'a> BucketUpload<'a> {
    pub fn begin(
        bucket: &'a Bucket,
        name: Option<&'a ImageName>,
        goods: &'a Goods<'a>,
        content: &Content,
        cancel: &'a Cancel,
    ) -> Result<Self, TransferError> {
        retry(cancel, passes, || Ok(bucket.begin(cancel)?))?;
        let mut upload = BucketUpload {
            bucket,
            name,
            goods,
            cancel,
            missing: Vec::new(),
            uses: Vec::new(),
            is_published: false,
            is_resumed: false,
        };
        let there = upload.packs_there()?;
        let images = retry(cancel, passes, || Ok(bucket.images()?))?;
        if let Some(layout) = upload.published(&images, &there)? {
            upload.uses = layout.packs;
            upload.is_published = true;
            return Ok(upload);
        }
        let mut cover = Cover::new(content.items());
        let left = upload.look(&mut cover, &there, &images)?;
        (upload.uses, upload.missing) = cover.finish(content.items());
        upload.is_resumed = upload.uses.iter().any(|pack| left.contains(&pack.id));
        Ok(upload)
    }

    /// Returns the packs that are there, by id.
    fn packs_there(&self) -> Result<HashMap<Hash, Listed>, TransferError> {
        let packs = retry(self.cancel, passes, || Ok(self.bucket.packs()?))?;
        Ok(packs.into_iter().map(|pack| (pack.id, pack)).collect())
    }

    /// Returns the layout of the image if that and all of its packs are there.
    fn published(
        &self,
        images: &[Listed],
        there: &HashMap<Hash, Listed>,
    ) -> Result<Option<Layout>, TransferError> {
        let image = &self.goods.image;
        if images.iter().all(|listed| listed.id != *image) {
            return Ok(None);
        }
        let manifest = retry(self.cancel, passes, || present(self.bucket.manifest(image)))?;
        let layout = self.layout(image)?.filter(|_| manifest.is_some());
        Ok(layout.filter(|layout| layout.packs.iter().all(|pack| is_there(pack, there))))
    }

    /// Returns a layout; `None` if it is missing or damaged.
    fn layout(&self, image: &Hash) -> Result<Option<Layout>, TransferError> {
        let asked = || present(self.bucket.layout(image));
        Ok(retry(self.cancel, passes, asked)?.flatten())
    }

    /// Offers what is there to the cover; returns the packs that no image lists.
    fn look(
        &self,
        cover: &mut Cover,
        there: &HashMap<Hash, Listed>,
        images: &[Listed],
    ) -> Result<HashSet<Hash>, TransferError> {
        let mut looked: HashSet<Hash> = HashSet::new();
        for own in self.goods.contents() {
            check(self.cancel)?;
            if is_there(&own.pack, there) {
                cover.offer(&own.pack, &own.items);
            }
            looked.insert(own.pack.id);
        }
        let mut read_bytes = 0;
        let mut in_images = HashSet::new();
        for image in self.in_order(images)? {
            let Some(layout) = self.layout(&image)? else {
                continue;
            };
            in_images.extend(layout.packs.iter().map(|pack| pack.id));
            let packs = layout.packs.into_iter();
            let packs = packs.filter(|pack| is_there(pack, there) && looked.insert(pack.id));
            self.offer(cover, packs.map(Sought::Known).collect(), &mut read_bytes)?;
        }
        let mut left: Vec<Listed> = there.values().copied().collect();
        left.retain(|pack| !in_images.contains(&pack.id));
        let names = left.iter().map(|pack| pack.id).collect();
        left.retain(|pack| !looked.contains(&pack.id));
        left.sort_by_key(|pack| (Reverse(pack.written_unix_s), pack.id));
        left.truncate(LEFT_PACKS_MAX);
        let left = left.into_iter().map(Sought::Left).collect();
        self.offer(cover, left, &mut read_bytes)?;
        Ok(names)
    }

    /// Returns the images to look at: ancestors first, then the newest.
    fn in_order(&self, images: &[Listed]) -> Result<Vec<Hash>, TransferError> {
        let listed: HashSet<Hash> = images.iter().map(|image| image.id).collect();
        let mut order = vec![self.goods.image];
        let mut parent = self.goods.manifest.parent;
        while let Some(id) = parent
            && order.len() < IMAGES_LOOKED_AT_MAX
            && listed.contains(&id)
            && !order.contains(&id)
        {
            order.push(id);
            let manifest = retry(self.cancel, passes, || present(self.bucket.manifest(&id)))?;
            parent = manifest.and_then(|manifest| manifest.parent);
        }
        let mut newest: Vec<&Listed> = images.iter().collect();
        newest.sort_by_key(|image| (Reverse(image.written_unix_s), image.id));
        for image in newest {
            if order.len() < IMAGES_LOOKED_AT_MAX && !order.contains(&image.id) {
                order.push(image.id);
            }
        }
        Ok(order)
    }

    /// Reads the indices of packs, several at once, and offers them in their order.
    fn offer(
        &self,
        cover: &mut Cover,
        packs: Vec<Sought>,
        read_bytes: &mut u64,
    ) -> Result<(), TransferError> {
        for part in packs.chunks(LOOKS_AT_ONCE) {
            if cover.is_whole() || *read_bytes >= INDEX_BYTES_MAX {
                return Ok(());
            }
            let next = AtomicUsize::new(0);
            let found: Vec<Mutex<Option<Looked>>> = part.iter().map(|_| Mutex::default()).collect();
            let work = || {
                while let Some(slot) = next_of(&next, part) {
                    *found[slot].lock() = Some(self.items(&part[slot]));
                }
            };
            floe_threads::scope(|scope| scope.spawn_some("push-look", part.len(), work));
            for looked in found.into_iter().filter_map(Mutex::into_inner) {
                if let Some((pack, items)) = looked? {
                    *read_bytes += u64::from(pack.index_bytes);
                    cover.offer(&pack, &items);
                }
            }
        }
        Ok(())
    }

    /// Returns what is in a pack; `None` if it is damaged or has vanished.
    fn items(&self, sought: &Sought) -> Looked {
        let read = || {
            let pack = match sought {
                Sought::Known(pack) => *pack,
                Sought::Left(listed) => self.bucket.pack_ref(listed)?,
            };
            let items = self.bucket.pack_items(&pack)?;
            Ok((pack, items))
        };
        retry(self.cancel, passes, || present(read()))
    }
}

/// A pack that may be of use.
enum Sought {
    Known(PackRef),
    /// One that no image lists.
    Left(Listed),
}

type Looked = Result<Option<(PackRef, Vec<Item>)>, TransferError>;

fn next_of<T>(next: &AtomicUsize, part: &[T]) -> Option<usize> {
    let slot = next.fetch_add(1, Ordering::Relaxed);
    (slot < part.len()).then_some(slot)
}

fn is_there(pack: &PackRef, there: &HashMap<Hash, Listed>) -> bool {
    let listed = there.get(&pack.id);
    listed.is_some_and(|listed| listed.bytes == pack.file_bytes)
}

/// What is missing or damaged there is as good as not there: it is sent anew.
fn present<T>(got: Result<T, SourceError>) -> Result<Option<T>, super::Failed> {
    match got {
        Ok(value) => Ok(Some(value)),
        Err(SourceError::Missing { .. }) => Ok(None),
        Err(SourceError::Invalid { at, what, reason }) => {
            tracing::warn!(%at, %what, %reason, "something there is damaged, and is not used");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

impl Upload for BucketUpload<'_> {
    fn take_missing(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.missing)
    }

    fn pack_bytes_max(&self) -> u64 {
        PACK_BYTES_MAX
    }

    fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    fn put_pack(
        &self,
        pack: &PackRef,
        bytes: Bytes,
        on_bytes: &dyn Fn(u64),
    ) -> Result<(), TransferError> {
        let len = bytes.len() as u64;
        retry(self.cancel, passes, || {
            Ok(self.bucket.put_pack(&pack.id, bytes.clone(), self.cancel)?)
        })?;
        on_bytes(len);
        Ok(())
    }

    fn publish(&self, sent: &[PackRef]) -> Result<(), TransferError> {
        let (bucket, image) = (self.bucket, &self.goods.image);
        if !self.is_published {
            // a server may have lost what it took, and somebody may have removed what was there
            let there = self.packs_there()?;
            let packs = in_reading_order(&self.goods.packs, &self.uses, sent);
            if let Some(lost) = packs.iter().find(|pack| !is_there(pack, &there)) {
                return Err(TransferError::Refused {
                    url: bucket.at().to_owned(),
                    what: "the image's publication".into(),
                    status: 409,
                    code: INCOMPLETE.into(),
                    message: format!(
                        "pack {} is not there as it was sent, {} bytes long",
                        lost.id, lost.file_bytes
                    ),
                    fix: "check the server, and that nobody removes objects there, then push again"
                        .into(),
                });
            }
            let layout = Layout { packs };
            let manifest = Bytes::from(self.goods.manifest.encode());
            retry(self.cancel, passes, || {
                Ok(bucket.put_image(image, manifest.clone(), &layout, self.cancel)?)
            })?;
        }
        if let Some(name) = self.name {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now = now.map_or(0, |since| since.as_secs());
            retry(self.cancel, passes, || {
                Ok(bucket.put_tag(name, image, now, self.cancel)?)
            })?;
        }
        Ok(())
    }
}

/// Returns the packs of a layout: those of the image here in their order, as they were laid out, then the others.
fn in_reading_order(own: &[PackRef], uses: &[PackRef], sent: &[PackRef]) -> Vec<PackRef> {
    let all: HashSet<&PackRef> = uses.iter().chain(sent).collect();
    let first = own.iter().filter(|pack| all.contains(pack));
    let mut seen = HashSet::new();
    let packs = first.chain(sent).chain(uses);
    packs.filter(|pack| seen.insert(pack.id)).copied().collect()
}
