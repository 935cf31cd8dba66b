//! What tests of reading need: an image in a repository, and its swarm of two hosts over real sockets.

use super::{
    beside::Beside,
    decide::Key,
    pieces::{Active, Part, Pieces},
};
use floe_api::credentials::HubAddress;
use floe_image::{CHUNK_SIZE, Hash, Kind, PACK_HEADER_BYTES, PackRef};
use floe_peers::{Config, Content, Host, Member, Options, Shelf, Swarm, Tree};
use floe_source::{Directory, PackReader, Request, Source, SourceError};
use floe_store::{Ingest, IngestOptions, Repository};
use std::{
    collections::HashSet,
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::runtime::{Builder, Runtime};

/// How many chunks the image has: some thirty pieces.
pub(super) const CHUNKS: u16 = 1024;
/// How many of them a read asks for: 64 KiB.
pub(super) const READ: usize = 16;
pub(super) const DEADLINE: Duration = Duration::from_millis(1500);

/// Bytes that nothing makes smaller, others for each seed.
pub(super) fn noise(seed: u16, bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(u64::from(seed) + 1);
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// A chunk, half of which is noise: those below [`CHUNKS`] are the image's, in this order.
pub(super) fn chunk(number: u16) -> Vec<u8> {
    let mut bytes = noise(number, CHUNK_SIZE / 2);
    bytes.resize(CHUNK_SIZE, 1);
    bytes
}

/// Chunks as a read names them.
pub(super) fn items(numbers: impl IntoIterator<Item = u16>) -> Vec<(Kind, Hash)> {
    let hashes = numbers.into_iter().map(|number| Hash::of(&chunk(number)));
    hashes.map(|hash| (Kind::Chunk, hash)).collect()
}

/// Reads items, all of which are right and come if no error does. Also returns how many came, neighbours among them.
pub(super) fn read(
    source: &dyn Source,
    image: &Hash,
    wants: &[(Kind, Hash)],
    request: &Request,
) -> (Result<(), SourceError>, usize) {
    let mut came = HashSet::new();
    let mut sink = |_: Kind, hash: Hash, bytes: &[u8]| {
        assert_eq!(Hash::of(bytes), hash);
        assert!(came.insert(hash), "an item came twice");
    };
    let read = source.read(image, wants, request, &mut sink);
    assert!(read.is_err() || wants.iter().all(|(_, hash)| came.contains(hash)));
    (read, came.len())
}

/// An image in a repository that stands for its hub, and its swarm, in which nobody has anything.
pub(super) struct World {
    pub beside: Beside,
    pub active: Active,
    pub part: Arc<Part>,
    pub repo: Repository,
    pub image: Hash,
    pub hosts: Vec<Host>,
    pub runtime: Runtime,
    pub dir: tempfile::TempDir,
    /// What is exchanged.
    packs: Vec<Vec<u8>>,
}

impl World {
    /// `forged`: the hub names roots that fit other bytes than the image's, which are here.
    pub fn new(forged: bool) -> World {
        let dir = tempfile::tempdir().unwrap();
        let repo = Repository::create(&dir.path().join("repo")).unwrap();
        let mut ingest = Ingest::new(&repo, IngestOptions::default()).unwrap();
        let ram: Vec<u8> = (0..CHUNKS).flat_map(chunk).collect();
        ingest.region_bytes("ram", &ram).unwrap();
        let image = ingest.finish(Default::default()).unwrap();
        let layout = repo.layout(&image).unwrap();
        let ids: Vec<Hash> = layout.packs.iter().map(|pack| pack.id).collect();
        let pack = |pack: &PackRef| {
            let mut bytes = std::fs::read(repo.pack_path(&pack.id)).unwrap();
            let frames = PACK_HEADER_BYTES as usize..pack.index_offset as usize;
            if forged {
                bytes[frames].iter_mut().for_each(|byte| *byte ^= 0x5a);
            }
            bytes
        };
        let packs: Vec<Vec<u8>> = layout.packs.iter().map(pack).collect();
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let hosts = [1, 2].map(|number| {
            let loopback = "127.0.0.1:0".parse().unwrap();
            let host = runtime.block_on(Host::listen([number; 32], &[loopback]));
            host.unwrap()
        });
        let hosts: Vec<Host> = hosts.into();
        let shelf = shelf(dir.path(), &packs, 0, forged);
        let mine = Arc::new(join(&runtime, shelf, &hosts, 0));
        let at = "the swarm".to_owned();
        let handle = runtime.handle().clone();
        let pieces = Pieces::new(at, mine.clone(), &ids, true, handle);
        let reader = PackReader::new(pieces, layout, None);
        let part = Arc::new(Part::new(String::new(), mine, reader, Arc::default()));
        part.always.store(true, Relaxed);
        let (hub, active) = (HubAddress::of("https://hub").unwrap(), Active::default());
        let key = Key {
            hub: hub.clone(),
            image,
        };
        active.put(key, part.clone());
        let hub_source = Arc::new(Directory::new(repo.clone()));
        World {
            beside: Beside::new(hub_source, hub, active.clone()),
            active,
            part,
            repo,
            image,
            hosts,
            runtime,
            dir,
            packs,
        }
    }

    /// Lets the other host take part, which has all of the image or nothing.
    pub fn other(&self, has_all: bool) -> Swarm {
        self.part.others.store(true, Relaxed);
        let shelf = shelf(self.dir.path(), &self.packs, 1, has_all);
        join(&self.runtime, shelf, &self.hosts, 1)
    }

    /// Puts all packs on this host's shelf.
    pub fn fill(&self) {
        fill(self.part.swarm.shelf(), self.dir.path(), &self.packs);
    }

    /// An image that is based on this one, and has other chunks in place of so many first ones: those from [`CHUNKS`] on.
    pub fn fork(&self, changed: u16) -> Hash {
        let options = IngestOptions {
            parent: Some(self.image),
            ..Default::default()
        };
        let mut ingest = Ingest::new(&self.repo, options).unwrap();
        let numbers = (CHUNKS..CHUNKS + changed).chain(changed..CHUNKS);
        let ram: Vec<u8> = numbers.flat_map(chunk).collect();
        ingest.region_bytes("ram", &ram).unwrap();
        ingest.finish(Default::default()).unwrap()
    }

    /// Reads some chunks of the image.
    pub fn read(&self, from: u16, request: &Request) -> Result<(), SourceError> {
        let wants = items((from..CHUNKS).take(READ));
        let (read, _) = read(&self.beside, &self.image, &wants, request);
        read
    }

    /// How many pieces are waited for.
    pub fn needed(&self) -> usize {
        let status = self.runtime.block_on(self.part.swarm.status());
        status.unwrap().needed
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // sockets are closed where they live
        let _within = self.runtime.enter();
        self.hosts.clear();
    }
}

/// The shelf of a host, with all packs or none.
fn shelf(dir: &Path, packs: &[Vec<u8>], number: usize, has_all: bool) -> Arc<Shelf> {
    let root = |pack: &Vec<u8>| {
        let tree = Tree::of(&pack[..], pack.len() as u64);
        tree.unwrap().pack()
    };
    let content = Content::new(packs.iter().map(root).collect()).unwrap();
    let at = dir.join(number.to_string());
    std::fs::create_dir_all(&at).unwrap();
    let shelf = Shelf::open(&at, Arc::new(content)).unwrap();
    if has_all {
        fill(&shelf, dir, packs);
    }
    Arc::new(shelf)
}

fn fill(shelf: &Shelf, dir: &Path, packs: &[Vec<u8>]) {
    for (number, pack) in packs.iter().enumerate() {
        let file = tempfile::NamedTempFile::new_in(dir).unwrap();
        std::fs::write(&file, pack).unwrap();
        assert!(shelf.fill(number, file.into_temp_path()).unwrap());
    }
}

fn join(runtime: &Runtime, shelf: Arc<Shelf>, hosts: &[Host], number: usize) -> Swarm {
    let members = hosts.iter().map(|host| Member {
        key: host.key(),
        addresses: host.addresses(),
    });
    let options = Options {
        config: Config::ours(),
        image: [1; 32],
        token: [7; 32],
        members: members.collect(),
    };
    let _within = runtime.enter();
    hosts[number].join(shelf, None, options).unwrap()
}
