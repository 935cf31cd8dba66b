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

use super::marks::Marks;
use super::storage::Storage;
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

pub(crate) fn boot_id() -> io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let mut digits = text.bytes().filter_map(|b| char::from(b).to_digit(16));
    let mut id = [0; 16];
    for byte in &mut id {
        let (Some(high), Some(low)) = (digits.next(), digits.next()) else {
            return Err(io::Error::other("the boot id is not a UUID"));
        };
        *byte = (high << 4 | low) as u8;
    }
    Ok(id)
}

fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    File::open("/dev/urandom").and_then(|mut f| io::Read::read_exact(&mut f, &mut id))?;
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
            id: random_id().map_err(io)?,
            boot: [0; 16],
        };
        let durable = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .map_err(io)?;
        durable
            .write_all_at(&header.encode(DURABLE_MAGIC), 0)
            .map_err(io)?;
        durable
            .set_len(HEADER_BYTES as u64 + disk_bytes.div_ceil(4096))
            .map_err(io)?;
        Self::with(durable, header, live_dir, false)
    }

    /// Opens the map of a layer: the live copy if it is from this boot, the durable one otherwise. The layer may be shorter than
    /// the disk, which was grown since, and never longer: `disk_bytes` is the most.
    pub(crate) fn open(path: &Path, live_dir: &Path, disk_bytes: u64) -> Result<Self, MountError> {
        let io = |e| MountError::io("open the layer's map", path)(e);
        let bad = |reason: String| MountError::Overlay {
            path: path.to_owned(),
            reason,
        };
        let durable = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(io)?;
        let mut head = [0; HEADER_BYTES];
        durable
            .read_exact_at(&mut head, 0)
            .map_err(|e| bad(format!("the map's header can't be read ({e})")))?;
        let header = MapHeader::decode(&head).map_err(bad)?;
        if header.disk_bytes > disk_bytes {
            return Err(bad(format!(
                "the layer is of a disk of {} bytes, the machine's has {disk_bytes}",
                header.disk_bytes
            )));
        }
        let wanted = HEADER_BYTES as u64 + header.disk_bytes.div_ceil(4096);
        if durable.metadata().map_err(io)?.len() < wanted {
            durable.set_len(wanted).map_err(io)?;
        }
        Self::with(durable, header, live_dir, true)
    }

    fn with(
        durable: File,
        header: MapHeader,
        live_dir: &Path,
        existing: bool,
    ) -> Result<Self, MountError> {
        let live_path = live_dir.join(hex(&header.id));
        let io = |e| MountError::io("map the layer's live map", &live_path)(e);
        let chunks = header.disk_bytes.div_ceil(4096);
        let boot = boot_id().map_err(io)?;
        let wanted = MapHeader { boot, ..header };
        let len = HEADER_BYTES as u64 + chunks;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&live_path)
            .map_err(io)?;
        let mut head = [0; HEADER_BYTES];
        let valid = file.metadata().map_err(io)?.len() == len
            && file.read_exact_at(&mut head, 0).is_ok()
            && MapHeader::decode_as(LIVE_MAGIC, &head) == Ok(wanted);
        if !valid {
            file.set_len(0).map_err(io)?;
            keep_in_place(&file);
            // All of it is allocated now: a full tmpfs or disk must be an error here, not a SIGBUS later.
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len)
                .map_err(|e| io(e.into()))?;
            let earlier = Some(live_path_before(&header.id)).filter(|path| *path != live_path);
            let earlier = earlier.filter(|_| existing);
            let left = earlier.as_ref().and_then(|path| open_live(path, &wanted));
            match &left {
                Some(left) => copy(left, &file, chunks).map_err(io)?,
                None if existing => copy(&durable, &file, chunks).map_err(io)?,
                None => {}
            }
            file.write_all_at(&wanted.encode(LIVE_MAGIC), 0)
                .map_err(io)?;
            if let (Some(_), Some(path)) = (left, earlier) {
                let _ = std::fs::remove_file(path);
            }
        }
        let live = MmapOptions::new()
            .len(len as usize)
            .map_raw(&file)
            .map_err(io)?;
        let map = Self {
            live,
            live_path: live_path.clone(),
            durable: Box::new(durable),
            header,
            chunks,
            marks: Marks::new(chunks.div_ceil(PAGE) as usize),
            present: AtomicU64::new(0),
        };
        if existing {
            map.find_differences().map_err(io)?;
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

/// Opens a live map if it belongs to this user, has its full length, and has the wanted header.
fn open_live(path: &Path, wanted: &MapHeader) -> Option<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path).ok()?;
    let meta = file.metadata().ok()?;
    let whole = meta.len() == HEADER_BYTES as u64 + wanted.disk_bytes.div_ceil(4096);
    let ours = meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw();
    let mut head = [0; HEADER_BYTES];
    file.read_exact_at(&mut head, 0).ok()?;
    let right = MapHeader::decode_as(LIVE_MAGIC, &head) == Ok(*wanted);
    (whole && ours && right).then_some(file)
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
pub(crate) fn remove_earlier_boots(live_dir: &Path) -> io::Result<()> {
    let boot = boot_id()?;
    for entry in std::fs::read_dir(live_dir)? {
        let path = entry?.path();
        let mut head = [0; HEADER_BYTES];
        let read = File::open(&path).and_then(|file| file.read_exact_at(&mut head, 0));
        let header = MapHeader::decode_as(LIVE_MAGIC, &head);
        if read.is_ok() && header.is_ok_and(|header| header.boot != boot) {
            std::fs::remove_file(&path)?;
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
