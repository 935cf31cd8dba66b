//! The cache's files: a slab of slots of equal size, and a table that records what each slot holds.
//!
//! ```text
//! NAME.slab   slot n at n * slot_bytes
//! NAME.table  header, 64 bytes:  "FLOECACH"  u32 version  u32 slot_bytes  u32 shards  u32 crc32 of the 20 bytes before
//!             entry n, 40 bytes at 64 + 40 n:  hash[32]  u32 crc32 of hash and n  u32 zero     (all zero: free slot)
//! ```
//!
//! There is no journal: data is written before its entry, neither is synced, and every item that an earlier process left is
//! checked against its hash at its first read. Whatever a crash damages, the worst that follows is a fetch.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use floe_image::Hash;
use rustix::fs::FallocateFlags;

use crate::{StoreError, private};

const MAGIC: &[u8; 8] = b"FLOECACH";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 64;
const ENTRY_BYTES: usize = 40;
/// Bytes of the table that are read at once during recovery.
const RECOVER_BYTES: usize = ENTRY_BYTES * 16 * 1024;

pub(super) struct Slab {
    data: File,
    table: File,
    data_path: PathBuf,
    table_path: PathBuf,
    slot_bytes: usize,
    /// How many shards the slots are divided between; fixed when the files are made.
    pub shards: u32,
}

fn entry_of(slot: u32, hash: &Hash) -> [u8; ENTRY_BYTES] {
    let mut entry = [0u8; ENTRY_BYTES];
    entry[..32].copy_from_slice(hash.as_bytes());
    let crc = entry_crc(slot, hash.as_bytes());
    entry[32..36].copy_from_slice(&crc.to_le_bytes());
    entry
}

fn entry_crc(slot: u32, hash: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(hash);
    crc.update(&slot.to_le_bytes());
    crc.finalize()
}

/// Decodes a table entry; returns `None` for a free slot or an entry that a crash damaged.
pub(super) fn decode_entry(slot: u32, entry: &[u8]) -> Option<Hash> {
    let hash: [u8; 32] = entry.get(..32)?.try_into().ok()?;
    let crc = u32::from_le_bytes(entry.get(32..36)?.try_into().ok()?);
    (hash != [0; 32] && crc == entry_crc(slot, &hash)).then_some(Hash(hash))
}

/// Returns the number of shards in a table's header; `None` if it isn't a valid table for slots of this size.
pub(super) fn decode_header(header: &[u8], slot_bytes: usize) -> Option<u32> {
    let word = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let shards = word(16)?;
    let sound = header.get(..8)? == MAGIC
        && word(20)? == crc32fast::hash(header.get(..20)?)
        && word(8)? == VERSION
        && word(12)? as usize == slot_bytes
        && shards.is_power_of_two()
        && shards <= 1024;
    sound.then_some(shards)
}

impl Slab {
    /// Opens or makes `NAME.slab` and `NAME.table`. Files that aren't valid in this version are emptied, which a cache may do.
    pub fn open(
        dir: &Path,
        name: &str,
        slot_bytes: usize,
        shards_if_new: u32,
    ) -> Result<Slab, StoreError> {
        let open = |path: &Path| {
            private::options()
                .read(true)
                .write(true)
                .open(path)
                .map_err(|e| StoreError::io("open", path, e))
        };
        let data_path = dir.join(format!("{name}.slab"));
        let table_path = dir.join(format!("{name}.table"));
        let (data, table) = (open(&data_path)?, open(&table_path)?);
        let mut header = [0u8; HEADER_BYTES as usize];
        let read = read_up_to(&table, &mut header, 0)
            .map_err(|e| StoreError::io("read", &table_path, e))?;
        let shards = match decode_header(&header[..read], slot_bytes) {
            Some(shards) => shards,
            None => {
                if read > 0 {
                    tracing::warn!(table = %table_path.display(), "the cache's table is not readable, beginning anew");
                }
                let mut header = [0u8; HEADER_BYTES as usize];
                header[..8].copy_from_slice(MAGIC);
                header[8..12].copy_from_slice(&VERSION.to_le_bytes());
                header[12..16].copy_from_slice(&(slot_bytes as u32).to_le_bytes());
                header[16..20].copy_from_slice(&shards_if_new.to_le_bytes());
                let crc = crc32fast::hash(&header[..20]);
                header[20..24].copy_from_slice(&crc.to_le_bytes());
                data.set_len(0)
                    .map_err(|e| StoreError::io("truncate", &data_path, e))?;
                table
                    .set_len(0)
                    .and_then(|()| table.write_all_at(&header, 0))
                    .map_err(|e| StoreError::io("write", &table_path, e))?;
                shards_if_new
            }
        };
        Ok(Slab {
            data,
            table,
            data_path,
            table_path,
            slot_bytes,
            shards,
        })
    }

    /// Cuts the files to `slots` (a smaller budget than last time), and calls `found` for each slot left that should hold an
    /// item.
    pub fn recover(&self, slots: u64, found: &mut dyn FnMut(u32, Hash)) -> Result<(), StoreError> {
        let io = |e| StoreError::io("read", &self.table_path, e);
        let entries = (self
            .table
            .metadata()
            .map_err(io)?
            .len()
            .saturating_sub(HEADER_BYTES))
            / ENTRY_BYTES as u64;
        if entries > slots {
            self.table
                .set_len(HEADER_BYTES + slots * ENTRY_BYTES as u64)
                .map_err(|e| StoreError::io("truncate", &self.table_path, e))?;
        }
        let data_len = self
            .data
            .metadata()
            .map_err(|e| StoreError::io("read", &self.data_path, e))?
            .len();
        if data_len > slots * self.slot_bytes as u64 {
            self.data
                .set_len(slots * self.slot_bytes as u64)
                .map_err(|e| StoreError::io("truncate", &self.data_path, e))?;
        }
        let mut buffer = vec![0u8; RECOVER_BYTES];
        let (mut slot, mut at) = (0u32, HEADER_BYTES);
        loop {
            let read = read_up_to(&self.table, &mut buffer, at).map_err(io)?;
            for entry in buffer[..read].chunks_exact(ENTRY_BYTES) {
                if let Some(hash) = decode_entry(slot, entry) {
                    found(slot, hash);
                }
                slot += 1;
            }
            if read < buffer.len() {
                return Ok(());
            }
            at += read as u64;
        }
    }

    fn offset(&self, slot: u32) -> u64 {
        u64::from(slot) * self.slot_bytes as u64
    }

    pub fn read(&self, slot: u32, out: &mut [u8]) -> io::Result<()> {
        self.data.read_exact_at(out, self.offset(slot))
    }

    /// Reads a slot if that takes no access to the disk; returns whether it did.
    pub fn read_now(&self, slot: u32, out: &mut [u8]) -> io::Result<bool> {
        read_now(&self.data, out, self.offset(slot))
    }

    /// Writes the data, then the entry.
    pub fn write(&self, slot: u32, hash: &Hash, data: &[u8]) -> io::Result<()> {
        self.data.write_all_at(data, self.offset(slot))?;
        self.table.write_all_at(
            &entry_of(slot, hash),
            HEADER_BYTES + u64::from(slot) * ENTRY_BYTES as u64,
        )
    }

    /// Clears a slot's entry. It may fail silently: an entry that stays is detected by its hash.
    pub fn clear(&self, slot: u32) {
        let at = HEADER_BYTES + u64::from(slot) * ENTRY_BYTES as u64;
        if let Err(error) = self.table.write_all_at(&[0; ENTRY_BYTES], at) {
            tracing::debug!(%error, slot, "a cache entry could not be cleared");
        }
    }

    /// Clears the entries of `count` slots from `first` on, as [`Slab::clear`] does.
    pub fn clear_run(&self, first: u32, count: u32) {
        let at = HEADER_BYTES + u64::from(first) * ENTRY_BYTES as u64;
        let zeros = vec![0; count as usize * ENTRY_BYTES];
        if let Err(error) = self.table.write_all_at(&zeros, at) {
            tracing::debug!(%error, first, count, "cache entries could not be cleared");
        }
    }

    /// Gives the blocks of `count` slots from `first` on back to the file system. Nobody may claim these slots meanwhile.
    pub fn punch(&self, first: u32, count: u32) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(
            self.data.as_fd(),
            flags,
            self.offset(first),
            u64::from(count) * self.slot_bytes as u64,
        ) {
            // Beyond the end of the file, or a file system without holes: nothing to give back.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            other => Ok(other?),
        }
    }

    pub fn sync(&self) -> Result<(), StoreError> {
        self.data
            .sync_data()
            .map_err(|e| StoreError::io("sync", &self.data_path, e))?;
        self.table
            .sync_data()
            .map_err(|e| StoreError::io("sync", &self.table_path, e))
    }
}

/// Fills `out` with a file's bytes from `offset` on if all of them are in the host's page cache, so that the disk isn't accessed;
/// returns whether they were. Where the file system can't tell (it doesn't know `RWF_NOWAIT`), they count as not there.
pub fn read_now(file: &File, out: &mut [u8], offset: u64) -> io::Result<bool> {
    use rustix::io::{Errno, ReadWriteFlags};
    let want = out.len();
    let buffers = &mut [io::IoSliceMut::new(out)];
    match rustix::io::preadv2(file, buffers, offset, ReadWriteFlags::NOWAIT) {
        Ok(read) => Ok(read == want),
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INVAL | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
