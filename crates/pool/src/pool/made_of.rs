//! What an image has that the image below it has not, and what its memory is made of: found by content, chunk by chunk.
//!
//! The guest is asked nothing. A page of its page cache has the bytes of a block of one of its disks, and so the same hash; if the
//! image below has that block, the page costs its place in a table, and if the machine wrote the block itself, the two are stored
//! once.

use floe_api::MadeOf;
use floe_ground::error::NodeError;
use floe_image::{CHUNK_SIZE, Hash, Kind, Manifest, Region, SEGMENT_BYTES, Segment};
use floe_store::{POOL_SMALL_REGIONS, PoolItem, Repository, Scope};
use std::collections::HashSet;

/// How many tables are read at once: 2 MiB.
const TABLES_AT_ONCE: usize = 64;

/// An image's own part.
pub(super) struct Own {
    /// Its items: device state, memory, disks and then tables, each in the order of addresses and once.
    pub items: Vec<PoolItem>,
    /// What they are, and what is not among them. The bytes of the backup are not counted.
    pub made_of: MadeOf,
}

/// What a region is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Small,
    Memory,
    Disk,
}

fn part_of(region: &str) -> Part {
    let digits = region.strip_prefix("ram");
    match digits {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => Part::Memory,
        _ if POOL_SMALL_REGIONS.contains(&region) => Part::Small,
        _ => Part::Disk,
    }
}

/// Finds the own part of an image over `base`, or all of it without one.
pub(super) fn own_part(
    repo: &Repository,
    id: &Hash,
    base: Option<&Hash>,
) -> Result<Own, NodeError> {
    let manifest = repo.manifest(id)?;
    let scope = repo.scope(id)?;
    let below = match base {
        Some(base) => Some((repo.manifest(base)?, repo.scope(base)?)),
        None => None,
    };
    let mut sorting = Sorting {
        scope: &scope,
        below: below.as_ref().map(|(manifest, scope)| (manifest, scope)),
        seen: HashSet::new(),
        own_disk: HashSet::new(),
        made_of: MadeOf::default(),
    };
    let mut parts: [Vec<PoolItem>; 3] = Default::default();
    // disks first: what memory has of them is known then
    for (at, part) in [(0, Part::Small), (2, Part::Disk), (1, Part::Memory)] {
        let regions = manifest.regions.iter();
        for region in regions.filter(|region| part_of(&region.name) == part) {
            sorting.region(region, part, &mut parts[at])?;
        }
    }
    let mut items = parts.concat();
    let tables = sorting.tables(&manifest)?;
    sorting.made_of.table_bytes = (tables.len() * SEGMENT_BYTES) as u64;
    items.extend(tables);
    Ok(Own {
        items,
        made_of: sorting.made_of,
    })
}

struct Sorting<'a> {
    scope: &'a Scope,
    below: Option<(&'a Manifest, &'a Scope)>,
    /// Own chunks that have been counted.
    seen: HashSet<Hash>,
    /// Those of the disks.
    own_disk: HashSet<Hash>,
    made_of: MadeOf,
}

impl Sorting<'_> {
    fn region(
        &mut self,
        region: &Region,
        part: Part,
        items: &mut Vec<PoolItem>,
    ) -> Result<(), NodeError> {
        if part == Part::Memory {
            self.made_of.memory_bytes += region.size;
            self.made_of.zero_bytes += region.size;
        }
        let same = |number: &usize| part != Part::Memory && self.is_unchanged(region, *number);
        let numbers: Vec<usize> = (0..region.segments.len())
            .filter(|number| !same(number))
            .collect();
        for numbers in numbers.chunks(TABLES_AT_ONCE) {
            let hashes: Vec<Hash> = numbers
                .iter()
                .map(|number| region.segments[*number])
                .collect();
            let tables = self.scope.segments(&hashes)?;
            for (number, mut table) in numbers.iter().zip(tables) {
                region.patch(*number, &mut table);
                self.table(&table, part, items)?;
            }
        }
        Ok(())
    }

    /// Whether the image below has this segment of the region unchanged.
    fn is_unchanged(&self, region: &Region, number: usize) -> bool {
        let same = self.below.and_then(|(below, _)| {
            let below = below.region(&region.name)?;
            let there = number < below.segments.len();
            let same = there
                && below.segments[number] == region.segments[number]
                && below.patches_of(number) == region.patches_of(number);
            Some(same)
        });
        same.unwrap_or(false)
    }

    fn table(
        &mut self,
        table: &Segment,
        part: Part,
        items: &mut Vec<PoolItem>,
    ) -> Result<(), NodeError> {
        let hashes = table.hashes().iter().filter(|hash| !hash.is_zero());
        let chunks: Vec<(Kind, Hash)> = hashes.map(|hash| (Kind::Chunk, *hash)).collect();
        let in_base = match self.below {
            Some((_, scope)) => scope.has(&chunks)?,
            None => vec![false; chunks.len()],
        };
        let size = CHUNK_SIZE as u64;
        for ((kind, hash), in_base) in chunks.into_iter().zip(in_base) {
            if part == Part::Memory {
                self.made_of.zero_bytes = self.made_of.zero_bytes.saturating_sub(size);
            }
            let new = !in_base && self.seen.insert(hash);
            let of_disk = part == Part::Disk || self.own_disk.contains(&hash);
            let made_of = &mut self.made_of;
            match (part, in_base, new) {
                (Part::Memory, true, _) => made_of.base_bytes += size,
                (Part::Memory, false, false) if of_disk => made_of.disk_cache_bytes += size,
                (Part::Memory, false, false) => made_of.twice_bytes += size,
                (Part::Memory, false, true) => made_of.own_memory_bytes += size,
                (Part::Disk, false, true) => {
                    made_of.own_disk_bytes += size;
                    self.own_disk.insert(hash);
                }
                (Part::Small, false, true) => made_of.device_bytes += size,
                _ => {}
            }
            if new {
                let small = part == Part::Small;
                items.push(PoolItem { kind, hash, small });
            }
        }
        Ok(())
    }

    /// Returns the tables that the image below has not.
    fn tables(&self, manifest: &Manifest) -> Result<Vec<PoolItem>, NodeError> {
        let mut seen = HashSet::new();
        let segments = manifest.regions.iter().flat_map(|region| &region.segments);
        let segments = segments.filter(|hash| !hash.is_zero() && seen.insert(**hash));
        let segments: Vec<(Kind, Hash)> = segments.map(|hash| (Kind::Segment, *hash)).collect();
        let in_base = match self.below {
            Some((_, scope)) => scope.has(&segments)?,
            None => vec![false; segments.len()],
        };
        let own = segments
            .into_iter()
            .zip(in_base)
            .filter(|(_, in_base)| !in_base);
        Ok(own
            .map(|((kind, hash), _)| PoolItem {
                kind,
                hash,
                small: false,
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_store::{Ingest, IngestOptions};

    fn chunk(n: u8) -> Vec<u8> {
        let mut bytes = vec![n; CHUNK_SIZE];
        bytes[0] = 200;
        bytes
    }

    #[test]
    fn each_class_of_memory_is_counted_once_and_only_own_chunks_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Repository::create(dir.path()).unwrap();
        let mut ingest = Ingest::new(&repo, IngestOptions::default()).unwrap();
        let disk: Vec<u8> = (1..9).flat_map(chunk).collect();
        ingest.region_bytes("disk0", &disk).unwrap();
        let base = ingest.finish(Default::default()).unwrap();

        let options = IngestOptions {
            parent: Some(base),
            ..Default::default()
        };
        let mut ingest = Ingest::new(&repo, options).unwrap();
        ingest.region_bytes("device", &chunk(100)).unwrap();
        // the base's blocks 1 and 2, a block that the guest wrote, its own twice, and zeros
        let memory = [
            chunk(1),
            chunk(2),
            chunk(20),
            chunk(30),
            chunk(30),
            vec![0; 3 * CHUNK_SIZE],
        ];
        ingest.region_bytes("ram", &memory.concat()).unwrap();
        let written = [(2u64, chunk(20)), (5, chunk(21))];
        let pages = written.into_iter().map(Ok);
        ingest
            .region_from_pages("disk0", disk.len() as u64, Some("disk0"), pages)
            .unwrap();
        let id = ingest.finish(Default::default()).unwrap();

        let own = own_part(&repo, &id, Some(&base)).unwrap();
        let size = CHUNK_SIZE as u64;
        let made_of = own.made_of;
        assert_eq!(made_of.memory_bytes, 8 * size);
        assert_eq!(made_of.zero_bytes, 3 * size);
        assert_eq!(made_of.base_bytes, 2 * size);
        assert_eq!(made_of.disk_cache_bytes, size);
        assert_eq!(
            (made_of.own_memory_bytes, made_of.twice_bytes),
            (size, size)
        );
        assert_eq!(made_of.own_disk_bytes, 2 * size);
        assert_eq!(made_of.device_bytes, size);
        let chunks: Vec<Hash> = own
            .items
            .iter()
            .filter(|item| item.kind == Kind::Chunk)
            .map(|item| item.hash)
            .collect();
        let expected = [100, 30, 20, 21].map(|n| Hash::of(&chunk(n)));
        assert_eq!(chunks, expected);
        assert!(own.items[0].small && !own.items[1].small);
        let sum = made_of.zero_bytes + made_of.base_bytes + made_of.disk_cache_bytes;
        let sum = sum + made_of.twice_bytes + made_of.own_memory_bytes;
        assert_eq!(sum, made_of.memory_bytes);
        // without a base everything is its own
        let all = own_part(&repo, &id, None).unwrap();
        assert_eq!(all.made_of.base_bytes, 0);
        assert_eq!(all.made_of.disk_cache_bytes, 3 * size);
    }
}
