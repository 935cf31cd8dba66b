//! Recorded runs as accesses to pieces of packs.
use crate::sim::ImageShape;
use floe_planner::ZeroTrace;
use floe_swarm::policy::PieceId;
use std::collections::HashMap;

/// Bytes of a piece on the wire.
pub const PIECE_BYTES: u64 = 64 << 10;

/// A run: first accesses to pieces, with the machine's own time of each in microseconds.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// In the order of their times.
    pub accesses: Vec<(u64, PieceId)>,
    /// When the run ends.
    pub end_us: u64,
}

impl Recorded {
    /// Returns the bytes that it accesses.
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
    chunks_per_piece: u64,
}

impl Pieces {
    /// Lays an image out as a capture or an import does: its chunks that are not zero, in the order of their places, in packs.
    pub fn new(image: &ImageShape) -> Pieces {
        let before = image.regions.iter().map(|region| {
            let mut sum = 0;
            let blocks = 0..region.chunks() / 64;
            let counts = blocks.map(|block| {
                let here = sum;
                sum += u64::from(region.block(block).count_ones());
                here
            });
            counts.collect()
        });
        Pieces {
            numbers: HashMap::new(),
            before: before.collect(),
            chunks_per_piece: (PIECE_BYTES / image.chunk_wire_bytes.max(1) as u64).max(1),
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

    fn piece(&mut self, image: &ImageShape, region: u8, chunk: u32) -> PieceId {
        let block = u64::from(chunk) / 64;
        let below = image.regions[usize::from(region)].block(block);
        let below = below & ((1 << (chunk % 64)) - 1);
        let before = self.before[usize::from(region)][block as usize];
        let rank = before + u64::from(below.count_ones());
        let next = self.numbers.len() as PieceId;
        let key = (region, rank / self.chunks_per_piece);
        *self.numbers.entry(key).or_insert(next)
    }

    /// Converts a run whose machine computes `faster` times as fast as the recorded one.
    pub fn recorded(&mut self, image: &ImageShape, trace: &ZeroTrace, faster: f64) -> Recorded {
        let mut seen = std::collections::HashSet::new();
        let own = |t_us: u64| (t_us as f64 / faster) as u64;
        let mut accesses = Vec::new();
        for access in &trace.accesses {
            let piece = self.piece(image, access.region, access.chunk);
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

/// The paper's profile (section 2.2.3): every piece that a run had, in the order of its mean time of appearance.
pub fn profile(runs: &[&Recorded]) -> Vec<PieceId> {
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
    order.into_iter().map(|(_, piece)| piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::RegionShape;
    use floe_planner::{Timed, Urgency};

    #[test]
    fn chunks_beside_each_other_in_a_pack_are_one_piece() {
        let mut region = RegionShape::new(4096, Urgency::Storage);
        (0..200).for_each(|n| region.put(n * 10));
        let image = ImageShape {
            regions: vec![region],
            chunk_wire_bytes: 2048,
        };
        let at = |t_us, chunk| Timed {
            region: 0,
            chunk,
            t_us,
        };
        // 32 chunks of 2 KiB are a piece: the first ends before the 32nd, which is chunk 320
        let trace = ZeroTrace {
            accesses: vec![at(100, 0), at(200, 310), at(300, 320), at(500, 10)],
            end_us: 1000,
        };
        let mut pieces = Pieces::new(&image);
        let run = pieces.recorded(&image, &trace, 2.0);
        assert_eq!(run.accesses, [(50, 0), (150, 1)]);
        assert_eq!((run.end_us, pieces.len()), (500, 2));
        let other = Recorded {
            accesses: vec![(10, 1), (20, 2)],
            end_us: 30,
        };
        assert_eq!(profile(&[&run, &other]), [2, 0, 1]);
    }
}
