//! Runs a QEMU tool on a stranger's file (`qemu-img`), confined so that the file can do no harm with it.
//!
//! The node opens the files; the tool gets their descriptors under the names [`INPUT`] and [`OUTPUT`] (see
//! [`guard`](crate::guard)). It has a user of its own if the node is root, no network and no other process, and limits of
//! memory, time and file size. As soon as it opens its input, the kernel lets it open nothing else (but `/dev/null`): if the file names
//! another one as its backing file, its data file or its extent, opening that fails.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::exec::{ExecPlan, UID_COUNT, UID_FIRST, User};
use crate::guard::Role;
use crate::spec::Programs;

/// The name under which a tool opens its input.
pub const INPUT: &str = "/floe/in";
/// The name under which a tool opens its output.
pub const OUTPUT: &str = "/floe/out";
/// Number of user ids for tools, which follow those of machines.
const USERS: u32 = 64;

/// A program to run, with its files.
#[derive(Debug)]
pub struct Tool {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, with [`INPUT`] and [`OUTPUT`] as file names.
    pub args: Vec<OsString>,
    /// The file that it reads.
    pub input: File,
    /// The file that it writes; opened for reading and writing.
    pub output: File,
}

impl Tool {
    /// Starts the tool. Its standard output and standard error can both be read from the child's standard error. It is killed when the
    /// calling thread ends, which therefore waits for it.
    pub fn start(self, programs: &Programs) -> io::Result<Child> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) % USERS;
        let id = UID_FIRST + UID_COUNT + number;
        let is_root = rustix::process::geteuid().is_root();
        let plan = ExecPlan {
            dir: "/".into(),
            announcement: None,
            // on an unlinked file it could fill the disk long after a node that was killed
            ends_with: Some(std::process::id()),
            cgroup: Vec::new(),
            user: is_root.then_some(User { uid: id, gid: id }),
            device_group: None,
            refuse_huge_pages: false,
            ram: Vec::new(),
            guard: Role::Tool,
            program: self.program,
            args: self.args,
        };
        let (wrapper, first) = programs.wrapper.split_first().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "no exec wrapper is given")
        })?;
        Command::new(wrapper)
            .args(first)
            .args(plan.to_args())
            .env_clear()
            .env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
            .stdin(self.input)
            .stdout(self.output)
            .stderr(Stdio::piped())
            .spawn()
    }
}
