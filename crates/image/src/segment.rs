//! Segments: the second level of the Merkle tree.

use crate::{CHUNKS_PER_SEGMENT, FormatError, Hash, SEGMENT_BYTES};

/// The hashes of 1024 consecutive chunks (4 MiB of a region). Entries beyond the region's end are [`Hash::ZERO`]. It takes 32
/// KiB on the heap. The manifest has its hash, so it is fetched, checked and shared like a chunk.
#[derive(Clone, PartialEq, Eq)]
pub struct Segment {
    hashes: Box<[Hash; CHUNKS_PER_SEGMENT]>,
}

impl Default for Segment {
    fn default() -> Segment {
        Segment::new()
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stored = self.hashes.iter().filter(|h| !h.is_zero()).count();
        write!(
            f,
            "Segment({}, {stored} of {CHUNKS_PER_SEGMENT} chunks not zero)",
            self.id().short()
        )
    }
}

impl Segment {
    /// Makes a segment whose chunks are all zero.
    pub fn new() -> Segment {
        let hashes = vec![Hash::ZERO; CHUNKS_PER_SEGMENT].into_boxed_slice();
        Segment {
            hashes: hashes
                .try_into()
                .expect("the slice has CHUNKS_PER_SEGMENT items"),
        }
    }

    /// Returns the 32768 bytes that are hashed, stored and sent.
    pub fn encode(&self) -> Vec<u8> {
        self.hashes.iter().flat_map(|h| h.0).collect()
    }

    /// Decodes a segment. Whether it is the wanted one must be checked with [`crate::Kind::verify`].
    pub fn decode(bytes: &[u8]) -> Result<Segment, FormatError> {
        if bytes.len() != SEGMENT_BYTES {
            let why = format!("it has {} bytes, {SEGMENT_BYTES} are needed", bytes.len());
            return Err(FormatError::invalid("segment", why));
        }
        let mut out = Segment::new();
        for (hash, raw) in out.hashes.iter_mut().zip(bytes.chunks_exact(32)) {
            hash.0.copy_from_slice(raw);
        }
        Ok(out)
    }

    /// Returns its hash: [`Hash::ZERO`] if all chunks are zero, else the BLAKE3 hash of [`Segment::encode`].
    pub fn id(&self) -> Hash {
        if self.is_zero() {
            return Hash::ZERO;
        }
        let mut hasher = blake3::Hasher::new();
        for hash in self.hashes.iter() {
            hasher.update(&hash.0);
        }
        Hash(*hasher.finalize().as_bytes())
    }

    /// Returns the hash of chunk `i` (below 1024) of this segment.
    pub fn get(&self, i: usize) -> Hash {
        self.hashes[i]
    }

    /// Sets the hash of chunk `i` (below 1024).
    pub fn set(&mut self, i: usize, hash: Hash) {
        self.hashes[i] = hash;
    }

    /// Returns all hashes, in the order of the region.
    pub fn hashes(&self) -> &[Hash] {
        &self.hashes[..]
    }

    /// Returns whether all chunks are zero.
    pub fn is_zero(&self) -> bool {
        self.hashes.iter().all(Hash::is_zero)
    }
}
