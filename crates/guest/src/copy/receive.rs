//! Takes a stream apart into a file or directory.
//!
//! Everything is written under a temporary name beside its final one, made durable, and renamed, so that nothing that is
//! incomplete ever has the final name. An archive may be hostile: each name in it is followed from the new directory's
//! descriptor, one part at a time and through no symbolic link, nothing is written that exists already, and only files,
//! directories and symbolic links are made.

use super::archive::{DEPTH_MAX, hostile};
use super::flow::Flow;
use super::pieces::Reader;
use super::sparse::{self, Extended};
use super::{Form, Told};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// Longest name, or target of a link, in an archive, in bytes: what the kernel takes.
const NAME_BYTES_MAX: u64 = 4096;
/// Most entries of an archive.
const ENTRIES_MAX: u64 = 10_000_000;
/// What a file gets whose mode nobody said.
const MODE_DEFAULT: u32 = 0o644;

/// Where a stream goes.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The path that the user named: a directory that exists, or a name in one.
    pub target: &'a Path,
    /// The name in a directory that exists.
    pub name: &'a str,
    /// Whether files keep bits with which they give their owner's rights to whoever runs them. For the host: not what a guest
    /// sends.
    pub special_bits: bool,
}

/// Writes a stream to its place. Returns the path that it has there. `told` hears how far it is.
pub fn receive(
    input: impl Read,
    form: Form,
    place: &Place<'_>,
    told: Told<'_>,
) -> io::Result<PathBuf> {
    let mut input = Reader::new(input);
    let path = resolve(place)?;
    let partial = partial_of(&path)?;
    let mask = if place.special_bits { 0o7777 } else { 0o777 };
    let mut flow = Flow::new(told);
    let done = write(&mut input, form, &partial, mask, &mut flow).and_then(|is_directory| {
        // the sender's own end, and nothing that a hostile one has left out
        input.finish()?;
        rename(&partial, &path, is_directory)
    });
    if let Err(error) = done {
        let _ = remove(&partial); // what went wrong is more important
        return Err(error);
    }
    Ok(path)
}

/// Several streams that come into a directory together: all of them, or none. What has come of those that do not is removed.
#[derive(Debug)]
pub struct Together {
    partial: PathBuf,
}

impl Together {
    /// Makes the directory where they wait for each other, in place of one that an earlier try has left. It is to be beside, or in, the
    /// one that is to have them.
    pub fn begin(partial: PathBuf) -> io::Result<Together> {
        match fs::remove_dir_all(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir(&partial)?;
        Ok(Together { partial })
    }

    /// Returns where each of them goes.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Moves them to a directory, which need not be there. Files that are there by their names are replaced; if there is a directory, none
    /// of them is moved.
    pub fn put_in(self, directory: &Path) -> io::Result<()> {
        let there = fs::symlink_metadata(directory);
        if there.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return rename(&self.partial, directory, true);
        }
        let mut parts = Vec::new();
        for part in fs::read_dir(&self.partial)? {
            let part = part?;
            let (is_directory, to) = (part.file_type()?.is_dir(), directory.join(part.file_name()));
            let there = match fs::symlink_metadata(&to) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                there => Some(there?),
            };
            if there.is_some_and(|there| is_directory || there.is_dir()) {
                return Err(exists(&to));
            }
            parts.push((part.path(), to, is_directory));
        }
        for (from, to, is_directory) in parts {
            rename(&from, &to, is_directory)?;
        }
        Ok(())
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.partial); // it may have gone as a whole; the next try removes what stays
    }
}

fn exists(path: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!(
            "{} exists already; remove it, or name another",
            path.display()
        ),
    )
}

/// Removes what was written, through no symbolic link, also from directories that have got their modes.
fn remove(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return fs::remove_file(path);
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        remove(&entry?.path())?;
    }
    fs::remove_dir(path)
}

fn resolve(place: &Place<'_>) -> io::Result<PathBuf> {
    let target = place.target;
    let found = match fs::metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        found => Some(found?),
    };
    if !found.is_some_and(|found| found.is_dir()) {
        if target.as_os_str().as_bytes().ends_with(b"/") {
            let why = format!("{} is no directory", target.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        return Ok(target.to_owned());
    }
    let mut parts = Path::new(place.name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(name)), None) => Ok(target.join(name)),
        _ => Err(io::Error::other(format!(
            "{} is a directory, and what is copied has no name; name the file",
            target.display()
        ))),
    }
}

/// Returns a name in the same directory that nobody else uses.
fn partial_of(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name();
    let name = name.ok_or_else(|| io::Error::other(format!("{} is no name", path.display())))?;
    let mut random = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    // a name has at most 255 bytes
    let name = &name.as_bytes()[..name.len().min(200)];
    let name = String::from_utf8_lossy(name);
    let random = u64::from_le_bytes(random);
    let short: String = name.chars().take(60).collect();
    Ok(path.with_file_name(format!(".{short}.floe-{random:016x}")))
}

fn rename(partial: &Path, path: &Path, is_directory: bool) -> io::Result<()> {
    if is_directory {
        rustix::fs::renameat_with(CWD, partial, CWD, path, RenameFlags::NOREPLACE).map_err(
            |error| match error {
                rustix::io::Errno::EXIST => exists(path),
                error => error.into(),
            },
        )?;
    } else {
        fs::rename(partial, path)?;
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

/// Writes everything under the temporary name. Returns whether it is a directory.
fn write(
    input: &mut impl Read,
    form: Form,
    partial: &Path,
    mask: u32,
    flow: &mut Flow<'_>,
) -> io::Result<bool> {
    if form == Form::Bytes {
        let mut file = create(CWD.as_fd(), partial)?;
        pour(&mut file, input, flow)?;
        finish(&file, MODE_DEFAULT, None)?;
        return Ok(false);
    }
    let mut archive = tar::Archive::new(input);
    let mut entries = archive.entries()?.raw(true);
    let mut names = Names::default();
    let Some(mut first) = names.next(&mut entries)? else {
        return Err(hostile("it is empty"));
    };
    let mode = first.mode & mask;
    flow.total = first.total.unwrap_or(0);
    match first.kind {
        tar::EntryType::Regular => {
            let mut file = create(CWD.as_fd(), partial)?;
            fill(&mut file, &mut first, flow)?;
            finish(&file, mode, Some(first.time_s))?;
            drop(first);
            match names.next(&mut entries)? {
                None => Ok(false),
                Some(_) => Err(hostile("more than one file")),
            }
        }
        tar::EntryType::Directory => {
            fs::create_dir(partial)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let root = rustix::fs::open(partial, flags, Mode::empty())?;
            let mut tree = Tree {
                root,
                mask,
                directories: vec![(Vec::new(), mode, first.time_s)],
            };
            drop(first);
            while let Some(entry) = names.next(&mut entries)? {
                tree.add(entry, flow)?;
            }
            tree.finish()?;
            Ok(true)
        }
        _ => Err(hostile("it begins with neither file nor directory")),
    }
}

/// An entry with its whole name.
struct Entry<'a, R: Read> {
    name: PathBuf,
    link: Option<PathBuf>,
    kind: tar::EntryType,
    mode: u32,
    /// How many bytes stand in the archive.
    size: u64,
    /// How many bytes the file has, if it has holes.
    sparse: Option<u64>,
    /// How many bytes of data the whole archive has, if it says so here.
    total: Option<u64>,
    time_s: u64,
    content: tar::Entry<'a, R>,
}

/// Puts entries together with what stands before them in entries of its own: long names, and what is said of files with holes.
#[derive(Default)]
struct Names {
    count: u64,
}

impl Names {
    fn next<'a, R: Read>(
        &mut self,
        entries: &mut tar::Entries<'a, R>,
    ) -> io::Result<Option<Entry<'a, R>>> {
        let (mut name, mut link) = (None, None);
        let mut extended = Extended::default();
        loop {
            let Some(mut content) = entries.next().transpose()? else {
                return Ok(None);
            };
            self.count += 1;
            if self.count > ENTRIES_MAX {
                return Err(hostile("too many entries"));
            }
            let header = content.header();
            let (kind, size) = (header.entry_type(), header.entry_size()?);
            match kind {
                tar::EntryType::GNULongName => name = Some(long(&mut content, size)?),
                tar::EntryType::GNULongLink => link = Some(long(&mut content, size)?),
                tar::EntryType::XHeader => extended = Extended::read(&mut content, size)?,
                _ if extended.size.is_some() && kind != tar::EntryType::Regular => {
                    return Err(hostile("holes in what is no file"));
                }
                _ => {
                    let header = content.header();
                    let (mode, time_s) = (header.mode()?, header.mtime()?);
                    let own = header.path()?.into_owned();
                    let own_link = header.link_name()?.map(Cow::into_owned);
                    return Ok(Some(Entry {
                        name: name.unwrap_or(own),
                        link: link.or(own_link),
                        kind,
                        mode,
                        size,
                        sparse: extended.size,
                        total: extended.total,
                        time_s,
                        content,
                    }));
                }
            }
        }
    }
}

fn long(content: &mut impl Read, size: u64) -> io::Result<PathBuf> {
    if size > NAME_BYTES_MAX {
        return Err(hostile("a name is too long"));
    }
    let mut bytes = Vec::new();
    content.take(NAME_BYTES_MAX).read_to_end(&mut bytes)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&bytes)))
}

/// A directory that is being filled.
struct Tree {
    root: OwnedFd,
    mask: u32,
    /// Directories with their mode and time, which they get once nothing more comes into them.
    directories: Vec<(Vec<Vec<u8>>, u32, u64)>,
}

impl Tree {
    /// Returns the parts of a name; an error for one that leads anywhere but down.
    fn parts(name: &Path) -> io::Result<Vec<Vec<u8>>> {
        let mut parts = Vec::new();
        for part in name.components() {
            match part {
                Component::Normal(part) => parts.push(part.as_bytes().to_vec()),
                _ => return Err(hostile(&format!("{} leads out of it", name.display()))),
            }
        }
        match parts.len() {
            0 => Err(hostile("an entry without a name")),
            length if length > DEPTH_MAX => Err(hostile("it is too deep")),
            _ => Ok(parts),
        }
    }

    /// Opens a directory of the tree, through no symbolic link.
    fn open(&self, parts: &[Vec<u8>]) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = self.root.try_clone()?;
        for part in parts {
            at = rustix::fs::openat(&at, part.as_slice(), flags, Mode::empty())
                .map_err(|_| hostile("an entry in something that is no directory"))?;
        }
        Ok(at)
    }

    fn add<R: Read>(&mut self, mut entry: Entry<'_, R>, flow: &mut Flow<'_>) -> io::Result<()> {
        let parts = Tree::parts(&entry.name)?;
        let (name, above) = parts.split_last().ok_or_else(|| hostile("no name"))?;
        let above = self.open(above)?;
        let mode = entry.mode & self.mask;
        match entry.kind {
            tar::EntryType::Regular => {
                let name = Path::new(std::ffi::OsStr::from_bytes(name));
                let mut file = create(above.as_fd(), name)?;
                fill(&mut file, &mut entry, flow)?;
                finish(&file, mode, Some(entry.time_s))
            }
            tar::EntryType::Directory => {
                rustix::fs::mkdirat(&above, name.as_slice(), Mode::RWXU)?;
                self.directories.push((parts, mode, entry.time_s));
                Ok(())
            }
            tar::EntryType::Symlink => {
                let link = entry
                    .link
                    .ok_or_else(|| hostile("a symbolic link to nothing"))?;
                rustix::fs::symlinkat(&link, &above, name.as_slice())?;
                let _ = rustix::fs::utimensat(
                    &above,
                    name.as_slice(),
                    &times(entry.time_s),
                    AtFlags::SYMLINK_NOFOLLOW,
                );
                Ok(())
            }
            _ => Err(hostile(
                "an entry that is no file, directory or symbolic link",
            )),
        }
    }

    fn finish(self) -> io::Result<()> {
        for (parts, mode, time_s) in self.directories.iter().rev() {
            let directory = File::from(self.open(parts)?);
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(*mode))?;
            rustix::fs::futimens(&directory, &times(*time_s))?;
            directory.sync_all()?;
        }
        Ok(())
    }
}

fn times(time_s: u64) -> Timestamps {
    let time = Timespec {
        tv_sec: i64::try_from(time_s).unwrap_or(0),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn create(directory: std::os::fd::BorrowedFd<'_>, name: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR);
    file.map(File::from).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{}: {error}", name.display()))
    })
}

/// Writes a file's bytes, of which there must be as many as was said. Its holes stay holes.
fn fill<R: Read>(file: &mut File, entry: &mut Entry<'_, R>, flow: &mut Flow<'_>) -> io::Result<()> {
    let shorter = || hostile("a file is shorter than it says");
    let Some(size) = entry.sparse else {
        let written = pour(file, &mut entry.content, flow)?;
        return match written == entry.size {
            true => Ok(()),
            false => Err(shorter()),
        };
    };
    let extents = sparse::read_map(&mut entry.content, size, entry.size)?;
    file.set_len(size)?;
    for extent in extents {
        file.seek(SeekFrom::Start(extent.at))?;
        let mut content = entry.content.by_ref().take(extent.bytes);
        if pour(file, &mut content, flow)? != extent.bytes {
            return Err(shorter());
        }
    }
    Ok(())
}

/// Writes all that there is to read. Returns how many bytes that were.
fn pour(file: &mut File, content: &mut impl Read, flow: &mut Flow<'_>) -> io::Result<u64> {
    let mut written = 0;
    loop {
        let count = match content.read(&mut flow.buffer) {
            Ok(0) => return Ok(written),
            Ok(count) => count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        file.write_all(&flow.buffer[..count])?;
        flow.went(count);
        written += count as u64;
    }
}

/// Gives a file its mode and time, and makes it durable.
fn finish(file: &File, mode: u32, time_s: Option<u64>) -> io::Result<()> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
    if let Some(time_s) = time_s {
        rustix::fs::futimens(file, &times(time_s))?;
    }
    file.sync_all()
}
