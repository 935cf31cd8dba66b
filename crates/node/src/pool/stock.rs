//! The chunks that are in memory, as a source: every fetcher of this node asks here before it asks the repository.

use crate::{images::sources::Provide, inventory::record::Origin};
use floe_image::{Hash, Kind, Layout, Manifest};
use floe_source::{LinkEstimate, Request, Scheme, Sink, Source, SourceError};
use floe_store::SubstratePool;
use parking_lot::Mutex;
use std::{collections::HashSet, sync::Arc};

/// The chunks in memory. The lock is held for look-ups and for entering what was compressed before, never while something is read,
/// compressed or unpacked, except when a group is made smaller.
#[derive(Clone)]
pub(crate) struct Stock(Arc<Mutex<SubstratePool>>);

impl Stock {
    /// Returns an empty stock that takes `budget_bytes` of memory at most.
    pub fn new(budget_bytes: u64) -> Stock {
        Stock(Arc::new(Mutex::new(SubstratePool::new(budget_bytes))))
    }

    /// Calls a function with it.
    pub fn with<T>(&self, call: impl FnOnce(&mut SubstratePool) -> T) -> T {
        call(&mut self.0.lock())
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
        let (pieces, mut rest) = self.stock.with(|pool| pool.find(wants));
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
    fn what_is_in_memory_needs_no_backup_and_the_rest_comes_from_there() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Repository::create(dir.path()).unwrap();
        let chunk = |n: u8| vec![n; CHUNK_SIZE];
        let mut ingest = Ingest::new(&repo, IngestOptions::default()).unwrap();
        ingest
            .region_bytes("ram", &[chunk(1), chunk(2), chunk(3)].concat())
            .unwrap();
        let id = ingest.finish(Default::default()).unwrap();
        let stock = Stock::new(1 << 20);
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
        stock.with(|pool| pool.admit(id, &items, packed)).unwrap();
        let source = stock.here(Arc::new(floe_source::Directory::new(repo)));
        let read = |wants: &[Hash]| {
            let wants: Vec<(Kind, Hash)> = wants.iter().map(|hash| (Kind::Chunk, *hash)).collect();
            let request = Request::demand(Duration::from_secs(1));
            let mut found: HashMap<Hash, Vec<u8>> = HashMap::new();
            let mut sink = |_: Kind, hash: Hash, bytes: &[u8]| {
                let twice = found.insert(hash, bytes.to_vec());
                assert!(twice.is_none(), "an item came twice");
            };
            source
                .read(&id, &wants, &request, &mut sink)
                .map(|()| found)
        };
        let found = read(&hashes).unwrap();
        for (n, hash) in [1, 2, 3].into_iter().zip(&hashes) {
            assert_eq!(found[hash], chunk(n));
        }
        std::fs::remove_dir_all(dir.path().join("packs")).unwrap();
        assert_eq!(read(&hashes[..2]).unwrap().len(), 2);
        assert!(read(&hashes).is_err());
    }
}
