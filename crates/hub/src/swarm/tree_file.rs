//! A pack's tree in a file: the hashes of the tree, then a footer.
//!
//! ```text
//! hashes   64 bytes each, as floe_peers::Tree::hashes has them
//! footer   8 bytes FLOETREE, 8 bytes length of the pack (little endian), 32 bytes root, 32 bytes BLAKE3 of all of this and the pack's id
//! ```
//! The checksum tells a damaged file from a good one, so that a wrong root is never told to anybody. The hashes are verified up to the
//! root once more whenever a piece is proven with them.

use floe_image::Hash;

const MAGIC: &[u8; 8] = b"FLOETREE";
const SUM_BYTES: usize = 32;
const FOOTER_BYTES: usize = 8 + 8 + 32 + SUM_BYTES;

/// What a file says of its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub root: [u8; 32],
    pub pack_bytes: u64,
    pub hashes_bytes: u64,
}

fn sum(id: &Hash, before: &[u8]) -> Hash {
    Hash::of(&[id.as_bytes(), before].concat())
}

/// Returns the file of the tree of pack `id`.
pub(crate) fn write(id: &Hash, root: &[u8; 32], pack_bytes: u64, hashes: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(hashes.len() + FOOTER_BYTES);
    file.extend_from_slice(hashes);
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&pack_bytes.to_le_bytes());
    file.extend_from_slice(root);
    let sum = sum(id, &file);
    file.extend_from_slice(sum.as_bytes());
    file
}

/// Reads the file of the tree of pack `id`; `None` if it is damaged or another pack's.
pub(crate) fn read(id: &Hash, file: &[u8]) -> Option<Kept> {
    let (before, found) = file.split_last_chunk::<SUM_BYTES>()?;
    let (rest, root) = before.split_last_chunk::<32>()?;
    let (rest, bytes) = rest.split_last_chunk::<8>()?;
    let hashes = rest.strip_suffix(MAGIC)?;
    let kept = Kept {
        root: *root,
        pack_bytes: u64::from_le_bytes(*bytes),
        hashes_bytes: hashes.len() as u64,
    };
    (sum(id, before).as_bytes() == found).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written_and_a_damaged_one_is_none() {
        let id = Hash([7; 32]);
        for hashes in [0, 64, 6400usize] {
            let file = write(&id, &[3; 32], 1_000_000, &vec![5; hashes]);
            let kept = Kept {
                root: [3; 32],
                pack_bytes: 1_000_000,
                hashes_bytes: hashes as u64,
            };
            assert_eq!(read(&id, &file), Some(kept));
            assert_eq!(read(&Hash([8; 32]), &file), None);
            for at in (0..file.len()).step_by(61).chain([file.len() - 1]) {
                let mut wrong = file.clone();
                wrong[at] ^= 1;
                assert_eq!(read(&id, &wrong), None);
                assert_eq!(read(&id, &file[..at]), None);
            }
        }
    }
}
