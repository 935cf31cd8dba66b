//! BLAKE3 trees of packs: what makes a range of a pack provable on its own.
//!
//! A pack's name is the hash of its index, which proves nothing of a range. So the root of a tree over all of its bytes travels beside
//! the name, and a range travels with the hashes between it and that root: bao's encoding with groups of 16 KiB, as iroh-blobs has it.
use bao_tree::io::BaoContentItem;
use bao_tree::io::outboard::PreOrderMemOutboard;
use bao_tree::io::sync::{
    DecodeResponseIter, Outboard, ReadAt, encode_ranges_validated, outboard, truncate_ranges,
};
use bao_tree::iter::BaoChunk;
use bao_tree::{BaoTree, BlockSize, ChunkNum, ChunkRanges, TreeNode};
use bytes::Bytes;
use floe_swarm::policy::PIECES_MAX;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

/// Bytes of a piece; a pack's last one may be shorter. At 64 KiB a demand takes 5 ms of a link of 100 Mbit/s, and an image of
/// 16 GiB has a quarter of a million pieces, of which a host can know what fifty others have. Smaller ones would cost more
/// questions than they save bytes: frames of a pack are up to 64 KiB.
pub const PIECE_BYTES: u64 = 64 << 10;
/// 16 chunks of BLAKE3, 16 KiB: 0.4 % of a pack in hashes.
const GROUP: BlockSize = BlockSize::from_chunk_log(4);
/// Bytes of the two hashes below an inner node.
const PAIR_BYTES: u64 = 64;
/// Longest pack that a content may have.
const PACK_BYTES_MAX: u64 = PIECES_MAX as u64 * PIECE_BYTES;

/// A pack as others know it: all that is needed to verify any range of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pack {
    /// BLAKE3 hash of all its bytes.
    pub root: [u8; 32],
    /// Its length.
    pub bytes: u64,
}

impl Pack {
    fn tree(&self) -> BaoTree {
        BaoTree::new(self.bytes, GROUP)
    }

    fn root(&self) -> blake3::Hash {
        blake3::Hash::from_bytes(self.root)
    }

    /// Returns the length of a range's proven form, which a range of the pack always has.
    pub(crate) fn proven_bytes(&self, range: &Range<u64>) -> u64 {
        let ranges = chunks(range);
        let ranges = truncate_ranges(&ranges, self.bytes);
        let parts = self.tree().ranges_pre_order_chunks_iter_ref(ranges, 0);
        let bytes = parts.map(|part| match part {
            BaoChunk::Parent { .. } => PAIR_BYTES,
            BaoChunk::Leaf { size, .. } => size as u64,
        });
        bytes.sum()
    }

    /// Returns the bytes of a range, of which this is the proven form ([`Tree::prove`]).
    ///
    /// # Errors
    ///
    /// If it is another one's, or anything of it was changed.
    pub fn verify(&self, range: &Range<u64>, proven: &[u8]) -> Result<Vec<u8>, WrongBytes> {
        let fits = range.start < range.end && range.end <= self.bytes;
        let verified = fits.then(|| self.check(range, proven));
        Ok(verified.ok_or(WrongBytes)??.bytes)
    }

    /// Returns a range's proven form, as [`Tree::prove`] does, of the pack's file and one with the hashes of its tree
    /// ([`Tree::hashes`]), of which only what the range needs is read. The range is one of
    /// [`Content::place`](crate::Content::place)'s, or some of them in a row.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the files are not those of this pack, or can't be read.
    pub fn prove(&self, range: &Range<u64>, bytes: &File, hashes: File) -> io::Result<Bytes> {
        let hashes = Hashes {
            pack: *self,
            file: Some(hashes),
        };
        prove(*self, range, bytes, hashes)
    }

    /// Verifies the proven form of a range.
    pub(crate) fn check(&self, range: &Range<u64>, proven: &[u8]) -> Result<Verified, WrongBytes> {
        let (tree, ranges) = (self.tree(), chunks(range));
        let mut rest = proven;
        let mut verified = Verified {
            bytes: Vec::with_capacity((range.end - range.start) as usize),
            pairs: Vec::new(),
        };
        for item in DecodeResponseIter::new(self.root(), tree, &mut rest, &ranges) {
            match item.map_err(|_| WrongBytes)? {
                BaoContentItem::Parent(parent) => {
                    let (left, right) = parent.pair;
                    let mut pair = [0; PAIR_BYTES as usize];
                    pair[..32].copy_from_slice(left.as_bytes());
                    pair[32..].copy_from_slice(right.as_bytes());
                    let place = tree.pre_order_offset(parent.node).ok_or(WrongBytes)?;
                    verified.pairs.push((place * PAIR_BYTES, pair));
                }
                BaoContentItem::Leaf(leaf) => verified.bytes.extend_from_slice(&leaf.data),
            }
        }
        let whole = verified.bytes.len() as u64 == range.end - range.start;
        (whole && rest.is_empty())
            .then_some(verified)
            .ok_or(WrongBytes)
    }
}

/// The bytes do not have the hash that they should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these are not the bytes that the hash names")]
pub struct WrongBytes;

/// A range whose bytes are right.
pub(crate) struct Verified {
    pub(crate) bytes: Vec<u8>,
    /// The hashes that prove it, with their places in the tree's hashes.
    pub(crate) pairs: Vec<(u64, [u8; PAIR_BYTES as usize])>,
}

/// The range's chunks; it starts and ends at a group's bounds or at the pack's end.
fn chunks(range: &Range<u64>) -> ChunkRanges {
    ChunkRanges::from(ChunkNum::full_chunks(range.start)..ChunkNum::chunks(range.end))
}

/// A pack with all hashes of its tree. Who has the pack's bytes too can prove any range of it: a hub does, for a [`Seed`](crate::Seed).
///
/// In memory it takes 0.4 % of the pack.
#[derive(Clone, Debug)]
pub struct Tree {
    hashes: PreOrderMemOutboard,
}

impl Tree {
    /// Computes the tree of a pack of so many bytes. Fails if `content` does, or ends before.
    pub fn of(content: impl Read, bytes: u64) -> io::Result<Tree> {
        let tree = BaoTree::new(bytes, GROUP);
        let length = usize::try_from(tree.outboard_size()).map_err(io::Error::other)?;
        let mut hashes = PreOrderMemOutboard {
            root: blake3::Hash::from_bytes([0; 32]),
            tree,
            data: vec![0; length],
        };
        hashes.root = outboard(content, tree, &mut hashes)?;
        Ok(Tree { hashes })
    }

    /// Returns how many bytes of hashes the tree of a pack of so many bytes has; `None` if no content has such a pack.
    pub fn hashes_of(bytes: u64) -> Option<u64> {
        let bytes = Some(bytes).filter(|bytes| (1..=PACK_BYTES_MAX).contains(bytes))?;
        Some(BaoTree::new(bytes, GROUP).outboard_size())
    }

    /// Returns the hashes, to be kept beside the pack.
    pub fn hashes(&self) -> &[u8] {
        &self.hashes.data
    }

    /// Returns the pack's root and length.
    pub fn pack(&self) -> Pack {
        Pack {
            root: *self.hashes.root.as_bytes(),
            bytes: self.hashes.tree.size(),
        }
    }

    /// Returns the proven form of a range (what a [`Seed`](crate::Seed) answers), given its bytes. The range is one of
    /// [`Content::place`](crate::Content::place)'s.
    ///
    /// # Errors
    ///
    /// If these are not the bytes of that range, or the hashes are not the pack's.
    pub fn prove(&self, range: &Range<u64>, bytes: &[u8]) -> Result<Bytes, WrongBytes> {
        let part = Part {
            start: range.start,
            bytes,
        };
        prove(self.pack(), range, part, &self.hashes).map_err(|_| WrongBytes)
    }
}

/// Returns a range's proven form, of bytes and hashes that are verified while they are read.
pub(crate) fn prove(
    pack: Pack,
    range: &Range<u64>,
    bytes: impl ReadAt,
    hashes: impl Outboard,
) -> io::Result<Bytes> {
    let mut proven = Vec::with_capacity(pack.proven_bytes(range) as usize);
    encode_ranges_validated(bytes, hashes, &chunks(range), &mut proven)
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(proven.into())
}

/// Some of a pack's bytes, by their place in the pack.
struct Part<'a> {
    start: u64,
    bytes: &'a [u8],
}

impl ReadAt for Part<'_> {
    fn read_at(&self, pos: u64, buf: &mut [u8]) -> io::Result<usize> {
        let at = pos.checked_sub(self.start);
        let at = at.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.bytes.read_at(at, buf)
    }
}

/// The hashes of a pack in a file, which a pack of one group has not: its only hash is the root.
pub(crate) struct Hashes {
    pub(crate) pack: Pack,
    pub(crate) file: Option<File>,
}

impl Outboard for Hashes {
    fn root(&self) -> blake3::Hash {
        self.pack.root()
    }

    fn tree(&self) -> BaoTree {
        self.pack.tree()
    }

    fn load(&self, node: TreeNode) -> io::Result<Option<(blake3::Hash, blake3::Hash)>> {
        let Some(place) = self.pack.tree().pre_order_offset(node) else {
            return Ok(None);
        };
        let file = self.file.as_ref().ok_or(io::ErrorKind::UnexpectedEof)?;
        let (mut left, mut right) = ([0; 32], [0; 32]);
        file.read_exact_at(place * PAIR_BYTES, &mut left)?;
        file.read_exact_at(place * PAIR_BYTES + 32, &mut right)?;
        Ok(Some((left.into(), right.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        blake3::Hasher::new().finalize_xof().fill(&mut out);
        out
    }

    const PIECE: u64 = crate::PIECE_BYTES;

    #[test]
    fn the_root_is_the_hash_of_the_whole_pack() {
        for bytes in [1, 1024, 16 << 10, (16 << 10) + 1, 200_000] {
            let data = noise(bytes);
            let tree = Tree::of(&data[..], bytes as u64).unwrap();
            assert_eq!(tree.pack().root, *blake3::hash(&data).as_bytes());
        }
        assert!(Tree::of(&[0; 10][..], 11).is_err());
    }

    #[test]
    fn pieces_are_proven_from_files_and_a_damaged_one_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (of_bytes, of_hashes) = (dir.path().join("bytes"), dir.path().join("hashes"));
        let data = noise(300_000);
        let tree = Tree::of(&data[..], 300_000).unwrap();
        assert_eq!(Tree::hashes_of(300_000), Some(tree.hashes().len() as u64));
        assert_eq!(
            (Tree::hashes_of(0), Tree::hashes_of(u64::MAX)),
            (None, None)
        );
        std::fs::write(&of_bytes, &data).unwrap();
        std::fs::write(&of_hashes, tree.hashes()).unwrap();
        let prove = |range: &Range<u64>| {
            let [bytes, hashes] = [&of_bytes, &of_hashes].map(|path| File::open(path).unwrap());
            tree.pack().prove(range, &bytes, hashes)
        };
        for range in [0..PIECE, PIECE..3 * PIECE, 4 * PIECE..300_000] {
            let proven = prove(&range).unwrap();
            let right = &data[range.start as usize..range.end as usize];
            assert_eq!(tree.pack().verify(&range, &proven).unwrap(), right);
            if right.len() as u64 <= PIECE {
                assert_eq!(proven, tree.prove(&range, right).unwrap());
            }
        }
        let proven = prove(&(0..PIECE)).unwrap();
        for other in [PIECE..2 * PIECE, 0..0, 9 * PIECE..10 * PIECE] {
            assert!(tree.pack().verify(&other, &proven).is_err());
        }
        std::fs::write(&of_hashes, &tree.hashes()[64..]).unwrap();
        assert!(prove(&(0..PIECE)).is_err());
        std::fs::write(&of_hashes, tree.hashes()).unwrap();
        std::fs::write(&of_bytes, &data[1..]).unwrap();
        assert!(prove(&(0..PIECE)).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_piece_is_proven_and_no_changed_byte_of_it_is(
            bytes in 1usize..600_000, piece in 0u64..10, at in any::<prop::sample::Index>(), change in 1u8..,
        ) {
            let data = noise(bytes);
            let tree = Tree::of(&data[..], bytes as u64).unwrap();
            let start = (piece * PIECE) % (bytes as u64).next_multiple_of(PIECE);
            let range = start..(start + PIECE).min(bytes as u64);
            let right = &data[range.start as usize..range.end as usize];
            let proven = tree.prove(&range, right).unwrap();
            let pack = tree.pack();
            prop_assert_eq!(proven.len() as u64, pack.proven_bytes(&range));
            prop_assert_eq!(pack.verify(&range, &proven).unwrap(), right);
            let mut wrong = proven.to_vec();
            wrong[at.index(proven.len())] ^= change;
            prop_assert!(pack.verify(&range, &wrong).is_err());
            prop_assert!(pack.verify(&range, &proven[..at.index(proven.len())]).is_err());
            wrong = proven.to_vec();
            wrong.push(0);
            prop_assert!(pack.verify(&range, &wrong).is_err());
            let mut other = right.to_vec();
            other[at.index(right.len())] ^= change;
            prop_assert!(tree.prove(&range, &other).is_err());
        }
    }
}
