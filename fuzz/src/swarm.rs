//! The targets of swarms: what hosts say to each other, whom a user lists, and what a hub keeps to prove its pieces.

use crate::{
    SWARM_ADDRESSES_MAX, SWARM_LIST_MAX, SWARM_OFFER_PACKS_MAX, SwarmMember, SwarmMembers,
    SwarmOffer,
};
use floe_image::Hash;

#[allow(dead_code)]
#[path = "../../crates/peers/src/wire/message.rs"]
mod message;
#[allow(dead_code)]
#[path = "../../crates/peers/src/wire/numbers.rs"]
mod numbers;
#[path = "../../crates/hub/src/swarm/tree_file.rs"]
mod tree;

/// The file of a pack's tree in a hub's folder, but for its checksum, which would keep out whatever is tried here.
pub fn tree_file(data: &[u8]) {
    let id = Hash([7; 32]);
    assert!(tree::read(&id, data).is_none());
    let sum = Hash::of(&[id.as_bytes(), data].concat());
    let file = [data, sum.as_bytes()].concat();
    let Some(kept) = tree::read(&id, &file) else {
        return;
    };
    let hashes = &data[..kept.hashes_bytes as usize];
    assert!(tree::write(&id, &kept.root, kept.pack_bytes, hashes) == file);
    assert!(tree::read(&Hash([8; 32]), &file).is_none());
}

/// A user's list of members: what is read of it is written as it is read again, and what is wrong is told with its line.
pub fn swarm_list(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match SwarmMember::parse_list(text) {
        Ok(list) => {
            assert!(!list.is_empty() && list.len() <= SWARM_LIST_MAX);
            assert_eq!(SwarmMembers::List(list).check(), Ok(()));
        }
        Err(why) => assert!(why.len() < 1000, "{why}"),
    }
}

/// What a member of a cluster says of its part in a swarm: within bounds, and read alike by those whom it is told again.
pub fn swarm_offer(data: &[u8]) {
    let ip = [10, 0, 0, 1].into();
    let Ok(offer) = SwarmOffer::read(data, ip) else {
        return;
    };
    assert!((1..=SWARM_ADDRESSES_MAX).contains(&offer.member.addresses.len()));
    assert!(offer.packs.len() <= SWARM_OFFER_PACKS_MAX);
    let again = serde_json::to_vec(&offer).expect("strings and numbers");
    assert_eq!(SwarmOffer::read(&again, ip), Ok(offer));
}

/// What hosts of a swarm say: read alike in whatever parts it comes, and in one form each.
pub fn swarm_message(data: &[u8]) {
    let read = |step: usize| {
        let (mut frames, mut messages) = (message::Frames::default(), Vec::new());
        for part in data.chunks(step) {
            frames.put(part);
            loop {
                match frames.next() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(_) => return (messages, false),
                }
            }
        }
        (messages, true)
    };
    let whole = read(data.len().max(1));
    assert_eq!(whole, read(1));
    assert_eq!(whole, read(1000));
    let mut rest = data;
    for said in whole.0 {
        // a long list would be said in several
        let [frame] = &message::frames_of(&said)[..] else {
            return;
        };
        rest = rest
            .strip_prefix(&frame[..])
            .expect("a message has one form");
    }
}

/// A host that numbers pieces in a way of its own: what it lists and asks for is translated there and back, and bounded by what both know.
pub fn swarm_numbers(data: &[u8]) {
    const PIECE_BYTES: u64 = 64 << 10;
    let mut frames = message::Frames::default();
    frames.put(data);
    let (mut packs, mut lists) = (Vec::new(), Vec::new());
    while let Ok(Some(said)) = frames.next() {
        match said {
            message::Message::Packs(more) => packs.push(more),
            message::Message::Has(runs) | message::Message::Lacks(runs) => lists.push(runs),
            message::Message::Ask(piece, _) | message::Message::Withdraw(piece) => {
                lists.push(vec![(piece, 1)]);
            }
            _ => {}
        }
    }
    // the first message is what this host knows
    let mut packs = packs.into_iter();
    let mine = packs.next().unwrap_or_default();
    let theirs: Vec<_> = packs.flatten().collect();
    let Ok(both) = numbers::Numbers::new(&mine, &theirs, PIECE_BYTES) else {
        return;
    };
    let pieces: u64 = mine
        .iter()
        .map(|pack| pack.bytes.div_ceil(PIECE_BYTES))
        .sum();
    for runs in lists {
        let (found, steps) = both.runs_to_mine(&runs);
        assert!(steps as usize <= runs.len() + theirs.len());
        assert!(found.len() as u64 <= steps);
        for (first, count) in found {
            assert!(count > 0 && u64::from(first) + u64::from(count) <= pieces);
            for mine in [first, first + (count - 1)] {
                let their = both.to_theirs(mine).expect("both know it");
                assert_eq!(both.to_mine(their), Some(mine));
            }
        }
    }
}
