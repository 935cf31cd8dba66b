//! Ports of the host that lead into a family's network: the node listens on each, and copies its connections to the guest's
//! port from inside of the namespace. Rules of nftables could do that without the node, but not for 127.0.0.1, where ports
//! are opened by default. Connections end with the node; the next node listens again.

use super::namespace::{Namespace, guest_address};
use crate::error::{NodeError, at, failed, usage};
use floe_api::{PortForward, Protocol};
use floe_threads::{Cancel, Ready};
use parking_lot::Mutex;
use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Most connections of one port at a time: each takes two threads.
const CONNECTIONS_MAX: usize = 256;
/// How long to wait after a connection could not be accepted: this process may have too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// A port that is open until this is dropped, and the connections that came through it.
pub(super) struct Inbound {
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
    pub fn open(
        namespace: &Namespace,
        number: u32,
        forward: &PortForward,
        socket: Option<OwnedFd>,
    ) -> Result<Inbound, NodeError> {
        let mut inbound = Inbound {
            forward: forward.clone(),
            listener: None,
            connections: Arc::default(),
        };
        let socket = match socket {
            Some(socket) => TcpListener::from(socket),
            None => listen(forward)?,
        };
        inbound.accept_at(namespace, number, socket)?;
        Ok(inbound)
    }

    /// Accepts connections at a socket from now on.
    pub fn accept_at(
        &mut self,
        namespace: &Namespace,
        number: u32,
        socket: TcpListener,
    ) -> Result<(), NodeError> {
        let cannot = || at(format!("cannot listen for {}", self.forward));
        // one that has left between its being seen and its being accepted must not be waited for
        socket.set_nonblocking(true).map_err(cannot())?;
        let (socket, over) = (Arc::new(socket), Cancel::default());
        over.descriptor().map_err(cannot())?; // the thread will need it, and could tell nobody
        let (accepting, counted) = (socket.clone(), self.connections.clone());
        let (namespace, guest_port) = (namespace.clone(), self.forward.guest_port);
        let ends = over.clone();
        floe_threads::keep_running("inbound", move || {
            accept(
                &accepting,
                &ends,
                &counted,
                &namespace,
                (number, guest_port),
            );
        })?;
        self.listener = Some(Listener { socket, over });
        Ok(())
    }

    /// Stops accepting, and gives the socket away: who connects from now on waits at it. Connections that are open stay so.
    /// Returns `None` if it was given away already.
    pub fn take(&mut self) -> Option<io::Result<OwnedFd>> {
        let taken = self.listener.take()?;
        Some(taken.socket.try_clone().map(OwnedFd::from))
    }

    /// Whether its socket was given away.
    pub fn is_taken(&self) -> bool {
        self.listener.is_none()
    }

    /// Returns an error if a port cannot be opened.
    pub fn check(forward: &PortForward) -> Result<(), NodeError> {
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

/// The connections of one port.
#[derive(Default)]
struct Connections {
    /// How many threads serve connections.
    threads: AtomicUsize,
    /// The open connections, each as the host's and the guest's side.
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    over: bool,
    pairs: Vec<Arc<[TcpStream; 2]>>,
}

impl Connections {
    /// Adds a connection; returns false if the port is closed.
    fn enter(&self, pair: &Arc<[TcpStream; 2]>) -> bool {
        let mut open = self.open.lock();
        if !open.over {
            open.pairs.push(pair.clone());
        }
        !open.over
    }

    fn leave(&self, pair: &Arc<[TcpStream; 2]>) {
        let mut open = self.open.lock();
        open.pairs.retain(|known| !Arc::ptr_eq(known, pair));
    }

    /// Ends all connections: a guest that is gone would never do so, and the family's namespace stays while one is open.
    fn end(&self) {
        let mut open = self.open.lock();
        open.over = true;
        for stream in open.pairs.iter().flat_map(|pair| pair.iter()) {
            let _ = stream.shutdown(Shutdown::Both); // it may have ended already
        }
    }
}

fn accept(
    listener: &TcpListener,
    over: &Cancel,
    connections: &Arc<Connections>,
    namespace: &Namespace,
    (number, port): (u32, u16),
) {
    loop {
        let accepted = match floe_threads::ready(&[listener.as_fd()], None, Some(over)) {
            Ok(Ready::Cancelled) => return,
            Ok(_) => listener.accept(),
            Err(error) => Err(error),
        };
        let client = match accepted {
            Ok((client, _)) => client,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                tracing::warn!(port, %error, "a connection into a family network was not accepted");
                // nothing tells when descriptors are to be had again
                match over.sleep(ACCEPT_AGAIN) {
                    true => continue,
                    false => return,
                }
            }
        };
        if connections.threads.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            connections.threads.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (namespace, of_port) = (namespace.clone(), connections.clone());
        let serve = move || {
            if let Err(error) = pass(client, &namespace, (number, port), &of_port) {
                tracing::debug!(port, %error, "a connection into a family network ended");
            }
            of_port.threads.fetch_sub(1, Ordering::Relaxed);
        };
        if floe_threads::spawn("inbound-conn", serve).is_err() {
            connections.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Copies data in both directions until both are closed.
fn pass(
    client: TcpStream,
    namespace: &Namespace,
    (number, port): (u32, u16),
    connections: &Connections,
) -> io::Result<()> {
    let guest = namespace.connect(guest_address(number, port))?;
    let pair = Arc::new([client, guest]);
    if !connections.enter(&pair) {
        return Ok(());
    }
    let [client, guest] = &*pair;
    let passed = floe_threads::scope(|scope| {
        scope.spawn("inbound-copy", || copy(client, guest));
        copy(guest, client)
    });
    connections.leave(&pair);
    passed
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let copied = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write); // the other side may be closed already
    copied.map(drop)
}
