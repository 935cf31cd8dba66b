//! Files with holes, at both ends.
//!
//! Such a file stands in an archive as GNU tar writes it in its form 1.0: an extended header says how long the file is, and its entry
//! begins with a map of its data, decimal numbers on a line each, filled up with zeros to a whole block:
//!
//! ```text
//! count of extents, then for each of them: where in the file it begins, how many bytes it has
//! ```
//! The bytes of all extents follow, without what is between them. A hole at the end of the file is an extent of no bytes there.

use super::archive::hostile;
use super::flow::Flow;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Most extents of a file, so that a map takes megabytes at most. Of a file with more the smaller holes are sent as zeros.
pub(super) const EXTENTS_MAX: usize = 1 << 18;
/// The least hole that is left out of a file with more extents at first, in bytes, and by how much that grows until they fit.
const HOLE_BYTES_LEAST: u64 = 64 << 10;
const HOLE_GROWS: u64 = 16;
/// What a map is filled up to, in bytes.
const BLOCK_BYTES: usize = 512;
/// Longest extended header that is read, in bytes.
const EXTENDED_BYTES_MAX: u64 = 4096;

/// A part of a file that has data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Where it begins, in bytes.
    pub at: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// All of a file of such a size.
pub(super) fn whole(size: u64) -> Vec<Extent> {
    vec![Extent { at: 0, bytes: size }]
}

/// How many bytes of data there are.
pub(super) fn bytes_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.bytes).sum()
}

/// Finds the data of a file of such a size.
pub(super) fn extents(file: &File, size: u64) -> io::Result<Vec<Extent>> {
    let mut hole_least = 1;
    loop {
        if let Some(found) = find(file, size, hole_least, EXTENTS_MAX - 1)? {
            return Ok(found);
        }
        hole_least = hole_least.saturating_mul(HOLE_GROWS).max(HOLE_BYTES_LEAST);
    }
}

/// Does so without smaller holes than `hole_least` between data. Returns `None` if there are more than `most` extents.
fn find(file: &File, size: u64, hole_least: u64, most: usize) -> io::Result<Option<Vec<Extent>>> {
    let mut found: Vec<Extent> = Vec::new();
    let mut at = 0;
    while at < size {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin.max(at),
            // a hole up to the end
            Err(Errno::NXIO) => break,
            // a file system that knows of no holes
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error.into()),
        };
        if begin >= size {
            break;
        }
        let end = match rustix::fs::seek(file, SeekFrom::Hole(begin)) {
            Ok(end) => end.min(size),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => size,
            // it has become shorter
            Err(Errno::NXIO) => begin,
            Err(error) => return Err(error.into()),
        };
        // what has become a hole just now is read as zeros
        let end = end.max(begin + 1);
        match found.last_mut().filter(|_| begin - at < hole_least) {
            Some(last) => last.bytes = end - last.at,
            None => found.push(Extent {
                at: begin,
                bytes: end - begin,
            }),
        }
        if found.len() > most {
            return Ok(None);
        }
        at = end;
    }
    if at < size {
        found.push(Extent { at: size, bytes: 0 });
    }
    Ok(Some(found))
}

/// Returns the map of these extents.
pub(super) fn map(extents: &[Extent]) -> Vec<u8> {
    let mut text = format!("{}\n", extents.len());
    for extent in extents {
        // a string takes anything
        let _ = writeln!(text, "{}\n{}", extent.at, extent.bytes);
    }
    let mut bytes = text.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes
}

/// Reads a file's data, extent by extent. What the file lacks by now is zeros: its length was said.
pub(super) struct Data<'a, 'b> {
    file: File,
    now: Extent,
    rest: std::vec::IntoIter<Extent>,
    flow: &'a mut Flow<'b>,
}

impl<'a, 'b> Data<'a, 'b> {
    /// Makes a reader.
    pub fn new(file: File, extents: Vec<Extent>, flow: &'a mut Flow<'b>) -> Data<'a, 'b> {
        Data {
            file,
            now: Extent { at: 0, bytes: 0 },
            rest: extents.into_iter(),
            flow,
        }
    }
}

impl Read for Data<'_, '_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.now.bytes == 0 {
            match self.rest.next() {
                Some(next) => self.now = next,
                None => return Ok(0),
            }
        }
        let most = self.now.bytes.min(out.len() as u64) as usize;
        let count = match self.file.read_at(&mut out[..most], self.now.at)? {
            0 => {
                out[..most].fill(0);
                most
            }
            count => count,
        };
        self.now.at += count as u64;
        self.now.bytes -= count as u64;
        self.flow.went(count);
        Ok(count)
    }
}

/// What an extended header says.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Extended {
    /// How many bytes a file with holes has; `None` for other entries.
    pub size: Option<u64>,
    /// How many bytes of data there are in the whole archive: the sender's word.
    pub total: Option<u64>,
}

/// The names in an extended header: GNU's, and one of floe's own.
const MAJOR: &str = "GNU.sparse.major";
const MINOR: &str = "GNU.sparse.minor";
const SIZE: &str = "GNU.sparse.realsize";
const TOTAL: &str = "FLOE.total";

impl Extended {
    /// Returns the header's names and values; none if there is nothing to say.
    pub fn texts(self) -> Vec<(&'static str, String)> {
        let mut texts = Vec::new();
        if let Some(total) = self.total {
            texts.push((TOTAL, total.to_string()));
        }
        if let Some(size) = self.size {
            texts.push((MAJOR, "1".to_owned()));
            texts.push((MINOR, "0".to_owned()));
            texts.push((SIZE, size.to_string()));
        }
        texts
    }

    /// Reads a header of such a length.
    pub fn read(content: &mut impl Read, length: u64) -> io::Result<Extended> {
        if length > EXTENDED_BYTES_MAX {
            return Err(hostile("an extended header is too long"));
        }
        let mut bytes = Vec::new();
        content.take(EXTENDED_BYTES_MAX).read_to_end(&mut bytes)?;
        let mut said = Extended::default();
        for extension in tar::PaxExtensions::new(&bytes) {
            let extension = extension.map_err(|_| hostile("an extended header is none"))?;
            let (key, value) = (extension.key_bytes(), extension.value_bytes());
            let number = || {
                let text = std::str::from_utf8(value).ok();
                let number = text.and_then(|text| text.parse::<u64>().ok());
                number.ok_or_else(|| hostile("a number in an extended header is none"))
            };
            match std::str::from_utf8(key) {
                Ok(MAJOR) if value == b"1" => {}
                Ok(MINOR) if value == b"0" => {}
                Ok(SIZE) => said.size = Some(number()?),
                Ok(TOTAL) => said.total = Some(number()?),
                _ => return Err(hostile("an extended header says what nobody asked for")),
            }
        }
        Ok(said)
    }
}

/// Reads the map at the beginning of the entry of a file of `size` bytes. The entry has `length` bytes, which must be the map's and those of its
/// extents. These are in order and within the file.
pub(super) fn read_map(content: &mut impl Read, size: u64, length: u64) -> io::Result<Vec<Extent>> {
    let mut numbers = Numbers {
        content,
        block: [0; BLOCK_BYTES],
        at: BLOCK_BYTES,
        taken: 0,
    };
    let count = numbers.number()?;
    if count > EXTENTS_MAX as u64 {
        return Err(hostile("a file has too many holes"));
    }
    let mut extents = Vec::new();
    let mut end = 0;
    for _ in 0..count {
        let (at, bytes) = (numbers.number()?, numbers.number()?);
        if at < end || at > size || bytes > size - at {
            return Err(hostile("a file's data is not in order, or beyond its end"));
        }
        end = at + bytes;
        extents.push(Extent { at, bytes });
    }
    // no more than `size`: none overlaps another
    let data = bytes_of(&extents);
    if numbers.taken.checked_add(data) != Some(length) {
        return Err(hostile("a file has not the data that its map says"));
    }
    Ok(extents)
}

/// The numbers of a map.
struct Numbers<'a, R: Read> {
    content: &'a mut R,
    block: [u8; BLOCK_BYTES],
    at: usize,
    /// How many bytes were taken of the entry.
    taken: u64,
}

impl<R: Read> Numbers<'_, R> {
    fn number(&mut self) -> io::Result<u64> {
        let mut number: Option<u64> = None;
        loop {
            if self.at == BLOCK_BYTES {
                self.block_more()?;
            }
            let byte = self.block[self.at];
            self.at += 1;
            match (byte, number) {
                (b'0'..=b'9', _) => {
                    let longer = number.unwrap_or(0).checked_mul(10);
                    let longer = longer.and_then(|n| n.checked_add(u64::from(byte - b'0')));
                    let longer = longer.ok_or_else(|| hostile("a number in a map is too large"))?;
                    number = Some(longer);
                }
                (b'\n', Some(number)) => return Ok(number),
                _ => return Err(hostile("a file's map is none")),
            }
        }
    }

    /// Takes the next block. Not by `read_exact`, whose error is that of a stream which was cut off.
    fn block_more(&mut self) -> io::Result<()> {
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match self.content.read(&mut self.block[filled..]) {
                Ok(0) => return Err(hostile("a file's map is cut off")),
                Ok(count) => filled += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        (self.at, self.taken) = (0, self.taken + BLOCK_BYTES as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    fn extent(at: u64, bytes: u64) -> Extent {
        Extent { at, bytes }
    }

    #[test]
    fn a_map_is_read_as_it_was_written_and_nothing_else_is_one() {
        let size = 1 << 40;
        let many: Vec<Extent> = (0..1000).map(|n| extent(n << 20, 4096)).collect();
        for extents in [
            vec![extent(size, 0)],
            vec![extent(0, 1), extent(1, 2), extent(size, 0)],
            many,
        ] {
            let bytes = map(&extents);
            assert_eq!(bytes.len() % BLOCK_BYTES, 0);
            let length = bytes.len() as u64 + bytes_of(&extents);
            let read = |size, length| read_map(&mut &bytes[..], size, length);
            assert_eq!(read(size, length).unwrap(), extents);
            for other in [length - 1, length + 512] {
                assert!(read(size, other).is_err(), "{other} for {length}");
            }
            let ends_at = extents.last().map(|last| last.at + last.bytes);
            let ends_at = ends_at.unwrap();
            assert!(read(ends_at, length).is_ok() && read(ends_at - 1, length).is_err());
        }
    }

    #[test]
    fn a_map_that_is_out_of_order_too_long_or_none_is_refused() {
        let refused = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
            let error = read_map(&mut &bytes[..], 1000, bytes.len() as u64 + 20).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text}: {error}");
            error.to_string()
        };
        for text in ["2\n10\n10\n0\n10\n", "2\n0\n11\n10\n9\n", "1\n990\n20\n"] {
            assert!(refused(text).contains("order"), "{text}");
        }
        let most = u64::MAX;
        assert!(refused(&format!("1\n{most}\n20\n")).contains("order"));
        assert!(refused(&format!("1\n10\n{most}\n")).contains("order"));
        assert!(refused("1\n0\n19\n").contains("the data that"));
        assert!(refused(&format!("{}\n", EXTENTS_MAX + 1)).contains("too many"));
        assert!(refused(&format!("{most}0\n")).contains("too large"));
        for text in ["", "x\n", "1\n\n", "-1\n", "1\n0\n20"] {
            assert!(refused(text).contains("map is"), "{text:?}");
        }
        // a map that says to be longer than its entry
        let cut = read_map(&mut &b"300\n"[..], 1000, 4).unwrap_err();
        assert!(cut.to_string().contains("cut off"), "{cut}");
    }

    #[test]
    fn a_file_of_too_many_extents_has_its_small_holes_sent() {
        let mut file = tempfile::tempfile().unwrap();
        let size = 64 << 20;
        file.set_len(size).unwrap();
        // pairs of pages with a page between them, a mebibyte apart
        for n in 0..32u64 {
            for page in [0, 2] {
                file.seek(io::SeekFrom::Start((n << 20) + page * 4096))
                    .unwrap();
                file.write_all(&[1; 4096]).unwrap();
            }
        }
        let all = find(&file, size, 1, 1000).unwrap().unwrap();
        assert_eq!((all.len(), bytes_of(&all)), (65, 64 * 4096));
        assert_eq!(all[64], extent(size, 0));
        assert_eq!(find(&file, size, 1, 63).unwrap(), None);
        let fewer = find(&file, size, HOLE_BYTES_LEAST, 63).unwrap().unwrap();
        assert_eq!((fewer.len(), bytes_of(&fewer)), (33, 96 * 4096));
        assert_eq!(
            find(&file, size, u64::MAX, 1).unwrap().unwrap(),
            [extent(0, (31 << 20) + 3 * 4096), extent(size, 0)]
        );
        assert_eq!(extents(&file, size).unwrap(), all);
    }

    #[test]
    fn an_extended_header_says_what_floe_asks_for_and_nothing_else() {
        let text = |key: &str, value: &str| {
            let rest = key.len() + value.len() + 3;
            let length = (1..9).map(|digits| rest + digits);
            let mut length = length.filter(|all| all.to_string().len() + rest == *all);
            format!("{} {key}={value}\n", length.next().unwrap())
        };
        let read = |text: &str| Extended::read(&mut text.as_bytes(), text.len() as u64);
        let said = Extended {
            size: Some(20 << 30),
            total: Some(12),
        };
        let whole: String = said.texts().iter().map(|(k, v)| text(k, v)).collect();
        let again = read(&whole).unwrap();
        assert_eq!((again.size, again.total), (said.size, said.total));
        assert!(Extended::default().texts().is_empty());
        for (key, value) in [
            (MAJOR, "0"),
            (MINOR, "1"),
            (SIZE, "-1"),
            (SIZE, ""),
            (TOTAL, "18446744073709551616"),
            ("path", "/etc/passwd"),
            ("GNU.sparse.name", "x"),
        ] {
            assert!(read(&text(key, value)).is_err(), "{key}={value}");
        }
        assert!(read("nonsense\n").is_err());
        let long = text(SIZE, &"1".repeat(5000));
        assert!(read(&long).unwrap_err().to_string().contains("too long"));
    }
}
