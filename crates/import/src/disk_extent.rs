//! Checks that the tables of a disk image point into its file. No I/O beyond reads that the caller does.
//!
//! `qemu-img` reads zeros beyond the end of a file, so it would silently convert a download that was cut off into a disk with
//! holes. Here every offset in the tables is compared with the file's length first. Tables are read in blocks, never whole,
//! and a table that is referenced twice is read once, so that no file can cause more reads than it has bytes.
//!
//! Who wants the disk's bytes is told where they are: there are files that `qemu-img` does not read ([`walk`]).

use crate::{
    disk_format::{Bytes, Format, Read},
    disk_vhd,
};
use std::{cell::Cell, collections::HashSet, io};

/// Why an image is incomplete or cannot be checked.
#[derive(Debug)]
pub enum Fault {
    /// An offset that the image refers to lies beyond its end.
    Truncated {
        /// What should be there: `the L2 table of cluster 0`.
        what: String,
        /// How long the file would have to be, in bytes.
        needs: u64,
    },
    /// A value in its header or its tables is impossible.
    Damaged(String),
    /// The caller ended the check.
    Cancelled,
    /// A read failed.
    Io(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}

/// Called for each entry of a table with the entry's number and bytes.
type OnEntry<'a, const WIDTH: usize> = dyn FnMut(u64, &[u8; WIDTH]) -> Result<(), Fault> + 'a;

/// What a format's header says of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its length in bytes. For a raw disk it is the file's.
    pub bytes: u64,
    /// The size of its sectors in bytes, where the format tells it.
    pub sector: Option<u64>,
}

/// Called for each run of the disk's bytes that a file holds as they are: where on the disk, where in the file, and how many. An error
/// ends the walk.
pub type OnData<'a> = dyn Fn(u64, u64, u64) -> Result<(), Fault> + 'a;

/// How many bytes of a table are read at once.
const BLOCK_BYTES: u64 = 64 << 10;
/// Most tables of the second level. Their offsets are remembered, which takes some 100 MiB at most. It is QEMU's own limit
/// for a first-level table of qcow2 (32 MiB).
const TABLES_MAX: u64 = 4 << 20;
const SECTOR: u64 = 512;

/// A file being checked, and which of its tables were read.
struct Image<'a> {
    read: &'a Read<'a>,
    len: u64,
    goes_on: &'a dyn Fn() -> bool,
    /// How many bytes the tables have that were read.
    tables: Cell<u64>,
    /// Who wants to know where the disk's bytes are. Then no part of the file may stand for several places of the disk.
    on_data: Option<&'a OnData<'a>>,
    /// How many bytes that one was told of.
    told: Cell<u64>,
}

/// Checks that every offset in an image of `len` bytes lies within it. `goes_on` is called once for each block of a table; if
/// it returns false, the check ends.
pub fn check(
    format: Format,
    read: &Read<'_>,
    len: u64,
    goes_on: &dyn Fn() -> bool,
) -> Result<Facts, Fault> {
    visit(format, read, len, goes_on, None)
}

/// Checks it as well, and tells where the disk's bytes are: those of a VHDX, and of a VMDK that is not packed.
pub fn walk(
    format: Format,
    read: &Read<'_>,
    len: u64,
    goes_on: &dyn Fn() -> bool,
    on_data: &OnData<'_>,
) -> Result<Facts, Fault> {
    visit(format, read, len, goes_on, Some(on_data))
}

fn visit(
    format: Format,
    read: &Read<'_>,
    len: u64,
    goes_on: &dyn Fn() -> bool,
    on_data: Option<&OnData<'_>>,
) -> Result<Facts, Fault> {
    let image = Image {
        read,
        len,
        goes_on,
        tables: Cell::new(0),
        on_data,
        told: Cell::new(0),
    };
    let bytes = match format {
        Format::Raw => len,
        Format::Qcow => image.qcow()?,
        Format::Qcow2 => image.qcow2()?,
        Format::Vmdk => image.vmdk()?,
        Format::Vdi => image.vdi()?,
        Format::Vpc => image.vpc()?,
        Format::Vhdx => return image.vhdx(),
    };
    Ok(Facts {
        bytes,
        sector: None,
    })
}

fn damaged<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Damaged(what.into()))
}

impl Image<'_> {
    /// Reads a structure of fixed size.
    fn get<const N: usize>(&self, offset: u64, what: &str) -> Result<[u8; N], Fault> {
        self.within(offset, N as u64, || what.to_owned())?;
        let mut bytes = [0; N];
        (self.read)(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns an error unless all of these bytes are in the file.
    fn within(&self, offset: u64, len: u64, what: impl Fn() -> String) -> Result<(), Fault> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            end => Err(Fault::Truncated {
                what: what(),
                needs: end.unwrap_or(u64::MAX),
            }),
        }
    }

    /// Reads a table of `count` entries of `WIDTH` bytes and passes each to a function.
    fn table<const WIDTH: usize>(
        &self,
        offset: u64,
        count: u64,
        what: &str,
        entry: &mut OnEntry<'_, WIDTH>,
    ) -> Result<(), Fault> {
        let bytes = count.saturating_mul(WIDTH as u64);
        self.within(offset, bytes, || what.to_owned())?;
        // each is read once: if they overlapped, there could be as many as the file has bytes
        let tables = self.tables.get().saturating_add(bytes);
        if tables > self.len {
            return damaged(format!("{what} and others overlap one another"));
        }
        self.tables.set(tables);
        let mut block = vec![0; BLOCK_BYTES.min(bytes) as usize];
        let mut done = 0;
        while done < bytes {
            if !(self.goes_on)() {
                return Err(Fault::Cancelled);
            }
            let part = &mut block[..(bytes - done).min(BLOCK_BYTES) as usize];
            if (self.read)(offset + done, part)? < part.len() {
                let needs = offset + bytes;
                let what = what.to_owned();
                return Err(Fault::Truncated { what, needs });
            }
            let first = done / WIDTH as u64;
            for (number, value) in (first..).zip(part.as_chunks::<WIDTH>().0) {
                entry(number, value)?;
            }
            done += part.len() as u64;
        }
        Ok(())
    }

    /// Checks that a run of the disk's bytes is in the file, and tells of it.
    fn data(&self, guest: u64, at: u64, bytes: u64) -> Result<(), Fault> {
        self.within(at, bytes, || data_at(guest))?;
        let Some(on_data) = self.on_data else {
            return Ok(());
        };
        self.told.set(self.told.get().saturating_add(bytes));
        if self.told.get() > self.len {
            return damaged("parts of its data overlap one another");
        }
        on_data(guest, at, bytes)
    }

    /// Returns whether a table that several entries name may be passed over: who wants all data would miss some.
    fn known(&self, table: &str) -> Result<(), Fault> {
        match self.on_data {
            None => Ok(()),
            Some(_) => damaged(format!("{table} overlaps another one")),
        }
    }

    fn qcow(&self) -> Result<u64, Fault> {
        let head: [u8; 48] = self.get(0, "its header")?;
        let head = Bytes(&head);
        let size = head.be64(24);
        let (cluster_bits, l2_bits) = (head.0[32], head.0[33]);
        if !(9..=16).contains(&cluster_bits) || !(6..=13).contains(&l2_bits) {
            return damaged("its header names impossible sizes of clusters and tables");
        }
        let (cluster, per_table) = (1u64 << cluster_bits, 1u64 << l2_bits);
        let tables = size.div_ceil(cluster * per_table);
        if tables > TABLES_MAX {
            return damaged(format!("a disk of {size} bytes"));
        }
        let mut seen = HashSet::new();
        self.table::<8>(head.be64(40), tables, "its L1 table", &mut |n, entry| {
            let offset = u64::from_be_bytes(*entry);
            if offset == 0 || !seen.insert(offset) {
                return Ok(());
            }
            let what = format!("L2 table {n}");
            self.table::<8>(offset, per_table, &what, &mut |m, entry| {
                let entry = u64::from_be_bytes(*entry);
                let guest = (n * per_table + m) * cluster;
                let data = || data_at(guest);
                match (entry, entry >> 63 == 1) {
                    (0, _) => Ok(()),
                    (_, true) => {
                        let bits = 63 - u32::from(cluster_bits);
                        let (at, bytes) = (entry & ((1 << bits) - 1), entry << 1 >> (bits + 1));
                        self.within(at, bytes, data)
                    }
                    _ => self.within(entry, used(cluster, guest, size), data),
                }
            })
        })?;
        Ok(size)
    }

    fn qcow2(&self) -> Result<u64, Fault> {
        const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
        const EXTENDED_L2: u64 = 1 << 4;
        let head: [u8; 72] = self.get(0, "its header")?;
        let head = Bytes(&head);
        let (cluster_bits, size) = (head.be32(20), head.be64(24));
        if !(9..=21).contains(&cluster_bits) {
            return damaged(format!("clusters of 2^{cluster_bits} bytes"));
        }
        let cluster = 1u64 << cluster_bits;
        let extended = match head.be32(4) {
            3 => Bytes(&self.get::<104>(0, "its header")?).be64(72) & EXTENDED_L2 != 0,
            _ => false,
        };
        let l2 = L2 {
            cluster_bits,
            size,
            per_table: cluster / if extended { 16 } else { 8 },
        };
        let tables = size.div_ceil(cluster * l2.per_table);
        if tables > u64::from(head.be32(36)) || tables > TABLES_MAX {
            return damaged("its L1 table is too short for its disk");
        }
        let counts = u64::from(head.be32(56)) << cluster_bits;
        self.within(head.be64(48), counts, || "its reference counts".into())?;
        let mut seen = HashSet::new();
        self.table::<8>(head.be64(40), tables, "its L1 table", &mut |n, entry| {
            let offset = u64::from_be_bytes(*entry) & OFFSET;
            if offset == 0 || !seen.insert(offset) {
                return Ok(());
            }
            if !offset.is_multiple_of(cluster) {
                return damaged(format!("L2 table {n} lies at {offset}"));
            }
            let what = format!("L2 table {n}");
            match extended {
                false => self.table::<8>(offset, l2.per_table, &what, &mut |m, entry| {
                    self.qcow2_cluster(&l2, n * l2.per_table + m, u64::from_be_bytes(*entry), None)
                }),
                true => self.table::<16>(offset, l2.per_table, &what, &mut |m, entry| {
                    let entry = Bytes(entry);
                    let number = n * l2.per_table + m;
                    self.qcow2_cluster(&l2, number, entry.be64(0), Some(entry.be64(8)))
                }),
            }
        })?;
        Ok(size)
    }

    /// Checks one cluster of a qcow2; `bitmap` says which of its 32 subclusters are there.
    fn qcow2_cluster(
        &self,
        l2: &L2,
        number: u64,
        entry: u64,
        bitmap: Option<u64>,
    ) -> Result<(), Fault> {
        const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
        const COMPRESSED: u64 = 1 << 62;
        const ZERO: u64 = 1;
        const PARTS: u64 = 32;
        let guest = number << l2.cluster_bits;
        if guest >= l2.size {
            return Ok(());
        }
        let data = || data_at(guest);
        if entry & COMPRESSED != 0 {
            let shift = 62 - (l2.cluster_bits - 8);
            let at = entry & ((1 << shift) - 1);
            let more = entry >> shift & ((1 << (l2.cluster_bits - 8)) - 1);
            // the last of its sectors may be only partly filled
            let last = (at / SECTOR + more) * SECTOR;
            return self.within(last.max(at), 1, data);
        }
        let offset = entry & OFFSET;
        let cluster = 1u64 << l2.cluster_bits;
        let bytes = match bitmap {
            None if entry & ZERO != 0 => 0,
            None => cluster,
            Some(bitmap) => {
                let parts = 32 - u64::from((bitmap as u32).leading_zeros());
                parts * (cluster / PARTS)
            }
        };
        if offset == 0 || bytes == 0 {
            return Ok(());
        }
        self.within(offset, used(bytes, guest, l2.size), data)
    }

    fn vmdk(&self) -> Result<u64, Fault> {
        const AT_END: u64 = u64::MAX;
        const COMPRESSED: u32 = 1 << 16;
        let mut head: [u8; 512] = self.get(0, "its header")?;
        if Bytes(&head).le64(56) == AT_END {
            // a stream-optimized VMDK: its tables were written last, and the header with their offsets follows them
            let at = self.len.saturating_sub(2 * SECTOR);
            head = self.get(at, "the header at its end")?;
            if !head.starts_with(b"KDMV") || Bytes(&head).le64(56) == AT_END {
                return Err(Fault::Truncated {
                    what: "the header at its end".into(),
                    needs: self.len.saturating_add(SECTOR),
                });
            }
        }
        let head = Bytes(&head);
        let (sectors, grain, per_table) = (head.le64(12), head.le64(20), u64::from(head.le32(44)));
        if !(1..=0x20_0000).contains(&grain) || !(1..=512).contains(&per_table) {
            return damaged("its header names impossible sizes of grains and tables");
        }
        let size = sectors.saturating_mul(SECTOR);
        let grain = grain * SECTOR;
        let tables = size.div_ceil(grain * per_table);
        if tables > TABLES_MAX {
            return damaged(format!("a disk of {sectors} sectors"));
        }
        let compressed = head.le32(8) & COMPRESSED != 0;
        if compressed && self.on_data.is_some() {
            return damaged("its data are packed, which those of a split disk never are");
        }
        let directory = head.le64(56).saturating_mul(SECTOR);
        let mut seen = HashSet::new();
        self.table::<4>(directory, tables, "its grain directory", &mut |n, entry| {
            let table = u64::from(u32::from_le_bytes(*entry)) * SECTOR;
            let what = format!("grain table {n}");
            if table == 0 {
                return Ok(());
            }
            if !seen.insert(table) {
                return self.known(&what);
            }
            self.table::<4>(table, per_table, &what, &mut |m, entry| {
                let guest = (n * per_table + m) * grain;
                match u64::from(u32::from_le_bytes(*entry)) {
                    0 | 1 => Ok(()), // nothing, and zeros
                    _ if guest >= size => Ok(()),
                    at if compressed => self.vmdk_compressed(at * SECTOR, grain, guest),
                    at => self.data(guest, at * SECTOR, used(grain, guest, size)),
                }
            })
        })?;
        Ok(size)
    }

    /// Checks a compressed grain, which consists of its place on the disk, its length and its bytes.
    fn vmdk_compressed(&self, at: u64, grain: u64, guest: u64) -> Result<(), Fault> {
        const MARKER: u64 = 12;
        if at + 2 * grain + SECTOR <= self.len {
            return Ok(()); // deflated bytes are never longer than twice their content
        }
        let what = data_at(guest);
        let marker: [u8; MARKER as usize] = self.get(at, &what)?;
        let bytes = u64::from(Bytes(&marker).le32(8));
        self.within(at + MARKER, bytes, || what.clone())
    }

    fn vdi(&self) -> Result<u64, Fault> {
        const HOLES: u32 = 0xffff_fffe;
        let head: [u8; 512] = self.get(0, "its header")?;
        let head = Bytes(&head);
        let (map, data) = (u64::from(head.le32(0x154)), u64::from(head.le32(0x158)));
        let (size, block) = (head.le64(0x170), u64::from(head.le32(0x178)));
        let blocks = u64::from(head.le32(0x180));
        if block == 0 || !block.is_multiple_of(SECTOR) || blocks < size.div_ceil(block) {
            return damaged("its header names impossible numbers of blocks");
        }
        let count = size.div_ceil(block);
        self.table::<4>(
            map,
            count,
            "its block map",
            &mut |n, entry| match u32::from_le_bytes(*entry) {
                HOLES.. => Ok(()),
                at => {
                    let at = data + u64::from(at) * block;
                    let guest = n * block;
                    self.within(at, used(block, guest, size), || data_at(guest))
                }
            },
        )?;
        Ok(size)
    }

    fn vpc(&self) -> Result<u64, Fault> {
        const UNUSED: u32 = u32::MAX;
        let Some(footer) = disk_vhd::last(self.read, self.len)? else {
            return Err(Fault::Truncated {
                what: "the footer at its end".into(),
                needs: self.len.saturating_add(SECTOR),
            });
        };
        let size = footer.size;
        if footer.kind != disk_vhd::DYNAMIC {
            self.within(0, size, || "the end of its disk".into())?;
            return Ok(size);
        }
        let head: [u8; 48] = self.get(footer.second, "its second header")?;
        let head = Bytes(&head);
        let block = u64::from(head.be32(32));
        if !head.at(0, b"cxsparse") || block == 0 || !block.is_multiple_of(SECTOR) {
            return damaged("its second header is none");
        }
        let count = size.div_ceil(block);
        if count > u64::from(head.be32(28)) {
            return damaged("its block table is too short for its disk");
        }
        let bitmap = (block / SECTOR / 8).next_multiple_of(SECTOR);
        self.table::<4>(head.be64(16), count, "its block table", &mut |n, entry| {
            match u32::from_be_bytes(*entry) {
                UNUSED => Ok(()),
                at => {
                    let (at, guest) = (u64::from(at) * SECTOR + bitmap, n * block);
                    self.within(at, used(block, guest, size), || data_at(guest))
                }
            }
        })?;
        Ok(size)
    }

    fn vhdx(&self) -> Result<Facts, Fault> {
        const MIB: u64 = 1 << 20;
        if self.on_data.is_some() {
            self.vhdx_log_is_empty()?;
        }
        let (map, metadata) = self.vhdx_regions()?;
        let found = self.vhdx_metadata(metadata)?;
        let Vhdx {
            size,
            block,
            sector,
        } = found;
        if !block.is_power_of_two() || !(MIB..=256 * MIB).contains(&block) {
            return damaged(format!("blocks of {block} bytes"));
        }
        if sector != 512 && sector != 4096 {
            return damaged(format!("sectors of {sector} bytes"));
        }
        // after this many block entries there is one for a bitmap
        let ratio = (1 << 23) * sector / block;
        let blocks = size.div_ceil(block);
        let entries = match blocks {
            0 => 0,
            n => n + (n - 1) / ratio,
        };
        self.table::<8>(map, entries, "its block table", &mut |n, entry| {
            const FULL: u64 = 6;
            const PARTIAL: u64 = 7;
            let entry = u64::from_le_bytes(*entry);
            let is_data = matches!(entry & 7, FULL | PARTIAL) && n % (ratio + 1) != ratio;
            if !is_data {
                return Ok(());
            }
            let guest = (n - n / (ratio + 1)) * block;
            let at = (entry >> 20).saturating_mul(MIB);
            if entry & 7 == PARTIAL && self.on_data.is_some() {
                return damaged("parts of it are in another file, its parent");
            }
            self.data(guest, at, used(block, guest, size))
        })?;
        Ok(Facts {
            bytes: size,
            sector: Some(sector),
        })
    }

    /// Returns an error if the program that wrote this VHDX last was ended amid its work: what it had begun is in a log.
    fn vhdx_log_is_empty(&self) -> Result<(), Fault> {
        const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
        let (mut newest, mut log) = (None, [0; 16]);
        for header in HEADERS {
            let bytes: [u8; 64] = self.get(header, "its header")?;
            let number = Bytes(&bytes).le64(8);
            if bytes.starts_with(b"head") && newest < Some(number) {
                newest = Some(number);
                log.copy_from_slice(&bytes[48..64]);
            }
        }
        match (newest, log) {
            (None, _) => damaged("it has no header"),
            (Some(_), [0, ..]) if log == [0; 16] => Ok(()),
            _ => damaged(
                "it was not closed properly: open and close it once in the program that made it",
            ),
        }
    }

    /// Returns where a VHDX has its block table and its metadata.
    fn vhdx_regions(&self) -> Result<(u64, u64), Fault> {
        const TABLES: [u64; 2] = [192 << 10, 256 << 10];
        const MAP: &[u8] = &[
            0x66, 0x77, 0xc2, 0x2d, 0x23, 0xf6, 0x00, 0x42, 0x9d, 0x64, 0x11, 0x5e, 0x9b, 0xfd,
            0x4a, 0x08,
        ];
        const METADATA: &[u8] = &[
            0x06, 0xa2, 0x7c, 0x8b, 0x90, 0x47, 0x9a, 0x4b, 0xb8, 0xfe, 0x57, 0x5f, 0x05, 0x0f,
            0x88, 0x6e,
        ];
        for table in TABLES {
            let head: [u8; 2048] = self.get(table, "its region table")?;
            let head = Bytes(&head);
            let count = (head.le32(8) as usize).min(63);
            let find = |guid| {
                (0..count)
                    .map(|n| 16 + n * 32)
                    .find(|at| head.at(*at, guid))
                    .map(|at| head.le64(at + 16))
            };
            if let (true, Some(map), Some(metadata)) =
                (head.at(0, b"regi"), find(MAP), find(METADATA))
            {
                return Ok((map, metadata));
            }
        }
        damaged("it has no region table")
    }

    fn vhdx_metadata(&self, table: u64) -> Result<Vhdx, Fault> {
        const PARAMETERS: &[u8] = &[
            0x37, 0x67, 0xa1, 0xca, 0x36, 0xfa, 0x43, 0x4d, 0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44,
            0xe7, 0x6b,
        ];
        const SIZE: &[u8] = &[
            0x24, 0x42, 0xa5, 0x2f, 0x1b, 0xcd, 0x76, 0x48, 0xb2, 0x11, 0x5d, 0xbe, 0xd8, 0x3b,
            0xf4, 0xb8,
        ];
        const SECTORS: &[u8] = &[
            0x1d, 0xbf, 0x41, 0x81, 0x6f, 0xa9, 0x09, 0x47, 0xba, 0x47, 0xf2, 0x33, 0xa8, 0xfa,
            0xab, 0x5f,
        ];
        let head: [u8; 4096] = self.get(table, "its metadata")?;
        let head = Bytes(&head);
        if !head.at(0, b"metadata") {
            return damaged("its metadata are none");
        }
        let item = |guid: &[u8]| -> Result<[u8; 8], Fault> {
            let at = (1..128).map(|n| n * 32).find(|at| head.at(*at, guid));
            let Some(at) = at else {
                return damaged("its metadata lack an entry");
            };
            let offset = table.saturating_add(u64::from(head.le32(at + 16)));
            // the shortest item has 4 bytes, and none lies at the end of the region
            self.get(offset, "its metadata")
        };
        Ok(Vhdx {
            block: u64::from(Bytes(&item(PARAMETERS)?).le32(0)),
            size: Bytes(&item(SIZE)?).le64(0),
            sector: u64::from(Bytes(&item(SECTORS)?).le32(0)),
        })
    }
}

/// What all clusters of a qcow2 have in common.
struct L2 {
    cluster_bits: u32,
    /// The disk's size in bytes.
    size: u64,
    /// How many entries a table has.
    per_table: u64,
}

/// A VHDX's disk, block and sector size, in bytes.
struct Vhdx {
    size: u64,
    block: u64,
    sector: u64,
}

/// Returns how much of a block at `guest` belongs to a disk of `size` bytes: the last block may be incomplete.
fn used(block: u64, guest: u64, size: u64) -> u64 {
    block.min(size.saturating_sub(guest))
}

fn data_at(guest: u64) -> String {
    format!("the data at {guest} of its disk")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_format::reader;

    #[test]
    fn tables_that_lie_across_one_another_are_not_read_again_and_again() {
        // qcow, whose tables may lie anywhere: a table of 64 KiB at each of 100,000 bytes
        const TABLES: usize = 100_000;
        let mut image = b"QFI\xfb\0\0\0\x01".to_vec();
        image.resize(48, 0);
        let (cluster_bits, l2_bits) = (9, 13);
        let size = (TABLES as u64) << (cluster_bits + l2_bits);
        image[24..32].copy_from_slice(&size.to_be_bytes());
        (image[32], image[33]) = (cluster_bits, l2_bits);
        image[40..48].copy_from_slice(&48u64.to_be_bytes());
        let first = 48 + 8 * TABLES as u64;
        for n in 0..TABLES as u64 {
            image.extend((first + n).to_be_bytes());
        }
        image.resize(image.len() + TABLES + (64 << 10), 0);
        let asked = Cell::new(0);
        let read = |offset: u64, buffer: &mut [u8]| {
            asked.set(asked.get() + buffer.len());
            reader(&image)(offset, buffer)
        };
        match check(Format::Qcow, &read, image.len() as u64, &|| true) {
            Err(Fault::Damaged(what)) => assert!(what.contains("overlap one another"), "{what}"),
            other => panic!("{other:?}"),
        }
        assert!(asked.get() < 2 * image.len(), "{} bytes", asked.get());
    }
}
