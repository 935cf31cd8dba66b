//! An inode: what it is, where its blocks are, and what it holds in itself.

use super::{claims::Shape, names, superblock::Geometry, tree::Listed};
use crate::bytes::Bytes;

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A directory.
    Directory,
    /// A file, a symbolic link, a device: whatever is no directory.
    File,
}

/// What an inode says.
#[derive(Debug)]
pub struct Inode {
    /// What it is.
    pub form: Form,
    /// Its blocks, as far as it lists them itself.
    pub listed: Listed,
    /// The packed names in it, if it is a directory without blocks.
    pub names: Vec<u8>,
    /// The block with its further attributes, which it may share with other inodes; 0 is none.
    pub attributes: u64,
}

const MODE_FORMAT: u16 = 0xf000;
const MODE_DIRECTORY: u16 = 0x4000;
const MODE_FILE: u16 = 0x8000;
const MODE_LINK: u16 = 0xa000;
const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_INLINE: u32 = 0x1000_0000;
/// Where an inode lists its blocks, or holds something so short that it needs none.
const BLOCKS: std::ops::Range<usize> = 40..100;
/// A directory in an inode begins with its parent's number.
const PARENT_BYTES: usize = 4;
/// Where the attributes in an inode are, relative to the length that it gives for itself.
const BASE_BYTES: usize = 128;
/// Attributes in an inode that are looked at: a long inode has room for a few dozen.
const ATTRIBUTES_MAX: usize = 256;

impl Inode {
    /// Reads an inode, which is as long as the superblock says; `None` if it is not in use.
    pub fn read(bytes: &[u8], geometry: &Geometry) -> Option<Inode> {
        let head = Bytes(bytes);
        let (mode, links, flags) = (head.le16(0), head.le16(26), head.le32(32));
        let place = bytes.get(BLOCKS)?;
        if mode == 0 || links == 0 {
            return None;
        }
        let format = mode & MODE_FORMAT;
        let is_directory = format == MODE_DIRECTORY;
        // a short link's target stands where others list their blocks
        let is_short = format == MODE_LINK && flags & FLAG_EXTENTS == 0 && size(&head) < 60;
        let has_blocks = matches!(format, MODE_DIRECTORY | MODE_FILE | MODE_LINK) && !is_short;
        let is_inline = flags & FLAG_INLINE != 0;
        let shape = match flags & FLAG_EXTENTS {
            0 => Shape::Numbers,
            _ => Shape::Extents,
        };
        let mut names = Vec::new();
        if is_directory && is_inline {
            let inodes = geometry.inodes();
            names = names::pack(&place[PARENT_BYTES..], inodes);
            names.extend(names::pack(inline_rest(bytes).unwrap_or_default(), inodes));
        }
        let attributes = u64::from(head.le16(118)) << 32 | u64::from(head.le32(104));
        Some(Inode {
            form: match is_directory {
                true => Form::Directory,
                false => Form::File,
            },
            listed: match has_blocks && !is_inline {
                true => Listed::in_inode(place, shape, geometry.blocks),
                false => Listed::default(),
            },
            names,
            attributes: match attributes < geometry.blocks {
                true => attributes,
                false => 0,
            },
        })
    }
}

fn size(head: &Bytes<'_>) -> u64 {
    u64::from(head.le32(108)) << 32 | u64::from(head.le32(4))
}

/// The rest of what an inode holds in itself: the attribute `system.data`.
fn inline_rest(inode: &[u8]) -> Option<&[u8]> {
    const SYSTEM: u8 = 7;
    let extra = usize::from(Bytes(inode.get(BASE_BYTES..)?).le16(0));
    let attributes = inode.get(BASE_BYTES + extra..)?;
    if !Bytes(attributes).at(0, &0xea02_0000_u32.to_le_bytes()) {
        return None;
    }
    let values = &attributes[4..];
    let mut rest = values;
    for _ in 0..ATTRIBUTES_MAX {
        let head = Bytes(rest);
        let (length, index) = (usize::from(*rest.first()?), *rest.get(1)?);
        if length == 0 && index == 0 {
            return None;
        }
        if index == SYSTEM && rest.get(16..16 + length)? == b"data" {
            let first = usize::from(head.le16(2));
            let length = usize::try_from(head.le32(8)).ok()?;
            return values.get(first..first.checked_add(length)?);
        }
        rest = rest.get((16 + length).next_multiple_of(4)..)?;
    }
    None
}
