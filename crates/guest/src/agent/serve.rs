//! The loop that serves the port, the socket that programs connect to, and the programs.

use super::core::{Action, Client, Core, Event};
use super::port::{self, Port};
use super::{SOCKET_PATH, identity, sys};
use crate::line::{LINE_BYTES_MAX, Lines};
use crate::message::{Answer, Refusal, ToHost, codes};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Most programs at a time; the next one waits until another has disconnected.
const CLIENTS_MAX: usize = 64;
/// How often a port with nobody at its other end is checked: a clone waits for its node's first message this way.
const GONE_LOOK: Duration = Duration::from_millis(20);
/// How often to check for calls that have waited too long.
const TICK: Duration = Duration::from_secs(1);
/// How often a silent node is notified again while a program waits for it.
const WAKE_AGAIN: Duration = Duration::from_secs(3);
/// How often to look for a missing port: the kernel module may be loaded after the agent starts.
const PORT_LOOK: Duration = Duration::from_millis(200);

/// The agent's settings.
#[derive(Debug, Clone)]
pub struct Options {
    /// The port's device; with `None` it is found by its name.
    pub port: Option<PathBuf>,
    /// The socket that programs connect to.
    pub socket: PathBuf,
    /// The socket's mode, which determines who may connect.
    pub mode: u32,
}

impl Default for Options {
    /// Lets root and root's group clone the machine.
    fn default() -> Self {
        Options {
            port: None,
            socket: SOCKET_PATH.into(),
            mode: 0o660,
        }
    }
}

struct Program {
    stream: UnixStream,
    lines: Lines,
}

/// Serves until an error makes that impossible. Waits for the port if it does not exist yet.
pub fn serve(options: &Options) -> io::Result<()> {
    let listener = listen(options)?;
    let mut port = wait_for_port(options)?;
    // an earlier user of the port may have left half a line
    port.write(&[b"\n", &ToHost::Wake.encode()[..]].concat())
        .or_else(|error| match error.kind() {
            // no node is connected yet; one that connects says hello first
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Ok(()),
            _ => Err(error),
        })?;
    let mut agent = Agent {
        core: Core::new(),
        port,
        host: Lines::default(),
        gone: false,
        programs: BTreeMap::new(),
        next: 0,
        woke: Instant::now(),
    };
    loop {
        agent.turn(&listener)?;
    }
}

fn listen(options: &Options) -> io::Result<UnixListener> {
    match std::fs::remove_file(&options.socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&options.socket)?;
    std::fs::set_permissions(
        &options.socket,
        std::fs::Permissions::from_mode(options.mode),
    )?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn wait_for_port(options: &Options) -> io::Result<Port> {
    let mut told = false;
    loop {
        if let Some(path) = port::find(options.port.as_deref()) {
            match Port::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
        }
        if !told {
            told = true;
            eprintln!(
                "floe-guest: waits for the port {}: is virtio_console loaded?",
                super::PORT_NAME
            );
        }
        std::thread::sleep(PORT_LOOK);
    }
}

struct Agent {
    core: Core,
    port: Port,
    host: Lines,
    /// Whether nobody is at the other end of the port.
    gone: bool,
    programs: BTreeMap<Client, Program>,
    next: Client,
    /// When the node was last notified that the agent runs.
    woke: Instant,
}

impl Agent {
    fn turn(&mut self, listener: &UnixListener) -> io::Result<()> {
        let limit = match (self.gone, self.core.is_waited_for()) {
            (true, _) => Some(GONE_LOOK),
            (false, true) => Some(TICK),
            (false, false) => None,
        };
        // a port without a peer is always ready, so it is read once per round and not polled
        let mut fds = Vec::new();
        let mut port_at = None;
        if !self.gone {
            port_at = Some(fds.len());
            fds.push((self.port.fd(), libc::POLLIN));
        }
        let mut listener_at = None;
        if self.programs.len() < CLIENTS_MAX {
            listener_at = Some(fds.len());
            fds.push((listener.as_fd(), libc::POLLIN));
        }
        let first_program = fds.len();
        let clients: Vec<Client> = self.programs.keys().copied().collect();
        fds.extend(
            self.programs
                .values()
                .map(|program| (program.stream.as_fd(), libc::POLLIN)),
        );
        let ready = sys::poll(&fds, limit)?;
        drop(fds);
        let is_ready = |at: usize| ready.get(at).is_some_and(|events| *events != 0);
        if self.gone || port_at.is_some_and(is_ready) {
            self.read_port()?;
        }
        if listener_at.is_some_and(is_ready) {
            self.accept(listener);
        }
        for (index, client) in clients.into_iter().enumerate() {
            if is_ready(first_program + index) {
                self.read_program(client)?;
            }
        }
        if self.core.waits_for_node() && self.woke.elapsed() >= WAKE_AGAIN {
            // the message may have been lost while one node replaced another
            self.woke = Instant::now();
            let _ = self
                .port
                .write(&[b"\n", &ToHost::Wake.encode()[..]].concat());
        }
        self.tell(Event::Tick)
    }

    fn read_port(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        match self.port.read(&mut buffer)? {
            Some(0) => {
                if !self.gone {
                    self.gone = true;
                    self.host.clear();
                    self.tell(Event::HostGone)?;
                }
            }
            Some(count) => {
                self.gone = false;
                for line in self.host.feed(&buffer[..count]).into_iter().flatten() {
                    self.tell(Event::HostLine(&line))?;
                }
            }
            None => self.gone = false,
        }
        Ok(())
    }

    fn accept(&mut self, listener: &UnixListener) {
        let Ok((stream, _)) = listener.accept() else {
            return;
        };
        if stream.set_nonblocking(true).is_ok() {
            self.next += 1;
            let lines = Lines::default();
            self.programs.insert(self.next, Program { stream, lines });
        }
    }

    fn read_program(&mut self, client: Client) -> io::Result<()> {
        let mut buffer = [0; LINE_BYTES_MAX];
        let Some(program) = self.programs.get_mut(&client) else {
            return Ok(());
        };
        let lines = match program.stream.read(&mut buffer) {
            Ok(0) => return self.drop_program(client),
            Ok(count) => program.lines.feed(&buffer[..count]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(_) => return self.drop_program(client),
        };
        for line in lines {
            match line {
                Ok(line) => self.tell(Event::ClientLine(client, &line))?,
                Err(error) => {
                    let refusal = Refusal::new(codes::USAGE, error.to_string(), "");
                    self.answer(client, &Answer::Refused(refusal))?;
                }
            }
        }
        Ok(())
    }

    fn drop_program(&mut self, client: Client) -> io::Result<()> {
        self.programs.remove(&client);
        self.tell(Event::ClientGone(client))
    }

    /// Sends an answer, which fits into an empty socket; a program that does not read its answers is disconnected.
    fn answer(&mut self, client: Client, answer: &Answer) -> io::Result<()> {
        let bytes = answer.encode();
        let sent = match self.programs.get_mut(&client) {
            Some(program) => program.stream.write_all(&bytes),
            None => Ok(()),
        };
        match sent {
            Ok(()) => Ok(()),
            Err(_) => self.drop_program(client),
        }
    }

    fn tell(&mut self, event: Event<'_>) -> io::Result<()> {
        let actions = self.core.handle(sys::now_ms(), event);
        for action in actions {
            match action {
                Action::Host(line) => {
                    if let Err(error) = self.port.write(&line) {
                        eprintln!("floe-guest: the port takes nothing: {error}");
                    }
                }
                Action::Client(client, answer) => self.answer(client, &answer)?,
                Action::Place(session, place) => {
                    let placed = identity::place(&place);
                    if let Err(why) = &placed {
                        eprintln!("floe-guest: {why}");
                    }
                    self.tell(Event::Placed(session, placed))?;
                }
            }
        }
        Ok(())
    }
}
