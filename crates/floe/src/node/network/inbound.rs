//! Ports of the host that lead into a family network: a listener of the node's for each, whose connections are copied to the
//! guest's port from inside of the namespace. Rules of nftables could do that without the node, but not for 127.0.0.1, where
//! ports are by default. Connections end with the node; the next one listens again.

use super::namespace::{Namespace, guest_address};
use crate::{
    api::{PortForward, Protocol},
    node::error::{NodeError, at, usage},
};
use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Most connections of one port at a time: each takes two threads.
const CONNECTIONS_MAX: usize = 256;

/// A port that is open until this is dropped.
pub(super) struct Inbound {
    pub forward: PortForward,
    listener: Arc<TcpListener>,
}

impl Inbound {
    /// Opens a port.
    pub fn open(
        namespace: &Namespace,
        number: u32,
        forward: &PortForward,
    ) -> Result<Inbound, NodeError> {
        if forward.protocol != Protocol::Tcp {
            return Err(usage(
                format!("{forward}: only TCP leads into a family network"),
                "forward a TCP port, or leave --network out",
            ));
        }
        let address = (forward.host_address.as_str(), forward.host_port);
        let listener =
            TcpListener::bind(address).map_err(at(format!("cannot listen on {forward}")))?;
        let listener = Arc::new(listener);
        let (accepting, namespace) = (listener.clone(), namespace.clone());
        let guest_port = forward.guest_port;
        std::thread::Builder::new()
            .name("inbound".into())
            .spawn(move || accept(&accepting, &namespace, number, guest_port))
            .map_err(at("cannot start a thread for a port"))?;
        Ok(Inbound {
            forward: forward.clone(),
            listener,
        })
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        // wakes the thread that accepts: Linux ends `accept` on a socket that is shut down
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }
}

fn accept(listener: &TcpListener, namespace: &Namespace, number: u32, port: u16) {
    let open = Arc::new(AtomicUsize::new(0));
    while let Ok((client, _)) = listener.accept() {
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (namespace, counted) = (namespace.clone(), open.clone());
        let serve = move || {
            if let Err(error) = pass(client, &namespace, number, port) {
                tracing::debug!(port, %error, "a connection into a family network ended");
            }
            counted.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("inbound-conn".into());
        if thread.spawn(serve).is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Copies both ways until both are over.
fn pass(client: TcpStream, namespace: &Namespace, number: u32, port: u16) -> io::Result<()> {
    let guest = namespace.connect(guest_address(number, port))?;
    std::thread::scope(|scope| {
        scope.spawn(|| copy(&client, &guest));
        copy(&guest, &client)
    })
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let copied = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write); // the other side may have gone
    copied.map(drop)
}
