//! Ctrl-C and SIGTERM as a flag, so that destructors run.
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn handled() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data that sigemptyset initialises before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        set
    }
}

/// The flag is raised by the first SIGINT or SIGTERM; the second one ends the process at once. Call it before other
/// threads start: they inherit that these signals are left to the thread that waits for them.
pub fn until_interrupted() -> io::Result<Arc<AtomicBool>> {
    let set = handled();
    // SAFETY: the set is initialised; only this thread's mask changes.
    if unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let flag = Arc::new(AtomicBool::new(false));
    let raised = flag.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            loop {
                let mut signal = 0;
                // SAFETY: both pointers are to live values.
                unsafe { libc::sigwait(&handled(), &mut signal) };
                if raised.swap(true, Relaxed) {
                    std::process::exit(130);
                }
            }
        })?;
    Ok(flag)
}

/// A child inherits what is blocked: give it the signals back.
pub fn restore_in(command: &mut Command) -> &mut Command {
    // SAFETY: sigprocmask may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::sigprocmask(libc::SIG_UNBLOCK, &handled(), std::ptr::null_mut());
            Ok(())
        })
    }
}
