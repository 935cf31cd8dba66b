//! Packs: files of frames that servers, S3, peers and CDNs hold, and from which byte ranges are read.

use std::cmp::Ordering;
use std::io::{self, Write};

use crate::wire::{Cursor, limit};
use crate::{FRAME_BYTES_MAX, FormatError, Hash, Kind};

const HEADER_MAGIC: &[u8; 8] = b"FLOEPACK";
const INDEX_MAGIC: &[u8; 8] = b"FLOEPIDX";
const FOOTER_MAGIC: &[u8; 8] = b"FLOEPEND";
const VERSION: u32 = 1;
/// Bytes before the first frame.
pub const PACK_HEADER_BYTES: u64 = 16;
/// Bytes after the index: the last bytes of a file, which contain its [`PackRef`].
pub const PACK_FOOTER_BYTES: u64 = 56;
const INDEX_HEAD_BYTES: usize = 24;
const FRAME_ENTRY_BYTES: usize = 16;
/// Most items in a pack: 4 GiB of chunks.
pub const PACK_ITEMS_MAX: u32 = 1 << 20;
/// Most bytes of an index, if every item has its own frame.
pub const PACK_INDEX_BYTES_MAX: u32 =
    (INDEX_HEAD_BYTES + PACK_ITEMS_MAX as usize * (32 + FRAME_ENTRY_BYTES)) as u32;

/// A pack and the place of its index: enough to fetch the index with a range read, and to check it. Two are equal if they name the same
/// pack, whether or not its root is known.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct PackRef {
    /// The pack's id: the BLAKE3 hash of the index. The index has every item's hash, so the id covers the whole content.
    pub id: Hash,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Offset of the index in bytes.
    pub index_offset: u64,
    /// Length of the index in bytes.
    pub index_bytes: u32,
    /// The BLAKE3 hash of the whole file, by which any range of it can be proven; `None` if nobody has read the file for it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Hash>,
}

impl PartialEq for PackRef {
    fn eq(&self, other: &PackRef) -> bool {
        self.name() == other.name()
    }
}

impl Eq for PackRef {}

impl PartialOrd for PackRef {
    fn partial_cmp(&self, other: &PackRef) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PackRef {
    fn cmp(&self, other: &PackRef) -> Ordering {
        self.name().cmp(&other.name())
    }
}

impl std::hash::Hash for PackRef {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::hash::Hash::hash(&self.name(), state);
    }
}

impl PackRef {
    /// Returns what says which pack it is.
    fn name(&self) -> (Hash, u64, u64, u32) {
        (
            self.id,
            self.file_bytes,
            self.index_offset,
            self.index_bytes,
        )
    }

    /// Decodes the last [`PACK_FOOTER_BYTES`] of a file of `file_bytes`. They do not have its root.
    pub fn from_footer(footer: &[u8], file_bytes: u64) -> Result<PackRef, FormatError> {
        const WHAT: &str = "pack footer";
        let mut c = Cursor::new(WHAT, footer);
        if footer.len() as u64 == PACK_FOOTER_BYTES && &footer[48..] != FOOTER_MAGIC {
            return Err(FormatError::Magic {
                what: "pack (its end is missing)",
                found: footer[48..].to_vec(),
            });
        }
        let index_offset = c.u64()?;
        let index_bytes = c.u32()?;
        c.version(VERSION)?;
        let id = c.hash()?;
        c.magic(FOOTER_MAGIC)?;
        c.end()?;
        let pack = PackRef {
            id,
            file_bytes,
            index_offset,
            index_bytes,
            root: None,
        };
        pack.check()?;
        Ok(pack)
    }

    fn footer(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PACK_FOOTER_BYTES as usize);
        out.extend_from_slice(&self.index_offset.to_le_bytes());
        out.extend_from_slice(&self.index_bytes.to_le_bytes());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.id.0);
        out.extend_from_slice(FOOTER_MAGIC);
        out
    }

    /// Checks that the three lengths fit together and are within the limits.
    pub fn check(&self) -> Result<(), FormatError> {
        limit(
            "size of a pack's index",
            self.index_bytes.into(),
            PACK_INDEX_BYTES_MAX.into(),
        )?;
        let end = self
            .index_offset
            .checked_add(u64::from(self.index_bytes) + PACK_FOOTER_BYTES);
        if self.index_offset < PACK_HEADER_BYTES || end != Some(self.file_bytes) {
            let why = format!(
                "header {PACK_HEADER_BYTES}, index at {} of {} bytes and footer {PACK_FOOTER_BYTES} do not make a file of {} bytes",
                self.index_offset, self.index_bytes, self.file_bytes
            );
            return Err(FormatError::invalid("pack", why));
        }
        Ok(())
    }
}

/// Checks the first [`PACK_HEADER_BYTES`] of a pack file.
pub fn check_pack_header(header: &[u8]) -> Result<(), FormatError> {
    let mut c = Cursor::new("pack", header);
    c.magic(HEADER_MAGIC)?;
    c.version(VERSION)?;
    c.zero_u32("the header's last field")?;
    c.end()
}

fn pack_header() -> [u8; PACK_HEADER_BYTES as usize] {
    let mut out = [0; PACK_HEADER_BYTES as usize];
    out[..8].copy_from_slice(HEADER_MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out
}

/// A frame of a pack, and which bytes of the file to read for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// Whether its items are chunks or segments.
    pub kind: Kind,
    /// Offset in the file.
    pub offset: u64,
    /// Its compressed length in bytes.
    pub len: u32,
    /// Number of items, 1 to 16.
    pub items: u16,
}

/// The place of an item in a pack: its frame, and its position in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The frame's number in the pack.
    pub frame: u32,
    /// The item's number in the frame.
    pub slot: u16,
}

/// A pack's index in memory: about 36 bytes for each item and 24 for each frame. A look-up is a binary search; a hash table
/// would be twice as large, and a forged index could fill it with collisions.
#[derive(Clone, Debug)]
pub struct PackIndex {
    frames: Vec<FrameInfo>,
    /// The number of each frame's first item, and the number of all items at the end.
    first_items: Vec<u32>,
    hashes: Vec<Hash>,
    /// The items' numbers, sorted by hash.
    sorted: Vec<u32>,
}

impl PackIndex {
    /// Decodes the index of pack `pack`; checks its hash, and that the frames cover the file without gap or overlap.
    pub fn decode(bytes: &[u8], pack: &PackRef) -> Result<PackIndex, FormatError> {
        const WHAT: &str = "pack index";
        pack.check()?;
        limit(
            "size of a pack's index",
            bytes.len() as u64,
            PACK_INDEX_BYTES_MAX.into(),
        )?;
        let found = Hash::of(bytes);
        if found != pack.id {
            return Err(FormatError::Mismatch {
                what: WHAT,
                expected: pack.id,
                found,
            });
        }
        let mut c = Cursor::new(WHAT, bytes);
        c.magic(INDEX_MAGIC)?;
        c.version(VERSION)?;
        let frame_count = c.u32()?;
        let item_count = c.u32()?;
        c.zero_u32("the index head's last field")?;
        limit(
            "number of items in a pack",
            item_count.into(),
            PACK_ITEMS_MAX.into(),
        )?;
        limit(
            "number of frames in a pack",
            frame_count.into(),
            item_count.into(),
        )?;
        c.expect_items(frame_count.into(), FRAME_ENTRY_BYTES as u64)?;
        let mut frames = Vec::with_capacity(frame_count as usize);
        let mut first_items = Vec::with_capacity(frame_count as usize + 1);
        let (mut items, mut end) = (0u32, PACK_HEADER_BYTES);
        for i in 0..frame_count {
            let frame = decode_frame(&mut c)?;
            if frame.offset != end {
                let why = format!(
                    "frame {i} starts at {}, the one before ends at {end}",
                    frame.offset
                );
                return Err(FormatError::invalid(WHAT, why));
            }
            end += u64::from(frame.len);
            first_items.push(items);
            items += u32::from(frame.items);
            frames.push(frame);
        }
        first_items.push(items);
        if items != item_count || end != pack.index_offset {
            let why = format!(
                "its frames hold {items} items and end at {end}, {item_count} items and an end at {} are promised",
                pack.index_offset
            );
            return Err(FormatError::invalid(WHAT, why));
        }
        c.expect_items(items.into(), 32)?;
        let hashes = (0..items)
            .map(|_| c.hash())
            .collect::<Result<Vec<_>, _>>()?;
        c.end()?;
        if let Some(i) = hashes.iter().position(Hash::is_zero) {
            return Err(FormatError::invalid(
                WHAT,
                format!("item {i} is the zero hash, zeros are never stored"),
            ));
        }
        Ok(PackIndex::new(frames, first_items, hashes))
    }

    fn new(frames: Vec<FrameInfo>, first_items: Vec<u32>, hashes: Vec<Hash>) -> PackIndex {
        let mut sorted: Vec<u32> = (0..hashes.len() as u32).collect();
        sorted.sort_unstable_by_key(|&i| (hashes[i as usize], i));
        PackIndex {
            frames,
            first_items,
            hashes,
            sorted,
        }
    }

    /// Returns the place of an item (the first one, if the pack holds it twice).
    pub fn lookup(&self, hash: &Hash) -> Option<Location> {
        let at = self
            .sorted
            .partition_point(|&i| self.hashes[i as usize] < *hash);
        let item = *self.sorted.get(at)?;
        if self.hashes[item as usize] != *hash {
            return None;
        }
        let frame = self.first_items.partition_point(|&first| first <= item) - 1;
        Some(Location {
            frame: frame as u32,
            slot: (item - self.first_items[frame]) as u16,
        })
    }

    /// Returns frame number `i`, if there is one.
    pub fn frame(&self, i: u32) -> Option<FrameInfo> {
        self.frames.get(i as usize).copied()
    }

    /// Returns the hashes of frame `i`'s items, in order; nothing if there is no such frame.
    pub fn frame_hashes(&self, i: u32) -> &[Hash] {
        let i = i as usize;
        match (self.first_items.get(i), self.first_items.get(i + 1)) {
            (Some(&a), Some(&b)) => &self.hashes[a as usize..b as usize],
            _ => &[],
        }
    }

    /// Returns the number of frames.
    pub fn frame_count(&self) -> u32 {
        self.frames.len() as u32
    }

    /// Returns the hashes of all items, in the order of the file.
    pub fn hashes(&self) -> &[Hash] {
        &self.hashes
    }

    /// Returns all frames, in the order of the file.
    pub fn frames(&self) -> &[FrameInfo] {
        &self.frames
    }
}

fn decode_frame(c: &mut Cursor<'_>) -> Result<FrameInfo, FormatError> {
    const WHAT: &str = "pack index";
    let kind = Kind::from_wire(WHAT, c.u8()?)?;
    if c.u8()? != 0 {
        return Err(FormatError::invalid(
            WHAT,
            format!("the byte at offset {} must be 0", c.at() - 1),
        ));
    }
    let items = c.u16()?;
    kind.check_items(WHAT, items.into())?;
    let len = c.u32()?;
    if len == 0 {
        return Err(FormatError::invalid(WHAT, "a frame of 0 bytes"));
    }
    limit(
        "compressed length of a frame",
        len.into(),
        FRAME_BYTES_MAX.into(),
    )?;
    Ok(FrameInfo {
        kind,
        offset: c.u64()?,
        len,
        items,
    })
}

/// Writes a pack: frames in the order in which they are pushed, then index and footer. Buffers only the index.
#[derive(Debug)]
pub struct PackWriter<W: Write> {
    out: W,
    /// Hashes what is written.
    root: blake3::Hasher,
    at: u64,
    frames: Vec<FrameInfo>,
    hashes: Vec<Hash>,
}

impl<W: Write> PackWriter<W> {
    /// Writes the header.
    pub fn new(out: W) -> io::Result<PackWriter<W>> {
        let mut writer = PackWriter {
            out,
            root: blake3::Hasher::new(),
            at: PACK_HEADER_BYTES,
            frames: Vec::new(),
            hashes: Vec::new(),
        };
        writer.write(&pack_header())?;
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.root.update(bytes);
        Ok(())
    }

    /// Appends a frame that [`crate::compress_frame`] made of the items with these hashes. A frame that no reader would accept
    /// (number of items, length, zero hash, full pack) is an `InvalidInput` error, and nothing is written.
    pub fn push_frame(&mut self, kind: Kind, hashes: &[Hash], compressed: &[u8]) -> io::Result<()> {
        let refuse = |e: FormatError| io::Error::new(io::ErrorKind::InvalidInput, e);
        kind.check_items("frame", hashes.len()).map_err(refuse)?;
        limit(
            "compressed length of a frame",
            compressed.len() as u64,
            FRAME_BYTES_MAX.into(),
        )
        .map_err(refuse)?;
        limit(
            "number of items in a pack",
            (self.hashes.len() + hashes.len()) as u64,
            PACK_ITEMS_MAX.into(),
        )
        .map_err(refuse)?;
        if compressed.is_empty() || hashes.iter().any(Hash::is_zero) {
            return Err(refuse(FormatError::invalid(
                "frame",
                "it is empty, or holds a zero item: zeros are never stored",
            )));
        }
        self.write(compressed)?;
        self.frames.push(FrameInfo {
            kind,
            offset: self.at,
            len: compressed.len() as u32,
            items: hashes.len() as u16,
        });
        self.hashes.extend_from_slice(hashes);
        self.at += compressed.len() as u64;
        Ok(())
    }

    /// Returns the bytes written so far, without index and footer.
    pub fn bytes_written(&self) -> u64 {
        self.at
    }

    /// Returns how many items were pushed so far.
    pub fn items(&self) -> usize {
        self.hashes.len()
    }

    /// Writes index and footer; returns the writer (not flushed) and the pack's id, lengths and root.
    pub fn finish(mut self) -> io::Result<(W, PackRef)> {
        let index = self.encode_index();
        let mut pack = PackRef {
            id: Hash::of(&index),
            file_bytes: self.at + index.len() as u64 + PACK_FOOTER_BYTES,
            index_offset: self.at,
            index_bytes: u32::try_from(index.len()).expect("push_frame bounds the items"),
            root: None,
        };
        self.write(&index)?;
        self.write(&pack.footer())?;
        pack.root = Some(Hash(*self.root.finalize().as_bytes()));
        Ok((self.out, pack))
    }

    fn encode_index(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(
            INDEX_HEAD_BYTES + self.frames.len() * FRAME_ENTRY_BYTES + self.hashes.len() * 32,
        );
        out.extend_from_slice(INDEX_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(self.frames.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.hashes.len() as u32).to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        for f in &self.frames {
            out.extend_from_slice(&[f.kind as u8, 0]);
            out.extend_from_slice(&f.items.to_le_bytes());
            out.extend_from_slice(&f.len.to_le_bytes());
            out.extend_from_slice(&f.offset.to_le_bytes());
        }
        out.extend(self.hashes.iter().flat_map(|h| h.0));
        out
    }
}
