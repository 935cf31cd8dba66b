//! One fetch per hash.
use crate::{Request, Sink, Source, SourceError};
use floe_image::{Hash, Kind, Layout, Manifest};
use std::sync::Arc;
/// One fetch per hash, however many wait.
pub struct Coalesce {
    _inner: Arc<dyn Source>,
}
impl Coalesce {
    /// Around `inner`.
    pub fn new(inner: Arc<dyn Source>) -> Coalesce {
        Coalesce { _inner: inner }
    }
}
impl Source for Coalesce {
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
