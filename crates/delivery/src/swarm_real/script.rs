//! A recorded workload as something that can be done to a real disk: a disk of the same shape, and the order and the times in which
//! the recorded runs touch its chunks.
use super::guest::{LIST_MAX, Sum, boot_sector};
use anyhow::{Context as _, ensure};
use floe_image::{CHUNK_SIZE, Hash, Kind, PackRef};
use floe_planner::ZeroTrace;
use floe_simulator::swarm_sim::{PIECE_BYTES, Recorded};
use floe_store::Repository;
use floe_swarm::policy::PieceId;
use floe_testbed::shape::RegionShape;
use floe_testbed::traces::Workload;
use floe_testbed::workload::noise;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Chunks that are compressed together.
const BLOCK_CHUNKS: u32 = 16;

/// What the machine of a run does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Each chunk that it touches, with its own time in microseconds, in order.
    pub accesses: Vec<(u64, u32)>,
    /// When it ends.
    pub end_us: u64,
}

/// A disk, and runs that touch it.
pub struct Script {
    /// The runs.
    pub runs: Vec<Run>,
    /// Places of the disk's blocks: those of the recorded disk that a run touches, by their new numbers.
    blocks: BTreeMap<u32, u32>,
    /// Number of blocks of the new disk, touched or not.
    blocks_all: u32,
    /// What the recorded disk has content in.
    shape: RegionShape,
    chunk_wire_bytes: usize,
}

impl Script {
    /// Takes from each run of a workload its first accesses to the disk, about `touched` bytes of compressed chunks, and makes a disk of
    /// about `image` compressed bytes that has those chunks in the recorded order.
    pub fn new(workload: &Workload, touched: u64, image: u64) -> anyhow::Result<Script> {
        let names = workload.regions();
        let disk = names.iter().position(|name| name == "disk0");
        let disk = disk.context("a workload without a disk")? as u8;
        let wire = workload.image.chunk_wire_bytes;
        let chunks_max = (touched / wire as u64) as usize;
        let runs: Vec<Run> = workload
            .traces
            .iter()
            .map(|trace| beginning(trace, disk, chunks_max))
            .collect();
        let touched = runs.iter().flat_map(|run| &run.accesses);
        let touched: BTreeSet<u32> = touched.map(|(_, chunk)| chunk / BLOCK_CHUNKS).collect();
        ensure!(!touched.is_empty(), "no run touches its disk");
        let shape = workload.image.regions[usize::from(disk)].clone();
        let own = touched.len() as u64 * u64::from(BLOCK_CHUNKS) * wire as u64;
        let others = image.saturating_sub(own) / (u64::from(BLOCK_CHUNKS) * CHUNK_SIZE as u64);
        let (blocks, blocks_all) = spread(&touched, others as u32);
        let renumber = |run: Run| Run {
            accesses: run
                .accesses
                .iter()
                .map(|(t_us, chunk)| {
                    let block = blocks[&(chunk / BLOCK_CHUNKS)];
                    (*t_us, block * BLOCK_CHUNKS + chunk % BLOCK_CHUNKS)
                })
                .collect(),
            ..run
        };
        Ok(Script {
            runs: runs.into_iter().map(renumber).collect(),
            blocks,
            blocks_all,
            shape,
            chunk_wire_bytes: wire,
        })
    }

    /// Writes the disk. What no run touches can't be compressed; what one touches can, as far as the recorded disk. In its first sector is the
    /// program for guests, and behind everything the list of what run `of_guests` touches, which they read.
    pub fn write_disk(&self, path: &Path, of_guests: usize) -> anyhow::Result<()> {
        let disk = File::create(path)?;
        let block_bytes = BLOCK_CHUNKS as usize * CHUNK_SIZE;
        let list_at = u64::from(self.blocks_all) * block_bytes as u64;
        disk.set_len(list_at + block_bytes as u64)?;
        let recorded: HashMap<u32, u32> =
            self.blocks.iter().map(|(old, new)| (*new, *old)).collect();
        for block in 0..self.blocks_all {
            let at = u64::from(block) * block_bytes as u64;
            let bytes = noise(block_bytes, u64::from(block));
            let Some(old) = recorded.get(&block) else {
                disk.write_all_at(&bytes, at)?;
                continue;
            };
            for n in 0..BLOCK_CHUNKS {
                if self.shape.has(u64::from(old * BLOCK_CHUNKS + n)) {
                    let from = n as usize * CHUNK_SIZE;
                    let wire = self.chunk_wire_bytes.min(CHUNK_SIZE);
                    disk.write_all_at(&bytes[from..from + wire], at + from as u64)?;
                }
            }
        }
        let list = self.read_by_guests(of_guests).flat_map(u32::to_le_bytes);
        let list: Vec<u8> = list.collect();
        disk.write_all_at(&list, list_at)?;
        // no table of partitions, only the program
        disk.write_all_at(&boot_sector(list.len() / 4, list_at)?, 0)?;
        Ok(())
    }

    fn read_by_guests(&self, run: usize) -> impl Iterator<Item = u32> {
        let accesses = self.runs[run].accesses.iter().take(LIST_MAX);
        accesses.map(|(_, chunk)| *chunk)
    }

    /// Returns the checksum of what guests read of the written disk.
    pub fn sum(&self, disk: &Path, of_guests: usize) -> anyhow::Result<Sum> {
        let disk = File::open(disk)?;
        let (mut sum, mut bytes) = (Sum::default(), [0; CHUNK_SIZE]);
        for chunk in self.read_by_guests(of_guests) {
            disk.read_exact_at(&mut bytes, u64::from(chunk) * CHUNK_SIZE as u64)?;
            sum.add(&bytes);
        }
        Ok(sum)
    }

    /// Divides the times of all runs.
    pub fn speed_up(&mut self, by: f64) {
        let scale = |t_us: u64| (t_us as f64 / by) as u64;
        for run in &mut self.runs {
            run.end_us = scale(run.end_us);
            let accesses = run.accesses.iter_mut();
            accesses.for_each(|access| access.0 = scale(access.0));
        }
    }

    /// Returns the runs as a swarm sees them: first accesses to pieces of the packs in which a repository has the image.
    pub fn pieces(&self, repository: &Repository, image: &Hash) -> anyhow::Result<InPieces> {
        let packs = Packs::new(&repository.layout(image)?.packs);
        let manifest = repository.manifest(image)?;
        let number = manifest.regions.iter().position(|r| r.name == "disk0");
        let number = number.context("the image has no disk")? as u8;
        let scope = repository.scope(image)?;
        let mut known: HashMap<u32, Place> = HashMap::new();
        let chunks: BTreeSet<u32> = self
            .runs
            .iter()
            .flat_map(|run| run.accesses.iter().map(|a| a.1))
            .collect();
        let places: Vec<(u8, u32)> = chunks.iter().map(|chunk| (number, *chunk)).collect();
        let hashes = repository.chunk_hashes(image, &places)?;
        for (chunk, hash) in chunks.iter().zip(hashes) {
            let mut place = Place::default();
            if !hash.is_zero() {
                for frame in scope.frames_of(&[(Kind::Chunk, hash)])? {
                    let end = frame.offset + u64::from(frame.len).max(1);
                    let pieces = packs.pieces(frame.pack as usize, frame.offset..end);
                    place.pieces.extend(pieces);
                    place.searched = frame.pack as usize + 1;
                }
            }
            known.insert(*chunk, place);
        }
        let runs = self.runs.iter().map(|run| packs.recorded(run, &known));
        Ok(InPieces {
            runs: runs.collect(),
            pieces: packs.firsts.last().copied().unwrap_or(0) as u32,
            indices: packs.indices_alone(),
        })
    }
}

/// Runs as a swarm sees them.
pub struct InPieces {
    /// First accesses to pieces. Those with a pack's index are accessed before the first chunk is found for which it is searched.
    pub runs: Vec<Recorded>,
    /// How many pieces there are.
    pub pieces: u32,
    /// Those that have nothing but an index.
    pub indices: HashSet<PieceId>,
}

/// Where a chunk is found.
#[derive(Default)]
struct Place {
    pieces: Vec<PieceId>,
    /// How many packs are searched for it, from the first on: each one's index is read for that.
    searched: usize,
}

/// The pieces of packs.
struct Packs {
    /// The first piece of each, and after them the number of all.
    firsts: Vec<u64>,
    /// Where each one's index is.
    indices: Vec<Range<u64>>,
}

impl Packs {
    fn new(packs: &[PackRef]) -> Packs {
        let (mut firsts, mut next) = (vec![0], 0);
        for pack in packs {
            next += pack.file_bytes.div_ceil(PIECE_BYTES);
            firsts.push(next);
        }
        let index = |pack: &PackRef| {
            pack.index_offset..pack.index_offset + u64::from(pack.index_bytes).max(1)
        };
        Packs {
            firsts,
            indices: packs.iter().map(index).collect(),
        }
    }

    /// Returns the pieces in which a range of a pack lies.
    fn pieces(&self, pack: usize, range: Range<u64>) -> impl Iterator<Item = PieceId> {
        let first = self.firsts[pack];
        let pieces = range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES);
        pieces.map(move |piece| (first + piece) as PieceId)
    }

    fn recorded(&self, run: &Run, known: &HashMap<u32, Place>) -> Recorded {
        let (mut seen, mut accesses, mut searched) = (HashSet::new(), Vec::new(), 0);
        for (t_us, chunk) in &run.accesses {
            let Some(place) = known.get(chunk) else {
                continue;
            };
            let indices = searched..place.searched;
            let indices = indices.flat_map(|pack| self.pieces(pack, self.indices[pack].clone()));
            let pieces = indices.chain(place.pieces.iter().copied());
            accesses.extend(
                pieces
                    .filter(|piece| seen.insert(*piece))
                    .map(|piece| (*t_us, piece)),
            );
            searched = searched.max(place.searched);
        }
        Recorded {
            accesses,
            end_us: run.end_us,
        }
    }

    fn indices_alone(&self) -> HashSet<PieceId> {
        let all = self.indices.iter().enumerate();
        let alone = all.flat_map(|(pack, index)| {
            let begins = index.start.next_multiple_of(PIECE_BYTES);
            let pieces = (begins < index.end).then(|| self.pieces(pack, begins..index.end));
            pieces.into_iter().flatten()
        });
        alone.collect()
    }
}

/// Returns a trace's first touches of so many chunks of a region.
fn beginning(trace: &ZeroTrace, region: u8, chunks_max: usize) -> Run {
    let mut seen = HashSet::new();
    let mut accesses = Vec::new();
    let mut end_us = trace.end_us;
    for access in trace
        .accesses
        .iter()
        .filter(|access| access.region == region)
    {
        if seen.len() == chunks_max {
            end_us = access.t_us;
            break;
        }
        if seen.insert(access.chunk) {
            accesses.push((access.t_us, access.chunk));
        }
    }
    Run { accesses, end_us }
}

/// Renumbers blocks so that as many others as wanted lie between them. Neighbours stay neighbours. Returns the new numbers, and how many
/// blocks there are.
fn spread(touched: &BTreeSet<u32>, others: u32) -> (BTreeMap<u32, u32>, u32) {
    let gaps = touched.iter().zip(touched.iter().skip(1));
    let gaps = gaps.filter(|(a, b)| **a + 1 < **b).count() as u32 + 1;
    let (mut numbers, mut next, mut gap, mut before) = (BTreeMap::new(), 0, 0, None);
    let share = |gap: u32| (u64::from(others) * u64::from(gap) / u64::from(gaps)) as u32;
    for block in touched {
        if before.is_some_and(|before| before + 1 < *block) {
            next += share(gap + 1) - share(gap);
            gap += 1;
        }
        numbers.insert(*block, next);
        next += 1;
        before = Some(*block);
    }
    (numbers, next + others - share(gap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_lie_between_what_was_apart_and_nowhere_else() {
        let (numbers, all) = spread(&[3, 4, 9, 20, 21].into(), 7);
        let new: Vec<u32> = numbers.values().copied().collect();
        assert_eq!(all, 12);
        assert_eq!((new[1] - new[0], new[4] - new[3]), (1, 1));
        assert!(new[2] - new[1] > 2 && new[3] - new[2] > 2);
    }

    #[test]
    fn a_packs_index_is_accessed_before_the_first_chunk_that_is_searched_there() {
        let pack = |file_bytes, index_offset| PackRef {
            id: Hash([1; 32]),
            file_bytes,
            index_offset,
            index_bytes: 100,
            root: None,
        };
        // pieces 0 and 1, the second with the index alone; pieces 2 and 3, whose index is with frames
        let packs = Packs::new(&[
            pack(PIECE_BYTES + 200, PIECE_BYTES),
            pack(2 * PIECE_BYTES, 2 * PIECE_BYTES - 200),
        ]);
        assert_eq!(packs.indices_alone(), HashSet::from([1]));
        let place = |pack: usize, range| Place {
            pieces: packs.pieces(pack, range).collect(),
            searched: pack + 1,
        };
        let known = HashMap::from([
            (7, place(1, 0..10)),
            (8, place(0, 5..PIECE_BYTES)),
            (9, Place::default()),
        ]);
        let run = Run {
            accesses: vec![(1, 9), (2, 8), (3, 7)],
            end_us: 4,
        };
        let expected = [(2, 1), (2, 0), (3, 3), (3, 2)];
        assert_eq!(packs.recorded(&run, &known).accesses, expected);
    }

    #[test]
    fn a_beginning_ends_where_the_next_touch_was() {
        let accesses = [(1, 0, 5), (2, 1, 6), (3, 0, 5), (4, 0, 7), (9, 0, 8)];
        let trace = floe_testbed::traces::of(&accesses, 100);
        let run = beginning(&trace, 0, 2);
        assert_eq!(
            run,
            Run {
                accesses: vec![(1, 5), (4, 7)],
                end_us: 9
            }
        );
        assert_eq!(beginning(&trace, 0, 9).end_us, 100);
    }
}
