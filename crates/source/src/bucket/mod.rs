//! A repository in a bucket: as a source here, as a place that images are written to in `place`.
//!
//! What the vendors have in common is here; `s3`, `google` and `azure` have their settings, and what their refusals mean.

mod azure;
mod connect;
mod google;
mod objects;
mod place;
mod s3;

use std::sync::Arc;

use floe_image::{Hash, Kind, Layout, Manifest};
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};

use crate::environment::Environment;
use crate::link::LinkMeter;
use crate::packed::{Objects, Packed};
use crate::{LinkEstimate, Options, Origin, Request, Sink, Source, SourceError};
use connect::Connect;
use objects::Prefix;
pub use place::Listed;

/// The schemes of buckets' addresses.
pub(crate) const BUCKET_SCHEMES: [&str; 3] = ["s3", "gs", "az"];

/// Returns whether URLs of this scheme are buckets.
pub fn is_bucket_scheme(scheme: &str) -> bool {
    BUCKET_SCHEMES.contains(&scheme)
}

/// Returns whether an address is that of a bucket.
pub fn is_bucket(address: &str) -> bool {
    let scheme = address.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| is_bucket_scheme(&scheme.to_ascii_lowercase()))
}

/// What a refusal means to a user.
struct Refusal {
    /// The server's word for it, in an XML element `Code`.
    code: &'static str,
    /// What is wrong.
    why: &'static str,
    /// What to do.
    fix: &'static str,
}

/// What is said of a vendor's refusals.
struct Words {
    /// What credentials must be allowed to do, and where they are set.
    rights: &'static str,
    /// What to look at if the server answers with a redirect.
    elsewhere: &'static str,
    refusals: &'static [Refusal],
}

/// This crate retries by itself: retrying on two levels would multiply the attempts.
fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

/// A repository's files in a bucket of S3 (or any server that speaks its protocol), of Google Cloud Storage, or in a container of
/// Azure's blob storage, as a source. Images can be written there, too: see [`Bucket::begin`].
///
/// Credentials and servers come from the environment, in the vendors' own variables; they go to the server that these name, or to
/// the vendor's own, and to no other.
pub struct Bucket(Packed<Prefix>);

impl Bucket {
    /// Makes a source of the repository at `origin`: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`, where
    /// the prefix may be missing. It doesn't connect yet.
    pub fn new(origin: &Origin, options: &Options) -> Result<Bucket, SourceError> {
        let bad = |reason: String| SourceError::Unsupported {
            at: origin.shown(),
            reason,
        };
        let scheme = origin.url().scheme();
        if !origin.url().username().is_empty() || origin.url().password().is_some() {
            return Err(bad(
                "credentials in a URL end up in logs; set them in the node's environment instead"
                    .into(),
            ));
        }
        let bucket = origin.url().host_str().filter(|bucket| !bucket.is_empty());
        let bucket =
            bucket.ok_or_else(|| bad(format!("has no bucket; write {scheme}://bucket/prefix")))?;
        let prefix = Path::from_url_path(origin.url().path()).map_err(|e| bad(e.to_string()))?;
        let environment = Environment::of(options);
        let connect = Connect::new(origin, options.timeout, environment.proxies()).map_err(bad)?;
        let via = connect.via();
        let (opened, words): (Result<Arc<dyn ObjectStore>, String>, _) = match scheme {
            "s3" => (s3::open(bucket, &environment, connect), &s3::WORDS),
            "gs" => (google::open(bucket, &environment, connect), &google::WORDS),
            "az" => (azure::open(bucket, &environment, connect), &azure::WORDS),
            _ => {
                return Err(bad(
                    "is no bucket; write s3://bucket/prefix, gs://bucket/prefix or az://container/prefix".into(),
                ));
            }
        };
        // Callers' threads share the connections, so a separate thread drives them.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("floe-bucket")
            .enable_all()
            .build()
            .map_err(|e| bad(format!("cannot start its thread: {e}")))?;
        let prefix = Prefix {
            store: opened.map_err(bad)?,
            words,
            prefix,
            at: origin.shown(),
            via,
            runtime: Some(runtime),
            meter: LinkMeter::default(),
        };
        Ok(Bucket(Packed::new(
            prefix,
            options.timeout,
            options.index_dir.clone(),
        )))
    }
}

impl Source for Bucket {
    fn describe(&self) -> String {
        self.0.objects().at.clone()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.0.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.0.manifest(id)
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.0.layout(id).map(|layout| Some((*layout).clone()))
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        self.0.read(image, wants, request, sink)
    }

    fn link(&self) -> LinkEstimate {
        self.0.objects().link()
    }
}
