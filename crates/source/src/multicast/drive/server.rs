//! The server of a group: one thread receives requests and sends pieces, another loads and packs items.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use floe_image::datagram::{DATAGRAM_BYTES_MAX, Datagram, GroupKey, GroupSealer};
use floe_image::{Hash, Kind};
use parking_lot::{Condvar, Mutex};

use super::Invitation;
use super::socket::{Bell, is_passing, server_socket};
use crate::multicast::protocol::{Next, Packed, Server, ServerStats, pack};
use crate::{Request, Source, SourceError};

/// How many items are loaded at a time: neighbours then come from one frame, and a demand waits for no more than this.
const LOAD_AT_A_TIME: usize = 64;
/// Longest time for such a load. Receivers ask elsewhere long before.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How many datagrams are received before some are sent, and the other way round.
const AT_A_TIME: usize = 64;
/// The level for zstd: a low one, because a guest waits.
const LEVEL: i32 = 1;
/// Pause after the kernel refused to send, because a queue is full or the network is down.
const SEND_PAUSE: Duration = Duration::from_millis(1);

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The host's address on the network of the receivers.
    pub address: Ipv4Addr,
    /// Port for requests; 0 for any free one.
    pub port: u16,
    /// Address of the group. Several servers may share it, because each has its own key.
    pub group: SocketAddrV4,
    /// How many routers answers may pass, plus 1. With 1, answers do not leave the network segment.
    pub ttl: u32,
    /// The key that seals the group's datagrams.
    pub key: GroupKey,
}

impl ServerOptions {
    /// Makes options for a group chosen at random from the site-local ones (239.255/16, RFC 2365), limited to the segment.
    pub fn new(address: Ipv4Addr, key: GroupKey) -> ServerOptions {
        let low: u16 = rand::random();
        let group = Ipv4Addr::new(239, 255, (low >> 8) as u8, low as u8);
        // Above the ports that Linux gives to clients; no well-known service has one of these.
        let port = 61_000 + rand::random::<u16>() % 4_000;
        ServerOptions {
            address,
            port: 0,
            group: SocketAddrV4::new(group, port),
            ttl: 1,
            key,
        }
    }
}

/// The server of a group: sends the items of one image that receivers ask for to all of them. It ends when it is dropped.
///
/// Cost: two threads that sleep while nobody asks, at most 5 MiB of socket buffers, and 1 MiB of items that are about to be
/// sent. There is one server for each fork, not one for the node: forks have different receivers and different keys.
pub struct MulticastServer {
    shared: Arc<Shared>,
    invitation: Invitation,
}

struct Shared {
    image: Hash,
    source: Arc<dyn Source>,
    server: Mutex<Server>,
    /// Signalled when something is to be loaded.
    load: Condvar,
    bell: Bell,
    started: Instant,
    ended: AtomicBool,
}

impl MulticastServer {
    /// Opens a server for the items of `image`, which `source` must have.
    pub fn open(
        image: Hash,
        source: Arc<dyn Source>,
        options: &ServerOptions,
    ) -> Result<MulticastServer, SourceError> {
        let fail = |error: io::Error| SourceError::Unsupported {
            at: format!("multicast from {}", options.address),
            reason: error.to_string(),
        };
        let at = SocketAddrV4::new(options.address, options.port);
        let socket = server_socket(at, options.ttl).map_err(fail)?;
        let SocketAddr::V4(server) = socket.local_addr().map_err(fail)? else {
            return Err(fail(io::ErrorKind::AddrNotAvailable.into()));
        };
        let since_1970 = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let shared = Arc::new(Shared {
            image,
            source,
            server: Mutex::new(Server::new(since_1970.as_micros() as u64)),
            load: Condvar::new(),
            bell: Bell::new().map_err(fail)?,
            started: Instant::now(),
            ended: AtomicBool::new(false),
        });
        let (group, key) = (options.group, options.key);
        let sends = shared.clone();
        let send = floe_threads::spawn("mcast-send", move || {
            if let Err(error) = sends.send(&socket, group, &key) {
                tracing::warn!(%error, %group, "a multicast server ended; clones read by unicast");
            }
        });
        send.map_err(|error| fail(error.into()))?;
        let loads = Arc::downgrade(&shared);
        let opened = MulticastServer {
            shared,
            invitation: Invitation { server, group, key },
        };
        let load = floe_threads::keep_running("mcast-load", move || load(&loads));
        load.map_err(|error| fail(error.into()))?;
        Ok(opened)
    }

    /// Returns what receivers need to join.
    pub fn invitation(&self) -> &Invitation {
        &self.invitation
    }

    /// Returns what it has done so far.
    pub fn stats(&self) -> ServerStats {
        self.shared.server.lock().stats()
    }
}

impl Drop for MulticastServer {
    fn drop(&mut self) {
        {
            // with the lock held, so that the thread that loads is either before its look at this or already waiting
            let _server = self.shared.server.lock();
            self.shared.ended.store(true, Relaxed);
        }
        self.shared.bell.ring();
        self.shared.load.notify_all();
    }
}

impl Shared {
    /// Receives and sends until the server ends.
    fn send(&self, socket: &UdpSocket, group: SocketAddrV4, key: &GroupKey) -> io::Result<()> {
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        let mut sealer = GroupSealer::new(*key, rand::random());
        // A datagram that the kernel had no room for.
        let mut held: Option<Vec<u8>> = None;
        while !self.ended.load(Relaxed) {
            self.receive(socket, key, &mut buffer)?;
            let mut wait = None;
            for _ in 0..AT_A_TIME {
                let next = match held.take() {
                    Some(sealed) => Ok(sealed),
                    None => match self.next() {
                        Ok(datagram) => match sealer.seal(&datagram) {
                            Some(sealed) => Ok(sealed),
                            None => {
                                return Err(io::Error::other("its datagrams' numbers are used up"));
                            }
                        },
                        Err(until) => Err(until),
                    },
                };
                match next {
                    Ok(sealed) => match socket.send_to(&sealed, group) {
                        Ok(_) => {}
                        Err(error) if is_passing(&error) => {
                            held = Some(sealed);
                            wait = Some(Some(SEND_PAUSE));
                            break;
                        }
                        Err(error) => return Err(error),
                    },
                    Err(until) => {
                        let now = self.started.elapsed();
                        wait = Some(until.map(|until| until.saturating_sub(now)));
                        break;
                    }
                }
            }
            if let Some(most) = wait {
                self.bell.wait(socket, most)?;
            }
        }
        Ok(())
    }

    fn next(&self) -> Result<Vec<u8>, Option<Duration>> {
        let mut server = self.server.lock();
        let next = server.next(self.started.elapsed());
        if server.has_loads() {
            self.load.notify_one();
        }
        match next {
            Next::Send(datagram) => Ok(datagram),
            Next::Wait(until) => Err(until),
        }
    }

    fn receive(&self, socket: &UdpSocket, key: &GroupKey, buffer: &mut [u8]) -> io::Result<()> {
        for _ in 0..AT_A_TIME {
            let length = match socket.recv_from(buffer) {
                Ok((length, _)) => length,
                Err(error) if is_passing(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            let opened = key.open(&buffer[..length]).unwrap_or_default();
            // Datagrams from strangers are ignored.
            if let Ok(Datagram::Ask(ask)) = Datagram::decode(&opened) {
                let mut server = self.server.lock();
                server.asked(self.started.elapsed(), &ask);
                if server.has_loads() {
                    self.load.notify_one();
                }
            }
        }
        Ok(())
    }
}

/// Loads and packs the items that are to be sent soon, until the server ends.
fn load(shared: &Weak<Shared>) {
    while let Some(here) = shared.upgrade() {
        if here.ended.load(Relaxed) {
            return;
        }
        let wants = {
            let mut server = here.server.lock();
            if !server.has_loads() && !here.ended.load(Relaxed) {
                here.load.wait(&mut server);
            }
            server.next_loads(LOAD_AT_A_TIME)
        };
        if wants.is_empty() {
            continue;
        }
        let mut loaded = read(&here, &wants);
        let mut server = here.server.lock();
        for (_, hash) in &wants {
            server.loaded(hash, loaded.remove(hash));
        }
        drop(server);
        here.bell.ring();
    }
}

fn read(shared: &Shared, wants: &[(Kind, Hash)]) -> HashMap<Hash, Packed> {
    let mut loaded = HashMap::with_capacity(wants.len());
    let request = Request::demand(LOAD_TIMEOUT);
    let mut keep = |kind: Kind, hash: Hash, bytes: &[u8]| {
        if wants.contains(&(kind, hash)) {
            loaded.insert(hash, pack(kind, bytes, LEVEL));
        }
    };
    let read = shared
        .source
        .read(&shared.image, wants, &request, &mut keep);
    if let Err(error) = read {
        tracing::debug!(%error, "not all that was asked for can be multicast");
    }
    loaded
}
