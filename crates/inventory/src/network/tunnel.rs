//! The encrypted connection between a family's hosts: frames that leave the bridge through the tap device `vx0` are read
//! here, encrypted, and sent to the family's hosts in UDP datagrams. Datagrams that arrive are checked and put onto the
//! bridge.
//!
//! If a family's network is not encrypted, `vx0` is a VXLAN device of the kernel instead. The tap ends with the node, and the
//! next node creates it again: until then guests on different hosts cannot reach each other, but those on one host can.

use super::{
    namespace::Namespace,
    plan::{Network, Sealed},
};
use floe_ground::error::{NodeError, at, failed};
use floe_image::tunnel::{
    TUNNEL_FRAME_MAX, TUNNEL_OVERHEAD, TunnelHeader, TunnelKey, TunnelSealer, TunnelSender, Window,
};
use floe_threads::{Cancel, Ready, ready};
use parking_lot::{Mutex, RwLock};
use rustix::{
    io::Errno,
    net::{RecvFlags, recvfrom, sockopt},
};
use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io::{self, Read, Write},
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::Arc,
};

/// Size of the receive buffer: some 20 ms of a fast network's frames, while this thread waits for its turn.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Most MAC addresses that are remembered with their hosts: a family has fewer.
const LEARNED_MAX: usize = 256;
/// Most senders whose sequence numbers are remembered: each start of another host's node is one.
const SENDERS_MAX: usize = 1024;
/// How long a packet may be if the path's limit is not known: that of Ethernet.
const MTU: u32 = 1500;
/// Size of the IP and UDP headers around a datagram.
const HEADERS_V4: u32 = 28;
const HEADERS_V6: u32 = 48;
/// Size of the Ethernet, IP and TCP headers in a frame.
const FRAME_HEADERS: u32 = 14 + 40;
/// Shortest limit of a TCP segment (RFC 879).
const MSS_MIN: u32 = 536;

/// This bit in an address's first byte marks an address of several cards.
const GROUP_BIT: u8 = 1;

type Mac = [u8; 6];

/// All encrypted connections of this node.
#[derive(Default)]
pub(super) struct Tunnels {
    port: Mutex<Option<Port>>,
    tunnels: Arc<Families>,
}

/// Those of the families whose networks have these numbers.
type Families = RwLock<HashMap<u32, Arc<Tunnel>>>;

/// The UDP port that all connections share.
struct Port {
    at: SocketAddr,
    socket: Arc<UdpSocket>,
    /// Ends the thread that receives.
    stop: Cancel,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The connection of one family.
struct Tunnel {
    tap: File,
    key: TunnelKey,
    sealer: Mutex<TunnelSealer>,
    peers: RwLock<Arc<BTreeSet<SocketAddr>>>,
    /// The host behind which each network card is.
    learned: Mutex<HashMap<Mac, SocketAddr>>,
    senders: Mutex<HashMap<TunnelSender, Window>>,
    over: Cancel,
}

impl Tunnels {
    /// Opens a family's connection to its other hosts, or adds new hosts to it. `listen` is this node's address in the
    /// cluster.
    pub fn ensure(
        &self,
        network: &Network,
        sealed: &Sealed,
        namespace: &Namespace,
        listen: SocketAddr,
    ) -> Result<(), NodeError> {
        let socket = self.socket(listen)?;
        let number = network.number();
        let known = self.tunnels.read().get(&number).cloned();
        match known {
            Some(tunnel) if !tunnel.over.is_cancelled() => {
                let changed = **tunnel.peers.read() != sealed.peers;
                if changed {
                    *tunnel.peers.write() = Arc::new(sealed.peers.clone());
                    namespace.apply(&network.clamp_rules(mss(&sealed.peers)))?;
                }
                return Ok(());
            }
            // its device ends with the last thread that has it open, so that another can be created
            Some(_) => drop(self.tunnels.write().remove(&number)),
            None => {}
        }
        let what = || format!("the encrypted way of family network {}", network.id);
        let tap = namespace.open_tunnel().map_err(at(what()))?;
        namespace.apply(&network.clamp_rules(mss(&sealed.peers)))?;
        let key = TunnelKey::of(&sealed.secret);
        let tunnel = Arc::new(Tunnel {
            tap: tap.into(),
            key,
            sealer: Mutex::new(TunnelSealer::new(&key, number, rand::random())),
            peers: RwLock::new(Arc::new(sealed.peers.clone())),
            learned: Mutex::default(),
            senders: Mutex::default(),
            over: Cancel::default(),
        });
        let sends = tunnel.clone();
        floe_threads::spawn("family-send", move || {
            if let Err(error) = sends.send(&socket) {
                tracing::warn!(%error, "a family network's way to other hosts ended; it is opened again");
            }
            sends.end();
        })?;
        self.tunnels.write().insert(number, tunnel);
        Ok(())
    }

    /// Closes a family's connection.
    pub fn close(&self, network: &Network) {
        if let Some(tunnel) = self.tunnels.write().remove(&network.number()) {
            tunnel.end();
        }
    }

    /// Returns the port, opened if necessary.
    fn socket(&self, listen: SocketAddr) -> Result<Arc<UdpSocket>, NodeError> {
        let mut port = self.port.lock();
        if let Some(open) = &*port
            && open.at == listen
        {
            return Ok(open.socket.clone());
        }
        let open = || -> io::Result<Port> {
            let socket = UdpSocket::bind(listen)?;
            // only root may exceed the system's limit
            if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).is_err() {
                sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
            }
            let (socket, stop) = (Arc::new(socket), Cancel::default());
            let (from, tunnels, over) = (socket.clone(), self.tunnels.clone(), stop.clone());
            floe_threads::keep_running("family-receive", move || receive(&from, &tunnels, &over))?;
            Ok(Port {
                at: listen,
                socket,
                stop,
            })
        };
        let opened = open().map_err(|error| {
            failed(
                format!("cannot listen for family networks on UDP {listen}: {error}"),
                "end what has this port, or join the cluster with another --listen",
            )
        })?;
        let socket = opened.socket.clone();
        *port = Some(opened);
        Ok(socket)
    }
}

impl Drop for Tunnels {
    fn drop(&mut self) {
        self.tunnels
            .write()
            .drain()
            .for_each(|(_, tunnel)| tunnel.end());
    }
}

/// Receives datagrams for all families, until nobody needs the port any more.
fn receive(socket: &UdpSocket, tunnels: &Families, over: &Cancel) {
    let mut buffer = [0; TUNNEL_FRAME_MAX + TUNNEL_OVERHEAD + 1];
    while !over.is_cancelled() {
        // the socket itself must block: those who send wait until the kernel has room
        let (length, from) = match recvfrom(socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((length, _, Some(from))) => match SocketAddr::try_from(from) {
                Ok(from) => (length, from),
                Err(_) => continue,
            },
            Err(Errno::AGAIN) => match ready(&[socket.as_fd()], None, Some(over)) {
                Ok(_) => continue,
                Err(error) => {
                    tracing::error!(%error, "family networks hear nothing of other hosts");
                    return;
                }
            },
            Err(Errno::INVAL | Errno::BADF | Errno::NOTSOCK) => return,
            // an ICMP error arrived
            Ok((_, _, None)) | Err(_) => continue,
        };
        let datagram = &buffer[..length];
        // datagrams that are not a member's are ignored
        let Ok(header) = TunnelHeader::decode(datagram) else {
            continue;
        };
        let tunnel = tunnels.read().get(&header.network).cloned();
        if let Some(tunnel) = tunnel {
            tunnel.take(&header, datagram, from);
        }
    }
}

impl Tunnel {
    fn end(&self) {
        self.over.cancel();
    }

    /// Puts a datagram's frame onto the bridge.
    fn take(&self, header: &TunnelHeader, datagram: &[u8], from: SocketAddr) {
        let Ok(frame) = self.key.open(header, datagram) else {
            return;
        };
        if !self.is_new(header) {
            return;
        }
        let mut source: Mac = [0; 6];
        source.copy_from_slice(&frame[6..12]);
        if source[0] & GROUP_BIT == 0 && self.peers.read().contains(&from) {
            let mut learned = self.learned.lock();
            if learned.len() >= LEARNED_MAX && !learned.contains_key(&source) {
                learned.clear();
            }
            learned.insert(source, from);
        }
        // if the bridge is full or gone the frame is lost, as it may be on any network
        let _ = (&self.tap).write(&frame);
    }

    fn is_new(&self, header: &TunnelHeader) -> bool {
        let mut senders = self.senders.lock();
        if senders.len() >= SENDERS_MAX && !senders.contains_key(&header.sender) {
            senders.clear();
        }
        senders
            .entry(header.sender)
            .or_default()
            .takes(header.number)
    }

    /// Sends frames that leave the bridge, until the tunnel ends.
    fn send(&self, socket: &UdpSocket) -> io::Result<()> {
        let mut frame = [0; TUNNEL_FRAME_MAX + 1];
        while !self.over.is_cancelled() {
            let length = match (&self.tap).read(&mut frame) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait()?;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) if self.over.is_cancelled() => return Ok(()),
                Err(error) => return Err(error),
            };
            let frame = &frame[..length];
            if length < 14 {
                continue;
            }
            let mut to: Mac = [0; 6];
            to.copy_from_slice(&frame[..6]);
            // the lock must not be held while sending
            let behind = self.learned.lock().get(&to).copied();
            let peers = self.peers.read().clone();
            let send = |host: &SocketAddr| {
                if let Some(datagram) = self.sealer.lock().seal(frame) {
                    let _ = socket.send_to(&datagram, host); // an error is like a datagram that is lost on the way
                }
            };
            match behind.filter(|host| peers.contains(host)) {
                Some(host) => send(&host),
                // a broadcast, or a card that has not sent anything yet
                None => peers.iter().for_each(send),
            }
        }
        Ok(())
    }

    /// Waits for a frame or the end.
    fn wait(&self) -> io::Result<Ready> {
        ready(&[self.tap.as_fd()], None, Some(&self.over))
    }
}

/// Returns how long TCP segments between these hosts may be so that each datagram fits into one packet.
fn mss(peers: &BTreeSet<SocketAddr>) -> u32 {
    let of = |peer: &SocketAddr| {
        let headers = match peer {
            SocketAddr::V4(_) => HEADERS_V4,
            SocketAddr::V6(_) => HEADERS_V6,
        };
        let known = match peer {
            SocketAddr::V4(_) => path_mtu(*peer),
            SocketAddr::V6(_) => None,
        };
        known.unwrap_or(MTU).min(MTU) - headers
    };
    let least = peers.iter().map(of).min().unwrap_or(MTU - HEADERS_V6);
    least
        .saturating_sub(TUNNEL_OVERHEAD as u32 + FRAME_HEADERS)
        .max(MSS_MIN)
}

/// Returns how long a packet to a host may be, as far as the kernel knows. Sends nothing.
fn path_mtu(host: SocketAddr) -> Option<u32> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(host).ok()?;
    sockopt::ip_mtu(&socket).ok().filter(|mtu| *mtu >= 576)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_short_enough_for_one_packet() {
        // 1500 less IP and UDP (28), seal (48), Ethernet (14), IP and TCP (40)
        let nobody = BTreeSet::from([SocketAddr::from(([127, 0, 0, 1], 1))]);
        assert_eq!(mss(&nobody), 1370);
        let six = BTreeSet::from(["[::1]:1".parse().unwrap()]);
        assert_eq!(mss(&six), 1350);
    }
}
