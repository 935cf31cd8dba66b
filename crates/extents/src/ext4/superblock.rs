//! The superblock: how a file system is laid out. What it says is checked here, so that the rest can calculate with it.

use crate::{Error, bytes::Bytes};

/// Where the superblock is, in bytes from the file system's beginning.
pub const SUPERBLOCK_AT: u64 = 1024;
/// How long it is.
pub const SUPERBLOCK_BYTES: usize = 1024;
/// Most groups of blocks: 32 TiB in blocks of 4 KiB.
const GROUPS_MAX: u64 = 1 << 18;
/// The largest block, as the power of two that its size is in KiB.
const BLOCK_LOG_MAX: u32 = 6;

mod compat {
    pub const SPARSE_SUPER2: u32 = 0x200;
}

mod incompat {
    pub const JOURNAL_DEVICE: u32 = 0x8;
    pub const META_BG: u32 = 0x10;
    pub const BITS_64: u32 = 0x80;
    pub const MMP: u32 = 0x100;
    /// All whose meaning for what is read here is known: what is compressed (0x1) is not among them.
    pub const KNOWN: u32 = 0x3_f7de;
}

mod ro_compat {
    pub const SPARSE_SUPER: u32 = 0x1;
    pub const GDT_CSUM: u32 = 0x10;
    pub const METADATA_CSUM: u32 = 0x400;
}

/// What a superblock says of the layout. None of it changes while a file system is mounted, unless it is resized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a block: 1 KiB to 64 KiB.
    pub block_bytes: u64,
    /// Blocks that the file system has, and the disk as well.
    pub blocks: u64,
    /// The first block of the first group.
    pub first_block: u64,
    /// Blocks in a group.
    pub blocks_per_group: u64,
    /// How many groups there are.
    pub groups: u32,
    /// Inodes in a group.
    pub inodes_per_group: u32,
    /// Bytes in an inode: 128 up to a block.
    pub inode_bytes: usize,
    /// Bytes in the descriptor of a group.
    pub descriptor_bytes: usize,
    /// The first inode that is not the file system's own.
    pub first_inode: u32,
    /// The inode of the journal; 0 is none.
    pub journal: u32,
    /// The inode in which orphans are listed; 0 is none.
    pub orphans: u32,
    /// Whether groups say how much of their inode tables has ever been written.
    pub counts_unused: bool,
    /// The block that says who has the file system mounted; 0 is none.
    pub mount_protection: u64,
    uuid: [u8; 16],
    reserved_descriptors: u64,
    /// From which block of descriptors on they are spread over the groups.
    spread_from: u64,
    copies: Copies,
}

/// Which groups have a copy of the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Copies {
    All,
    Sparse,
    Two([u32; 2]),
}

impl Geometry {
    /// Reads a superblock that stands at a byte of the disk, of a file system for which the disk has so many bytes.
    pub fn read(bytes: &[u8], at: u64, disk_bytes: u64) -> Result<Geometry, Error> {
        let damaged = |what| Error::Damaged { offset: at, what };
        let bytes = Bytes(bytes);
        if !bytes.at(0x38, b"\x53\xef") {
            return Err(damaged("there is no superblock"));
        }
        let (compat, incompat, ro) = (bytes.le32(0x5c), bytes.le32(0x60), bytes.le32(0x64));
        let unknown = incompat & !incompat::KNOWN;
        if unknown != 0 || incompat & incompat::JOURNAL_DEVICE != 0 {
            let features = unknown | incompat & incompat::JOURNAL_DEVICE;
            return Err(Error::Feature {
                offset: at,
                features,
            });
        }
        let log = bytes.le32(0x18);
        if log > BLOCK_LOG_MAX {
            return Err(damaged("its blocks are longer than 64 KiB"));
        }
        let block_bytes = 1024 << log;
        let is_64 = incompat & incompat::BITS_64 != 0;
        let high = if is_64 { bytes.le32(0x150) } else { 0 };
        let blocks = u64::from(high) << 32 | u64::from(bytes.le32(4));
        let first_block = u64::from(bytes.le32(0x14));
        let blocks_per_group = u64::from(bytes.le32(0x20));
        if first_block > 1 || first_block >= blocks || blocks_per_group < 8 {
            return Err(damaged("its numbers of blocks make no sense"));
        }
        let groups = (blocks - first_block).div_ceil(blocks_per_group);
        let groups = u32::try_from(groups).ok();
        let groups = groups.filter(|count| u64::from(*count) <= GROUPS_MAX);
        let groups = groups.ok_or(damaged("it has too many groups of blocks"))?;
        let inodes_per_group = bytes.le32(0x28);
        if u64::from(inodes_per_group) > 8 * block_bytes
            || u64::from(groups) * u64::from(inodes_per_group) >= u64::from(u32::MAX)
        {
            return Err(damaged("it has too many inodes"));
        }
        let is_old = bytes.le32(0x4c) == 0;
        let inode_bytes = if is_old { 128 } else { bytes.le16(0x58) };
        let descriptor_bytes = if is_64 { bytes.le16(0xfe) } else { 32 };
        let fits = |size: u16| size.is_power_of_two() && u64::from(size) <= block_bytes;
        if !fits(inode_bytes) || inode_bytes < 128 {
            return Err(damaged("its inodes have no possible size"));
        }
        if !fits(descriptor_bytes) || descriptor_bytes < if is_64 { 64 } else { 32 } {
            return Err(damaged("its group descriptors have no possible size"));
        }
        let spread = incompat & incompat::META_BG != 0;
        let guarded = incompat & incompat::MMP != 0;
        Ok(Geometry {
            block_bytes,
            blocks: blocks.min(disk_bytes / block_bytes),
            first_block,
            blocks_per_group,
            groups,
            inodes_per_group,
            inode_bytes: inode_bytes.into(),
            descriptor_bytes: descriptor_bytes.into(),
            first_inode: if is_old { 11 } else { bytes.le32(0x54) },
            journal: bytes.le32(0xe0),
            orphans: bytes.le32(0x280),
            counts_unused: ro & (ro_compat::GDT_CSUM | ro_compat::METADATA_CSUM) != 0,
            mount_protection: if guarded { bytes.le64(0x168) } else { 0 },
            uuid: bytes.0[0x68..].first_chunk().copied().unwrap_or_default(),
            reserved_descriptors: bytes.le16(0xce).into(),
            spread_from: match spread {
                true => bytes.le32(0x104).into(),
                false => u64::MAX,
            },
            copies: match (compat & compat::SPARSE_SUPER2, ro & ro_compat::SPARSE_SUPER) {
                (0, 0) => Copies::All,
                (0, _) => Copies::Sparse,
                _ => Copies::Two([bytes.le32(0x24c), bytes.le32(0x250)]),
            },
        })
    }

    /// The block in which the superblock is.
    pub fn superblock(&self) -> u64 {
        self.first_block.max(SUPERBLOCK_AT / self.block_bytes)
    }

    /// How many inodes the file system has room for.
    pub fn inodes(&self) -> u32 {
        self.groups.saturating_mul(self.inodes_per_group)
    }

    /// Inodes in a block of an inode table.
    pub fn inodes_per_block(&self) -> u32 {
        // a block has 64 KiB at most
        (self.block_bytes as usize / self.inode_bytes) as u32
    }

    /// Blocks of a group's inode table.
    pub fn table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }

    /// Descriptors in a block.
    pub fn descriptors_per_block(&self) -> u32 {
        // a block has 64 KiB at most
        (self.block_bytes as usize / self.descriptor_bytes) as u32
    }

    /// The blocks in which the groups' descriptors stand, each with the first group of which it tells.
    pub fn descriptor_blocks(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let step = self.descriptors_per_block();
        let groups = (0..self.groups).step_by(step as usize);
        groups.zip(0..).map(move |(group, index)| {
            let block = match index < self.spread_from {
                true => self.superblock() + 1 + index,
                false => self.group_block(group) + u64::from(self.has_copy(group)),
            };
            (block, group)
        })
    }

    /// The group of the first descriptor in a block, if descriptors are in it. The copies are not looked at.
    pub fn descriptors_in(&self, block: u64) -> Option<u32> {
        let step = u64::from(self.descriptors_per_block());
        let classic = block.checked_sub(self.superblock() + 1);
        let group = match classic.filter(|index| *index < self.classic_blocks()) {
            Some(index) => index * step,
            None => {
                let group = block.checked_sub(self.first_block)? / self.blocks_per_group;
                let group = group / step * step;
                let found = u32::try_from(group).ok()?;
                let own = self.group_block(found) + u64::from(self.has_copy(found));
                (group / step >= self.spread_from && own == block).then_some(group)?
            }
        };
        u32::try_from(group).ok().filter(|at| *at < self.groups)
    }

    /// What lies at fixed places, whatever the descriptors say: first blocks and how many. Superblocks and descriptors with their
    /// copies, and the room for those of a larger file system.
    pub fn fixed(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let guard = (self.mount_protection != 0).then_some((self.mount_protection, 1));
        (0..self.groups)
            .filter_map(|group| {
                let first = self.group_block(group);
                let own = self.has_copy(group);
                let spread = match self.spread_from {
                    u64::MAX => 0,
                    _ => u64::from(self.has_spread_descriptors(group)),
                };
                let length = match own {
                    true => 1 + self.classic_blocks() + self.reserved_descriptors + spread,
                    false => spread,
                };
                (length > 0).then_some((first, length))
            })
            .chain(guard)
    }

    /// Blocks of descriptors that follow a superblock.
    fn classic_blocks(&self) -> u64 {
        let all = self.groups.div_ceil(self.descriptors_per_block());
        u64::from(all).min(self.spread_from)
    }

    /// Whether descriptors are in this group because they are spread: the first two and the last of those of which a block tells.
    fn has_spread_descriptors(&self, group: u32) -> bool {
        let step = self.descriptors_per_block();
        let place = group % step;
        u64::from(group / step) >= self.spread_from
            && (place <= 1 || place + 1 == step || group + 1 == self.groups)
    }

    fn group_block(&self, group: u32) -> u64 {
        match group {
            0 => self.superblock(),
            _ => self.first_block + u64::from(group) * self.blocks_per_group,
        }
    }

    fn has_copy(&self, group: u32) -> bool {
        let is_power = |base: u32| {
            let mut power = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        };
        let here = match &self.copies {
            Copies::All => true,
            Copies::Sparse => group == 1 || [3, 5, 7].into_iter().any(is_power),
            Copies::Two(two) => two.contains(&group),
        };
        here || group == 0
    }
}
