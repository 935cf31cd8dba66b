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

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The number that the first descriptor gets in QEMU. It and those that follow are below the usual limit of 1024, and
/// above the numbers that QEMU itself uses before it has connections of guests.
const FD_FIRST: u32 = 1000;

/// `_IOWR('!', 0, struct seccomp_notif)`
const NOTIF_RECV: libc::Ioctl = 0xC050_2100_u32 as libc::Ioctl;
/// `_IOWR('!', 1, struct seccomp_notif_resp)`
const NOTIF_SEND: libc::Ioctl = 0xC018_2101_u32 as libc::Ioctl;
/// `_IOW('!', 3, struct seccomp_notif_addfd)`
const NOTIF_ADDFD: libc::Ioctl = 0x4018_2103_u32 as libc::Ioctl;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;

/// Offsets in `struct seccomp_data` (the low half of an argument).
mod data {
    pub const NR: u32 = 0;
    pub const ARCH: u32 = 4;
    pub const ARG0: u32 = 16;
    pub const ARG1: u32 = 24;
    pub const ARG2: u32 = 32;
}

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
    let listener = install(paths.len() as u32)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [listener.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        &ours,
        &[IoSlice::new(b"l")],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Installs the filter for this number of files. Returns the descriptor on which stopped calls are announced.
fn install(files: u32) -> io::Result<OwnedFd> {
    let load = |at| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let give = |what| statement(libc::BPF_RET | libc::BPF_K, what);
    let hole = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
    let mut program = [
        load(data::ARCH),
        unless(ARCH, 12), // to the end: allowed
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
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the call reads the program behind the pointer, which lives until it returns.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made the descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Compares the loaded word with `k`, and skips `if_true` instructions if the comparison is true, otherwise `if_false`.
fn jump(comparison: u32, k: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter {
        jt: if_true,
        jf: if_false,
        ..statement(libc::BPF_JMP | comparison | libc::BPF_K, k)
    }
}

/// Continues if the loaded word is `k`, otherwise skips the next `over` instructions.
fn unless(k: u32, over: u8) -> libc::sock_filter {
    jump(libc::BPF_JEQ, k, 0, over)
}

/// The helper process: answers calls until each of the files was opened, or until nobody is left who could open them.
fn serve(socket: OwnedFd, mut rams: Vec<Ram<'_>>) -> io::Result<()> {
    // This process must not keep open the tap device, the log and other files of QEMU.
    for fd in 0..3 {
        // SAFETY: nothing in this process uses these descriptors any more.
        unsafe { libc::close(fd) };
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    recvmsg(
        &socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let listener = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let Some(listener) = listener else {
        return Ok(()); // the filter could not be installed
    };
    drop(socket);
    while !rams.is_empty() {
        let mut fds = [PollFd::new(&listener, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            done => done?,
        };
        if !fds[0].revents().contains(PollFlags::IN) {
            return Ok(()); // QEMU is gone
        }
        if let Some(opened) = answer(&listener, &rams)? {
            rams.swap_remove(opened);
        }
    }
    Ok(())
}

/// Answers one stopped call. Returns the index of the file that it opened, if it opened one.
fn answer(listener: &OwnedFd, rams: &[Ram<'_>]) -> io::Result<Option<usize>> {
    // SAFETY: all zeros is a value of this struct of integers, and what the kernel wants to find there.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one struct of this type behind the pointer, which lives until the call returns.
    if unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_RECV, &raw mut call) } != 0 {
        let error = io::Error::last_os_error();
        // The caller was interrupted or killed after poll returned.
        let gone = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR));
        return if gone { Ok(None) } else { Err(error) };
    }
    let is_it = |ram: &Ram<'_>| names(call.pid, call.data.args[1], ram.path);
    if let Some(opened) = rams.iter().position(is_it) {
        let give = libc::seccomp_notif_addfd {
            id: call.id,
            flags: (libc::SECCOMP_ADDFD_FLAG_SETFD | libc::SECCOMP_ADDFD_FLAG_SEND) as u32,
            srcfd: rams[opened].file.as_raw_fd() as u32,
            newfd: rams[opened].number,
            newfd_flags: libc::O_CLOEXEC as u32,
        };
        // SAFETY: the kernel reads one struct of this type behind the pointer, which lives until the call returns.
        if unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_ADDFD, &raw const give) } >= 0 {
            return Ok(Some(opened));
        }
    }
    let mut go_on = libc::seccomp_notif_resp {
        id: call.id,
        val: 0,
        error: 0,
        flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    };
    // SAFETY: as above. It fails if the caller has ended, which does no harm.
    unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SEND, &raw mut go_on) };
    Ok(None)
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
