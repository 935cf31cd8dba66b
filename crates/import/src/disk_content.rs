//! Tells what a file without a disk format's header contains: a disk's bytes, something packed, or no disk at all. No I/O
//! beyond reads that the caller does.
//!
//! A disk is recognized by what firmware and kernels look for: partition tables, boot sectors, file systems. Where one of
//! those says how long the disk is, that is compared with the file's length.

use crate::{
    archive,
    disk_foreign::{self, DOCUMENT, Foreign},
    disk_format::{Bytes, Read},
    disk_vhd,
};
use floe_extents::{
    partitions,
    signatures::{self, EXT4, HEAD_BYTES},
};
use std::io;

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// gzip.
    Gzip,
    /// xz.
    Xz,
    /// Zstandard.
    Zstd,
    /// A tar archive; an OVA is one.
    Tar,
}

impl Packing {
    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Packing::Gzip => "gzip",
            Packing::Xz => "xz",
            Packing::Zstd => "zstd",
            Packing::Tar => "tar",
        }
    }
}

/// What a file contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A disk's bytes, recognized by this: `GPT`.
    Disk(&'static str),
    /// A disk's bytes followed by a footer, and by whatever comes behind that: Microsoft's fixed VHD.
    FixedVhd {
        /// How many bytes the disk has.
        bytes: u64,
    },
    /// A packed file.
    Packed(Packing),
    /// A disk whose end is missing.
    Truncated {
        /// What says how long the disk is: `GPT`.
        by: &'static str,
        /// That length in bytes.
        needs: u64,
    },
    /// Not a disk.
    Foreign(Foreign),
    /// Nothing that floe recognizes.
    Unknown,
}

/// A file that begins with this many zero bytes is taken for an empty disk.
const BLANK_BYTES: u64 = 1 << 20;
const SECTOR: u64 = 512;
/// Padding at a disc's end that writers of ISO files may leave out: 150 blocks.
const ISO_PADDING_BYTES: u64 = 150 * 2048;

/// Examines a file of `len` bytes that has no disk format's header.
pub fn look(read: &Read<'_>, len: u64) -> io::Result<Content> {
    if len == 0 {
        let what = "an empty file";
        return Ok(Content::Foreign(Foreign {
            what,
            fix: DOCUMENT,
        }));
    }
    let head = head_at(read, 0)?;
    if let Some(packing) = packing(&head) {
        return Ok(Content::Packed(packing));
    }
    let mut tail = [0; SECTOR as usize];
    let got = read(len.saturating_sub(SECTOR), &mut tail)?;
    let foreign = disk_foreign::by_head(&head).or_else(|| disk_foreign::by_tail(&tail[..got]));
    if let Some(foreign) = foreign {
        return Ok(Content::Foreign(foreign));
    }
    let known = signatures::of_disk(&head);
    if known.is_none()
        && let Some(kernel) = disk_foreign::kernel(&head)
    {
        return Ok(Content::Foreign(kernel));
    }
    let end = stated_end(read, &head, known)?;
    if let Some(fixed) = fixed_vhd(read, len, end)? {
        return Ok(fixed);
    }
    if let Some((by, needs)) = end.filter(|(_, needs)| *needs > len) {
        return Ok(Content::Truncated { by, needs });
    }
    if let Some(name) = known {
        return Ok(Content::Disk(name));
    }
    if Bytes(&head).at(510, b"\x55\xaa") {
        return Ok(Content::Disk("a boot sector or MBR"));
    }
    if is_blank(read)? {
        return Ok(Content::Disk("an empty disk"));
    }
    let named = disk_foreign::by_weak_signs(&head);
    Ok(named.map_or(Content::Unknown, Content::Foreign))
}

/// Returns what is missing of a disk of `len` bytes, by what its own tables and file systems say: which of them says so, and how many
/// bytes they tell of.
pub fn missing(read: &Read<'_>, len: u64) -> io::Result<Option<(&'static str, u64)>> {
    let head = head_at(read, 0)?;
    let end = stated_end(read, &head, signatures::of_disk(&head))?;
    Ok(end.filter(|(_, needs)| *needs > len))
}

/// Reads what is needed to recognize what begins at this byte.
fn head_at(read: &Read<'_>, first: u64) -> io::Result<Vec<u8>> {
    let mut head = vec![0; HEAD_BYTES];
    let got = read(first, &mut head)?;
    head.truncate(got);
    Ok(head)
}

/// Returns what is in a partition that begins at this byte: `XFS`.
pub fn file_system(read: &Read<'_>, first: u64) -> io::Result<Option<&'static str>> {
    Ok(signatures::of_partition(&head_at(read, first)?))
}

fn packing(head: &[u8]) -> Option<Packing> {
    let bytes = Bytes(head);
    let found = [
        (0, &b"\x1f\x8b\x08"[..], Packing::Gzip),
        (0, b"\xfd7zXZ\0", Packing::Xz),
        (0, b"\x28\xb5\x2f\xfd", Packing::Zstd),
        (257, b"ustar", Packing::Tar),
    ];
    let found = found.iter().find(|(at, magic, _)| bytes.at(*at, magic));
    if let Some((.., packing)) = found {
        return Some(*packing);
    }
    // what a reader skips, which parallel writers begin with
    let skipped = head.first().is_some_and(|byte| byte >> 4 == 5) && bytes.at(1, b"\x2a\x4d\x18");
    if skipped {
        return Some(Packing::Zstd);
    }
    // the oldest tar has no other sign than its header's checksum
    let is_tar = head.first_chunk().is_some_and(archive::is_header);
    is_tar.then_some(Packing::Tar)
}

/// Returns the disk of a fixed VHD, if the file is one: its bytes are before its footer. Where the disk itself tells of more than the
/// footer does, it has outgrown that. A footer at the file's end that belongs to no place is refused: nobody knows which of the two is
/// the disk.
fn fixed_vhd(
    read: &Read<'_>,
    len: u64,
    end: Option<(&'static str, u64)>,
) -> io::Result<Option<Content>> {
    let stated = end.map_or(0, |(_, end)| end);
    let last = disk_vhd::last(read, len)?;
    let behind = match stated < len && stated > 0 {
        true => disk_vhd::at(read, stated)?,
        false => None,
    };
    let fits = |footer: &disk_vhd::Footer| footer.ends_a_disk() && stated <= footer.at;
    if let Some(footer) = last.into_iter().chain(behind).find(fits) {
        let bytes = footer.size;
        return Ok(Some(Content::FixedVhd { bytes }));
    }
    let at_the_end = last.filter(|footer| {
        let is_last = footer.at + disk_vhd::FOOTER_BYTES >= len;
        is_last && footer.kind == disk_vhd::FIXED && !footer.ends_a_disk()
    });
    Ok(at_the_end.map(|_| {
        Content::Foreign(Foreign {
            what: "a VHD whose footer tells of another length than the file has before it",
            fix: "mend it with the program that made it; to take all of the file as the disk's bytes, import it with --format raw",
        })
    }))
}

/// Returns how many bytes long the disk must be by its tables and all file systems in them, and what says so.
fn stated_end(
    read: &Read<'_>,
    head: &[u8],
    known: Option<&'static str>,
) -> io::Result<Option<(&'static str, u64)>> {
    let bytes = Bytes(head);
    let own = known.and_then(|by| Some((by, file_system_bytes(&bytes, by)?)));
    // a disc's tables need not be right, and the first sector of these file systems looks like one
    let is_whole = matches!(known, Some("ISO 9660" | "NTFS" | "exFAT"));
    let table = match is_whole {
        true => None,
        false => partitions::read(read)?,
    };
    let Some(table) = table else {
        return Ok(own);
    };
    let (by, mut end) = match (table.end, partitions_end(&bytes)) {
        (Some(end), _) => ("GPT", end),
        // whatever else was recognized lies in the space before the first partition
        (None, Some(end)) => ("MBR", end),
        (None, None) => return Ok(own),
    };
    let data = table.partitions.iter().filter(|part| !part.holds_no_data());
    let mut furthest = None;
    for part in data {
        if table.is_gpt {
            end = end.max(part.end);
        }
        let head = head_at(read, part.first)?;
        let inside = signatures::of_partition(&head)
            .and_then(|name| Some((name, file_system_bytes(&Bytes(&head), name)?)));
        if let Some((name, bytes)) = inside {
            let end = part.first.saturating_add(bytes);
            furthest = furthest.max(Some((end, name)));
        }
    }
    Ok(match furthest {
        Some((inside, name)) if inside > end => Some((name, inside)),
        _ => Some((by, end)),
    })
}

/// Returns how many bytes a file system, or a table, takes of its disk or partition, by itself; `None` if it does not say.
fn file_system_bytes(head: &Bytes<'_>, name: &str) -> Option<u64> {
    const SUPERBLOCK: usize = 1024;
    Some(match name {
        // one that nothing protects; its copy is in the disk's last sector
        "GPT" => {
            let sector = if head.at(512, b"EFI PART") { 512 } else { 4096 };
            let last = head.le64(sector + 32);
            last.saturating_add(1).saturating_mul(sector as u64)
        }
        "ISO 9660" => {
            let blocks = u64::from(head.le32(0x8000 + 80));
            let bytes = blocks * u64::from(head.le32(0x8000 + 128) & 0xffff);
            bytes.saturating_sub(ISO_PADDING_BYTES)
        }
        EXT4 => {
            const BITS_64: u32 = 0x80;
            let high = match head.le32(SUPERBLOCK + 96) & BITS_64 {
                0 => 0,
                _ => u64::from(head.le32(SUPERBLOCK + 0x150)),
            };
            let blocks = high << 32 | u64::from(head.le32(SUPERBLOCK + 4));
            let block = 1024u64 << (head.le32(SUPERBLOCK + 24) & 7);
            blocks.saturating_mul(block)
        }
        "XFS" => head.be64(8).saturating_mul(u64::from(head.be32(4))),
        // of this device: a file system may be on several
        "Btrfs" => head.le64(0x10000 + 0xc9 + 8),
        "SquashFS" => head.le64(40),
        // the copy of its first sector is behind the sectors that it counts
        "NTFS" => {
            let sector = u64::from(head.le32(11) & 0xffff);
            head.le64(40).saturating_add(1).saturating_mul(sector)
        }
        "exFAT" => {
            let shift = head.le32(108) & 0xf;
            head.le64(72).saturating_mul(1 << shift)
        }
        "LVM" => {
            const LABEL: usize = 512;
            const ID_BYTES: usize = 32;
            let at = LABEL + (head.le32(LABEL + 20) as usize).min(SECTOR as usize);
            match head.at(LABEL, b"LABELONE") {
                true => head.le64(at + ID_BYTES),
                false => return None,
            }
        }
        _ => return None,
    })
}

/// Returns where the last partition of an MBR ends, in bytes; `None` if its entries make no sense or there are none.
fn partitions_end(head: &Bytes<'_>) -> Option<u64> {
    const PROTECTIVE: u8 = 0xee;
    let mut end = None;
    for at in (446..510).step_by(16) {
        let (flag, kind) = (*head.0.get(at)?, *head.0.get(at + 4)?);
        let (first, count) = (u64::from(head.le32(at + 8)), u64::from(head.le32(at + 12)));
        if flag & 0x7f != 0 || kind == PROTECTIVE {
            return None; // these bytes are code or parameters of a file system's boot sector, or the table only protects a GPT
        }
        if kind != 0 && first != 0 {
            end = end.max(Some((first + count) * SECTOR));
        }
    }
    end
}

fn is_blank(read: &Read<'_>) -> io::Result<bool> {
    let mut block = vec![0; BLANK_BYTES as usize];
    let len = read(0, &mut block)?;
    Ok(block[..len].iter().all(|byte| *byte == 0))
}

/// Examines bytes in memory as if they were a file.
#[allow(dead_code, reason = "for tests and fuzzing")]
pub fn look_at_bytes(bytes: &[u8]) -> io::Result<Content> {
    look(&crate::disk_format::reader(bytes), bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(len: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0x11; len];
        for (at, part) in parts {
            bytes[*at..at + part.len()].copy_from_slice(part);
        }
        bytes
    }

    #[test]
    fn a_file_that_is_no_disk_is_called_what_it_is() {
        for (bytes, expected) in [
            (vec![], "an empty file"),
            (
                with(4096, &[(0, b"\x7fELF\x02\x01")]),
                "an ELF program, library or kernel",
            ),
            (with(4096, &[(0, b"%PDF-1.7")]), "a PDF document"),
            (b"hello, world\n".to_vec(), "a text"),
            ("grüße\n".repeat(400).into_bytes(), "a text"),
            (b"#!/bin/sh\nexit 0\n".to_vec(), "a script"),
            (b"<!DOCTYPE html><title>404</title>".to_vec(), "a web page"),
            (
                with(4096, &[(510, b"\x55\xaa"), (0x202, b"HdrS")]),
                "a Linux kernel or an EFI program",
            ),
        ] {
            match look_at_bytes(&bytes).unwrap() {
                Content::Foreign(found) => assert_eq!(found.what, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
        let noise: Vec<u8> = (0..9999u32)
            .map(|n| (n.wrapping_mul(n) >> 3) as u8)
            .collect();
        assert_eq!(look_at_bytes(&noise).unwrap(), Content::Unknown);
    }

    #[test]
    fn a_disk_is_known_by_its_signature_and_its_length_by_what_is_on_it() {
        let mbr = |count: u32| {
            let mut entry = [0; 64];
            entry[4] = 0x83;
            entry[8..12].copy_from_slice(&8u32.to_le_bytes());
            entry[12..16].copy_from_slice(&count.to_le_bytes());
            with(16 * 512, &[(446, &entry), (510, b"\x55\xaa")])
        };
        let known = Content::Disk("a boot sector or MBR");
        assert_eq!(look_at_bytes(&mbr(8)).unwrap(), known);
        let (by, needs) = ("MBR", 17 * 512);
        assert_eq!(
            look_at_bytes(&mbr(9)).unwrap(),
            Content::Truncated { by, needs }
        );
        let blank = Content::Disk("an empty disk");
        assert_eq!(look_at_bytes(&[0; 5000]).unwrap(), blank);
        let mut vhd = with(4096 + 512, &[(4096, b"conectix")]);
        vhd[4096 + 48..4096 + 56].copy_from_slice(&4096u64.to_be_bytes());
        vhd[4096 + 60..4096 + 64].copy_from_slice(&2u32.to_be_bytes());
        let fixed = Content::FixedVhd { bytes: 4096 };
        assert_eq!(look_at_bytes(&vhd).unwrap(), fixed);
        vhd.extend([0x11; 700]);
        assert_eq!(look_at_bytes(&vhd).unwrap(), fixed, "with more behind it");
        vhd.truncate(4096 + 511);
        assert_eq!(look_at_bytes(&vhd).unwrap(), fixed, "without its last byte");
        vhd[4096 + 55] = 7;
        match look_at_bytes(&[&vhd[..], &[0]].concat()).unwrap() {
            Content::Foreign(found) => assert!(found.what.contains("another length"), "{found:?}"),
            // without a checksum nothing says that this is a footer
            other => assert_eq!(other, Content::Unknown),
        }
    }

    /// A disk of 128 sectors with a GPT and a partition from 40 to 100 with what begins so.
    fn gpt(inside: &[(usize, &[u8])]) -> Vec<u8> {
        let mut disk = vec![0; 128 * 512];
        disk[446 + 4] = 0xee;
        disk[510..512].copy_from_slice(b"\x55\xaa");
        disk[512..520].copy_from_slice(b"EFI PART");
        (disk[512 + 32], disk[512 + 48]) = (127, 94);
        (disk[512 + 72], disk[512 + 80], disk[512 + 84]) = (2, 128, 128);
        (disk[1024], disk[1024 + 32], disk[1024 + 40]) = (7, 40, 100);
        for (at, part) in inside {
            disk[40 * 512 + at..][..part.len()].copy_from_slice(part);
        }
        disk
    }

    #[test]
    fn a_disk_is_held_against_the_end_that_its_table_and_its_file_systems_state() {
        let missing_of = |disk: &[u8], len: usize| {
            let read = crate::disk_format::reader(&disk[..len.min(disk.len())]);
            missing(&read, len as u64).unwrap()
        };
        let disk = gpt(&[]);
        assert_eq!(missing_of(&disk, disk.len()), None);
        let cut = disk.len() - 512;
        assert_eq!(missing_of(&disk, cut), Some(("GPT", 128 * 512)));
        // file systems of 200 sectors in the partition
        let bytes = 200u64 * 512;
        let xfs = [
            (0, &b"XFSB"[..]),
            (4, &512u32.to_be_bytes()),
            (8, &200u64.to_be_bytes()),
        ];
        let ntfs = [
            (3, &b"NTFS    "[..]),
            (11, &[0, 2]),
            (40, &199u64.to_le_bytes()),
        ];
        let squash = [(0, &b"hsqs"[..]), (40, &bytes.to_le_bytes())];
        let lvm = [
            (512, &b"LABELONE"[..]),
            (512 + 20, &32u32.to_le_bytes()),
            (512 + 64, &bytes.to_le_bytes()),
        ];
        for (name, inside) in [
            ("XFS", &xfs[..]),
            ("NTFS", &ntfs),
            ("SquashFS", &squash),
            ("LVM", &lvm),
        ] {
            let disk = gpt(inside);
            let needs = 40 * 512 + bytes;
            assert_eq!(missing_of(&disk, disk.len()), Some((name, needs)));
            assert_eq!(missing_of(&disk, needs as usize), None, "{name}");
        }
        // without the sector that protects it, too
        let mut bare = gpt(&[]);
        bare[510] = 0;
        assert_eq!(missing_of(&bare, cut), Some(("GPT", 128 * 512)));
        for len in 0..1100 {
            missing_of(&gpt(&xfs), len);
        }
    }

    #[test]
    fn archives_and_streams_are_known_without_their_usual_first_bytes() {
        let mut old = vec![0; 1024];
        old[..8].copy_from_slice(b"disk.img");
        old[124..135].copy_from_slice(b"00000001000");
        old[148..156].fill(b' ');
        let sum: u32 = old.iter().map(|byte| u32::from(*byte)).sum();
        old[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert_eq!(look_at_bytes(&old).unwrap(), Content::Packed(Packing::Tar));
        let skipped = with(64, &[(0, b"\x50\x2a\x4d\x18\x04\0\0\0")]);
        assert_eq!(
            look_at_bytes(&skipped).unwrap(),
            Content::Packed(Packing::Zstd)
        );
    }
}
