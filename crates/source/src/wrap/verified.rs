//! Trust nothing.
use crate::{Request, Sink, Source, SourceError};
use floe_image::{Hash, Kind, Layout, Manifest};
use std::sync::Arc;
/// Drops everything that is not what its hash says.
pub struct Verified {
    _inner: Arc<dyn Source>,
}
impl Verified {
    /// Around `inner`.
    pub fn new(inner: Arc<dyn Source>) -> Verified {
        Verified { _inner: inner }
    }
}
impl Source for Verified {
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
