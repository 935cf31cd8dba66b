//! The file in which the map of a disk is kept: not what was found out, but those parts of the disk of which it was found out. So a map is
//! made again by one read in one place, and by the code that reads any disk, which trusts nothing.
//!
//! ```text
//! 8 bytes   FLOEMAPS
//! u32       version, 1
//! u64       bytes of the disk
//! u32       n: how many chunks of 4 KiB are here
//! n x u64   their numbers on the disk, ascending
//! frames    u32 length, and up to 16 of these chunks in their order, compressed as in a pack; all but the last have 16
//! 32 bytes  BLAKE3 of all that stands before
//! ```
//! Numbers are little-endian. What lies beyond the disk's end in its last chunk is zero. No I/O here.

use floe_extents::Disk;
use floe_image::{CHUNK_SIZE, FRAME_MAX_CHUNKS, Hash, Kind, compress_frame, decompress_frame_into};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

const CHUNK: u64 = CHUNK_SIZE as u64;
const MAGIC: &[u8; 8] = b"FLOEMAPS";
const VERSION: u32 = 1;
/// Most chunks that are kept of a disk: 64 MiB. A Debian has some 12 MiB of inodes and directories.
const CHUNKS_MAX: usize = 16 << 10;
/// Most bytes of a file: all chunks, none of which can be compressed.
pub(crate) const FILE_BYTES_MAX: u64 = 80 << 20;
/// Inodes and directories become a fifth of what they are, and are compressed once.
const LEVEL: i32 = 3;

/// A disk, with a memory of what was read of it.
pub(crate) struct Recorder<'a> {
    disk: &'a dyn Disk,
    /// By their numbers; one more than are kept says that there were more.
    chunks: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl<'a> Recorder<'a> {
    /// Begins with nothing.
    pub(crate) fn new(disk: &'a dyn Disk) -> Recorder<'a> {
        Recorder {
            disk,
            chunks: RefCell::default(),
        }
    }

    /// Returns the file with all that was read; `None` if that is too much.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let chunks = self.chunks.borrow();
        if chunks.len() > CHUNKS_MAX {
            return None;
        }
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend(self.disk.bytes().to_le_bytes());
        // CHUNKS_MAX at most
        out.extend((chunks.len() as u32).to_le_bytes());
        for number in chunks.keys() {
            out.extend(number.to_le_bytes());
        }
        let all: Vec<&[u8]> = chunks.values().map(Vec::as_slice).collect();
        for some in all.chunks(FRAME_MAX_CHUNKS) {
            let frame = compress_frame(Kind::Chunk, some, LEVEL);
            // some 64 KiB
            out.extend((frame.len() as u32).to_le_bytes());
            out.extend(frame);
        }
        let sum = Hash::of(&out);
        out.extend(sum.0);
        Some(out)
    }
}

impl Disk for Recorder<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let first = offset / CHUNK;
        let end = (offset + buffer.len() as u64).next_multiple_of(CHUNK);
        let length = end.min(self.disk.bytes()) - first * CHUNK;
        // less than two chunks longer than the buffer
        let mut read = vec![0; length as usize];
        self.disk.read_at(first * CHUNK, &mut read)?;
        let from = (offset % CHUNK) as usize;
        buffer.copy_from_slice(&read[from..from + buffer.len()]);
        let mut chunks = self.chunks.borrow_mut();
        for (number, bytes) in (first..).zip(read.chunks(CHUNK_SIZE)) {
            if chunks.len() > CHUNKS_MAX {
                break;
            }
            let mut chunk = bytes.to_vec();
            chunk.resize(CHUNK_SIZE, 0);
            chunks.insert(number, chunk);
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.disk.bytes()
    }
}

/// A disk of which only what was recorded can be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    disk_bytes: u64,
    numbers: Vec<u64>,
    chunks: Vec<u8>,
}

impl Recorded {
    /// Decodes what [`Recorder::encode`] has made; the error says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Recorded, String> {
        let (mut rest, sum) = bytes
            .split_last_chunk::<32>()
            .ok_or("it is too short for a kept map")?;
        if Hash::of(rest).0 != *sum {
            return Err("it is damaged: its checksum is another one".into());
        }
        if take::<8>(&mut rest)? != *MAGIC {
            return Err("this is no kept map".into());
        }
        let version = u32::from_le_bytes(take(&mut rest)?);
        if version != VERSION {
            return Err(format!(
                "it has version {version}, this floe reads {VERSION}"
            ));
        }
        let disk_bytes = u64::from_le_bytes(take(&mut rest)?);
        let count = u32::from_le_bytes(take(&mut rest)?) as usize;
        if count > CHUNKS_MAX {
            return Err(format!("{count} chunks are more than {CHUNKS_MAX}"));
        }
        let mut numbers = Vec::with_capacity(count);
        for _ in 0..count {
            numbers.push(u64::from_le_bytes(take(&mut rest)?));
        }
        if !numbers.is_sorted_by(|one, next| one < next) {
            return Err("its chunks are not in their order".into());
        }
        let (mut chunks, mut frame) = (Vec::new(), Vec::new());
        for some in numbers.chunks(FRAME_MAX_CHUNKS) {
            let length = u32::from_le_bytes(take(&mut rest)?) as usize;
            let (head, tail) = rest.split_at_checked(length).ok_or(CUT_OFF)?;
            rest = tail;
            let unpacked = decompress_frame_into(Kind::Chunk, head, some.len(), &mut frame);
            unpacked.map_err(|error| error.to_string())?;
            chunks.extend_from_slice(&frame);
        }
        if !rest.is_empty() {
            return Err(format!("{} bytes too many are in it", rest.len()));
        }
        Ok(Recorded {
            disk_bytes,
            numbers,
            chunks,
        })
    }

    fn chunk(&self, number: u64) -> Option<&[u8]> {
        let at = self.numbers.binary_search(&number).ok()?;
        self.chunks.get(at * CHUNK_SIZE..(at + 1) * CHUNK_SIZE)
    }
}

const CUT_OFF: &str = "it is cut off";

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (head, tail) = rest.split_first_chunk().ok_or(CUT_OFF)?;
    *rest = tail;
    Ok(*head)
}

impl Disk for Recorded {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (mut at, mut left) = (offset, buffer);
        while !left.is_empty() {
            let chunk = self.chunk(at / CHUNK);
            let chunk = chunk.ok_or_else(|| {
                let what = format!("byte {at} of the disk is not in its kept map");
                io::Error::new(io::ErrorKind::UnexpectedEof, what)
            })?;
            let from = (at % CHUNK) as usize;
            let length = left.len().min(CHUNK_SIZE - from);
            let (piece, rest) = left.split_at_mut(length);
            piece.copy_from_slice(&chunk[from..from + length]);
            at = at.saturating_add(length as u64);
            left = rest;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.disk_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that is no whole number of chunks long.
    fn disk() -> Vec<u8> {
        (0..40 * CHUNK_SIZE + 512)
            .map(|at| (at / 512 * 31) as u8)
            .collect()
    }

    /// The file of what was read of a disk, in pieces: offset and length.
    fn kept(disk: &[u8], pieces: &[(u64, usize)]) -> Vec<u8> {
        // a recorder takes any disk whose size is known: bytes are none
        let disk = Whole(disk);
        let recorder = Recorder::new(&disk);
        for (offset, length) in pieces {
            let mut read = vec![0; *length];
            recorder.read_at(*offset, &mut read).unwrap();
            assert_eq!(read, disk.0[*offset as usize..][..*length]);
        }
        recorder.encode().unwrap()
    }

    struct Whole<'a>(&'a [u8]);

    impl Disk for Whole<'_> {
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            self.0.read_at(offset, buffer)
        }

        fn bytes(&self) -> u64 {
            self.0.len() as u64
        }
    }

    #[test]
    fn what_was_read_can_be_read_again_and_nothing_else() {
        let disk = disk();
        let last = disk.len() as u64 - 100;
        let pieces = [(1024, 1024), (5000, 70_000), (0, 100), (last, 100)];
        let recorded = Recorded::decode(&kept(&disk, &pieces)).unwrap();
        assert_eq!(Disk::bytes(&recorded), disk.len() as u64);
        for (offset, length) in pieces {
            let mut read = vec![0; length];
            recorded.read_at(offset, &mut read).unwrap();
            assert_eq!(read, disk[offset as usize..][..length]);
        }
        let mut read = [0; 8];
        // of chunk 18, the last one of the second piece, on
        let missing = recorded.read_at(19 * CHUNK - 4, &mut read).unwrap_err();
        assert!(missing.to_string().contains("byte 77824 "), "{missing}");
    }

    #[test]
    fn a_file_that_was_damaged_or_cut_is_refused() {
        let whole = kept(&disk(), &[(0, 100_000)]);
        assert!(Recorded::decode(&whole).is_ok());
        for at in (0..whole.len()).step_by(7) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert!(Recorded::decode(&damaged).is_err(), "byte {at}");
            assert!(Recorded::decode(&whole[..at]).is_err(), "cut at {at}");
        }
        // what is wrong and has the right checksum
        let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = whole[..whole.len() - 32].to_vec();
            change(&mut bytes);
            let sum = Hash::of(&bytes);
            bytes.extend(sum.0);
            Recorded::decode(&bytes).unwrap_err()
        };
        assert!(sealed(&|bytes| bytes[8] = 9).contains("version 9"));
        assert!(sealed(&|bytes| bytes[23] = 1).contains("are more than"));
        assert!(sealed(&|bytes| bytes[24] = 1).contains("order"));
        assert!(sealed(&|bytes| bytes.push(0)).contains("too many"));
        assert!(sealed(&|bytes| bytes.truncate(230)).contains("cut off"));
    }

    #[test]
    fn more_than_is_kept_is_kept_of_nothing() {
        struct Zeros;
        impl Disk for Zeros {
            fn read_at(&self, _: u64, buffer: &mut [u8]) -> io::Result<()> {
                buffer.fill(0);
                Ok(())
            }
            fn bytes(&self) -> u64 {
                1 << 40
            }
        }
        let recorder = Recorder::new(&Zeros);
        let mut read = vec![0; CHUNK_SIZE];
        for number in 0..CHUNKS_MAX as u64 {
            recorder.read_at(number * CHUNK, &mut read).unwrap();
        }
        assert!(
            recorder
                .encode()
                .is_some_and(|file| file.len() as u64 <= FILE_BYTES_MAX)
        );
        recorder.read_at(1 << 39, &mut read).unwrap();
        recorder.read_at(1 << 38, &mut read).unwrap();
        assert_eq!(recorder.encode(), None);
    }
}
