//! Again.
use crate::{Request, Sink, Source, SourceError};
use floe_image::{Hash, Kind, Layout, Manifest};
use std::sync::Arc;
use std::time::Duration;
/// How often and how soon to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOptions {
    /// Attempts in all, at least 1.
    pub attempts: u32,
    /// Pause after the first failure; it doubles with each.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
}
impl Default for RetryOptions {
    fn default() -> RetryOptions {
        RetryOptions {
            attempts: 5,
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(5),
        }
    }
}
/// Tries again what may succeed later.
pub struct Retry {
    _inner: Arc<dyn Source>,
    _options: RetryOptions,
}
impl Retry {
    /// Around `inner`.
    pub fn new(inner: Arc<dyn Source>, options: RetryOptions) -> Retry {
        Retry {
            _inner: inner,
            _options: options,
        }
    }
}
impl Source for Retry {
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
