//! What is in a stranger's tar archive: its files' names and where their bytes are. No I/O beyond reads that the caller does.
//!
//! Headers are read as they are, and everything of variable length in them has a bound: tar's own extensions let a few bytes of a
//! compressed archive become a name of any length, or a file of any number of parts. So no archive takes more memory than its names do.

use crate::disk_format::Read;
use std::{borrow::Cow, io};
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header, PaxExtensions};

/// The size of an archive's blocks, in bytes.
const BLOCK: u64 = 512;
/// Most files in an archive.
const FILES_MAX: usize = 10_000;
/// Most blocks that are read of an archive beside its files' bytes: half a GiB.
const HEADER_BLOCKS_MAX: u64 = 1 << 20;
/// Longest name of a file, in bytes: what the kernel takes.
const NAME_BYTES_MAX: u64 = 4096;
/// Longest list of the properties of a file, in bytes.
const PAX_BYTES_MAX: u64 = 1 << 20;
/// What the names of properties begin with that make a file sparse.
const PAX_SPARSE: &[u8] = b"GNU.sparse.";

/// A file in an archive.
#[derive(Debug)]
pub struct Member {
    /// Its name. What is not UTF-8 in it is replaced.
    pub name: String,
    /// Where its bytes are.
    pub at: u64,
    /// How many of them are in the archive.
    pub stored: u64,
    /// How it is stored.
    pub form: Form,
}

/// How a file is stored.
#[derive(Debug, PartialEq, Eq)]
pub enum Form {
    /// All of its bytes.
    Whole,
    /// Its parts without the holes between them.
    Sparse {
        /// Where its header is, which lists the parts.
        header: u64,
        /// Its length with the holes.
        bytes: u64,
    },
    /// As the pax format stores files with holes.
    PaxSparse,
}

/// A part of a sparse file: where in the file it begins, and its length.
pub type OnPart<'a> = dyn FnMut(u64, u64) -> io::Result<()> + 'a;

/// Returns the files in an archive of `len` bytes. An archive that is cut off is an error of the kind `UnexpectedEof`.
pub fn members(read: &Read<'_>, len: u64) -> io::Result<Vec<Member>> {
    let mut archive = Archive {
        read,
        len,
        at: 0,
        blocks: 0,
    };
    let mut members = Vec::new();
    while let Some(member) = archive.next()? {
        members.push(member);
        if members.len() > FILES_MAX {
            return damaged(format!("it holds more than {FILES_MAX} files"));
        }
    }
    Ok(members)
}

/// Whether a file that begins so is an archive: the header has a name, and its checksum is right.
pub fn is_header(block: &[u8; BLOCK as usize]) -> bool {
    block[0] != 0 && check_sum(Header::from_byte_slice(block)).is_ok()
}

/// Calls `part` for each part of a sparse file, whose bytes follow one another in the archive.
pub fn parts(read: &Read<'_>, len: u64, member: &Member, part: &mut OnPart<'_>) -> io::Result<()> {
    let Form::Sparse { header, .. } = member.form else {
        return part(0, member.stored);
    };
    let mut archive = Archive {
        read,
        len,
        at: header,
        blocks: 0,
    };
    let header = archive.block()?;
    archive.sparse(Header::from_byte_slice(&header), member.stored, part)?;
    Ok(())
}

fn damaged<T>(what: impl Into<String>) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, what.into()))
}

fn cut_off<T>() -> io::Result<T> {
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// What other headers say of the file that comes next.
#[derive(Default)]
struct Said {
    name: Option<Vec<u8>>,
    bytes: Option<u64>,
    pax_sparse: bool,
}

struct Archive<'a> {
    read: &'a Read<'a>,
    len: u64,
    /// The next header.
    at: u64,
    /// How many blocks of headers were read.
    blocks: u64,
}

impl Archive<'_> {
    /// Returns the next file; `None` at the archive's end, which is a block of zeros.
    fn next(&mut self) -> io::Result<Option<Member>> {
        let mut said = Said::default();
        loop {
            let header_at = self.at;
            let block = self.block()?;
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            let header = Header::from_byte_slice(&block);
            check_sum(header)?;
            let kind = header.entry_type();
            let own = header.entry_size()?;
            match kind {
                EntryType::GNULongName => said.name = Some(self.long_name(own)?),
                EntryType::GNULongLink => drop(self.long_name(own)?),
                EntryType::XHeader => self.pax(own, &mut said)?,
                EntryType::Regular => {
                    let form = match said.pax_sparse {
                        true => Form::PaxSparse,
                        false => Form::Whole,
                    };
                    let stored = said.bytes.unwrap_or(own);
                    return self.member(header, said, stored, form).map(Some);
                }
                EntryType::GNUSparse => {
                    let stored = said.bytes.unwrap_or(own);
                    let bytes = self.sparse(header, stored, &mut |_, _| Ok(()))?;
                    let header_at = Form::Sparse {
                        header: header_at,
                        bytes,
                    };
                    return self.member(header, said, stored, header_at).map(Some);
                }
                _ => {
                    let bytes = std::mem::take(&mut said).bytes;
                    self.skip(bytes.unwrap_or(own))?;
                }
            }
        }
    }

    /// Returns a file whose bytes come next, and goes on to what follows them.
    fn member(
        &mut self,
        header: &Header,
        said: Said,
        stored: u64,
        form: Form,
    ) -> io::Result<Member> {
        let name = said.name.map_or_else(|| header.path_bytes(), Cow::Owned);
        let member = Member {
            name: String::from_utf8_lossy(&name).into_owned(),
            at: self.at,
            stored,
            form,
        };
        self.skip(stored)?;
        Ok(member)
    }

    /// Reads a block of a header.
    fn block(&mut self) -> io::Result<[u8; BLOCK as usize]> {
        self.blocks += 1;
        if self.blocks > HEADER_BLOCKS_MAX {
            return damaged("it has more headers than any archive of disks needs");
        }
        let mut block = [0; BLOCK as usize];
        if self.len - self.at < BLOCK || (self.read)(self.at, &mut block)? < block.len() {
            return cut_off();
        }
        self.at += BLOCK;
        Ok(block)
    }

    /// Goes on behind `bytes` and what fills their last block.
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let end = bytes
            .checked_next_multiple_of(BLOCK)
            .and_then(|bytes| self.at.checked_add(bytes));
        match end.filter(|end| *end <= self.len) {
            Some(end) => {
                self.at = end;
                Ok(())
            }
            None => cut_off(),
        }
    }

    /// Reads the content of a header, which has at most `most` bytes.
    fn content(&mut self, bytes: u64, most: u64, what: &str) -> io::Result<Vec<u8>> {
        if bytes > most {
            return damaged(format!("{what} in it has {bytes} bytes, more than {most}"));
        }
        self.blocks += bytes.div_ceil(BLOCK);
        let mut content = vec![0; bytes as usize];
        let from = self.at;
        self.skip(bytes)?;
        if (self.read)(from, &mut content)? < content.len() {
            return cut_off();
        }
        Ok(content)
    }

    fn long_name(&mut self, bytes: u64) -> io::Result<Vec<u8>> {
        // with the zero at its end
        let mut name = self.content(bytes, NAME_BYTES_MAX + 1, "a name")?;
        while name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }

    /// Reads the properties of the next file.
    fn pax(&mut self, bytes: u64, said: &mut Said) -> io::Result<()> {
        let content = self.content(bytes, PAX_BYTES_MAX, "a list of properties")?;
        for property in PaxExtensions::new(&content) {
            let property = property?;
            let (key, value) = (property.key_bytes(), property.value_bytes());
            match key {
                b"path" if value.len() as u64 > NAME_BYTES_MAX => {
                    return damaged("a name in it is too long");
                }
                b"path" => said.name = Some(value.to_vec()),
                b"size" => {
                    let number = std::str::from_utf8(value).ok().and_then(|n| n.parse().ok());
                    let Some(number) = number else {
                        return damaged("a file in it has a size that is no number");
                    };
                    said.bytes = Some(number);
                }
                _ => said.pax_sparse |= key.starts_with(PAX_SPARSE),
            }
        }
        Ok(())
    }

    /// Reads the list of a sparse file's parts, which have `stored` bytes, to its end. Returns the file's length.
    fn sparse(&mut self, header: &Header, stored: u64, part: &mut OnPart<'_>) -> io::Result<u64> {
        let Some(header) = header.as_gnu() else {
            return damaged("a sparse file in it has another format's header");
        };
        let bytes = header.real_size()?;
        let (mut end, mut left) = (0u64, stored);
        let mut list = |entries: &[GnuSparseHeader]| -> io::Result<()> {
            for entry in entries.iter().filter(|entry| !entry.is_empty()) {
                let (offset, length) = (entry.offset()?, entry.length()?);
                let within = offset.checked_add(length).filter(|end| *end <= bytes);
                let (Some(next), Some(rest)) = (within, left.checked_sub(length)) else {
                    return damaged("a part of a sparse file in it lies beyond its end");
                };
                if offset < end {
                    return damaged("parts of a sparse file in it overlap");
                }
                (end, left) = (next, rest);
                part(offset, length)?;
            }
            Ok(())
        };
        list(&header.sparse)?;
        let mut more = header.is_extended();
        while more {
            let mut extension = GnuExtSparseHeader::new();
            *extension.as_mut_bytes() = self.block()?;
            list(extension.sparse())?;
            more = extension.is_extended();
        }
        match left {
            0 => Ok(bytes),
            _ => damaged("a sparse file in it has bytes that belong to no part"),
        }
    }
}

fn check_sum(header: &Header) -> io::Result<()> {
    let bytes = header.as_bytes();
    let outside = bytes[..148].iter().chain(&bytes[156..]);
    // the sum itself counts as spaces
    let sum = outside.map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
    match header.cksum()? == sum {
        true => Ok(()),
        false => damaged("a header's checksum is wrong"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_format::reader;

    fn header(kind: EntryType, name: &str, bytes: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_path(name).unwrap();
        header.set_entry_type(kind);
        header.set_size(bytes);
        header.set_cksum();
        header
    }

    fn entry(kind: EntryType, name: &str, content: &[u8]) -> Vec<u8> {
        let mut entry = header(kind, name, content.len() as u64).as_bytes().to_vec();
        entry.extend(content);
        entry.resize(entry.len().next_multiple_of(BLOCK as usize), 0);
        entry
    }

    fn found(entries: &[Vec<u8>]) -> io::Result<Vec<Member>> {
        let archive = [&entries.concat()[..], &[0; 1024]].concat();
        members(&reader(&archive), archive.len() as u64)
    }

    #[test]
    fn files_are_found_with_their_names_and_lengths_in_every_form() {
        let long = format!("{}/disk.img", "d".repeat(300));
        let pax = |key: &str, value: &str| {
            let text = format!(" {key}={value}\n");
            let length = (1..).find(|n| format!("{n}{text}").len() == *n).unwrap();
            format!("{length}{text}")
        };
        let properties = pax("path", "b.raw") + &pax("size", "7");
        let mut short = header(EntryType::Regular, "short", 0).as_bytes().to_vec();
        short.extend(entry(EntryType::Regular, "x", b"1234567").split_off(512));
        let members = found(&[
            entry(EntryType::Directory, "d", b""),
            entry(EntryType::GNULongName, "L", format!("{long}\0").as_bytes()),
            entry(EntryType::Regular, "dddd", b"12345"),
            entry(EntryType::XHeader, "x", properties.as_bytes()),
            short,
            entry(EntryType::Symlink, "link", b""),
            entry(EntryType::Regular, "last", b""),
        ]);
        let members = members.unwrap();
        let all: Vec<_> = members.iter().map(|m| (&m.name[..], m.stored)).collect();
        assert_eq!(all, [(&long[..], 5), ("b.raw", 7), ("last", 0)]);
        assert!(members.iter().all(|member| member.form == Form::Whole));
    }

    #[test]
    fn what_has_no_bound_in_the_format_has_one_here() {
        let refused = |archive: &[Vec<u8>]| found(archive).unwrap_err().to_string();
        for (kind, bytes) in [
            (EntryType::GNULongName, 3 << 30),
            (EntryType::GNULongLink, NAME_BYTES_MAX + 2),
            (EntryType::XHeader, PAX_BYTES_MAX + 1),
        ] {
            let said = refused(&[header(kind, "L", bytes).as_bytes().to_vec()]);
            assert!(
                said.contains(&format!("{bytes} bytes, more than")),
                "{said}"
            );
        }
        let many = vec![entry(EntryType::Regular, "a", b""); FILES_MAX + 1];
        assert!(refused(&many).contains("more than 10000 files"));

        // a sparse file whose parts never end, read without the blocks that say so
        let mut sparse = header(EntryType::GNUSparse, "disk.raw", 0);
        sparse.as_gnu_mut().unwrap().set_is_extended(true);
        sparse.as_gnu_mut().unwrap().set_real_size(1 << 20);
        sparse.set_cksum();
        let mut extension = GnuExtSparseHeader::new();
        extension.isextended = [1];
        let asked = std::cell::Cell::new(0);
        let read = |offset: u64, buffer: &mut [u8]| {
            asked.set(asked.get() + 1);
            buffer.copy_from_slice(match offset {
                0 => sparse.as_bytes(),
                _ => extension.as_bytes(),
            });
            Ok(buffer.len())
        };
        let said = members(&read, u64::MAX).unwrap_err().to_string();
        assert!(said.contains("more headers"), "{said}");
        assert_eq!(asked.get(), HEADER_BLOCKS_MAX);
    }

    #[test]
    fn parts_of_a_sparse_file_that_are_impossible_are_refused() {
        let of = |parts: &[(u64, u64)], stored: u64| {
            let mut header = header(EntryType::GNUSparse, "disk.raw", stored);
            let gnu = header.as_gnu_mut().unwrap();
            gnu.set_real_size(8192);
            for (place, (offset, length)) in gnu.sparse.iter_mut().zip(parts) {
                place.set_offset(*offset);
                place.set_length(*length);
            }
            header.set_cksum();
            let mut entry = header.as_bytes().to_vec();
            entry.resize(entry.len() + stored as usize, 7);
            found(&[entry])
        };
        let good = of(&[(0, 512), (4096, 512)], 1024).unwrap();
        let form = Form::Sparse {
            header: 0,
            bytes: 8192,
        };
        assert_eq!((good[0].at, &good[0].form), (512, &form));
        for (parts, stored) in [
            (&[(0, 512), (256, 512)][..], 1024),
            (&[(4096, 512), (0, 512)], 1024),
            (&[(8192, 512)], 512),
            (&[(u64::MAX, 512)], 512),
            (&[(0, 512)], 1024),
            (&[(0, 1024)], 512),
        ] {
            of(parts, stored).unwrap_err();
        }
    }
}
