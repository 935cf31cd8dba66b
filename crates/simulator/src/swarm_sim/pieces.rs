//! Recorded runs as accesses to pieces of packs.
use floe_planner::ZeroTrace;
use floe_swarm::policy::PieceId;
use floe_testbed::shape::ImageShape;
use std::collections::HashMap;

/// Bytes of a piece in the product.
pub const PIECE_BYTES: u64 = 64 << 10;
/// Bytes of a piece in the paper (4.3.1).
pub const PAPER_PIECE_BYTES: u64 = 16 << 10;
/// Bytes of a pack, at whose end its index is.
const PACK_BYTES: u64 = 8 << 20;
/// Bytes of an index for each chunk of its pack.
const INDEXED_BYTES: u64 = 33;
/// No region's number: pieces of indices.
const INDICES: u8 = u8::MAX;

/// A run: first accesses to pieces, with the machine's own time of each in microseconds.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// In the order of their times.
    pub accesses: Vec<(u64, PieceId)>,
    /// When the run ends.
    pub end_us: u64,
}

impl Recorded {
    /// Returns the bytes that it accesses, in pieces of [`PIECE_BYTES`].
    pub fn bytes(&self) -> u64 {
        self.accesses.len() as u64 * PIECE_BYTES
    }
}

/// The pieces of an image that runs of it touch. They are numbered without gaps, since nobody asks for others.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    numbers: HashMap<(u8, u64), PieceId>,
    /// Chunks that lie before each block of 64, of those that exist, by region.
    before: Vec<Vec<u64>>,
    /// Chunks of all regions before this one.
    regions_before: Vec<u64>,
    /// Chunks of the image.
    chunks: u64,
    piece_bytes: u64,
    chunks_per_piece: u64,
    chunks_per_pack: u64,
}

impl Pieces {
    /// Lays an image out as a capture or an import does: its chunks that are not zero, in the order of their places, in packs. These are
    /// cut into pieces of so many bytes.
    pub fn new(image: &ImageShape, piece_bytes: u64) -> Pieces {
        let (mut before, mut regions_before, mut all) = (Vec::new(), Vec::new(), 0);
        for region in &image.regions {
            let mut sum = 0;
            let blocks = 0..region.chunks() / 64;
            let counts = blocks.map(|block| {
                let here = sum;
                sum += u64::from(region.block(block).count_ones());
                here
            });
            before.push(counts.collect());
            regions_before.push(all);
            all += sum;
        }
        let chunk_bytes = image.chunk_wire_bytes.max(1) as u64;
        Pieces {
            numbers: HashMap::new(),
            before,
            regions_before,
            chunks: all,
            piece_bytes,
            chunks_per_piece: (piece_bytes / chunk_bytes).max(1),
            chunks_per_pack: (PACK_BYTES / chunk_bytes).max(1),
        }
    }

    /// Returns the number of pieces that have a number.
    pub fn len(&self) -> u32 {
        self.numbers.len() as u32
    }

    /// Whether no run was looked at yet.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    fn number(&mut self, region: u8, place: u64) -> PieceId {
        let next = self.numbers.len() as PieceId;
        *self.numbers.entry((region, place)).or_insert(next)
    }

    /// Returns where a chunk lies among those of its region that are not zero.
    fn rank(&self, image: &ImageShape, region: u8, chunk: u32) -> u64 {
        let block = u64::from(chunk) / 64;
        let below = image.regions[usize::from(region)].block(block);
        let below = below & ((1 << (chunk % 64)) - 1);
        self.before[usize::from(region)][block as usize] + u64::from(below.count_ones())
    }

    /// Returns how many pieces have the indices of all packs up to that of a chunk, in which it is looked for in turn.
    fn indices(&self, region: u8, rank: u64) -> u64 {
        let pack = (self.regions_before[usize::from(region)] + rank) / self.chunks_per_pack;
        let indexed = ((pack + 1) * self.chunks_per_pack).min(self.chunks);
        (indexed * INDEXED_BYTES).div_ceil(self.piece_bytes)
    }

    /// Converts a run whose machine computes `faster` times as fast as the recorded one. Before a chunk's piece it accesses the indices by
    /// which that is found.
    pub fn recorded(&mut self, image: &ImageShape, trace: &ZeroTrace, faster: f64) -> Recorded {
        let mut seen = std::collections::HashSet::new();
        let own = |t_us: u64| (t_us as f64 / faster) as u64;
        let (mut accesses, mut indices) = (Vec::new(), 0);
        for access in &trace.accesses {
            let rank = self.rank(image, access.region, access.chunk);
            let needed = self.indices(access.region, rank);
            for place in indices..needed {
                accesses.push((own(access.t_us), self.number(INDICES, place)));
            }
            indices = needed.max(indices);
            let piece = self.number(access.region, rank / self.chunks_per_piece);
            if seen.insert(piece) {
                accesses.push((own(access.t_us), piece));
            }
        }
        Recorded {
            accesses,
            end_us: own(trace.end_us),
        }
    }
}

/// What is predicted of runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Pieces, in the order of their need.
    pub pieces: Vec<PieceId>,
    /// When each is needed, in milliseconds since the start of a run, at least 1; empty if nobody knows.
    pub due_ms: Vec<u32>,
}

/// The paper's profile (section 2.2.3): every piece that a run had, in the order of its mean time of appearance.
pub fn profile(runs: &[&Recorded]) -> Profile {
    let mut times: HashMap<PieceId, (u64, u64)> = HashMap::new();
    for (t_us, piece) in runs.iter().flat_map(|run| &run.accesses) {
        let (sum, count) = times.entry(*piece).or_default();
        *sum += t_us;
        *count += 1;
    }
    let mut order: Vec<(u64, PieceId)> = times
        .into_iter()
        .map(|(piece, (sum, count))| (sum / count, piece))
        .collect();
    order.sort_unstable();
    // 0 would be now
    let due_ms = |us: &u64| (us / 1000).max(1) as u32;
    Profile {
        due_ms: order.iter().map(|(us, _)| due_ms(us)).collect(),
        pieces: order.into_iter().map(|(_, piece)| piece).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_planner::Urgency;
    use floe_testbed::shape::RegionShape;

    #[test]
    fn a_chunk_is_found_by_the_indices_of_all_packs_before_it() {
        let mut region = RegionShape::new(16_384, Urgency::Storage);
        (0..16_384).for_each(|n| region.put(n));
        let image = ImageShape {
            regions: vec![region],
            chunk_wire_bytes: 2048,
        };
        // 4 packs of 4096 chunks, each with an index of 132 KiB
        let count = |chunks: &[u32]| {
            let accesses: Vec<_> = chunks.iter().map(|chunk| (1, 0, *chunk)).collect();
            let trace = floe_testbed::traces::of(&accesses, 2);
            let mut pieces = Pieces::new(&image, PIECE_BYTES);
            pieces.recorded(&image, &trace, 1.0).accesses.len()
        };
        assert_eq!(count(&[0]), 3 + 1);
        assert_eq!(count(&[16_383]), 9 + 1);
        assert_eq!(count(&[16_383, 0]), 9 + 2);
    }

    #[test]
    fn chunks_beside_each_other_in_a_pack_are_one_piece() {
        let mut region = RegionShape::new(4096, Urgency::Storage);
        (0..200).for_each(|n| region.put(n * 10));
        let image = ImageShape {
            regions: vec![region],
            chunk_wire_bytes: 2048,
        };
        // 32 chunks of 2 KiB are a piece: the first ends before the 32nd, which is chunk 320
        let accesses = [(100, 0, 0), (200, 0, 310), (300, 0, 320), (500, 0, 10)];
        let trace = floe_testbed::traces::of(&accesses, 1000);
        let mut pieces = Pieces::new(&image, PIECE_BYTES);
        let run = pieces.recorded(&image, &trace, 2.0);
        // the index of the only pack is read first
        assert_eq!(run.accesses, [(50, 0), (50, 1), (150, 2)]);
        assert_eq!((run.end_us, pieces.len()), (500, 3));
        let mut small = Pieces::new(&image, PAPER_PIECE_BYTES);
        let run = small.recorded(&image, &trace, 1.0);
        // 8 chunks are a piece, and chunk 10 is the second of all
        assert_eq!(run.accesses, [(100, 0), (100, 1), (200, 2), (300, 3)]);
        let first = Recorded {
            accesses: vec![(50, 0), (15_000, 1)],
            end_us: 50_000,
        };
        let other = Recorded {
            accesses: vec![(1000, 1), (20, 2)],
            end_us: 3000,
        };
        let learnt = profile(&[&first, &other]);
        assert_eq!(learnt.pieces, [2, 0, 1]);
        assert_eq!(learnt.due_ms, [1, 1, 8]);
    }
}
