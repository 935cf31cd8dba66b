//! Traces: which chunk a machine touched first, when, and how long it waited. An access takes some five bytes and is appended
//! while the machine runs. If a crash cut the end off, that is dropped; everything before it counts.

use std::io::{self, Write};

use crate::wire::{Cursor, Varint, get_varint, limit, put_varint, unzigzag, zigzag};
use crate::{FormatError, Hash, REGIONS_MAX};

const MAGIC: &[u8; 8] = b"FLOETRCE";
const VERSION: u32 = 1;
const WHAT: &str = "trace";
/// Most bytes of a machine's name in a trace.
pub const MACHINE_ID_MAX: usize = 64;
/// Most bytes of an encoded access: the region, and three varints of 5, 10 and 10 bytes.
pub const ACCESS_BYTES_MAX: usize = 26;

/// The header of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHeader {
    /// The image that the machine was started from; its manifest numbers the regions.
    pub image: Hash,
    /// The machine's name or id, at most 64 bytes.
    pub machine: String,
    /// Time zero of the trace, in microseconds since 1970.
    pub start_unix_us: u64,
}

impl TraceHeader {
    fn encode(&self) -> Result<Vec<u8>, FormatError> {
        limit(
            "length of a machine's name in a trace",
            self.machine.len() as u64,
            MACHINE_ID_MAX as u64,
        )?;
        let mut out = Vec::with_capacity(64 + self.machine.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(self.machine.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.image.0);
        out.extend_from_slice(&self.start_unix_us.to_le_bytes());
        out.extend_from_slice(self.machine.as_bytes());
        Ok(out)
    }
}

/// The first access to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The region's number in the manifest, below 64.
    pub region: u8,
    /// The chunk's number in the region.
    pub chunk: u32,
    /// Microseconds since the start; never less than for the access before.
    pub t_us: u64,
    /// Microseconds that the machine waited for the chunk.
    pub wait_us: u64,
}

/// Writes accesses. It doesn't buffer: give it a `Vec` or a `BufWriter`.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    out: W,
    last: Last,
    scratch: Vec<u8>,
}

/// The values that the next access is encoded relative to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Last {
    chunk: u32,
    t_us: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the header.
    pub fn new(mut out: W, header: &TraceHeader) -> io::Result<TraceWriter<W>> {
        let head = header
            .encode()
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        out.write_all(&head)?;
        Ok(TraceWriter {
            out,
            last: Last::default(),
            scratch: Vec::with_capacity(ACCESS_BYTES_MAX),
        })
    }

    /// Continues a trace that `reader` has read to its end. Truncate the file to [`TraceReader::valid_bytes`] before.
    pub fn resume(out: W, reader: &TraceReader<'_>) -> TraceWriter<W> {
        TraceWriter {
            out,
            last: reader.last,
            scratch: Vec::with_capacity(ACCESS_BYTES_MAX),
        }
    }

    /// Appends an access. A time before the last one is raised to it (two threads may report out of order).
    pub fn push(&mut self, access: Access) -> io::Result<()> {
        if usize::from(access.region) >= REGIONS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("region number {}", access.region),
            ));
        }
        let t_us = access.t_us.max(self.last.t_us);
        self.scratch.clear();
        self.scratch.push(access.region);
        put_varint(
            &mut self.scratch,
            zigzag(i64::from(access.chunk) - i64::from(self.last.chunk)),
        );
        put_varint(&mut self.scratch, t_us - self.last.t_us);
        put_varint(&mut self.scratch, access.wait_us);
        self.out.write_all(&self.scratch)?;
        self.last = Last {
            chunk: access.chunk,
            t_us,
        };
        Ok(())
    }

    /// Returns the writer.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Returns the writer, without flushing it.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// How a trace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEnd {
    /// After a whole access.
    Clean,
    /// Inside an access: the machine or its host was stopped hard. The accesses before are good.
    CutOff,
    /// At bytes that no writer makes: the rest is lost, the accesses before are good.
    Damaged,
}

/// Reads a trace: an iterator over its accesses, which ends at the first byte that can't be decoded.
#[derive(Clone, Debug)]
pub struct TraceReader<'a> {
    header: TraceHeader,
    bytes: &'a [u8],
    at: usize,
    last: Last,
    end: Option<TraceEnd>,
}

impl<'a> TraceReader<'a> {
    /// Decodes the header, which must be whole.
    pub fn new(bytes: &'a [u8]) -> Result<TraceReader<'a>, FormatError> {
        let mut c = Cursor::new(WHAT, bytes);
        c.magic(MAGIC)?;
        c.version(VERSION)?;
        let machine_len = c.u32()?;
        limit(
            "length of a machine's name in a trace",
            machine_len.into(),
            MACHINE_ID_MAX as u64,
        )?;
        let image = c.hash()?;
        let start_unix_us = c.u64()?;
        let machine = std::str::from_utf8(c.take(machine_len as usize)?)
            .map_err(|_| FormatError::invalid(WHAT, "the machine's name is not text"))?
            .to_owned();
        let header = TraceHeader {
            image,
            machine,
            start_unix_us,
        };
        Ok(TraceReader {
            header,
            bytes,
            at: c.at(),
            last: Last::default(),
            end: None,
        })
    }

    /// Returns the header.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Returns how it ended; `None` while there may be accesses left.
    pub fn end(&self) -> Option<TraceEnd> {
        self.end
    }

    /// Returns how many bytes there are up to the end of the last whole access read so far.
    pub fn valid_bytes(&self) -> usize {
        self.at
    }

    fn parse(&self) -> Result<(Access, usize), TraceEnd> {
        let rest = &self.bytes[self.at..];
        let Some(&region) = rest.first() else {
            return Err(TraceEnd::Clean);
        };
        if usize::from(region) >= REGIONS_MAX {
            return Err(TraceEnd::Damaged);
        }
        let mut used = 1;
        let mut fields = [0; 3];
        for field in &mut fields {
            match get_varint(&rest[used..]) {
                Varint::Value(n, len) => (*field, used) = (n, used + len),
                Varint::Short => return Err(TraceEnd::CutOff),
                Varint::Bad => return Err(TraceEnd::Damaged),
            }
        }
        let chunk = i64::from(self.last.chunk)
            .checked_add(unzigzag(fields[0]))
            .and_then(|c| u32::try_from(c).ok());
        let t_us = self.last.t_us.checked_add(fields[1]);
        match (chunk, t_us) {
            (Some(chunk), Some(t_us)) => Ok((
                Access {
                    region,
                    chunk,
                    t_us,
                    wait_us: fields[2],
                },
                used,
            )),
            _ => Err(TraceEnd::Damaged),
        }
    }
}

impl Iterator for TraceReader<'_> {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        if self.end.is_some() {
            return None;
        }
        match self.parse() {
            Ok((access, used)) => {
                self.at += used;
                self.last = Last {
                    chunk: access.chunk,
                    t_us: access.t_us,
                };
                Some(access)
            }
            Err(end) => {
                self.end = Some(end);
                None
            }
        }
    }
}
