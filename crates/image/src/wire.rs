//! A cursor that reads untrusted bytes within their bounds, and varints: what decoders here and in `floe-planner` are made of.

use crate::{FormatError, Hash};

/// Reads fields one after the other, and never beyond the end.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Makes a cursor at the first byte; `what` names the format in errors.
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { what, bytes, at: 0 }
    }

    /// Returns how many bytes weren't read yet.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the offset of the next byte.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Reads the next `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], FormatError> {
        if n > self.left() {
            return Err(self.truncated(n as u64));
        }
        let out = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(out)
    }

    /// Refuses a count if the rest is too short for it. Call this before anything is allocated for the items.
    pub fn expect_items(&self, count: u64, item_bytes: u64) -> Result<(), FormatError> {
        let need = count.saturating_mul(item_bytes);
        if need > self.left() as u64 {
            Err(self.truncated(need))
        } else {
            Ok(())
        }
    }

    fn truncated(&self, need: u64) -> FormatError {
        FormatError::Truncated {
            what: self.what,
            at: self.at as u64,
            need,
            have: self.bytes.len() as u64,
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a varint, which must be in its shortest form.
    pub fn varint(&mut self) -> Result<u64, FormatError> {
        match get_varint(&self.bytes[self.at..]) {
            Varint::Value(n, len) => {
                self.at += len;
                Ok(n)
            }
            Varint::Short => Err(self.truncated(1)),
            Varint::Bad => Err(FormatError::invalid(
                self.what,
                format!("no varint at offset {}", self.at),
            )),
        }
    }

    /// Reads a hash of 32 bytes.
    pub fn hash(&mut self) -> Result<Hash, FormatError> {
        self.array().map(Hash)
    }

    /// Checks the eight bytes that name the format.
    pub fn magic(&mut self, magic: &[u8; 8]) -> Result<(), FormatError> {
        let found = &self.bytes[self.at..self.bytes.len().min(self.at + 8)];
        if found != magic {
            return Err(FormatError::Magic {
                what: self.what,
                found: found.to_vec(),
            });
        }
        self.at += 8;
        Ok(())
    }

    /// Checks the version.
    pub fn version(&mut self, known: u32) -> Result<(), FormatError> {
        self.version_of(&[known]).map(drop)
    }

    /// Reads a version, which must be one of these; the newest known one is last.
    pub fn version_of(&mut self, known: &[u32]) -> Result<u32, FormatError> {
        let found = self.u32()?;
        if known.contains(&found) {
            return Ok(found);
        }
        Err(FormatError::Version {
            what: self.what,
            found,
            known: known.last().copied().unwrap_or_default(),
        })
    }

    /// Checks the three bytes that name the format of a datagram, and its version.
    pub fn datagram(&mut self, magic: &[u8; 3], known: u8) -> Result<(), FormatError> {
        if self.take(magic.len())? != magic {
            let why = format!("it does not begin with {}", magic.escape_ascii());
            return Err(FormatError::invalid(self.what, why));
        }
        match self.u8()? {
            found if found == known => Ok(()),
            found => Err(FormatError::Version {
                what: self.what,
                found: found.into(),
                known: known.into(),
            }),
        }
    }

    /// Checks that a reserved field is zero.
    pub fn zero_u32(&mut self, field: &str) -> Result<(), FormatError> {
        match self.u32()? {
            0 => Ok(()),
            n => Err(FormatError::invalid(
                self.what,
                format!("{field} must be 0, it is {n}"),
            )),
        }
    }

    /// Checks that nothing follows.
    pub fn end(&self) -> Result<(), FormatError> {
        match self.left() {
            0 => Ok(()),
            n => Err(FormatError::invalid(
                self.what,
                format!("{n} bytes follow its end at offset {}", self.at),
            )),
        }
    }
}

/// Refuses a count or size above its limit.
pub fn limit(what: &'static str, found: u64, max: u64) -> Result<(), FormatError> {
    if found > max {
        Err(FormatError::Limit { what, found, max })
    } else {
        Ok(())
    }
}

/// Appends a number as LEB128, least significant group first.
pub fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// The result of reading a varint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varint {
    /// Its value and its length in bytes.
    Value(u64, usize),
    /// The input ends inside it.
    Short,
    /// It is longer than needed or above 64 bits, which floe never writes.
    Bad,
}

/// Reads a varint at the start of `bytes`; only the shortest form is valid.
pub fn get_varint(bytes: &[u8]) -> Varint {
    let mut n = 0u64;
    for (i, &b) in bytes.iter().take(10).enumerate() {
        if i == 9 && b > 1 {
            return Varint::Bad;
        }
        n |= u64::from(b & 0x7f) << (7 * i);
        if b & 0x80 == 0 {
            return if b == 0 && i > 0 {
                Varint::Bad
            } else {
                Varint::Value(n, i + 1)
            };
        }
    }
    if bytes.len() >= 10 {
        Varint::Bad
    } else {
        Varint::Short
    }
}

/// Maps 0, -1, 1, -2 ... to 0, 1, 2, 3 ...
pub fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

/// Inverts [`zigzag`].
pub fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}
