//! Static files.
use crate::{Request, Sink, Source, SourceError};
use floe_image::{Hash, Kind, Layout, Manifest};
/// A repository's files behind any web server.
pub struct Files {
    _x: (),
}
impl Files {
    /// The repository whose files are below `base`.
    pub fn new(_base: &str, _options: &crate::Options) -> Result<Files, SourceError> {
        unimplemented!()
    }
}
impl Source for Files {
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
