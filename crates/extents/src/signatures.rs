//! Tells what is on a disk or in a partition by the bytes that kernels and firmware look for. It decides nothing but the name:
//! imports tell their user by it what a file is, and the map of a disk why it cannot read one.

use crate::bytes::Bytes;

/// How many bytes of the beginning are needed: up to what Btrfs, whose signature is the last one, says of its length.
pub const HEAD_BYTES: usize = 0x10100;

/// The name of ext4, which stands for ext2 and ext3 as well.
pub const EXT4: &str = "ext4";

/// Offset and bytes by which partition tables and file systems are recognized.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    // first, because an ISO that also starts from a USB stick has partition tables that need not be right
    (0x8001, b"CD001", "ISO 9660"),
    (0x8001, b"BEA01", "UDF"),
    (512, b"EFI PART", "GPT"),
    (4096, b"EFI PART", "GPT"),
    (0x438, b"\x53\xef", EXT4),
    (0, b"XFSB", "XFS"),
    (0x10040, b"_BHRfS_M", "Btrfs"),
    (1024, b"\x10\x20\xf5\xf2", "F2FS"),
    (1024, b"\xe2\xe1\xf5\xe0", "EROFS"),
    (0, b"hsqs", "SquashFS"),
    (0, b"LUKS\xba\xbe", "LUKS"),
    (512, b"LABELONE", "LVM"),
    (0, b"LABELONE", "LVM"),
    (4086, b"SWAPSPACE2", "swap"),
    (4086, b"SWAP-SPACE", "swap"),
    (4096, b"\xfc\x4e\x2b\xa9", "Linux RAID"),
    (0, b"\xfc\x4e\x2b\xa9", "Linux RAID"),
    (0x10034, b"ReIsEr", "ReiserFS"),
    (0x8000, b"JFS1", "JFS"),
    (3, b"NTFS    ", "NTFS"),
    (3, b"EXFAT   ", "exFAT"),
    (32, b"NXSB", "APFS"),
    (1024, b"H+\0\x04", "HFS+"),
    (1024, b"HX\0\x05", "HFS+"),
    (0, b"ER\x02\0", "an Apple partition map"),
    (512, b"\x57\x45\x56\x82", "a BSD label"),
    (0x10000 + 0x55c, b"\x19\x01\x54\x19", "UFS"),
    (0x2000 + 0x55c, b"\x19\x01\x54\x19", "UFS"),
];

/// Returns what the whole disk is whose first [`HEAD_BYTES`] these are, as far as there are as many: `GPT`, or a file system
/// without partitions around it.
pub fn of_disk(head: &[u8]) -> Option<&'static str> {
    first(head, SIGNATURES.iter())
}

/// Returns what is in the partition whose first [`HEAD_BYTES`] these are: `XFS`.
pub fn of_partition(head: &[u8]) -> Option<&'static str> {
    // the first bytes of a file system may be left of what was there before it
    let (ext4, others): (Vec<_>, Vec<_>) = SIGNATURES.iter().partition(|(.., name)| *name == EXT4);
    first(head, ext4.into_iter().chain(others))
}

fn first<'a>(
    head: &[u8],
    mut known: impl Iterator<Item = &'a (usize, &'static [u8], &'static str)>,
) -> Option<&'static str> {
    let found = known.find(|(at, magic, _)| Bytes(head).at(*at, magic));
    found.map(|(.., name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_was_made_anew_is_what_it_was_made_last() {
        let mut head = vec![0; HEAD_BYTES];
        head[..4].copy_from_slice(b"XFSB");
        assert_eq!(of_partition(&head), Some("XFS"));
        head[0x438..0x43a].copy_from_slice(b"\x53\xef");
        assert_eq!(of_partition(&head), Some(EXT4));
        assert_eq!(of_disk(&head[..0x438]), Some("XFS"));
        assert_eq!(of_disk(&[]), None);
    }
}
