//! System calls for which there is no safe wrapper: network namespaces of a thread, and a TUN device's name.
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the calling thread a network namespace of its own.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: no pointers; it changes this thread only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Moves the calling thread into a network namespace.
pub fn enter_network(namespace: BorrowedFd) -> io::Result<()> {
    // SAFETY: no pointers, the descriptor is alive; it changes this thread only.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Makes `command` run in a network namespace, and be killed with the thread that starts it if `dies_with_us`.
pub fn run_in(command: &mut Command, namespace: File, dies_with_us: bool) {
    let before_exec = move || {
        // SAFETY: two plain system calls, allowed between fork and exec.
        unsafe {
            check(libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET))?;
            if dies_with_us {
                check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            }
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(before_exec) };
}

/// Makes the calling thread's timers fire when they are due, not up to 50 us later, as they do by default to save power.
pub fn exact_timers() {
    // SAFETY: no pointers; a failure leaves the default, which is only less exact.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Creates a TUN device (bare IP packets) in the calling thread's network namespace. It lives as long as the file.
pub fn open_tun(name: &str) -> io::Result<File> {
    let tun = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name} is too long for a device"),
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which outlives the call.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as _, &mut request) })?;
    Ok(tun)
}

/// Waits until `fd` is readable or the timeout has passed.
pub fn wait_readable(fd: BorrowedFd, timeout_ns: Option<u64>) -> io::Result<()> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let time = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let time = time
        .as_ref()
        .map_or(std::ptr::null(), |time| time as *const libc::timespec);
    // SAFETY: one pollfd and a timespec (or null), both alive; no signal mask.
    match check(unsafe { libc::ppoll(&mut poll, 1, time, std::ptr::null()) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
