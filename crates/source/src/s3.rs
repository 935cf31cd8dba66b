//! An S3 bucket.
use crate::{Request, Sink, Source, SourceError};
use floe_image::{Hash, Kind, Layout, Manifest};
/// A repository in a bucket.
pub struct S3 {
    _x: (),
}
impl S3 {
    /// `s3://bucket/prefix`.
    pub fn new(_url: &str, _options: &crate::Options) -> Result<S3, SourceError> {
        unimplemented!()
    }
}
impl Source for S3 {
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
