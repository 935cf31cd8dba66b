//! Unpacks disk images: gzip, xz, Zstandard, and files of a tar archive (an OVA is one).
//!
//! The output goes to a file beside the node's state, with zeros as holes. It is bounded in its length, in the disk space it
//! takes for each byte of input, and by the space that is left. The caller owns the file and deletes it.

use crate::{
    archive::{self, Form, Member},
    disk_content::Packing,
    disk_file::read_up_to,
};
use floe_ground::{
    error::{NodeError, at, refused},
    report::ProgressLine,
};
use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufReader, Read, Seek},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, Ordering},
};

/// How many bytes are unpacked at once.
const BLOCK_BYTES: usize = 1 << 20;
/// The smallest hole, in bytes.
const HOLE_BYTES: usize = 4096;
const ZEROS: [u8; HOLE_BYTES] = [0; HOLE_BYTES];
/// Longest output file, in bytes: no image is larger.
const OUTPUT_BYTES_MAX: u64 = floe_image::IMAGE_BYTES_MAX;
/// How many bytes may be written before the ratio is checked.
const FREE_OF_RATIO_BYTES: u64 = 64 << 20;
/// Most bytes that are written (holes do not count) for each byte that the user gave. Disks reach 2 to 20.
const RATIO_MAX: u64 = 1000;
/// After how many written bytes the free space is checked again.
const SPACE_EVERY_BYTES: u64 = 64 << 20;
/// The fraction of the file system, one part of this many, that stays free for the machines' own disks.
const SPACE_KEPT: u64 = 20;
/// Most memory for the window of an xz file, in KiB: xz -9 takes 64 MiB.
const XZ_MEMORY_KIB: u32 = 256 << 10;
/// Most memory for the window of a Zstandard file, as a base-2 logarithm: 128 MiB, the default of `zstd` itself.
const ZSTD_WINDOW_LOG: u32 = 27;
/// Unpacks `from`, which messages call `shown`, into `to`. `given` is the length of the file that the user gave, which may be packed
/// more than once. Files of an archive are taken one by one ([`Archive`]).
pub fn unpack(
    packing: Packing,
    from: &File,
    shown: &str,
    given: u64,
    to: &File,
    progress: &ProgressLine,
) -> Result<(), NodeError> {
    let read = AtomicU64::new(0);
    let mut from = from.try_clone().map_err(at("cannot share a file"))?;
    from.rewind().map_err(at(format!("cannot read {shown}")))?;
    let total = from.metadata().map_or(0, |meta| meta.len());
    let mut output = Output::new(to, shown, &read, given, total, progress);
    let input = Counted(from, &read);
    let packed = |from| BufReader::with_capacity(BLOCK_BYTES, from);
    match packing {
        Packing::Tar => {
            return Err(refused(
                format!("{shown} is an archive, not a disk"),
                "take the disk out of it: tar -xf",
            ));
        }
        Packing::Gzip => output.fill(&mut flate2::bufread::MultiGzDecoder::new(packed(input)))?,
        Packing::Xz => {
            let mut reader =
                lzma_rust2::XzReader::new_mem_limit(packed(input), true, XZ_MEMORY_KIB);
            output.fill(&mut reader)?;
        }
        Packing::Zstd => {
            let reader = zstd::stream::read::Decoder::with_buffer(packed(input));
            let mut reader = reader.map_err(|error| broken(shown, &error))?;
            let limited = reader.window_log_max(ZSTD_WINDOW_LOG);
            limited.map_err(|error| broken(shown, &error))?;
            output.fill(&mut reader)?;
        }
    }
    Ok(())
}

/// An archive of which the files are known.
pub struct Archive<'a> {
    file: &'a File,
    shown: &'a str,
    /// Length of the file that the user gave.
    given: u64,
    len: u64,
    members: Vec<Member>,
}

impl<'a> Archive<'a> {
    /// Reads what is in an archive.
    pub fn open(file: &'a File, shown: &'a str, given: u64) -> Result<Archive<'a>, NodeError> {
        let read = |offset: u64, buffer: &mut [u8]| read_up_to(file, offset, buffer);
        let mut end = file;
        // a block device's metadata has no length
        let len = end.seek(io::SeekFrom::End(0));
        let len = len.map_err(at(format!("cannot read {shown}")))?;
        let members = archive::members(&read, len).map_err(|error| broken(shown, &error))?;
        Ok(Archive {
            file,
            shown,
            given,
            len,
            members,
        })
    }

    /// What messages call it.
    pub fn shown(&self) -> &str {
        self.shown
    }

    /// Returns the names of its files, each once.
    pub fn names(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        let names = self.members.iter().map(|member| member.name.clone());
        names.filter(|name| seen.insert(name.clone())).collect()
    }

    /// Whether it holds a file of this name.
    pub fn holds(&self, name: &str) -> bool {
        self.member(name).is_some()
    }

    /// Returns the file of this name: the last one, as tar itself would leave it.
    fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().rev().find(|member| member.name == name)
    }

    /// Returns the text of a file that has at most so many bytes; otherwise nothing.
    pub fn text(&self, name: &str, most: u64) -> Result<String, NodeError> {
        let member = self.member(name);
        let Some(member) = member.filter(|m| m.form == Form::Whole && m.stored <= most) else {
            return Ok(String::new());
        };
        let mut bytes = vec![0; member.stored as usize];
        let got = read_up_to(self.file, member.at, &mut bytes);
        bytes.truncate(got.map_err(at(format!("cannot read {}", self.shown)))?);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes a file of it.
    pub fn take(&self, name: &str, to: &File, progress: &ProgressLine) -> Result<(), NodeError> {
        let missing = || broken(self.shown, &io::ErrorKind::NotFound.into());
        let member = self.member(name).ok_or_else(missing)?;
        let read = AtomicU64::new(0);
        let from = self.file.try_clone();
        let from = from.map_err(at("cannot share a file"))?;
        let mut output = Output::new(to, self.shown, &read, self.given, self.len, progress);
        output.take(Counted(from, &read), member)
    }
}

fn broken(shown: &str, error: &io::Error) -> NodeError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => refused(
            format!("{shown} is cut off: what is packed in it ends early"),
            "fetch it again, and compare its checksum",
        ),
        io::ErrorKind::OutOfMemory => refused(
            format!("{shown} needs too much memory to be unpacked"),
            "unpack it yourself, and import what comes out",
        ),
        _ => refused(
            format!("{shown} can't be unpacked: {error}"),
            "fetch it again, and compare its checksum; or unpack it yourself",
        ),
    }
}

/// A file that counts the bytes read from it.
struct Counted<'a>(File, &'a AtomicU64);

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.0.read(buffer)?;
        self.1.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }
}

/// The output file and its bounds.
struct Output<'a> {
    to: &'a File,
    shown: &'a str,
    /// Bytes of the input read so far.
    read: &'a AtomicU64,
    /// Length of the file that the user gave. What was unpacked from it is no measure: holes in it cost nothing.
    given: u64,
    /// Length of the input.
    total: u64,
    progress: &'a ProgressLine,
    /// Bytes written so far without holes.
    written: u64,
    /// Value of `written` when the space was last checked.
    looked: u64,
    /// What was read last.
    block: Vec<u8>,
}

impl<'a> Output<'a> {
    fn new(
        to: &'a File,
        shown: &'a str,
        read: &'a AtomicU64,
        given: u64,
        total: u64,
        progress: &'a ProgressLine,
    ) -> Output<'a> {
        Output {
            to,
            shown,
            read,
            given,
            total,
            progress,
            written: 0,
            looked: 0,
            block: vec![0; BLOCK_BYTES],
        }
    }

    /// Writes all that there is.
    fn fill(&mut self, from: &mut dyn Read) -> Result<(), NodeError> {
        let len = self.copy(from, 0)?;
        self.end(len)
    }

    /// Writes a file that is in an archive.
    fn take(&mut self, mut archive: Counted<'_>, disk: &Member) -> Result<(), NodeError> {
        let wrong = |error| broken(self.shown, &error);
        let from = archive.0.try_clone().map_err(wrong)?;
        let read = |offset: u64, buffer: &mut [u8]| read_up_to(&from, offset, buffer);
        let bytes = match disk.form {
            Form::Whole => disk.stored,
            Form::Sparse { bytes, .. } => bytes,
            Form::PaxSparse => {
                return Err(refused(
                    format!(
                        "{} in {} is stored without its holes, in the form of the pax format",
                        disk.name, self.shown
                    ),
                    "take it out (tar -xf), and import it",
                ));
            }
        };
        archive
            .0
            .seek(io::SeekFrom::Start(disk.at))
            .map_err(wrong)?;
        let mut failed = None;
        let walked = archive::parts(&read, self.total, disk, &mut |offset, length| {
            let copied = self.copy(&mut archive.by_ref().take(length), offset);
            match copied {
                Ok(end) if end == offset + length => Ok(()),
                Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => {
                    failed = Some(error);
                    Err(io::ErrorKind::Other.into())
                }
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        walked.map_err(|error| broken(self.shown, &error))?;
        self.end(bytes)
    }

    /// Gives the file its length.
    fn end(&mut self, len: u64) -> Result<(), NodeError> {
        self.check_length(len)?;
        self.to.set_len(len).map_err(at("cannot unpack"))
    }

    fn check_length(&self, len: u64) -> Result<(), NodeError> {
        match len > OUTPUT_BYTES_MAX {
            false => Ok(()),
            true => Err(refused(
                format!(
                    "{} unpacks to more than {OUTPUT_BYTES_MAX} bytes",
                    self.shown
                ),
                "no image can be that large",
            )),
        }
    }

    /// Writes all that can be read, from this offset on. Returns the offset behind its end.
    fn copy(&mut self, from: &mut dyn Read, offset: u64) -> Result<u64, NodeError> {
        let mut len = offset;
        let mut block = std::mem::take(&mut self.block);
        loop {
            let got = read_block(from, &mut block).map_err(|error| broken(self.shown, &error))?;
            self.write(len, &block[..got])?;
            len += got as u64;
            self.check_length(len)?;
            let read = self.read.load(Ordering::Relaxed).min(self.total);
            if !self.progress.at(read, self.total) {
                return Err(NodeError::Cancelled);
            }
            if got < block.len() {
                break;
            }
        }
        self.block = block;
        Ok(len)
    }

    fn write(&mut self, offset: u64, block: &[u8]) -> Result<(), NodeError> {
        let mut place = offset;
        for part in block.chunks(HOLE_BYTES) {
            if part != &ZEROS[..part.len()] {
                let written = self.to.write_all_at(part, place);
                written.map_err(at(format!("cannot unpack {}", self.shown)))?;
                self.written += part.len() as u64;
            }
            place += part.len() as u64;
        }
        let read = self.read.load(Ordering::Relaxed).min(self.given);
        let allowed = FREE_OF_RATIO_BYTES.saturating_add(read.saturating_mul(RATIO_MAX));
        if self.written > allowed {
            return Err(refused(
                format!(
                    "{} unpacks to more than {RATIO_MAX} times its size, which no disk does",
                    self.shown
                ),
                "if you trust it, unpack it yourself, and import what comes out",
            ));
        }
        if self.written - self.looked >= SPACE_EVERY_BYTES {
            self.looked = self.written;
            check_space(self.to, self.shown)?;
        }
        Ok(())
    }
}

/// Returns an error if little space is left where this file is, into which the disk of this name is written.
pub fn check_space(to: &File, shown: &str) -> Result<(), NodeError> {
    let disk = rustix::fs::fstatvfs(to).map_err(|error| NodeError::Io {
        what: "cannot look at the free space".into(),
        source: error.into(),
    })?;
    if disk.f_bavail < disk.f_blocks / SPACE_KEPT {
        return Err(refused(
            format!("too little space beside the node's state to unpack {shown}"),
            "make room there, or unpack it elsewhere, and import what comes out",
        ));
    }
    Ok(())
}

/// Fills the block as far as there is input; returns how many bytes that is.
fn read_block(from: &mut dyn Read, block: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < block.len() {
        match from.read(&mut block[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_ground::report::Report;
    use std::io::Write;

    fn packed(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn gzip(content: &mut dyn Read) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut reader = flate2::read::GzEncoder::new(content, flate2::Compression::fast());
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn unpacked(packing: Packing, bytes: &[u8]) -> (File, Result<(), NodeError>) {
        let (report, _events) = Report::new();
        let to = tempfile::tempfile().unwrap();
        let line = report.progress_line("unpack", "bytes");
        let given = bytes.len() as u64;
        let result = unpack(packing, &packed(bytes), "x", given, &to, &line);
        (to, result)
    }

    /// Takes the disk out of an archive with nothing else.
    fn taken(bytes: &[u8]) -> (File, Result<(), NodeError>) {
        let (report, _events) = Report::new();
        let (from, to) = (packed(bytes), tempfile::tempfile().unwrap());
        let line = report.progress_line("unpack", "bytes");
        let archive = Archive::open(&from, "x", bytes.len() as u64);
        let result = archive.and_then(|archive| archive.take(&archive.names()[0], &to, &line));
        (to, result)
    }

    #[test]
    fn zeros_take_no_space_and_nothing_else_grows_without_bound() {
        use std::os::unix::fs::MetadataExt;
        let zeros = gzip(&mut io::repeat(0).take(256 << 20));
        let (to, result) = unpacked(Packing::Gzip, &zeros);
        result.unwrap();
        let meta = to.metadata().unwrap();
        assert_eq!((meta.len(), meta.blocks()), (256 << 20, 0));

        // some 10,000 output bytes for each input byte
        let mut ones = zstd::stream::read::Encoder::new(io::repeat(1).take(256 << 20), 1).unwrap();
        let mut bytes = Vec::new();
        ones.read_to_end(&mut bytes).unwrap();
        let (to, result) = unpacked(Packing::Zstd, &bytes);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("more than 1000 times"), "{error}");
        assert!(to.metadata().unwrap().len() < 128 << 20);
    }

    #[test]
    fn holes_that_were_unpacked_allow_nothing() {
        use std::os::unix::fs::FileExt;
        // a frame that is skipped, all holes, and one that grows 10,000 times
        const SKIPPED: u32 = 256 << 20;
        let mut ones = zstd::stream::read::Encoder::new(io::repeat(1).take(256 << 20), 1).unwrap();
        let mut grows = Vec::new();
        ones.read_to_end(&mut grows).unwrap();
        let mut inner = packed(&0x184d_2a50_u32.to_le_bytes());
        inner.write_all(&SKIPPED.to_le_bytes()).unwrap();
        inner.write_all_at(&grows, 8 + u64::from(SKIPPED)).unwrap();
        let (report, _events) = Report::new();
        let line = report.progress_line("unpack", "bytes");
        let unpacked = |given| {
            let to = tempfile::tempfile().unwrap();
            unpack(Packing::Zstd, &inner, "x", given, &to, &line)
        };
        let error = unpacked(grows.len() as u64).unwrap_err().to_string();
        assert!(error.contains("more than 1000 times"), "{error}");
        unpacked(inner.metadata().unwrap().len()).unwrap();
    }

    /// An archive with one file of 1 MiB with holes, made by GNU tar.
    fn sparse(form: &str) -> (Vec<u8>, Vec<u8>) {
        use std::os::unix::fs::FileExt;
        let dir = tempfile::tempdir().unwrap();
        let disk = File::create(dir.path().join("disk.raw")).unwrap();
        for n in 0..40 {
            disk.write_all_at(&[n as u8 + 1; 700], n * 16384 + 300)
                .unwrap();
        }
        disk.set_len(1 << 20).unwrap();
        let made = std::process::Command::new("tar")
            .args(["--sparse", form, "-cC"])
            .arg(dir.path())
            .arg("disk.raw")
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        (
            made.stdout,
            std::fs::read(dir.path().join("disk.raw")).unwrap(),
        )
    }

    #[test]
    fn a_sparse_file_of_an_archive_is_unpacked_or_refused_with_the_way_out() {
        let (archive, disk) = sparse("--format=gnu");
        assert!(archive.len() < disk.len());
        let (mut to, result) = taken(&archive);
        result.unwrap();
        let mut found = Vec::new();
        to.rewind().unwrap();
        to.read_to_end(&mut found).unwrap();
        assert!(found == disk);
        let error = taken(&archive[..archive.len() / 2]).1;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("is cut off"), "{error}");
        let (archive, _) = sparse("--format=pax");
        let error = taken(&archive).1.unwrap_err().to_api();
        assert!(error.message.contains("disk.raw"), "{error}");
        assert!(error.fix.contains("tar -xf"), "{error}");
    }

    #[test]
    fn a_packed_file_that_is_cut_off_is_refused() {
        let whole: Vec<u8> = (0..1 << 20)
            .map(|n: u32| (n.wrapping_mul(n) >> 7) as u8)
            .collect();
        let gz = gzip(&mut &whole[..]);
        let zst = zstd::encode_all(&whole[..], 1).unwrap();
        for (packing, bytes) in [(Packing::Gzip, gz), (Packing::Zstd, zst)] {
            unpacked(packing, &bytes).1.unwrap();
            for keep in [bytes.len() / 3, bytes.len() - 1] {
                let error = unpacked(packing, &bytes[..keep]).1.unwrap_err();
                assert!(
                    error.to_string().contains("is cut off"),
                    "{packing:?}: {error}"
                );
            }
        }
    }
}
