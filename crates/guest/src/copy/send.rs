//! Makes the stream of a file or directory.
//!
//! What is sent may belong to somebody else, who can put a link in the place of any part of it at any moment. The path that a user
//! names is opened once; everything below it is reached from descriptors, one name at a time and through no symbolic link.

use super::archive::DEPTH_MAX;
use super::flow::Flow;
use super::pieces::Writer;
use super::sparse::{self, Data, Extended};
use super::{BUFFER_BYTES, Form, Told};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How many things of a directory are counted before the first is sent: who copies more is not kept waiting to hear how much it is in all.
const COUNTED_MAX: u32 = 10_000;

/// How what is sent is opened: a pipe in its place would be waited for.
const OPENED: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Sends a file or directory. `skipped` is told of each thing in a directory that is neither file nor directory nor symbolic
/// link, which is not sent. `told` hears of an archive how far it is.
pub fn send(
    path: &Path,
    form: Form,
    out: impl Write,
    skipped: &mut dyn FnMut(&Path),
    told: Told<'_>,
) -> io::Result<()> {
    let out = Writer::new(out);
    let done = match form {
        Form::Bytes => bytes(path, out),
        Form::Archive | Form::Sparse => archive(path, form, out, skipped, told),
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

fn archive<'a>(
    path: &Path,
    form: Form,
    out: Writer<impl Write>,
    skipped: &'a mut dyn FnMut(&Path),
    told: Told<'a>,
) -> io::Result<()> {
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
    let sparse = form == Form::Sparse;
    let mut flow = Flow::new(told);
    // what can't be counted is told when it is sent
    flow.total = Count::of(sparse, &opened, &what, path, COUNTED_MAX).unwrap_or(0);
    let mut archive = Archive {
        out: tar::Builder::new(out),
        sparse,
        total: Some(flow.total).filter(|total| sparse && *total > 0),
        flow,
        skipped,
    };
    match FileType::from_raw_mode(what.st_mode) {
        FileType::RegularFile => archive.file(opened, &what, Path::new("file"))?,
        FileType::Directory => {
            archive.begins(None)?;
            let header = header(&what, tar::EntryType::Directory, Path::new("."))?;
            archive.out.append(&header, io::empty())?;
            below(&mut archive, &opened, path, Path::new(""), 1)?;
        }
        _ => return Err(neither()),
    }
    archive.out.into_inner()?.finish()
}

fn header(what: &Stat, kind: tar::EntryType, name: &Path) -> io::Result<tar::Header> {
    filled(tar::Header::new_gnu(), what, kind, name)
}

fn filled(
    mut header: tar::Header,
    what: &Stat,
    kind: tar::EntryType,
    name: &Path,
) -> io::Result<tar::Header> {
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

/// What is done with each thing in a directory. Names are those in the archive, paths are for messages.
trait Visit {
    fn file(&mut self, opened: OwnedFd, what: &Stat, name: &Path) -> io::Result<()>;
    fn directory(&mut self, what: &Stat, name: &Path) -> io::Result<()>;
    fn link(&mut self, what: &Stat, name: &Path, to: &CStr) -> io::Result<()>;
    fn other(&mut self, path: &Path);
}

/// Visits what is in a directory. Its path is for messages, and its name is what it is called in the archive.
fn below(
    visit: &mut impl Visit,
    directory: &OwnedFd,
    path: &Path,
    name: &Path,
    depth: usize,
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
            Content::File(opened) => visit.file(opened, &what, &name)?,
            Content::Directory(opened) => {
                visit.directory(&what, &name)?;
                below(visit, &opened, &path, &name, depth + 1)?;
            }
            Content::Link(to) => visit.link(&what, &name, &to)?,
            Content::Other => visit.other(&path),
        }
    }
    Ok(())
}

/// Counts the bytes of data that will be sent.
struct Count {
    sparse: bool,
    total: u64,
    /// How many more things are looked at.
    left: u32,
}

impl Count {
    /// Fails for what is more than `most` things.
    fn of(sparse: bool, opened: &OwnedFd, what: &Stat, path: &Path, most: u32) -> io::Result<u64> {
        let mut count = Count {
            sparse,
            total: 0,
            left: most,
        };
        match FileType::from_raw_mode(what.st_mode) {
            FileType::RegularFile => count.file(opened.try_clone()?, what, path)?,
            _ => below(&mut count, opened, path, Path::new(""), 1)?,
        }
        Ok(count.total)
    }

    fn one_more(&mut self) -> io::Result<()> {
        let left = self.left.checked_sub(1);
        self.left = left.ok_or_else(|| io::Error::other("more than is counted"))?;
        Ok(())
    }
}

impl Visit for Count {
    fn file(&mut self, opened: OwnedFd, what: &Stat, _name: &Path) -> io::Result<()> {
        self.one_more()?;
        let size = size_of(what);
        let bytes = match self.sparse {
            true => sparse::bytes_of(&sparse::extents(&File::from(opened), size)?),
            false => size,
        };
        self.total = self.total.saturating_add(bytes);
        Ok(())
    }

    fn directory(&mut self, _what: &Stat, _name: &Path) -> io::Result<()> {
        self.one_more()
    }

    fn link(&mut self, _what: &Stat, _name: &Path, _to: &CStr) -> io::Result<()> {
        self.one_more()
    }

    fn other(&mut self, _path: &Path) {}
}

/// The archive that is written.
struct Archive<'a, W: Write> {
    out: tar::Builder<W>,
    /// Whether holes are left out.
    sparse: bool,
    /// What is yet to be said of all of it.
    total: Option<u64>,
    flow: Flow<'a>,
    skipped: &'a mut dyn FnMut(&Path),
}

impl<W: Write> Archive<'_, W> {
    /// Begins an entry with what its own header can't say: how long a file with holes is, and of the first one, how much data there is
    /// in all.
    fn begins(&mut self, size: Option<u64>) -> io::Result<()> {
        let total = self.total.take();
        let texts = Extended { size, total }.texts();
        let texts = texts.iter().map(|(key, value)| (*key, value.as_bytes()));
        self.out.append_pax_extensions(texts)
    }
}

impl<W: Write> Visit for Archive<'_, W> {
    fn file(&mut self, opened: OwnedFd, what: &Stat, name: &Path) -> io::Result<()> {
        let (opened, size) = (File::from(opened), size_of(what));
        let extents = match self.sparse {
            true => sparse::extents(&opened, size)?,
            false => sparse::whole(size),
        };
        let data = sparse::bytes_of(&extents);
        let (blank, map) = match data < size {
            // the form in which GNU tar expects a map
            true => (tar::Header::new_ustar(), sparse::map(&extents)),
            false => (tar::Header::new_gnu(), Vec::new()),
        };
        self.begins(Some(size).filter(|_| data < size))?;
        let mut header = filled(blank, what, tar::EntryType::Regular, name)?;
        // a map takes megabytes at most
        header.set_size(data.saturating_add(map.len() as u64));
        // the length was said: one that shrinks is filled up, what is appended meanwhile is left out
        let data = Data::new(opened, extents, &mut self.flow);
        let data = BufReader::with_capacity(BUFFER_BYTES, data);
        self.out
            .append_data(&mut header, name, map.as_slice().chain(data))
    }

    fn directory(&mut self, what: &Stat, name: &Path) -> io::Result<()> {
        let mut header = header(what, tar::EntryType::Directory, name)?;
        self.out.append_data(&mut header, name, io::empty())
    }

    fn link(&mut self, what: &Stat, name: &Path, to: &CStr) -> io::Result<()> {
        let mut header = header(what, tar::EntryType::Symlink, name)?;
        let to = OsStr::from_bytes(to.to_bytes());
        self.out.append_link(&mut header, name, to)
    }

    fn other(&mut self, path: &Path) {
        (self.skipped)(path);
    }
}

fn size_of(what: &Stat) -> u64 {
    u64::try_from(what.st_size).unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_counted_if_that_does_not_take_long() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        for name in ["one", "two", "below/three"] {
            fs::write(dir.path().join(name), [7; 100]).unwrap();
        }
        let opened = rustix::fs::open(dir.path(), OPENED, Mode::empty()).unwrap();
        let what = rustix::fs::fstat(&opened).unwrap();
        let counted = |most| Count::of(false, &opened, &what, dir.path(), most);
        assert_eq!(counted(4).unwrap(), 300);
        assert!(counted(3).is_err());
    }
}
