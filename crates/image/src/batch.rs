//! The hub's batch read: one request for many items, one streamed response. Frames are sent as they are in the packs, so the
//! hub neither unpacks nor packs, and neighbours in the same frame are sent too.

use std::io::{self, Read, Write};

use crate::wire::{Cursor, limit};
use crate::{FRAME_BYTES_MAX, FRAME_MAX_CHUNKS, FormatError, Hash, Kind, decompress_frame};

const REQUEST_MAGIC: &[u8; 8] = b"FLOEWANT";
const RESPONSE_MAGIC: &[u8; 8] = b"FLOEGIVE";
const VERSION: u32 = 1;
const REQUEST_WHAT: &str = "batch request";
const RESPONSE_WHAT: &str = "batch response";
const HEAD_BYTES: usize = 16;
const RECORD_HEAD_BYTES: usize = 8;
const WANT_BYTES: usize = 33;
/// Most items in one request: 32 MiB of chunks.
pub const BATCH_ITEMS_MAX: u32 = 8192;
/// Most bytes of an encoded request.
pub const REQUEST_BYTES_MAX: usize = HEAD_BYTES + BATCH_ITEMS_MAX as usize * WANT_BYTES;

const OP_FRAME: u8 = 1;
const OP_MISSING: u8 = 2;
const OP_END: u8 = 3;

/// A request for items, all of one image (which the request's address names).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// The items; at most [`BATCH_ITEMS_MAX`].
    pub wants: Vec<(Kind, Hash)>,
}

impl ReadRequest {
    /// Returns the body of the request.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + self.wants.len() * WANT_BYTES);
        out.extend_from_slice(REQUEST_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(
            &u32::try_from(self.wants.len())
                .expect("BATCH_ITEMS_MAX is below 2^32")
                .to_le_bytes(),
        );
        for (kind, hash) in &self.wants {
            out.push(*kind as u8);
            out.extend_from_slice(&hash.0);
        }
        out
    }

    /// Decodes a request.
    pub fn decode(bytes: &[u8]) -> Result<ReadRequest, FormatError> {
        let mut c = Cursor::new(REQUEST_WHAT, bytes);
        c.magic(REQUEST_MAGIC)?;
        c.version(VERSION)?;
        let count = c.u32()?;
        limit(
            "number of items in a batch request",
            count.into(),
            BATCH_ITEMS_MAX.into(),
        )?;
        c.expect_items(count.into(), WANT_BYTES as u64)?;
        let mut wants = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let kind = Kind::from_wire(REQUEST_WHAT, c.u8()?)?;
            let hash = c.hash()?;
            if hash.is_zero() {
                return Err(FormatError::invalid(
                    REQUEST_WHAT,
                    "the zero hash is asked for, zeros are never stored",
                ));
            }
            wants.push((kind, hash));
        }
        c.end()?;
        Ok(ReadRequest { wants })
    }
}

/// How the bytes of a record are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Encoding {
    /// Uncompressed: on a fast link, unpacking takes longer than sending.
    Raw = 0,
    /// One zstd frame.
    Zstd = 1,
}

impl Encoding {
    /// Returns its name in the header `x-floe-encoding`.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::Raw => "raw",
            Encoding::Zstd => "zstd",
        }
    }

    /// Returns the encoding that the header's value asks for: zstd without a header, `None` for an unknown value.
    pub fn asked(value: Option<&[u8]>) -> Option<Encoding> {
        match value {
            None | Some(b"zstd") => Some(Encoding::Zstd),
            Some(b"raw") => Some(Encoding::Raw),
            Some(_) => None,
        }
    }
}

/// One unpacked record of a response. Its items are **not** verified yet: call [`Kind::verify`] on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Items from one frame; `data` holds them one after the other.
    Frame {
        /// Whether they are chunks or segments.
        kind: Kind,
        /// The hashes that they should have, 1 to 16.
        hashes: Vec<Hash>,
        /// The items' bytes: `hashes.len() * kind.raw_size()`.
        data: Vec<u8>,
    },
    /// The server does not have this item.
    Missing {
        /// Whether it is a chunk or a segment.
        kind: Kind,
        /// Its hash.
        hash: Hash,
    },
}

impl Record {
    /// Returns the items of a frame with the hashes that they should have; nothing for `Missing`.
    pub fn items(&self) -> impl Iterator<Item = (Kind, Hash, &[u8])> {
        let (kind, hashes, data) = match self {
            Record::Frame { kind, hashes, data } => (*kind, &hashes[..], &data[..]),
            Record::Missing { kind, .. } => (*kind, &[][..], &[][..]),
        };
        hashes
            .iter()
            .zip(data.chunks_exact(kind.raw_size()))
            .map(move |(h, d)| (kind, *h, d))
    }
}

/// Writes a response record by record, without buffering.
#[derive(Debug)]
pub struct ResponseEncoder<W: Write> {
    out: W,
    records: u32,
}

impl<W: Write> ResponseEncoder<W> {
    /// Writes the head.
    pub fn new(mut out: W) -> io::Result<ResponseEncoder<W>> {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(RESPONSE_MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out.write_all(&head)?;
        Ok(ResponseEncoder { out, records: 0 })
    }

    /// Writes items that are encoded as `encoding` says: a pack's frame as it is, or raw bytes one after the other.
    pub fn frame(
        &mut self,
        kind: Kind,
        hashes: &[Hash],
        encoding: Encoding,
        bytes: &[u8],
    ) -> io::Result<()> {
        let refuse = |e: FormatError| io::Error::new(io::ErrorKind::InvalidInput, e);
        kind.check_items(RESPONSE_WHAT, hashes.len())
            .map_err(refuse)?;
        limit(
            "length of a record",
            bytes.len() as u64,
            FRAME_BYTES_MAX.into(),
        )
        .map_err(refuse)?;
        self.head(
            OP_FRAME,
            kind as u8,
            encoding as u8,
            hashes.len() as u8,
            bytes.len() as u32,
        )?;
        for hash in hashes {
            self.out.write_all(&hash.0)?;
        }
        self.out.write_all(bytes)
    }

    /// Writes that an item is not here.
    pub fn missing(&mut self, kind: Kind, hash: &Hash) -> io::Result<()> {
        self.head(OP_MISSING, kind as u8, 0, 1, 0)?;
        self.out.write_all(&hash.0)
    }

    /// Ends the response. Without this last record it counts as cut off.
    pub fn finish(mut self) -> io::Result<W> {
        let records = self.records;
        self.head(OP_END, 0, 0, 0, records)?;
        Ok(self.out)
    }

    /// Returns the writer, from which a caller may take what was written so far.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    fn head(&mut self, op: u8, kind: u8, encoding: u8, items: u8, len: u32) -> io::Result<()> {
        self.records = self.records.saturating_add(1);
        let l = len.to_le_bytes();
        self.out
            .write_all(&[op, kind, encoding, items, l[0], l[1], l[2], l[3]])
    }
}

/// Decodes a response that is fed in pieces of any size. Holds at most one record (68 KiB and 16 hashes) beyond what was fed
/// last.
#[derive(Debug)]
pub struct ResponseDecoder {
    pending: Vec<u8>,
    used: usize,
    /// How many bytes were consumed before `pending`.
    before: u64,
    head_seen: bool,
    records: u32,
    records_max: u32,
    ended: bool,
}

impl ResponseDecoder {
    /// Makes a decoder for the response to a request of `wants` items: the server may send at most one record for each.
    pub fn new(wants: usize) -> ResponseDecoder {
        let records_max = u32::try_from(wants)
            .unwrap_or(u32::MAX)
            .min(BATCH_ITEMS_MAX);
        ResponseDecoder {
            pending: Vec::new(),
            used: 0,
            before: 0,
            head_seen: false,
            records: 0,
            records_max,
            ended: false,
        }
    }

    /// Adds received bytes. Call [`ResponseDecoder::next_record`] until it returns `None` before feeding more.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.drain(..self.used);
        self.before += self.used as u64;
        self.used = 0;
        self.pending.extend_from_slice(bytes);
    }

    /// Returns the next whole record; `None` if more bytes are needed or the end was read.
    // Long: one record of the format, field by field, as docs/format.md draws it.
    pub fn next_record(&mut self) -> Result<Option<Record>, FormatError> {
        let bytes = &self.pending[self.used..];
        if self.ended {
            return Cursor::new(RESPONSE_WHAT, bytes).end().map(|()| None);
        }
        let mut c = Cursor::new(RESPONSE_WHAT, bytes);
        if !self.head_seen {
            if bytes.len() < HEAD_BYTES {
                return Ok(None);
            }
            c.magic(RESPONSE_MAGIC)?;
            c.version(VERSION)?;
            c.zero_u32("the head's last field")?;
            self.head_seen = true;
            self.used += HEAD_BYTES;
            return self.next_record();
        }
        if bytes.len() < RECORD_HEAD_BYTES {
            return Ok(None);
        }
        let (op, kind, encoding, items, len) = (c.u8()?, c.u8()?, c.u8()?, c.u8()?, c.u32()?);
        if op == OP_END {
            return self.end(kind, encoding, items, len).map(|()| None);
        }
        let kind = Kind::from_wire(RESPONSE_WHAT, kind)?;
        kind.check_items(RESPONSE_WHAT, items.into())?;
        if self.records >= self.records_max {
            let max = self.records_max.into();
            return Err(FormatError::Limit {
                what: "number of records in a batch response",
                found: max + 1,
                max,
            });
        }
        let body = match (op, encoding) {
            (OP_FRAME, 0) if len as usize != usize::from(items) * kind.raw_size() => {
                return Err(FormatError::invalid(
                    RESPONSE_WHAT,
                    format!("{items} raw {}s of {len} bytes", kind.name()),
                ));
            }
            (OP_FRAME, 0 | 1) => {
                limit("length of a record", len.into(), FRAME_BYTES_MAX.into())?;
                len as usize
            }
            (OP_MISSING, 0) if items == 1 && len == 0 => 0,
            _ => {
                return Err(FormatError::invalid(
                    RESPONSE_WHAT,
                    format!("record {op} with encoding {encoding} is unknown"),
                ));
            }
        };
        let whole = RECORD_HEAD_BYTES + usize::from(items) * 32 + body;
        if bytes.len() < whole {
            return Ok(None);
        }
        let hashes = (0..items)
            .map(|_| c.hash())
            .collect::<Result<Vec<_>, _>>()?;
        let body = c.take(body)?;
        let record = match (op, encoding) {
            (OP_MISSING, _) => Record::Missing {
                kind,
                hash: hashes[0],
            },
            (_, 0) => Record::Frame {
                kind,
                hashes,
                data: body.to_vec(),
            },
            _ => Record::Frame {
                kind,
                data: decompress_frame(kind, body, hashes.len())?,
                hashes,
            },
        };
        self.used += whole;
        self.records += 1;
        Ok(Some(record))
    }

    fn end(&mut self, kind: u8, encoding: u8, items: u8, count: u32) -> Result<(), FormatError> {
        if kind != 0 || encoding != 0 || items != 0 || count != self.records {
            let why = format!("its end promises {count} records, {} came", self.records);
            return Err(FormatError::invalid(RESPONSE_WHAT, why));
        }
        self.used += RECORD_HEAD_BYTES;
        self.ended = true;
        Cursor::new(RESPONSE_WHAT, &self.pending[self.used..]).end()
    }

    /// Returns whether the end was read. A response that stops before was cut off: see [`ResponseDecoder::cut_off`].
    pub fn is_complete(&self) -> bool {
        self.ended
    }

    /// Returns the error for a response that stopped before its end.
    pub fn cut_off(&self) -> FormatError {
        let have = self.before + self.pending.len() as u64;
        FormatError::Truncated {
            what: RESPONSE_WHAT,
            at: have,
            need: RECORD_HEAD_BYTES as u64,
            have,
        }
    }
}

/// Why a response could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    /// The connection failed.
    #[error("the batch response could not be read")]
    Io(#[from] io::Error),
    /// The bytes are not a response, or it was cut off.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// Reads a whole response to a request of `wants` items, and passes each record to `sink` as it arrives.
pub fn read_response(
    mut from: impl Read,
    wants: usize,
    mut sink: impl FnMut(Record) -> Result<(), FormatError>,
) -> Result<(), ResponseError> {
    let mut decoder = ResponseDecoder::new(wants);
    let mut buffer = vec![0; FRAME_MAX_CHUNKS * crate::CHUNK_SIZE];
    loop {
        let n = match from.read(&mut buffer) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e.into()),
        };
        if n == 0 {
            return if decoder.is_complete() {
                Ok(())
            } else {
                Err(decoder.cut_off().into())
            };
        }
        decoder.feed(&buffer[..n]);
        while let Some(record) = decoder.next_record()? {
            sink(record)?;
        }
    }
}
