//! The sockets of a host, each with a QUIC endpoint of its own: settings, and the way to a member.
use crate::closed::{CLOSED_RUDELY, CLOSED_STRANGER};
use crate::members::{Key, Member};
use crate::queue::ShortQueue;
use crate::tls::{Identity, key_of};
use crate::wire::PROTOCOL;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, NoneTokenStore, ServerConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The server name that TLS asks for. It means nothing here: hosts are known by their keys.
const NAME: &str = "floe";
/// A member's next address is tried once the one before has failed or was silent for so long.
const HEAD_START: Duration = Duration::from_millis(250);
/// Pieces that a host may send at a time over one connection.
const STREAMS_MAX: u32 = 64;
/// Bytes of a piece that may come before they are read: all of it.
const STREAM_WINDOW: u32 = 128 << 10;
/// Bytes of a connection that may come before they are read, and that are kept until they are acknowledged: 100 ms at 320 Mbit/s.
const WINDOW: u32 = 4 << 20;
/// Bytes that wait in the kernel for this process, or for the network: what all hosts send together in some milliseconds.
const SOCKET_BYTES: usize = 4 << 20;
/// A host that sends nothing for so long counts as gone, in milliseconds.
const SILENCE_MS: u32 = 10_000;
/// How often a quiet connection sends something, so that it is not taken for a broken one.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Where a host listens, and dials from. All clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints(Vec<Endpoint>);

impl Endpoints {
    /// Listens at these addresses.
    pub(crate) fn listen(identity: &Identity, addresses: &[SocketAddr]) -> io::Result<Endpoints> {
        let transport = Arc::new(transport());
        let tls = identity.server(PROTOCOL).map_err(io::Error::other)?;
        let tls = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
        let mut server = ServerConfig::with_crypto(Arc::new(tls));
        server.transport_config(transport.clone());
        let tls = identity.client(PROTOCOL).map_err(io::Error::other)?;
        let tls = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
        let mut client = ClientConfig::new(Arc::new(tls));
        client.transport_config(transport);
        // those would be kept by name, and all hosts have the same
        client.token_store(Arc::new(NoneTokenStore));
        let listen = |address: &SocketAddr| -> io::Result<Endpoint> {
            let mut endpoint = Endpoint::new(
                EndpointConfig::default(),
                Some(server.clone()),
                socket(*address)?,
                Arc::new(TokioRuntime),
            )?;
            endpoint.set_default_client_config(client.clone());
            Ok(endpoint)
        };
        let listening: io::Result<Vec<Endpoint>> = addresses.iter().map(listen).collect();
        listening.map(Endpoints)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.0.iter()
    }

    /// Returns where they listen.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.iter().flat_map(Endpoint::local_addr).collect()
    }

    /// Connects to a member by whichever of its addresses is the first to answer with its key.
    pub(crate) async fn reach(&self, member: &Member) -> Option<Connection> {
        let mut tries = JoinSet::new();
        for (endpoint, address) in self.ways(&member.addresses) {
            tries.spawn(reach(endpoint, address, member.key));
            let reached = timeout(HEAD_START, tries.join_next()).await;
            if let Ok(Some(Ok(Some(connection)))) = reached {
                return Some(connection);
            }
        }
        while let Some(reached) = tries.join_next().await {
            if let Ok(Some(connection)) = reached {
                return Some(connection);
            }
        }
        None
    }

    /// Returns from where each address can be dialled: by a socket of its family.
    fn ways(&self, addresses: &[SocketAddr]) -> Vec<(Endpoint, SocketAddr)> {
        let mut ways = Vec::new();
        for address in addresses {
            let fits = |here: SocketAddr| here.is_ipv6() == address.is_ipv6();
            let family = self
                .iter()
                .filter(|endpoint| endpoint.local_addr().is_ok_and(fits));
            ways.extend(family.map(|endpoint| (endpoint.clone(), *address)));
        }
        ways
    }

    /// Ends all connections, and waits until the others were told.
    pub(crate) async fn close(&self) {
        for endpoint in self.iter() {
            endpoint.close(CLOSED_RUDELY, &[]);
        }
        for endpoint in self.iter() {
            endpoint.wait_idle().await;
        }
    }
}

/// Connects to an address, if whoever is there has this key.
async fn reach(endpoint: Endpoint, address: SocketAddr, key: Key) -> Option<Connection> {
    let connection = endpoint.connect(address, NAME).ok()?.await.ok()?;
    if key_of(&connection) == Some(key.0) {
        return Some(connection);
    }
    connection.close(CLOSED_STRANGER, b"another key");
    None
}

fn transport() -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(u64::from(WINDOW))
        // one piece after the other, by their priorities: without fairness a demand would wait for the end of a piece that has begun
        .send_fairness(true)
        .congestion_controller_factory(Arc::new(ShortQueue))
        // nobody sends any
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(VarInt::from_u32(SILENCE_MS).into()))
        .keep_alive_interval(Some(KEEP_ALIVE));
    config
}

/// Makes a socket. One for IPv6 leaves IPv4 to another one, so that both may have the same port.
fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // only root may exceed the system's limit, which is 208 KiB by default; others get as much as that
    if sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES)?;
    }
    if sockopt::set_socket_send_buffer_size_force(&socket, SOCKET_BYTES).is_err() {
        sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn sockets_of_both_families_may_have_one_port() {
        // somebody else may have a port that is free in one of them
        let both = |_| {
            let six = socket((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
            let port = six.local_addr().unwrap().port();
            socket((Ipv4Addr::UNSPECIFIED, port).into()).is_ok()
        };
        assert!((0..5).any(both));
    }
}
