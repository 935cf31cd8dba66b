use std::collections::BTreeMap;

use floe_image::CHUNK_SIZE;
use proptest::prelude::*;

use super::*;

/// Chunk number n: half of it is alike in all chunks, so that compression has something to do.
fn chunk(n: u64) -> (PoolItem, Vec<u8>) {
    let mut data = vec![7u8; CHUNK_SIZE];
    for (at, word) in data[..CHUNK_SIZE / 2].chunks_exact_mut(8).enumerate() {
        let mixed = (n + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(at as u32 % 64);
        word.copy_from_slice(&(mixed ^ at as u64).to_le_bytes());
    }
    let item = PoolItem {
        kind: Kind::Chunk,
        hash: Hash::of(&data),
        small: n.is_multiple_of(11),
    };
    (item, data)
}

fn id(n: u8) -> Hash {
    Hash::of(&[n])
}

fn admit(pool: &mut SubstratePool, name: u8, chunks: &[u64]) -> Admitted {
    let items: Vec<PoolItem> = chunks.iter().map(|n| chunk(*n).0).collect();
    let (lacking, mut packing) = pool.plan(&items);
    for item in &lacking {
        let n = chunks.iter().find(|n| chunk(**n).0 == *item).unwrap();
        packing.push(item, &chunk(*n).1).unwrap();
    }
    let packed = packing.finish().unwrap();
    let most = packed.growth_bytes_max(items.len());
    let admitted = pool.admit(id(name), &items, packed, u64::MAX).unwrap();
    assert!(
        !admitted.held || admitted.added_bytes <= most,
        "{admitted:?} {most}"
    );
    admitted
}

/// Returns the bytes of a chunk as the pool has it.
fn read(pool: &SubstratePool, n: u64) -> Option<Vec<u8>> {
    let item = chunk(n).0;
    let (pieces, rest) = pool.find(&[(item.kind, item.hash)]);
    assert_eq!(pieces.len() + rest.len(), 1);
    let mut found = None;
    for piece in pieces {
        assert_eq!(piece.wanted().collect::<Vec<_>>(), [(item.kind, item.hash)]);
        piece
            .read(&mut |_, hash, bytes| {
                if hash == item.hash {
                    found = Some(bytes.to_vec());
                }
            })
            .unwrap();
    }
    found
}

/// Counts everything anew.
fn counted(pool: &SubstratePool) -> PoolUsage {
    let groups = || pool.groups.iter().flatten();
    let live: u64 = groups().map(|place| u64::from(place.live)).sum();
    let used = pool.items.iter().filter(|item| item.users > 0);
    assert_eq!(used.clone().count() as u64, live);
    assert_eq!(pool.by_hash.len() as u64, live);
    let users: u64 = used.clone().map(|item| u64::from(item.users)).sum();
    let referred: usize = pool.substrates.values().map(|held| held.items.len()).sum();
    assert_eq!(users, referred as u64);
    let lists: u64 = pool
        .substrates
        .values()
        .map(|held| held_bytes(held.items.len()))
        .sum();
    let dictionary = pool
        .dictionary
        .as_ref()
        .map_or(0, |bytes| bytes.len() as u64);
    let memory: u64 = groups().map(|place| place.group.memory_bytes()).sum();
    PoolUsage {
        bytes: memory + lists + dictionary + live * (size_of::<Item>() as u64 + TABLE_ENTRY_BYTES),
        compressed_bytes: groups().map(|place| place.group.compressed_bytes()).sum(),
        raw_bytes: live * CHUNK_SIZE as u64,
        referred_bytes: referred as u64 * CHUNK_SIZE as u64,
        substrates: pool.substrates.len() as u64,
    }
}

#[derive(Debug, Clone)]
enum Op {
    Admit(u8, Vec<u64>),
    Touch(u8),
    Release(u8),
    Resize(u64),
    Thin,
    Read(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let name = 0..6u8;
    let chunks = proptest::collection::vec(0..120u64, 1..70);
    prop_oneof![
        6 => (name.clone(), chunks).prop_map(|(name, chunks)| Op::Admit(name, chunks)),
        2 => name.clone().prop_map(Op::Touch),
        2 => name.prop_map(Op::Release),
        1 => (0..400_000u64).prop_map(Op::Resize),
        1 => Just(Op::Thin),
        4 => (0..120u64).prop_map(Op::Read),
    ]
}

/// What `find_of` gives of these chunks and beside them, by number.
fn given(pool: &SubstratePool, name: u8, chunks: &[u64]) -> Vec<u64> {
    let wants: Vec<(Kind, Hash)> = chunks
        .iter()
        .map(|n| (Kind::Chunk, chunk(*n).0.hash))
        .collect();
    let (pieces, rest) = pool.find_of(&id(name), &wants);
    let mut given = Vec::new();
    for piece in pieces {
        let mut sink = |_, hash, _: &[u8]| {
            given.push((0..50).find(|n| chunk(*n).0.hash == hash).unwrap());
        };
        piece.read(&mut sink).unwrap();
    }
    let wanted = chunks.iter().filter(|n| given.contains(n));
    assert_eq!(wanted.count() + rest.len(), chunks.len());
    given.sort_unstable();
    given
}

#[test]
fn what_another_substrate_has_is_neither_found_nor_given_beside_what_is() {
    let mut pool = SubstratePool::new(1 << 30);
    let all: Vec<u64> = (0..30).collect();
    // the second one's items are in the groups that came with the first
    assert!(admit(&mut pool, 1, &all).held);
    assert!(admit(&mut pool, 2, &[3, 4, 40]).held);
    let of_first = given(&pool, 1, &[3, 5, 40]);
    assert!(
        of_first.contains(&5) && of_first.len() > 2,
        "with its neighbours"
    );
    assert!(!of_first.contains(&40), "{of_first:?}");
    assert_eq!(given(&pool, 2, &[3, 5, 40]), [3, 4, 40]);
    assert!(
        given(&pool, 3, &[3, 5, 40]).is_empty(),
        "it is not in memory"
    );
    // what nobody has any more may stand in a group for a while
    pool.release(&id(1));
    assert_eq!(given(&pool, 2, &[3, 5, 40]), [3, 4, 40]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// The pool holds what a map of substrates would, of which those that were used least recently go; its account of its bytes is
    /// exact, and never above the budget.
    #[test]
    fn a_pool_behaves_like_a_map_that_forgets_what_was_used_least_recently(ops in proptest::collection::vec(op(), 1..40)) {
        let mut pool = SubstratePool::new(300_000);
        // the substrates that are in memory, the one used least recently first
        let mut model: Vec<(u8, Vec<u64>)> = Vec::new();
        for op in ops {
            match op {
                Op::Admit(name, chunks) => {
                    let known = model.iter().position(|(other, _)| *other == name);
                    let entry = match known {
                        // what an image is made of does not change
                        Some(at) => model.remove(at),
                        None => (name, chunks),
                    };
                    let admitted = admit(&mut pool, name, &entry.1);
                    let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut model)
                        .into_iter()
                        .partition(|(other, _)| admitted.evicted.contains(&id(*other)));
                    // nobody goes who was used after one that stays
                    let last_gone = gone.len();
                    prop_assert_eq!(last_gone, admitted.evicted.len());
                    let order: Vec<Hash> = gone.iter().map(|(other, _)| id(*other)).collect();
                    prop_assert_eq!(&order, &admitted.evicted);
                    model = kept;
                    if admitted.held {
                        model.push(entry);
                    } else {
                        prop_assert!(known.is_none() && admitted.evicted.is_empty());
                    }
                }
                Op::Touch(name) => {
                    let known = model.iter().position(|(other, _)| *other == name);
                    prop_assert_eq!(pool.touch(&id(name)), known.is_some());
                    if let Some(at) = known {
                        let entry = model.remove(at);
                        model.push(entry);
                    }
                }
                Op::Release(name) => {
                    let before = model.len();
                    model.retain(|(other, _)| *other != name);
                    prop_assert_eq!(pool.release(&id(name)), model.len() < before);
                }
                Op::Resize(bytes) => {
                    let evicted = pool.resize(bytes);
                    let oldest: Vec<Hash> = model.iter().take(evicted.len()).map(|(name, _)| id(*name)).collect();
                    prop_assert_eq!(&oldest, &evicted);
                    model.drain(..evicted.len());
                }
                Op::Thin => {
                    while pool.thin_some() {}
                    prop_assert!(pool.loose.is_empty());
                    let wasteful = |place: &GroupPlace| usize::from(place.live) * 2 <= place.group.hashes.len();
                    prop_assert!(!pool.groups.iter().flatten().any(wasteful));
                }
                Op::Read(n) => {
                    let here = model.iter().any(|(_, chunks)| chunks.contains(&n));
                    prop_assert_eq!(read(&pool, n), here.then(|| chunk(n).1));
                }
            }
            prop_assert_eq!(pool.usage(), counted(&pool));
            prop_assert!(pool.usage().bytes <= pool.budget_bytes());
            prop_assert_eq!(pool.usage().substrates, model.len() as u64);
        }
        let held: BTreeMap<u64, ()> = model.iter().flat_map(|(_, chunks)| chunks).map(|n| (*n, ())).collect();
        prop_assert_eq!(pool.usage().raw_bytes, held.len() as u64 * CHUNK_SIZE as u64);
        for n in 0..120 {
            prop_assert_eq!(read(&pool, n).is_some(), held.contains_key(&n));
        }
        for (name, _) in model {
            pool.release(&id(name));
        }
        prop_assert_eq!(pool.usage(), PoolUsage::default());
    }
}

#[test]
fn what_two_substrates_share_is_in_memory_once() {
    let mut pool = SubstratePool::new(1 << 30);
    let all: Vec<u64> = (0..200).collect();
    admit(&mut pool, 1, &all);
    let one = pool.usage();
    let more: Vec<u64> = (0..201).collect();
    admit(&mut pool, 2, &more);
    let two = pool.usage();
    assert_eq!(two.raw_bytes, one.raw_bytes + CHUNK_SIZE as u64);
    assert_eq!(
        two.referred_bytes,
        one.referred_bytes + 201 * CHUNK_SIZE as u64
    );
    assert!(two.bytes - one.bytes < 8192, "{two:?}");
    pool.release(&id(1));
    assert_eq!(read(&pool, 17), Some(chunk(17).1));
}

#[test]
fn a_budget_below_one_substrate_throws_nobody_else_out() {
    let mut pool = SubstratePool::new(60_000);
    assert!(admit(&mut pool, 1, &[1, 2, 3]).held);
    let all: Vec<u64> = (10..200).collect();
    let admitted = admit(&mut pool, 2, &all);
    assert_eq!((admitted.held, admitted.evicted), (false, vec![]));
    // what it has in common with one that is here makes it no smaller once that one has gone
    let mut shared = SubstratePool::new(1 << 30);
    assert!(admit(&mut shared, 1, &(10..60).collect::<Vec<_>>()).held);
    shared.resize(shared.usage().bytes + 1000);
    let admitted = admit(&mut shared, 2, &(10..75).collect::<Vec<_>>());
    assert_eq!((admitted.held, admitted.evicted), (false, vec![]));
    assert!(shared.holds(&id(1)));
    // and who compresses it sees early that it is too much
    let items: Vec<PoolItem> = all.iter().map(|n| chunk(*n).0).collect();
    let (_, mut packing) = pool.plan(&items);
    let pushed = all.iter().take_while(|n| {
        packing.push(&chunk(**n).0, &chunk(**n).1).unwrap();
        packing.packed_bytes() <= pool.budget_bytes()
    });
    assert!(pushed.count() < all.len() - 32);
    assert!(pool.holds(&id(1)) && !pool.holds(&id(2)));
    assert_eq!(pool.find(&[(Kind::Chunk, chunk(10).0.hash)]).1.len(), 1);
}

#[test]
fn who_needs_memory_gets_that_of_the_substrates_used_least_recently() {
    let mut pool = SubstratePool::new(1 << 30);
    for name in 1..=3 {
        let first = u64::from(name) * 100;
        let own: Vec<u64> = (first..first + 50).collect();
        assert!(admit(&mut pool, name, &own).held);
    }
    pool.touch(&id(1));
    let before = pool.usage().bytes;
    assert_eq!(pool.give_back(1), [id(2)]);
    assert!(pool.usage().bytes < before && pool.holds(&id(1)));
    assert_eq!(pool.give_back(u64::MAX), [id(3), id(1)]);
    assert_eq!(pool.usage(), PoolUsage::default());
    // a host that is short of memory bounds what is taken in, whatever the budget is
    let (items, mut packing) = pool.plan(&[chunk(1).0]);
    packing.push(&items[0], &chunk(1).1).unwrap();
    let packed = packing.finish().unwrap();
    let refused = pool.admit(id(4), &items, packed, 100).unwrap();
    assert!(!refused.held && pool.usage().bytes == 0, "{refused:?}");
}

#[test]
fn small_parts_that_resemble_earlier_ones_cost_little() {
    let part = |salt: u8| {
        let words = (0..CHUNK_SIZE as u64 / 8)
            .flat_map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3).to_le_bytes());
        let mut bytes: Vec<u8> = words.collect();
        bytes[100] = salt;
        let hash = Hash::of(&bytes);
        (
            PoolItem {
                kind: Kind::Chunk,
                hash,
                small: true,
            },
            bytes,
        )
    };
    let mut pool = SubstratePool::new(1 << 30);
    let mut costs = Vec::new();
    for salt in 0..3 {
        let (item, bytes) = part(salt);
        let before = pool.usage().compressed_bytes;
        let (lacking, mut packing) = pool.plan(&[item]);
        packing.push(&lacking[0], &bytes).unwrap();
        pool.admit(id(salt), &[item], packing.finish().unwrap(), u64::MAX)
            .unwrap();
        costs.push(pool.usage().compressed_bytes - before);
        let (pieces, _) = pool.find(&[(item.kind, item.hash)]);
        pieces[0]
            .read(&mut |_, _, found| assert_eq!(found, bytes))
            .unwrap();
    }
    assert!(
        costs[1] * 10 < costs[0] && costs[2] * 10 < costs[0],
        "{costs:?}"
    );
}

#[test]
fn an_item_that_went_after_the_plan_is_asked_for_again() {
    let mut pool = SubstratePool::new(1 << 30);
    admit(&mut pool, 1, &[1, 2]);
    let items: Vec<PoolItem> = [1, 2, 3].map(|n| chunk(n).0).to_vec();
    let (lacking, mut packing) = pool.plan(&items);
    assert_eq!(lacking, [items[2]]);
    packing.push(&items[2], &chunk(3).1).unwrap();
    pool.release(&id(1));
    let refused = pool
        .admit(id(2), &items, packing.finish().unwrap(), u64::MAX)
        .unwrap_err();
    assert_eq!(refused.0, items[..2]);
    assert_eq!(pool.usage(), PoolUsage::default());
    assert!(admit(&mut pool, 2, &[1, 2, 3]).held);
}
