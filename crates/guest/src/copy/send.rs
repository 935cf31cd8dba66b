//! Makes the stream of a file or directory.

use super::pieces::Writer;
use super::{BUFFER_BYTES, Form};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, Metadata};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Deepest directory below the one that is sent; deeper ones are refused.
pub(super) const DEPTH_MAX: usize = 200;

/// Sends a file or directory. `skipped` is told of each thing in a directory that is neither file nor directory nor symbolic
/// link, which is not sent.
pub fn send(
    path: &Path,
    form: Form,
    out: impl Write,
    skipped: &mut dyn FnMut(&Path),
) -> io::Result<()> {
    let out = Writer::new(out);
    let what = fs::metadata(path).map_err(|error| at(path, error))?;
    let done = match form {
        Form::Bytes if what.is_dir() => Err(io::Error::other(format!(
            "{} is a directory, which has no bytes of its own",
            path.display()
        ))),
        Form::Bytes => bytes(path, out),
        Form::Archive => archive(path, &what, out, skipped),
    };
    done.map_err(|error| at(path, error))
}

/// Names the file in an error, unless that names one already.
fn at(path: &Path, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(_) => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
        None => error,
    }
}

fn bytes(path: &Path, mut out: Writer<impl Write>) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return out.finish(),
            count => out.write_all(&buffer[..count])?,
        }
    }
}

fn archive(
    path: &Path,
    what: &Metadata,
    out: Writer<impl Write>,
    skipped: &mut dyn FnMut(&Path),
) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    match (what.is_file(), what.is_dir()) {
        (true, _) => file(&mut archive, path, Path::new("file"))?,
        (_, true) => {
            archive.append(
                &header(what, tar::EntryType::Directory, Path::new("."))?,
                io::empty(),
            )?;
            below(&mut archive, path, Path::new(""), 1, skipped)?;
        }
        _ => {
            let why = format!("{} is neither file nor directory", path.display());
            return Err(io::Error::other(why));
        }
    }
    archive.into_inner()?.finish()
}

fn header(what: &Metadata, kind: tar::EntryType, name: &Path) -> io::Result<tar::Header> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(what.mode() & 0o7777);
    header.set_mtime(u64::try_from(what.mtime()).unwrap_or(0));
    header.set_size(0);
    if name == Path::new(".") {
        header.set_path(name)?;
    }
    header.set_cksum();
    Ok(header)
}

fn below<W: Write>(
    archive: &mut tar::Builder<W>,
    directory: &Path,
    name: &Path,
    depth: usize,
    skipped: &mut dyn FnMut(&Path),
) -> io::Result<()> {
    if depth > DEPTH_MAX {
        let why = format!("{} is too deep", directory.display());
        return Err(io::Error::other(why));
    }
    let mut entries: Vec<_> = fs::read_dir(directory)
        .and_then(Iterator::collect)
        .map_err(|error: io::Error| at(directory, error))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        let what = match fs::symlink_metadata(&path) {
            Ok(what) => what,
            // it was removed meanwhile
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(at(&path, error)),
        };
        let kind = what.file_type();
        if kind.is_file() {
            file(archive, &path, &name)?;
        } else if kind.is_dir() {
            let mut header = header(&what, tar::EntryType::Directory, &name)?;
            archive.append_data(&mut header, &name, io::empty())?;
            below(archive, &path, &name, depth + 1, skipped)?;
        } else if kind.is_symlink() {
            let to = fs::read_link(&path).map_err(|error| at(&path, error))?;
            let mut header = header(&what, tar::EntryType::Symlink, &name)?;
            archive.append_link(&mut header, &name, &to)?;
        } else {
            skipped(&path);
        }
    }
    Ok(())
}

fn file<W: Write>(archive: &mut tar::Builder<W>, path: &Path, name: &Path) -> io::Result<()> {
    // a pipe that took its place would be waited for
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let opened = File::from(opened.map_err(|error| at(path, error.into()))?);
    let what = opened.metadata()?;
    let mut header = header(&what, tar::EntryType::Regular, name)?;
    header.set_size(what.len());
    // the length was said: one that shrinks is filled up, what is appended meanwhile is left out
    let bytes = BufReader::with_capacity(BUFFER_BYTES, opened);
    let bytes = bytes.chain(io::repeat(0)).take(what.len());
    archive.append_data(&mut header, name, bytes)
}
