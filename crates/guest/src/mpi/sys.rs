//! System calls that the standard library lacks, each with a safety argument.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::process::Child;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The last signal that asked this process to end; 0 for none.
static ASKED_TO_END: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    ASKED_TO_END.store(signal, Ordering::Relaxed);
}

/// From now on, signals that would end this process are only recorded for [`asked_to_end`]. Programs that it starts don't
/// inherit that.
pub(super) fn keep_signals() {
    let handler = note as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which a signal handler may do.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Returns the signal that has asked this process to end, if there was one.
pub(super) fn asked_to_end() -> Option<i32> {
    match ASKED_TO_END.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}

/// Asks a child to end.
pub(super) fn terminate(child: &Child) {
    // SAFETY: kill takes only numbers; the child was not waited for, so its id still belongs to it.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
}

fn set(stream: &TcpStream, level: libc::c_int, name: libc::c_int, value: u64) -> io::Result<()> {
    let value = value.min(i32::MAX as u64) as libc::c_int;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: pointer and size are those of an int that lives until the call returns.
    let done = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size,
        )
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Makes a connection break if nothing is heard from the other side for this long: a machine that disappears closes
/// nothing.
pub(super) fn break_after(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    let probes = 8;
    let every = (silence.as_secs() / probes).max(1);
    set(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, every)?;
    set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, every)?;
    set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, probes)?;
    let limit_ms = silence.as_millis() as u64;
    set(stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, limit_ms)
}

/// Kills the process group that a child leads.
pub(super) fn end_group(leader: u32) {
    // SAFETY: kill only takes numbers.
    unsafe { libc::kill(-(leader as libc::pid_t), libc::SIGKILL) };
}
