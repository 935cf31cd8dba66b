//! Frames: the unit of compression. A frame is one zstd frame of up to 16 chunks, or of one segment.

use std::cell::RefCell;

use crate::wire::limit;
use crate::{
    CHUNK_SIZE, FRAME_BYTES_MAX, FRAME_MAX_CHUNKS, FormatError, Hash, SEGMENT_BYTES, chunk_hash,
};

/// What an item is, which also determines its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// 4096 bytes of a region.
    Chunk = 0,
    /// 32768 bytes: the hashes of 1024 chunks.
    Segment = 1,
}

impl Kind {
    /// Returns the bytes of one item, uncompressed.
    pub const fn raw_size(self) -> usize {
        match self {
            Kind::Chunk => CHUNK_SIZE,
            Kind::Segment => SEGMENT_BYTES,
        }
    }

    /// Returns the most items in one frame.
    pub const fn frame_items_max(self) -> usize {
        match self {
            Kind::Chunk => FRAME_MAX_CHUNKS,
            Kind::Segment => 1,
        }
    }

    /// Checks that `bytes` are the item with this hash. Every item is checked this way before a guest or a store gets it.
    pub fn verify(self, hash: &Hash, bytes: &[u8]) -> Result<(), FormatError> {
        let what = self.name();
        if bytes.len() != self.raw_size() {
            return Err(FormatError::invalid(
                what,
                format!(
                    "it has {} bytes, {} are needed",
                    bytes.len(),
                    self.raw_size()
                ),
            ));
        }
        // A segment of zero hashes consists of zero bytes, so the rule for zeros is the same for both kinds.
        let found = chunk_hash(bytes);
        if found == *hash {
            Ok(())
        } else {
            Err(FormatError::Mismatch {
                what,
                expected: *hash,
                found,
            })
        }
    }

    /// Returns `chunk` or `segment`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Chunk => "chunk",
            Kind::Segment => "segment",
        }
    }

    pub(crate) fn from_wire(what: &'static str, byte: u8) -> Result<Kind, FormatError> {
        match byte {
            0 => Ok(Kind::Chunk),
            1 => Ok(Kind::Segment),
            n => Err(FormatError::invalid(
                what,
                format!("item kind {n} is unknown (0 chunk, 1 segment)"),
            )),
        }
    }

    pub(crate) fn check_items(self, what: &'static str, items: usize) -> Result<(), FormatError> {
        if items == 0 {
            return Err(FormatError::invalid(what, "a frame without items"));
        }
        limit(
            "number of items in a frame",
            items as u64,
            self.frame_items_max() as u64,
        )
    }
}

thread_local! {
    // Making a zstd context costs about as much as compressing a frame with it, so each thread keeps one.
    static COMPRESSOR: RefCell<Option<(i32, zstd::bulk::Compressor<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Compresses 1 to 16 chunks, or one segment, into one frame.
///
/// # Panics
/// If the number or the sizes of the items don't fit `kind`, which only a caller's mistake can cause, never bad data.
pub fn compress_frame(kind: Kind, items: &[&[u8]], level: i32) -> Vec<u8> {
    assert!(
        (1..=kind.frame_items_max()).contains(&items.len()),
        "{} items in a {} frame",
        items.len(),
        kind.name()
    );
    assert!(
        items.iter().all(|i| i.len() == kind.raw_size()),
        "an item of a {} frame has the wrong size",
        kind.name()
    );
    let joined;
    let raw: &[u8] = match items {
        [one] => one,
        many => {
            joined = many.concat();
            &joined
        }
    };
    COMPRESSOR.with_borrow_mut(|slot| {
        if slot.as_ref().is_none_or(|(l, _)| *l != level) {
            let made = zstd::bulk::Compressor::new(level)
                .expect("zstd accepts any level; only memory can be short");
            *slot = Some((level, made));
        }
        let (_, compressor) = slot.as_mut().expect("set above");
        compressor
            .compress(raw)
            .expect("the buffer has zstd's own bound")
    })
}

/// Decompresses a frame of `items` items; returns exactly `items * kind.raw_size()` bytes or an error. Never allocates more
/// than that, whatever the input claims.
pub fn decompress_frame(kind: Kind, bytes: &[u8], items: usize) -> Result<Vec<u8>, FormatError> {
    let mut out = Vec::new();
    decompress_frame_into(kind, bytes, items, &mut out)?;
    Ok(out)
}

/// As [`decompress_frame`], into a buffer that is reused. Its old content is dropped; after an error it is empty.
pub fn decompress_frame_into(
    kind: Kind,
    bytes: &[u8],
    items: usize,
    out: &mut Vec<u8>,
) -> Result<(), FormatError> {
    out.clear();
    kind.check_items("frame", items)?;
    limit(
        "compressed length of a frame",
        bytes.len() as u64,
        u64::from(FRAME_BYTES_MAX),
    )?;
    let want = items * kind.raw_size();
    // One frame with its size in its head, and nothing after it: what compress_frame writes. Anything else is refused at once.
    match zstd::zstd_safe::get_frame_content_size(bytes) {
        Ok(Some(size)) if size == want as u64 => {}
        Ok(Some(size)) => {
            let why = format!(
                "it unpacks to {size} bytes, {items} x {} are expected",
                kind.raw_size()
            );
            return Err(FormatError::invalid("frame", why));
        }
        _ => {
            return Err(FormatError::invalid(
                "frame",
                "no zstd frame that tells its size",
            ));
        }
    }
    if zstd::zstd_safe::find_frame_compressed_size(bytes) != Ok(bytes.len()) {
        return Err(FormatError::invalid(
            "frame",
            "the zstd frame does not end where the frame ends",
        ));
    }
    out.reserve_exact(want);
    let result = DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(d) => d,
            None => slot.insert(zstd::bulk::Decompressor::new().map_err(|e| e.to_string())?),
        };
        decompressor
            .decompress_to_buffer(bytes, out)
            .map_err(|e| e.to_string())
    });
    match result {
        Ok(n) if n == want => Ok(()),
        Ok(n) => {
            out.clear();
            Err(FormatError::invalid(
                "frame",
                format!("it unpacks to {n} bytes, {want} are expected"),
            ))
        }
        Err(why) => {
            out.clear();
            Err(FormatError::invalid(
                "frame",
                format!("zstd cannot unpack it: {why}"),
            ))
        }
    }
}
