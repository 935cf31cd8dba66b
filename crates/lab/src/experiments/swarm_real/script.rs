//! A recorded workload as something that can be done to a real disk: a disk of the same shape, and the order and the times in which
//! the recorded runs touch its chunks.
use super::guest::{LIST_MAX, Sum, boot_sector};
use crate::sim::RegionShape;
use crate::swarm_sim::{PIECE_BYTES, Recorded};
use crate::traces::Workload;
use crate::workload::noise;
use anyhow::{Context as _, ensure};
use floe_image::{CHUNK_SIZE, Hash, Kind};
use floe_planner::ZeroTrace;
use floe_store::Repository;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
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

    /// Returns the runs as a swarm sees them: first accesses to pieces of the packs in which a repository has the image; and how
    /// many pieces the packs have.
    pub fn pieces(
        &self,
        repository: &Repository,
        image: &Hash,
    ) -> anyhow::Result<(Vec<Recorded>, u32)> {
        let layout = repository.layout(image)?;
        let mut firsts = vec![0u64];
        for pack in &layout.packs {
            firsts
                .push(firsts.last().copied().unwrap_or(0) + pack.file_bytes.div_ceil(PIECE_BYTES));
        }
        let manifest = repository.manifest(image)?;
        let number = manifest.regions.iter().position(|r| r.name == "disk0");
        let number = number.context("the image has no disk")? as u8;
        let scope = repository.scope(image)?;
        let mut known: HashMap<u32, Vec<u32>> = HashMap::new();
        let chunks: BTreeSet<u32> = self
            .runs
            .iter()
            .flat_map(|run| run.accesses.iter().map(|a| a.1))
            .collect();
        let places: Vec<(u8, u32)> = chunks.iter().map(|chunk| (number, *chunk)).collect();
        let hashes = repository.chunk_hashes(image, &places)?;
        for (chunk, hash) in chunks.iter().zip(hashes) {
            let mut pieces = Vec::new();
            if !hash.is_zero() {
                for frame in scope.frames_of(&[(Kind::Chunk, hash)])? {
                    let first = firsts[frame.pack as usize];
                    let last = frame.offset + u64::from(frame.len).max(1) - 1;
                    let both = frame.offset / PIECE_BYTES..=last / PIECE_BYTES;
                    pieces.extend(both.map(|piece| (first + piece) as u32));
                }
            }
            known.insert(*chunk, pieces);
        }
        let recorded = |run: &Run| {
            let mut seen = HashSet::new();
            let touched = run
                .accesses
                .iter()
                .flat_map(|(t_us, chunk)| known[chunk].iter().map(move |piece| (*t_us, *piece)));
            Recorded {
                accesses: touched.filter(|(_, piece)| seen.insert(*piece)).collect(),
                end_us: run.end_us,
            }
        };
        let all = firsts.last().copied().unwrap_or(0) as u32;
        Ok((self.runs.iter().map(recorded).collect(), all))
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
    use floe_planner::Timed;

    #[test]
    fn others_lie_between_what_was_apart_and_nowhere_else() {
        let (numbers, all) = spread(&[3, 4, 9, 20, 21].into(), 7);
        let new: Vec<u32> = numbers.values().copied().collect();
        assert_eq!(all, 12);
        assert_eq!((new[1] - new[0], new[4] - new[3]), (1, 1));
        assert!(new[2] - new[1] > 2 && new[3] - new[2] > 2);
    }

    #[test]
    fn a_beginning_ends_where_the_next_touch_was() {
        let at = |t_us, region, chunk| Timed {
            region,
            chunk,
            t_us,
        };
        let trace = ZeroTrace {
            accesses: vec![
                at(1, 0, 5),
                at(2, 1, 6),
                at(3, 0, 5),
                at(4, 0, 7),
                at(9, 0, 8),
            ],
            end_us: 100,
        };
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
