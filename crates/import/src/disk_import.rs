//! Opens a path that a user gave as disk images that can be converted or read: without blocking, unpacked, put together, recognized,
//! and checked to be complete.

use crate::{
    appliance::{self, Disk},
    disk_content::{self, Content, Packing},
    disk_extent::{self, Facts},
    disk_file::{DISKS_MAX, length_of, not_alone, read_up_to},
    disk_foreign::Foreign,
    disk_format::{self, Format},
    disk_layout::{Layout, faulty},
    disk_vmdk,
    qemu_img::DiskImage,
    unpack::{Archive, unpack},
};
use floe_ground::{
    error::{NodeError, at, at_named, refused},
    report::Report,
};
use std::{
    collections::{HashMap, hash_map::Entry},
    fs::File,
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};
use tempfile::NamedTempFile;

/// How many layers of packing are undone: a compressed archive with a compressed disk has three.
const PACKINGS_MAX: usize = 4;
const TAKE_AS_RAW: &str = "if these are a disk's bytes all the same, import them with --format raw";

/// Creates an empty temporary file of the node's.
pub type Scratch<'a> = dyn Fn() -> Result<NamedTempFile, NodeError> + 'a;

/// Opens a regular file or a block device for reading. Returns an error for anything else; a FIFO does not block it.
pub fn open_input(path: &Path) -> Result<File, NodeError> {
    open_with(path, 0)
}

/// Does the same with more flags of `open`.
fn open_with(path: &Path, flags: i32) -> Result<File, NodeError> {
    let shown = path.display();
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags)
        .open(path);
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(floe_ground::error::not_found(
                format!("there is no file {shown}"),
                "check the path; the node opens it",
            ));
        }
        // the error that opening a socket gives
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            return Err(no_file(path, "a socket or a device without a driver"));
        }
        Err(error) => return Err(at_named(format!("cannot open {shown}"))(error)),
    };
    let kind = file
        .metadata()
        .map_err(at(format!("cannot look at {shown}")))?;
    let kind = kind.file_type();
    let what = if kind.is_file() || kind.is_block_device() {
        return Ok(file);
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe (FIFO)"
    } else if kind.is_char_device() {
        "a character device"
    } else {
        "no regular file"
    };
    Err(no_file(path, what))
}

fn no_file(path: &Path, what: &str) -> NodeError {
    refused(
        format!("{} is {what}", path.display()),
        "give a regular file or a block device",
    )
}

/// Opens a disk image as [`open_disks`] does, where only one disk can be meant.
pub fn open_disk(
    path: &Path,
    as_raw: bool,
    scratch: &Scratch<'_>,
    report: &mut Report,
) -> Result<DiskImage, NodeError> {
    let mut disks = open_disks(path, as_raw, scratch, report)?;
    match (disks.pop(), disks.len()) {
        (Some(disk), 0) => Ok(disk),
        (_, more) => Err(refused(
            format!(
                "{} holds {} disks, and one is wanted",
                path.display(),
                more + 1
            ),
            "take them out (tar -xf), and name the one that you want",
        )),
    }
}

/// Opens a disk image, unpacks it if it is packed, puts it together if it consists of several files, and checks that it is one and
/// complete. An appliance (OVA) may hold several disks, which are returned in their order. With `as_raw` its bytes are taken as the
/// disk's, whatever they look like.
pub fn open_disks(
    path: &Path,
    as_raw: bool,
    scratch: &Scratch<'_>,
    report: &mut Report,
) -> Result<Vec<DiskImage>, NodeError> {
    let image = DiskImage::new(open_input(path)?, path.display().to_string(), None);
    let given = length(&image)?;
    if as_raw {
        if given == 0 {
            return Err(refused(
                format!("{} is an empty file", image.shown),
                "check the path, or the download",
            ));
        }
        return Ok(vec![image]);
    }
    let mut opener = Opener {
        path,
        given,
        scratch,
        report,
    };
    opener.open(image, PACKINGS_MAX)
}

/// What an open file turned out to be.
enum Found {
    /// A disk of this format, and what is known of it.
    Disk(Format, Facts),
    /// A disk's bytes, as many as this, and then others.
    Longer(u64),
    /// The description of a disk that consists of other files.
    Split(String),
    Packed(Packing),
}

/// Opens what a user gave.
struct Opener<'a> {
    path: &'a Path,
    /// The length of the user's file, in bytes.
    given: u64,
    scratch: &'a Scratch<'a>,
    report: &'a mut Report,
}

impl Opener<'_> {
    /// Opens the disks in a file that may be packed so many times.
    fn open(&mut self, mut image: DiskImage, packings: usize) -> Result<Vec<DiskImage>, NodeError> {
        for left in (0..packings).rev() {
            let packing = match examine(&image, self.report)? {
                Found::Packed(packing) => packing,
                other => return Ok(vec![self.ready(image, other)?]),
            };
            if packing == Packing::Tar {
                return self.open_archive(&image, left);
            }
            image = self.unpacked(image, packing)?;
        }
        Err(refused(
            format!("{} is packed more than {PACKINGS_MAX} times", image.shown),
            "unpack it yourself, and import what comes out",
        ))
    }

    /// Makes a disk that was recognized into one that can be converted or read.
    fn ready(&mut self, mut image: DiskImage, found: Found) -> Result<DiskImage, NodeError> {
        match found {
            Found::Disk(Format::Vhdx, facts)
                if facts.sector.is_some_and(|sector| sector != 512) =>
            {
                let laid_out = self.lay_out(&image.shown, facts.bytes, &mut |layout| {
                    let mapped =
                        layout.copy_mapped(Format::Vhdx, &image.file, &image.shown, 0, facts.bytes);
                    mapped.map(drop)
                })?;
                Ok(DiskImage {
                    bytes: Some(facts.bytes),
                    sector: facts.sector,
                    ..laid_out
                })
            }
            Found::Disk(format, facts) => {
                image.format = format;
                image.bytes = (format != Format::Raw).then_some(facts.bytes);
                Ok(image)
            }
            Found::Longer(bytes) => self.lay_out(&image.shown, bytes, &mut |layout| {
                layout.copy(&image.file, 0, bytes, 0)
            }),
            Found::Split(text) => {
                let dir = self.path.parent().unwrap_or(Path::new("/")).to_owned();
                let is_given = image.unpacked.is_none();
                let shown = image.shown.clone();
                self.join(&text, &shown, &mut |name| match is_given {
                    true => beside(&dir, name, &shown),
                    false => Err(missing_part(&shown, name)),
                })
            }
            Found::Packed(_) => Err(refused(
                format!("{} is packed once more", image.shown),
                "unpack it yourself, and import what comes out",
            )),
        }
    }

    /// Opens the disks in an archive.
    fn open_archive(
        &mut self,
        image: &DiskImage,
        packings: usize,
    ) -> Result<Vec<DiskImage>, NodeError> {
        let archive = Archive::open(&image.file, &image.shown, self.given)?;
        let disks = appliance::disks(&archive)?;
        for note in disks.notes {
            self.report.note(note);
        }
        let mut opened = Vec::new();
        for disk in disks.disks {
            match disk {
                Disk::Whole(name) => {
                    self.report
                        .note(format!("the disk in {} is {name}", image.shown));
                    let whole = self.take(&archive, &name)?;
                    opened.extend(self.open(whole, packings)?);
                }
                Disk::Split { name, descriptor } => {
                    self.report
                        .note(format!("the disk in {} is {name}", image.shown));
                    opened.push(self.join_inside(&archive, &name, &descriptor)?);
                }
            }
            // each disk may be an archive with as many
            if opened.len() > DISKS_MAX {
                return Err(refused(
                    format!(
                        "{} holds archives with more than {DISKS_MAX} disks, and an image has at most that many",
                        image.shown
                    ),
                    "take those that you want out of it (tar -xf), and import them",
                ));
            }
        }
        Ok(opened)
    }

    /// Puts together a disk whose files are all in an archive.
    fn join_inside(
        &mut self,
        archive: &Archive<'_>,
        name: &str,
        descriptor: &str,
    ) -> Result<DiskImage, NodeError> {
        let shown = format!("{name} in {}", archive.shown());
        let dir = name
            .rsplit_once('/')
            .map_or(String::new(), |(dir, _)| format!("{dir}/"));
        let extents = disk_vmdk::parse(descriptor).map_err(|why| not_alone(&shown, &why))?;
        let mut parts = HashMap::new();
        for part in extents.iter().filter_map(|extent| extent.form.name()) {
            let inside = format!("{dir}{part}");
            if !archive.holds(&inside) {
                return Err(missing_part(&shown, part));
            }
            if let Entry::Vacant(place) = parts.entry(part) {
                let DiskImage { unpacked, .. } = self.take(archive, &inside)?;
                // closed until it is its turn: there may be more of them than the node may have files open
                place.insert(unpacked.map(NamedTempFile::into_temp_path));
            }
        }
        self.join(descriptor, &shown, &mut |wanted| {
            let part = parts.get(wanted).and_then(Option::as_ref);
            let part = part.ok_or_else(|| missing_part(&shown, wanted))?;
            File::open(part).map_err(at(format!("cannot open {}", part.display())))
        })
    }

    /// Unpacks what is not an archive.
    fn unpacked(&mut self, image: DiskImage, packing: Packing) -> Result<DiskImage, NodeError> {
        let to = (self.scratch)()?;
        let line = self.report.progress_line("unpack", "bytes");
        let shown = image.shown;
        unpack(
            packing,
            &image.file,
            &shown,
            self.given,
            to.as_file(),
            &line,
        )?;
        self.report.stage(&format!("unpack {}", packing.name()))?;
        own(to, format!("what is packed in {shown}"))
    }

    /// Takes a file out of an archive.
    fn take(&mut self, archive: &Archive<'_>, name: &str) -> Result<DiskImage, NodeError> {
        let to = (self.scratch)()?;
        let line = self.report.progress_line("unpack", "bytes");
        archive.take(name, to.as_file(), &line)?;
        self.report.stage("unpack tar")?;
        own(to, format!("{name} in {}", archive.shown()))
    }

    /// Lays a disk of so many bytes out in a file of the node's.
    fn lay_out(
        &mut self,
        shown: &str,
        bytes: u64,
        fill: &mut dyn FnMut(&mut Layout<'_>) -> Result<(), NodeError>,
    ) -> Result<DiskImage, NodeError> {
        let to = (self.scratch)()?;
        let line = self.report.progress_line("lay out", "bytes");
        fill(&mut Layout::new(to.as_file(), bytes, shown, &line)?)?;
        self.report.stage("lay out")?;
        Ok(DiskImage {
            bytes: Some(bytes),
            ..own(to, shown.to_owned())?
        })
    }

    /// Puts a disk together from the files that its description names; `open` opens the one of a name.
    fn join(
        &mut self,
        descriptor: &str,
        shown: &str,
        open: &mut dyn FnMut(&str) -> Result<File, NodeError>,
    ) -> Result<DiskImage, NodeError> {
        let extents = disk_vmdk::parse(descriptor).map_err(|why| not_alone(shown, &why))?;
        let bytes = extents.iter().map(|extent| extent.bytes).sum();
        self.lay_out(shown, bytes, &mut |layout| {
            let mut place = 0;
            for extent in &extents {
                if let Some(name) = extent.form.name() {
                    layout.copy_extent(extent, &open(name)?, place)?;
                }
                place += extent.bytes;
            }
            Ok(())
        })
    }
}

/// Returns a file of the node's own as a disk of which nothing is known yet.
fn own(to: NamedTempFile, shown: String) -> Result<DiskImage, NodeError> {
    let file = to.as_file().try_clone();
    let file = file.map_err(at("cannot share a file"))?;
    Ok(DiskImage::new(file, shown, Some(to)))
}

/// Opens a file of a disk whose description is in this directory. A stranger wrote its name, so no symbolic link is followed.
fn beside(dir: &Path, name: &str, shown: &str) -> Result<File, NodeError> {
    let path = dir.join(name);
    match std::fs::symlink_metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(missing_part(shown, name));
        }
        Err(error) => {
            return Err(at_named(format!("cannot look at {}", path.display()))(
                error,
            ));
        }
        Ok(meta) if meta.is_file() => {}
        Ok(_) => {
            return Err(no_file(
                &path,
                "a symbolic link or no file, and part of a disk that somebody else may have described",
            ));
        }
    }
    open_with(&path, libc::O_NOFOLLOW)
}

fn missing_part(shown: &str, name: &str) -> NodeError {
    refused(
        format!("{shown} needs the extent {name}, which is not beside it"),
        "put all files of the disk into one directory and import the one that describes them, or a tar archive of them all",
    )
}

fn examine(image: &DiskImage, report: &Report) -> Result<Found, NodeError> {
    let DiskImage { file, shown, .. } = image;
    let read = |offset: u64, buffer: &mut [u8]| read_up_to(file, offset, buffer);
    let unreadable = || at(format!("cannot read {shown}"));
    let len = length(image)?;
    if let Some(text) = disk_format::descriptor(&read).map_err(unreadable())? {
        return Ok(Found::Split(text));
    }
    let format = disk_format::examine(&read)
        .map_err(unreadable())?
        .map_err(|why| not_alone(shown, &why))?;
    if format == Format::Raw {
        match disk_content::look(&read, len).map_err(unreadable())? {
            Content::Disk(_) => {}
            Content::FixedVhd { bytes } => return Ok(Found::Longer(bytes)),
            Content::Packed(packing) => return Ok(Found::Packed(packing)),
            Content::Foreign(foreign) => return Err(refuse_foreign(shown, foreign)),
            Content::Truncated { by, needs } => {
                return Err(refused(
                    format!(
                        "{shown} is cut off: it has {len} bytes, and its {by} tells of {needs}"
                    ),
                    format!("fetch it again, and compare its checksum; {TAKE_AS_RAW}"),
                ));
            }
            Content::Unknown => {
                let what = "nothing that looks like a disk: no partition table, no file system, no header of a known format";
                return Err(refused(
                    format!("{shown} is no disk: it is {what}"),
                    TAKE_AS_RAW,
                ));
            }
        }
    }
    let cancel = report.cancel();
    match disk_extent::check(format, &read, len, &|| !cancel.is_cancelled()) {
        Ok(facts) => Ok(Found::Disk(format, facts)),
        Err(fault) => Err(faulty(shown, format, len, fault)),
    }
}

/// Holds the raw disk that came out of an image against the length that the image's header tells, and against the ends that the disk's
/// own partition table and file systems state. What is missing there would be missed only much later.
pub fn hold(file: &File, shown: &str, header: Option<u64>) -> Result<(), NodeError> {
    let read = |offset: u64, buffer: &mut [u8]| read_up_to(file, offset, buffer);
    let len = length_of(file, shown)?;
    let of_header = header
        .filter(|bytes| *bytes > len)
        .map(|bytes| ("header", bytes));
    let of_itself =
        disk_content::missing(&read, len).map_err(at(format!("cannot read {shown}")))?;
    match of_header.or(of_itself) {
        None => Ok(()),
        Some((by, needs)) => Err(refused(
            format!(
                "the disk in {shown} is cut off: it has {len} bytes, and its {by} tells of {needs}"
            ),
            "make the image anew at its source. If it is meant so: qemu-img convert -O raw IN OUT, and import that with --format raw",
        )),
    }
}

fn length(image: &DiskImage) -> Result<u64, NodeError> {
    length_of(&image.file, &image.shown)
}

fn refuse_foreign(shown: &str, foreign: Foreign) -> NodeError {
    let Foreign { what, fix } = foreign;
    match what.starts_with("encrypted ") {
        true => refused(format!("{shown} is {what}"), fix),
        false => refused(
            format!("{shown} is no disk that floe reads: it is {what}"),
            fix,
        ),
    }
}

/// Returns whether a file is a disc: ISO 9660 or UDF.
pub fn is_disc(file: &File) -> std::io::Result<bool> {
    let mut magic = [0; 5];
    let got = read_up_to(file, 0x8001, &mut magic)?;
    Ok(got == magic.len() && [b"CD001", b"BEA01"].contains(&&magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive with these disks, and a description that names them all.
    fn appliance(disks: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut description = "<Envelope>".to_owned();
        for (number, (name, _)) in disks.iter().enumerate() {
            description += &format!("<File id='f{number}' href='{name}'/>");
            description += &format!("<Disk diskId='d{number}' fileRef='f{number}'/>");
        }
        let mut builder = tar::Builder::new(Vec::new());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, name, bytes).unwrap();
        };
        add("a.ovf", description.as_bytes());
        disks.iter().for_each(|(name, bytes)| add(name, bytes));
        builder.into_inner().unwrap()
    }

    #[test]
    fn archives_in_an_archive_have_no_more_disks_than_an_image() {
        let dir = tempfile::tempdir().unwrap();
        let inner = |disks: usize| {
            let disks = (0..disks).map(|n| (format!("{n}.raw"), vec![0u8; 4096]));
            appliance(&disks.collect::<Vec<_>>())
        };
        let opened = |each: usize| {
            let archives = ["a.raw", "b.raw"].map(|name| (name.to_owned(), inner(each)));
            let path = dir.path().join("whole.ova");
            std::fs::write(&path, appliance(&archives)).unwrap();
            let (mut report, _events) = Report::new();
            let scratch = || NamedTempFile::new_in(dir.path()).map_err(at("cannot make a file"));
            let disks = open_disks(&path, false, &scratch, &mut report);
            disks.map(|disks| disks.len())
        };
        assert_eq!(opened(DISKS_MAX / 2).unwrap(), DISKS_MAX);
        let error = opened(DISKS_MAX / 2 + 1).unwrap_err().to_string();
        assert!(error.contains("more than 16 disks"), "{error}");
    }
}
