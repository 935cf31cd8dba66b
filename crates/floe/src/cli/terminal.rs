//! The terminal's raw mode, in which every key goes to the guest.

use std::os::fd::AsRawFd;
use std::sync::Mutex;

/// The mode before raw mode, while raw mode is on.
static BEFORE: Mutex<Option<libc::termios>> = Mutex::new(None);

/// Raw mode of standard input until it is dropped.
#[derive(Debug)]
pub struct Raw(());

impl Raw {
    /// Switches standard input, which must be a terminal, to raw mode.
    pub fn enter() -> std::io::Result<Raw> {
        let fd = std::io::stdin().as_raw_fd();
        let mut mode = std::mem::MaybeUninit::<libc::termios>::uninit();
        // SAFETY: tcgetattr writes a termios to the pointer, which has room for one.
        if unsafe { libc::tcgetattr(fd, mode.as_mut_ptr()) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the call above succeeded, so all of it is written.
        let before = unsafe { mode.assume_init() };
        let mut raw = before;
        // SAFETY: cfmakeraw changes the termios that it is given and nothing else.
        unsafe { libc::cfmakeraw(&mut raw) };
        set(&raw)?;
        *BEFORE.lock().unwrap_or_else(|e| e.into_inner()) = Some(before);
        Ok(Raw(()))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the old mode back, if raw mode is on.
pub fn restore() {
    let before = BEFORE.lock().unwrap_or_else(|e| e.into_inner()).take();
    if let Some(before) = before {
        let _ = set(&before); // the terminal is gone: nothing to restore
    }
}

fn set(mode: &libc::termios) -> std::io::Result<()> {
    // SAFETY: tcsetattr reads one termios from a valid reference.
    match unsafe { libc::tcsetattr(std::io::stdin().as_raw_fd(), libc::TCSANOW, mode) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
