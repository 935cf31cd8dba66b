//! The packs of one image that a host of a swarm knows, cut into numbered pieces.
use crate::tree::{PIECE_BYTES, Pack};
use floe_swarm::policy::{PIECES_MAX, PieceId};
use std::collections::HashSet;
use std::ops::Range;

/// The packs of an image in an order, which numbers the pieces. Most hosts of a swarm agree on it; those that don't, because the image was
/// laid out anew, exchange the packs that both know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    packs: Vec<Pack>,
    /// The first piece of each pack, and after them the number of all.
    firsts: Vec<PieceId>,
    id: [u8; 32],
}

/// Why packs make no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// A pack without bytes has no piece.
    #[error("pack {0} is empty")]
    Empty(usize),
    /// Its pieces would have two numbers.
    #[error("pack {0} is listed before")]
    Twice(usize),
    /// More than [`PIECES_MAX`].
    #[error("more than {PIECES_MAX} pieces")]
    TooLarge,
}

impl Content {
    /// Numbers the pieces of packs.
    pub fn new(packs: Vec<Pack>) -> Result<Content, ContentError> {
        let mut hash = blake3::Hasher::new_derive_key("floe 2026 content of a swarm");
        let mut firsts = vec![0];
        let (mut next, mut known) = (0u64, HashSet::new());
        for (number, pack) in packs.iter().enumerate() {
            if pack.bytes == 0 {
                return Err(ContentError::Empty(number));
            }
            if !known.insert(pack.root) {
                return Err(ContentError::Twice(number));
            }
            next += pack.bytes.div_ceil(PIECE_BYTES);
            if next > u64::from(PIECES_MAX) {
                return Err(ContentError::TooLarge);
            }
            firsts.push(next as PieceId);
            hash.update(&pack.root).update(&pack.bytes.to_le_bytes());
        }
        let id = *hash.finalize().as_bytes();
        Ok(Content { packs, firsts, id })
    }

    /// Returns the name of these packs in this order, by which hosts know that they mean the same.
    pub fn id(&self) -> [u8; 32] {
        self.id
    }

    /// Returns the packs.
    pub fn packs(&self) -> &[Pack] {
        &self.packs
    }

    /// Returns the number of pieces.
    pub fn pieces(&self) -> u32 {
        self.firsts.last().copied().unwrap_or(0)
    }

    /// Returns the pieces in which a range of a pack lies; none if the pack has no such range.
    pub fn pieces_of(&self, pack: usize, range: Range<u64>) -> Range<PieceId> {
        let known = self.packs.get(pack);
        match known.filter(|pack| range.start < range.end && range.end <= pack.bytes) {
            Some(_) => {
                let piece = |at: u64| self.firsts[pack] + (at / PIECE_BYTES) as PieceId;
                piece(range.start)..piece(range.end - 1) + 1
            }
            None => 0..0,
        }
    }

    /// Returns where a piece lies: its pack and the range in that. `None` if there is no such piece.
    pub fn place(&self, piece: PieceId) -> Option<(usize, Range<u64>)> {
        if piece >= self.pieces() {
            return None;
        }
        let pack = self.firsts.partition_point(|first| *first <= piece) - 1;
        let start = u64::from(piece - self.firsts[pack]) * PIECE_BYTES;
        let end = (start + PIECE_BYTES).min(self.packs[pack].bytes);
        Some((pack, start..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(bytes: u64) -> Pack {
        Pack {
            root: *blake3::hash(&bytes.to_le_bytes()).as_bytes(),
            bytes,
        }
    }

    #[test]
    fn pieces_are_numbered_through_all_packs() {
        let sizes = [1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES - 7];
        let content = Content::new(sizes.map(pack).to_vec()).unwrap();
        assert_eq!(content.pieces(), 1 + 1 + 2 + 5);
        for piece in 0..content.pieces() {
            let (pack, range) = content.place(piece).unwrap();
            assert_eq!(content.pieces_of(pack, range), piece..piece + 1);
        }
        assert_eq!(content.place(9), None);
        assert_eq!(content.pieces_of(3, 0..5 * PIECE_BYTES - 7), 4..9);
        assert_eq!(content.pieces_of(3, PIECE_BYTES - 1..PIECE_BYTES + 1), 4..6);
        let nothing = [
            (3, 0..5 * PIECE_BYTES),
            (4, 0..1),
            (0, 1..1),
            (0, Range { start: 1, end: 0 }),
        ];
        for (pack, range) in nothing {
            assert!(content.pieces_of(pack, range).is_empty());
        }
    }

    #[test]
    fn contents_are_bounded_and_have_names() {
        let name = |sizes: &[u64]| {
            let packs = sizes.iter().copied().map(pack).collect();
            Content::new(packs).map(|content| content.id())
        };
        assert_ne!(name(&[1, 2]), name(&[2, 1]));
        assert_eq!(name(&[1, 2]), name(&[1, 2]));
        assert_eq!(name(&[1, 0]), Err(ContentError::Empty(1)));
        assert_eq!(name(&[1, 2, 1]), Err(ContentError::Twice(2)));
        assert_eq!(name(&[u64::MAX]), Err(ContentError::TooLarge));
        let most = u64::from(PIECES_MAX) * PIECE_BYTES;
        assert!(name(&[most]).is_ok());
        assert_eq!(name(&[most, 1]), Err(ContentError::TooLarge));
    }
}
