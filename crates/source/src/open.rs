//! From a URL to a source.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::{Directory, Files, Hub, S3, Source, SourceError};

/// What a URL alone doesn't say.
#[derive(Clone, Default)]
pub struct Options {
    /// Bearer token for this URL's host; never sent to another.
    pub token: Option<String>,
    /// PEM file with the certificate authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Longest time for `resolve`, `manifest` and `layout`; 30 s if not given. Reads have their own deadlines.
    pub timeout: Option<Duration>,
    /// Where static sources keep the pack indices that they have fetched, verified, for the next start.
    pub index_dir: Option<PathBuf>,
    /// S3: the server's URL, where it is not Amazon's (also `AWS_ENDPOINT_URL`).
    pub s3_endpoint: Option<String>,
    /// S3: the region (also `AWS_REGION`).
    pub s3_region: Option<String>,
    /// S3: key id and secret (also `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`).
    pub s3_keys: Option<(String, String)>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("ca", &self.ca)
            .field("timeout", &self.timeout)
            .field("index_dir", &self.index_dir)
            .field("s3_endpoint", &self.s3_endpoint)
            .field("s3_region", &self.s3_region)
            .field("s3_keys", &self.s3_keys.as_ref().map(|_| "***"))
            .finish()
    }
}

/// The source behind `url`:
///
/// | URL | source |
/// | --- | --- |
/// | a path, or `file:///path` | [`Directory`] |
/// | `http://host/path`, `https://host/path` | [`Hub`] or [`Files`], found out at first use |
/// | `floe://host`, `floe+http://host` | [`Hub`] over https, http |
/// | `s3://bucket/prefix` | [`S3`] |
///
/// Nothing is connected yet, so a server that is down now is no error here.
pub fn open(url: &str, options: &Options) -> Result<Arc<dyn Source>, SourceError> {
    let _ = (url, options, Path::new(""));
    let _: (Option<Directory>, Option<Files>, Option<Hub>, Option<S3>) = (None, None, None, None);
    unimplemented!()
}
