//! Makes QEMU get the files of its RAM opened read-only, although it asks for writing. There is one file for the memory
//! of the machine's start, and one for each memory block that was added before the capture.
//!
//! All machines of an image share the pages of one RAM file, so nobody may have a descriptor through which these pages
//! can be written. The mount ensures that: a file that is opened for writing can't be mapped shared. But such a
//! descriptor is costly: at every private mapping of it, the kernel drops the file's cached pages, also those that other
//! machines use. A read-only descriptor has neither problem, and its private mappings can be written as well. QEMU before
//! 9 always opens the file for writing; later versions can be told not to, but then refuse to give memory back. So the
//! wrapper changes it for all of them:
//!
//! - A seccomp filter stops `openat` calls with exactly the flags `O_RDWR`, which is how QEMU opens these files (it opens
//!   all others with close-on-exec). A helper process, forked before, examines the path and answers with a read-only
//!   descriptor of its own: [`FD_FIRST`] for the first file, the next number for the next. Other paths are let through.
//!   The helper ends when QEMU has all of the files, or has ended.
//! - The same filter reports success for punching a hole in one of these descriptors: for a private mapping there is
//!   nothing to do, because the `madvise` that follows gives the memory back.
//!
//! If the kernel can't do this (Linux 5.14 can), or floe is in a container whose runtime watches system calls in this
//! way, QEMU opens the file itself: slower, and just as safe.

use crate::calls::{self, Call, Listener, data, give, jump, load, unless};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The number that the first descriptor gets in QEMU. It and those that follow are below the usual limit of 1024, and
/// above the numbers that QEMU itself uses before it has connections of guests.
const FD_FIRST: u32 = 1000;

/// One RAM file.
struct Ram<'a> {
    path: &'a Path,
    file: File,
    /// The number that its descriptor gets in QEMU.
    number: u32,
}

/// Prepares this process for executing a QEMU that opens each of `paths` once. The process must have one thread, and must
/// already have forbidden new privileges.
pub(crate) fn open_for_reading(paths: &[PathBuf]) -> io::Result<()> {
    let open = |(number, path)| -> io::Result<Ram<'_>> {
        let path: &PathBuf = path;
        let file = File::open(path)?;
        Ok(Ram { path, file, number })
    };
    let rams: Vec<Ram<'_>> = (FD_FIRST..)
        .zip(paths)
        .map(open)
        .collect::<Result<_, _>>()?;
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // SAFETY: this process has one thread, so a child of it may do everything.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            drop(ours);
            // Fork again, so that QEMU is not the helper's parent and need not wait for it. SAFETY: as above; the process
            // in the middle ends at once, the helper when it has served.
            unsafe {
                if libc::fork() == 0 {
                    let served = serve(theirs, rams);
                    libc::_exit(i32::from(served.is_err()));
                }
                libc::_exit(0);
            }
        }
        child => {
            // SAFETY: waits for the child that was just made; no status is asked for.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
    drop(theirs);
    drop(rams);
    calls::send_listener(install(paths.len() as u32)?, &ours)
}

/// Installs the filter for this number of files. Returns the descriptor on which stopped calls are announced.
fn install(files: u32) -> io::Result<OwnedFd> {
    let hole = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
    let mut filter = [
        load(data::ARCH),
        unless(calls::ARCH, 12), // to the end: allowed
        load(data::NR),
        unless(libc::SYS_openat as u32, 3), // to the check for fallocate
        load(data::ARG2),
        unless(libc::O_RDWR as u32, 8), // to the end
        give(libc::SECCOMP_RET_USER_NOTIF),
        unless(libc::SYS_fallocate as u32, 6), // to the end
        load(data::ARG0),
        jump(libc::BPF_JGE, FD_FIRST, 0, 4), // a lower descriptor: to the end
        jump(libc::BPF_JGE, FD_FIRST + files, 3, 0), // a higher descriptor: to the end
        load(data::ARG1),
        unless(hole, 1),               // to the end
        give(libc::SECCOMP_RET_ERRNO), // with errno 0: success
        give(libc::SECCOMP_RET_ALLOW),
    ];
    calls::install(&mut filter)
}

/// The helper process: answers calls until each of the files was opened, or until nobody is left who could open them.
fn serve(socket: OwnedFd, mut rams: Vec<Ram<'_>>) -> io::Result<()> {
    // This process must not keep open the tap device, the log and other files of QEMU.
    for fd in 0..3 {
        // SAFETY: nothing in this process uses these descriptors any more.
        unsafe { libc::close(fd) };
    }
    let Some(listener) = Listener::receive(&socket)? else {
        return Ok(()); // the filter could not be installed
    };
    drop(socket);
    while !rams.is_empty() {
        let Some(call) = listener.wait()? else {
            return Ok(()); // QEMU is gone
        };
        match rams.iter().position(|ram| is_opened(&call, ram)) {
            Some(at) if listener.give(&call, &rams[at].file, rams[at].number) => {
                rams.swap_remove(at);
            }
            _ => listener.go_on(&call),
        }
    }
    Ok(())
}

/// Returns whether a call opens this file.
fn is_opened(call: &Call, ram: &Ram<'_>) -> bool {
    names(call.thread, call.args[1], ram.path)
}

/// Returns whether the path at `address` in a process is `path`. The answer only determines how the file is opened: a
/// process that changes the path afterwards can open only what it may open anyway.
fn names(pid: u32, address: u64, path: &Path) -> bool {
    let wanted = path.as_os_str().as_bytes();
    let mut there = vec![0; wanted.len() + 1];
    let memory = File::open(format!("/proc/{pid}/mem"));
    memory.is_ok_and(|m| m.read_exact_at(&mut there, address).is_ok())
        && there[..wanted.len()] == *wanted
        && there[wanted.len()] == 0
}
