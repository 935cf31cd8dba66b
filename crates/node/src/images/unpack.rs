//! Unpacks disk images: gzip, xz, Zstandard, and a disk from a tar archive (an OVA is one).
//!
//! The output goes to a file beside the node's state, with zeros as holes. It is bounded in its length, in the disk space it
//! takes for each byte of input, and by the space that is left. The caller owns the file and deletes it.

use crate::{
    error::{NodeError, at, refused},
    images::{
        archive::{self, Form, Member},
        disk_content::Packing,
        qemu_img::read_up_to,
    },
    report::ProgressLine,
};
use std::{
    fs::File,
    io::{self, BufReader, Read, Seek},
    os::unix::fs::FileExt,
    path::Path,
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
/// How many of an archive's files an error names at most.
const NAMES_SHOWN: usize = 8;
/// File name endings of disk images.
const DISK_ENDINGS: [&str; 10] = [
    "vmdk", "qcow2", "qcow", "vdi", "vhd", "vhdx", "img", "raw", "iso", "bin",
];
/// Endings that may follow those.
const PACKED_ENDINGS: [&str; 3] = [".gz", ".xz", ".zst"];

/// Unpacks `from`, which messages call `shown`, into `to`. `given` is the length of the file that the user gave, which may be packed
/// more than once. Returns the name of what was taken out of an archive.
pub fn unpack(
    packing: Packing,
    from: &File,
    shown: &str,
    given: u64,
    to: &File,
    progress: &ProgressLine,
) -> Result<Option<String>, NodeError> {
    let read = AtomicU64::new(0);
    let mut from = from.try_clone().map_err(at("cannot share a file"))?;
    from.rewind().map_err(at(format!("cannot read {shown}")))?;
    let total = from.metadata().map_or(0, |meta| meta.len());
    let mut output = Output {
        to,
        shown,
        read: &read,
        given,
        total,
        progress,
        written: 0,
        looked: 0,
        block: vec![0; BLOCK_BYTES],
    };
    let input = Counted(from, &read);
    let packed = |from| BufReader::with_capacity(BLOCK_BYTES, from);
    match packing {
        Packing::Tar => return output.take_disk(input).map(Some),
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
    Ok(None)
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

impl Output<'_> {
    /// Writes all that there is.
    fn fill(&mut self, from: &mut dyn Read) -> Result<(), NodeError> {
        let len = self.copy(from, 0)?;
        self.end(len)
    }

    /// Writes the disk that is in an archive. Returns its name there.
    fn take_disk(&mut self, mut archive: Counted<'_>) -> Result<String, NodeError> {
        let wrong = |error| broken(self.shown, &error);
        let from = archive.0.try_clone().map_err(wrong)?;
        let read = |offset: u64, buffer: &mut [u8]| read_up_to(&from, offset, buffer);
        let found = archive::members(&read, self.total).map_err(wrong)?;
        let disk = choose(found, self.shown)?;
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
        let walked = archive::parts(&read, self.total, &disk, &mut |offset, length| {
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
        self.end(bytes)?;
        Ok(disk.name)
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

    /// Writes what there is to this offset and those that follow it. Returns the offset behind it.
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
            self.check_space()?;
        }
        Ok(())
    }

    fn check_space(&self) -> Result<(), NodeError> {
        let disk = rustix::fs::fstatvfs(self.to).map_err(|error| NodeError::Io {
            what: "cannot look at the free space".into(),
            source: error.into(),
        })?;
        if disk.f_bavail < disk.f_blocks / SPACE_KEPT {
            return Err(refused(
                format!(
                    "too little space beside the node's state to unpack {}",
                    self.shown
                ),
                "make room there, or unpack it elsewhere, and import what comes out",
            ));
        }
        Ok(())
    }
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

/// Returns the one disk in an archive that holds these files.
fn choose(members: Vec<Member>, shown: &str) -> Result<Member, NodeError> {
    let names: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
    let (discs, disks): (Vec<_>, Vec<_>) = names
        .iter()
        .filter(|name| is_disk(name))
        .partition(|name| name.to_ascii_lowercase().ends_with(".iso"));
    // an ISO in an appliance was in its drive; the appliance does not start from it
    let found = if disks.is_empty() { discs } else { disks };
    match &found[..] {
        [one] => {
            let found = members.into_iter().find(|member| member.name == **one);
            found.ok_or_else(|| broken(shown, &io::ErrorKind::NotFound.into()))
        }
        [] => Err(refused(
            format!(
                "{shown} is an archive without a disk image: it holds {}",
                list(&names)
            ),
            "take what you want to import out of it: tar -xf",
        )),
        many => Err(refused(
            format!("{shown} holds {} disks: {}", many.len(), list(many)),
            "take them out (tar -xf), and import those that you want, the first one first",
        )),
    }
}

fn is_disk(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let file = Path::new(&name)
        .file_name()
        .map(|file| file.to_string_lossy());
    let file = file.unwrap_or_default();
    let packed = PACKED_ENDINGS
        .iter()
        .find_map(|ending| file.strip_suffix(ending));
    let ending = packed.unwrap_or(&file).rsplit_once('.');
    !file.starts_with('.') && ending.is_some_and(|(_, ending)| DISK_ENDINGS.contains(&ending))
}

fn list(names: &[impl AsRef<str>]) -> String {
    let shown = names.iter().take(NAMES_SHOWN).map(AsRef::as_ref);
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_SHOWN {
        text += ", ...";
    }
    if names.is_empty() {
        text += "nothing";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;
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

    fn unpacked(packing: Packing, bytes: &[u8]) -> (File, Result<Option<String>, NodeError>) {
        let (report, _events) = Report::new();
        let to = tempfile::tempfile().unwrap();
        let line = report.progress_line("unpack", "bytes");
        let given = bytes.len() as u64;
        let result = unpack(packing, &packed(bytes), "x", given, &to, &line);
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
        let (mut to, result) = unpacked(Packing::Tar, &archive);
        assert_eq!(result.unwrap().as_deref(), Some("disk.raw"));
        let mut found = Vec::new();
        to.rewind().unwrap();
        to.read_to_end(&mut found).unwrap();
        assert!(found == disk);
        let error = unpacked(Packing::Tar, &archive[..archive.len() / 2]).1;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("is cut off"), "{error}");
        let (archive, _) = sparse("--format=pax");
        let error = unpacked(Packing::Tar, &archive).1.unwrap_err().to_api();
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

    #[test]
    fn one_disk_of_an_archive_is_taken_and_several_are_named() {
        let archive = |names: &[&str]| {
            let mut builder = tar::Builder::new(Vec::new());
            for name in names {
                let mut header = tar::Header::new_gnu();
                header.set_size(name.len() as u64);
                builder
                    .append_data(&mut header, name, name.as_bytes())
                    .unwrap();
            }
            builder.into_inner().unwrap()
        };
        let one = archive(&["a.ovf", "a.mf", "a-disk1.vmdk", "tools.iso"]);
        let (mut to, result) = unpacked(Packing::Tar, &one);
        assert_eq!(result.unwrap().as_deref(), Some("a-disk1.vmdk"));
        let mut text = String::new();
        to.rewind().unwrap();
        to.read_to_string(&mut text).unwrap();
        assert_eq!(text, "a-disk1.vmdk");
        let error = unpacked(Packing::Tar, &one[..1536 + 100]).1.unwrap_err();
        assert!(error.to_string().contains("is cut off"), "{error}");
        let two = archive(&["a.ovf", "a-disk1.vmdk", "a-disk2.vmdk"]);
        let error = unpacked(Packing::Tar, &two).1.unwrap_err().to_string();
        assert!(
            error.contains("2 disks: a-disk1.vmdk, a-disk2.vmdk"),
            "{error}"
        );
        let none = archive(&["readme.txt"]);
        let error = unpacked(Packing::Tar, &none).1.unwrap_err().to_string();
        assert!(error.contains("it holds readme.txt"), "{error}");
    }
}
