//! Forked memory as a way in which images come to a node: that of this host's forks, and that of parents on other hosts.

use super::layers::{Layers, Local};
use crate::{cluster::Cluster, images::sources::Provide, inventory::record::Origin};
use floe_image::{Hash, Kind, Layout, Manifest, datagram::GroupKey};
use floe_source::{
    Hub, LinkEstimate, Request, Scheme, Sink, Source, SourceError,
    multicast::{Group, Invitation, Multicast},
};
use floe_store::Cache;
use std::sync::Arc;

/// The kind of source that another node's forks are.
const KIND: &str = "fork";

/// See the module.
pub(crate) struct Forked {
    layers: Layers,
    cluster: Arc<Cluster>,
    cache: Arc<Cache>,
}

impl Forked {
    /// The forks of this host, and those of a cluster's members and of whoever else is named.
    pub fn new(layers: Layers, cluster: Arc<Cluster>, cache: Arc<Cache>) -> Forked {
        Forked {
            layers,
            cluster,
            cache,
        }
    }
}

impl Provide for Forked {
    /// A hub in all that is read, but a member of the cluster shows a certificate and asks for ours.
    fn scheme(&self) -> Scheme {
        let cluster = self.cluster.clone();
        Scheme {
            kind: KIND,
            names: &["floe", "floe+http"],
            claims: |url| url.path() == super::serve::PATH,
            open: Arc::new(move |origin, options| {
                let hub = Hub::over_tls(origin, cluster.tls_of_parents(), options)?;
                Ok(Arc::new(hub))
            }),
        }
    }

    fn here(&self, repository: Arc<dyn Source>) -> Arc<dyn Source> {
        Arc::new(Local::new(self.layers.clone(), repository))
    }

    /// A parent's node, over its fork's group if there is one. Without it all goes on, only dearer for that node.
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

/// A parent's node as a source. That it does not have something is no answer for a guest, which would take it for a broken
/// disk or memory: it waits, as for a node that is away.
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
            SourceError::Missing { at, what } | SourceError::Denied { at, what } => {
                SourceError::Unreachable {
                    at,
                    what,
                    reason: "the fork that it is of is not there any more".into(),
                }
            }
            error => error,
        })
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
        let registry = floe_source::Registry::default().with(forked.scheme());
        let kind = |address: &str| registry.origin(address).unwrap().kind();
        assert_eq!(kind("floe+http://10.0.0.1:7070/fork"), KIND);
        assert!(kind("https://hub/fork") != KIND && kind("floe://hub") != KIND);
    }
}
