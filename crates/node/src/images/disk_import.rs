//! Opens a path that a user gave as a disk image that can be converted or read: without blocking, unpacked, recognized, and
//! checked to be complete.

use crate::{
    error::{NodeError, at, at_named, refused},
    images::{
        disk_content::{self, Content, Packing},
        disk_extent::{self, Fault},
        disk_format::{self, Format, Refused},
        qemu_img::{DiskImage, read_up_to},
        unpack::unpack,
    },
    report::Report,
};
use std::{
    fs::File,
    io::{Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};
use tempfile::NamedTempFile;

/// How many layers of packing are undone: a compressed archive with a compressed disk has three.
const PACKINGS_MAX: usize = 4;
const TAKE_AS_RAW: &str = "if these are a disk's bytes all the same, import them with --format raw";

/// Opens a regular file or a block device for reading. Returns an error for anything else; a FIFO does not block it.
pub fn open_input(path: &Path) -> Result<File, NodeError> {
    let shown = path.display();
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(crate::error::not_found(
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

/// Opens a disk image, unpacks it if it is packed, and checks that it is one and complete. With `as_raw` its bytes are taken
/// as the disk's, whatever they look like. `scratch` creates an empty temporary file of the node's.
pub fn open_disk(
    path: &Path,
    as_raw: bool,
    scratch: &dyn Fn() -> Result<NamedTempFile, NodeError>,
    report: &mut Report,
) -> Result<DiskImage, NodeError> {
    let mut image = DiskImage {
        file: open_input(path)?,
        format: Format::Raw,
        shown: path.display().to_string(),
        unpacked: None,
    };
    if as_raw {
        if length(&image)? == 0 {
            return Err(foreign(
                &image.shown,
                "an empty file",
                "check the path, or the download",
            ));
        }
        return Ok(image);
    }
    let given = length(&image)?;
    for _ in 0..PACKINGS_MAX {
        match examine(&image, report)? {
            Found::Disk(format) => {
                image.format = format;
                return Ok(image);
            }
            Found::Packed(packing) => image = unpacked(image, packing, given, scratch, report)?,
        }
    }
    Err(refused(
        format!("{} is packed more than {PACKINGS_MAX} times", image.shown),
        "unpack it yourself, and import what comes out",
    ))
}

/// What an open file turned out to be.
enum Found {
    Disk(Format),
    Packed(Packing),
}

fn examine(image: &DiskImage, report: &Report) -> Result<Found, NodeError> {
    let DiskImage { file, shown, .. } = image;
    let read = |offset: u64, buffer: &mut [u8]| read_up_to(file, offset, buffer);
    let unreadable = || at(format!("cannot read {shown}"));
    let len = length(image)?;
    let mut format = disk_format::examine(&read)
        .map_err(unreadable())?
        .map_err(|why| not_alone(shown, &why))?;
    if format == Format::Raw {
        match disk_content::look(&read, len).map_err(unreadable())? {
            Content::Disk(_) => {}
            Content::FixedVhd => format = Format::Vpc,
            Content::Packed(packing) => return Ok(Found::Packed(packing)),
            Content::Foreign { what, fix } => return Err(foreign(shown, what, fix)),
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
                return Err(foreign(shown, what, TAKE_AS_RAW));
            }
        }
    }
    let cancel = report.cancel();
    match disk_extent::check(format, &read, len, &|| !cancel.is_cancelled()) {
        Ok(()) => Ok(Found::Disk(format)),
        Err(Fault::Cancelled) => Err(NodeError::Cancelled),
        Err(Fault::Io(source)) => Err(unreadable()(source)),
        Err(Fault::Truncated { what, needs }) => Err(refused(
            format!(
                "{shown} is cut off: the file has {len} bytes, and {what} ends at {needs} ({})",
                format.name()
            ),
            "fetch it again, and compare its checksum",
        )),
        Err(Fault::Damaged(what)) => Err(not_alone(shown, &Refused::Damaged(what))),
    }
}

fn unpacked(
    image: DiskImage,
    packing: Packing,
    given: u64,
    scratch: &dyn Fn() -> Result<NamedTempFile, NodeError>,
    report: &mut Report,
) -> Result<DiskImage, NodeError> {
    let to = scratch()?;
    let line = report.progress_line("unpack", "bytes");
    let shown = image.shown;
    let name = unpack(packing, &image.file, &shown, given, to.as_file(), &line)?;
    if let Some(name) = &name {
        report.note(format!("the disk in {shown} is {name}"));
    }
    report.stage(&format!("unpack {}", packing.name()))?;
    Ok(DiskImage {
        file: to
            .as_file()
            .try_clone()
            .map_err(at("cannot share a file"))?,
        format: Format::Raw,
        shown: match name {
            Some(name) => format!("{name} in {shown}"),
            None => format!("what is packed in {shown}"),
        },
        unpacked: Some(to),
    })
}

fn length(image: &DiskImage) -> Result<u64, NodeError> {
    // a block device's metadata has no length
    let end = (&image.file).seek(SeekFrom::End(0));
    end.map_err(at(format!("cannot find the size of {}", image.shown)))
}

fn foreign(shown: &str, what: &str, fix: &str) -> NodeError {
    refused(format!("{shown} is no disk: it is {what}"), fix)
}

fn not_alone(shown: &str, why: &Refused) -> NodeError {
    match why {
        Refused::Needs { what, name } => refused(
            format!("{shown} needs the {what} {name}"),
            "make it stand alone first: qemu-img convert -O qcow2 IN OUT",
        ),
        Refused::Damaged(what) => refused(
            format!("{shown} can't be read: {what}"),
            "check the file with `qemu-img check`",
        ),
    }
}

/// Returns whether a file is a disc: ISO 9660 or UDF.
pub fn is_disc(file: &File) -> std::io::Result<bool> {
    let mut magic = [0; 5];
    let got = read_up_to(file, 0x8001, &mut magic)?;
    Ok(got == magic.len() && [b"CD001", b"BEA01"].contains(&&magic))
}
