//! The footer of Microsoft's first format (VHD): where it is, and how long the disk is. No I/O beyond reads that the caller does.
//!
//! The footer tells the disk's length twice: in bytes, and as a geometry of cylinders, heads and sectors, which the specification
//! rounds down. Virtual PC showed its guests the geometry; all that others write is as long as the bytes say. QEMU decides by the name
//! of the program that made the file, takes the geometry of each that it does not know, and so cuts the end off their disks.

use crate::disk_format::{Bytes, Read};
use std::io;

/// A footer's size in bytes.
pub const FOOTER_BYTES: u64 = 512;
/// What a footer begins with.
pub const COOKIE: &[u8] = b"conectix";
/// The kind of a file that holds the disk's bytes as they are, before the footer.
pub const FIXED: u32 = 2;
/// The kind of a file with a table of blocks.
pub const DYNAMIC: u32 = 3;
/// The footer is looked for in this many bytes at the file's end: tools that copy files in large blocks fill the last one up.
const LOOK_BYTES: u64 = 4 << 20;
const SECTOR: u64 = 512;

/// What a footer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Where it stands.
    pub at: u64,
    /// The disk's length in bytes.
    pub size: u64,
    /// What kind of file it is.
    pub kind: u32,
    /// Where the second header of a dynamic one is.
    pub second: u64,
}

impl Footer {
    fn of(bytes: &[u8], at: u64) -> Option<Footer> {
        let bytes = Bytes(bytes);
        bytes.at(0, COOKIE).then(|| Footer {
            at,
            size: bytes.be64(48),
            kind: bytes.be32(60),
            second: bytes.be64(16),
        })
    }

    /// Whether it stands where the disk that it tells of ends, as that of a fixed VHD does.
    pub fn ends_a_disk(&self) -> bool {
        self.kind == FIXED && self.size == self.at && self.at > 0
    }
}

/// Returns the last footer of a file of `len` bytes. Some programs leave out its last byte, and anything may follow it; all footers
/// stand at whole sectors.
pub fn last(read: &Read<'_>, len: u64) -> io::Result<Option<Footer>> {
    let from = len.saturating_sub(LOOK_BYTES).next_multiple_of(SECTOR);
    let mut tail = vec![0; len.saturating_sub(from) as usize];
    let got = read(from, &mut tail)?;
    tail.truncate(got);
    let sectors = tail.chunks(SECTOR as usize).enumerate().rev();
    let mut footers = sectors.filter_map(|(n, sector)| {
        let at = from + n as u64 * SECTOR;
        // the first sector of a dynamic VHD has a copy, which no disk is before
        Footer::of(sector, at).filter(|footer| at > 0 && is_whole(sector, footer))
    });
    Ok(footers.next())
}

/// Returns the footer that stands at this byte, if there is one.
pub fn at(read: &Read<'_>, place: u64) -> io::Result<Option<Footer>> {
    let mut bytes = [0; FOOTER_BYTES as usize];
    let got = read(place, &mut bytes)?;
    Ok(Footer::of(&bytes[..got], place))
}

/// Whether these are a footer's bytes and not a file's that happens to begin in this sector: its checksum is right, or its place is.
fn is_whole(sector: &[u8], footer: &Footer) -> bool {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    let (before, after) = (sector.get(..64), sector.get(68..));
    let whole = before.zip(after).is_some_and(|(before, after)| {
        !sum(before).wrapping_add(sum(after)) == Bytes(sector).be32(64)
    });
    whole || footer.ends_a_disk()
}

/// Returns by what `qemu-img` is to compute the disk's length (`force_size_calc`), from the file's first bytes: by the bytes that the
/// footer's copy there tells, except where QEMU itself has shown its guests a larger geometry.
pub fn calculation(head: &[u8]) -> &'static str {
    let head = Bytes(head);
    let cylinders = u64::from(head.be32(56) >> 16);
    let heads = u64::from(head.be32(56) >> 8 & 0xff);
    let per_track = u64::from(head.be32(56) & 0xff);
    let geometry = cylinders * heads * per_track * SECTOR;
    match head.at(28, b"qemu") && geometry > head.be64(48) {
        true => "chs",
        false => "current_size",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_format::reader;

    /// A footer of a fixed VHD of so many bytes, with the checksum of the specification.
    fn footer(size: u64, kind: u32, creator: &[u8; 4], geometry: [u8; 4]) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        bytes[..8].copy_from_slice(COOKIE);
        bytes[28..32].copy_from_slice(creator);
        bytes[48..56].copy_from_slice(&size.to_be_bytes());
        bytes[56..60].copy_from_slice(&geometry);
        bytes[60..64].copy_from_slice(&kind.to_be_bytes());
        let sum: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
        bytes[64..68].copy_from_slice(&(!sum).to_be_bytes());
        bytes
    }

    fn last_of(bytes: &[u8]) -> Option<Footer> {
        last(&reader(bytes), bytes.len() as u64).unwrap()
    }

    #[test]
    fn a_footer_is_found_whatever_follows_it_and_without_its_last_byte() {
        const DISK: usize = 8192;
        let mut file = vec![7; DISK];
        file.extend(footer(DISK as u64, FIXED, b"vbox", [0; 4]));
        let found = last_of(&file).unwrap();
        assert!(found.ends_a_disk());
        assert_eq!(found.at, DISK as u64);
        assert_eq!(last_of(&file[..DISK + 511]), Some(found));
        for more in [1, 511, 512, 4096, 70_000] {
            let longer = [&file[..], &vec![0x55; more]].concat();
            assert_eq!(last_of(&longer), Some(found), "{more} bytes behind it");
        }
        assert_eq!(last_of(&vec![7; DISK]), None);
        // one of a disk inside this one
        let mut inner = vec![7; 2 * DISK];
        inner.extend(footer(DISK as u64, FIXED, b"vbox", [0; 4]));
        assert!(!last_of(&inner).unwrap().ends_a_disk());
        // not a footer, but a text of its word
        let mut word = vec![7; DISK];
        word[4096..4104].copy_from_slice(COOKIE);
        assert_eq!(last_of(&word), None);
        assert_eq!(at(&reader(&file), DISK as u64).unwrap(), Some(found));
        assert_eq!(at(&reader(&file), 0).unwrap(), None);
    }

    #[test]
    fn a_disk_is_never_shorter_than_its_footer_says() {
        let of = |creator, size, geometry| {
            let footer = footer(size, DYNAMIC, creator, geometry);
            calculation(&footer)
        };
        // 1,000,000,512 bytes, and the geometry of 999,677,952 that the specification computes
        let geometry = [0x07, 0x91, 16, 63];
        for creator in [
            b"vbox",
            b"vpc ",
            b"win ",
            b"qem2",
            b"qemu",
            b"????",
            b"\0\0\0\0",
        ] {
            assert_eq!(of(creator, 1_000_000_512, geometry), "current_size");
        }
        assert_eq!(of(b"qemu", 999_000_064, geometry), "chs");
        assert_eq!(of(b"vbox", 999_000_064, geometry), "current_size");
        assert_eq!(calculation(&[]), "current_size");
    }
}
