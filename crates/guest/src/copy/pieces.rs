//! A stream with an end that can't be mistaken: pieces of a length (u32, little-endian) and as many bytes; 0 is the end.

use std::io::{self, Read, Write};

/// Largest piece that is written, in bytes.
const PIECE_BYTES: usize = super::BUFFER_BYTES;

/// Writes pieces.
pub struct Writer<W: Write> {
    inner: W,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Makes a writer of an empty stream.
    pub fn new(inner: W) -> Writer<W> {
        Writer {
            inner,
            buffer: Vec::with_capacity(4 + PIECE_BYTES),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        if self.buffer.len() > 4 {
            let length = (self.buffer.len() - 4) as u32; // at most PIECE_BYTES
            self.buffer[..4].copy_from_slice(&length.to_le_bytes());
            self.inner.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Writes what is left, and the end.
    pub fn finish(mut self) -> io::Result<()> {
        self.send()?;
        self.inner.write_all(&[0; 4])?;
        self.inner.flush()
    }
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.is_empty() {
            self.buffer.extend([0; 4]);
        }
        let count = bytes.len().min(PIECE_BYTES + 4 - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        if self.buffer.len() == PIECE_BYTES + 4 {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()?;
        self.inner.flush()
    }
}

/// Reads pieces. A stream without its end is an error.
pub struct Reader<R: Read> {
    inner: R,
    left: u64,
    over: bool,
}

impl<R: Read> Reader<R> {
    /// Makes a reader.
    pub fn new(inner: R) -> Reader<R> {
        Reader {
            inner,
            left: 0,
            over: false,
        }
    }

    /// Reads on to the end, so that the writer is not cut off. Returns an error if that is missing.
    pub fn finish(mut self) -> io::Result<()> {
        io::copy(&mut self, &mut io::sink()).map(drop)
    }
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.over || out.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            let mut length = [0; 4];
            self.inner.read_exact(&mut length).map_err(cut_off)?;
            self.left = u32::from_le_bytes(length).into();
            self.over = self.left == 0;
            if self.over {
                return Ok(0);
            }
        }
        let most = self.left.min(out.len() as u64) as usize;
        let count = self.inner.read(&mut out[..most])?;
        if count == 0 {
            return Err(cut_off(io::ErrorKind::UnexpectedEof.into()));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn cut_off(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the copy was cut off"),
        _ => error,
    }
}
