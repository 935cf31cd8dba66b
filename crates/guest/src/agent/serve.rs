//! The loop that serves the port, the socket that programs connect to, and the programs.

use super::core::{Action, Client, Core, Event};
use super::exec::{Polled, Processes};
use super::hooks::Hooks;
use super::port::{self, Port};
use super::typing::Typing;
use super::watch::Watch;
use super::{SOCKET_PATH, hooks, identity, sys};
use crate::exec::frame::{Frame, Message, Messages};
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

/// How much of the port is read at a time.
const PORT_READ_BYTES: usize = 4 << 10;
/// How many times in a row it is read while there is more.
const PORT_READS_MAX: u32 = 16;

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
        host: Messages::default(),
        processes: Processes::new()?,
        gone: false,
        programs: BTreeMap::new(),
        next: 0,
        woke: Instant::now(),
        watch: None,
        hooks: Hooks::begin(),
        typing: Typing::default(),
    };
    agent.tell(Event::Hooks(agent.hooks.any()))?;
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
    host: Messages,
    processes: Processes,
    /// Whether nobody is at the other end of the port.
    gone: bool,
    programs: BTreeMap<Client, Program>,
    next: Client,
    /// When the node was last notified that the agent runs.
    woke: Instant,
    /// Who reads from disks, while the node wants to know.
    watch: Option<Watch>,
    /// Whether there are hooks.
    hooks: Hooks,
    /// What gives users' inputs to the guest.
    typing: Typing,
}

impl Agent {
    fn turn(&mut self, listener: &UnixListener) -> io::Result<()> {
        // a port without a peer is always ready, so it is read once per round and not polled
        let mut fds = Vec::new();
        let mut polled = Vec::new();
        self.processes.poll(&mut fds, &mut polled);
        let port_at = fds.len();
        if !self.gone {
            let unsent = if self.port.has_unsent() {
                libc::POLLOUT
            } else {
                0
            };
            fds.push((self.port.fd(), libc::POLLIN | unsent));
        }
        let listener_at = fds.len();
        let takes_more = self.programs.len() < CLIENTS_MAX;
        if takes_more {
            fds.push((listener.as_fd(), libc::POLLIN));
        }
        let watch_at = fds.len();
        let now_ms = sys::now_ms();
        let watched = self.watch.as_ref().and_then(|watch| watch.fd(now_ms));
        let is_watched = watched.is_some();
        fds.extend(watched.map(|fd| (fd, libc::POLLIN)));
        let hooks_at = fds.len();
        let hooks = self.hooks.fd();
        let hooks_are_watched = hooks.is_some();
        fds.extend(hooks.map(|fd| (fd, libc::POLLIN)));
        let first_program = fds.len();
        let clients: Vec<Client> = self.programs.keys().copied().collect();
        fds.extend(
            self.programs
                .values()
                .map(|program| (program.stream.as_fd(), libc::POLLIN)),
        );
        let ready = sys::poll(&fds, self.limit())?;
        drop(fds);
        let is_ready = |at: usize| ready.get(at).is_some_and(|events| *events != 0);
        if self.gone || is_ready(port_at) {
            self.read_port()?;
            self.processes.feed_all();
        }
        // before it is told that the process has ended which has made them
        if hooks_are_watched && is_ready(hooks_at) {
            self.hooks = Hooks::begin();
            self.tell(Event::Hooks(self.hooks.any()))?;
        }
        self.serve_processes(&polled, &is_ready);
        if takes_more && is_ready(listener_at) {
            self.accept(listener);
        }
        for (index, client) in clients.into_iter().enumerate() {
            if is_ready(first_program + index) {
                self.read_program(client)?;
            }
        }
        if self.core.waits_for_node() && self.woke.elapsed() >= WAKE_AGAIN {
            // the message may have been lost while one node replaced another
            self.wake();
        }
        self.tell(Event::Tick)?;
        self.tell_who_asked(is_watched && is_ready(watch_at));
        self.send_frames();
        Ok(())
    }

    /// Tells the node who has read from disks. While the port takes nothing, this is left out: it is of no use later.
    fn tell_who_asked(&mut self, is_ready: bool) {
        let Some(watch) = &mut self.watch else {
            return;
        };
        let session = watch.session();
        for asked in watch.look(sys::now_ms(), is_ready) {
            if !self.gone && !self.port.has_unsent() {
                let line = ToHost::Asked { session, asked }.encode();
                // as much as the port takes now; what is left goes before what follows
                let _ = self.port.begin(line);
            }
        }
    }

    /// Returns how long to wait if nothing happens.
    fn limit(&self) -> Option<Duration> {
        let gone = self.gone.then_some(GONE_LOOK);
        let tick = self.core.is_waited_for().then_some(TICK);
        let processes = self.processes.next_ms();
        let processes = processes.map(|at| Duration::from_millis(at.saturating_sub(sys::now_ms())));
        let now_ms = sys::now_ms();
        let watch = self.watch.as_ref().and_then(|watch| watch.next_ms(now_ms));
        let watch = watch.map(|at| Duration::from_millis(at.saturating_sub(now_ms)));
        [gone, tick, processes, watch].into_iter().flatten().min()
    }

    fn wake(&mut self) {
        self.woke = Instant::now();
        let _ = self
            .port
            .write(&[b"\n", &ToHost::Wake.encode()[..]].concat());
    }

    fn serve_processes(&mut self, polled: &[Polled], is_ready: &dyn Fn(usize) -> bool) {
        let now_ms = sys::now_ms();
        for (at, polled) in polled.iter().enumerate() {
            if is_ready(at) {
                self.processes.ready(now_ms, *polled);
            }
        }
        self.processes.settle(now_ms);
    }

    /// Hands frames to the port until it takes no more.
    fn send_frames(&mut self) {
        while !self.gone {
            let sent = match self.port.has_unsent() {
                true => self.port.flush().map(drop),
                false => match self.processes.next_frames() {
                    frames if frames.is_empty() => return,
                    frames => self.port.begin(frames),
                },
            };
            if let Err(error) = sent {
                eprintln!("floe-guest: the port takes nothing: {error}");
                return;
            }
            if self.port.has_unsent() {
                return;
            }
        }
    }

    fn read_port(&mut self) -> io::Result<()> {
        let mut buffer = [0; PORT_READ_BYTES];
        let mut over = false;
        // the kernel hands out a page at a time; what follows less than one, poll tells of
        for _ in 0..PORT_READS_MAX {
            if over {
                break;
            }
            match self.port.read(&mut buffer)? {
                Some(0) => {
                    if !self.gone {
                        self.gone = true;
                        self.host.clear();
                        self.tell(Event::HostGone)?;
                    }
                    return Ok(());
                }
                Some(count) => {
                    self.gone = false;
                    over = count < buffer.len();
                    for message in self.host.feed(&buffer[..count]) {
                        match message {
                            Message::Line(Ok(line)) => self.tell(Event::HostLine(&line))?,
                            Message::Frame(Ok(frame)) => self.take_frame(frame),
                            // the rest of a message that a fork has cut in two
                            Message::Line(Err(_)) | Message::Frame(Err(_)) => {}
                        }
                    }
                }
                None => {
                    self.gone = false;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn take_frame(&mut self, frame: Frame) {
        if let Err(violation) = self.processes.heard(sys::now_ms(), frame) {
            eprintln!("floe-guest: {violation}");
            // the node greets anew, and both begin afresh
            self.processes.begin(false);
            self.wake();
        }
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
                Action::Begin { frames } => self.processes.begin(frames),
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
                    if hooks::are_owed() {
                        self.tell(Event::Owed)?;
                    }
                }
                Action::Watch(session) => self.watch = session.map(Watch::begin),
                Action::Give(session, inputs) => {
                    let (count, why) = self.typing.give(sys::now_ms(), &inputs.events);
                    self.tell(Event::Gave {
                        session,
                        inputs,
                        count,
                        why,
                    })?;
                }
            }
        }
        Ok(())
    }
}
