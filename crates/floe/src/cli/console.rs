//! `floe console`: connects this terminal to the machine's serial line.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::CliError;
use super::terminal::Raw;
use super::visible;
use floe_api::client::Client;
use floe_api::{ErrorCode, LogQuery};

/// Ctrl-], the key with which telnet and virsh detach.
const DETACH: u8 = 0x1d;
/// Bytes of earlier output that are shown first: somewhat more than a screen of 80 x 25.
const REPLAY_BYTES: u64 = 4096;
/// How often the node is told that somebody types. Whose disk requests go first changes within seconds, so more often is of no use.
const TOLD_EVERY: Duration = Duration::from_millis(250);
/// Most bytes that are buffered for a guest that does not read (a UART takes 16 at a time).
const UNSENT_BYTES_MAX: usize = 64 * 1024;

/// Attaches until the user detaches, the guest ends, or (without a terminal) the input has ended and the guest has been
/// quiet for `quiet`.
pub fn attach(client: &Client, machine: &str, quiet: Duration) -> Result<(), CliError> {
    let socket = client.attach(machine)?;
    let terminal = std::io::stdin().is_terminal();
    // Attach first and replay then: a byte in between is shown twice rather than not at all.
    replay(client, machine)?;
    let raw = if terminal {
        let machine = visible::line(machine);
        eprintln!("-- console of {machine}; Ctrl-] leaves --");
        Some(
            Raw::enter()
                .map_err(|e| CliError::failed("cannot switch the terminal to raw mode", e))?,
        )
    } else {
        None
    };
    let typed = || {
        // what can't be told now is told with a later key
        let _ = client.has_input(machine);
    };
    let left = Session::new(socket, terminal, quiet).run(&typed);
    drop(raw);
    match left {
        Ok(Left::Detached) => eprintln!("\n-- left; {machine} goes on --"),
        Ok(Left::Quiet) => {}
        Ok(Left::Closed) => {
            let fix =
                format!("floe ps tells whether it runs, floe logs {machine} what it wrote last");
            let text =
                format!("{machine} closed its console: it stopped, or another console took over");
            return Err(CliError::new(ErrorCode::Failed, text, fix));
        }
        Err(e) => return Err(CliError::failed("the console broke off", e)),
    }
    Ok(())
}

fn replay(client: &Client, machine: &str) -> Result<(), CliError> {
    let query = LogQuery {
        follow: false,
        tail_bytes: Some(REPLAY_BYTES),
    };
    let mut text = Vec::new();
    // The query bounds this; a node that sends more is cut off.
    let mut log = client.logs(machine, &query)?.take(REPLAY_BYTES);
    log.read_to_end(&mut text)
        .map_err(|e| CliError::failed("cannot read the console's history", e))?;
    out(whole_lines(&text)).map_err(|e| CliError::failed("cannot write to standard output", e))
}

/// Drops the first line, which may be incomplete.
fn whole_lines(tail: &[u8]) -> &[u8] {
    if (tail.len() as u64) < REPLAY_BYTES {
        return tail;
    }
    let cut = tail.iter().position(|&b| b == b'\n').map_or(0, |n| n + 1);
    &tail[cut..]
}

fn out(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Why a session ended.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    Detached,
    Closed,
    Quiet,
}

struct Session {
    socket: UnixStream,
    terminal: bool,
    quiet: Duration,
    input_open: bool,
    unsent: Vec<u8>,
}

impl Session {
    fn new(socket: UnixStream, terminal: bool, quiet: Duration) -> Session {
        Session {
            socket,
            terminal,
            quiet,
            input_open: true,
            unsent: Vec::new(),
        }
    }

    /// Runs the session in one thread with one poll: keys to the guest, the guest's bytes to the screen.
    /// Tells `typed` now and then that somebody types: those bytes don't pass the node, which orders disk requests by that.
    fn run(mut self, typed: &dyn Fn()) -> std::io::Result<Left> {
        self.socket.set_nonblocking(true)?;
        let mut told = None;
        // Not `Stdin`: poll does not see what that has buffered.
        let mut stdin = std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        loop {
            let (input, guest) = self.wait(&stdin)?;
            if guest && let Some(left) = self.take_from_guest()? {
                return Ok(left);
            }
            if input && let Some(left) = self.take_from_input(&mut stdin)? {
                return Ok(left);
            }
            if input && self.terminal && told.is_none_or(|at: Instant| at.elapsed() >= TOLD_EVERY) {
                told = Some(Instant::now());
                typed();
            }
            if !input && !guest && !self.input_open && self.unsent.is_empty() {
                return Ok(Left::Quiet);
            }
            self.flush()?;
        }
    }

    /// Returns whether the input and the guest can be read; neither if the input has ended and `quiet` has passed.
    fn wait(&self, stdin: &std::fs::File) -> std::io::Result<(bool, bool)> {
        let mut guest = PollFlags::IN;
        guest.set(PollFlags::OUT, !self.unsent.is_empty());
        let mut fds = vec![PollFd::from_borrowed_fd(self.socket.as_fd(), guest)];
        if self.input_open && self.unsent.len() < UNSENT_BYTES_MAX {
            fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        let limit = Timespec {
            tv_sec: i64::try_from(self.quiet.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(self.quiet.subsec_nanos()),
        };
        let limit = (!self.input_open).then_some(&limit);
        match poll(&mut fds, limit) {
            Err(rustix::io::Errno::INTR) => return self.wait(stdin),
            other => other?,
        };
        let any = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
        Ok((any(1), any(0)))
    }

    fn take_from_guest(&mut self) -> std::io::Result<Option<Left>> {
        let mut buffer = [0; 16 * 1024];
        match self.socket.read(&mut buffer) {
            Ok(0) => Ok(Some(Left::Closed)),
            Ok(n) => out(&buffer[..n]).map(|()| None),
            Err(e) if retry(&e) => Ok(None),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Ok(Some(Left::Closed)),
            Err(e) => Err(e),
        }
    }

    fn take_from_input(&mut self, input: &mut impl Read) -> std::io::Result<Option<Left>> {
        let mut buffer = [0; 4096];
        let n = match input.read(&mut buffer) {
            Err(e) if retry(&e) => return Ok(None),
            other => other?,
        };
        self.input_open = n > 0;
        let keys = &buffer[..n];
        match keys.iter().position(|&k| k == DETACH) {
            Some(at) if self.terminal => {
                self.unsent.extend_from_slice(&keys[..at]);
                self.flush()?;
                Ok(Some(Left::Detached))
            }
            _ => {
                self.unsent.extend_from_slice(keys);
                Ok(None)
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(e) if retry(&e) => return Ok(()),
                // The guest is gone; the next read reports that.
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => self.unsent.clear(),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn retry(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(terminal: bool) -> (Session, UnixStream) {
        let (ours, guest) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Session::new(ours, terminal, Duration::from_secs(1)), guest)
    }

    #[test]
    fn the_detach_key_leaves_and_what_was_typed_before_it_arrives() {
        let (mut session, mut guest) = session(true);
        let left = session.take_from_input(&mut &b"ls\r\x1drm"[..]).unwrap();
        assert_eq!(left, Some(Left::Detached));
        drop(session);
        let mut got = String::new();
        guest.read_to_string(&mut got).unwrap();
        assert_eq!(got, "ls\r");
    }

    #[test]
    fn a_pipe_may_contain_every_byte() {
        let (mut session, mut guest) = session(false);
        assert_eq!(session.take_from_input(&mut &b"a\x1db"[..]).unwrap(), None);
        session.flush().unwrap();
        drop(session);
        let mut got = Vec::new();
        guest.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"a\x1db");
    }

    #[test]
    fn the_end_of_the_input_is_not_the_end_of_the_session() {
        let (mut session, _guest) = session(false);
        assert_eq!(session.take_from_input(&mut &b""[..]).unwrap(), None);
        assert!(!session.input_open);
    }

    #[test]
    fn a_guest_that_goes_away_ends_the_session() {
        let (mut session, guest) = session(true);
        drop(guest);
        assert_eq!(session.take_from_guest().unwrap(), Some(Left::Closed));
    }

    #[test]
    fn a_cut_first_line_is_not_replayed() {
        assert_eq!(whole_lines(b"short\nlog"), b"short\nlog");
        let mut long = vec![b'x'; REPLAY_BYTES as usize - 4];
        long.extend_from_slice(b"\nend");
        assert_eq!(whole_lines(&long), b"end");
    }
}
