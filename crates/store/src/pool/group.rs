//! Groups: what the pool's memory holds. Items that came together are compressed together, because neighbours in a guest's memory
//! resemble each other.

use std::sync::Arc;

use floe_image::{FormatError, Hash, Kind};

use super::PoolItem;

/// zstd level of groups, higher than that of packs: they are made once, beside everything else, and what they take stays taken.
/// Unpacking takes the same time at all levels.
const LEVEL: i32 = 9;
/// Most chunks in a group: 128 KiB, which take some 100 µs to unpack for one of them. All of them go to the host's cache then.
const GROUP_CHUNKS_MAX: usize = 32;
/// Most segments in a group, 256 KiB.
const GROUP_SEGMENTS_MAX: usize = 8;
/// Most bytes of small parts that are kept as the dictionary for those of later substrates. A device state has 30 to 60 KB.
const DICTIONARY_BYTES_MAX: usize = 128 << 10;

/// What small parts of all substrates have in common: those of the first one, which zstd may refer to. One machine's device state
/// is much like another's.
pub(super) type Dictionary = Arc<[u8]>;

/// Items that were compressed together.
#[derive(Debug)]
pub(super) struct Group {
    pub kind: Kind,
    pub hashes: Box<[Hash]>,
    bytes: Box<[u8]>,
    dictionary: Option<Dictionary>,
}

impl Group {
    /// Compresses items of one kind, of the size of that kind.
    pub fn pack(
        kind: Kind,
        items: &[(Hash, Vec<u8>)],
        dictionary: Option<&Dictionary>,
    ) -> std::io::Result<Group> {
        let raw: Vec<u8> = items
            .iter()
            .flat_map(|(_, bytes)| bytes.iter().copied())
            .collect();
        let dictionary = dictionary.cloned();
        let mut compressor = match &dictionary {
            Some(dictionary) => zstd::bulk::Compressor::with_dictionary(LEVEL, dictionary)?,
            None => zstd::bulk::Compressor::new(LEVEL)?,
        };
        Ok(Group {
            kind,
            hashes: items.iter().map(|(hash, _)| *hash).collect(),
            bytes: compressor.compress(&raw)?.into_boxed_slice(),
            dictionary,
        })
    }

    /// Returns all items, verified, in the order of [`Group::hashes`].
    pub fn unpack(&self) -> Result<Vec<Vec<u8>>, FormatError> {
        let what = "group in the pool's memory";
        let damaged = |why: String| FormatError::Invalid { what, why };
        let size = self.hashes.len() * self.kind.raw_size();
        let mut unpacker = match &self.dictionary {
            Some(dictionary) => zstd::bulk::Decompressor::with_dictionary(dictionary),
            None => zstd::bulk::Decompressor::new(),
        }
        .map_err(|error| damaged(error.to_string()))?;
        let raw = unpacker
            .decompress(&self.bytes, size)
            .map_err(|error| damaged(error.to_string()))?;
        if raw.len() != size {
            return Err(damaged(format!("it unpacks to {} bytes", raw.len())));
        }
        let items = self
            .hashes
            .iter()
            .zip(raw.chunks_exact(self.kind.raw_size()));
        items
            .map(|(hash, bytes)| {
                self.kind.verify(hash, bytes)?;
                Ok(bytes.to_vec())
            })
            .collect()
    }

    /// Returns the dictionary that it was compressed with.
    pub fn dictionary(&self) -> Option<&Dictionary> {
        self.dictionary.as_ref()
    }

    /// Returns the bytes that its items take, compressed.
    pub fn compressed_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the bytes that it takes in memory.
    pub fn memory_bytes(&self) -> u64 {
        let list = size_of_val(&*self.hashes) + size_of::<Group>();
        self.compressed_bytes() + list as u64
    }
}

/// Compresses what a pool lacks of a substrate, outside the pool, so that nobody waits for it. See
/// [`SubstratePool::plan`](super::SubstratePool::plan).
pub struct Packing {
    dictionary: Option<Dictionary>,
    /// The small parts' bytes, if there is no dictionary yet.
    sample: Vec<u8>,
    groups: Vec<Group>,
    /// Bytes that the groups take.
    packed_bytes: u64,
    /// Items that do not fill a group yet: chunks, small parts, segments.
    waiting: [Vec<(Hash, Vec<u8>)>; 3],
}

/// What was compressed for a pool.
pub struct Packed {
    pub(super) groups: Vec<Group>,
    /// What becomes the dictionary if there is none yet.
    pub(super) dictionary: Option<Dictionary>,
}

impl Packing {
    pub(super) fn new(dictionary: Option<Dictionary>) -> Packing {
        Packing {
            dictionary,
            sample: Vec::new(),
            groups: Vec::new(),
            packed_bytes: 0,
            waiting: Default::default(),
        }
    }

    /// Adds an item's bytes. Items that lie side by side should come one after the other.
    ///
    /// # Panics
    /// If the bytes have not the size of the item's kind.
    pub fn push(&mut self, item: &PoolItem, bytes: &[u8]) -> std::io::Result<()> {
        assert_eq!(bytes.len(), item.kind.raw_size(), "an item's size");
        let (at, max) = match (item.kind, item.small) {
            (Kind::Chunk, false) => (0, GROUP_CHUNKS_MAX),
            (Kind::Chunk, true) => (1, GROUP_CHUNKS_MAX),
            (Kind::Segment, _) => (2, GROUP_SEGMENTS_MAX),
        };
        if at == 1 && self.dictionary.is_none() && self.sample.len() < DICTIONARY_BYTES_MAX {
            self.sample.extend_from_slice(bytes);
        }
        self.waiting[at].push((item.hash, bytes.to_vec()));
        match self.waiting[at].len() < max {
            true => Ok(()),
            false => self.close(at),
        }
    }

    fn close(&mut self, at: usize) -> std::io::Result<()> {
        let items = std::mem::take(&mut self.waiting[at]);
        if items.is_empty() {
            return Ok(());
        }
        let (kind, dictionary) = match at {
            0 => (Kind::Chunk, None),
            1 => (Kind::Chunk, self.dictionary.as_ref()),
            _ => (Kind::Segment, None),
        };
        let group = Group::pack(kind, &items, dictionary)?;
        self.packed_bytes += group.memory_bytes();
        self.groups.push(group);
        Ok(())
    }

    /// Returns how many bytes it takes so far: who compresses for a pool stops where that is more than there is room for.
    pub fn packed_bytes(&self) -> u64 {
        self.packed_bytes
    }

    /// Compresses the rest.
    pub fn finish(mut self) -> std::io::Result<Packed> {
        for at in 0..self.waiting.len() {
            self.close(at)?;
        }
        let dictionary = (!self.sample.is_empty()).then(|| {
            // zstd would take content that begins with its own mark for a dictionary in another form
            let mut bytes = vec![0];
            bytes.extend_from_slice(&self.sample[..self.sample.len().min(DICTIONARY_BYTES_MAX)]);
            bytes.into()
        });
        Ok(Packed {
            groups: self.groups,
            dictionary: self.dictionary.clone().or(dictionary),
        })
    }
}
