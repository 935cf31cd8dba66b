//! Single packs: reads a pack and its index, and takes in packs from elsewhere.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use floe_image::{
    FRAME_BYTES_MAX, FrameInfo, Hash, Kind, PACK_FOOTER_BYTES, PACK_HEADER_BYTES, PackIndex,
    PackRef, check_pack_header, decompress_frame_into,
};
use tempfile::TempPath;

use super::Repository;
use crate::{StoreError, durable, private};

/// Most bytes of parsed indices in memory: those of about 4 GiB of stored data, in packs of 8 MiB.
const INDEX_BYTES_MAX: usize = 64 << 20;
/// Bytes copied at once.
const COPY_BYTES: usize = 256 * 1024;

/// Parsed indices by pack; the least recently used are dropped first.
#[derive(Default)]
pub(super) struct Indices {
    known: HashMap<Hash, (Arc<PackIndex>, u64)>,
    bytes: usize,
    clock: u64,
}

fn weight(index: &PackIndex) -> usize {
    index.hashes().len() * 36 + index.frame_count() as usize * 24
}

impl Indices {
    fn get(&mut self, id: &Hash) -> Option<Arc<PackIndex>> {
        self.clock += 1;
        let (index, used) = self.known.get_mut(id)?;
        *used = self.clock;
        Some(index.clone())
    }

    pub fn forget(&mut self, id: &Hash) {
        if let Some((index, _)) = self.known.remove(id) {
            self.bytes -= weight(&index);
        }
    }

    fn insert(&mut self, id: Hash, index: Arc<PackIndex>) {
        self.clock += 1;
        self.bytes += weight(&index);
        if let Some((old, _)) = self.known.insert(id, (index, self.clock)) {
            self.bytes -= weight(&old);
        }
        while self.bytes > INDEX_BYTES_MAX && self.known.len() > 1 {
            // Searches some hundred entries, which is nothing compared with reading an index from the disk.
            let Some(oldest) = self
                .known
                .iter()
                .min_by_key(|(_, (_, used))| *used)
                .map(|(id, _)| *id)
            else {
                break;
            };
            if let Some((index, _)) = self.known.remove(&oldest) {
                self.bytes -= weight(&index);
            }
        }
    }
}

/// Reads the footer of a pack file.
pub(super) fn read_ref(file: &File, path: &Path) -> Result<PackRef, StoreError> {
    let bad = |source| StoreError::Format {
        path: path.to_path_buf(),
        source,
    };
    let io = |e| StoreError::io("read", path, e);
    let file_bytes = file.metadata().map_err(io)?.len();
    if file_bytes < PACK_HEADER_BYTES + PACK_FOOTER_BYTES {
        return Err(StoreError::damaged(
            path,
            format!("it has {file_bytes} bytes, which is too short for a pack; fetch it again"),
        ));
    }
    let mut header = [0u8; PACK_HEADER_BYTES as usize];
    file.read_exact_at(&mut header, 0).map_err(io)?;
    check_pack_header(&header).map_err(bad)?;
    let mut footer = [0u8; PACK_FOOTER_BYTES as usize];
    file.read_exact_at(&mut footer, file_bytes - PACK_FOOTER_BYTES)
        .map_err(io)?;
    PackRef::from_footer(&footer, file_bytes).map_err(bad)
}

/// Reads and checks the index of a pack file.
pub(super) fn read_index(
    file: &File,
    path: &Path,
    pack: &PackRef,
) -> Result<PackIndex, StoreError> {
    let bad = |source| StoreError::Format {
        path: path.to_path_buf(),
        source,
    };
    pack.check().map_err(bad)?;
    let file_bytes = file
        .metadata()
        .map_err(|e| StoreError::io("read", path, e))?
        .len();
    if file_bytes != pack.file_bytes {
        return Err(StoreError::damaged(
            path,
            format!(
                "it has {file_bytes} bytes instead of {}; fetch it again",
                pack.file_bytes
            ),
        ));
    }
    let mut bytes = vec![0u8; pack.index_bytes as usize];
    file.read_exact_at(&mut bytes, pack.index_offset)
        .map_err(|e| StoreError::io("read", path, e))?;
    PackIndex::decode(&bytes, pack).map_err(bad)
}

/// Reads a whole pack file and checks it frame by frame. Returns what it is, with its root.
fn check_pack(file: &File, path: &Path) -> Result<(PackRef, PackIndex), StoreError> {
    let mut pack = read_ref(file, path)?;
    let index = read_index(file, path, &pack)?;
    let (mut compressed, mut raw) = (vec![0u8; FRAME_BYTES_MAX as usize], Vec::new());
    for (number, frame) in index.frames().iter().enumerate() {
        let bytes = &mut compressed[..frame.len as usize];
        file.read_exact_at(bytes, frame.offset)
            .map_err(|e| StoreError::io("read", path, e))?;
        let wrong =
            check_frame(&index, number as u32, frame, bytes, &mut raw).map_err(|source| {
                StoreError::Format {
                    path: path.to_path_buf(),
                    source,
                }
            })?;
        if let Some(&item) = wrong.first() {
            let size = frame.kind.raw_size();
            return Err(StoreError::Corrupt {
                what: format!(
                    "item {item} of frame {number} at {} of pack {}",
                    frame.offset, pack.id
                ),
                expected: index.frame_hashes(number as u32)[item],
                found: floe_image::chunk_hash(&raw[item * size..(item + 1) * size]),
            });
        }
    }
    let mut from_start = file;
    let root = from_start.rewind().and_then(|()| Hash::of_all(from_start));
    pack.root = Some(root.map_err(|e| StoreError::io("read", path, e))?);
    Ok((pack, index))
}

/// Checks a frame's bytes item by item. Returns the numbers of the items whose content isn't what the index says; the error
/// says what is wrong with the frame as a whole.
pub(super) fn check_frame(
    index: &PackIndex,
    number: u32,
    frame: &FrameInfo,
    compressed: &[u8],
    raw: &mut Vec<u8>,
) -> Result<Vec<usize>, floe_image::FormatError> {
    decompress_frame_into(frame.kind, compressed, frame.items.into(), raw)?;
    let items = raw
        .chunks_exact(frame.kind.raw_size())
        .zip(index.frame_hashes(number));
    Ok(items
        .enumerate()
        .filter(|(_, (item, hash))| frame.kind.verify(hash, item).is_err())
        .map(|(i, _)| i)
        .collect())
}

impl Repository {
    /// Returns the index of a pack, from memory or disk.
    pub(super) fn index(&self, pack: &PackRef) -> Result<Arc<PackIndex>, StoreError> {
        if let Some(index) = self.inner.indices.lock().get(&pack.id) {
            return Ok(index);
        }
        let path = self.pack_path(&pack.id);
        let file = File::open(&path).map_err(|e| StoreError::io("open", &path, e))?;
        let index = Arc::new(read_index(&file, &path, pack)?);
        self.inner.indices.lock().insert(pack.id, index.clone());
        Ok(index)
    }

    /// Returns the items of a pack, in the order of the file.
    pub fn pack_items(&self, pack: &PackRef) -> Result<Vec<(Kind, Hash)>, StoreError> {
        let index = self.index(pack)?;
        let frames = (0..).zip(index.frames());
        let items = frames.flat_map(|(number, frame)| {
            let hashes = index.frame_hashes(number).iter();
            hashes.map(|hash| (frame.kind, *hash))
        });
        Ok(items.collect())
    }

    /// Finds out the roots of those of an image's packs of which its layout names none, as one that an older version wrote, and notes them
    /// there. Reads these packs once, and verifies them frame by frame, so that no root is of bytes that went bad on the disk.
    pub fn find_roots(&self, id: &Hash) -> Result<(), StoreError> {
        let mut roots = HashMap::new();
        for pack in self.layout(id)?.packs {
            if pack.root.is_none() {
                let path = self.pack_path(&pack.id);
                let file = File::open(&path).map_err(|e| StoreError::io("open", &path, e))?;
                roots.insert(pack, check_pack(&file, &path)?.0.root);
            }
        }
        if roots.is_empty() {
            return Ok(());
        }
        // nobody lays the packs out anew meanwhile; if somebody has, the others' roots are noted
        let _lock = self.lock(rustix::fs::FlockOperation::LockExclusive)?;
        let mut layout = self.layout(id)?;
        for pack in &mut layout.packs {
            let found = roots.get(&*pack).copied().flatten();
            pack.root = pack.root.or(found);
        }
        self.write_file(&self.layout_path(id), &layout.encode())
    }

    /// Takes in a pack from a file, verified frame by frame; the file stays where it is.
    pub fn adopt_pack(&self, path: &Path) -> Result<PackRef, StoreError> {
        let mut file = File::open(path).map_err(|e| StoreError::io("open", path, e))?;
        let len = file
            .metadata()
            .map_err(|e| StoreError::io("read", path, e))?
            .len();
        self.adopt_pack_from(&mut file, len)
    }

    /// Takes in a pack from a reader of at most `max_bytes`, verified frame by frame. Replaces a pack that is here already,
    /// because the new copy is known to be sound and the old one isn't.
    pub fn adopt_pack_from(
        &self,
        from: &mut dyn Read,
        max_bytes: u64,
    ) -> Result<PackRef, StoreError> {
        let tmp = self.tmp_dir();
        let mut file = durable::temporary(&tmp, self.file_mode())?;
        copy(from, file.as_file_mut(), max_bytes, &tmp)?;
        let (file, name) = file.into_parts();
        self.enter_pack(&file, name)
    }

    /// Takes in a pack's file as it is, verified frame by frame: it gets a name here beside its own, so that its bytes lie on the disk
    /// once. Nobody may change it any more; removed, either name leaves the other as it was. It is copied where a file can't have two names.
    pub fn share_pack(&self, path: &Path) -> Result<PackRef, StoreError> {
        // as young as its name, so that gc keeps it as it keeps other new files
        File::open(path)
            .and_then(|file| file.set_modified(SystemTime::now()))
            .map_err(|e| StoreError::io("touch", path, e))?;
        let name = durable::second_name(path, &self.tmp_dir())
            .map_err(|e| StoreError::io("link", path, e))?;
        let file = File::open(&name).map_err(|e| StoreError::io("open", &*name, e))?;
        file.set_permissions(Permissions::from_mode(self.file_mode()))
            .map_err(|e| StoreError::io("set the mode of", path, e))?;
        self.enter_pack(&file, name)
    }

    /// Checks a pack's file and gives it its name here instead of a temporary one.
    fn enter_pack(&self, file: &File, temporary: TempPath) -> Result<PackRef, StoreError> {
        let (pack, index) = check_pack(file, &temporary)?;
        file.sync_all()
            .map_err(|e| StoreError::io("sync", &*temporary, e))?;
        let path = self.pack_path(&pack.id);
        // renamed to another name of itself, a file would keep both
        if !durable::has_name(file, &path).map_err(|e| StoreError::io("look at", &path, e))? {
            self.place_pack(temporary, &pack)?;
            self.sync_packs(&[pack])?;
        }
        self.inner.indices.lock().insert(pack.id, Arc::new(index));
        Ok(pack)
    }

    /// Gives a verified, synced pack its name. [`Repository::sync_packs`] makes the name durable.
    pub(crate) fn place_pack(&self, file: TempPath, pack: &PackRef) -> Result<(), StoreError> {
        let path = self.pack_path(&pack.id);
        let _lock = self.lock(rustix::fs::FlockOperation::LockShared)?;
        let folder = path.parent().unwrap_or(self.dir());
        private::make_dirs_with(folder, self.dir_mode())
            .map_err(|e| StoreError::io("create", folder, e))?;
        durable::rename(file, &path)
    }

    /// Gives a pack the age of a new one, so that gc keeps it for a while even if no image lists it any more. Returns false if
    /// it isn't here.
    pub(crate) fn keep_pack(&self, pack: &PackRef) -> bool {
        // Takes the lock, so that a gc that has looked at the pack's age before has ended.
        let keep = || {
            let _lock = self.lock(rustix::fs::FlockOperation::LockShared)?;
            let path = self.pack_path(&pack.id);
            let file = File::open(&path).map_err(|e| StoreError::io("open", &path, e))?;
            let touched = file.set_modified(SystemTime::now());
            touched.map_err(|e| StoreError::io("touch", &path, e))
        };
        keep().is_ok()
    }

    /// Makes the names of packs durable: one sync for each directory, of which only the first costs the file system much.
    pub(crate) fn sync_packs(&self, packs: &[PackRef]) -> Result<(), StoreError> {
        let mut dirs: Vec<_> = packs
            .iter()
            .filter_map(|pack| self.pack_path(&pack.id).parent().map(Path::to_path_buf))
            .collect();
        dirs.push(self.dir().join("packs"));
        dirs.sort_unstable();
        dirs.dedup();
        dirs.iter().try_for_each(|dir| durable::sync_dir(dir))
    }
}

/// Copies like `io::copy`, but tells a sender's error from a full disk, and stops at `max_bytes`.
fn copy(from: &mut dyn Read, to: &mut File, max_bytes: u64, dir: &Path) -> Result<(), StoreError> {
    let mut buffer = vec![0u8; COPY_BYTES];
    let mut total = 0u64;
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => {
                return Err(StoreError::Io {
                    what: "receive a pack for",
                    path: dir.to_path_buf(),
                    source,
                });
            }
        };
        total += n as u64;
        if total > max_bytes {
            return Err(StoreError::Invalid {
                what: format!("the pack has more than {max_bytes} bytes; send it in smaller packs"),
            });
        }
        to.write_all(&buffer[..n])
            .map_err(|e| StoreError::io("write to", dir, e))?;
    }
}
