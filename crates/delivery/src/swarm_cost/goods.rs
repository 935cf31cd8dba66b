//! Something to bring for hosts that are nobody's nodes: packs of noise in memory.
use anyhow::Context as _;
use bytes::Bytes;
use floe_peers::{
    Config, Content, Fetching, Host, Member, Options, PieceId, Seed, Shelf, Swarm, Tree,
};
use floe_testbed::workload::noise;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What they bring.
const IMAGE: [u8; 32] = [1; 32];
/// What the hosts of one measurement show each other.
const TOKEN: [u8; 32] = [7; 32];
/// How often what is awaited is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest time for hosts to find each other, and to bring what they want.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Packs with the trees that prove them. As a seed it has all of it.
pub(super) struct Goods {
    packs: Vec<Vec<u8>>,
    trees: Vec<Tree>,
    /// The packs as the hosts of a swarm know them.
    pub content: Arc<Content>,
}

impl Goods {
    /// Makes so many packs of so many bytes each: the same ones wherever it is called.
    pub fn new(packs: usize, bytes: usize) -> anyhow::Result<Arc<Goods>> {
        let packs: Vec<Vec<u8>> = (0..packs).map(|n| noise(bytes, n as u64)).collect();
        let trees = packs.iter().map(|pack| Tree::of(&pack[..], bytes as u64));
        let trees = trees.collect::<io::Result<Vec<Tree>>>()?;
        let content = Content::new(trees.iter().map(Tree::pack).collect())?;
        Ok(Arc::new(Goods {
            packs,
            trees,
            content: Arc::new(content),
        }))
    }

    /// Returns the pieces of a pack.
    pub fn pieces_of(&self, pack: usize) -> Vec<PieceId> {
        let bytes = self.packs.get(pack).map_or(0, Vec::len) as u64;
        self.content.pieces_of(pack, 0..bytes).collect()
    }

    fn proven(&self, pack: usize, range: &Range<u64>) -> io::Result<Bytes> {
        let both = self.packs.get(pack).zip(self.trees.get(pack));
        let (bytes, tree) = both.ok_or(io::ErrorKind::NotFound)?;
        let bytes = bytes.get(range.start as usize..range.end as usize);
        let proven = tree.prove(range, bytes.ok_or(io::ErrorKind::NotFound)?);
        proven.map_err(io::Error::other)
    }
}

impl Seed for Goods {
    fn fetch(&self, pack: usize, range: Range<u64>) -> Fetching<'_> {
        Box::pin(async move { self.proven(pack, &range) })
    }
}

/// How hosts take part: as nodes do.
pub(super) fn options(members: &[Member]) -> Options {
    Options {
        config: Config::ours(),
        image: IMAGE,
        token: TOKEN,
        members: members.to_vec(),
    }
}

/// Returns a host as others know it.
pub(super) fn member(host: &Host) -> Member {
    Member {
        key: host.key(),
        addresses: host.addresses(),
    }
}

/// Returns a shelf of a host that has these packs of the goods and no others.
pub(super) async fn stocked(
    host: &Host,
    dir: &Path,
    goods: &Arc<Goods>,
    packs: &[usize],
) -> anyhow::Result<Arc<Shelf>> {
    let shelf = Arc::new(Shelf::open(dir, goods.content.clone())?);
    let seed: Arc<dyn Seed> = goods.clone();
    let alone = host.join(shelf.clone(), Some(seed), options(&[]))?;
    for pack in packs {
        alone.want(&goods.pieces_of(*pack)).await?;
    }
    alone.leave().await;
    Ok(shelf)
}

/// Returns the number of hosts that a swarm has connections to.
pub(super) async fn connections(swarm: &Swarm) -> anyhow::Result<usize> {
    let status = swarm.status().await?;
    Ok(status.peers.iter().filter(|peer| peer.connected).count())
}

/// Waits until a swarm has connections to so many hosts.
pub(super) async fn connected(swarm: &Swarm, others: usize) -> anyhow::Result<()> {
    let looks = async {
        while connections(swarm).await? < others {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        anyhow::Ok(())
    };
    let found = tokio::time::timeout(PATIENCE, looks).await;
    found.context("the hosts do not find each other")?
}
