//! Describes a region that differs from another one in some chunks, without reading what didn't change.

use std::sync::Arc;

use crate::{CHUNKS_PER_SEGMENT, Hash, Patch, Region, Segment};

/// A region based on another one, and the tables that it needs and the base doesn't have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Over {
    /// The region.
    pub region: Region,
    /// New segments, with their hashes.
    pub tables: Vec<(Hash, Arc<Segment>)>,
}

impl Over {
    /// Makes the region `name` of `size` bytes that has `changes`, and elsewhere equals `base` (zero without one).
    ///
    /// `changes` are chunk numbers and hashes, ascending. The segments with the fewest changes get patches, as long as the
    /// region has at most `patches_max` of them; for the others `table` is called to get the base's table by its hash.
    ///
    /// Cost: 32 KiB for each new table. It doesn't check whether a change equals what the base has there: that would need every
    /// table, which may be on another host.
    pub fn new<E>(
        name: &str,
        size: u64,
        base: Option<&Region>,
        changes: &[(u32, Hash)],
        patches_max: usize,
        mut table: impl FnMut(&Hash) -> Result<Segment, E>,
    ) -> Result<Over, E> {
        let count = Region::segments_for(size) as usize;
        let chunks = size.div_ceil(crate::CHUNK_SIZE as u64);
        let mut segments = vec![Hash::ZERO; count];
        let mut kept: Vec<Patch> = Vec::new();
        if let Some(base) = base {
            let shared = count.min(base.segments.len());
            segments[..shared].copy_from_slice(&base.segments[..shared]);
            let within = |patch: &&Patch| u64::from(patch.chunk) < chunks;
            kept.extend(base.patches.iter().filter(within));
        }
        let mut groups = groups(&kept, changes);
        // Patches of the base in segments that nobody changed stay patches; `patches_max` limits the others.
        let untouched = |group: &Group| group.changed == 0;
        let mut patches: Vec<Patch> = Vec::new();
        let mut tables = Vec::new();
        groups.sort_by_key(|group| (!untouched(group), group.patches.len(), group.segment));
        for group in groups {
            if untouched(&group) || patches.len() + group.patches.len() <= patches_max {
                patches.extend(group.patches);
                continue;
            }
            let hash = segments[group.segment];
            let mut segment = match hash.is_zero() {
                true => Segment::new(),
                false => table(&hash)?,
            };
            for patch in &group.patches {
                segment.set(patch.chunk as usize % CHUNKS_PER_SEGMENT, patch.hash);
            }
            let id = segment.id();
            segments[group.segment] = id;
            if !id.is_zero() {
                tables.push((id, Arc::new(segment)));
            }
        }
        patches.sort_unstable_by_key(|patch| patch.chunk);
        let region = Region {
            name: name.to_owned(),
            size,
            segments,
            patches,
        };
        Ok(Over { region, tables })
    }
}

/// The patches of one segment.
struct Group {
    segment: usize,
    patches: Vec<Patch>,
    changed: usize,
}

/// Groups old patches and changes by segment; for a chunk in both, the change counts.
fn groups(kept: &[Patch], changes: &[(u32, Hash)]) -> Vec<Group> {
    let mut merged = std::collections::BTreeMap::new();
    merged.extend(kept.iter().map(|patch| (patch.chunk, (patch.hash, false))));
    merged.extend(changes.iter().map(|(chunk, hash)| (*chunk, (*hash, true))));
    let mut groups: Vec<Group> = Vec::new();
    for (chunk, (hash, changed)) in merged {
        let segment = chunk as usize / CHUNKS_PER_SEGMENT;
        if groups.last().is_none_or(|group| group.segment != segment) {
            groups.push(Group {
                segment,
                patches: Vec::new(),
                changed: 0,
            });
        }
        if let Some(group) = groups.last_mut() {
            group.patches.push(Patch { chunk, hash });
            group.changed += usize::from(changed);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SEGMENT_SPAN;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::convert::Infallible;

    const SEGMENTS: u32 = 5;
    const SIZE: u64 = SEGMENTS as u64 * SEGMENT_SPAN;

    fn hash(n: u8) -> Hash {
        match n {
            0 => Hash::ZERO,
            n => Hash::of(&[n]),
        }
    }

    /// Returns the hash of each chunk, found as a mount finds it.
    fn resolve(region: &Region, tables: &HashMap<Hash, Arc<Segment>>) -> Vec<Hash> {
        let mut all = Vec::new();
        for (number, hash) in region.segments.iter().enumerate() {
            let mut table = match hash.is_zero() {
                true => Segment::new(),
                false => (*tables[hash]).clone(),
            };
            region.patch(number, &mut table);
            all.extend_from_slice(table.hashes());
        }
        all
    }

    fn changes() -> impl Strategy<Value = Vec<(u32, Hash)>> {
        let chunk = 0..SEGMENTS * CHUNKS_PER_SEGMENT as u32;
        let some = prop::collection::btree_map(chunk, 0u8..4, 0..200);
        some.prop_map(|map| map.into_iter().map(|(chunk, n)| (chunk, hash(n))).collect())
    }

    proptest! {
        #[test]
        fn a_region_over_others_reads_as_the_last_change_says(
            layers in prop::collection::vec((changes(), 0usize..150), 1..5),
        ) {
            let mut tables: HashMap<Hash, Arc<Segment>> = HashMap::new();
            let mut expected = vec![Hash::ZERO; SEGMENTS as usize * CHUNKS_PER_SEGMENT];
            let mut base: Option<Region> = None;
            for (changes, patches_max) in layers {
                for (chunk, hash) in &changes {
                    expected[*chunk as usize] = *hash;
                }
                let over = Over::new("ram", SIZE, base.as_ref(), &changes, patches_max, |hash| {
                    Ok::<_, Infallible>((*tables[hash]).clone())
                });
                let Ok(over) = over;
                tables.extend(over.tables.iter().cloned());
                prop_assert_eq!(resolve(&over.region, &tables), expected.clone());
                let before = base.as_ref().map_or(0, |base| base.patches.len());
                prop_assert!(over.region.patches.len() <= patches_max.max(before));
                let manifest = crate::Manifest { regions: vec![over.region.clone()], ..Default::default() };
                prop_assert!(manifest.check().is_ok());
                base = Some(over.region);
            }
        }
    }

    #[test]
    fn few_changes_need_no_table_of_the_base() {
        let base = Region {
            name: "ram".into(),
            size: SIZE,
            segments: vec![hash(9); SEGMENTS as usize],
            ..Default::default()
        };
        let changes = [(1, hash(1)), (3000, hash(2))];
        let table = |_: &Hash| Err::<Segment, _>("asked for a table");
        let over = Over::new("ram", SIZE, Some(&base), &changes, 2, table).unwrap();
        assert_eq!(over.region.patches.len(), 2);
        assert_eq!(over.region.segments, base.segments);
        assert!(over.tables.is_empty());
        assert!(Over::new("ram", SIZE, Some(&base), &changes, 1, table).is_err());
    }
}
