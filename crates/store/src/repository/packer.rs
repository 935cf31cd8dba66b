//! Puts frames into pack files. Workers compress frames, which are appended here under a lock; another thread syncs finished
//! files, so that the disk works while the cores do.

use floe_threads::Task;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use floe_image::{Hash, Kind, PackRef, PackWriter};
use parking_lot::Mutex;
use tempfile::{NamedTempFile, TempPath};

use crate::{Repository, StoreError, durable};

/// On a disk of programs and libraries, level 3 took 7.1 s of CPU and level 1 took 5.0 s for 1.1 GB of data, with packs of
/// 381 and 395 MB (`zstd -3` of the whole file: 13.3 s, its zeros included). A pack is written once and sent often.
pub(crate) const LEVEL_DEFAULT: i32 = 3;
/// Largest pack by default: the most that a hub accepts in one upload.
pub(crate) const PACK_BYTES_MAX: u64 = 8 << 20;
/// How many finished packs may wait to be synced.
const SYNC_QUEUE_MAX: usize = 4096;
/// Compressed segments are collected up to this many bytes, so that they are stored together and not between the chunks.
const SEGMENT_BYTES_HELD: usize = 4 << 20;
/// Bytes that an item adds to a pack's index, with its frame's entry (in the worst case each item has its own frame).
const INDEX_BYTES_PER_ITEM: u64 = 48;
/// Bytes of the index's head and the footer, rounded up.
const PACK_OVERHEAD_BYTES: u64 = 256;

type Finished = Vec<(TempPath, PackRef)>;

/// Compressed segments that were collected, and their bytes.
#[derive(Default)]
struct Held {
    segments: Vec<(Hash, Vec<u8>)>,
    bytes: usize,
}

pub(crate) struct Packer {
    repository: Repository,
    pack_bytes_max: u64,
    open: Mutex<Option<PackWriter<NamedTempFile>>>,
    segments: Mutex<Held>,
    bytes: AtomicU64,
    to_sync: Sender<(TempPath, PackRef)>,
    syncer: Task<Result<Finished, StoreError>>,
}

impl Packer {
    pub fn new(repository: Repository, pack_bytes_max: u64) -> Result<Packer, StoreError> {
        let (to_sync, queue) = crossbeam_channel::bounded(SYNC_QUEUE_MAX);
        let syncer = floe_threads::spawn("floe-pack-sync", move || sync_all(&queue))
            .map_err(|e| StoreError::io("start a thread for", repository.dir(), e.into()))?;
        Ok(Packer {
            repository,
            pack_bytes_max,
            open: Mutex::new(None),
            segments: Mutex::default(),
            bytes: AtomicU64::new(0),
            to_sync,
            syncer,
        })
    }

    /// Returns the bytes of the packs closed so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn error(&self, error: std::io::Error) -> StoreError {
        StoreError::io("write a pack in", self.repository.tmp_dir(), error)
    }

    /// Appends a frame.
    pub fn frame(&self, kind: Kind, hashes: &[Hash], compressed: &[u8]) -> Result<(), StoreError> {
        let mut open = self.open.lock();
        if let Some(writer) = &*open
            && self.is_full(writer, compressed.len() as u64, hashes.len())
            && let Some(writer) = open.take()
        {
            self.close(writer)?;
        }
        let writer = match &mut *open {
            Some(writer) => writer,
            none => {
                let file = {
                    let repository = &self.repository;
                    durable::temporary(&repository.tmp_dir(), repository.file_mode())?
                };
                none.insert(PackWriter::new(file).map_err(|e| self.error(e))?)
            }
        };
        writer
            .push_frame(kind, hashes, compressed)
            .map_err(|e| self.error(e))
    }

    /// Closes the open pack if it hasn't room for frames with this many bytes and items.
    pub fn make_room(&self, bytes: u64, items: usize) -> Result<(), StoreError> {
        let full = match &*self.open.lock() {
            Some(writer) => self.is_full(writer, bytes, items),
            None => false,
        };
        if full { self.end_pack() } else { Ok(()) }
    }

    /// Closes the open pack; the next frame begins a new one.
    pub fn end_pack(&self) -> Result<(), StoreError> {
        match self.open.lock().take() {
            Some(writer) => self.close(writer),
            None => Ok(()),
        }
    }

    fn is_full(&self, writer: &PackWriter<NamedTempFile>, bytes: u64, items: usize) -> bool {
        let items = (writer.items() + items) as u64;
        let after = writer.bytes_written() + bytes + items * INDEX_BYTES_PER_ITEM;
        after + PACK_OVERHEAD_BYTES > self.pack_bytes_max
            || items > u64::from(floe_image::PACK_ITEMS_MAX)
    }

    fn close(&self, writer: PackWriter<NamedTempFile>) -> Result<(), StoreError> {
        let (file, pack) = writer.finish().map_err(|e| self.error(e))?;
        self.bytes.fetch_add(pack.file_bytes, Ordering::Relaxed);
        // The file is closed here, and the syncer opens it again: its queue must not hold thousands of descriptors. Sending
        // fails only if a sync failed, which `finish` reports.
        let _ = self.to_sync.send((file.into_temp_path(), pack));
        Ok(())
    }

    /// Takes a compressed segment.
    pub fn segment(&self, hash: Hash, compressed: Vec<u8>) -> Result<(), StoreError> {
        let batch = {
            let mut held = self.segments.lock();
            held.bytes += compressed.len();
            held.segments.push((hash, compressed));
            if held.bytes < SEGMENT_BYTES_HELD {
                return Ok(());
            }
            held.bytes = 0;
            std::mem::take(&mut held.segments)
        };
        self.segments_out(batch)
    }

    fn segments_out(&self, batch: Vec<(Hash, Vec<u8>)>) -> Result<(), StoreError> {
        batch
            .iter()
            .try_for_each(|(hash, bytes)| self.frame(Kind::Segment, &[*hash], bytes))
    }

    /// Closes and syncs all packs and gives them their names; returns them.
    pub fn finish(self) -> Result<Vec<PackRef>, StoreError> {
        let held = std::mem::take(&mut self.segments.lock().segments);
        self.segments_out(held)?;
        if let Some(writer) = self.open.lock().take() {
            self.close(writer)?;
        }
        drop(self.to_sync);
        let finished = self.syncer.wait().unwrap_or_else(|_| {
            Err(StoreError::Invalid {
                what: "the thread that syncs packs died; see the log".to_owned(),
            })
        })?;
        let mut packs = Vec::with_capacity(finished.len());
        for (path, pack) in finished {
            self.repository.place_pack(path, &pack)?;
            packs.push(pack);
        }
        self.repository.sync_packs(&packs)?;
        Ok(packs)
    }
}

fn sync_all(queue: &Receiver<(TempPath, PackRef)>) -> Result<Finished, StoreError> {
    let mut finished = Vec::new();
    for (path, pack) in queue {
        let at: PathBuf = path.to_path_buf();
        File::open(&at)
            .and_then(|file| file.sync_all())
            .map_err(|e| StoreError::io("sync", &at, e))?;
        finished.push((path, pack));
    }
    Ok(finished)
}
