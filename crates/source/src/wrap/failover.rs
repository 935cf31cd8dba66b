//! Several sources.
use crate::{Request, Sink, Source, SourceError};
use floe_image::{Hash, Kind, Layout, Manifest};
use std::sync::Arc;
/// Several sources for one image, in order of preference.
pub struct Failover {
    _inner: Vec<Arc<dyn Source>>,
}
impl Failover {
    /// Over `sources`, the preferred first.
    pub fn new(sources: Vec<Arc<dyn Source>>) -> Failover {
        Failover { _inner: sources }
    }
}
impl Source for Failover {
    fn describe(&self) -> String {
        unimplemented!()
    }
    fn resolve(&self, _: &str) -> Result<Hash, SourceError> {
        unimplemented!()
    }
    fn manifest(&self, _: &Hash) -> Result<Manifest, SourceError> {
        unimplemented!()
    }
    fn layout(&self, _: &Hash) -> Result<Option<Layout>, SourceError> {
        unimplemented!()
    }
    fn read(
        &self,
        _: &Hash,
        _: &[(Kind, Hash)],
        _: &Request,
        _: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        unimplemented!()
    }
}
