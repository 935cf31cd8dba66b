//! BLAKE3 hashes, which name all content, and the test for zeros.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The BLAKE3 hash of a chunk, segment, manifest or pack index. [`Hash::ZERO`] stands for content that is all zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Marks an all-zero chunk or segment, which is never stored or sent.
    pub const ZERO: Hash = Hash([0; 32]);

    /// Returns the BLAKE3 hash of `bytes`. (For chunks use [`chunk_hash`], which handles zeros.)
    pub fn of(bytes: &[u8]) -> Hash {
        Hash(*blake3::hash(bytes).as_bytes())
    }

    /// Returns the BLAKE3 hash of all that comes from a reader.
    pub fn of_all(from: impl std::io::Read) -> std::io::Result<Hash> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(from)?;
        Ok(Hash(*hasher.finalize().as_bytes()))
    }

    /// Returns whether this is [`Hash::ZERO`].
    pub fn is_zero(&self) -> bool {
        *self == Hash::ZERO
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the first 12 hex digits, for people and logs.
    pub fn short(&self) -> String {
        hex(&self.0[..6])
    }
}

impl From<[u8; 32]> for Hash {
    fn from(bytes: [u8; 32]) -> Hash {
        Hash(bytes)
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| {
            [
                DIGITS[usize::from(b >> 4)] as char,
                DIGITS[usize::from(b & 15)] as char,
            ]
        })
        .collect()
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex(&self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({})", hex(&self.0))
    }
}

/// The error for text that isn't a hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no image id: 64 hexadecimal digits (0-9, a-f) are needed")]
pub struct ParseHashError(String);

impl FromStr for Hash {
    type Err = ParseHashError;

    fn from_str(s: &str) -> Result<Hash, ParseHashError> {
        let fail = || ParseHashError(s.chars().take(80).collect());
        let digits = s.as_bytes();
        if digits.len() != 64 {
            return Err(fail());
        }
        let nibble = |b: u8| match b {
            b'0'..=b'9' => Ok(b - b'0'),
            b'a'..=b'f' => Ok(b - b'a' + 10),
            _ => Err(fail()),
        };
        let mut out = [0; 32];
        for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Hash(out))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Hash, D::Error> {
        std::borrow::Cow::<str>::deserialize(d)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Returns whether all bytes are zero; stops at the first block of 64 bytes that isn't.
pub fn is_zero(bytes: &[u8]) -> bool {
    let mut blocks = bytes.chunks_exact(64);
    // A block is folded without branches, so that the compiler uses vector registers.
    blocks.all(|block| block.iter().fold(0, |acc, b| acc | b) == 0)
        && blocks.remainder().iter().all(|&b| b == 0)
}

/// Returns the hash that names a chunk: [`Hash::ZERO`] for zeros, else its BLAKE3 hash.
pub fn chunk_hash(chunk: &[u8]) -> Hash {
    if is_zero(chunk) {
        Hash::ZERO
    } else {
        Hash::of(chunk)
    }
}
