//! Tests with real sockets: a server and receivers of a group over the loopback device.

mod common;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::{Fixture, LIMIT, content};
use floe_image::datagram::{Ask, GroupKey, GroupSealer, Piece, Want};
use floe_image::{Encoding, Hash, Kind};
use floe_source::multicast::{Group, Invitation, Multicast, MulticastServer, ServerOptions};
use floe_source::{Directory, Request, Source};
use floe_store::Cache;

struct Host {
    cache: Arc<Cache>,
    group: Arc<Group>,
    source: Multicast,
    _dir: tempfile::TempDir,
}

impl Host {
    /// Lets a host join the group; it reads by unicast what doesn't arrive.
    fn join(invitation: &Invitation, inner: Arc<dyn Source>) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let cache = Arc::new(Cache::open(dir.path(), 64 << 20).unwrap());
        let group = Arc::new(Group::join(invitation, cache.clone()).unwrap());
        let source = Multicast::new(group.clone(), inner, cache.clone());
        Host {
            cache,
            group,
            source,
            _dir: dir,
        }
    }

    /// Reads items and checks every byte.
    fn read(&self, fixture: &Fixture, wants: &[(Kind, Hash)], request: &Request) {
        let mut got = 0;
        let mut sink = |kind: Kind, hash: Hash, bytes: &[u8]| {
            kind.verify(&hash, bytes).unwrap();
            assert!(wants.contains(&(kind, hash)));
            got += 1;
        };
        let read = self.source.read(&fixture.image, wants, request, &mut sink);
        read.unwrap();
        assert_eq!(got, wants.len());
    }
}

fn all(fixture: &Fixture) -> Vec<(Kind, Hash)> {
    let chunks = fixture.chunks.iter().map(|(hash, _)| (Kind::Chunk, *hash));
    chunks.chain([(Kind::Segment, fixture.segment.0)]).collect()
}

fn directory(fixture: &Fixture) -> Arc<dyn Source> {
    Arc::new(Directory::new(fixture.repository.clone()))
}

fn serve(fixture: &Fixture) -> MulticastServer {
    let options = ServerOptions::new(Ipv4Addr::LOCALHOST, GroupKey::of("token"));
    MulticastServer::open(fixture.image, directory(fixture), &options).unwrap()
}

#[test]
fn what_one_host_asks_for_all_hosts_get_whatever_a_stranger_sends() {
    let fixture = Fixture::new();
    let server = serve(&fixture);
    let invitation = server.invitation().clone();
    let hosts: Vec<Host> = (0..3)
        .map(|_| Host::join(&invitation, directory(&fixture)))
        .collect();
    let wants = all(&fixture);

    let before = server.stats();
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let forged = forgeries(&fixture);
    for datagram in &forged {
        stranger.send_to(datagram, invitation.server).unwrap();
        stranger.send_to(datagram, invitation.group).unwrap();
    }
    for part in wants.chunks(100) {
        hosts[0].read(&fixture, part, &Request::prefetch(LIMIT));
        for datagram in &forged {
            stranger.send_to(datagram, invitation.server).unwrap();
            stranger.send_to(datagram, invitation.group).unwrap();
        }
    }
    let stats = server.stats();
    assert!(stats.asked > 0 && before.asked == 0, "{stats:?}");
    assert_eq!(stats.replayed, 0, "{stats:?}");
    // The two other hosts have received nearly everything already; they ask for what a full buffer dropped.
    for host in &hosts[1..] {
        host.read(&fixture, &wants, &Request::prefetch(LIMIT));
        assert!(host.group.stats().overheard > 0);
        assert_eq!(host.group.stats().invalid, 0);
        assert!(host.group.forged() > 0);
        // Nobody has what the stranger made up.
        assert!(
            !host
                .cache
                .contains(Kind::Chunk, &Hash::of(&content(999_999)))
        );
    }
    let sent = server.stats().bytes;
    let once: usize = wants.iter().map(|(kind, _)| kind.raw_size()).sum();
    assert!(sent < 2 * once as u64, "{sent} bytes for 3 times {once}");
}

/// Datagrams that somebody outside the group may try.
fn forgeries(fixture: &Fixture) -> Vec<Vec<u8>> {
    let seal = |datagram: &[u8]| {
        let mut wrong = GroupSealer::new(GroupKey::of("another token"), [1; 8]);
        wrong.seal(datagram).unwrap()
    };
    let bytes = content(999_999);
    let hash = Hash::of(&bytes);
    let mut tag = [0; 8];
    tag.copy_from_slice(&hash.0[..8]);
    let piece = Piece {
        server: u64::MAX,
        sequence: u64::MAX,
        kind: Kind::Chunk,
        encoding: Encoding::Raw,
        index: 0,
        total: 4096,
        tag,
        bytes: &bytes[..1366],
    };
    let want = |n: usize| Want {
        kind: Kind::Chunk,
        hash: fixture.chunks[n].0,
        pieces: u32::MAX,
        again: true,
        demand: true,
    };
    let ask = Ask {
        receiver: 1,
        sequence: u64::MAX,
        bytes_per_s: 0,
        wants: (0..30).map(want).collect(),
    };
    let mut unsealed = piece.encode();
    unsealed.extend_from_slice(&[0; 16]);
    vec![
        seal(&piece.encode()),
        seal(&ask.encode()),
        unsealed,
        vec![0xff; 1422],
        vec![0; 9000],
        Vec::new(),
        b"FLC\x02".to_vec(),
    ]
}

#[test]
fn where_nobody_answers_it_goes_on_by_unicast_and_soon_without_waiting() {
    let fixture = Fixture::new();
    let mut invitation = serve(&fixture).invitation().clone();
    // The server with this key is gone, and another has its port.
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    invitation
        .server
        .set_port(silent.local_addr().unwrap().port());
    let host = Host::join(&invitation, directory(&fixture));
    let wants = all(&fixture);
    assert!(host.group.passes());
    for want in wants.chunks(1).take(3) {
        host.read(&fixture, want, &Request::demand(LIMIT));
    }
    assert!(!host.group.passes());
    host.read(&fixture, &wants, &Request::demand(LIMIT));
    // how often it asked depends on how soon its thread got its turn
    assert_eq!(host.source.by_unicast(), 3 + wants.len() as u64);
}

/// One of this many datagrams of the server is lost.
const LOST_ONE_IN: u64 = 10;
/// One of this many requests is lost; the one before it arrives twice.
const ASKS_LOST_ONE_IN: u64 = 4;

/// A network between a server and its receivers that loses datagrams, and delivers some requests twice.
struct LossyNetwork {
    ended: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl LossyNetwork {
    /// Makes the network; returns it, and an invitation to the server through it.
    fn to(server: &Invitation) -> (LossyNetwork, Invitation) {
        let beyond = ServerOptions::new(Ipv4Addr::LOCALHOST, server.key).group;
        let answers = UdpSocket::bind(server.group).unwrap();
        answers
            .join_multicast_v4(server.group.ip(), &Ipv4Addr::LOCALHOST)
            .unwrap();
        let asks = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = asks.local_addr().unwrap().port();
        let seen = Invitation {
            server: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            group: beyond,
            key: server.key,
        };
        let ended = Arc::new(AtomicBool::new(false));
        let to_receivers = carry(answers, beyond, ended.clone(), |n| {
            u64::from(n % LOST_ONE_IN != 0)
        });
        let to_server = carry(asks, server.server, ended.clone(), |n| {
            match n % ASKS_LOST_ONE_IN {
                0 => 0,
                n => 1 + u64::from(n == ASKS_LOST_ONE_IN - 1),
            }
        });
        let threads = vec![to_receivers, to_server];
        (LossyNetwork { ended, threads }, seen)
    }
}

impl Drop for LossyNetwork {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Relays datagrams; the n-th is sent `copies(n)` times.
fn carry(
    from: UdpSocket,
    to: SocketAddrV4,
    ended: Arc<AtomicBool>,
    copies: impl Fn(u64) -> u64 + Send + 'static,
) -> std::thread::JoinHandle<()> {
    from.set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let out = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        let mut n = 0;
        while !ended.load(Relaxed) {
            let Ok((length, _)) = from.recv_from(&mut buffer) else {
                continue;
            };
            n += 1;
            for _ in 0..copies(n) {
                out.send_to(&buffer[..length], to).unwrap();
            }
        }
    })
}

#[test]
fn what_a_network_loses_is_asked_for_again_and_what_it_brings_twice_is_answered_once() {
    let fixture = Fixture::new();
    let server = serve(&fixture);
    let (_network, invitation) = LossyNetwork::to(server.invitation());
    let hosts: Vec<Host> = (0..3)
        .map(|_| Host::join(&invitation, directory(&fixture)))
        .collect();
    let wants = all(&fixture);
    std::thread::scope(|scope| {
        for host in &hosts {
            scope.spawn(|| {
                for part in wants.chunks(100) {
                    host.read(&fixture, part, &Request::prefetch(LIMIT));
                }
            });
        }
    });
    for host in &hosts {
        let stats = host.group.stats();
        assert!(stats.items + stats.overheard > 0, "{stats:?}");
        assert_eq!(stats.invalid, 0, "{stats:?}");
        // Not all of it had to come by the more expensive way.
        let by_unicast = host.source.by_unicast();
        assert!(
            by_unicast < wants.len() as u64 / 2,
            "{by_unicast} {stats:?}"
        );
    }
    let again: u64 = hosts.iter().map(|h| h.group.stats().asked_again).sum();
    assert!(again > 0);
    let stats = server.stats();
    assert!(stats.replayed > 0 && stats.lost > 0, "{stats:?}");
    // Pieces are sent again, but not once for each receiver that lacks them.
    let once: usize = wants.iter().map(|(kind, _)| kind.raw_size()).sum();
    assert!(stats.bytes < 2 * once as u64, "{stats:?} for {once} bytes");
}
