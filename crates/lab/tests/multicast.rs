//! Multicast between separate hosts, over the kernel's own UDP: with losses, with a stranger on the segment, and in a
//! network that blocks multicast.
use floe_image::datagram::{Ask, GroupKey, GroupSealer, Want};
use floe_image::{Hash, Kind, Segment as Table};
use floe_source::multicast::{Group, Invitation, Multicast, MulticastServer, ServerOptions};
use floe_source::{Directory, Request, Source};
use floe_store::{Cache, Repository};
use floe_testbed::link::Segment;
use floe_testbed::local::LocalRam;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const BYTES: usize = 4 << 20;

struct Host {
    group: Arc<Group>,
    source: Multicast,
}

impl Host {
    fn join(invitation: &Invitation, dir: &Path, inner: Arc<dyn Source>) -> Host {
        let cache = Arc::new(Cache::open(dir, 64 << 20).unwrap());
        let group = Arc::new(Group::join(invitation, cache.clone()).unwrap());
        Host {
            source: Multicast::new(group.clone(), inner, cache),
            group,
        }
    }

    /// Reads everything, in several requests, and checks every byte.
    fn read(&self, image: &Hash, wants: &[(Kind, Hash)]) {
        for part in wants.chunks(128) {
            let mut got = 0;
            let mut sink = |kind: Kind, hash: Hash, bytes: &[u8]| {
                kind.verify(&hash, bytes).unwrap();
                got += 1;
            };
            let request = Request::prefetch(LIMIT);
            self.source.read(image, part, &request, &mut sink).unwrap();
            assert_eq!(got, part.len());
        }
    }
}

fn chunks(repository: &Repository, image: &Hash) -> Vec<(Kind, Hash)> {
    let manifest = repository.manifest(image).unwrap();
    let scope = repository.scope(image).unwrap();
    let table = |hash: &Hash| -> Table { scope.segment(hash).unwrap() };
    let tables = &manifest.region("ram").unwrap().segments;
    let hashes = tables.iter().flat_map(|hash| table(hash).hashes().to_vec());
    let hashes = hashes.filter(|hash| !hash.is_zero());
    hashes.map(|hash| (Kind::Chunk, hash)).collect()
}

#[test]
#[ignore = "needs root, iproute2 and nftables: make test-all"]
fn hosts_share_one_reply_through_losses_and_forgeries_and_do_without_where_none_passes() {
    // the parent, three hosts that lose 2 % of all packets, one that multicast does not reach, a stranger
    let segment = Segment::new(6).unwrap();
    let (deaf, stranger) = (4, 5);
    let dir = tempfile::tempdir().unwrap();
    let (repository, image) = LocalRam::image(dir.path(), BYTES).unwrap();
    let wants = chunks(&repository, &image);
    let directory = || Arc::new(Directory::new(repository.clone()));
    let options = ServerOptions::new(segment.address(0), GroupKey::of("token"));
    let server = segment
        .host(0)
        .run(|| MulticastServer::open(image, directory(), &options))
        .unwrap()
        .unwrap();
    let invitation = server.invitation().clone();
    for number in 1..=3 {
        segment.lose(number, 2).unwrap();
    }
    segment.without_multicast(deaf).unwrap();
    let before = segment.sent_bytes(0).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let forger = scope.spawn(|| {
            let forge = || forge(segment.address(stranger), &invitation, &wants, &over);
            segment.host(stranger).run(forge).unwrap();
        });
        let hosts: Vec<_> = (1..=deaf)
            .map(|number| {
                let (segment, invitation, wants) = (&segment, &invitation, &wants);
                let at = dir.path().join(format!("host{number}"));
                let inner = directory();
                scope.spawn(move || {
                    let read = || {
                        let host = Host::join(invitation, &at, inner);
                        host.read(&image, wants);
                        host
                    };
                    segment.host(number).run(read).unwrap()
                })
            })
            .collect();
        let hosts: Vec<Host> = hosts.into_iter().map(|host| host.join().unwrap()).collect();
        over.store(true, Relaxed);
        forger.join().unwrap();
        let all = wants.len() as u64;
        for host in &hosts[..deaf - 1] {
            let stats = host.group.stats();
            assert!(host.group.passes() && stats.invalid == 0, "{stats:?}");
            assert_eq!(host.source.multicast(), Some(true));
            // on a busy machine, answers may take longer than a guest may wait
            assert!(
                host.source.by_unicast() < all / 2,
                "{}",
                host.source.by_unicast()
            );
            assert!(host.group.forged() > 0);
        }
        let lost: u64 = hosts
            .iter()
            .map(|host| host.group.stats().asked_again)
            .sum();
        assert!(lost > 0, "nothing was lost");
        let deaf = &hosts[deaf - 1];
        assert!(!deaf.group.passes());
        assert_eq!(deaf.source.multicast(), Some(false));
        assert_eq!(deaf.source.by_unicast(), all);
    });
    let stats = server.stats();
    assert_eq!(stats.replayed, 0, "{stats:?}");
    let sent = segment.sent_bytes(0).unwrap() - before;
    assert!(
        sent < 2 * BYTES as u64,
        "{sent} bytes for {BYTES} at four hosts: {stats:?}"
    );
}

/// Simulates a stranger on the segment: it asks for everything, answers with noise, and claims that nothing arrives.
fn forge(own: Ipv4Addr, invitation: &Invitation, wants: &[(Kind, Hash)], over: &AtomicBool) {
    // what is sent to a group leaves through the device that has this address
    let socket = UdpSocket::bind((own, 0)).unwrap();
    let key = GroupKey::of("not the token");
    let want = |(kind, hash): &(Kind, Hash)| Want {
        kind: *kind,
        hash: *hash,
        pieces: u32::MAX,
        again: true,
        demand: true,
    };
    let mut sequence = 0;
    while !over.load(Relaxed) {
        sequence += 1;
        let ask = Ask {
            receiver: sequence,
            sequence,
            bytes_per_s: 0,
            wants: wants[..30].iter().map(want).collect(),
        };
        let mut noise = ask.encode();
        noise[18] = 2;
        let seal = |datagram: &[u8]| GroupSealer::new(key, [1; 8]).seal(datagram).unwrap();
        for datagram in [seal(&ask.encode()), seal(&noise), vec![7; 1400]] {
            for to in [invitation.server, invitation.group] {
                socket.send_to(&datagram, to).unwrap();
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
