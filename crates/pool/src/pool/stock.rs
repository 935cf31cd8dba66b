//! The chunks of substrates that are in memory, as a source: every fetcher of this node asks here before it asks the repository. Of each
//! substrate's image only the chunks are here that its base lacks.

use floe_image::{Hash, Kind, Layout, Manifest};
use floe_inventory::{
    inventory::record::Origin,
    resources::{Resources, Yields},
};
use floe_library::images::sources::Provide;
use floe_source::{LinkEstimate, Request, Scheme, Sink, Source, SourceError};
use floe_store::{Admitted, Lacking, Packed, PoolItem, SubstratePool};
use parking_lot::Mutex;
use std::{
    collections::HashSet,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The chunks in memory. The lock is held for look-ups and for entering what was compressed before, never while something is read,
/// compressed or unpacked, except when a few groups are made smaller. What it takes is promised to it by the ledger of the host, whose lock
/// is taken under this one.
#[derive(Clone)]
pub struct Stock(Arc<Shared>);

struct Shared {
    pool: Mutex<SubstratePool>,
    resources: Arc<Resources>,
    /// How many substrates have left memory because a machine needed it.
    gave_way: AtomicU64,
}

impl Shared {
    fn with<T>(&self, call: impl FnOnce(&mut SubstratePool) -> T) -> T {
        let mut pool = self.pool.lock();
        let before = pool.usage().bytes;
        let done = call(&mut pool);
        let bytes = pool.usage().bytes;
        if bytes != before {
            self.resources.pool_has(bytes);
        }
        done
    }
}

impl Yields for Shared {
    fn give_way(&self, bytes: u64) -> u64 {
        let (gone, gave) = self.with(|pool| {
            let before = pool.usage().bytes;
            let gone = pool.give_back(bytes);
            (gone, before - pool.usage().bytes)
        });
        if !gone.is_empty() {
            self.gave_way.fetch_add(gone.len() as u64, Relaxed);
            tracing::info!(
                count = gone.len(),
                bytes = gave,
                "substrates left the memory because a machine needs it"
            );
        }
        gave
    }
}

impl Stock {
    /// Returns an empty stock that takes `budget_bytes` of memory at most, and gives it to machines when they need it.
    pub fn new(budget_bytes: u64, resources: Arc<Resources>) -> Stock {
        let stock = Arc::new(Shared {
            pool: Mutex::new(SubstratePool::new(budget_bytes)),
            resources,
            gave_way: AtomicU64::new(0),
        });
        let yields: Weak<Shared> = Arc::downgrade(&stock);
        stock.resources.ask_for_memory(yields);
        Stock(stock)
    }

    /// Calls a function with it.
    pub fn with<T>(&self, call: impl FnOnce(&mut SubstratePool) -> T) -> T {
        self.0.with(call)
    }

    /// Takes a substrate in, as far as the budget and the host's free memory allow; see [`SubstratePool::admit`].
    pub fn admit(&self, id: Hash, items: &[PoolItem], packed: Packed) -> Result<Admitted, Lacking> {
        let want = packed.growth_bytes_max(items.len());
        let room = self.0.resources.for_pool(want);
        let admitted = self.with(|pool| {
            let bytes_max = pool.usage().bytes.saturating_add(room.bytes);
            pool.admit(id, items, packed, bytes_max)
        });
        drop(room);
        self.settle();
        admitted
    }

    /// Compresses anew what lost neighbours when substrates left. The stock is free in between, for page faults.
    pub fn settle(&self) {
        while self.with(|pool| pool.thin_some()) {}
    }

    /// Returns how many bytes substrates could take now: the budget, or less if the host has less for them.
    pub fn bytes_max(&self) -> u64 {
        let budget_bytes = self.with(|pool| pool.budget_bytes());
        budget_bytes.min(self.host_bytes().unwrap_or(u64::MAX))
    }

    /// Returns how many bytes the host has for substrates, those included that they take; `None` if that is unknown.
    pub fn host_bytes(&self) -> Option<u64> {
        let free = self.0.resources.free_for_pool()?;
        Some(free.saturating_add(self.with(|pool| pool.usage().bytes)))
    }

    /// Returns how many substrates have left memory because a machine needed it.
    pub fn gave_way(&self) -> u64 {
        self.0.gave_way.load(Relaxed)
    }
}

impl Provide for Stock {
    fn scheme(&self) -> Option<Scheme> {
        None // it is only on this host
    }

    fn here(&self, repository: Arc<dyn Source>) -> Arc<dyn Source> {
        Arc::new(InMemory {
            stock: self.clone(),
            below: repository,
        })
    }

    fn elsewhere(&self, source: Arc<dyn Source>, _: &Origin) -> Arc<dyn Source> {
        source
    }
}

/// What is in memory, and then what is in the repository.
struct InMemory {
    stock: Stock,
    below: Arc<dyn Source>,
}

impl Source for InMemory {
    fn describe(&self) -> String {
        self.below.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.below.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.below.manifest(id)
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.below.layout(id)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        // a fork's token opens its images here: that of another substrate, which may be somebody else's, is not looked at for them
        let (pieces, mut rest) = self.stock.with(|pool| pool.find_of(image, wants));
        if pieces.is_empty() {
            return self.below.read(image, wants, request, sink);
        }
        // a chunk that is wanted of one group may be a neighbour in another
        let mut given = HashSet::new();
        for piece in pieces {
            let read = piece.read(&mut |kind, hash, bytes| {
                if given.insert((kind, hash)) {
                    sink(kind, hash, bytes);
                }
            });
            if let Err(error) = read {
                tracing::warn!(%error, "memory of the pool went bad; the backup is read");
                rest.extend(piece.wanted());
            }
        }
        rest.retain(|want| !given.contains(want));
        match rest.is_empty() {
            true => Ok(()),
            false => self.below.read(image, &rest, request, sink),
        }
    }

    fn merges(&self, image: &Hash, hash: &Hash) -> bool {
        self.below.merges(image, hash)
    }

    fn link(&self) -> LinkEstimate {
        self.below.link()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_image::CHUNK_SIZE;
    use floe_store::{Ingest, IngestOptions, PoolItem, Repository};
    use std::{collections::HashMap, time::Duration};

    #[test]
    fn what_is_in_memory_needs_no_backup_is_that_images_alone_and_the_rest_comes_from_there() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Repository::create(dir.path()).unwrap();
        let chunk = |n: u8| vec![n; CHUNK_SIZE];
        let mut ingest = Ingest::new(&repo, IngestOptions::default()).unwrap();
        ingest
            .region_bytes("ram", &[chunk(1), chunk(2), chunk(3)].concat())
            .unwrap();
        let id = ingest.finish(Default::default()).unwrap();
        let resources = Resources::of_this_host(&floe_api::paths::Home::at("/nowhere"), None, 0);
        let stock = Stock::new(1 << 20, Arc::new(resources));
        let hashes = [1, 2, 3].map(|n| Hash::of(&chunk(n)));
        let items = [0, 1].map(|at| PoolItem {
            kind: Kind::Chunk,
            hash: hashes[at],
            small: false,
        });
        let (lacking, mut packing) = stock.with(|pool| pool.plan(&items));
        for (item, n) in lacking.iter().zip([1, 2]) {
            packing.push(item, &chunk(n)).unwrap();
        }
        let packed = packing.finish().unwrap();
        assert!(stock.admit(id, &items, packed).unwrap().held);
        let source = stock.here(Arc::new(floe_source::Directory::new(repo)));
        let read_as = |id: &Hash, wants: &[Hash]| {
            let wants: Vec<(Kind, Hash)> = wants.iter().map(|hash| (Kind::Chunk, *hash)).collect();
            let request = Request::demand(Duration::from_secs(1));
            let mut found: HashMap<Hash, Vec<u8>> = HashMap::new();
            let mut sink = |_: Kind, hash: Hash, bytes: &[u8]| {
                let twice = found.insert(hash, bytes.to_vec());
                assert!(twice.is_none(), "an item came twice");
            };
            source.read(id, &wants, &request, &mut sink).map(|()| found)
        };
        let read = |wants: &[Hash]| read_as(&id, wants);
        let found = read(&hashes).unwrap();
        for (n, hash) in [1, 2, 3].into_iter().zip(&hashes) {
            assert_eq!(found[hash], chunk(n));
        }
        std::fs::remove_dir_all(dir.path().join("packs")).unwrap();
        assert_eq!(read(&hashes[..2]).unwrap().len(), 2);
        assert!(read(&hashes).is_err());
        // whoever may read another image gets nothing of this one
        assert!(read_as(&Hash::of(b"another"), &hashes[..1]).is_err());
    }

    /// Takes in a substrate of 64 chunks of noise; returns whether it is in memory then.
    fn take_in(stock: &Stock, name: u8) -> bool {
        let mut items = Vec::new();
        let mut bytes = Vec::new();
        for n in 0..64 {
            let words = (0..CHUNK_SIZE / 32).map(|at| Hash::of(&[name, n, at as u8]));
            let chunk = words.flat_map(|word| *word.as_bytes()).collect::<Vec<u8>>();
            items.push(PoolItem {
                kind: Kind::Chunk,
                hash: Hash::of(&chunk),
                small: false,
            });
            bytes.push(chunk);
        }
        let (lacking, mut packing) = stock.with(|pool| pool.plan(&items));
        for item in &lacking {
            let at = items.iter().position(|other| other == item).unwrap();
            packing.push(item, &bytes[at]).unwrap();
        }
        let packed = packing.finish().unwrap();
        stock.admit(Hash::of(&[name]), &items, packed).unwrap().held
    }

    #[test]
    fn substrates_give_way_to_machines_and_never_take_what_machines_were_promised() {
        use floe_ground::options::STANDBY_BYTES;
        let mut record = floe_inventory::inventory::sample_record();
        record.config.memory_bytes = Some(64 << 20);
        record.restored = false;
        let machine_bytes = STANDBY_BYTES + (64 << 20);
        // room for a machine, and for two of three substrates of 256 KiB and some beside it
        let home = floe_api::paths::Home::at("/nowhere");
        let all = machine_bytes + (700 << 10);
        let resources = Arc::new(Resources::of_this_host(&home, Some(all), 0));
        let stock = Stock::new(1 << 30, resources.clone());
        assert_eq!(stock.host_bytes(), Some(all));
        for name in 0..3 {
            assert!(take_in(&stock, name), "{name}");
        }
        resources.reserve(&record, 0, false, || false).unwrap();
        assert_eq!(
            (stock.with(|pool| pool.usage().substrates), stock.gave_way()),
            (2, 1)
        );
        assert!(
            !stock.with(|pool| pool.holds(&Hash::of(&[0]))),
            "the oldest left"
        );
        // now the host is full: a third one takes the place of the oldest
        assert!(take_in(&stock, 4));
        assert_eq!(stock.with(|pool| pool.usage().substrates), 2);
        assert!(stock.host_bytes().unwrap() <= 700 << 10);
        // one who insists gets what is promised already, but not before substrates have left
        record.name = "other".into();
        let refused = resources.reserve(&record, 0, false, || false);
        assert!(refused.is_err());
        assert_eq!(stock.with(|pool| pool.usage().bytes), 0, "they went first");
        resources.reserve(&record, 0, true, || false).unwrap();
        assert!(!take_in(&stock, 5), "nothing is left for it");
        for name in ["other", "web"] {
            record.name = name.to_owned();
            resources.ended(&record);
        }
    }
}
