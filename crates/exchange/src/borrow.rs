//! Reads what clones lack of a parent on another host out of the swarms that this node is in: what is in pieces on its shelves, and more of
//! them where that is cheaper ([`Choice`]).
//!
//! A fork's image is based on the image that its parent ran, of which it has all that was not changed. Where this host runs that image too,
//! with others, these chunks need not leave the parent's host once more. A fork opens only its own image and those that it is based on: no
//! other swarm is looked into for it, whose image may be somebody else's.

use super::{
    cheaper::{Asked, Choice, Pace, Way},
    pieces::{Active, Part},
    reading::Reading,
};
use floe_image::{Hash, Kind, Layout, Manifest};
use floe_source::{LinkEstimate, Request, Sink, Source, SourceError, WholePacks};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// The swarms that may have some of an image, and what is decided for it.
type Lenders = (Vec<Arc<Part>>, Arc<Mutex<Choice>>);

/// The host of a fork's parent as a source; the swarms of this node are asked before it. Locks, never together: the list of images whose
/// manifests are known, and what is decided for one.
pub(super) struct Borrowed {
    parent: Arc<dyn Source>,
    active: Active,
    began: Instant,
    choices: Mutex<HashMap<Hash, Arc<Mutex<Choice>>>>,
}

impl Borrowed {
    /// Puts the swarms before what the parent's host gives.
    pub fn new(parent: Arc<dyn Source>, active: Active) -> Borrowed {
        Borrowed {
            parent,
            active,
            began: Instant::now(),
            choices: Mutex::default(),
        }
    }

    /// Returns what is decided for an image; `None` before its manifest was read.
    fn choice(&self, image: &Hash) -> Option<Arc<Mutex<Choice>>> {
        self.choices.lock().get(image).cloned()
    }

    /// Notes what an image is based on.
    fn note(&self, image: &Hash, manifest: &Manifest) {
        let choice = self.choices.lock().entry(*image).or_default().clone();
        self.active.lends(*image, manifest.parent, &choice);
    }

    /// Returns an image's lenders; `None` if there are none. What the image is based on is
    /// found out with the first read for which no guest stands still, if its manifest was not read here.
    fn lenders(&self, image: &Hash, demand: bool) -> Option<Lenders> {
        let used = self.active.used();
        if used.is_empty() {
            return None;
        }
        if !demand && self.choice(image).is_none() {
            let manifest = self.parent.manifest(image).ok()?;
            self.note(image, &manifest);
        }
        let choice = self.choice(image)?;
        let bases = self.active.bases(image);
        let parts = used.into_iter();
        let parts = parts.filter(|(key, _)| bases.contains(&key.image));
        let parts: Vec<Arc<Part>> = parts.map(|(_, part)| part).collect();
        (!parts.is_empty()).then_some((parts, choice))
    }

    /// Reads out of one swarm what is on its shelf, and the rest of what it has if that is cheaper.
    fn borrow(&self, part: &Part, choice: &Mutex<Choice>, reading: &mut Reading<'_, '_>) {
        let found = part.look_up(&reading.rest());
        let deadline = reading.request.deadline;
        read_some(part, &found.here, choice, Way::Shelf, deadline, reading);
        if found.there.is_empty() {
            return;
        }
        let demand = reading.request.is_demand();
        let asked = Asked {
            chunks: found.there.len() as u64,
            pieces: found.pieces as u64,
            demand,
        };
        let (swarm, parent) = (pace_of(part), self.pace_of_parent());
        let now = self.began.elapsed();
        let patience = choice.lock().choose(now, asked, swarm, parent);
        let Some(patience) = patience else {
            return;
        };
        if demand {
            part.note_busy();
        }
        // it leaves time for the parent's host; one that had too little time is not to blame
        let (limit, most) = (reading.began.elapsed() + patience, deadline.mul_f32(0.6));
        let (least, there) = (limit.min(most), &found.there);
        let came = read_some(part, there, choice, Way::Swarm, least, reading);
        if !came && limit <= most {
            choice.lock().failed(self.began.elapsed());
        }
    }

    fn pace_of_parent(&self) -> Option<Pace> {
        let link = self.parent.link();
        Some(Pace {
            first_us: link.rtt_us?,
            bytes_per_s: link.bytes_per_s?,
        })
    }
}

/// Reads items out of a swarm; returns whether all of them came.
fn read_some(
    part: &Part,
    items: &[(Kind, Hash)],
    choice: &Mutex<Choice>,
    way: Way,
    limit: Duration,
    reading: &mut Reading<'_, '_>,
) -> bool {
    if items.is_empty() {
        return true;
    }
    let lacked = reading.lacks();
    let read = reading.some_of_swarm(part, items, limit);
    choice.lock().came(way, lacked - reading.lacks());
    if let Err(error) = &read {
        tracing::debug!(image = reading.image.short(), %error, "read from the parent's host instead");
    }
    read.is_ok()
}

/// What a swarm has measured; nothing while no other host is connected, for then the hub would be asked.
fn pace_of(part: &Part) -> Option<Pace> {
    let speed = part.swarm.speed().filter(|_| part.swarm.connected() > 0)?;
    Some(Pace {
        first_us: speed.piece_us,
        bytes_per_s: speed.bytes_per_s,
    })
}

impl Source for Borrowed {
    fn describe(&self) -> String {
        self.parent.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.parent.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        let manifest = self.parent.manifest(id)?;
        self.note(id, &manifest);
        Ok(manifest)
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.parent.layout(id)
    }

    fn is_own(&self, id: &Hash) -> Result<bool, SourceError> {
        self.parent.is_own(id)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let Some((parts, choice)) = self.lenders(image, request.is_demand()) else {
            return self.parent.read(image, wants, request, sink);
        };
        let mut reading = Reading::new(image, wants, request, sink);
        for part in &parts {
            self.borrow(part, &choice, &mut reading);
        }
        let lacked = reading.lacks();
        let read = reading.of_source(&*self.parent, request.deadline);
        let came = lacked - reading.lacks();
        choice.lock().came(Way::Parent, came);
        read
    }

    /// A piece that somebody waits for, and that is on its way for somebody else already, is hurried.
    fn merges(&self, image: &Hash, hash: &Hash) -> bool {
        let choice = self.choice(image);
        choice.is_some_and(|choice| choice.lock().is_swarm()) || self.parent.merges(image, hash)
    }

    fn multicast(&self) -> Option<bool> {
        self.parent.multicast()
    }

    fn whole_packs(&self, image: &Hash) -> Option<Arc<dyn WholePacks>> {
        self.parent.whole_packs(image)
    }

    fn link(&self) -> LinkEstimate {
        self.parent.link()
    }
}

#[cfg(test)]
mod tests {
    use super::super::world_tests::{CHUNKS, DEADLINE, READ, World, chunk, items, read};
    use super::*;
    use floe_api::SwarmLent;
    use floe_ground::patience::PATIENCE;
    use floe_image::{CHUNK_SIZE, datagram::GroupKey};
    use floe_peers::PieceId;
    use floe_source::{
        Directory,
        multicast::{Group, Invitation, Multicast, MulticastServer, ServerOptions},
    };
    use floe_store::{Cache, Ingest, IngestOptions};
    use std::net::{Ipv4Addr, SocketAddrV4};
    use tokio::net::UdpSocket;

    /// A parent's host that says what images are, and gives nothing of them.
    struct Silent(Arc<dyn Source>);

    impl Source for Silent {
        fn describe(&self) -> String {
            self.0.describe()
        }

        fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
            self.0.resolve(name)
        }

        fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
            self.0.manifest(id)
        }

        fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
            self.0.layout(id)
        }

        fn read(
            &self,
            _: &Hash,
            wants: &[(Kind, Hash)],
            request: &Request,
            _: &mut Sink<'_>,
        ) -> Result<(), SourceError> {
            Err(SourceError::Timeout {
                at: self.describe(),
                what: format!("{} items", wants.len()),
                after: request.deadline,
            })
        }
    }

    #[test]
    fn clones_read_what_is_in_pieces_here_and_no_pieces_of_images_that_theirs_is_not_based_on() {
        let world = World::new(false);
        world.fill();
        // the indices are read with the first items
        let request = Request::demand(DEADLINE);
        world.read(0, &request).unwrap();

        // the image's clone has changed its first chunk
        let fork = world.fork(1);
        let host = Arc::new(Silent(Arc::new(Directory::new(world.repo.clone()))));
        let borrowed = Borrowed::new(host, world.active.clone());
        let read = |image: &Hash, wants: &[u16]| {
            let wants = items(wants.iter().copied());
            let (read, came) = read(&borrowed, image, &wants, &request);
            (read.is_ok(), came)
        };
        assert_eq!(read(&fork, &[3]), (false, 0), "nobody knows it");
        assert_eq!(borrowed.manifest(&fork).unwrap().parent, Some(world.image));
        let (ok, came) = read(&fork, &[3, 4]);
        assert!(ok && came >= 2, "{came}");
        let (ok, came) = read(&fork, &[CHUNKS, 5]);
        assert!(!ok && came >= 1, "{came}");
        let lent = world.active.lent(&fork).unwrap();
        assert_eq!(lent.shelf_bytes, 3 * CHUNK_SIZE as u64);
        assert_eq!((lent.swarm_bytes, lent.parent_bytes), (0, 0));

        // a fork of the fork, which changed nothing, has the same
        let options = IngestOptions {
            parent: Some(fork),
            created_unix_s: Some(1),
            ..Default::default()
        };
        let mut ingest = Ingest::new(&world.repo, options).unwrap();
        ingest.region_from_parent("ram").unwrap();
        let grandchild = ingest.finish(Default::default()).unwrap();
        borrowed.manifest(&grandchild).unwrap();
        let (ok, came) = read(&grandchild, &[6]);
        assert!(ok && came >= 1, "{came}");

        // an image that has nothing to do with it
        let mut ingest = Ingest::new(&world.repo, IngestOptions::default()).unwrap();
        ingest.region_bytes("ram", &chunk(2 * CHUNKS)).unwrap();
        let other = ingest.finish(Default::default()).unwrap();
        borrowed.manifest(&other).unwrap();
        assert_eq!(read(&other, &[3]), (false, 0));
        assert_eq!(world.active.lent(&other), None);
    }

    /// How many chunks the fork has changed.
    const CHANGED: u16 = 256;
    /// How long a question takes to the parent's host.
    const FAR: Duration = Duration::from_millis(150);

    /// Passes datagrams on to an address, each after [`FAR`].
    async fn pass_on(from: UdpSocket, to: SocketAddrV4) {
        let from = Arc::new(from);
        let mut datagram = vec![0; 2048];
        while let Ok(bytes) = from.recv(&mut datagram).await {
            let (out, datagram) = (from.clone(), datagram[..bytes].to_vec());
            tokio::spawn(async move {
                tokio::time::sleep(FAR).await;
                let _ = out.send_to(&datagram, to).await; // it may be lost, as any
            });
        }
    }

    /// A clone's host in the multicast group of a parent's host, to which the way is long.
    struct Member {
        borrowed: Borrowed,
        group: Arc<Group>,
        fork: Hash,
        _server: MulticastServer,
    }

    impl Member {
        fn new(world: &World) -> Member {
            let fork = world.fork(CHANGED);
            let parent = || Arc::new(Directory::new(world.repo.clone()));
            let options = ServerOptions::new(Ipv4Addr::LOCALHOST, GroupKey::of("token"));
            let server = MulticastServer::open(fork, parent(), &options).unwrap();
            let near = server.invitation().clone();
            let way = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
            let way = world.runtime.block_on(way).unwrap();
            let port = way.local_addr().unwrap().port();
            world.runtime.spawn(pass_on(way, near.server));
            let invitation = Invitation {
                server: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
                ..near
            };
            let cache = Cache::open(&world.dir.path().join("cache"), 64 << 20);
            let cache = Arc::new(cache.unwrap());
            let group = Arc::new(Group::join(&invitation, cache.clone()).unwrap());
            let multicast = Multicast::new(group.clone(), parent(), cache);
            Member {
                borrowed: Borrowed::new(Arc::new(multicast), world.active.clone()),
                group,
                fork,
                _server: server,
            }
        }

        /// Reads ahead of need, and returns from where all has come so far, and how many items of that by the group.
        fn read(&self, wants: &[(Kind, Hash)]) -> (SwarmLent, u64) {
            let request = Request::prefetch(PATIENCE);
            let (came, _) = read(&self.borrowed, &self.fork, wants, &request);
            came.unwrap();
            let lent = self.borrowed.active.lent(&self.fork).unwrap();
            (lent, self.group.stats().items)
        }
    }

    /// Has pieces come until the swarm knows how fast they do.
    fn measure(world: &World) {
        let swarm = &world.part.swarm;
        let pieces = 0..swarm.shelf().content().pieces();
        let lacking: Vec<PieceId> = pieces.filter(|n| !swarm.shelf().has(*n)).collect();
        let come = async {
            for some in lacking.chunks(6) {
                swarm.want(some).await.unwrap();
                // what comes within a moment is one measurement
                tokio::time::sleep(Duration::from_millis(250)).await;
                if swarm.speed().is_some() {
                    return;
                }
            }
        };
        let come = async { tokio::time::timeout(PATIENCE, come).await };
        world.runtime.block_on(come).unwrap();
    }

    /// Chunks that the fork has not changed, each in a piece of its own that is not here.
    fn alone_in_pieces(world: &World) -> [(Kind, Hash); 3] {
        let lies_in = |items: &[(Kind, Hash)]| {
            let found = world.part.look_up(items);
            (found.there.len() == items.len()).then_some(found.pieces)
        };
        let mut found = Vec::new();
        let mut all = items(CHANGED..CHUNKS);
        all.retain(|item| lies_in(&[*item]) == Some(1));
        for item in all {
            found.push(item);
            if lies_in(&found) != Some(found.len()) {
                found.pop();
            } else if let Ok(all) = found.clone().try_into() {
                return all;
            }
        }
        panic!("too few pieces are left");
    }

    #[test]
    fn a_clone_reads_out_of_the_swarm_that_is_cheaper_and_by_multicast_again_after_it_was_late() {
        let world = World::new(false);
        let giver = world.other(true);
        world.read(0, &Request::prefetch(PATIENCE)).unwrap();
        measure(&world);
        let clone = Member::new(&world);
        // what the parent has changed comes from its host, and tells how far that is
        let mut changed = (CHUNKS..CHUNKS + CHANGED).step_by(READ);
        let far = std::iter::from_fn(|| {
            let link = clone.borrowed.link();
            let measured = link.rtt_us.is_some() && link.bytes_per_s.is_some();
            let from = changed.next().filter(|_| !measured)?;
            Some(clone.read(&items((from..).take(READ))))
        });
        let (before, by_group) = far.last().unwrap();
        assert!(before.swarm_bytes == 0 && by_group > 0, "{before:?}");

        // of the rest the swarm has each chunk in a piece, which is here sooner
        let bytes = CHUNK_SIZE as u64;
        let [cheaper, late, later] = alone_in_pieces(&world);
        let of_swarm = || clone.borrowed.merges(&clone.fork, &cheaper.1);
        let (lent, group) = clone.read(&[cheaper]);
        let both = (lent.swarm_bytes, lent.parent_bytes);
        assert_eq!(both, (bytes, before.parent_bytes), "{lent:?}");
        assert!(lent.swarm_us < lent.parent_us, "{lent:?}");
        assert_eq!((group, of_swarm()), (by_group, true));

        // the other host goes on taking part and gives nothing; its task has seen that before it answers
        world.hosts[1].cap_uploads(Some(1));
        let seen = async {
            giver.predict(&[0], &[]).await?;
            giver.status().await
        };
        world.runtime.block_on(seen).unwrap();
        let (lent, group) = clone.read(&[late]);
        let both = (lent.swarm_bytes, lent.parent_bytes);
        assert_eq!(both, (bytes, before.parent_bytes + bytes), "{lent:?}");
        assert_eq!((group, of_swarm()), (by_group + 1, false));

        // it would give again, and is left alone for a while
        world.hosts[1].cap_uploads(None);
        let (lent, _) = clone.read(&[later]);
        let both = (lent.swarm_bytes, lent.parent_bytes);
        assert_eq!(both, (bytes, before.parent_bytes + 2 * bytes), "{lent:?}");
        assert!(lent.swarm_us < lent.parent_us, "{lent:?}");
    }
}
