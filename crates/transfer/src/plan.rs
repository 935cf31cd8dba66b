//! Decides what a push sends: which packs of the other side do, which packs here go as they are, what is packed anew. No I/O.
//!
//! Nothing is sent that isn't of the image: a pack here that holds anything else is taken apart. What the other side has in a pack
//! isn't sent again, unless so little of that pack is wanted that readers would pay more for its index than they would save.

use floe_image::{Hash, Kind, PackRef};
use std::collections::HashSet;

/// A chunk or a segment.
pub(super) type Item = (Kind, Hash);

/// Most bytes that a pack needs for each item beside its frames: its hash, its frame's entry, and what zstd adds to
/// incompressible data.
const ITEM_OVERHEAD_BYTES: u64 = 80;
/// Bytes of a pack that are there without any item.
const PACK_OVERHEAD_BYTES: u64 = 1024;

/// A pack and what is in it, in the order of the file.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    pub pack: PackRef,
    pub items: Vec<Item>,
}

/// What one thread sends next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A pack that is here, as it is; its items' bytes when unpacked, and how many of them are chunks.
    Pack {
        pack: PackRef,
        raw_bytes: u64,
        chunks: u64,
    },
    /// Items that must be packed first.
    Items(Vec<Item>),
}

/// Which packs of the other side cover how much of an image.
pub(super) struct Cover {
    /// Items of the image that are in no pack so far.
    open: HashSet<Item>,
    uses: Vec<PackRef>,
}

impl Cover {
    pub fn new(image: impl Iterator<Item = Item>) -> Cover {
        Cover {
            open: image.collect(),
            uses: Vec::new(),
        }
    }

    /// Returns whether everything is covered.
    pub fn is_whole(&self) -> bool {
        self.open.is_empty()
    }

    /// Offers a pack that the other side has; returns whether it is used.
    pub fn offer(&mut self, pack: &PackRef, items: &[Item]) -> bool {
        let mut wanted: Vec<&Item> = items.iter().filter(|i| self.open.contains(i)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let saved: u64 = wanted.iter().map(|(kind, _)| raw_bytes(*kind)).sum();
        if saved == 0 || saved < u64::from(pack.index_bytes) {
            return false;
        }
        for item in wanted {
            self.open.remove(item);
        }
        self.uses.push(*pack);
        true
    }

    /// Returns the packs that are used, and what has to be sent, in the order of `image`.
    pub fn finish(self, image: impl Iterator<Item = Item>) -> (Vec<PackRef>, Vec<Item>) {
        let mut open = self.open;
        (self.uses, image.filter(|item| open.remove(item)).collect())
    }
}

/// Decides how `missing` is sent, each item once. `here`: the packs that hold the image here, best first.
///
/// Chunks should stand before segments in `missing`, so that a segment that the other side has received is rarely incomplete when a
/// push continues.
pub(super) fn jobs(
    missing: Vec<Item>,
    here: impl Iterator<Item = Contents>,
    pack_bytes_max: u64,
) -> Vec<Job> {
    let mut open: HashSet<Item> = missing.iter().copied().collect();
    let mut jobs = Vec::new();
    for Contents { pack, items } in here {
        if open.is_empty() {
            break;
        }
        let all_open = items.iter().all(|item| open.contains(item));
        if pack.file_bytes > pack_bytes_max || !all_open || items.is_empty() {
            continue;
        }
        // a pack may hold an item twice; it counts once
        let (mut bytes, mut chunks) = (0, 0);
        for (kind, hash) in items {
            if open.remove(&(kind, hash)) {
                bytes += raw_bytes(kind);
                chunks += u64::from(kind == Kind::Chunk);
            }
        }
        jobs.push(Job::Pack {
            pack,
            raw_bytes: bytes,
            chunks,
        });
    }
    let mut group: Vec<Item> = Vec::new();
    let mut bytes = PACK_OVERHEAD_BYTES;
    for item in missing.into_iter().filter(|item| open.remove(item)) {
        let cost = raw_bytes(item.0) + ITEM_OVERHEAD_BYTES;
        if bytes + cost > pack_bytes_max && !group.is_empty() {
            jobs.push(Job::Items(std::mem::take(&mut group)));
            bytes = PACK_OVERHEAD_BYTES;
        }
        bytes += cost;
        group.push(item);
    }
    if !group.is_empty() {
        jobs.push(Job::Items(group));
    }
    jobs
}

/// Returns how many bytes an item has when it is unpacked.
pub(super) fn raw_bytes(kind: Kind) -> u64 {
    kind.raw_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: u64 = 256 << 10;

    fn item(n: u16) -> Item {
        // every eighth is a segment
        let kind = if n.is_multiple_of(8) {
            Kind::Segment
        } else {
            Kind::Chunk
        };
        (kind, Hash::of(&n.to_le_bytes()))
    }

    fn pack(numbers: &[u16]) -> Contents {
        let items: Vec<Item> = numbers.iter().map(|n| item(*n)).collect();
        let index_bytes = 24 + 33 * items.len() as u32;
        let index_offset = 16 + items.iter().map(|(k, _)| raw_bytes(*k)).sum::<u64>() / 2;
        let names: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Contents {
            pack: PackRef {
                id: Hash::of(&names),
                file_bytes: index_offset + u64::from(index_bytes) + 56,
                index_offset,
                index_bytes,
                root: None,
            },
            items,
        }
    }

    fn packs() -> impl Strategy<Value = Vec<Contents>> {
        let one = proptest::collection::vec(0u16..300, 1..60);
        proptest::collection::vec(one, 0..8)
            .prop_map(|packs| packs.iter().map(|numbers| pack(numbers)).collect())
    }

    /// What a push does: what is used there, and what is sent.
    fn plan(image: &[Item], there: &[Contents], here: &[Contents]) -> (Vec<PackRef>, Vec<Job>) {
        let mut cover = Cover::new(image.iter().copied());
        for Contents { pack, items } in there {
            cover.offer(pack, items);
        }
        let (uses, missing) = cover.finish(image.iter().copied());
        (uses, jobs(missing, here.iter().cloned(), MAX))
    }

    fn sent(jobs: &[Job], here: &[Contents]) -> Vec<Contents> {
        let as_pack = |job: &Job| match job {
            Job::Pack { pack, .. } => {
                let found = here.iter().find(|other| other.pack.id == pack.id);
                found.unwrap().clone()
            }
            Job::Items(items) => Contents {
                items: items.clone(),
                pack: PackRef {
                    id: Hash::of(format!("{items:?}").as_bytes()),
                    ..pack(&vec![1; items.len()]).pack
                },
            },
        };
        jobs.iter().map(as_pack).collect()
    }

    fn distinct(image: Vec<u16>) -> Vec<Item> {
        let mut seen = HashSet::new();
        let items = image.into_iter().map(item);
        items.filter(|item| seen.insert(*item)).collect()
    }

    proptest! {
        #[test]
        fn what_is_there_and_what_is_sent_make_the_image_and_nothing_else_is_sent(
            image in proptest::collection::vec(0u16..300, 0..200), there in packs(), here in packs(),
        ) {
            let image = distinct(image);
            let all: HashSet<Item> = image.iter().copied().collect();
            let (uses, jobs) = plan(&image, &there, &here);
            let used = there.iter().filter(|pack| uses.contains(&pack.pack));
            let have: HashSet<Item> = used.flat_map(|pack| &pack.items).copied().collect();
            let mut given = HashSet::new();
            for Contents { items, .. } in sent(&jobs, &here) {
                let distinct: HashSet<Item> = items.into_iter().collect();
                for item in distinct {
                    prop_assert!(all.contains(&item), "it isn't of the image");
                    prop_assert!(!have.contains(&item), "it was there");
                    prop_assert!(given.insert(item), "it was sent twice");
                }
            }
            prop_assert!(all.iter().all(|item| have.contains(item) || given.contains(item)));
        }

        #[test]
        fn a_pack_that_is_made_stays_within_the_limit_and_one_that_is_sent_does(
            image in proptest::collection::vec(0u16..300, 0..300), here in packs(),
        ) {
            for job in plan(&distinct(image), &[], &here).1 {
                match job {
                    Job::Pack { pack, .. } => prop_assert!(pack.file_bytes <= MAX),
                    Job::Items(items) => {
                        let raw: u64 = items.iter().map(|(kind, _)| raw_bytes(*kind)).sum();
                        prop_assert!(!items.is_empty() && raw + 56 + 24 + 48 * items.len() as u64 <= MAX);
                    }
                }
            }
        }

        #[test]
        fn a_push_that_goes_on_sends_the_rest_and_one_that_is_repeated_nothing(
            image in proptest::collection::vec(0u16..300, 0..200), there in packs(), here in packs(), cut in any::<prop::sample::Index>(),
        ) {
            let image = distinct(image);
            let (_, jobs) = plan(&image, &there, &here);
            let sent = sent(&jobs, &here);
            let done = cut.index(sent.len() + 1);
            let now: Vec<Contents> = there.iter().chain(&sent[..done]).cloned().collect();
            let (_, rest) = plan(&image, &now, &here);
            let raw = |jobs: &[Job]| -> u64 {
                jobs.iter().map(|job| match job {
                    Job::Pack { raw_bytes, .. } => *raw_bytes,
                    Job::Items(items) => items.iter().map(|(kind, _)| raw_bytes(*kind)).sum(),
                }).sum()
            };
            prop_assert_eq!(raw(&rest), raw(&jobs[done..]));
        }

        #[test]
        fn a_pack_is_used_only_if_its_index_costs_less_than_it_saves(
            image in proptest::collection::vec(0u16..300, 0..40), there in packs(),
        ) {
            let image = distinct(image);
            let (uses, _) = plan(&image, &there, &[]);
            for pack in there.iter().filter(|pack| uses.contains(&pack.pack)) {
                let wanted: HashSet<&Item> = pack.items.iter().filter(|i| image.contains(i)).collect();
                let saved: u64 = wanted.iter().map(|(kind, _)| raw_bytes(*kind)).sum();
                prop_assert!(saved >= u64::from(pack.pack.index_bytes));
            }
        }
    }
}
