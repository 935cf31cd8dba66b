//! `floe exec`: a command in a guest, with this process's streams, terminal and signals.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};

use super::error::CliError;
use super::session::{ONLY, Session, broke, gone, is_over};
use super::terminal::{self, Raw, Signals};
use super::{Context, args, visible};
use floe_api::client::Client;
use floe_api::{ExecRequest, Program, TerminalSize};
use floe_guest::exec::frame::{Channel, DATA_BYTES_MAX, Frame, Outcome};

/// What timeout(1) returns for a command whose time was over.
const EXIT_TIMED_OUT: u8 = 124;
/// Exit code if the connection to the process was lost.
const EXIT_LOST: u8 = 125;
/// Added to a signal's number in the exit code of a process that it ended.
const EXIT_SIGNALLED: u8 = 128;
/// Most bytes that wait for the node before no more input is read.
const UNSENT_BYTES_MAX: usize = 128 << 10;

/// Run a command in a machine's guest
#[derive(Debug, Args)]
#[command(after_help = "\
Example: its output and its exit code are this command's
  floe exec web -- systemctl is-active nginx
Example: a shell
  floe exec -it web -- bash
Example: input from here
  floe exec -i web -- psql < dump.sql
Example: as another user, somewhere else, for at most a minute
  floe exec --user www-data --cwd /srv/app --env MODE=test --timeout 60 web -- ./check
Example: something that stays
  floe exec --detach web -- sh -c 'long-job > /var/log/job 2>&1'

The exit code is the command's; 128 + n if signal n ended it, 124 if its time was over, 125 if the connection to it was lost
(its agent or the machine ended, or the node), 126 or 127 if it could not be started. A command that the guest's kernel ends because
memory is short gives 137, as any that SIGKILL ends.

Signals to this command are passed on. Ctrl-C, SIGTERM and SIGQUIT go to every process that the command started, also to those with a
session of their own: what still runs five seconds after the command itself has ended is killed. A second signal kills all at once.
--timeout does the same. If the command ends by itself, what it leaves running goes on. If SIGKILL ends this command or the node, one
without a terminal goes on in the guest, and its output is lost. The guest needs floe's agent: floe agent install.")]
pub struct Exec {
    /// The machine
    machine: String,
    /// Pass standard input on
    #[arg(long, short)]
    interactive: bool,
    /// Give the command a terminal
    #[arg(long, short)]
    tty: bool,
    /// Run it as this user of the guest, by name or number; by default root
    #[arg(long, short, default_value = "", hide_default_value = true)]
    user: String,
    /// Set a variable of its environment (repeatable)
    #[arg(long, short, value_parser = args::label, value_name = "NAME=VALUE")]
    env: Vec<(String, String)>,
    /// Start it in this directory; by default the user's own
    #[arg(
        long,
        short = 'w',
        value_name = "DIR",
        default_value = "",
        hide_default_value = true
    )]
    cwd: String,
    /// End it, and all that it started, after this time, such as 90s or 10m
    #[arg(long, value_parser = args::time_s, value_name = "TIME")]
    timeout: Option<u64>,
    /// Print its process id and leave it to itself, without input and output
    #[arg(long, short, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,
    /// The command, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Exec {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let mut environment: Vec<String> = self
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !environment.iter().any(|text| text.starts_with("TERM=")) {
            environment.extend(terminal_kind(self.tty));
        }
        let request = ExecRequest {
            user: self.user,
            directory: self.cwd,
            environment,
            terminal: self.tty.then(size),
            timeout_ms: self.timeout.map(|s| s.saturating_mul(1000)),
            detach: self.detach,
            ..ExecRequest::new(Program::Command(self.command))
        };
        let client = Client::connect(&cx.socket)?;
        if self.detach {
            return detached(cx, &client, &self.machine, &request);
        }
        attached(&client, &self.machine, &request, self.interactive)
    }
}

/// Returns the variable that tells which kind of terminal this one is, for a process that gets one.
pub(super) fn terminal_kind(tty: bool) -> Vec<String> {
    let kind = std::env::var("TERM").ok().filter(|_| tty);
    kind.map(|kind| format!("TERM={kind}"))
        .into_iter()
        .collect()
}

pub(super) fn size() -> TerminalSize {
    let (columns, rows) = terminal::size();
    TerminalSize {
        columns: columns.min(usize::from(u16::MAX)) as u16,
        rows: rows.min(usize::from(u16::MAX)) as u16,
    }
}

fn detached(
    cx: &Context,
    client: &Client,
    machine: &str,
    request: &ExecRequest,
) -> Result<ExitCode, CliError> {
    let mut session = Session::start(client, machine, request)?;
    let mut pid = None;
    loop {
        while let Some(frame) = session.come() {
            match frame {
                Frame::Started { pid: number, .. } => pid = Some(number),
                Frame::Over { outcome, .. } => {
                    let Some(pid) = pid else {
                        return Ok(code(machine, outcome));
                    };
                    let told = std::collections::BTreeMap::from([("pid", pid)]);
                    cx.out.value(&told, |_| format!("{pid}\n"))?;
                    return Ok(ExitCode::SUCCESS);
                }
                _ => {}
            }
        }
        if !session.read().map_err(|error| broke(machine, error))? {
            return Err(gone(machine, "the node has ended"));
        }
    }
}

/// Runs a process with this one's streams. Returns its exit code.
pub(super) fn attached(
    client: &Client,
    machine: &str,
    request: &ExecRequest,
    interactive: bool,
) -> Result<ExitCode, CliError> {
    let terminal = request.terminal.is_some();
    let signals = Signals::take(terminal);
    let signals = signals.map_err(|e| CliError::failed("cannot wait for signals", e))?;
    let session = Session::start(client, machine, request)?;
    let raw = match terminal && interactive && io::stdin().is_terminal() {
        true => Some(
            Raw::enter()
                .map_err(|e| CliError::failed("cannot switch the terminal to raw mode", e))?,
        ),
        false => None,
    };
    let ended = Attached::new(session, signals, terminal, interactive).and_then(Attached::run);
    // before anything is printed
    drop(raw);
    match ended.map_err(|error| broke(machine, error))? {
        Ended::Process(outcome) => Ok(code(machine, outcome)),
        Ended::Here(code) => Ok(ExitCode::from(code)),
    }
}

/// Returns the exit code for how a process ended.
fn code(machine: &str, outcome: Outcome) -> ExitCode {
    ExitCode::from(match outcome {
        Outcome::Exited(code) => code,
        Outcome::Signalled(number) => EXIT_SIGNALLED.saturating_add(number),
        Outcome::TimedOut => {
            eprintln!("error: its time was over, so it was ended");
            EXIT_TIMED_OUT
        }
        Outcome::NotStarted { code, why } => {
            eprintln!("error: {}", visible::message(&format!("{machine}: {why}")));
            code
        }
        Outcome::Lost { why } => {
            gone(machine, &why).print(false);
            EXIT_LOST
        }
    })
}

/// Why the loop ended.
enum Ended {
    Process(Outcome),
    /// This command ends, with this exit code.
    Here(u8),
}

/// One thread with one poll: input and signals to the guest, its output to here.
struct Attached {
    session: Session,
    signals: Signals,
    terminal: bool,
    input: Option<File>,
    outputs: [File; 2],
    unsent: Vec<u8>,
    /// The signal that was passed on last.
    passed: Option<u8>,
}

impl Attached {
    fn new(
        session: Session,
        signals: Signals,
        terminal: bool,
        interactive: bool,
    ) -> io::Result<Attached> {
        session.set_nonblocking()?;
        // not the standard library's: poll does not see what those have buffered
        let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
        let mut attached = Attached {
            session,
            signals,
            terminal,
            input: None,
            outputs: [own(io::stdout().as_fd())?, own(io::stderr().as_fd())?],
            unsent: Vec::new(),
            passed: None,
        };
        match interactive {
            true => attached.input = Some(own(io::stdin().as_fd())?),
            false => attached.end_input(),
        }
        Ok(attached)
    }

    fn end_input(&mut self) {
        self.input = None;
        let end = Frame::End {
            stream: ONLY,
            channel: Channel::Input,
        };
        end.encode(&mut self.unsent);
    }

    fn run(mut self) -> io::Result<Ended> {
        loop {
            while let Some(frame) = self.session.come() {
                if let Some(ended) = self.take(frame)? {
                    return Ok(ended);
                }
            }
            self.flush()?;
            let [node, signal, input] = self.wait()?;
            if node && !self.read()? {
                return Ok(Ended::Process(Outcome::Lost {
                    why: "the node has ended".into(),
                }));
            }
            if signal && let Some(ended) = self.signalled()? {
                return Ok(ended);
            }
            if input {
                self.take_input()?;
            }
        }
    }

    /// Returns whether node, signals and input can be read.
    fn wait(&self) -> io::Result<[bool; 3]> {
        let mut node = PollFlags::IN;
        node.set(PollFlags::OUT, !self.unsent.is_empty());
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.session.fd(), node),
            PollFd::from_borrowed_fd(self.signals.fd(), PollFlags::IN),
        ];
        if let Some(input) = &self.input
            && self.unsent.len() < UNSENT_BYTES_MAX
        {
            fds.push(PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => return Ok([false; 3]),
            other => other?,
        };
        let readable = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        let is = |at: usize| {
            fds.get(at)
                .is_some_and(|fd| fd.revents().intersects(readable))
        };
        Ok([is(0), is(1), is(2)])
    }

    fn read(&mut self) -> io::Result<bool> {
        match self.session.read() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(true),
            done => done,
        }
    }

    fn take(&mut self, frame: Frame) -> io::Result<Option<Ended>> {
        match frame {
            Frame::Data { channel, bytes, .. } => {
                let which = usize::from(channel == Channel::Errors);
                match self.outputs[which].write_all(&bytes) {
                    Ok(()) => Ok(None),
                    // whoever read it has gone, as they would have from the process itself
                    Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                        let number = libc::SIGPIPE as u8;
                        self.pass(number);
                        self.flush()?;
                        Ok(Some(Ended::Here(EXIT_SIGNALLED + number)))
                    }
                    Err(e) => Err(e),
                }
            }
            Frame::Over { outcome, .. } => Ok(Some(Ended::Process(outcome))),
            _ => Ok(None),
        }
    }

    fn pass(&mut self, number: u8) {
        let signal = Frame::Signal {
            stream: ONLY,
            number,
        };
        signal.encode(&mut self.unsent);
    }

    fn signalled(&mut self) -> io::Result<Option<Ended>> {
        while let Some(number) = self.signals.next()? {
            if number == libc::SIGWINCH as u8 {
                let TerminalSize { columns, rows } = size();
                let size = Frame::Size {
                    stream: ONLY,
                    columns,
                    rows,
                };
                size.encode(&mut self.unsent);
            } else if self.terminal || self.passed == Some(number) {
                // with a terminal this ends the session, as closing its window does; without, it insists
                if !self.terminal && number != libc::SIGHUP as u8 {
                    self.pass(libc::SIGKILL as u8);
                    self.flush()?;
                }
                return Ok(Some(Ended::Here(EXIT_SIGNALLED.saturating_add(number))));
            } else {
                self.passed = Some(number);
                self.pass(number);
            }
        }
        Ok(None)
    }

    fn take_input(&mut self) -> io::Result<()> {
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        let mut bytes = vec![0; DATA_BYTES_MAX];
        let count = match input.read(&mut bytes) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // a terminal that has gone
            Err(e) if e.raw_os_error() == Some(libc::EIO) => 0,
            other => other?,
        };
        if count == 0 {
            self.end_input();
            return Ok(());
        }
        bytes.truncate(count);
        let data = Frame::Data {
            stream: ONLY,
            channel: Channel::Input,
            bytes,
        };
        data.encode(&mut self.unsent);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let written = self.session.writer().write(&self.unsent);
            match written {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // the process is over, as the next read tells
                Err(e) if is_over(&e) => self.unsent.clear(),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Connects standard input and output to a TCP port of a machine's guest
#[derive(Debug, Args)]
#[command(
    after_help = "Example: what floe ssh makes of it\n  ssh -o ProxyCommand='floe dial web 22' root@web"
)]
pub struct Dial {
    /// The machine
    machine: String,
    /// The port
    port: u16,
}

impl Dial {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let request = ExecRequest::new(Program::Dial { port: self.port });
        let client = Client::connect(&cx.socket)?;
        attached(&client, &self.machine, &request, true)
    }
}

/// Runs a tool that takes and returns nothing.
pub(super) fn call(client: &Client, machine: &str, request: &ExecRequest) -> Result<(), CliError> {
    Session::start(client, machine, request)?.conclude(Vec::new())
}
