//! Makes the stream of a file or directory.
//!
//! What is sent may belong to somebody else, who can put a link in the place of any part of it at any moment. The path that a user
//! names is opened once; everything below it is reached from descriptors, one name at a time and through no symbolic link.

use super::pieces::Writer;
use super::{BUFFER_BYTES, Form};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Deepest directory below the one that is sent; deeper ones are refused.
pub(super) const DEPTH_MAX: usize = 200;

/// How what is sent is opened: a pipe in its place would be waited for.
const OPENED: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Sends a file or directory. `skipped` is told of each thing in a directory that is neither file nor directory nor symbolic
/// link, which is not sent.
pub fn send(
    path: &Path,
    form: Form,
    out: impl Write,
    skipped: &mut dyn FnMut(&Path),
) -> io::Result<()> {
    let out = Writer::new(out);
    let done = match form {
        Form::Bytes => bytes(path, out),
        Form::Archive => archive(path, out, skipped),
    };
    done.map_err(|error| at(path, error))
}

/// Names the file in an error of the kernel; others name one already.
fn at(path: &Path, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(_) => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
        None => error,
    }
}

fn bytes(path: &Path, mut out: Writer<impl Write>) -> io::Result<()> {
    let mut file = File::open(path)?;
    if file.metadata()?.is_dir() {
        let why = format!(
            "{} is a directory, which has no bytes of its own",
            path.display()
        );
        return Err(io::Error::other(why));
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return out.finish(),
            count => out.write_all(&buffer[..count])?,
        }
    }
}

fn archive(path: &Path, out: Writer<impl Write>, skipped: &mut dyn FnMut(&Path)) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    let neither = || {
        let why = format!("{} is neither file nor directory", path.display());
        io::Error::other(why)
    };
    // a device is not even opened
    let found = fs::metadata(path)?;
    if !found.is_file() && !found.is_dir() {
        return Err(neither());
    }
    let opened = rustix::fs::open(path, OPENED, Mode::empty())?;
    let what = rustix::fs::fstat(&opened)?;
    match FileType::from_raw_mode(what.st_mode) {
        FileType::RegularFile => file(&mut archive, opened, &what, Path::new("file"))?,
        FileType::Directory => {
            archive.append(
                &header(&what, tar::EntryType::Directory, Path::new("."))?,
                io::empty(),
            )?;
            below(&mut archive, &opened, path, Path::new(""), 1, skipped)?;
        }
        _ => return Err(neither()),
    }
    archive.into_inner()?.finish()
}

fn header(what: &Stat, kind: tar::EntryType, name: &Path) -> io::Result<tar::Header> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(what.st_mode & 0o7777);
    header.set_mtime(u64::try_from(what.st_mtime).unwrap_or(0));
    header.set_size(0);
    if name == Path::new(".") {
        header.set_path(name)?;
    }
    header.set_cksum();
    Ok(header)
}

/// Sends what is in a directory. Its path is for messages, and its name is what it is called in the archive.
fn below<W: Write>(
    archive: &mut tar::Builder<W>,
    directory: &OwnedFd,
    path: &Path,
    name: &Path,
    depth: usize,
    skipped: &mut dyn FnMut(&Path),
) -> io::Result<()> {
    if depth > DEPTH_MAX {
        let why = format!("{} is too deep", path.display());
        return Err(io::Error::other(why));
    }
    let entries = Dir::read_from(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(|error| at(path, error.into()))?;
    let names = entries.iter().map(|entry| entry.file_name());
    let mut names: Vec<&CStr> = names.filter(|n| *n != c"." && *n != c"..").collect();
    names.sort_unstable();
    for entry in names {
        let part = OsStr::from_bytes(entry.to_bytes());
        let (path, name) = (path.join(part), name.join(part));
        let Some((what, content)) = look(directory, entry, &path)? else {
            continue;
        };
        match content {
            Content::File(opened) => file(archive, opened, &what, &name)?,
            Content::Directory(opened) => {
                let mut header = header(&what, tar::EntryType::Directory, &name)?;
                archive.append_data(&mut header, &name, io::empty())?;
                below(archive, &opened, &path, &name, depth + 1, skipped)?;
            }
            Content::Link(to) => {
                let mut header = header(&what, tar::EntryType::Symlink, &name)?;
                archive.append_link(&mut header, &name, OsStr::from_bytes(to.to_bytes()))?;
            }
            Content::Other => skipped(&path),
        }
    }
    Ok(())
}

/// What a name in a directory leads to.
enum Content {
    File(OwnedFd),
    Directory(OwnedFd),
    Link(std::ffi::CString),
    Other,
}

/// Looks at a name and opens what it is, through no link; `None` if it was removed meanwhile. Its path is for messages.
fn look(directory: &OwnedFd, name: &CStr, path: &Path) -> io::Result<Option<(Stat, Content)>> {
    let open = |more: OFlags| -> Result<(OwnedFd, Stat), Errno> {
        let flags = OPENED | OFlags::NOFOLLOW | more;
        let opened = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        let what = rustix::fs::fstat(&opened)?;
        Ok((opened, what))
    };
    let looked = || -> Result<(FileType, Stat, Content), Errno> {
        let what = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(what.st_mode);
        Ok(match kind {
            FileType::RegularFile => {
                let (opened, what) = open(OFlags::empty())?;
                (kind, what, Content::File(opened))
            }
            FileType::Directory => {
                let (opened, what) = open(OFlags::DIRECTORY)?;
                (kind, what, Content::Directory(opened))
            }
            FileType::Symlink => {
                let to = rustix::fs::readlinkat(directory, name, Vec::new())?;
                (kind, what, Content::Link(to))
            }
            _ => (kind, what, Content::Other),
        })
    };
    let swapped = || {
        let why = format!(
            "{} became something else while it was copied",
            path.display()
        );
        Err(io::Error::other(why))
    };
    match looked() {
        Ok((kind, what, _)) if FileType::from_raw_mode(what.st_mode) != kind => swapped(),
        Ok((_, what, content)) => Ok(Some((what, content))),
        Err(Errno::NOENT) => Ok(None),
        // a link in the place of a file or directory, something else in that of a directory, or of a link
        Err(Errno::LOOP | Errno::NOTDIR | Errno::INVAL) => swapped(),
        Err(error) => Err(at(path, error.into())),
    }
}

fn file<W: Write>(
    archive: &mut tar::Builder<W>,
    opened: OwnedFd,
    what: &Stat,
    name: &Path,
) -> io::Result<()> {
    let size = u64::try_from(what.st_size).unwrap_or(0);
    let mut header = header(what, tar::EntryType::Regular, name)?;
    header.set_size(size);
    // the length was said: one that shrinks is filled up, what is appended meanwhile is left out
    let bytes = BufReader::with_capacity(BUFFER_BYTES, File::from(opened));
    let bytes = bytes.chain(io::repeat(0)).take(size);
    archive.append_data(&mut header, name, bytes)
}
