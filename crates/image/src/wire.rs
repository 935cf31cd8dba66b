//! A bounded cursor over foreign bytes, and varints.

use crate::{FormatError, Hash};

pub(crate) struct Cursor<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { what, bytes, at: 0 }
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], FormatError> {
        if n > self.left() {
            return Err(self.truncated(n as u64));
        }
        let out = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(out)
    }

    /// Refuses a count before anything is allocated for it.
    pub(crate) fn expect_items(&self, count: u64, item_bytes: u64) -> Result<(), FormatError> {
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

    pub(crate) fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn hash(&mut self) -> Result<Hash, FormatError> {
        self.array().map(Hash)
    }

    pub(crate) fn magic(&mut self, magic: &[u8; 8]) -> Result<(), FormatError> {
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

    pub(crate) fn version(&mut self, known: u32) -> Result<(), FormatError> {
        match self.u32()? {
            found if found == known => Ok(()),
            found => Err(FormatError::Version {
                what: self.what,
                found,
                known,
            }),
        }
    }

    pub(crate) fn zero_u32(&mut self, field: &str) -> Result<(), FormatError> {
        match self.u32()? {
            0 => Ok(()),
            n => Err(FormatError::invalid(
                self.what,
                format!("{field} must be 0, it is {n}"),
            )),
        }
    }

    pub(crate) fn end(&self) -> Result<(), FormatError> {
        match self.left() {
            0 => Ok(()),
            n => Err(FormatError::invalid(
                self.what,
                format!("{n} bytes follow its end at offset {}", self.at),
            )),
        }
    }
}

pub(crate) fn limit(what: &'static str, found: u64, max: u64) -> Result<(), FormatError> {
    if found > max {
        Err(FormatError::Limit { what, found, max })
    } else {
        Ok(())
    }
}

/// LEB128, least significant group first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub(crate) enum Varint {
    Value(u64, usize),
    /// The input ends inside it.
    Short,
    /// Longer than needed or above 64 bits: no writer of ours makes it.
    Bad,
}

pub(crate) fn get_varint(bytes: &[u8]) -> Varint {
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

pub(crate) fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

pub(crate) fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}
