//! From a URL to a source.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use floe_image::{Hash, Kind, Layout, Manifest};

use crate::http::shown_url;
use crate::{Directory, Files, Hub, LinkEstimate, Request, S3, Sink, Source, SourceError};

/// How long names, manifests and layouts may take: a 1 TiB image's manifest over a slow link.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What a URL alone doesn't say.
#[derive(Clone, Default)]
pub struct Options {
    /// Bearer token for this URL's host; never sent to another.
    pub token: Option<String>,
    /// PEM file with the certificate authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// TLS as it is spoken with this URL's host, in place of what follows from `ca`: for servers that ask for a certificate.
    pub tls: Option<Arc<rustls::ClientConfig>>,
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
            .field("tls", &self.tls.as_ref().map(|_| "***"))
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
    match url.split_once("://") {
        None => Ok(Arc::new(Directory::open(Path::new(url))?)),
        Some(("file", path)) => Ok(Arc::new(Directory::open(Path::new(path))?)),
        Some(("s3", _)) => Ok(Arc::new(S3::new(url, options)?)),
        Some(("floe", rest)) => Ok(Arc::new(Hub::new(&format!("https://{rest}"), options)?)),
        Some(("floe+http", rest)) => Ok(Arc::new(Hub::new(&format!("http://{rest}"), options)?)),
        Some(("http" | "https", _)) => {
            let (hub, files) = (Hub::new(url, options)?, Files::new(url, options)?);
            Ok(Arc::new(Web {
                hub,
                files,
                is_hub: OnceLock::new(),
            }))
        }
        Some((scheme, _)) => Err(SourceError::Unsupported {
            at: shown_url(url),
            reason: format!(
                "unknown scheme {scheme:?}; use a path, file://, http://, https://, floe://, floe+http:// or s3://"
            ),
        }),
    }
}

/// The time limit of calls that have none of their own.
pub(crate) fn timeout_of(options: &Options) -> Duration {
    options.timeout.unwrap_or(TIMEOUT)
}

/// A hub or a plain web server: asked when it is first needed, since it may be down when a node starts.
struct Web {
    hub: Hub,
    files: Files,
    is_hub: OnceLock<bool>,
}

impl Web {
    fn source(&self) -> Result<&dyn Source, SourceError> {
        let is_hub = match self.is_hub.get() {
            Some(known) => *known,
            None => {
                let answer = self.hub.answers()?;
                *self.is_hub.get_or_init(|| answer)
            }
        };
        Ok(if is_hub { &self.hub } else { &self.files })
    }
}

impl Source for Web {
    fn describe(&self) -> String {
        self.hub.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.source()?.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.source()?.manifest(id)
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.source()?.layout(id)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        self.source()?.read(image, wants, request, sink)
    }

    fn link(&self) -> LinkEstimate {
        match self.is_hub.get() {
            Some(false) => self.files.link(),
            _ => self.hub.link(),
        }
    }
}
