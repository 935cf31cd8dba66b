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

/// Signals to this process, as something to read. They have no other effect any more.
#[derive(Debug)]
pub struct Signals(std::fs::File);

impl Signals {
    /// Takes over the signals that end a process; with `terminal` also those about its terminal. Must be called before there is
    /// a second thread.
    pub fn take(terminal: bool) -> std::io::Result<Signals> {
        use std::os::fd::FromRawFd;
        let checked = |result: libc::c_int| match result {
            -1 => Err(std::io::Error::last_os_error()),
            other => Ok(other),
        };
        let mut wanted = vec![libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
        if terminal {
            wanted.push(libc::SIGWINCH);
        }
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset writes a whole sigset_t to the pointer, which has room for one.
        checked(unsafe { libc::sigemptyset(set.as_mut_ptr()) })?;
        // SAFETY: the call above succeeded.
        let mut set = unsafe { set.assume_init() };
        for number in wanted {
            // SAFETY: changes the set that it is given and nothing else.
            checked(unsafe { libc::sigaddset(&raw mut set, number) })?;
        }
        // SAFETY: reads the set; the old mask is not wanted.
        let blocked =
            unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        checked(blocked)?;
        let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
        // SAFETY: reads the set and returns a descriptor.
        let fd = checked(unsafe { libc::signalfd(-1, &raw const set, flags) })?;
        // SAFETY: the call above has made the descriptor for us alone.
        Ok(Signals(unsafe { std::fs::File::from_raw_fd(fd) }))
    }

    /// What to wait for.
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }

    /// Returns the number of a signal that has come, if there is one.
    pub fn next(&mut self) -> std::io::Result<Option<u8>> {
        use std::io::Read;
        // struct signalfd_siginfo, which begins with the number
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match self.0.read(&mut info) {
            Ok(_) => Ok(Some(info[0])),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }
}
