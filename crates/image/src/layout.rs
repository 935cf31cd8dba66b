//! Layouts: which packs hold an image.

use crate::wire::{Cursor, limit};
use crate::{FormatError, Hash, PackRef};

const MAGIC: &[u8; 8] = b"FLOELAYO";
const VERSION: u32 = 1;
const WHAT: &str = "image layout";
const HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 56;
/// Most packs of an image: 8 TiB of packs of 8 MiB.
pub const LAYOUT_PACKS_MAX: u32 = 1 << 20;
/// Most bytes of a layout.
pub const LAYOUT_BYTES_MAX: usize = HEAD_BYTES + LAYOUT_PACKS_MAX as usize * ENTRY_BYTES;

/// All packs that hold items of an image, including packs of its ancestors, in the order in which they are searched. It is
/// stored beside the image and may be replaced when packs are rearranged. Each pack is checked by its own id, so a wrong layout
/// can cause delays but not wrong data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The packs, each once.
    pub packs: Vec<PackRef>,
}

impl Layout {
    /// Returns the bytes of `images/<id>.layout`.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + self.packs.len() * ENTRY_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(
            &u32::try_from(self.packs.len())
                .expect("LAYOUT_PACKS_MAX is below 2^32")
                .to_le_bytes(),
        );
        for p in &self.packs {
            out.extend_from_slice(&p.id.0);
            out.extend_from_slice(&p.file_bytes.to_le_bytes());
            out.extend_from_slice(&p.index_offset.to_le_bytes());
            out.extend_from_slice(&p.index_bytes.to_le_bytes());
            out.extend_from_slice(&0u32.to_le_bytes());
        }
        out
    }

    /// Decodes a layout.
    pub fn decode(bytes: &[u8]) -> Result<Layout, FormatError> {
        let mut c = Cursor::new(WHAT, bytes);
        c.magic(MAGIC)?;
        c.version(VERSION)?;
        let count = c.u32()?;
        limit(
            "number of packs in a layout",
            count.into(),
            LAYOUT_PACKS_MAX.into(),
        )?;
        c.expect_items(count.into(), ENTRY_BYTES as u64)?;
        let mut packs = Vec::with_capacity(count as usize);
        let mut seen = std::collections::HashSet::<Hash>::with_capacity(count as usize);
        for _ in 0..count {
            let (id, file_bytes, index_offset, index_bytes) =
                (c.hash()?, c.u64()?, c.u64()?, c.u32()?);
            c.zero_u32("an entry's last field")?;
            let pack = PackRef {
                id,
                file_bytes,
                index_offset,
                index_bytes,
            };
            pack.check()?;
            if !seen.insert(id) {
                return Err(FormatError::invalid(
                    WHAT,
                    format!("pack {id} is listed twice"),
                ));
            }
            packs.push(pack);
        }
        c.end()?;
        Ok(Layout { packs })
    }
}
