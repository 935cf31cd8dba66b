//! The live layers of a node, and the source that serves them and the repository's images.

use super::{kept::Keeping, layer::Layer};
use floe_ground::error::NodeError;
use floe_image::{Hash, Kind, Layout, Manifest};
use floe_inventory::inventory::record::Origin;
use floe_source::{Fetcher, READ_ITEMS_MAX, Request, Sink, Source, SourceError};
use floe_threads::{Cancel, Pulse};
use parking_lot::RwLock;
use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
};

/// The live layers of a node. Cheap to clone.
#[derive(Clone, Default)]
pub struct Layers {
    known: Arc<RwLock<Known>>,
    /// Keeps them beyond the end of this process; `None` in tests.
    keeping: Option<Arc<Keeping>>,
    /// Beats when one is stored or gone.
    settled: Arc<Pulse>,
}

#[derive(Default)]
struct Known {
    layers: HashMap<Hash, Arc<Layer>>,
    /// Layers that were lost with the node that had them in memory, or can't be read.
    lost: HashSet<Hash>,
    /// Whether an earlier node left layers that could not be read.
    unread: bool,
}

impl Layers {
    /// Returns an empty set; layers that are added are kept for the next node by `keeping`.
    pub fn new(keeping: Keeping) -> Layers {
        Layers {
            known: Arc::default(),
            keeping: Some(Arc::new(keeping)),
            settled: Arc::default(),
        }
    }

    /// Returns the directory for the second names of disks' files.
    pub fn dir(&self) -> PathBuf {
        self.keeping
            .as_ref()
            .map_or_else(std::env::temp_dir, |keeping| keeping.dir().to_owned())
    }

    /// Finds the layers that an earlier node left. `fetcher` opens the images that they are based on.
    pub fn find_again(
        &self,
        fetcher: impl Fn(&Origin) -> Result<Arc<Fetcher>, NodeError>,
    ) -> Vec<Arc<Layer>> {
        let Some(keeping) = &self.keeping else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let left = keeping.find_again(fetcher);
        self.known.write().unread = left.unread;
        for layer in left.layers {
            let layer = Arc::new(layer);
            let mut known = self.known.write();
            // two forks at one moment: one layer has all that the other has
            if known.layers.contains_key(&layer.id) {
                keeping.release(&layer);
                continue;
            }
            known.layers.insert(layer.id, layer.clone());
            found.push(layer);
        }
        found
    }

    /// Returns the layer with this id.
    pub fn get(&self, id: &Hash) -> Option<Arc<Layer>> {
        self.known.read().layers.get(id).cloned()
    }

    /// Adds a layer, and keeps it so that the next node finds it after a crash.
    pub fn insert(&self, layer: Arc<Layer>) {
        if let Some(Err(error)) = self.keeping.as_ref().map(|keeping| keeping.hold(&layer)) {
            tracing::warn!(fork = layer.id.short(), %error, "its clones need this node until it is stored");
        }
        self.known.write().layers.insert(layer.id, layer);
    }

    /// Removes a layer that is stored now or that nobody needs.
    pub fn remove(&self, layer: &Arc<Layer>) {
        if let Some(keeping) = &self.keeping {
            keeping.release(layer);
        }
        let mut known = self.known.write();
        // two forks of a machine that stood still in between have the same id
        let is_it = |known: &Arc<Layer>| Arc::ptr_eq(known, layer);
        if known.layers.get(&layer.id).is_some_and(is_it) {
            known.layers.remove(&layer.id);
        }
        drop(known);
        self.settled.beat();
    }

    /// Whether there is a layer of a machine by this name.
    pub fn any_of(&self, parent: &str) -> bool {
        !self.used_by(parent, None).is_empty()
    }

    /// Returns the layers of the forks of a machine by this name, and the one that the machine was cloned from.
    fn used_by(&self, name: &str, cloned_from: Option<Hash>) -> Vec<Arc<Layer>> {
        let known = self.known.read();
        let layers = known.layers.values();
        let uses = |layer: &&Arc<Layer>| layer.parent.name == name || Some(layer.id) == cloned_from;
        layers.filter(uses).cloned().collect()
    }

    /// Has those layers stored soon, and waits until none of them is left; an error once `cancel` is thrown. `cloned_from` is looked up
    /// again each time.
    pub fn settle(
        &self,
        name: &str,
        cloned_from: impl Fn() -> Option<Hash>,
        cancel: &Cancel,
    ) -> Result<(), NodeError> {
        let settled = self.settled.clone();
        let _woken = cancel.on_cancel(move || settled.beat());
        loop {
            let seen = self.settled.seen();
            if cancel.is_cancelled() {
                return Err(NodeError::Cancelled);
            }
            let waits_for = self.used_by(name, cloned_from());
            if waits_for.is_empty() {
                return Ok(());
            }
            waits_for.iter().for_each(|layer| layer.hurry.cancel());
            self.settled.wait(seen, None);
        }
    }

    /// Returns the images that layers are based on.
    pub fn bases(&self) -> Vec<Hash> {
        let known = self.known.read();
        known
            .layers
            .values()
            .flat_map(|layer| layer.bases())
            .copied()
            .collect()
    }

    /// Returns in words what is based on an image, if a layer is.
    pub fn user_of(&self, id: &Hash) -> Option<String> {
        self.bases()
            .contains(id)
            .then(|| "a fork that is not stored yet".to_owned())
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.known.read().layers.is_empty()
    }

    /// Notes an image that was lost before it was stored: its readers then wait instead of getting wrong data.
    pub fn mark_lost(&self, id: Hash) {
        self.known.write().lost.insert(id);
    }

    /// Whether an earlier node left layers that could not be read: what is not there may be one of them.
    pub fn any_unread(&self) -> bool {
        self.known.read().unread
    }

    /// Whether an image was lost before it was stored.
    pub fn is_lost(&self, id: &Hash) -> bool {
        self.known.read().lost.contains(id)
    }

    /// Returns a layer; `None` if the image is not a live layer, an error if it was lost.
    fn find(&self, id: &Hash) -> Result<Option<Arc<Layer>>, SourceError> {
        match self.get(id) {
            None if self.is_lost(id) => Err(SourceError::Unreachable {
                at: "the forks of this node".into(),
                what: format!("image {}", id.short()),
                reason: "the node ended before the fork was stored".into(),
            }),
            layer => Ok(layer),
        }
    }
}

/// All images of this node: those in its repository, and forks that are not stored yet.
pub struct Local {
    layers: Layers,
    repository: Arc<dyn Source>,
}

impl Local {
    /// Returns a source that reads live layers first, then the repository.
    pub fn new(layers: Layers, repository: Arc<dyn Source>) -> Local {
        Local { layers, repository }
    }
}

impl Source for Local {
    fn describe(&self) -> String {
        self.repository.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        let known = name.parse().ok().map(|id| self.layers.find(&id));
        match known.transpose()?.flatten() {
            Some(layer) => Ok(layer.id),
            None => self.repository.resolve(name),
        }
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        match self.layers.find(id)? {
            Some(layer) => Ok(layer.manifest.clone()),
            None => self.repository.manifest(id),
        }
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        match self.layers.find(id)? {
            Some(_) => Ok(None),
            None => self.repository.layout(id),
        }
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let Some(layer) = self.layers.find(image)? else {
            return self.repository.read(image, wants, request, sink);
        };
        if wants.len() > READ_ITEMS_MAX {
            return Err(SourceError::Unsupported {
                at: self.describe(),
                reason: format!("{} items at once; ask for {READ_ITEMS_MAX}", wants.len()),
            });
        }
        layer.read(wants, request, sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_layer_is_waited_for_and_an_unknown_one_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let repository = floe_store::Repository::create(dir.path()).unwrap();
        let layers = Layers::default();
        let local = Local::new(
            layers.clone(),
            Arc::new(floe_source::Directory::new(repository)),
        );
        let id = Hash::of(b"fork");
        let error = local.manifest(&id).unwrap_err();
        assert!(matches!(error, SourceError::Missing { .. }), "{error}");
        layers.mark_lost(id);
        let error = local.manifest(&id).unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
}
