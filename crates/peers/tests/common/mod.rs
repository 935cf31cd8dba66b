//! An image, a seed that can be told to fail, and hosts on loopback that bring it to each other.
#![allow(dead_code)] // each test uses some of it

pub mod rogue;

use bytes::Bytes;
use floe_peers::*;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// What a test may take before it has failed: nothing here is about time, and the host may be busy.
const LONG: Duration = Duration::from_secs(120);

pub const TOKEN: [u8; 32] = [7; 32];

/// Waits for what must come.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(LONG, what).await;
    done.expect("it never happens")
}

/// An image of some packs, with the trees that prove it.
pub struct Image {
    pub packs: Vec<Vec<u8>>,
    pub trees: Vec<Tree>,
    pub content: Arc<Content>,
}

impl Image {
    /// Of packs of so many pieces; the last piece of each is short.
    pub fn new(pieces: &[u64]) -> Arc<Image> {
        let pack = |(number, pieces): (usize, &u64)| {
            let mut bytes = vec![0; (pieces * PIECE_BYTES - 1000) as usize];
            let mut hash = blake3::Hasher::new();
            hash.update(&number.to_le_bytes())
                .finalize_xof()
                .fill(&mut bytes);
            bytes
        };
        Image::of(pieces.iter().enumerate().map(pack).collect())
    }

    fn of(packs: Vec<Vec<u8>>) -> Arc<Image> {
        let tree = |pack: &Vec<u8>| Tree::of(&pack[..], pack.len() as u64).unwrap();
        let trees: Vec<Tree> = packs.iter().map(tree).collect();
        let known = trees.iter().map(Tree::pack).collect();
        let content = Arc::new(Content::new(known).unwrap());
        Arc::new(Image {
            packs,
            trees,
            content,
        })
    }

    /// The image laid out anew: packs of so many pieces that nobody has seen, and then some of those that it had.
    pub fn anew(&self, pieces: &[u64], kept: &[usize]) -> Arc<Image> {
        let new = Image::new(&[&vec![1; self.packs.len()][..], pieces].concat());
        let new = new.packs[self.packs.len()..].iter();
        let kept = kept.iter().map(|number| &self.packs[*number]);
        Image::of(new.chain(kept).cloned().collect())
    }

    pub fn all(&self) -> Vec<PieceId> {
        (0..self.content.pieces()).collect()
    }

    pub fn bytes(&self) -> u64 {
        self.packs.iter().map(|pack| pack.len() as u64).sum()
    }

    pub fn prove(&self, pack: usize, range: Range<u64>) -> Bytes {
        let bytes = &self.packs[pack][range.start as usize..range.end as usize];
        self.trees[pack].prove(&range, bytes).unwrap()
    }

    /// Puts a whole pack on a shelf, which is in this directory.
    pub fn put(&self, shelf: &Shelf, dir: &Path, pack: usize) {
        let file = tempfile::NamedTempFile::new_in(dir).unwrap();
        std::fs::write(&file, &self.packs[pack]).unwrap();
        assert!(shelf.fill(pack, file.into_temp_path()).unwrap());
    }

    /// Asserts that all of the image is on a shelf, as it is.
    pub fn assert_here(&self, shelf: &Shelf) {
        for (number, pack) in self.packs.iter().enumerate() {
            assert!(shelf.read(number, 0..pack.len() as u64).unwrap() == *pack);
        }
    }
}

/// A seed.
pub struct Shop {
    image: Arc<Image>,
    /// Pieces that were given, in order.
    pub given: Mutex<Vec<PieceId>>,
    /// Fails every request.
    pub closed: AtomicBool,
    /// Gives each piece once.
    pub once: AtomicBool,
    /// Gives wrong bytes for so many requests.
    pub wrong: AtomicU64,
    /// Pieces that are not what the packs are taken for, although they fit the roots.
    pub misfits: Mutex<Vec<PieceId>>,
    /// Packs of which it was told that their bytes were wrong.
    pub told: Mutex<Vec<usize>>,
    /// Whoever writes here makes requests wait.
    pub gate: tokio::sync::RwLock<()>,
}

impl Shop {
    pub fn new(image: &Arc<Image>) -> Arc<Shop> {
        Arc::new(Shop {
            image: image.clone(),
            given: Mutex::default(),
            closed: AtomicBool::new(false),
            once: AtomicBool::new(false),
            wrong: AtomicU64::new(0),
            misfits: Mutex::default(),
            told: Mutex::default(),
            gate: tokio::sync::RwLock::default(),
        })
    }

    pub fn given(&self) -> usize {
        self.given.lock().unwrap().len()
    }
}

impl Seed for Shop {
    fn fetch(&self, pack: usize, range: Range<u64>) -> Fetching<'_> {
        Box::pin(async move {
            drop(self.gate.read().await);
            let piece = self.image.content.pieces_of(pack, range.clone()).start;
            let closed = self.closed.load(Ordering::Relaxed);
            {
                let mut given = self.given.lock().unwrap();
                let again = self.once.load(Ordering::Relaxed) && given.contains(&piece);
                if closed || again {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                given.push(piece);
            }
            let mut proven = self.image.prove(pack, range).to_vec();
            let left = self.wrong.load(Ordering::Relaxed);
            if left > 0 {
                self.wrong.store(left - 1, Ordering::Relaxed);
                let last = proven.len() - 1;
                proven[last] ^= 1;
            }
            Ok(proven.into())
        })
    }

    fn fits(&self, pack: usize, range: &Range<u64>, bytes: &[u8]) -> bool {
        let of_pack = &self.image.packs[pack][range.start as usize..range.end as usize];
        assert!(bytes == of_pack, "they were verified before");
        let piece = self.image.content.pieces_of(pack, range.clone()).start;
        !self.misfits.lock().unwrap().contains(&piece)
    }

    fn was_wrong(&self, pack: usize) {
        self.told.lock().unwrap().push(pack);
    }
}

/// A host that listens, and in time takes part.
pub struct Node {
    pub host: Host,
    pub dir: TempDir,
    pub image: Arc<Image>,
}

impl Node {
    pub async fn new(image: &Arc<Image>, number: u8) -> Node {
        let loopback = "127.0.0.1:0".parse().unwrap();
        Node {
            host: Host::listen([number; 32], &[loopback]).await.unwrap(),
            dir: tempfile::tempdir().unwrap(),
            image: image.clone(),
        }
    }

    pub fn member(&self) -> Member {
        Member {
            key: self.host.key(),
            addresses: self.host.addresses(),
        }
    }

    /// Opens the node's shelf; it has these packs from elsewhere.
    pub fn shelf(&self, packs: &[usize]) -> Arc<Shelf> {
        let shelf = Shelf::open(self.dir.path(), self.image.content.clone()).unwrap();
        for pack in packs {
            self.image.put(&shelf, self.dir.path(), *pack);
        }
        Arc::new(shelf)
    }

    pub fn join(&self, shelf: Arc<Shelf>, seed: Option<&Arc<Shop>>, members: &[Member]) -> Swarm {
        let options = options(shelf.content().id(), members);
        self.join_as(shelf, seed, options)
    }

    pub fn join_as(&self, shelf: Arc<Shelf>, seed: Option<&Arc<Shop>>, options: Options) -> Swarm {
        let seed = seed.map(|seed| seed.clone() as Arc<dyn Seed>);
        self.host.join(shelf, seed, options).unwrap()
    }
}

/// How hosts take part. An image that was never laid out anew is called as its packs are.
pub fn options(image: [u8; 32], members: &[Member]) -> Options {
    Options {
        config: Config::ours(),
        image,
        token: TOKEN,
        members: members.to_vec(),
    }
}

/// So many nodes of an image, and the list of them.
pub async fn nodes(image: &Arc<Image>, count: u8) -> (Vec<Node>, Vec<Member>) {
    let mut nodes = Vec::new();
    for number in 1..=count {
        nodes.push(Node::new(image, number).await);
    }
    let members = nodes.iter().map(Node::member).collect();
    (nodes, members)
}

pub fn status_of(status: &Status, key: Key) -> &Peer {
    status.peers.iter().find(|peer| peer.key == key).unwrap()
}

/// Asserts that nobody was dropped but for being slow: on a busy host an honest one may be silent for longer than others wait.
pub fn assert_nobody_is_blamed(status: &Status) {
    let mut faults = status.dropped.iter().map(|(_, fault)| fault);
    assert!(faults.all(|fault| *fault == Fault::Stalled), "{status:?}");
}

/// Waits until a swarm's status is as wanted.
pub async fn until(swarm: &Swarm, wanted: impl Fn(&Status) -> bool) -> Status {
    soon(async {
        loop {
            let status = swarm.status().await.unwrap();
            if wanted(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}
