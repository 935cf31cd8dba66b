//! Sockets of groups, and a wait for one of them that another thread can end.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Receive buffer: what a server sends in 30 ms at the highest rate, while a receiver's thread waits for its turn.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Send buffer: more would only be a longer queue.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// A socket bound to `address`, which others on this host may share, if it is a group's.
fn bound(address: SocketAddrV4) -> io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    if address.ip().is_multicast() {
        // several nodes of one host may be in a group
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    // only root may have more than the system's limit, which is 208 KiB by default
    if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket.into())
}

/// For what is sent to a group.
pub(super) fn group_socket(group: SocketAddrV4, interface: Ipv4Addr) -> io::Result<UdpSocket> {
    // bound to the group: only what is sent to it arrives
    let socket = bound(group)?;
    socket.join_multicast_v4(group.ip(), &interface)?;
    Ok(socket)
}

/// For requests to a server, which sends to groups from it.
pub(super) fn server_socket(address: SocketAddrV4, ttl: u32) -> io::Result<UdpSocket> {
    let socket = bound(address)?;
    sockopt::set_ip_multicast_if(&socket, address.ip())?;
    sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)?;
    socket.set_multicast_ttl_v4(ttl)?;
    // clones' nodes on this very host are receivers, too
    socket.set_multicast_loop_v4(true)?;
    Ok(socket)
}

/// For requests of a receiver, and the address of this host that the server sees.
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
        // a counter that is full rings already
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Waits until the socket has something, the bell rings, or the time has passed; `None` is for ever.
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

/// Whether a socket has nothing more, or only an error of an earlier datagram to tell (an ICMP message, which anybody may
/// have sent). Anything else is the end of it.
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
