//! System calls that stop until another process answers them: seccomp's user notification, of Linux 5.14.
//!
//! A filter says which calls stop. Whoever has its [`Listener`] hears of each of them and lets it go on, fail, or, if it opens
//! a file, return another descriptor. The answer must not be what keeps a process from doing something: it can change the
//! memory that a call points to after that was looked at.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// `_IOWR('!', 0, struct seccomp_notif)`
const NOTIF_RECV: libc::Ioctl = 0xC050_2100_u32 as libc::Ioctl;
/// `_IOWR('!', 1, struct seccomp_notif_resp)`
const NOTIF_SEND: libc::Ioctl = 0xC018_2101_u32 as libc::Ioctl;
/// `_IOW('!', 3, struct seccomp_notif_addfd)`
const NOTIF_ADDFD: libc::Ioctl = 0x4018_2103_u32 as libc::Ioctl;

/// What a filter finds in the word [`data::ARCH`] on this architecture.
#[cfg(target_arch = "x86_64")]
pub const ARCH: u32 = 0xC000_003E;
/// What a filter finds in the word [`data::ARCH`] on this architecture.
#[cfg(target_arch = "aarch64")]
pub const ARCH: u32 = 0xC000_00B7;

/// Offsets in `struct seccomp_data` (the low half of an argument).
pub mod data {
    /// The call's number.
    pub const NR: u32 = 0;
    /// The architecture, by which the number is to be read.
    pub const ARCH: u32 = 4;
    /// The first argument.
    pub const ARG0: u32 = 16;
    /// The second argument.
    pub const ARG1: u32 = 24;
    /// The third argument.
    pub const ARG2: u32 = 32;
}

/// Returns a statement of a filter.
pub fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Loads a word of `struct seccomp_data`.
pub fn load(at: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
}

/// Ends the filter with what is to become of the call.
pub fn give(what: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, what)
}

/// Compares the loaded word with `k`, and skips `if_true` instructions if the comparison is true, otherwise `if_false`.
pub fn jump(comparison: u32, k: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter {
        jt: if_true,
        jf: if_false,
        ..statement(libc::BPF_JMP | comparison | libc::BPF_K, k)
    }
}

/// Continues if the loaded word is `k`, otherwise skips the next `over` instructions.
pub fn unless(k: u32, over: u8) -> libc::sock_filter {
    jump(libc::BPF_JEQ, k, 0, over)
}

/// Installs a filter for this thread, for what it starts, and for the program that it becomes. It must have forbidden itself
/// new privileges, or be root's. Allocates nothing.
///
/// Returns the descriptor on which stopped calls are announced. Whoever is to answer them must have it before the first one
/// stops; it closes when this process executes another program.
///
/// # Errors
/// If the kernel is older, or somebody listens to the calls of this thread already.
pub fn install(filter: &mut [libc::sock_filter]) -> io::Result<OwnedFd> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
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

/// Sends a filter's descriptor to who is to answer its calls. Allocates nothing.
///
/// # Errors
/// If nobody receives.
pub fn send_listener(listener: OwnedFd, over: impl AsFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [listener.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        over,
        &[IoSlice::new(b"l")],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// A call that has stopped.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The thread that waits for the answer.
    pub thread: u32,
    /// The call's number.
    pub number: i64,
    /// Its arguments.
    pub args: [u64; 6],
    id: u64,
}

/// Where stopped calls are announced.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Receives the descriptor that [`send_listener`] sends; `None` if the sender ended without one.
    ///
    /// # Errors
    /// If nothing can be received.
    pub fn receive(over: impl AsFd) -> io::Result<Option<Listener>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0; 1];
        recvmsg(
            over,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        Ok(fd.map(Listener))
    }

    /// Waits for the next call. Returns `None` once nobody is left who could make one.
    ///
    /// # Errors
    /// If the kernel announces nothing more.
    pub fn wait(&self) -> io::Result<Option<Call>> {
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                done => done?,
            };
            if !fds[0].revents().contains(PollFlags::IN) {
                return Ok(None);
            }
            // SAFETY: all zeros is a value of this struct of integers, and what the kernel wants to find there.
            let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            // SAFETY: the kernel writes one struct of this type behind the pointer, which lives until the call returns.
            if unsafe { libc::ioctl(self.0.as_raw_fd(), NOTIF_RECV, &raw mut call) } == 0 {
                return Ok(Some(Call {
                    thread: call.pid,
                    number: call.data.nr.into(),
                    args: call.data.args,
                    id: call.id,
                }));
            }
            let error = io::Error::last_os_error();
            // the caller was interrupted or killed after poll returned
            if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) {
                return Err(error);
            }
        }
    }

    /// Lets a call do what it would have done.
    pub fn go_on(&self, call: &Call) {
        self.answer(call, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32);
    }

    /// Lets a call fail with an error of the operating system.
    pub fn fail(&self, call: &Call, errno: i32) {
        self.answer(call, -errno, 0);
    }

    fn answer(&self, call: &Call, error: i32, flags: u32) {
        let mut answer = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error,
            flags,
        };
        // SAFETY: the kernel reads one struct of this type behind the pointer, which lives until the call returns. It fails if
        // the caller has ended, which does no harm.
        unsafe { libc::ioctl(self.0.as_raw_fd(), NOTIF_SEND, &raw mut answer) };
    }

    /// Lets a call return a descriptor of a file of this process, with this number there. Returns whether it did.
    pub fn give(&self, call: &Call, file: impl AsFd, number: u32) -> bool {
        let give = libc::seccomp_notif_addfd {
            id: call.id,
            flags: (libc::SECCOMP_ADDFD_FLAG_SETFD | libc::SECCOMP_ADDFD_FLAG_SEND) as u32,
            srcfd: file.as_fd().as_raw_fd() as u32,
            newfd: number,
            newfd_flags: libc::O_CLOEXEC as u32,
        };
        // SAFETY: the kernel reads one struct of this type behind the pointer, which lives until the call returns.
        unsafe { libc::ioctl(self.0.as_raw_fd(), NOTIF_ADDFD, &raw const give) >= 0 }
    }
}
