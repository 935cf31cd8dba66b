//! Forwarded ports whose sockets change hands: from QEMU to the node, which keeps them while a machine is parked, and back to the QEMU that
//! wakes it. It stays one and the same socket of the kernel, so no connection is refused, and connections that nobody has accepted yet are
//! kept.
//!
//! The node fetches the socket (pidfd_getfd(2)) before QEMU closes its own descriptor. On the way back QEMU gets the descriptor before it is
//! told to open the port, and the [guard](crate::guard) in QEMU lets `bind` find it there. Rejected: `SO_REUSEPORT` on both sides,
//! for which the kernel wants the same user on both sides, and which loses the connections that wait on the side that closes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SocketAddrAny;
use rustix::net::sockopt::{set_socket_keepalive, socket_acceptconn, socket_type};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use serde_json::json;

use crate::error::MachineError;
use crate::machine::Machine;
use crate::process::Process;
use crate::spec::{PortForward, Protocol};

/// The name under which QEMU gets a socket.
const NAME: &str = "port";

impl Machine {
    /// Takes a forwarded port away from QEMU. The socket goes on listening; what it has accepted stays QEMU's.
    pub fn take_port(&self, forward: &PortForward) -> Result<OwnedFd, MachineError> {
        let found = find(self.process(), forward);
        let socket = found.map_err(MachineError::io("take a forwarded port over"))?;
        self.remove_forward(forward)?;
        Ok(socket)
    }

    /// Adds a forward with the socket that listens for it already.
    pub fn give_port(
        &self,
        forward: PortForward,
        socket: BorrowedFd<'_>,
    ) -> Result<(), MachineError> {
        // by this the guard tells it from sockets that are QEMU's own
        let marked = set_socket_keepalive(socket, true);
        marked.map_err(|error| MachineError::io("mark a socket")(error.into()))?;
        self.qmp
            .execute_with_fd("getfd", json!({"fdname": NAME}), socket)?;
        let added = self.add_forward(forward);
        let _ = self.qmp.execute("closefd", json!({"fdname": NAME}));
        added
    }
}

/// Returns a process's socket at this address.
fn find(process: &Process, forward: &PortForward) -> io::Result<OwnedFd> {
    let of_protocol = |socket: &OwnedFd| match forward.protocol {
        Protocol::Tcp => socket_acceptconn(socket) == Ok(true),
        Protocol::Udp => socket_type(socket) == Ok(rustix::net::SocketType::DGRAM),
    };
    let mut found = None;
    process.each_socket(|socket| {
        if is_at(&socket, forward) && of_protocol(&socket) {
            found = Some(socket);
        }
    })?;
    found.ok_or_else(|| {
        let what = format!("QEMU has no socket at {}", forward.host_side());
        io::Error::new(io::ErrorKind::NotFound, what)
    })
}

impl Process {
    /// Calls a function with a descriptor of each of its sockets.
    pub(crate) fn each_socket(&self, mut call: impl FnMut(OwnedFd)) -> io::Result<()> {
        for entry in std::fs::read_dir(format!("/proc/{}/fd", self.id().pid))? {
            let entry = entry?;
            // one may have been closed meanwhile
            let is_socket = std::fs::read_link(entry.path())
                .is_ok_and(|link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let Some(number) = number.filter(|_| is_socket) else {
                continue;
            };
            match pidfd_getfd(self.as_fd(), number, PidfdGetfdFlags::empty()) {
                Ok(socket) => call(socket),
                Err(rustix::io::Errno::BADF) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn is_at(socket: &OwnedFd, forward: &PortForward) -> bool {
    let address = rustix::net::getsockname(socket).map(SocketAddrAny::try_into);
    let address: Option<std::net::SocketAddr> = address.ok().and_then(Result::ok);
    address.is_some_and(|at| {
        (at.ip().to_canonical(), at.port()) == (forward.host_address, forward.host_port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_listening_socket_is_found_among_all_and_keeps_what_waits() {
        let own = Process::hold(std::process::id()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut forward = PortForward::tcp(port, 80);
        // a connection from the same address is no listener
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let taken = TcpListener::from(find(&own, &forward).unwrap());
        drop(listener);
        let (served, from) = taken.accept().unwrap();
        assert_eq!(from, client.local_addr().unwrap());
        drop((served, taken));
        assert_eq!(
            find(&own, &forward).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        forward.protocol = Protocol::Udp;
        forward.host_port = datagrams.local_addr().unwrap().port();
        assert!(find(&own, &forward).is_ok());
        forward.host_address = [127, 0, 0, 2].into();
        assert!(find(&own, &forward).is_err());
    }
}
