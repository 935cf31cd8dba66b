//! Numbers in bytes that may be too short: what is missing reads as zero.

/// Bytes of a disk.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    /// Whether these bytes stand here.
    pub fn at(&self, offset: usize, bytes: &[u8]) -> bool {
        self.0
            .get(offset..)
            .is_some_and(|rest| rest.starts_with(bytes))
    }

    /// A little-endian number of 16 bits.
    pub fn le16(&self, offset: usize) -> u16 {
        self.number(offset).map_or(0, u16::from_le_bytes)
    }

    /// A little-endian number of 32 bits.
    pub fn le32(&self, offset: usize) -> u32 {
        self.number(offset).map_or(0, u32::from_le_bytes)
    }

    /// A little-endian number of 64 bits.
    pub fn le64(&self, offset: usize) -> u64 {
        self.number(offset).map_or(0, u64::from_le_bytes)
    }

    fn number<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.get(offset..)?.first_chunk().copied()
    }
}
