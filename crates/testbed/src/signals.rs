//! Turns Ctrl-C and SIGTERM into a flag, so that the program can clean up.
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn raise(_signal: libc::c_int) {
    INTERRUPTED.store(true, Relaxed);
}

/// Returns the flag that the first SIGINT or SIGTERM sets; the second one ends the process at once. Processes that are
/// started later are not affected, because exec restores the default.
pub fn until_interrupted() -> io::Result<&'static AtomicBool> {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: all-zero is a valid sigaction; the handler only stores to an atomic.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = raise as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut())
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(&INTERRUPTED)
}
