//! A process, distinguished from a later one with the same id, and its address space.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal,
};
use serde::{Deserialize, Serialize};

/// Process id and start time: together they identify a process until the host restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from the host's boot to the process's start (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
}

/// A process that is held by a descriptor, so that its id can't be reused while it is examined.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    pidfd: OwnedFd,
}

/// A mapping of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Such as `rw-p`.
    pub permissions: String,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The file's number in its file system; 0 for anonymous memory.
    pub inode: u64,
    /// The file, followed by ` (deleted)` if it was deleted; empty for anonymous memory.
    pub path: String,
}

/// A contiguous part of a region of memory in another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Address in the other process.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the region, in bytes.
    pub offset: u64,
}

impl AsFd for Process {
    /// Its pidfd.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Process {
    /// Holds whichever process has this id now.
    pub fn hold(pid: u32) -> io::Result<Process> {
        let raw = Pid::from_raw(pid as i32).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
        // Read after the descriptor was opened: from then on, the id belongs to this process.
        let start_ticks = start_ticks(&std::fs::read(format!("/proc/{pid}/stat"))?)
            .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat can't be understood")))?;
        Ok(Process {
            id: ProcessId { pid, start_ticks },
            pidfd,
        })
    }

    /// Holds exactly this process; `NotFound` if it has ended, even if its id is in use again.
    pub fn find(id: ProcessId) -> io::Result<Process> {
        let process = Process::hold(id.pid).map_err(|e| match e.raw_os_error() {
            Some(libc::ESRCH) => io::ErrorKind::NotFound.into(),
            _ => e,
        })?;
        if process.id == id && process.is_alive() {
            Ok(process)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// Holds a process whose working directory this is and that `is_it`, if there is one. Of the directories of all processes only the
    /// names are read: one may be on a mount that answers nobody.
    pub fn running_in(
        directory: &Path,
        is_it: impl Fn(&Process) -> io::Result<bool>,
    ) -> io::Result<Option<Process>> {
        let directory = match fs::canonicalize(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            directory => directory?,
        };
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let at = unless_ended(fs::read_link(format!("/proc/{pid}/cwd")))?;
            if at.as_ref() != Some(&directory) {
                continue;
            }
            let Some(process) = unless_ended(Process::hold(pid))? else {
                continue;
            };
            if unless_ended(is_it(&process))? == Some(true) {
                return Ok(Some(process));
            }
        }
        Ok(None)
    }

    /// Returns its id and start time.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Returns whether it has not ended; a zombie counts as ended.
    pub fn is_alive(&self) -> bool {
        !self.wait(Duration::ZERO)
    }

    /// Waits for its end. Returns false if it still lives after `limit`.
    pub fn wait(&self, limit: Duration) -> bool {
        self.wait_beside(None, limit)
    }

    /// Waits for its end, but only until `other` can be read or `limit` has passed. Returns false if it still lives.
    pub fn wait_beside(&self, other: Option<BorrowedFd<'_>>, limit: Duration) -> bool {
        let deadline = floe_threads::from_now(limit);
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            let timeout = left.try_into().unwrap_or(rustix::event::Timespec {
                tv_sec: 3600,
                tv_nsec: 0,
            });
            let mut both = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
            both.extend(other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            match poll(&mut both, Some(&timeout)) {
                Ok(_) => return !both[0].revents().is_empty(),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Returns a descriptor that can be read once it has ended, for a caller that waits for many.
    pub fn end_descriptor(&self) -> io::Result<OwnedFd> {
        self.pidfd.try_clone()
    }

    /// Kills it at once.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Returns a copy of one of its descriptors, which is another name for the same open file.
    pub(crate) fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        Ok(pidfd_getfd(&self.pidfd, number, PidfdGetfdFlags::empty())?)
    }

    /// Returns its mappings, ordered by address.
    pub fn mappings(&self) -> io::Result<Vec<Mapping>> {
        let text = std::fs::read(format!("/proc/{}/maps", self.id.pid))?;
        Ok(String::from_utf8_lossy(&text)
            .lines()
            .filter_map(parse_mapping)
            .collect())
    }
}

/// Returns the result of reading something about a process; `None` if it has ended, or is another user's.
fn unless_ended<T>(asked: io::Result<T>) -> io::Result<Option<T>> {
    match asked {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Ok(None),
            _ => Err(error),
        },
        asked => asked.map(Some),
    }
}

/// Returns field 22 of `/proc/PID/stat`. The second field is a name that may contain spaces and parentheses.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(stat);
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut parts = line.splitn(6, ' ');
    let (start, end) = parts.next()?.split_once('-')?;
    let permissions = parts.next()?.to_string();
    let offset = u64::from_str_radix(parts.next()?, 16).ok()?;
    let inode = parts.nth(1)?.parse().ok()?;
    let path = parts.next().unwrap_or_default().trim_start();
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        permissions,
        offset,
        inode,
        path: unescape(path),
    })
}

/// Returns the parts of a mapped region in the order of their offsets; `None` if they are not exactly the region's `size` bytes, each once.
pub(crate) fn whole(mut spans: Vec<Span>, size: u64) -> Option<Vec<Span>> {
    spans.sort_unstable_by_key(|span| span.offset);
    let mut end = 0;
    for span in &spans {
        if span.offset != end {
            return None;
        }
        end = span.offset.checked_add(span.len)?;
    }
    (end == size).then_some(spans)
}

/// Replaces `\012`, which `/proc/PID/maps` writes for a line end in a path.
fn unescape(path: &str) -> String {
    path.replace("\\012", "\n")
}

/// Returns whether the path of a mapping is that of `file`.
pub fn is_mapping_of(mapping: &Mapping, file: &Path) -> bool {
    Path::new(
        mapping
            .path
            .strip_suffix(" (deleted)")
            .unwrap_or(&mapping.path),
    ) == file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_apart_from_a_later_one_with_its_number() {
        let me = Process::hold(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert_eq!(Process::find(me.id()).unwrap().id(), me.id());
        let earlier = ProcessId {
            start_ticks: me.id().start_ticks - 1,
            ..me.id()
        };
        assert_eq!(
            Process::find(earlier).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = Process::hold(child.id()).unwrap();
        assert!(process.wait(Duration::from_secs(10)));
        assert!(Process::find(process.id()).is_err());
        child.wait().unwrap();
    }

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_start_time() {
        let stat = b"12 (a) b (c)) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 0 0";
        assert_eq!(start_ticks(stat), Some(777));
        assert_eq!(start_ticks(b"12 (a"), None);
    }

    #[test]
    fn a_region_is_whole_if_each_of_its_bytes_is_mapped_once() {
        let span = |address, len, offset| Span {
            address,
            len,
            offset,
        };
        let (first, second) = (span(0x9000, 2, 0), span(0x1000, 3, 2));
        assert_eq!(whole(vec![second, first], 5), Some(vec![first, second]));
        assert_eq!(whole(vec![], 0), Some(vec![]));
        for spans in [vec![first], vec![second], vec![first, first, second]] {
            assert_eq!(whole(spans, 5), None);
        }
        assert_eq!(whole(vec![first, span(0, u64::MAX, 2)], 1), None);
    }

    #[test]
    fn mappings_keep_spaces_in_paths() {
        let line = "7f0000000000-7f0000001000 rw-p 00002000 00:2a 5                          /mnt/a b/ram (deleted)";
        let mapping = parse_mapping(line).unwrap();
        assert_eq!(
            (mapping.end - mapping.start, mapping.offset, mapping.inode),
            (0x1000, 0x2000, 5)
        );
        assert!(is_mapping_of(&mapping, Path::new("/mnt/a b/ram")));
        assert_eq!(
            parse_mapping("00400000-00401000 rw-p 00000000 00:00 0 ")
                .unwrap()
                .path,
            ""
        );
        assert_eq!(parse_mapping("garbage"), None);
    }
}
