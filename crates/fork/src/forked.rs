//! Provides forked memory as images: that of this host's forks, and that of parents on other hosts.

use super::layers::{Layers, Local};
use floe_hosts::cluster::Cluster;
use floe_image::{Hash, Kind, Layout, Manifest, datagram::GroupKey};
use floe_inventory::inventory::record::Origin;
use floe_library::images::sources::Provide;
use floe_source::{
    Hub, LinkEstimate, Request, Scheme, Sink, Source, SourceError,
    multicast::{Group, Invitation, Multicast},
};
use floe_store::Cache;
use std::sync::Arc;

/// Kind of the sources that read another node's forks.
const KIND: &str = "fork";

/// Makes sources that read forked memory.
pub struct Forked {
    layers: Layers,
    cluster: Arc<Cluster>,
    cache: Arc<Cache>,
}

impl Forked {
    /// Creates the provider for the forks of this host, and for those of other nodes, in its cluster or named by a user.
    pub fn new(layers: Layers, cluster: Arc<Cluster>, cache: Arc<Cache>) -> Forked {
        Forked {
            layers,
            cluster,
            cache,
        }
    }
}

impl Provide for Forked {
    /// Such a source is read like a hub, but a member of the cluster presents a certificate and asks for ours.
    fn scheme(&self) -> Option<Scheme> {
        let cluster = self.cluster.clone();
        Some(Scheme {
            kind: KIND,
            names: &["floe", "floe+http"],
            claims: |url| url.path() == super::serve::PATH,
            open: Arc::new(move |origin, options| {
                let hub = Hub::over_tls(origin, cluster.tls_of_parents(), options)?;
                Ok(Arc::new(hub))
            }),
        })
    }

    fn here(&self, repository: Arc<dyn Source>) -> Arc<dyn Source> {
        Arc::new(Local::new(self.layers.clone(), repository))
    }

    /// Reads from a parent's node, through its fork's multicast group if there is one. Without a group that node has to send
    /// more.
    fn elsewhere(&self, source: Arc<dyn Source>, origin: &Origin) -> Arc<dyn Source> {
        let parent = Arc::new(Patient(source));
        let (Some(group), Some(token)) = (&origin.multicast, &origin.token) else {
            return parent;
        };
        let invitation = Invitation {
            server: group.server,
            group: group.group,
            key: GroupKey::of(token),
        };
        match Group::join(&invitation, self.cache.clone()) {
            Ok(group) => Arc::new(Multicast::new(Arc::new(group), parent, self.cache.clone())),
            Err(error) => {
                tracing::warn!(%error, "clones read by unicast");
                parent
            }
        }
    }
}

/// A source on a parent's node that never reports an item as missing: a guest would take that for a broken disk or memory.
/// Instead the guest waits, as it does for a node that does not answer.
struct Patient(Arc<dyn Source>);

impl Source for Patient {
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
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let read = self.0.read(image, wants, request, sink);
        read.map_err(|error| match error {
            SourceError::Missing { at, what } | SourceError::Denied { at, what, .. } => {
                SourceError::Unreachable {
                    at,
                    what,
                    reason: "the fork that it is of is not there any more".into(),
                }
            }
            error => error,
        })
    }

    fn merges(&self, image: &Hash, hash: &Hash) -> bool {
        self.0.merges(image, hash)
    }

    fn link(&self) -> LinkEstimate {
        self.0.link()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_a_parent_does_not_have_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let repository = floe_store::Repository::create(dir.path()).unwrap();
        let empty = Patient(Arc::new(floe_source::Directory::new(repository)));
        let hash = Hash::of(b"chunk");
        let request = Request::demand(Duration::from_secs(1));
        let wants = [(Kind::Chunk, hash)];
        let error = empty
            .read(&hash, &wants, &request, &mut |_, _, _| ())
            .unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }

    #[test]
    fn a_parents_address_is_told_from_a_hubs() {
        let dir = tempfile::tempdir().unwrap();
        let home = floe_api::paths::Home::at(dir.path());
        let cluster = Arc::new(Cluster::open(&home).unwrap());
        let cache = Arc::new(Cache::open(&dir.path().join("cache"), 1 << 20).unwrap());
        let forked = Forked::new(Layers::default(), cluster, cache);
        let registry = floe_source::Registry::default().with(forked.scheme().unwrap());
        let kind = |address: &str| registry.origin(address).unwrap().kind();
        assert_eq!(kind("floe+http://10.0.0.1:7070/fork"), KIND);
        assert!(kind("https://hub/fork") != KIND && kind("floe://hub") != KIND);
    }
}
