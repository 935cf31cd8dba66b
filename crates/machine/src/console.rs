//! Reads the output of a serial console that is kept: two files. When the newer one is full, it replaces the older one
//! (done by the [guard](crate::guard) in QEMU, so that it works without a node).

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::inotify;

use crate::files::{CONSOLE_LOG, CONSOLE_LOG_BEFORE};

/// A reader of a console's log, which reads up to its current end. Reading again later returns what the guest has written
/// since; if the guest has filled both files in between, the beginning of that is missing.
#[derive(Debug)]
pub struct ConsoleLog {
    dir: PathBuf,
    /// The file being read; `None` before the machine has written anything.
    file: Option<File>,
    /// Bytes that are to be skipped at the beginning.
    skip: u64,
}

impl ConsoleLog {
    /// Opens the log in a machine's `run` directory: all that is kept, or only its last `tail_bytes` bytes.
    pub fn open(dir: &Path, tail_bytes: Option<u64>) -> ConsoleLog {
        let [before, now] = [CONSOLE_LOG_BEFORE, CONSOLE_LOG].map(|name| open(&dir.join(name)));
        let len = |file: &Option<File>| file.as_ref().map_or(0, size);
        let all = len(&before) + len(&now);
        ConsoleLog {
            dir: dir.to_owned(),
            skip: tail_bytes.map_or(0, |tail| all.saturating_sub(tail)),
            file: before.or(now),
        }
    }

    /// Returns a value that changes when the guest writes to its console, and is `(0, 0)` before it writes anything.
    pub fn position(dir: &Path) -> (u64, u64) {
        let at = |file: File| file.metadata().map(|m| (m.ino(), m.len())).ok();
        let at = open(&dir.join(CONSOLE_LOG)).and_then(at);
        at.filter(|(_, len)| *len > 0).unwrap_or_default()
    }

    /// Returns a watch of what the guest writes from now on.
    pub fn watch(&self) -> io::Result<ConsoleWatch> {
        ConsoleWatch::new(&self.dir)
    }

    /// Returns the file that follows the current one, if there is one.
    fn next(&self) -> Option<File> {
        let inode = |file: &File| file.metadata().map(|m| (m.dev(), m.ino())).ok();
        let now = open(&self.dir.join(CONSOLE_LOG))?;
        let Some(this) = self.file.as_ref().and_then(inode) else {
            return open(&self.dir.join(CONSOLE_LOG_BEFORE)).or(Some(now));
        };
        if inode(&now) == Some(this) {
            return None;
        }
        match open(&self.dir.join(CONSOLE_LOG_BEFORE)) {
            // the current file is now the older one, or is gone
            Some(before) if inode(&before) != Some(this) => Some(before),
            _ => Some(now),
        }
    }
}

/// Tells when a console's log may have more to read, through inotify(7): it can be waited for as a descriptor.
#[derive(Debug)]
pub struct ConsoleWatch(OwnedFd);

impl ConsoleWatch {
    /// Watches the log in a machine's `run` directory. What is written from now on is noticed. Fails if the kernel has no watch
    /// left for this user (`fs.inotify.max_user_instances`).
    pub fn new(dir: &Path) -> io::Result<ConsoleWatch> {
        let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        let changes = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO;
        inotify::add_watch(&fd, dir, changes)?;
        Ok(ConsoleWatch(fd))
    }

    /// Forgets what was noticed. Call it before reading, so that what comes later is noticed again.
    pub fn clear(&self) {
        let mut events = [0; 4096];
        while rustix::io::read(&self.0, &mut events).is_ok_and(|read| read > 0) {}
    }
}

impl AsFd for ConsoleWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for ConsoleWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Read for ConsoleLog {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // look for the next file before reading this one to its end, so that nothing appended before the replacement
            // is missed
            let next = self.next();
            if let Some(file) = &mut self.file {
                if self.skip > 0 {
                    let step = self.skip.min(size(file));
                    file.seek(SeekFrom::Start(step))?;
                    self.skip -= step;
                }
                match file.read(buffer)? {
                    0 => {}
                    read => return Ok(read),
                }
            }
            match next {
                Some(file) => self.file = Some(file),
                None => return Ok(0),
            }
        }
    }
}

fn size(file: &File) -> u64 {
    file.metadata().map_or(0, |m| m.len())
}

/// Opens a file for reading if it is an ordinary file. The directory belongs to the machine's user, who could put a link
/// or a pipe there.
fn open(path: &Path) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    file.metadata().is_ok_and(|m| m.is_file()).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn rest(log: &mut ConsoleLog) -> String {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    }

    fn append(dir: &Path, text: &str) {
        use std::io::Write;
        let path = dir.join(CONSOLE_LOG);
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn rotate(dir: &Path) {
        fs::rename(dir.join(CONSOLE_LOG), dir.join(CONSOLE_LOG_BEFORE)).unwrap();
    }

    #[test]
    fn a_reader_follows_the_log_from_file_to_file() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut log = ConsoleLog::open(dir, None);
        assert_eq!(rest(&mut log), "");
        append(dir, "one ");
        assert_eq!(rest(&mut log), "one ");
        append(dir, "two ");
        rotate(dir);
        assert_eq!(rest(&mut log), "two ");
        append(dir, "three ");
        assert_eq!(rest(&mut log), "three ");
        append(dir, "four ");
        rotate(dir);
        append(dir, "five ");
        assert_eq!(rest(&mut log), "four five ");
        // both files were replaced between two reads
        append(dir, "six ");
        rotate(dir);
        append(dir, "seven ");
        rotate(dir);
        append(dir, "eight");
        assert_eq!(rest(&mut log), "six seven eight");
        assert_eq!(rest(&mut ConsoleLog::open(dir, None)), "seven eight");
        assert_eq!(rest(&mut ConsoleLog::open(dir, Some(7))), "n eight");
        assert_eq!(rest(&mut ConsoleLog::open(dir, Some(3))), "ght");
        assert_eq!(rest(&mut ConsoleLog::open(dir, Some(0))), "");
    }

    #[test]
    fn a_link_or_a_pipe_in_its_place_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join(CONSOLE_LOG)).unwrap();
        assert_eq!(rest(&mut ConsoleLog::open(dir.path(), None)), "");
        let pipe = dir.path().join(CONSOLE_LOG_BEFORE);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        assert_eq!(rest(&mut ConsoleLog::open(dir.path(), None)), "");
    }
}
