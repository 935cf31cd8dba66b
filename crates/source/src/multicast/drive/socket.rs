//! The sockets of a group, and a wait for one of them that another thread can end.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Bytes of the receive buffer: what a server sends at the highest rate in the 30 ms that a receiver's thread may have to wait.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Bytes of the send buffer: a larger one would only make the queue longer.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Makes a socket bound to `address`. If that is a group's, other sockets on this host may bind to it too.
fn bound(address: SocketAddrV4) -> io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    if address.ip().is_multicast() {
        // Several nodes of one host may be in a group.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    // Only root may exceed the system's limit, which is 208 KiB by default.
    if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket.into())
}

/// Makes the socket that receives what is sent to a group.
pub(super) fn group_socket(group: SocketAddrV4, interface: Ipv4Addr) -> io::Result<UdpSocket> {
    // Bound to the group's address: only what is sent to the group arrives.
    let socket = bound(group)?;
    socket.join_multicast_v4(group.ip(), &interface)?;
    Ok(socket)
}

/// Makes the socket of a server, which receives requests and sends to the group.
pub(super) fn server_socket(address: SocketAddrV4, ttl: u32) -> io::Result<UdpSocket> {
    let socket = bound(address)?;
    sockopt::set_ip_multicast_if(&socket, address.ip())?;
    sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)?;
    socket.set_multicast_ttl_v4(ttl)?;
    // Nodes of clones on this very host are receivers too.
    socket.set_multicast_loop_v4(true)?;
    Ok(socket)
}

/// Makes the socket of a receiver for its requests; also returns this host's address as the server sees it.
pub(super) fn asking_socket(server: SocketAddrV4) -> io::Result<(UdpSocket, Ipv4Addr)> {
    let socket = bound(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(server)?;
    match socket.local_addr()?.ip() {
        std::net::IpAddr::V4(own) => Ok((socket, own)),
        std::net::IpAddr::V6(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

/// Ends another thread's wait.
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Bell(eventfd(0, flags)?))
    }

    pub fn ring(&self) {
        // If the counter is full, the bell is ringing already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Blocks until the socket has something, the bell rings, or `most` has passed; `None` is for ever.
    pub fn wait(&self, socket: &UdpSocket, most: Option<Duration>) -> io::Result<()> {
        let mut waits = [
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN),
        ];
        let most = most.and_then(|most| Timespec::try_from(most).ok());
        match poll(&mut waits, most.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0, &mut count);
        Ok(())
    }
}

/// Returns whether a socket just has nothing more, or only reports an error of an earlier datagram (an ICMP message, which
/// anybody may have sent). Any other error means that the socket is unusable.
pub(super) fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable,
        PermissionDenied, WouldBlock,
    };
    matches!(
        error.kind(),
        WouldBlock
            | Interrupted
            | ConnectionRefused
            | HostUnreachable
            | NetworkUnreachable
            | NetworkDown
            | PermissionDenied
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}
