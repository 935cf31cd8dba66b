//! Layouts: which packs hold an image.

use crate::wire::{Cursor, limit};
use crate::{FormatError, Hash, PackRef};

const MAGIC: &[u8; 8] = b"FLOELAYO";
/// No pack's root is known.
const VERSION_PLAIN: u32 = 1;
/// Each entry ends with the pack's root; zero if that one is not known.
const VERSION_ROOTS: u32 = 2;
const WHAT: &str = "image layout";
const HEAD_BYTES: usize = 16;
const PLAIN_ENTRY_BYTES: usize = 56;
const ENTRY_BYTES: usize = PLAIN_ENTRY_BYTES + 32;
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
    /// Returns the only version in which it may be written.
    fn version(&self) -> u32 {
        match self.packs.iter().any(|pack| pack.root.is_some()) {
            true => VERSION_ROOTS,
            false => VERSION_PLAIN,
        }
    }

    /// Returns the bytes of `images/<id>.layout`.
    pub fn encode(&self) -> Vec<u8> {
        let version = self.version();
        let mut out = Vec::with_capacity(HEAD_BYTES + self.packs.len() * ENTRY_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&version.to_le_bytes());
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
            if version == VERSION_ROOTS {
                out.extend_from_slice(&p.root.unwrap_or(Hash::ZERO).0);
            }
        }
        out
    }

    /// Decodes a layout.
    pub fn decode(bytes: &[u8]) -> Result<Layout, FormatError> {
        let mut c = Cursor::new(WHAT, bytes);
        c.magic(MAGIC)?;
        let version = c.version_of(&[VERSION_PLAIN, VERSION_ROOTS])?;
        let has_roots = version == VERSION_ROOTS;
        let count = c.u32()?;
        limit(
            "number of packs in a layout",
            count.into(),
            LAYOUT_PACKS_MAX.into(),
        )?;
        let entry_bytes = match has_roots {
            true => ENTRY_BYTES,
            false => PLAIN_ENTRY_BYTES,
        };
        c.expect_items(count.into(), entry_bytes as u64)?;
        let mut packs = Vec::with_capacity(count as usize);
        let mut seen = std::collections::HashSet::<Hash>::with_capacity(count as usize);
        for _ in 0..count {
            let (id, file_bytes, index_offset, index_bytes) =
                (c.hash()?, c.u64()?, c.u64()?, c.u32()?);
            c.zero_u32("an entry's field at offset 52")?;
            let root = match has_roots {
                true => Some(c.hash()?).filter(|root| !root.is_zero()),
                false => None,
            };
            let pack = PackRef {
                id,
                file_bytes,
                index_offset,
                index_bytes,
                root,
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
        let layout = Layout { packs };
        if layout.version() != version {
            let why = "it has the version of layouts with roots and no root";
            return Err(FormatError::invalid(WHAT, why));
        }
        Ok(layout)
    }
}
