//! Lists of blocks: ext4's extents, and the block numbers of ext2 and ext3, in inodes and in blocks of their own.

use super::claims::{Shape, Use};
use crate::bytes::Bytes;

/// Depth of the deepest tree of extents.
const DEPTH_MAX: u16 = 5;
/// Extents longer than this are reserved, and not written yet: so much is taken off.
const WRITTEN_MAX: u32 = 0x8000;
/// Block numbers in an inode that say where data is. Three more say where lists are, of depth 0 to 2.
const DIRECT: usize = 12;

/// Blocks in use, as lists say it.
#[derive(Debug, Default)]
pub struct Listed {
    /// First blocks, and what they are.
    pub uses: Vec<(u64, Use)>,
    /// How many entries make no sense, or lead out of the file system.
    pub damaged: u64,
}

impl Listed {
    /// Reads the blocks that the 60 bytes in an inode list.
    pub fn in_inode(bytes: &[u8], shape: Shape, blocks: u64) -> Listed {
        match shape {
            Shape::Extents => Listed::extents(bytes, None, blocks),
            Shape::Numbers => {
                let (data, lists) = bytes.split_at_checked(4 * DIRECT).unwrap_or((bytes, &[]));
                let mut listed = Listed::default();
                listed.add_numbers(data, None, blocks);
                for (depth, list) in (0..3).zip(lists.chunks_exact(4)) {
                    listed.add_numbers(list, Some(depth), blocks);
                }
                listed
            }
        }
    }

    /// Reads the blocks that a block of such a depth lists.
    pub fn in_block(bytes: &[u8], shape: Shape, depth: u8, blocks: u64) -> Listed {
        match shape {
            Shape::Extents => Listed::extents(bytes, Some(depth), blocks),
            Shape::Numbers => {
                let mut listed = Listed::default();
                listed.add_numbers(bytes, depth.checked_sub(1), blocks);
                listed
            }
        }
    }

    /// Reads a node of a tree of extents. Its depth must be what its parent says, so that no tree has a loop.
    fn extents(bytes: &[u8], depth: Option<u8>, blocks: u64) -> Listed {
        let mut listed = Listed::default();
        let head = Bytes(bytes);
        let (entries, max, own) = (head.le16(2), head.le16(4), head.le16(6));
        let expected = depth.map_or(own <= DEPTH_MAX, |depth| own == depth.into());
        if !head.at(0, b"\x0a\xf3") || entries > max || !expected {
            listed.damaged += 1;
            return listed;
        }
        let entries = bytes[12..].chunks_exact(12).take(entries.into());
        for entry in entries.map(Bytes) {
            if own == 0 {
                let length = u32::from(entry.le16(4));
                let length = match length > WRITTEN_MAX {
                    true => length - WRITTEN_MAX,
                    false => length,
                };
                let first = u64::from(entry.le16(6)) << 32 | u64::from(entry.le32(8));
                listed.add(first, Use::data(length), blocks);
            } else {
                let first = u64::from(entry.le16(8)) << 32 | u64::from(entry.le32(4));
                // at most DEPTH_MAX
                let usage = Use::tree(Shape::Extents, own as u8 - 1);
                listed.add(first, usage, blocks);
            }
        }
        listed
    }

    /// Adds block numbers: of lists with that depth, or of data, of which neighbours become one run.
    fn add_numbers(&mut self, bytes: &[u8], depth: Option<u8>, blocks: u64) {
        let mut run: Option<(u64, u32)> = None;
        for number in bytes.chunks_exact(4) {
            let number = u64::from(Bytes(number).le32(0));
            if number == 0 {
                continue; // a hole
            }
            if let Some(depth) = depth {
                self.add(number, Use::tree(Shape::Numbers, depth), blocks);
                continue;
            }
            run = Some(match run {
                Some((first, length)) if first + u64::from(length) == number => (first, length + 1),
                other => {
                    self.add_run(other, blocks);
                    (number, 1)
                }
            });
        }
        self.add_run(run, blocks);
    }

    fn add_run(&mut self, run: Option<(u64, u32)>, blocks: u64) {
        if let Some((first, length)) = run {
            self.add(first, Use::data(length), blocks);
        }
    }

    fn add(&mut self, first: u64, usage: Use, blocks: u64) {
        let length = usage.blocks();
        if first == 0 || length == 0 || first >= blocks || length > blocks - first {
            self.damaged += 1;
        } else {
            self.uses.push((first, usage));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(depth: u16, entries: &[[u8; 12]]) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        bytes[..2].copy_from_slice(b"\x0a\xf3");
        bytes[2] = entries.len() as u8;
        bytes[4] = 84;
        bytes[6..8].copy_from_slice(&depth.to_le_bytes());
        for (at, entry) in entries.iter().enumerate() {
            bytes[12 + 12 * at..][..12].copy_from_slice(entry);
        }
        bytes
    }

    #[test]
    fn reserved_extents_belong_to_their_file_as_well() {
        let written = [0, 0, 0, 0, 0, 0x80, 0, 0, 1, 0, 0, 0];
        let reserved = [0, 0, 0, 0, 3, 0x80, 0, 0, 9, 0x80, 0, 0];
        let bytes = node(0, &[written, reserved]);
        let listed = Listed::in_block(&bytes, Shape::Extents, 0, 1 << 20);
        assert_eq!(
            listed.uses,
            [(1, Use::data(0x8000)), (0x8009, Use::data(3))]
        );
        assert_eq!(listed.damaged, 0);
    }

    #[test]
    fn a_node_of_another_depth_than_its_parent_says_is_not_read() {
        let down = [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        let bytes = node(1, &[down]);
        let listed = Listed::in_block(&bytes, Shape::Extents, 1, 100);
        assert_eq!(listed.uses, [(7, Use::tree(Shape::Extents, 0))]);
        for depth in [0, 2] {
            let listed = Listed::in_block(&bytes, Shape::Extents, depth, 100);
            assert_eq!((listed.uses, listed.damaged), (vec![], 1));
        }
        let listed = Listed::in_inode(&node(6, &[down])[..60], Shape::Extents, 100);
        assert_eq!((listed.uses, listed.damaged), (vec![], 1));
    }

    #[test]
    fn what_leads_out_of_the_file_system_is_left_out() {
        for (first, length, fits) in [(90, 10, true), (90, 11, false), (100, 1, false)] {
            let entry = [0, 0, 0, 0, length, 0, 0, 0, first, 0, 0, 0];
            let listed = Listed::in_block(&node(0, &[entry]), Shape::Extents, 0, 100);
            assert_eq!((listed.uses.len() == 1, listed.damaged == 0), (fits, fits));
        }
    }

    #[test]
    fn neighbouring_block_numbers_are_one_run() {
        let numbers = [5u32, 6, 7, 0, 8, 20, 0, 0, 0, 0, 0, 0, 30, 31, 32];
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let listed = Listed::in_inode(&bytes, Shape::Numbers, 100);
        let lists = (0..3).map(|depth| (30 + u64::from(depth), Use::tree(Shape::Numbers, depth)));
        let data = [(5, Use::data(4)), (20, Use::data(1))];
        assert_eq!(
            listed.uses,
            data.into_iter().chain(lists).collect::<Vec<_>>()
        );
    }
}
