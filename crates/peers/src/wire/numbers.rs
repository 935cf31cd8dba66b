//! Translates between two hosts that number an image's pieces differently. A piece is the same for both if it is at the same place of the
//! same pack. No I/O.
use super::message::{Malformed, PackName, Run};
use floe_swarm::policy::{PIECES_MAX, PieceId};
use std::collections::HashMap;

/// Most packs that a host names to another: 256 GiB in packs of 4 MiB. Pieces of further ones are not exchanged by hosts that number them
/// differently.
pub const PACKS_MAX: usize = 1 << 16;

/// The pieces of a pack.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    first: PieceId,
    count: u32,
    /// What the other host calls the first one, if it knows the pack.
    other: Option<PieceId>,
}

/// What each of two hosts calls the pieces that both know.
#[derive(Clone, Debug)]
pub struct Numbers {
    mine: Vec<Pieces>,
    theirs: Vec<Pieces>,
}

impl Numbers {
    /// Of packs in the order of each host, cut into pieces of so many bytes.
    ///
    /// # Errors
    ///
    /// If packs can't be numbered: empty ones, one that is named twice, too many pieces.
    pub fn new(
        mine: &[PackName],
        theirs: &[PackName],
        piece_bytes: u64,
    ) -> Result<Numbers, Malformed> {
        let (my_firsts, their_firsts) = (firsts(mine, piece_bytes)?, firsts(theirs, piece_bytes)?);
        Ok(Numbers {
            mine: pieces(mine, &my_firsts, &their_firsts),
            theirs: pieces(theirs, &their_firsts, &my_firsts),
        })
    }

    /// Returns this host's number of the piece that the other calls so; `None` if this host does not know it.
    pub fn to_mine(&self, theirs: PieceId) -> Option<PieceId> {
        across(&self.theirs, theirs)
    }

    /// Returns what the other calls a piece; `None` if it does not know it.
    pub fn to_theirs(&self, mine: PieceId) -> Option<PieceId> {
        across(&self.mine, mine)
    }

    /// Returns this host's numbers of the pieces that the other lists, as far as it knows them, and how many steps it took to find them.
    pub fn runs_to_mine(&self, runs: &[Run]) -> (Vec<Run>, u64) {
        let (mut found, mut steps) = (Vec::new(), 0);
        for (first, count) in runs.iter().copied() {
            let (mut at, end) = (first, first.saturating_add(count));
            let mut pack = place(&self.theirs, at);
            while let Some(pieces) = pack.and_then(|pack| self.theirs.get(pack)) {
                let stop = end.min(pieces.first + pieces.count);
                if at >= stop {
                    break;
                }
                if let Some(other) = pieces.other {
                    found.push((other + (at - pieces.first), stop - at));
                }
                (at, pack) = (stop, pack.map(|pack| pack + 1));
                steps += 1;
            }
        }
        (found, steps)
    }
}

/// Returns the first piece of each pack and how many it has, by the pack's name.
fn firsts(
    packs: &[PackName],
    piece_bytes: u64,
) -> Result<HashMap<PackName, (PieceId, u32)>, Malformed> {
    let (mut firsts, mut next) = (HashMap::with_capacity(packs.len()), 0u32);
    for pack in packs {
        let count = u32::try_from(pack.bytes.div_ceil(piece_bytes)).map_err(|_| Malformed)?;
        let end = next.checked_add(count).filter(|end| *end <= PIECES_MAX);
        let twice = firsts.insert(*pack, (next, count)).is_some();
        if count == 0 || twice {
            return Err(Malformed);
        }
        next = end.ok_or(Malformed)?;
    }
    Ok(firsts)
}

fn pieces(
    packs: &[PackName],
    own: &HashMap<PackName, (PieceId, u32)>,
    others: &HashMap<PackName, (PieceId, u32)>,
) -> Vec<Pieces> {
    let of = |pack: &PackName| {
        let (first, count) = *own.get(pack)?;
        let other = others.get(pack).map(|(first, _)| *first);
        Some(Pieces {
            first,
            count,
            other,
        })
    };
    packs.iter().filter_map(of).collect()
}

/// Returns the place of the pack that a piece is in.
fn place(packs: &[Pieces], piece: PieceId) -> Option<usize> {
    let after = packs.partition_point(|pieces| pieces.first <= piece);
    after.checked_sub(1)
}

fn across(packs: &[Pieces], piece: PieceId) -> Option<PieceId> {
    let pieces = packs.get(place(packs, piece)?)?;
    let at = piece - pieces.first;
    let other = pieces.other.filter(|_| at < pieces.count);
    other.map(|first| first + at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PIECE_BYTES: u64 = 100;

    fn pack(name: u8, pieces: u64) -> PackName {
        PackName {
            root: [name; 32],
            bytes: pieces * PIECE_BYTES - 1,
        }
    }

    fn numbers(mine: &[PackName], theirs: &[PackName]) -> Result<Numbers, Malformed> {
        Numbers::new(mine, theirs, PIECE_BYTES)
    }

    #[test]
    fn a_piece_is_the_same_if_its_pack_is_and_its_place_in_that() {
        let (a, b, c, d) = (pack(1, 3), pack(2, 1), pack(3, 5), pack(4, 2));
        // one of another length is another
        let other = pack(2, 2);
        let both = numbers(&[a, b, c], &[d, c, other, a]).unwrap();
        let mine: Vec<_> = (0..12).map(|theirs| both.to_mine(theirs)).collect();
        let known = |first: u32, count: u32| (first..first + count).map(Some);
        let none = |count| std::iter::repeat_n(None, count);
        let right = none(2).chain(known(4, 5)).chain(none(2)).chain(known(0, 3));
        assert_eq!(mine, right.collect::<Vec<_>>());
        let back = (0..9).map(|mine| both.to_theirs(mine));
        let right = known(9, 3).chain(none(1)).chain(known(2, 5));
        assert_eq!(back.collect::<Vec<_>>(), right.collect::<Vec<_>>());
        assert_eq!((both.to_mine(12), both.to_theirs(9)), (None, None));
        assert_eq!(
            (both.to_mine(u32::MAX), both.to_theirs(u32::MAX)),
            (None, None)
        );
        // across packs, with what is not known and beyond the end
        let runs = [(0, 1), (1, 5), (6, 4), (11, 1000)];
        let (found, steps) = both.runs_to_mine(&runs);
        assert_eq!(found, [(4, 4), (8, 1), (0, 1), (2, 1)]);
        assert_eq!(steps, 7);
        let nobody = numbers(&[a], &[]).unwrap();
        assert_eq!(nobody.runs_to_mine(&runs), (vec![], 0));
    }

    #[test]
    fn what_can_not_be_numbered_is_refused() {
        let a = pack(1, 3);
        let empty = PackName { bytes: 0, ..a };
        let most = pack(2, u64::from(PIECES_MAX));
        let endless = PackName {
            bytes: u64::MAX,
            ..a
        };
        for wrong in [&[empty][..], &[a, a], &[a, most], &[endless]] {
            assert!(numbers(&[a], wrong).is_err() && numbers(wrong, &[a]).is_err());
        }
        assert!(numbers(&[a], &[most]).is_ok());
    }

    proptest! {
        #[test]
        fn runs_are_translated_as_their_pieces_are(
            mine in Just((0u8..12).collect::<Vec<_>>()).prop_shuffle(),
            theirs in Just((6u8..18).collect::<Vec<_>>()).prop_shuffle(),
            runs in prop::collection::vec((0u32..60, 1u32..60), 0..8),
        ) {
            let packs = |names: Vec<u8>| -> Vec<PackName> {
                let named = |name: u8| pack(name, 1 + u64::from(name % 5));
                names.into_iter().map(named).collect()
            };
            let both = numbers(&packs(mine), &packs(theirs)).unwrap();
            let each = |runs: &[Run]| -> Vec<PieceId> {
                runs.iter().flat_map(|(first, count)| *first..first + count).collect()
            };
            let one_by_one: Vec<PieceId> =
                each(&runs).into_iter().filter_map(|piece| both.to_mine(piece)).collect();
            prop_assert_eq!(each(&both.runs_to_mine(&runs).0), one_by_one.clone());
            for piece in one_by_one {
                let theirs = both.to_theirs(piece).unwrap();
                prop_assert_eq!(both.to_mine(theirs), Some(piece));
            }
        }
    }
}
