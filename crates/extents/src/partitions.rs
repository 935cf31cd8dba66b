//! Reads a disk's partition table: GPT, or MBR with its logical partitions. Hostile bytes: all reads are bounded. No I/O beyond
//! reads that the caller does.

use crate::bytes::Bytes;
use std::io;

/// Reads bytes at an offset of a disk: fills as much of the buffer as the disk has, and returns how much that is.
pub type Read<'a> = dyn Fn(u64, &mut [u8]) -> io::Result<usize> + 'a;

/// A disk's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Whether the master boot record has a program.
    pub has_code: bool,
    /// Whether it is a GPT.
    pub is_gpt: bool,
    /// The sectors in which the table counts, in bytes. An MBR does not say; it is taken for one of 512.
    pub sector: u64,
    /// Where the disk ends by the table itself, in bytes: behind the copy that a GPT has in the disk's last sector.
    pub end: Option<u64>,
    /// Its entries; empty ones of an MBR are among them.
    pub partitions: Vec<Partition>,
}

/// An entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as Linux counts: from 1.
    pub number: u32,
    /// Where it begins, in bytes. Nothing says that the disk is that long.
    pub first: u64,
    /// Where it ends, in bytes: behind its last one. Nothing says that the disk is that long.
    pub end: u64,
    /// The type that the table gives it.
    pub kind: Kind,
}

/// What a table says of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In an MBR.
    Mbr {
        /// The type; 0 is an empty entry.
        kind: u8,
        /// Whether it is the one to boot.
        active: bool,
    },
    /// In a GPT.
    Gpt {
        /// The type as it is written.
        kind: [u8; 16],
        /// The attributes.
        attributes: u64,
    },
}

const SECTOR: u64 = 512;
/// Sector sizes for which GPTs are written.
const SECTORS: [u64; 2] = [512, 4096];
/// Length of the program in a master boot record, before the disk's signature and the partitions.
const BOOT_CODE_BYTES: usize = 440;
/// Where the four partitions of a master boot record are.
const PARTITIONS_AT: usize = 446;
/// Partitions of a GPT that are looked at: what a standard table has room for.
const ENTRIES_MAX: u32 = 128;
/// Smallest and largest entry of a GPT that is looked at, bytes.
const ENTRY_BYTES: std::ops::RangeInclusive<u32> = 128..=4096;
/// Logical partitions that are looked at. They are a chain, which may lead back to its beginning.
const LOGICAL_MAX: u32 = 60;
/// The number of the first logical partition.
const LOGICAL_FIRST: u32 = 5;
/// MBR type of a partition that stands for a whole GPT.
const PROTECTIVE: u8 = 0xee;
/// MBR types of a partition that holds logical ones.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// Reads the table of a whole disk; `None` if it has none.
pub fn read(read: &Read<'_>) -> io::Result<Option<Table>> {
    let Some(mbr) = boot_record(read, 0)? else {
        return Ok(None);
    };
    let has_code = mbr[..BOOT_CODE_BYTES].iter().any(|byte| *byte != 0);
    let entries: Vec<&[u8]> = mbr[PARTITIONS_AT..510].chunks_exact(16).collect();
    let protective = entries.iter().any(|entry| entry[4] == PROTECTIVE);
    let gpt = if protective { gpt(read)? } else { None };
    let is_gpt = gpt.is_some();
    let (sector, end, partitions) = match gpt {
        Some(gpt) => (gpt.sector, Some(gpt.end), gpt.partitions),
        None => {
            let mut partitions = Vec::new();
            for (number, entry) in (1..).zip(&entries) {
                let first = u64::from(Bytes(entry).le32(8)) * SECTOR;
                let bytes = u64::from(Bytes(entry).le32(12)) * SECTOR;
                partitions.push(Partition {
                    number,
                    first,
                    end: first + bytes,
                    kind: Kind::Mbr {
                        kind: entry[4],
                        active: entry[0] == 0x80,
                    },
                });
            }
            let holder = partitions.iter().find(|part| part.is_extended());
            if let Some(holder) = holder.map(|part| part.first) {
                logical(read, holder, &mut partitions)?;
            }
            (SECTOR, None, partitions)
        }
    };
    Ok(Some(Table {
        has_code,
        is_gpt,
        sector,
        end,
        partitions,
    }))
}

impl Partition {
    /// Whether it holds nothing but other partitions, or is an empty entry.
    pub fn holds_no_data(&self) -> bool {
        self.first == 0 || self.is_extended() || matches!(self.kind, Kind::Mbr { kind: 0, .. })
    }

    fn is_extended(&self) -> bool {
        matches!(&self.kind, Kind::Mbr { kind, .. } if EXTENDED.contains(kind))
    }
}

fn boot_record(read: &Read<'_>, at: u64) -> io::Result<Option<[u8; SECTOR as usize]>> {
    let mut record = [0; SECTOR as usize];
    let got = read(at, &mut record)?;
    Ok((got == record.len() && record[510..] == *b"\x55\xaa").then_some(record))
}

/// Adds the logical partitions. Each has a record with itself and the place of the next record.
fn logical(read: &Read<'_>, holder: u64, partitions: &mut Vec<Partition>) -> io::Result<()> {
    let mut at = holder;
    for number in (LOGICAL_FIRST..).take(LOGICAL_MAX as usize) {
        let Some(record) = boot_record(read, at)? else {
            break;
        };
        let (own, next) = (PARTITIONS_AT, PARTITIONS_AT + 16);
        let place = |entry: usize| u64::from(Bytes(&record).le32(entry + 8)) * SECTOR;
        // 32 bits of sectors each: the sums stay far below 64 bits
        let first = at + place(own);
        partitions.push(Partition {
            number,
            first,
            end: first + u64::from(Bytes(&record).le32(own + 12)) * SECTOR,
            kind: Kind::Mbr {
                kind: record[own + 4],
                active: false,
            },
        });
        if !EXTENDED.contains(&record[next + 4]) || place(next) == 0 {
            break;
        }
        at = holder + place(next);
    }
    Ok(())
}

/// What a GPT says.
struct Gpt {
    sector: u64,
    end: u64,
    partitions: Vec<Partition>,
}

/// Reads a GPT; `None` if there is none.
fn gpt(read: &Read<'_>) -> io::Result<Option<Gpt>> {
    for sector in SECTORS {
        let mut header = [0; 92];
        if read(sector, &mut header)? < header.len() || !header.starts_with(b"EFI PART") {
            continue;
        }
        let header = Bytes(&header);
        let (entries, count, size) = (header.le64(72), header.le32(80), header.le32(84));
        if !ENTRY_BYTES.contains(&size) {
            continue;
        }
        let Some(table) = entries.checked_mul(sector) else {
            continue;
        };
        // the copy lies behind everything else; it has the place of the disk's last sector
        let last = header.le64(32).max(header.le64(48));
        return Ok(Some(Gpt {
            sector,
            end: last.saturating_add(1).saturating_mul(sector),
            partitions: gpt_entries(read, table, count.min(ENTRIES_MAX), size, sector)?,
        }));
    }
    Ok(None)
}

fn gpt_entries(
    read: &Read<'_>,
    table: u64,
    count: u32,
    size: u32,
    sector: u64,
) -> io::Result<Vec<Partition>> {
    let mut partitions = Vec::new();
    for number in 0..count {
        let mut entry = [0; 128];
        let Some(at) = table.checked_add(u64::from(number) * u64::from(size)) else {
            break;
        };
        if read(at, &mut entry)? < entry.len() {
            break;
        }
        let (kind, entry) = (entry.first_chunk().copied(), Bytes(&entry));
        let first = entry.le64(32).checked_mul(sector);
        // an entry with the type zero is empty; one that begins where no disk reaches can only tell its type
        if let Some(kind) = kind.filter(|kind| *kind != [0; 16]) {
            partitions.push(Partition {
                number: number + 1,
                first: first.unwrap_or(u64::MAX),
                end: entry.le64(40).saturating_add(1).saturating_mul(sector),
                kind: Kind::Gpt {
                    kind,
                    attributes: entry.le64(48),
                },
            });
        }
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(disk: &[u8]) -> Option<Table> {
        let bytes = |at: u64, buffer: &mut [u8]| {
            let rest = disk.get(at as usize..).unwrap_or_default();
            let len = rest.len().min(buffer.len());
            buffer[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        };
        read(&bytes).unwrap()
    }

    fn record(disk: &mut [u8], at: usize, entries: &[(u8, u32)]) {
        for (n, (kind, first)) in entries.iter().enumerate() {
            let entry = at + PARTITIONS_AT + 16 * n;
            disk[entry + 4] = *kind;
            disk[entry + 8..entry + 12].copy_from_slice(&first.to_le_bytes());
        }
        disk[at + 510..at + 512].copy_from_slice(b"\x55\xaa");
    }

    fn found(disk: &[u8]) -> Vec<(u32, u64)> {
        let table = table(disk).unwrap();
        let data = table.partitions.iter().filter(|part| !part.holds_no_data());
        data.map(|part| (part.number, part.first / SECTOR))
            .collect()
    }

    #[test]
    fn logical_partitions_are_found_where_linux_finds_them() {
        let mut disk = vec![0; 64 << 10];
        record(&mut disk, 0, &[(0x83, 2), (0x05, 16)]);
        record(&mut disk, 16 * 512, &[(0x82, 1), (0x05, 8)]);
        record(&mut disk, 24 * 512, &[(0x83, 2)]);
        assert_eq!(found(&disk), [(1, 2), (5, 17), (6, 26)]);
    }

    #[test]
    fn a_chain_that_leads_back_to_its_beginning_ends() {
        let mut disk = vec![0; 64 << 10];
        record(&mut disk, 0, &[(0x0f, 16)]);
        record(&mut disk, 16 * 512, &[(0x83, 1), (0x05, 8)]);
        record(&mut disk, 24 * 512, &[(0x83, 1), (0x05, 8)]);
        assert_eq!(found(&disk).len(), LOGICAL_MAX as usize);
        record(&mut disk, 24 * 512, &[(0x83, u32::MAX), (0x05, u32::MAX)]);
        assert_eq!(found(&disk).len(), 2);
    }

    #[test]
    fn a_gpt_is_numbered_with_its_gaps() {
        let mut disk = vec![0; 64 << 10];
        record(&mut disk, 0, &[(PROTECTIVE, 1)]);
        disk[512..520].copy_from_slice(b"EFI PART");
        (disk[512 + 72], disk[512 + 80], disk[512 + 84]) = (2, 128, 128);
        (disk[1024], disk[1024 + 32]) = (7, 40);
        (disk[1024 + 2 * 128], disk[1024 + 2 * 128 + 32]) = (7, 50);
        assert_eq!(found(&disk), [(1, 40), (3, 50)]);
        (disk[512 + 32], disk[1024 + 40]) = (127, 49);
        let read = table(&disk).unwrap();
        assert_eq!((read.sector, read.end), (512, Some(64 << 10)));
        assert_eq!(read.partitions[0].end, 50 * 512);
        // the same on a disk whose sectors have 4096 bytes
        disk.copy_within(512..512 + 92, 4096);
        disk[512..520].fill(0);
        let read = table(&disk).unwrap();
        assert_eq!((read.sector, read.end), (4096, Some(128 * 4096)));
    }
}
