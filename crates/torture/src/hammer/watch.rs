//! Watches a process start: hears of each of its accesses to files and of what it receives over sockets, and lets one of
//! them fail. The program is what it always is; its system calls stop by a filter (see [`floe_machine::calls`]).
use super::faults::{Counts, Error, Fault, Kind};
use floe_machine::calls::{self, ARCH, Call, Listener, data, give, jump, load, unless};
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Where in its arguments a call says what it is about.
#[derive(Clone, Copy)]
enum About {
    /// A path, in this argument.
    Path(usize),
    /// A path in the second argument, relative to the descriptor in the first.
    PathAt,
    /// A descriptor, the first argument.
    File,
    /// A socket, the first argument, from which something is received.
    Message,
    /// An address of a socket, the second argument.
    Address,
}

/// The calls that stop, with their names. Sending is not among them: the filter's own descriptor is sent when it works
/// already, and a message that does not arrive fails when its answer is received.
#[rustfmt::skip]
const CALLS: &[(i64, &str, About)] = &[
    (libc::SYS_openat, "openat", About::PathAt),
    (libc::SYS_newfstatat, "newfstatat", About::PathAt),
    (libc::SYS_statx, "statx", About::PathAt),
    (libc::SYS_faccessat, "faccessat", About::PathAt),
    (libc::SYS_faccessat2, "faccessat2", About::PathAt),
    (libc::SYS_readlinkat, "readlinkat", About::PathAt),
    (libc::SYS_unlinkat, "unlinkat", About::PathAt),
    (libc::SYS_mkdirat, "mkdirat", About::PathAt),
    (libc::SYS_renameat2, "renameat2", About::PathAt),
    (libc::SYS_fchmodat, "fchmodat", About::PathAt),
    (libc::SYS_fchownat, "fchownat", About::PathAt),
    (libc::SYS_statfs, "statfs", About::Path(0)),
    (libc::SYS_fstat, "fstat", About::File),
    (libc::SYS_fstatfs, "fstatfs", About::File),
    (libc::SYS_read, "read", About::File),
    (libc::SYS_pread64, "pread64", About::File),
    (libc::SYS_readv, "readv", About::File),
    (libc::SYS_getdents64, "getdents64", About::File),
    (libc::SYS_write, "write", About::File),
    (libc::SYS_pwrite64, "pwrite64", About::File),
    (libc::SYS_writev, "writev", About::File),
    (libc::SYS_ftruncate, "ftruncate", About::File),
    (libc::SYS_fallocate, "fallocate", About::File),
    (libc::SYS_fsync, "fsync", About::File),
    (libc::SYS_fdatasync, "fdatasync", About::File),
    (libc::SYS_flock, "flock", About::File),
    (libc::SYS_fchmod, "fchmod", About::File),
    (libc::SYS_fchown, "fchown", About::File),
    (libc::SYS_recvfrom, "recvfrom", About::Message),
    (libc::SYS_recvmsg, "recvmsg", About::Message),
    (libc::SYS_connect, "connect", About::Address),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, "open", About::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, "stat", About::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, "lstat", About::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_access, "access", About::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_readlink, "readlink", About::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, "rename", About::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, "unlink", About::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, "mkdir", About::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, "chmod", About::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chown, "chown", About::Path(0)),
];

/// Longest path in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// The filter by which those calls stop.
fn filter() -> Vec<libc::sock_filter> {
    let count = CALLS.len() as u8;
    let mut filter = vec![load(data::ARCH), unless(ARCH, count + 1), load(data::NR)];
    for (at, (number, ..)) in (1..).zip(CALLS) {
        // to the last statement
        filter.push(jump(libc::BPF_JEQ, *number as u32, count - at + 1, 0));
    }
    filter.push(give(libc::SECCOMP_RET_ALLOW));
    filter.push(give(libc::SECCOMP_RET_USER_NOTIF));
    filter
}

/// An access that failed because of us.
#[derive(Clone, Debug)]
pub struct Met {
    /// The call's name.
    pub call: &'static str,
    /// What it was about: a path, or `socket`.
    pub path: PathBuf,
    /// How it failed.
    pub error: Error,
}

/// What a start has done so far.
struct Seen {
    /// The program's state directory: what comes before its first access to that is not counted.
    state: PathBuf,
    process: u32,
    /// Its threads, as far as they were seen.
    threads: BTreeSet<u32>,
    begun: bool,
    over: bool,
    fault: Option<Fault>,
    counts: Counts,
    met: Option<Met>,
}

/// A start that is watched.
pub struct Watch(Arc<Mutex<Seen>>);

/// A command that will be watched, before it is spawned.
pub struct Pending {
    ours: OwnedFd,
    seen: Seen,
}

impl Pending {
    /// Makes the calls of what `command` becomes stop, and of all that it starts. `state` is its state directory. If there is
    /// a fault, that is what fails.
    pub fn new(command: &mut Command, state: &Path, fault: Option<Fault>) -> io::Result<Pending> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let mut filter = filter();
        let before_exec = move || calls::send_listener(calls::install(&mut filter)?, &theirs);
        // SAFETY: the closure allocates nothing and takes no lock.
        unsafe { command.pre_exec(before_exec) };
        let seen = Seen {
            state: state.to_owned(),
            process: 0,
            threads: BTreeSet::new(),
            begun: false,
            over: false,
            fault,
            counts: Counts::new(),
            met: None,
        };
        Ok(Pending { ours, seen })
    }

    /// Begins to answer, once the command was spawned as this process and dropped.
    pub fn spawned(mut self, process: u32) -> io::Result<Watch> {
        let listener = Listener::receive(&self.ours)?;
        let listener = listener.ok_or_else(|| io::Error::other("its calls can't be watched"))?;
        self.seen.process = process;
        let seen = Arc::new(Mutex::new(self.seen));
        let shared = seen.clone();
        // as long as anything lives that the process has started: without an answer its calls would fail
        std::thread::spawn(move || {
            while let Ok(Some(call)) = listener.wait() {
                let error = shared.lock().judge(&call);
                match error {
                    Some(error) => listener.fail(&call, error.errno()),
                    None => listener.go_on(&call),
                }
            }
        });
        Ok(Watch(seen))
    }
}

impl Watch {
    /// Ends the watching: nothing fails any more. Returns how often each kind of access came, and what has failed.
    pub fn end(self) -> (Counts, Option<Met>) {
        let mut seen = self.0.lock();
        seen.over = true;
        (std::mem::take(&mut seen.counts), seen.met.take())
    }
}

impl Seen {
    /// Counts a call. Returns the error with which it is to fail, if it is.
    fn judge(&mut self, call: &Call) -> Option<Error> {
        if self.over || !self.is_its_own(call.thread) {
            return None;
        }
        let &(_, name, about) = CALLS.iter().find(|(number, ..)| *number == call.number)?;
        let path = path_of(call, about)?;
        let in_state = path.starts_with(&self.state);
        self.begun |= in_state;
        // what the kernel tells of processes; programs, libraries and the log are of no concern
        let told = path.starts_with("/proc") || path.starts_with("/sys");
        let message = matches!(about, About::Message);
        if !self.begun || !(in_state || told || message) {
            return None;
        }
        let kind = Kind::of(name, &path);
        let count = self.counts.entry(kind.clone()).or_default();
        let nth = *count;
        *count += 1;
        let fault = self.fault.as_ref()?;
        if self.met.is_some() || fault.kind != kind || fault.nth != nth {
            return None;
        }
        let (call, error) = (name, fault.error);
        self.met = Some(Met { call, path, error });
        Some(error)
    }

    /// Whether a thread is one of the process that was started, and not of one that it has started.
    fn is_its_own(&mut self, thread: u32) -> bool {
        let is_there = |process| fs::metadata(format!("/proc/{process}/task/{thread}")).is_ok();
        self.threads.contains(&thread) || (is_there(self.process) && self.threads.insert(thread))
    }
}

/// Returns what a call is about; `None` if that is nothing with a name.
fn path_of(call: &Call, about: About) -> Option<PathBuf> {
    let thread = call.thread;
    let of_file = |fd: u64| fs::read_link(format!("/proc/{thread}/fd/{}", fd as i32)).ok();
    let directory = |fd: u64| match fd as i32 {
        libc::AT_FDCWD => fs::read_link(format!("/proc/{thread}/cwd")).ok(),
        _ => of_file(fd),
    };
    let path = match about {
        About::Path(at) => directory(libc::AT_FDCWD as u64)?.join(text_at(thread, call.args[at])?),
        About::PathAt => match text_at(thread, call.args[1]) {
            Some(path) if !path.as_os_str().is_empty() => directory(call.args[0])?.join(path),
            // fstat is spelled so
            _ => directory(call.args[0])?,
        },
        About::File => of_file(call.args[0])?,
        About::Message => {
            let socket = of_file(call.args[0])?;
            return socket
                .to_str()?
                .starts_with("socket:")
                .then(|| "socket".into());
        }
        // struct sockaddr_un: the family in two bytes, then the path
        About::Address => text_at(thread, call.args[1] + 2)?,
    };
    path.is_absolute().then_some(path)
}

/// Reads a path in the memory of a thread's process.
fn text_at(thread: u32, address: u64) -> Option<PathBuf> {
    let memory = File::open(format!("/proc/{thread}/mem")).ok()?;
    let mut bytes = vec![0; PATH_BYTES_MAX];
    // less is read if the memory behind it is not there
    let length = memory.read_at(&mut bytes, address).ok()?;
    let end = bytes[..length].iter().position(|byte| *byte == 0)?;
    Some(PathBuf::from(OsStr::from_bytes(&bytes[..end])))
}
