//! The map of a layer: which 512-byte sectors it has, one byte a chunk, one bit a sector.
//!
//! There are two copies. The *live* map is mapped memory that outlives the process (a file on tmpfs, or in the page cache) and
//! is set right after the data was written, so a killed node loses no completed write. The *durable* map lies beside the data
//! and is only written after the data was made durable (`fdatasync` of the data, then the map, then `fdatasync` of the map).
//! Bits are only ever set, and each byte is independent, so a map that a power cut tore is a mixture of two valid ones: it
//! needs no checksum. A sector that the durable map lacks reads as the layer below, as it was before.
//!
//! Both files: a header of 4096 bytes (magic, version u32, disk bytes u64, id 16 bytes; in the live one also the host's boot
//! id), then the bytes of the map. A live map of another boot or another layer is ignored.

use super::CHUNK;
use super::marks::Marks;
use super::storage::{Storage, access};
use crate::MountError;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a sector, which is what one bit of the map stands for.
pub(crate) const SECTOR: u64 = 512;
/// Bytes of a map file's header.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Largest disk: 64 TiB, a map of 16 GiB.
pub(crate) const DISK_BYTES_MAX: u64 = 64 << 40;
/// Bytes of the map that are written at a time.
const PAGE: u64 = 4096;

const DURABLE_MAGIC: &[u8; 8] = b"FLOEMAPD";
const LIVE_MAGIC: &[u8; 8] = b"FLOEMAPL";
const VERSION: u32 = 1;

/// Returns the bits of the sectors of `chunk` that `from..to` covers (bytes, multiples of 512).
pub(crate) fn sectors(chunk: u64, from: u64, to: u64) -> u8 {
    let first = from.max(chunk * CHUNK) / SECTOR % 8;
    let end = to.min((chunk + 1) * CHUNK).div_ceil(SECTOR) - chunk * 8;
    ((1u16 << end) - (1u16 << first)) as u8
}

/// The header of a map file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapHeader {
    pub disk_bytes: u64,
    pub id: [u8; 16],
    /// The id of the host's boot in live maps; zeros in durable ones.
    pub boot: [u8; 16],
}

impl MapHeader {
    fn encode(&self, magic: &[u8; 8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(magic);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.disk_bytes.to_le_bytes());
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.boot);
        out.resize(HEADER_BYTES, 0);
        out
    }

    /// Decodes the header of a durable map; the error says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        Self::decode_as(DURABLE_MAGIC, bytes)
    }

    fn decode_as(magic: &[u8; 8], bytes: &[u8]) -> Result<Self, String> {
        let bytes: &[u8; 52] = bytes.first_chunk().ok_or("the map's header is cut off")?;
        if &bytes[..8] != magic {
            return Err("this is not a layer's map".into());
        }
        let number = |at: usize, n: usize| {
            bytes[at..at + n]
                .iter()
                .rev()
                .fold(0u64, |v, b| v << 8 | u64::from(*b))
        };
        if number(8, 4) != u64::from(VERSION) {
            return Err(format!(
                "the map has version {}, this floe reads {VERSION}; use a newer floe",
                number(8, 4)
            ));
        }
        let disk_bytes = number(12, 8);
        if disk_bytes > DISK_BYTES_MAX {
            return Err(format!(
                "the map is of a disk of {disk_bytes} bytes, the most is {DISK_BYTES_MAX}"
            ));
        }
        let piece = |at: usize| {
            bytes[at..at + 16]
                .try_into()
                .expect("16 bytes are 16 bytes")
        };
        Ok(Self {
            disk_bytes,
            id: piece(20),
            boot: piece(36),
        })
    }
}

/// The map of one layer, with both copies.
pub(crate) struct Map {
    live: MmapRaw,
    live_path: PathBuf,
    pub durable: Box<dyn Storage>,
    header: MapHeader,
    chunks: u64,
    /// The pages of the map that may differ from the durable copy, and whether there is anything to flush.
    pub marks: Marks,
    /// How many chunks have any bit set.
    present: AtomicU64,
}

/// Pages of the map as they were at one moment: for each the number of its first chunk, and its bytes.
pub(crate) type Snapshot = Vec<(u64, Vec<u8>)>;

pub(crate) fn boot_id() -> Result<[u8; 16], MountError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let io = |e| MountError::io("read", path)(e);
    let text = access(path, || std::fs::read_to_string(path)).map_err(io)?;
    let mut digits = text.bytes().filter_map(|b| char::from(b).to_digit(16));
    let mut id = [0; 16];
    for byte in &mut id {
        let (Some(high), Some(low)) = (digits.next(), digits.next()) else {
            return Err(io(io::Error::other("the boot id is not a UUID")));
        };
        *byte = (high << 4 | low) as u8;
    }
    Ok(id)
}

fn random_id() -> Result<[u8; 16], MountError> {
    let path = Path::new("/dev/urandom");
    let mut id = [0; 16];
    let read = || File::open(path).and_then(|mut f| io::Read::read_exact(&mut f, &mut id));
    access(path, read).map_err(MountError::io("read", path))?;
    Ok(id)
}

fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|b| format!("{b:02x}")).collect()
}

impl Map {
    /// Makes the map of a new layer. Nothing of it is durable before the first [`Map::write`].
    pub(crate) fn create(
        path: &Path,
        live_dir: &Path,
        disk_bytes: u64,
    ) -> Result<Self, MountError> {
        let io = |e| MountError::io("make the layer's map", path)(e);
        let header = MapHeader {
            disk_bytes,
            id: random_id()?,
            boot: [0; 16],
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let durable = access(path, || options.open(path)).map_err(io)?;
        let bytes = header.encode(DURABLE_MAGIC);
        access(path, || durable.write_all_at(&bytes, 0)).map_err(io)?;
        let len = HEADER_BYTES as u64 + disk_bytes.div_ceil(4096);
        access(path, || durable.set_len(len)).map_err(io)?;
        Self::with(durable, path, header, live_dir, false)
    }

    /// Opens the map of a layer: the live copy if it is from this boot, the durable one otherwise. The layer may be shorter than
    /// the disk, which was grown since, and never longer: `disk_bytes` is the most.
    pub(crate) fn open(path: &Path, live_dir: &Path, disk_bytes: u64) -> Result<Self, MountError> {
        let io = |e| MountError::io("open the layer's map", path)(e);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let durable = access(path, || options.open(path)).map_err(io)?;
        let mut head = [0; HEADER_BYTES];
        access(path, || durable.read_exact_at(&mut head, 0)).map_err(io)?;
        let header = MapHeader::decode(&head).map_err(bad(path))?;
        if header.disk_bytes > disk_bytes {
            return Err(bad(path)(format!(
                "the layer is of a disk of {} bytes, the machine's has {disk_bytes}",
                header.disk_bytes
            )));
        }
        let wanted = HEADER_BYTES as u64 + header.disk_bytes.div_ceil(4096);
        if access(path, || durable.metadata()).map_err(io)?.len() < wanted {
            access(path, || durable.set_len(wanted)).map_err(io)?;
        }
        Self::with(durable, path, header, live_dir, true)
    }

    fn with(
        durable: File,
        path: &Path,
        header: MapHeader,
        live_dir: &Path,
        existing: bool,
    ) -> Result<Self, MountError> {
        let live_path = live_dir.join(hex(&header.id));
        let boot = boot_id()?;
        let chunks = header.disk_bytes.div_ceil(4096);
        let wanted = MapHeader { boot, ..header };
        let file = open_live(&live_path, &wanted, existing.then_some((&durable, path)))?;
        let live = MmapOptions::new()
            .len(HEADER_BYTES + chunks as usize)
            .map_raw(&file)
            .map_err(MountError::io("map the layer's live map", &live_path))?;
        let map = Self {
            live,
            live_path,
            durable: Box::new(durable),
            header,
            chunks,
            marks: Marks::new(chunks.div_ceil(PAGE) as usize),
            present: AtomicU64::new(0),
        };
        if existing {
            let found = access(path, || map.find_differences());
            found.map_err(MountError::io("read the layer's map", path))?;
        }
        Ok(map)
    }

    /// Compares the two files after a restart, to find again which pages differ and how many chunks are present.
    fn find_differences(&self) -> io::Result<()> {
        let mut page = vec![0; PAGE as usize];
        let mut present = 0;
        for i in 0..self.chunks.div_ceil(PAGE) {
            let first = i * PAGE;
            let page = &mut page[..PAGE.min(self.chunks - first) as usize];
            self.durable.read(page, HEADER_BYTES as u64 + first)?;
            for (chunk, durable) in (first..).zip(page.iter()) {
                let live = self.get(chunk);
                present += u64::from(live != 0);
                if live != *durable {
                    self.marks.differs(i as usize);
                }
            }
        }
        self.present.store(present, Ordering::Relaxed);
        Ok(())
    }

    fn cell(&self, chunk: u64) -> &AtomicU8 {
        assert!(chunk < self.chunks, "chunk {chunk} of {}", self.chunks);
        let at = HEADER_BYTES + chunk as usize;
        // SAFETY: `at` lies within the mapping (its length is the header plus `chunks`), which lives as long as `self` and is
        // fully allocated, and bytes need no alignment. All accesses in this process go through such atomics; another process
        // that maps the file (a node that is being replaced) does the same.
        unsafe { AtomicU8::from_ptr(self.live.as_mut_ptr().add(at)) }
    }

    /// Returns the sectors of a chunk that this layer has: none beyond its end.
    pub(crate) fn get(&self, chunk: u64) -> u8 {
        if chunk >= self.chunks {
            return 0;
        }
        self.cell(chunk).load(Ordering::Acquire)
    }

    /// Returns the size in bytes that the disk had when the layer was made.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.header.disk_bytes
    }

    /// Sets the bits of sectors whose data was written, for each chunk; the next flush makes them durable.
    pub(crate) fn mark(&self, written: impl Iterator<Item = (u64, u8)>) {
        let cells = written.map(|(chunk, bits)| ((chunk / PAGE) as usize, self.cell(chunk), bits));
        let new = self.marks.mark(cells);
        self.present.fetch_add(new as u64, Ordering::Relaxed);
    }

    /// Returns how many chunks have any bit set.
    pub(crate) fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    /// Returns some pages as they are now. Take it before the data is made durable: bits that are set later may stand for data
    /// that isn't durable yet.
    pub(crate) fn snapshot(&self, pages: &[usize]) -> Snapshot {
        let one = |page: &usize| {
            let first = *page as u64 * PAGE;
            let last = (first + PAGE).min(self.chunks);
            (first, (first..last).map(|chunk| self.get(chunk)).collect())
        };
        pages.iter().map(one).collect()
    }

    /// Makes pages durable whose data is durable, and the header too if `header` is set. After a failure call it with the same
    /// pages again (or newer ones): they are written anew, so that an error of the disk isn't forgotten.
    pub(crate) fn write(&self, pages: &Snapshot, header: bool) -> io::Result<()> {
        if header {
            self.durable.write(&self.header.encode(DURABLE_MAGIC), 0)?;
        }
        for (first, page) in pages {
            self.durable.write(page, HEADER_BYTES as u64 + first)?;
        }
        if pages.is_empty() && !header {
            return Ok(());
        }
        self.durable.sync()
    }

    /// Returns the path of the record of the layer's failure, beside the live map.
    pub(crate) fn failure_path(&self) -> PathBuf {
        self.live_path.with_extension("unsynced")
    }

    /// Removes the live copy, when the durable one says the same or the layer is gone.
    pub(crate) fn remove_live(&self) {
        let _ = std::fs::remove_file(&self.live_path);
    }
}

/// Returns where earlier versions kept the live map, whichever user ran the node.
fn live_path_before(id: &[u8; 16]) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    Path::new(&format!("/dev/shm/floe-{uid}")).join(hex(id))
}

/// Opens the live map of a layer. If there is none of this boot it is made: as a copy of the durable one, which is given with its
/// path unless it is new.
fn open_live(
    path: &Path,
    wanted: &MapHeader,
    durable: Option<(&File, &Path)>,
) -> Result<File, MountError> {
    let io = |e| MountError::io("open the layer's live map", path)(e);
    let chunks = wanted.disk_bytes.div_ceil(4096);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let options = options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = access(path, || options.open(path)).map_err(io)?;
    if is_live(&file, path, wanted)? {
        return Ok(file);
    }
    access(path, || file.set_len(0)).map_err(io)?;
    keep_in_place(&file);
    // All of it is allocated now: a full tmpfs or disk must be an error here, not a SIGBUS later.
    let len = HEADER_BYTES as u64 + chunks;
    let none = rustix::fs::FallocateFlags::empty();
    let allocate = || Ok(rustix::fs::fallocate(&file, none, 0, len)?);
    access(path, allocate).map_err(io)?;
    let earlier = live_path_before(&wanted.id);
    let left = match durable {
        Some(_) if earlier != path => live_before(&earlier, wanted)?,
        _ => None,
    };
    let left = left.as_ref().map(|left| (left, earlier.as_path()));
    if let Some((from, from_path)) = left.or(durable) {
        let copied = access(from_path, || copy(from, &file, chunks));
        copied.map_err(MountError::io("make a live map of", from_path))?;
    }
    let header = wanted.encode(LIVE_MAGIC);
    access(path, || file.write_all_at(&header, 0)).map_err(io)?;
    if left.is_some() {
        let _ = std::fs::remove_file(&earlier); // its content is in use here now
    }
    Ok(file)
}

/// Opens the live map that an earlier version left, if there is one in a directory that only this user can have written to.
fn live_before(path: &Path, wanted: &MapHeader) -> Result<Option<File>, MountError> {
    let Some(dir) = path.parent() else {
        return Ok(None);
    };
    let io = |e| MountError::io("look for an earlier live map", path)(e);
    let look = || -> io::Result<Option<File>> {
        let meta = access(path, || std::fs::symlink_metadata(dir))?;
        let ours = meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0;
        if !meta.is_dir() || !ours {
            return Ok(None); // anybody may make one there
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(libc::O_NOFOLLOW);
        access(path, || options.open(path)).map(Some)
    };
    let file = match look() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        found => found.map_err(io)?,
    };
    match file {
        Some(file) => Ok(is_live(&file, path, wanted)?.then_some(file)),
        None => Ok(None),
    }
}

/// Returns whether a file is the live map with this header; `false` for one of another boot, and for one that was not completed: the
/// header is written last. It is an error if the file is anything else, since what it says may be nowhere else.
fn is_live(file: &File, path: &Path, wanted: &MapHeader) -> Result<bool, MountError> {
    let io = |e| MountError::io("read the layer's live map", path)(e);
    let Some(head) = access(path, || read_head(file)).map_err(io)? else {
        return Ok(false);
    };
    let header = MapHeader::decode_as(LIVE_MAGIC, &head).map_err(bad(path))?;
    let len = access(path, || file.metadata()).map_err(io)?.len();
    if header.boot != wanted.boot {
        return Ok(false);
    }
    if header != *wanted || len != HEADER_BYTES as u64 + wanted.disk_bytes.div_ceil(4096) {
        return Err(bad(path)(
            "this is not the live map of the layer that it is named after; remove it to go on with what was flushed".into(),
        ));
    }
    Ok(true)
}

/// Reads the header of a map; `None` if the file ends before it does, or it is all zeros: it was never written, or never durable.
fn read_head(file: &File) -> io::Result<Option<[u8; HEADER_BYTES]>> {
    let mut head = [0; HEADER_BYTES];
    match file.read_exact_at(&mut head, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
        Ok(()) => Ok((!floe_image::is_zero(&head)).then_some(head)),
    }
}

/// Returns whether there is a layer's map: a file of that name with a header. [`Map::open`] looks at what is in the header.
pub(crate) fn is_made(path: &Path) -> Result<bool, MountError> {
    let look = || match access(path, || File::open(path)) {
        // not so if a link has the name that leads nowhere
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match access(path, || std::fs::symlink_metadata(path)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                found => found.and(Err(error)),
            }
        }
        file => Ok(access(path, || read_head(&file?))?.is_some()),
    };
    look().map_err(MountError::io("read the layer's map", path))
}

fn bad(path: &Path) -> impl Fn(String) -> MountError {
    move |reason| MountError::Overlay {
        path: path.to_owned(),
        reason,
    }
}

/// Forbids copy-on-write for a file. On a file system that writes each change to a new place (btrfs), a full disk would
/// otherwise be a SIGBUS at any change. The file must be empty; other file systems don't know the flag and don't need it.
fn keep_in_place(file: &File) {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    if let Ok(flags) = ioctl_getflags(file) {
        let _ = ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}

/// Removes live maps of earlier boots of the host from a directory: they are never used again.
pub(crate) fn remove_earlier_boots(live_dir: &Path) -> Result<(), MountError> {
    let boot = boot_id()?;
    let io = |e| MountError::io("clear", live_dir)(e);
    for entry in std::fs::read_dir(live_dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let head = File::open(&path).and_then(|file| read_head(&file));
        // What can't be read is looked at again when its layer is opened, and told then.
        let header = head
            .ok()
            .flatten()
            .map(|head| MapHeader::decode_as(LIVE_MAGIC, &head));
        if header.is_some_and(|header| header.is_ok_and(|header| header.boot != boot)) {
            std::fs::remove_file(&path).map_err(MountError::io("remove", &path))?;
        }
    }
    Ok(())
}

fn copy(durable: &File, live: &File, chunks: u64) -> io::Result<()> {
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    while at < chunks {
        let piece = &mut buf[..(chunks - at).min(1 << 20) as usize];
        durable.read_exact_at(piece, HEADER_BYTES as u64 + at)?;
        live.write_all_at(piece, HEADER_BYTES as u64 + at)?;
        at += piece.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sector_masks_cover_exactly_the_bytes_that_are_in_the_chunk() {
        assert_eq!(sectors(0, 0, 4096), 0xFF);
        assert_eq!(sectors(1, 4096 + 512, 4096 + 1024), 0b10);
        assert_eq!(sectors(1, 0, 4096 + 1024), 0b11);
        assert_eq!(sectors(1, 4096 + 3584, 1 << 20), 0b1000_0000);
    }

    #[test]
    fn a_live_map_of_another_boot_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, live) = (dir.path().join("map"), dir.path().join("live"));
        std::fs::create_dir(&live).unwrap();
        let map = Map::create(&path, &live, 1 << 20).unwrap();
        map.mark([(3, 0xF0)].into_iter());
        let live_path = map.live_path.clone();
        drop(map);
        assert_eq!(Map::open(&path, &live, 1 << 20).unwrap().get(3), 0xF0);
        let file = OpenOptions::new().write(true).open(&live_path).unwrap();
        file.write_all_at(&[0xAA; 16], 36).unwrap();
        let map = Map::open(&path, &live, 1 << 20).unwrap();
        assert_eq!((map.get(3), map.present()), (0, 0));
    }

    #[test]
    fn a_live_map_where_earlier_versions_kept_it_is_moved() {
        let dir = tempfile::tempdir().unwrap();
        let (path, live) = (dir.path().join("map"), dir.path().join("live"));
        let before = live_path_before(&[0; 16]).parent().unwrap().to_owned();
        std::fs::create_dir(&live).unwrap();
        floe_store::private::make_dirs(&before).unwrap();
        let map = Map::create(&path, &before, 1 << 20).unwrap();
        map.mark([(3, 0xF0)].into_iter());
        let old = map.live_path.clone();
        drop(map);
        let map = Map::open(&path, &live, 1 << 20).unwrap();
        assert_eq!(map.get(3), 0xF0);
        assert!(map.live_path.starts_with(&live) && !old.exists());
    }

    #[test]
    fn what_an_earlier_boot_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, live) = (dir.path().join("map"), dir.path().join("live"));
        std::fs::create_dir(&live).unwrap();
        let map = Map::create(&path, &live, 1 << 20).unwrap();
        remove_earlier_boots(&live).unwrap();
        assert!(map.live_path.exists(), "this boot's stays");
        let file = OpenOptions::new().write(true).open(&map.live_path).unwrap();
        file.write_all_at(&[0xAA; 16], 36).unwrap();
        remove_earlier_boots(&live).unwrap();
        assert!(!map.live_path.exists());
    }

    #[test]
    fn the_map_of_a_disk_that_was_grown_keeps_its_length_and_what_it_knows() {
        let dir = tempfile::tempdir().unwrap();
        let (path, live) = (dir.path().join("map"), dir.path().join("live"));
        std::fs::create_dir(&live).unwrap();
        let map = Map::create(&path, &live, 1 << 20).unwrap();
        // only in the live map: as when the node is killed before a flush
        map.mark([(3, 0xF0)].into_iter());
        drop(map);
        let map = Map::open(&path, &live, 64 << 20).unwrap();
        let last = (64 << 20) / 4096 - 1;
        assert_eq!((map.get(3), map.get(last), map.present()), (0xF0, 0, 1));
        assert_eq!(map.disk_bytes(), 1 << 20);
        drop(map);
        let refused = Map::open(&path, &live, 4096).err().unwrap().to_string();
        assert!(refused.contains("1048576"), "{refused}");
    }

    #[test]
    fn a_map_of_a_newer_version_is_refused_with_the_way_out() {
        let header = MapHeader {
            disk_bytes: 4096,
            id: [1; 16],
            boot: [0; 16],
        };
        let mut bytes = header.encode(DURABLE_MAGIC);
        assert_eq!(MapHeader::decode(&bytes), Ok(header));
        bytes[8] = 9;
        assert!(
            MapHeader::decode(&bytes)
                .unwrap_err()
                .contains("newer floe")
        );
    }

    proptest! {
        #[test]
        fn no_header_makes_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = MapHeader::decode(&bytes);
            let mut with_magic = DURABLE_MAGIC.to_vec();
            with_magic.extend_from_slice(&bytes);
            let _ = MapHeader::decode(&with_magic);
        }
    }
}
