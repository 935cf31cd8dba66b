//! `floe console`: connects this terminal to the machine's serial line. While that would lose what is typed, the node keeps it; and while
//! the machine is parked, travels, or runs on the node that has borrowed it, what it writes there is shown ([`place`]).

mod place;

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::CliError;
use super::terminal::Raw;
use super::visible;
use floe_api::client::Client;
use floe_api::{ErrorCode, LogQuery};
use place::{Keys, Place};

/// Ctrl-], the key with which telnet and virsh detach.
const DETACH: u8 = 0x1d;
/// Bytes of earlier output that are shown first: somewhat more than a screen of 80 x 25.
const REPLAY_BYTES: u64 = 4096;
/// How long nothing comes of a machine whose QEMU is not here until it is looked whether it is now.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most bytes that are buffered for a guest that does not read (a UART takes 16 at a time).
const UNSENT_BYTES_MAX: usize = 64 * 1024;

/// Attaches until the user detaches, the guest ends, or (without a terminal) the input has ended and the guest has been
/// quiet for `quiet`. A terminal follows the machine.
pub fn attach(client: &Client, machine: &str, quiet: Duration) -> Result<(), CliError> {
    let terminal = std::io::stdin().is_terminal();
    let mut place = Place::of(client, machine)?;
    let mut socket = place.open(client, machine, REPLAY_BYTES)?;
    if place == Place::Here {
        // Attach first and replay then: a byte in between is shown twice rather than not at all.
        replay(client, machine)?;
    }
    let shown = visible::line(machine);
    let raw = if terminal {
        eprintln!("-- console of {shown}; Ctrl-] leaves --");
        if place != Place::Here {
            eprintln!("-- {} --", visible::line(&place.told()));
        }
        Some(
            Raw::enter()
                .map_err(|e| CliError::failed("cannot switch the terminal to raw mode", e))?,
        )
    } else {
        None
    };
    let mut keys = Keys::new(client, machine, terminal);
    let left = loop {
        // only a terminal follows: what is piped in is kept wherever it is
        let looks = terminal && place != Place::Here;
        let moved = || looks && Place::of(client, machine).is_ok_and(|now| now != place);
        let mut keep = |typed: &[u8]| keys.are_kept(typed, &place);
        let left = Session::new(socket, terminal, quiet).run(&mut keep, &moved)?;
        let follows = terminal && matches!(left, Left::Closed | Left::Moved);
        let next = match follows {
            true => place.after(client, machine, REPLAY_BYTES)?,
            false => None,
        };
        let Some((next, opened)) = next else {
            break left;
        };
        (place, socket) = (next, opened);
        eprint!("\r\n-- {shown}: {} --\r\n", visible::line(&place.told()));
    };
    drop(raw);
    match left {
        Left::Detached => eprintln!("\n-- left; {machine} goes on --"),
        Left::Quiet => {}
        Left::Closed | Left::Moved => {
            let fix =
                format!("floe ps tells whether it runs, floe logs {machine} what it wrote last");
            let text =
                format!("{machine} closed its console: it stopped, or another console took over");
            return Err(CliError::new(ErrorCode::Failed, text, fix));
        }
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
    /// The machine is elsewhere now.
    Moved,
}

/// Has what was typed kept. Returns whether it is: it is not for the line then.
type Keep<'a> = dyn FnMut(&[u8]) -> Result<bool, CliError> + 'a;

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

    /// Runs the session in one thread with one poll: keys to the guest, the guest's bytes to the screen. `moved` says whether the machine
    /// is elsewhere now; it is asked when nothing comes.
    fn run(mut self, keep: &mut Keep<'_>, moved: &dyn Fn() -> bool) -> Result<Left, CliError> {
        let broke = |error: std::io::Error| CliError::failed("the console broke off", error);
        self.socket.set_nonblocking(true).map_err(broke)?;
        // Not `Stdin`: poll does not see what that has buffered.
        let stdin = std::io::stdin().as_fd().try_clone_to_owned();
        let mut stdin = std::fs::File::from(stdin.map_err(broke)?);
        loop {
            let (input, guest) = self.wait(&stdin).map_err(broke)?;
            if guest && let Some(left) = self.take_from_guest().map_err(broke)? {
                return Ok(left);
            }
            if input && let Some(left) = self.take_from_input(&mut stdin, keep)? {
                return Ok(left);
            }
            if !input && !guest && !self.input_open && self.unsent.is_empty() {
                return Ok(Left::Quiet);
            }
            if !input && !guest && moved() {
                return Ok(Left::Moved);
            }
            self.flush().map_err(broke)?;
        }
    }

    /// Returns whether the input and the guest can be read; neither if nothing came for a while, which is `quiet` once the input has ended.
    fn wait(&self, stdin: &std::fs::File) -> std::io::Result<(bool, bool)> {
        let mut guest = PollFlags::IN;
        guest.set(PollFlags::OUT, !self.unsent.is_empty());
        let mut fds = vec![PollFd::from_borrowed_fd(self.socket.as_fd(), guest)];
        if self.input_open && self.unsent.len() < UNSENT_BYTES_MAX {
            fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        let limit = match self.input_open {
            true => LOOK_EVERY,
            false => self.quiet,
        };
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        match poll(&mut fds, Some(&limit)) {
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

    fn take_from_input(
        &mut self,
        input: &mut impl Read,
        keep: &mut Keep<'_>,
    ) -> Result<Option<Left>, CliError> {
        let broke = |error: std::io::Error| CliError::failed("the console broke off", error);
        let mut buffer = [0; 4096];
        let n = match input.read(&mut buffer) {
            Err(e) if retry(&e) => return Ok(None),
            other => other.map_err(broke)?,
        };
        self.input_open = n > 0;
        let detach = buffer[..n].iter().position(|&k| k == DETACH);
        let detach = detach.filter(|_| self.terminal);
        let keys = &buffer[..detach.unwrap_or(n)];
        if !keys.is_empty() && !keep(keys)? {
            self.unsent.extend_from_slice(keys);
        }
        if detach.is_none() {
            return Ok(None);
        }
        self.flush().map_err(broke)?;
        Ok(Some(Left::Detached))
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

    fn take(session: &mut Session, mut input: &[u8]) -> Option<Left> {
        session
            .take_from_input(&mut input, &mut |_| Ok(false))
            .unwrap()
    }

    fn session(terminal: bool) -> (Session, UnixStream) {
        let (ours, guest) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Session::new(ours, terminal, Duration::from_secs(1)), guest)
    }

    #[test]
    fn the_detach_key_leaves_and_what_was_typed_before_it_arrives() {
        let (mut session, mut guest) = session(true);
        let left = take(&mut session, b"ls\r\x1drm");
        assert_eq!(left, Some(Left::Detached));
        drop(session);
        let mut got = String::new();
        guest.read_to_string(&mut got).unwrap();
        assert_eq!(got, "ls\r");
    }

    #[test]
    fn a_pipe_may_contain_every_byte() {
        let (mut session, mut guest) = session(false);
        assert_eq!(take(&mut session, b"a\x1db"), None);
        session.flush().unwrap();
        drop(session);
        let mut got = Vec::new();
        guest.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"a\x1db");
    }

    #[test]
    fn what_is_kept_is_not_typed_on_the_line() {
        let (mut session, mut guest) = session(true);
        let mut kept = Vec::new();
        let mut keep = |typed: &[u8]| {
            kept.extend_from_slice(typed);
            Ok(true)
        };
        let left = session.take_from_input(&mut &b"ls\r\x1drm"[..], &mut keep);
        assert_eq!(left.unwrap(), Some(Left::Detached));
        assert_eq!(kept, b"ls\r");
        drop(session);
        let mut got = Vec::new();
        guest.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"");
    }

    #[test]
    fn the_end_of_the_input_is_not_the_end_of_the_session() {
        let (mut session, _guest) = session(false);
        assert_eq!(take(&mut session, b""), None);
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
