//! The clones of a run from floe-mpirun's point of view: which are connected, and which command runs where.

use super::wire::{self, Frame, SECRET_BYTES};
use super::{OWN_FAILURE, SILENCE, sys};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Longest time from a connection to its hello, which a clone sends at once.
const HELLO: Duration = Duration::from_secs(10);
/// Most connections that have not yet said hello; further ones are closed.
const STRANGERS_MAX: usize = 256;
/// Longest time after getting a command until a clone is ready for another one.
const NEXT: Duration = Duration::from_secs(60);

/// What happened to the clones.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A clone with this number has said hello from this address.
    Joined(u32, IpAddr),
    /// A clone was lost while it was needed.
    Lost(u32),
}

/// A clone's connection.
struct Connection {
    id: u32,
    stream: TcpStream,
    /// The launcher that waits for the clone's command.
    launcher: Mutex<Option<UnixStream>>,
    /// Whether the command is no longer wanted.
    given_up: AtomicBool,
}

#[derive(Default)]
struct State {
    hosts: BTreeMap<IpAddr, u32>,
    idle: BTreeMap<u32, Vec<Arc<Connection>>>,
    over: bool,
    strangers: usize,
}

/// All clones of a run.
pub(super) struct Members {
    secret: [u8; SECRET_BYTES],
    /// Largest number of a clone; they start from 1.
    most: u32,
    state: Mutex<State>,
    changed: Condvar,
    events: Sender<Event>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Compares two secrets in a time that does not depend on where they differ.
fn equal(a: &[u8; SECRET_BYTES], b: &[u8; SECRET_BYTES]) -> bool {
    a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

impl Members {
    /// Accepts hellos of clones numbered up to `most` on `listener`, and launchers on `launchers`.
    pub fn gather(
        secret: [u8; SECRET_BYTES],
        most: u32,
        listener: TcpListener,
        launchers: UnixListener,
        events: Sender<Event>,
    ) -> Arc<Members> {
        let members = Arc::new(Members {
            secret,
            most,
            state: Mutex::default(),
            changed: Condvar::new(),
            events,
        });
        let of_clones = members.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                of_clones.stranger(stream);
            }
        });
        let of_launchers = members.clone();
        thread::spawn(move || {
            for stream in launchers.incoming().flatten() {
                let members = of_launchers.clone();
                thread::spawn(move || members.launch(stream));
            }
        });
        members
    }

    /// Closes the connections of all clones, now and later, so that they end.
    pub fn dismiss(&self) {
        let mut state = locked(&self.state);
        state.over = true;
        for connection in std::mem::take(&mut state.idle).into_values().flatten() {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    fn stranger(self: &Arc<Self>, stream: TcpStream) {
        {
            let mut state = locked(&self.state);
            if state.over || state.strangers >= STRANGERS_MAX {
                return;
            }
            state.strangers += 1;
        }
        let members = self.clone();
        thread::spawn(move || {
            let connection = members.hello(stream);
            locked(&members.state).strangers -= 1;
            if let Some(connection) = connection {
                members.follow(&connection);
            }
        });
    }

    /// Waits for the hello of a new connection. Returns it if it is a clone's.
    fn hello(&self, mut stream: TcpStream) -> Option<Arc<Connection>> {
        stream.set_read_timeout(Some(HELLO)).ok()?;
        let Ok(Some(Frame::Hello { secret, id })) = wire::read(&mut stream) else {
            return None;
        };
        if !equal(&secret, &self.secret) || id == 0 || id > self.most {
            return None;
        }
        stream.set_read_timeout(None).ok()?;
        stream.set_nodelay(true).ok()?;
        sys::break_after(&stream, SILENCE).ok()?;
        let address = stream.peer_addr().ok()?.ip();
        let connection = Arc::new(Connection {
            id,
            stream,
            launcher: Mutex::new(None),
            given_up: AtomicBool::new(false),
        });
        let mut state = locked(&self.state);
        if state.over {
            return None;
        }
        if state.hosts.insert(address, id).is_none() {
            let _ = self.events.send(Event::Joined(id, address));
        }
        state.idle.entry(id).or_default().push(connection.clone());
        self.changed.notify_all();
        Some(connection)
    }

    /// Passes on a clone's output until its command has ended.
    fn follow(&self, connection: &Arc<Connection>) {
        while let Ok(Some(frame @ (Frame::Out(_) | Frame::Err(_) | Frame::Ended { .. }))) =
            wire::read(&mut &connection.stream)
        {
            let mut launcher = locked(&connection.launcher);
            let Some(to) = launcher.as_mut() else { break };
            // a launcher that is gone is noticed by the thread that waits for it
            let _ = wire::write(to, &frame);
            if matches!(frame, Frame::Ended { .. }) {
                return;
            }
        }
        let over = {
            let mut state = locked(&self.state);
            if let Some(idle) = state.idle.get_mut(&connection.id) {
                idle.retain(|other| !Arc::ptr_eq(other, connection));
            }
            state.over
        };
        if over || connection.given_up.load(Ordering::Acquire) {
            return;
        }
        if let Some(mut launcher) = locked(&connection.launcher).take() {
            refuse(&mut launcher, &format!("clone {} is gone", connection.id));
        }
        let _ = self.events.send(Event::Lost(connection.id));
    }

    /// Passes a launcher's command to its clone.
    fn launch(&self, mut launcher: UnixStream) {
        let Ok(Some(Frame::Run { host, command })) = wire::read(&mut launcher) else {
            return;
        };
        let Some(connection) = self.idle(&host) else {
            return refuse(&mut launcher, &format!("{host} is no clone of this run"));
        };
        let Ok(listens) = launcher.try_clone() else {
            return;
        };
        *locked(&connection.launcher) = Some(listens);
        // if the clone is gone, the thread that follows it reports that
        let _ = wire::write(&mut &connection.stream, &Frame::Run { host, command });
        // the launcher sends nothing more, so this returns when it ends
        let _ = launcher.read(&mut [0]);
        connection.given_up.store(true, Ordering::Release);
        let _ = connection.stream.shutdown(Shutdown::Both);
    }

    /// Returns a connection without a command of the clone at `host`.
    fn idle(&self, host: &str) -> Option<Arc<Connection>> {
        let address: IpAddr = host.parse().ok()?;
        let state = locked(&self.state);
        let id = *state.hosts.get(&address)?;
        let has_none =
            |state: &mut State| !state.over && state.idle.get(&id).is_none_or(Vec::is_empty);
        let waited = self.changed.wait_timeout_while(state, NEXT, has_none);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.idle.get_mut(&id)?.pop()
    }
}

fn refuse(launcher: &mut UnixStream, why: &str) {
    let text = format!("floe-mpirun: {why}\n");
    let status = OWN_FAILURE.into();
    for frame in [Frame::Err(text.into_bytes()), Frame::Ended { status }] {
        let _ = wire::write(launcher, &frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::path::PathBuf;
    use std::sync::mpsc::{Receiver, channel};

    const SECRET: [u8; SECRET_BYTES] = [7; SECRET_BYTES];
    /// Longer than any answer takes on a busy host.
    const PATIENCE: Duration = Duration::from_secs(60);

    struct Here {
        members: Arc<Members>,
        heard: Receiver<Event>,
        clones: SocketAddr,
        launchers: PathBuf,
    }

    impl Here {
        fn new(name: &str) -> Here {
            let name = format!("floe-mpi-test-{}-{name}", std::process::id());
            let launchers = std::env::temp_dir().join(name);
            let _ = std::fs::remove_file(&launchers);
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let clones = listener.local_addr().unwrap();
            let (events, heard) = channel();
            let bound = UnixListener::bind(&launchers).unwrap();
            Here {
                members: Members::gather(SECRET, 2, listener, bound, events),
                heard,
                clones,
                launchers,
            }
        }

        fn clone(&self, secret: [u8; SECRET_BYTES], id: u32) -> TcpStream {
            let mut stream = TcpStream::connect(self.clones).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            wire::write(&mut stream, &Frame::Hello { secret, id }).unwrap();
            stream
        }

        fn launcher(&self, command: &str) -> UnixStream {
            let mut stream = UnixStream::connect(&self.launchers).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let run = Frame::Run {
                host: "127.0.0.1".into(),
                command: command.into(),
            };
            wire::write(&mut stream, &run).unwrap();
            stream
        }

        fn hear(&self) -> Event {
            self.heard.recv_timeout(PATIENCE).unwrap()
        }
    }

    impl Drop for Here {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.launchers);
        }
    }

    fn hears(mut stream: impl Read) -> Option<Frame> {
        wire::read(&mut stream).unwrap_or(None)
    }

    #[test]
    fn a_stranger_is_hung_up_on_and_gets_no_command() {
        let here = Here::new("stranger");
        let mut wrong = SECRET;
        wrong[31] = 8;
        assert_eq!(hears(here.clone(wrong, 1)), None);
        assert_eq!(hears(here.clone(SECRET, 0)), None);
        assert_eq!(hears(here.clone(SECRET, 3)), None);
        let mut garbage = TcpStream::connect(here.clones).unwrap();
        io_write(&mut garbage, b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(hears(garbage), None);
        assert!(here.heard.try_recv().is_err(), "nobody has joined");
        // a launcher can't reach one of them either
        let mut launcher = here.launcher("true");
        assert!(matches!(wire::read(&mut launcher), Ok(Some(Frame::Err(_)))));
        let status = OWN_FAILURE.into();
        assert_eq!(hears(launcher), Some(Frame::Ended { status }));
    }

    fn io_write(stream: &mut TcpStream, bytes: &[u8]) {
        use std::io::Write;
        stream.write_all(bytes).unwrap();
    }

    #[test]
    fn a_command_goes_to_its_clone_and_what_comes_of_it_comes_back() {
        let here = Here::new("command");
        let mut clone = here.clone(SECRET, 1);
        assert!(matches!(here.hear(), Event::Joined(1, _)));
        let mut launcher = here.launcher("hydra_pmi_proxy --proxy-id 0");
        let Some(Frame::Run { command, .. }) = hears(&clone) else {
            panic!("no command");
        };
        assert_eq!(command, "hydra_pmi_proxy --proxy-id 0");
        // the clone can get another command at once
        let mut next = here.clone(SECRET, 1);
        for frame in [Frame::Out(b"out".into()), Frame::Ended { status: 3 }] {
            wire::write(&mut clone, &frame).unwrap();
            assert_eq!(wire::read(&mut launcher).unwrap(), Some(frame));
        }
        let second = here.launcher("second");
        assert!(matches!(hears(&next), Some(Frame::Run { command, .. }) if command == "second"));
        // when a launcher is killed, its command ends too, and the clone does not count as lost
        drop(second);
        assert_eq!(wire::read(&mut next).unwrap(), None);
        assert!(here.heard.try_recv().is_err());
    }

    #[test]
    fn a_clone_that_goes_is_missed_and_one_that_is_dismissed_is_not() {
        let here = Here::new("lost");
        let lost = here.clone(SECRET, 2);
        assert!(matches!(here.hear(), Event::Joined(2, _)));
        let mut launcher = here.launcher("sleep 1000");
        assert!(matches!(hears(&lost), Some(Frame::Run { .. })));
        drop(lost);
        assert!(matches!(here.hear(), Event::Lost(2)));
        assert!(matches!(wire::read(&mut launcher), Ok(Some(Frame::Err(_)))));
        assert!(matches!(hears(launcher), Some(Frame::Ended { .. })));

        let here = Here::new("dismissed");
        let idle = here.clone(SECRET, 1);
        assert!(matches!(here.hear(), Event::Joined(1, _)));
        here.members.dismiss();
        assert_eq!(hears(idle), None);
        assert_eq!(hears(here.clone(SECRET, 1)), None, "nor later");
        assert!(here.heard.try_recv().is_err());
    }
}
