//! A repository in an S3 bucket: as a source here, as a place that images are written to in `place`.

mod bucket;
mod place;

use std::sync::Arc;

use floe_image::{Hash, Kind, Layout, Manifest};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{Certificate, ClientOptions, RetryConfig};

use crate::link::LinkMeter;
use crate::packed::{Objects, Packed};
use crate::{LinkEstimate, Options, Origin, Request, Sink, Source, SourceError};
use bucket::Bucket;
pub use place::Listed;

/// A repository's files in an S3 bucket, or on any server that speaks S3's protocol, as a source. Images can be written there,
/// too: see [`S3::begin`].
///
/// Credentials, region and server come from the options, or else from the usual `AWS_*` variables.
pub struct S3(Packed<Bucket>);

impl S3 {
    /// Makes a source of the repository at `origin`, `s3://bucket` or `s3://bucket/prefix`. It doesn't connect yet.
    pub fn new(origin: &Origin, options: &Options) -> Result<S3, SourceError> {
        let bad = |reason: String| SourceError::Unsupported {
            at: origin.shown(),
            reason,
        };
        let bucket = origin.url().host_str().filter(|bucket| !bucket.is_empty());
        let bucket = bucket.ok_or_else(|| bad("has no bucket; write s3://bucket/prefix".into()))?;
        let prefix = Path::from_url_path(origin.url().path()).map_err(|e| bad(e.to_string()))?;
        let mut client = ClientOptions::new()
            .with_connect_timeout(options.timeout)
            .with_timeout_disabled();
        if let Some(ca) = origin.ca() {
            let pem = std::fs::read(ca).map_err(|e| {
                bad(format!(
                    "cannot read certificates from {}: {e}",
                    ca.display()
                ))
            })?;
            let certificates = Certificate::from_pem_bundle(&pem)
                .map_err(|e| bad(format!("{}: {e}", ca.display())))?;
            for certificate in certificates {
                client = client.with_root_certificate(certificate);
            }
        }
        // This crate retries by itself: retrying on two levels would multiply the attempts.
        let retry = RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_retry(retry);
        if let Some(region) = &options.s3_region {
            builder = builder.with_region(region);
        }
        if let Some((id, secret)) = &options.s3_keys {
            builder = builder
                .with_access_key_id(id)
                .with_secret_access_key(secret);
        }
        if let Some(endpoint) = &options.s3_endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(endpoint) = builder.get_config_value(&AmazonS3ConfigKey::Endpoint) {
            client = client.with_allow_http(endpoint.starts_with("http://"));
        }
        let store = builder
            .with_client_options(client)
            .build()
            .map_err(|e| bad(e.to_string()))?;
        // Callers' threads share the connections, so a separate thread drives them.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("floe-s3")
            .enable_all()
            .build()
            .map_err(|e| bad(format!("cannot start its thread: {e}")))?;
        let bucket = Bucket {
            store: Arc::new(store),
            prefix,
            at: origin.shown(),
            runtime: Some(runtime),
            meter: LinkMeter::default(),
        };
        Ok(S3(Packed::new(
            bucket,
            options.timeout,
            options.index_dir.clone(),
        )))
    }
}

impl Source for S3 {
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
