//! The terminal's raw mode, in which every key goes to the guest or the dashboard, and the dashboard's screen.

use super::visible;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The terminal's earlier mode while raw mode is on.
static BEFORE: Mutex<Option<libc::termios>> = Mutex::new(None);

/// Whether the alternate screen is on.
static SCREEN: AtomicBool = AtomicBool::new(false);
/// Switches to the alternate screen, without a cursor.
const SCREEN_ON: &[u8] = b"\x1b[?1049h\x1b[?25l";
/// Switches back to the ordinary screen.
const SCREEN_OFF: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// Another mode of standard input, until this is dropped.
#[derive(Debug)]
pub struct Raw(());

impl Raw {
    /// Switches standard input, which must be a terminal, to raw mode.
    pub fn enter() -> std::io::Result<Raw> {
        // SAFETY: cfmakeraw changes the termios that it is given and nothing else.
        Raw::enter_with(|mode| unsafe { libc::cfmakeraw(mode) })
    }

    /// Stops showing what is typed.
    pub fn without_echo() -> std::io::Result<Raw> {
        Raw::enter_with(|mode| mode.c_lflag &= !libc::ECHO)
    }

    fn enter_with(change: impl FnOnce(&mut libc::termios)) -> std::io::Result<Raw> {
        let fd = std::io::stdin().as_raw_fd();
        let mut mode = std::mem::MaybeUninit::<libc::termios>::uninit();
        // SAFETY: tcgetattr writes a termios to the pointer, which has room for one.
        if unsafe { libc::tcgetattr(fd, mode.as_mut_ptr()) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the call above succeeded, so the termios is fully written.
        let before = unsafe { mode.assume_init() };
        let mut raw = before;
        change(&mut raw);
        set(&raw)?;
        *BEFORE.lock().unwrap_or_else(|e| e.into_inner()) = Some(before);
        Ok(Raw(()))
    }
}

/// The alternate screen and raw mode, until this is dropped.
#[derive(Debug)]
pub struct Screen(Raw);

impl Screen {
    /// Takes the terminal over. Standard input and output must be terminals.
    pub fn enter() -> std::io::Result<Screen> {
        let raw = Raw::enter()?;
        SCREEN.store(true, Ordering::SeqCst);
        write(SCREEN_ON)?;
        Ok(Screen(raw))
    }

    /// Replaces what is shown by these lines; longer ones are cut at `width`.
    pub fn show(&self, text: &str, width: usize, height: usize) -> std::io::Result<()> {
        let mut out = String::from("\x1b[H");
        for line in visible::text(text).lines().take(height.saturating_sub(1)) {
            out.extend(line.chars().take(width));
            out += "\x1b[K\r\n";
        }
        out += "\x1b[J";
        write(out.as_bytes())
    }
}

/// Returns columns and lines of the terminal; the usual ones if it doesn't report them.
pub fn size() -> (usize, usize) {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let fd = std::io::stdout().as_raw_fd();
    // SAFETY: TIOCGWINSZ writes one winsize to the pointer, which points to one.
    let told = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) } == 0;
    if told && size.ws_col > 0 && size.ws_row > 0 {
        (size.ws_col.into(), size.ws_row.into())
    } else {
        (80, 24)
    }
}

fn write(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the old mode and screen, if raw mode is on.
pub fn restore() {
    if SCREEN.swap(false, Ordering::SeqCst) {
        let _ = write(SCREEN_OFF); // as below
    }
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
