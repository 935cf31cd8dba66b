//! An image's chunks as they are in a node's repository: which ones are zero, and how well they compress.
use anyhow::Context;
use floe_image::{CHUNK_SIZE, CHUNKS_PER_SEGMENT, Hash, Kind, Manifest, Segment};
use floe_store::{Repository, Scope};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Write;
use std::path::Path;

/// The level at which images are compressed for transfer.
const ZSTD_LEVEL: i32 = 3;
/// Chunks that are read at a time, 16 MiB.
const READ_CHUNKS: usize = 4096;

/// An image with all of its segment tables.
pub struct Content {
    manifest: Manifest,
    scope: Scope,
    /// One list of tables per region; an empty table stands for 1024 zero chunks.
    tables: Vec<Vec<Segment>>,
}

impl Content {
    /// Opens the image with this id (in hexadecimal) in the repository of a node's home.
    pub fn open(home: &Path, id: &str) -> anyhow::Result<Content> {
        let repository = Repository::open(&home.join("repo"))?;
        let id: Hash = id.parse().context("not an image's id")?;
        let (manifest, scope) = (repository.manifest(&id)?, repository.scope(&id)?);
        let tables = manifest
            .regions
            .iter()
            .map(|region| {
                let numbers = 0..region.segments.len();
                numbers.map(|number| scope.table(region, number)).collect()
            })
            .collect::<Result<_, _>>()?;
        Ok(Content {
            manifest,
            scope,
            tables,
        })
    }

    /// Returns a chunk's hash; `None` if it is zero or there is no such chunk.
    pub fn hash(&self, region: u8, chunk: u32) -> Option<Hash> {
        let table = self
            .tables
            .get(usize::from(region))?
            .get(chunk as usize / CHUNKS_PER_SEGMENT)?;
        let hash = table.get(chunk as usize % CHUNKS_PER_SEGMENT);
        (!hash.is_zero()).then_some(hash)
    }

    /// Returns the chunks of a region that are not zero, in ascending order.
    pub fn nonzero_of(&self, region: usize) -> impl Iterator<Item = usize> {
        let tables = self.tables.get(region).into_iter().flatten().enumerate();
        tables.flat_map(|(number, table)| {
            let hashes = table.hashes().iter().enumerate();
            let stored = hashes.filter(|(_, hash)| !hash.is_zero());
            stored.map(move |(slot, _)| number * CHUNKS_PER_SEGMENT + slot)
        })
    }

    /// Returns the regions' names by their number.
    pub fn regions(&self) -> Vec<String> {
        let regions = self.manifest.regions.iter();
        regions.map(|region| region.name.clone()).collect()
    }

    /// Returns how many chunks of each region are not zero. Regions without any are left out.
    pub fn nonzero(&self) -> BTreeMap<String, u64> {
        let regions = self.manifest.regions.iter().enumerate();
        regions
            .map(|(number, region)| (region.name.clone(), self.nonzero_of(number).count() as u64))
            .filter(|(_, chunks)| *chunks > 0)
            .collect()
    }

    /// Returns the mean size in bytes of these chunks when each is compressed alone, as it is sent on demand.
    pub fn mean_wire_bytes(&self, chunks: &BTreeSet<(u8, u32)>) -> anyhow::Result<f64> {
        let hashes = chunks
            .iter()
            .filter_map(|(region, chunk)| self.hash(*region, *chunk));
        let wanted = distinct(hashes);
        anyhow::ensure!(!wanted.is_empty(), "no chunk of the image was touched");
        let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        let mut bytes = 0;
        self.read(&wanted, &mut |chunk| {
            // A chunk that does not compress is sent as it is.
            bytes += compressor.compress(chunk)?.len().min(CHUNK_SIZE);
            Ok(())
        })?;
        Ok(bytes as f64 / wanted.len() as f64)
    }

    /// Returns the bytes of the whole image, with equal chunks counted once, as one zstd stream.
    pub fn zstd_bytes(&self) -> anyhow::Result<u64> {
        let tables = self.tables.iter().flatten();
        let all = distinct(
            tables
                .flat_map(|table| table.hashes().iter().copied())
                .filter(|hash| !hash.is_zero()),
        );
        let mut encoder = zstd::Encoder::new(Counted(0), ZSTD_LEVEL)?;
        self.read(&all, &mut |chunk| Ok(encoder.write_all(chunk)?))?;
        Ok(encoder.finish()?.0)
    }

    fn read(
        &self,
        wanted: &[Hash],
        each: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let wanted: Vec<(Kind, Hash)> = wanted.iter().map(|hash| (Kind::Chunk, *hash)).collect();
        for batch in wanted.chunks(READ_CHUNKS) {
            let mut result = Ok(());
            let missing = self.scope.read(batch, &mut |_, _, chunk| {
                if result.is_ok() {
                    result = each(chunk);
                }
            })?;
            result?;
            anyhow::ensure!(
                missing.is_empty(),
                "{} chunks of the image are in none of its packs",
                missing.len()
            );
        }
        Ok(())
    }
}

/// Returns each hash once, at its first place: neighbours stay neighbours, which suits compressors and packs.
fn distinct(hashes: impl Iterator<Item = Hash>) -> Vec<Hash> {
    let mut seen = HashSet::new();
    hashes.filter(|hash| seen.insert(*hash)).collect()
}

/// Counts the bytes written to it.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
