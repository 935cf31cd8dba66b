//! Real sockets: a server and receivers of a group over the loopback device.

mod common;

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;

use common::{Fixture, LIMIT, content};
use floe_image::datagram::{Ask, GroupKey, Piece, Want};
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
    /// A host in the group, which reads by unicast what does not come.
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

    /// Reads these and checks every byte.
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
    // the two others have overheard nearly everything; what a full buffer dropped they ask for
    for host in &hosts[1..] {
        host.read(&fixture, &wants, &Request::prefetch(LIMIT));
        assert!(host.group.stats().overheard > 0);
        assert_eq!(host.group.stats().invalid, 0);
        assert!(host.group.forged() > 0);
        // what the stranger made up is nowhere
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

/// What somebody who is not in the group may try.
fn forgeries(fixture: &Fixture) -> Vec<Vec<u8>> {
    let wrong = GroupKey::of("another token");
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
        wrong.seal(piece.encode()),
        wrong.seal(ask.encode()),
        unsealed,
        vec![0xff; 1422],
        vec![0; 9000],
        Vec::new(),
        b"FLOECAST".to_vec(),
    ]
}

#[test]
fn where_nobody_answers_it_goes_on_by_unicast_and_soon_without_waiting() {
    let fixture = Fixture::new();
    let mut invitation = serve(&fixture).invitation().clone();
    // the server of this key is gone; another one has its place
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
    assert_eq!(host.source.by_unicast(), 3 + wants.len() as u64);
    assert!(host.group.stats().asked >= 3);
}
