//! Tells what a file without a disk format's header contains: a disk's bytes, something packed, or no disk at all. No I/O
//! beyond reads that the caller does.
//!
//! A disk is recognized by what firmware and kernels look for: partition tables, boot sectors, file systems. Where one of
//! those says how long the disk is, that is compared with the file's length.

use crate::images::disk_format::{Bytes, Read};
use floe_extents::signatures::{self, EXT4, HEAD_BYTES};
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
    /// A disk's bytes followed by a footer: Microsoft's fixed VHD.
    FixedVhd,
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
    Foreign {
        /// What it is instead: `a PDF document`.
        what: &'static str,
        /// What the user can do.
        fix: &'static str,
    },
    /// Nothing that floe recognizes.
    Unknown,
}

/// A file that begins with this many zero bytes is taken for an empty disk.
const BLANK_BYTES: u64 = 1 << 20;
const SECTOR: u64 = 512;
/// Padding at a disc's end that writers of ISO files may leave out: 150 blocks.
const ISO_PADDING_BYTES: u64 = 150 * 2048;

const UNPACK: &str = "unpack it first, and import the disk image that is in it";
const KERNEL: &str = "give it with --kernel";
const GUEST: &str = "give the disk image of a machine; this is a program";
const DOCUMENT: &str = "check the path, or the download";

/// Files that are not disks: their first bytes, what they are, and what the user can do.
const FOREIGN: &[(&[u8], &str, &str)] = &[
    (b"\x7fELF", "an ELF program, library or kernel", GUEST),
    (b"%PDF", "a PDF document", DOCUMENT),
    (b"PK\x03\x04", "a zip archive", UNPACK),
    (b"BZh", "packed with bzip2", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    (b"\x04\x22\x4d\x18", "packed with lz4", UNPACK),
    (b"\x89LZO\0\r\n\x1a\n", "packed with lzop", UNPACK),
    (b"LZIP\x01", "packed with lzip", UNPACK),
    (b"MSWIM\0\0\0", "a Windows image (WIM)", UNPACK),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture", DOCUMENT),
    (b"\xff\xd8\xff", "a JPEG picture", DOCUMENT),
    (b"GIF8", "a GIF picture", DOCUMENT),
    (b"SQLite format 3\0", "an SQLite database", DOCUMENT),
    (b"!<arch>\n", "a Debian package or a library", DOCUMENT),
    (b"\xed\xab\xee\xdb", "an RPM package", DOCUMENT),
    (
        b"07070",
        "a cpio archive, such as an initial ramdisk",
        "give a ramdisk with --initrd",
    ),
    (
        b"COWD",
        "a VMDK of VMware's oldest kind",
        "make it new first: vmkfstools -i IN OUT",
    ),
    (
        b"WithoutFreeSpace",
        "a Parallels disk",
        "convert it first: qemu-img convert -f parallels -O qcow2 IN OUT",
    ),
    (
        b"WithouFreSpacExt",
        "a Parallels disk",
        "convert it first: qemu-img convert -f parallels -O qcow2 IN OUT",
    ),
];

/// Examines a file of `len` bytes that has no disk format's header.
pub fn look(read: &Read<'_>, len: u64) -> io::Result<Content> {
    if len == 0 {
        let (what, fix) = ("an empty file", DOCUMENT);
        return Ok(Content::Foreign { what, fix });
    }
    let mut head = vec![0; HEAD_BYTES];
    let got = read(0, &mut head)?;
    head.truncate(got);
    let head = Bytes(&head);
    if let Some(packing) = packing(&head) {
        return Ok(Content::Packed(packing));
    }
    if let Some((_, what, fix)) = FOREIGN.iter().find(|(magic, ..)| head.at(0, magic)) {
        return Ok(Content::Foreign { what, fix });
    }
    if is_fixed_vhd(read, len)? {
        return Ok(Content::FixedVhd);
    }
    let known = signatures::of_disk(head.0);
    if known.is_none() && is_kernel(&head) {
        let what = "a Linux kernel or an EFI program";
        return Ok(Content::Foreign { what, fix: KERNEL });
    }
    if let Some((by, needs)) = length(&head, known).filter(|(_, needs)| *needs > len) {
        return Ok(Content::Truncated { by, needs });
    }
    if let Some(name) = known {
        return Ok(Content::Disk(name));
    }
    if head.at(510, b"\x55\xaa") {
        return Ok(Content::Disk("a boot sector or MBR"));
    }
    if is_blank(read)? {
        return Ok(Content::Disk("an empty disk"));
    }
    Ok(match text(&head) {
        Some(what) => Content::Foreign {
            what,
            fix: DOCUMENT,
        },
        None => Content::Unknown,
    })
}

/// Returns what is in a partition that begins at this byte: `XFS`.
pub fn file_system(read: &Read<'_>, first: u64) -> io::Result<Option<&'static str>> {
    let mut head = vec![0; HEAD_BYTES];
    let got = read(first, &mut head)?;
    head.truncate(got);
    Ok(signatures::of_partition(&head))
}

fn packing(head: &Bytes<'_>) -> Option<Packing> {
    let found = [
        (0, &b"\x1f\x8b\x08"[..], Packing::Gzip),
        (0, b"\xfd7zXZ\0", Packing::Xz),
        (0, b"\x28\xb5\x2f\xfd", Packing::Zstd),
        (257, b"ustar", Packing::Tar),
    ];
    let found = found.iter().find(|(at, magic, _)| head.at(*at, magic));
    found.map(|(.., packing)| *packing)
}

/// Whether the file ends with the footer of a fixed VHD, which holds the disk's bytes unchanged before it.
fn is_fixed_vhd(read: &Read<'_>, len: u64) -> io::Result<bool> {
    const FIXED: u32 = 2;
    let Some(disk) = len.checked_sub(SECTOR) else {
        return Ok(false);
    };
    let mut footer = [0; SECTOR as usize];
    read(disk, &mut footer)?;
    let footer = Bytes(&footer);
    Ok(footer.at(0, b"conectix") && footer.be32(60) == FIXED && footer.be64(48) == disk)
}

/// Whether it is a kernel as `--kernel` expects it. Such a kernel begins like a boot sector.
fn is_kernel(head: &Bytes<'_>) -> bool {
    let pe = head.at(0, b"MZ") && head.at(head.le32(0x3c) as usize, b"PE\0\0");
    head.at(0x202, b"HdrS") || head.at(56, b"ARM\x64") || pe
}

/// Returns how many bytes long the disk must be, and what says so.
fn length(head: &Bytes<'_>, known: Option<&'static str>) -> Option<(&'static str, u64)> {
    const SUPERBLOCK: usize = 1024;
    const BEFORE_PARTITIONS: [Option<&str>; 2] = [Some("GPT"), Some("ISO 9660")];
    let is_mbr = head.at(510, b"\x55\xaa") && !BEFORE_PARTITIONS.contains(&known);
    if let (true, Some(end)) = (is_mbr, partitions_end(head)) {
        return Some(("MBR", end)); // any other signature lies in the space before the first partition
    }
    let by = known?;
    let bytes = match by {
        "GPT" => {
            let sector = if head.at(512, b"EFI PART") { 512 } else { 4096 };
            // the backup of the table is in the disk's last sector
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
        "Btrfs" => head.le64(0x10070),
        "SquashFS" => head.le64(40),
        _ => return None,
    };
    Some((by, bytes))
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

/// Returns what kind of text it is, if it is one.
fn text(head: &Bytes<'_>) -> Option<&'static str> {
    const LOOK: usize = 1024;
    let bytes = &head.0[..head.0.len().min(LOOK)];
    // the last character may be cut off
    let whole = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if whole.is_empty() || whole.contains(|c: char| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    let start = whole.trim_start().to_ascii_lowercase();
    Some(
        if start.starts_with("<!doctype html") || start.starts_with("<html") {
            "a web page"
        } else if start.contains("<envelope") || start.contains(":envelope") {
            "an OVF description, not the disk beside it"
        } else if start.starts_with("#!") {
            "a script"
        } else {
            "a text"
        },
    )
}

/// Examines bytes in memory as if they were a file.
#[allow(dead_code, reason = "for tests and fuzzing")]
pub fn look_at_bytes(bytes: &[u8]) -> io::Result<Content> {
    look(
        &crate::images::disk_format::reader(bytes),
        bytes.len() as u64,
    )
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
                Content::Foreign { what, .. } => assert_eq!(what, expected),
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
        assert_eq!(look_at_bytes(&vhd).unwrap(), Content::FixedVhd);
    }
}
