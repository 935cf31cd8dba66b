//! A repository in an S3 bucket.

use std::sync::Arc;
use std::time::Instant;

use floe_image::{Hash, Kind, Layout, Manifest};
use futures::StreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{Certificate, ClientOptions, GetOptions, GetRange, ObjectStore, RetryConfig};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::link::LinkMeter;
use crate::packed::{Objects, Packed};
use crate::{LinkEstimate, Options, Origin, Request, Sink, Source, SourceError};

/// A repository's files in an S3 bucket, or on any server that speaks S3's protocol, as a source.
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

struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    at: String,
    /// `None` only while this is dropped.
    runtime: Option<Runtime>,
    meter: LinkMeter,
}

impl Drop for Bucket {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Bucket {
    fn load(
        &self,
        path: &str,
        range: Option<GetRange>,
        limit: u64,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError> {
        let key = format!("{}/{path}", self.prefix);
        let object =
            Path::parse(key.trim_start_matches('/')).map_err(|e| SourceError::Unsupported {
                at: self.at.clone(),
                reason: e.to_string(),
            })?;
        let runtime = self
            .runtime
            .as_ref()
            .ok_or_else(|| SourceError::Stopped { what: what.into() })?;
        runtime.block_on(async {
            match timeout(request.deadline, self.stream(&object, range, limit, what)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(SourceError::Timeout {
                    at: self.at.clone(),
                    what: what.into(),
                    after: request.deadline,
                }),
            }
        })
    }

    async fn stream(
        &self,
        object: &Path,
        range: Option<GetRange>,
        limit: u64,
        what: &str,
    ) -> Result<Vec<u8>, SourceError> {
        let mut answer = self.meter.request(Instant::now());
        let options = GetOptions {
            range,
            ..GetOptions::default()
        };
        let got = self
            .store
            .get_opts(object, options)
            .await
            .map_err(|e| self.error(what, &e))?;
        let mut stream = got.into_stream();
        let mut body = Vec::new();
        while let Some(data) = stream.next().await {
            let data = data.map_err(|e| self.error(what, &e))?;
            self.meter.received(&mut answer, data.len(), Instant::now());
            if (body.len() + data.len()) as u64 > limit {
                let reason = format!("the answer is longer than {limit} bytes");
                return Err(SourceError::Invalid {
                    at: self.at.clone(),
                    what: what.into(),
                    reason,
                });
            }
            body.extend_from_slice(&data);
        }
        self.meter.ended(answer, Instant::now());
        Ok(body)
    }

    fn error(&self, what: &str, error: &object_store::Error) -> SourceError {
        let (at, what, reason) = (self.at.clone(), what.to_string(), error.to_string());
        match error {
            object_store::Error::NotFound { .. } => SourceError::Missing { at, what },
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => SourceError::Denied { at, what },
            object_store::Error::NotSupported { .. }
            | object_store::Error::NotImplemented
            | object_store::Error::InvalidPath { .. }
            | object_store::Error::UnknownConfigurationKey { .. } => {
                SourceError::Unsupported { at, reason }
            }
            _ => SourceError::Unreachable { at, what, reason },
        }
    }
}

impl Objects for Bucket {
    fn at(&self) -> &str {
        &self.at
    }

    fn get(
        &self,
        path: &str,
        limit: u64,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError> {
        self.load(path, None, limit, what, request)
    }

    fn get_range(
        &self,
        path: &str,
        start: u64,
        len: u64,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError> {
        self.load(
            path,
            Some(GetRange::Bounded(start..start + len)),
            len,
            what,
            request,
        )
    }

    fn link(&self) -> LinkEstimate {
        self.meter.estimate(Instant::now())
    }
}
