//! Ports of the host that lead into a family's network: the node listens on each, and copies its connections to the guest's
//! port from inside of the namespace. Rules of nftables could do that without the node, but not for 127.0.0.1, where ports
//! are opened by default. Connections end with the node; the next node listens again. The ports of a
//! machine that is lent lead to its borrower in the same way.

use super::namespace::{Namespace, guest_address};
use floe_api::{PortForward, Protocol};
use floe_front::{Party, Seat, Table, seats::Seats};
use floe_ground::error::{NodeError, at, failed, usage};
use floe_threads::{Cancel, Ready};
use parking_lot::Mutex;
use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Most connections of one port at a time. One address may have them all: it may be a proxy's.
const CONNECTIONS_MAX: usize = 256;
/// Most connections with those that have been closed to make room, and whose threads have not noticed yet: each takes two threads.
const THREADS_MAX: usize = 2 * CONNECTIONS_MAX;
/// How long to wait after a connection could not be accepted: this process may have too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// A port that is open until this is dropped, and the connections that came through it.
pub struct Inbound {
    /// Which it is.
    pub forward: PortForward,
    /// The socket that is listened at; none while somebody else has it.
    listener: Option<Listener>,
    connections: Arc<Connections>,
}

/// A socket at which a thread accepts connections until this is dropped.
struct Listener {
    socket: Arc<TcpListener>,
    over: Cancel,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

impl Inbound {
    /// Opens a port, with the socket that listens there if there is one.
    pub(super) fn open(
        namespace: &Namespace,
        number: u32,
        forward: &PortForward,
        socket: Option<OwnedFd>,
    ) -> Result<Inbound, NodeError> {
        let mut inbound = Inbound::closed(forward);
        let socket = match socket {
            Some(socket) => TcpListener::from(socket),
            None => listen(forward)?,
        };
        inbound.accept_at(namespace, number, socket)?;
        Ok(inbound)
    }

    /// Opens a TCP port whose connections lead to what `reach` connects to.
    pub fn leading(forward: &PortForward, reach: Arc<Reach>) -> Result<Inbound, NodeError> {
        let mut inbound = Inbound::closed(forward);
        inbound.accept(listen(forward)?, reach)?;
        Ok(inbound)
    }

    fn closed(forward: &PortForward) -> Inbound {
        Inbound {
            forward: forward.clone(),
            listener: None,
            connections: Arc::new(Connections::new(CONNECTIONS_MAX)),
        }
    }

    /// Accepts connections at a socket from now on.
    pub(super) fn accept_at(
        &mut self,
        namespace: &Namespace,
        number: u32,
        socket: TcpListener,
    ) -> Result<(), NodeError> {
        let namespace = namespace.clone();
        let guest = guest_address(number, self.forward.guest_port);
        self.accept(socket, Arc::new(move || namespace.connect(guest)))
    }

    fn accept(&mut self, socket: TcpListener, reach: Arc<Reach>) -> Result<(), NodeError> {
        let cannot = || at(format!("cannot listen for {}", self.forward));
        // one that has left between its being seen and its being accepted must not be waited for
        socket.set_nonblocking(true).map_err(cannot())?;
        let (socket, over) = (Arc::new(socket), Cancel::default());
        over.descriptor().map_err(cannot())?; // the thread will need it, and could tell nobody
        let (accepting, counted) = (socket.clone(), self.connections.clone());
        let ends = over.clone();
        floe_threads::keep_running("inbound", move || {
            accept(&accepting, &ends, &counted, &reach);
        })?;
        self.listener = Some(Listener { socket, over });
        Ok(())
    }

    /// Stops accepting, and gives the socket away: who connects from now on waits at it. Connections that are open stay so.
    /// Returns `None` if it was given away already.
    pub(super) fn take(&mut self) -> Option<io::Result<OwnedFd>> {
        let taken = self.listener.take()?;
        Some(taken.socket.try_clone().map(OwnedFd::from))
    }

    /// Whether its socket was given away.
    pub(super) fn is_taken(&self) -> bool {
        self.listener.is_none()
    }

    /// Returns an error if a port cannot be opened.
    pub(super) fn check(forward: &PortForward) -> Result<(), NodeError> {
        listen(forward).map(drop)
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            // nobody else has it: the port is free at once, and not only when the thread has noticed
            let _ = rustix::net::shutdown(&*listener.socket, rustix::net::Shutdown::Both);
        }
        self.connections.end();
    }
}

fn listen(forward: &PortForward) -> Result<TcpListener, NodeError> {
    if forward.protocol != Protocol::Tcp {
        return Err(usage(
            format!("{forward}: only TCP leads into a family network"),
            "forward a TCP port, or leave --network out",
        ));
    }
    let address = (forward.host_address.as_str(), forward.host_port);
    TcpListener::bind(address).map_err(|error| {
        failed(
            format!("cannot listen for {forward}: {error}"),
            "choose another port of the host, or end what has it",
        )
    })
}

/// Connects to the guest's port, or to what leads there: any connected socket.
pub type Reach = dyn Fn() -> io::Result<TcpStream> + Send + Sync;

/// A connection: the host's side, and the guest's once that is reached.
struct Pair {
    client: TcpStream,
    guest: OnceLock<TcpStream>,
    over: AtomicBool,
}

impl Pair {
    /// Ends it: a guest that is gone would never do so, nor one that nobody talks to.
    fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        for stream in [Some(&self.client), self.guest.get()].into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both); // it may have ended already
        }
    }
}

/// The connections of one port. Who says nothing makes room for others.
struct Connections {
    table: Table,
    /// How many threads serve connections.
    threads: AtomicUsize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    over: bool,
    pairs: Vec<Arc<Pair>>,
}

impl Connections {
    /// Returns room for so many.
    fn new(max: usize) -> Connections {
        Connections {
            table: Table::new(Seats::new(max, usize::MAX)),
            threads: AtomicUsize::new(0),
            open: Mutex::default(),
        }
    }

    /// Adds a connection; returns false if the port is closed.
    fn enter(&self, pair: &Arc<Pair>) -> bool {
        let mut open = self.open.lock();
        if !open.over {
            open.pairs.push(pair.clone());
        }
        !open.over
    }

    fn leave(&self, pair: &Arc<Pair>) {
        let mut open = self.open.lock();
        open.pairs.retain(|known| !Arc::ptr_eq(known, pair));
    }

    /// Ends all connections: the family's namespace stays while one is open.
    fn end(&self) {
        let mut open = self.open.lock();
        open.over = true;
        open.pairs.iter().for_each(|pair| pair.end());
    }
}

fn accept(
    listener: &TcpListener,
    over: &Cancel,
    connections: &Arc<Connections>,
    reach: &Arc<Reach>,
) {
    loop {
        let accepted = match floe_threads::ready(&[listener.as_fd()], None, Some(over)) {
            Ok(Ready::Cancelled) => return,
            Ok(_) => listener.accept(),
            Err(error) => Err(error),
        };
        match accepted {
            Ok((client, from)) => begin(client, from, connections, reach),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(%error, "a connection into a family network was not accepted");
                // nothing tells when descriptors are to be had again
                if !over.sleep(ACCEPT_AGAIN) {
                    return;
                }
            }
        }
    }
}

/// Serves a connection on threads of its own, if there is room for it.
fn begin(client: TcpStream, from: SocketAddr, connections: &Arc<Connections>, reach: &Arc<Reach>) {
    let pair = Arc::new(Pair {
        client,
        guest: OnceLock::new(),
        over: AtomicBool::new(false),
    });
    let goes = pair.clone();
    let seat = connections
        .table
        .sit(Party::at(from.ip()), move || goes.end());
    let Some(seat) = seat else { return };
    if connections.threads.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
        connections.threads.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let (of_port, reach) = (connections.clone(), reach.clone());
    let serve = move || {
        if of_port.enter(&pair) {
            if let Err(error) = pass(&pair, &seat, &*reach) {
                tracing::debug!(%from, %error, "a connection into a family network ended");
            }
            of_port.leave(&pair);
        }
        of_port.threads.fetch_sub(1, Ordering::Relaxed);
    };
    if floe_threads::spawn("inbound-conn", serve).is_err() {
        connections.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Copies data in both directions until both are closed.
fn pass(pair: &Pair, seat: &Seat, reach: &Reach) -> io::Result<()> {
    let reached = reach()?;
    let guest = pair.guest.get_or_init(|| reached);
    if pair.over.load(Ordering::SeqCst) {
        return Ok(());
    }
    floe_threads::scope(|scope| {
        scope.spawn("inbound-copy", || {
            let _ = pair.client.peek(&mut [0]); // an error comes again below
            // who has said something does not only wait
            seat.turns(true);
            copy(&pair.client, guest)
        });
        copy(guest, &pair.client)
    })
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let copied = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write); // the other side may be closed already
    copied.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// How long a connection may take to be closed.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Says something through a connection and hears it again.
    fn echoes(client: &mut TcpStream) -> bool {
        let mut back = [0; 4];
        client.write_all(b"ping").is_ok()
            && client.read_exact(&mut back).is_ok()
            && back == *b"ping"
    }

    #[test]
    fn who_only_waits_at_a_guests_port_keeps_nobody_out_and_ends_no_conversation() {
        let guest = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = guest.local_addr().unwrap();
        std::thread::spawn(move || {
            for client in guest.incoming() {
                std::thread::spawn(move || {
                    let client = client.unwrap();
                    let _ = io::copy(&mut &client, &mut &client);
                });
            }
        });
        let reach: Arc<Reach> = Arc::new(move || TcpStream::connect(at));
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        port.set_nonblocking(true).unwrap();
        let (connections, over) = (Arc::new(Connections::new(8)), Cancel::default());
        let (counted, ends) = (connections.clone(), over.clone());
        let accepts = std::thread::spawn(move || accept(&port, &ends, &counted, &reach));
        let connect = || TcpStream::connect(address).unwrap();
        let mut first = connect();
        assert!(echoes(&mut first));
        let silent: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
        // the one that has waited longest was closed for the last of them
        silent[0].set_read_timeout(Some(PATIENCE)).unwrap();
        let end = (&silent[0]).read(&mut [0]);
        let reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
        assert!(end.as_ref().map_or_else(reset, |n| *n == 0), "{end:?}");
        let mut last = connect();
        assert!(echoes(&mut last), "there is room for one more");
        assert!(echoes(&mut first), "the first one goes on");
        over.cancel();
        accepts.join().unwrap();
        connections.end();
    }
}
