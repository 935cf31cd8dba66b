//! The properties of an image that the simulator needs: which chunks exist, and the sizes of chunks and tables on the
//! wire.
use floe_image::CHUNKS_PER_SEGMENT;
use floe_planner::{BLOCK_CHUNKS, RegionId, Urgency};

/// Bytes of a chunk's hash in a table; zstd can't compress hashes, but reduces the zeros between them to almost nothing.
const HASH_BYTES: usize = 32;
/// Bytes of a table besides its hashes: framing, and the zeros.
const TABLE_BYTES_MIN: usize = 128;

/// One region.
#[derive(Clone, Debug)]
pub struct RegionShape {
    /// Bits of its chunks that aren't zero, 64 per word.
    nonzero: Vec<u64>,
    /// How urgently its tables are needed.
    pub urgency: Urgency,
}

/// An image.
#[derive(Clone, Debug)]
pub struct ImageShape {
    /// The regions, by their number in the manifest.
    pub regions: Vec<RegionShape>,
    /// Mean size of a chunk on the wire, in bytes.
    pub chunk_wire_bytes: usize,
}

/// Returns how urgently the tables of the region of this name are needed, as the mount tells the planner.
pub fn urgency_of(region: &str) -> Urgency {
    match floe_image::memory_block(region) {
        Some(_) => Urgency::Memory,
        None => Urgency::Storage,
    }
}

impl RegionShape {
    /// Makes a region of zeros.
    pub fn new(chunks: u64, urgency: Urgency) -> RegionShape {
        let tables = chunks.div_ceil(CHUNKS_PER_SEGMENT as u64).max(1);
        let words = tables as usize * CHUNKS_PER_SEGMENT / BLOCK_CHUNKS as usize;
        RegionShape {
            nonzero: vec![0; words],
            urgency,
        }
    }

    /// Records that a chunk has content.
    pub fn put(&mut self, chunk: u64) {
        let word = (chunk / u64::from(BLOCK_CHUNKS)) as usize;
        if word >= self.nonzero.len() {
            let per_table = CHUNKS_PER_SEGMENT / BLOCK_CHUNKS as usize;
            self.nonzero.resize((word / per_table + 1) * per_table, 0);
        }
        self.nonzero[word] |= 1 << (chunk % u64::from(BLOCK_CHUNKS));
    }

    /// Returns whether a chunk has content.
    pub fn has(&self, chunk: u64) -> bool {
        self.block(chunk / u64::from(BLOCK_CHUNKS)) >> (chunk % u64::from(BLOCK_CHUNKS)) & 1 == 1
    }

    /// Returns the chunks of a block that have content.
    pub fn block(&self, block: u64) -> u64 {
        usize::try_from(block).map_or(0, |b| self.nonzero.get(b).copied().unwrap_or(0))
    }

    /// Returns the region's size in chunks, in whole tables.
    pub fn chunks(&self) -> u64 {
        self.nonzero.len() as u64 * u64::from(BLOCK_CHUNKS)
    }

    /// Returns the number of chunks with content.
    pub fn nonzero_chunks(&self) -> u64 {
        self.nonzero.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    fn words_of(&self, table: u32) -> &[u64] {
        let per_table = CHUNKS_PER_SEGMENT / BLOCK_CHUNKS as usize;
        let first = table as usize * per_table;
        self.nonzero
            .get(first..first + per_table)
            .unwrap_or_default()
    }

    /// Returns the tables that aren't zero, in order.
    pub fn tables(&self) -> Vec<u32> {
        let count = (self.chunks() / CHUNKS_PER_SEGMENT as u64) as u32;
        (0..count)
            .filter(|t| self.words_of(*t).iter().any(|w| *w != 0))
            .collect()
    }

    /// Returns the size of a table on the wire, in bytes.
    pub fn table_wire_bytes(&self, table: u32) -> usize {
        let hashes: u32 = self.words_of(table).iter().map(|w| w.count_ones()).sum();
        TABLE_BYTES_MIN + hashes as usize * HASH_BYTES
    }
}

impl ImageShape {
    /// Returns a region by the planner's number, which here is that of the manifest.
    pub fn region(&self, region: RegionId) -> Option<&RegionShape> {
        self.regions.get(region as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_weighs_its_hashes() {
        let mut region = RegionShape::new(1, Urgency::Memory);
        assert_eq!((region.chunks(), region.tables()), (1024, vec![]));
        for chunk in [3, 64, 5000] {
            region.put(chunk);
        }
        assert_eq!(region.tables(), [0, 4]);
        assert_eq!(region.table_wire_bytes(0), 128 + 64);
        assert_eq!((region.chunks(), region.nonzero_chunks()), (5 * 1024, 3));
        assert!(region.has(64) && !region.has(65) && !region.has(1 << 40));
        assert_eq!(region.block(0), 8);
    }
}
