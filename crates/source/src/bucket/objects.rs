//! One bucket: its objects under a prefix, and what its refusals mean.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use floe_image::Hash;
use floe_threads::Cancel;
use futures::StreamExt;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, PutMode, PutOptions, PutPayload,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::connect::Via;
use super::{Refusal, Words};
use crate::http::in_place_of_data;
use crate::link::LinkMeter;
use crate::packed::{Objects, PackBytes, pack_path};
use crate::{LinkEstimate, Request, SourceError};

/// Shortest time that an upload may take, whatever its size.
const PUT_TIME_MIN: Duration = Duration::from_secs(60);
/// Slowest upload that is waited for: 100 kbit/s.
const PUT_BYTES_PER_S_MIN: u64 = 12_500;
/// Most characters of an error that are kept: what a refusal says is at its beginning.
const REASON_MAX: usize = 4096;
/// What object_store's messages about a redirect have in them.
const REDIRECTED: [&str; 2] = ["without LOCATION", "status code: 30"];

/// The objects under a prefix of a bucket.
pub(super) struct Prefix {
    pub store: Arc<dyn ObjectStore>,
    /// What the server's refusals mean.
    pub words: &'static Words,
    pub prefix: Path,
    pub at: String,
    /// The proxy through which it is asked.
    pub via: Via,
    /// `None` only while this is dropped.
    pub runtime: Option<Runtime>,
    pub meter: LinkMeter,
}

impl Drop for Prefix {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Prefix {
    fn object(&self, path: &str) -> Result<Path, SourceError> {
        let key = format!("{}/{path}", self.prefix);
        Path::parse(key.trim_start_matches('/')).map_err(|e| SourceError::Unsupported {
            at: self.at.clone(),
            reason: e.to_string(),
        })
    }

    fn runtime(&self, what: &str) -> Result<&Runtime, SourceError> {
        let runtime = self.runtime.as_ref();
        runtime.ok_or_else(|| SourceError::Stopped { what: what.into() })
    }

    /// Calls `each` with every object under a directory. Waits at most `patience` for each part of the list.
    pub fn list(
        &self,
        dir: &str,
        patience: Duration,
        each: &mut dyn FnMut(&ObjectMeta) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let what = format!("the list of {dir}/");
        let prefix = self.object(dir)?;
        self.runtime(&what)?.block_on(async {
            let mut list = self.store.list(Some(&prefix));
            loop {
                match timeout(patience, list.next()).await {
                    Ok(None) => return Ok(()),
                    Ok(Some(Ok(object))) => each(&object)?,
                    Ok(Some(Err(e))) => return Err(self.error(&what, &e)),
                    Err(_) => return Err(self.late(&what, patience)),
                }
            }
        })
    }

    /// Writes an object, whole or not at all; returns soon if `cancel` is thrown. With `new`, nothing is written if an object of this
    /// name is there, which is an answer of `false`; a server that can't make sure of that is one more [`SourceError::Unsupported`].
    pub fn put(
        &self,
        path: &str,
        bytes: Bytes,
        new: bool,
        what: &str,
        cancel: &Cancel,
    ) -> Result<bool, SourceError> {
        let object = self.object(path)?;
        let time = PUT_TIME_MIN + Duration::from_secs(bytes.len() as u64 / PUT_BYTES_PER_S_MIN);
        let options = PutOptions {
            mode: if new {
                PutMode::Create
            } else {
                PutMode::Overwrite
            },
            ..PutOptions::default()
        };
        let thrown = Arc::new(Notify::new());
        let wake = thrown.clone();
        let _hook = cancel.on_cancel(move || wake.notify_one());
        self.runtime(what)?.block_on(async {
            let put = self
                .store
                .put_opts(&object, PutPayload::from(bytes), options);
            tokio::select! {
                done = timeout(time, put) => match done {
                    Ok(Ok(_)) => Ok(true),
                    Ok(Err(object_store::Error::AlreadyExists { .. })) if new => Ok(false),
                    Ok(Err(e)) => Err(self.error(what, &e)),
                    Err(_) => Err(self.late(what, time)),
                },
                () = thrown.notified() => Err(SourceError::Stopped { what: what.into() }),
            }
        })
    }

    fn late(&self, what: &str, after: Duration) -> SourceError {
        SourceError::Timeout {
            at: self.at.clone(),
            what: what.into(),
            after,
        }
    }

    fn load(
        &self,
        path: &str,
        range: Option<GetRange>,
        limit: u64,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError> {
        let object = self.object(path)?;
        self.runtime(what)?.block_on(async {
            match timeout(request.deadline, self.stream(&object, range, limit, what)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(self.late(what, request.deadline)),
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
                let start: &[u8] = if body.is_empty() { &data } else { &body };
                if let Some(reason) = in_place_of_data(start) {
                    return Err(self.unanswered(what.into(), reason));
                }
                let reason = format!("the answer is longer than {limit} bytes");
                return Err(SourceError::Invalid {
                    at: self.at.clone(),
                    what: what.into(),
                    reason,
                });
            }
            body.extend_from_slice(&data);
        }
        if let Some(reason) = in_place_of_data(&body) {
            return Err(self.unanswered(what.into(), reason));
        }
        self.meter.ended(answer, Instant::now());
        Ok(body)
    }

    fn error(&self, what: &str, error: &object_store::Error) -> SourceError {
        use object_store::Error;
        // object_store quotes the whole of what the server says
        let reason: String = error.to_string().chars().take(REASON_MAX).collect();
        let (at, what) = (self.at.clone(), what.to_string());
        let code = |code: &str| reason.contains(&format!("<Code>{code}</Code>"));
        let refusals = self.words.refusals;
        let known = refusals.iter().find(|refusal| code(refusal.code));
        let denied = matches!(
            error,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
        );
        match (known, error) {
            (Some(Refusal { why, fix, .. }), _) if denied => SourceError::Denied {
                at,
                what,
                fix: format!("{why}: {fix}"),
            },
            (Some(Refusal { why, fix, .. }), _) => SourceError::Unsupported {
                at,
                reason: format!("{why}; {fix}"),
            },
            // what an instance of a cloud would answer who asks it for credentials
            (None, _) if reason.contains("169.254.") => SourceError::Denied {
                at,
                what,
                fix: format!("no credentials were found: {}", self.words.rights),
            },
            (None, _) if denied => SourceError::Denied {
                at,
                what,
                fix: self.words.rights.into(),
            },
            (None, Error::NotFound { .. }) => SourceError::Missing { at, what },
            (
                None,
                Error::NotSupported { .. }
                | Error::NotImplemented
                | Error::InvalidPath { .. }
                | Error::UnknownConfigurationKey { .. },
            ) => SourceError::Unsupported { at, reason },
            (None, _) if reason.contains("501 Not Implemented") => {
                SourceError::Unsupported { at, reason }
            }
            (None, _) if REDIRECTED.iter().any(|part| reason.contains(part)) => self.unanswered(
                what,
                format!(
                    "its server sends us elsewhere, where no credentials are taken; {}",
                    self.words.elsewhere
                ),
            ),
            (None, _) => self.failed(what, reason, error),
        }
    }

    /// Returns the error of a request that had no usable answer.
    fn failed(&self, what: String, mut reason: String, error: &object_store::Error) -> SourceError {
        // what is said to a browser says nothing here
        let page = ["<!doctype html", "<html"].iter().filter_map(|page| {
            let lower = reason.to_ascii_lowercase();
            lower.find(page)
        });
        if let Some(at) = page.min() {
            reason.truncate(at);
            reason += "a web page";
        }
        if was_reached(error) {
            return self.unanswered(what, reason);
        }
        // object_store says that it could not send, and no more
        if let Some(first) = causes(error).last() {
            reason = format!("{reason}: {first}");
        }
        SourceError::Unreachable {
            at: self.at.clone(),
            what,
            reason: self.with_proxy(reason),
        }
    }

    /// Returns the error of an answer that can't be used, which another one may be.
    fn unanswered(&self, what: String, reason: String) -> SourceError {
        SourceError::Unanswered {
            at: self.at.clone(),
            what,
            reason: self.with_proxy(reason),
        }
    }

    /// Adds through which proxy it was.
    fn with_proxy(&self, reason: String) -> String {
        match self.via.get() {
            Some(proxy) => format!("{reason}, through {proxy}"),
            None => reason,
        }
    }
}

/// Returns whether a server answered, though not usably.
fn was_reached(error: &object_store::Error) -> bool {
    let sent = causes(error).find_map(|cause| cause.downcast_ref::<reqwest::Error>());
    !sent.is_some_and(|sent| sent.is_connect() || sent.is_timeout())
}

/// Returns an error and its causes.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

impl PackBytes for Prefix {
    fn at(&self) -> &str {
        &self.at
    }

    fn pack_range(
        &self,
        pack: &Hash,
        range: Range<u64>,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError> {
        let len = range.end.saturating_sub(range.start);
        let bounded = Some(GetRange::Bounded(range));
        self.load(&pack_path(pack), bounded, len, what, request)
    }
}

impl Objects for Prefix {
    fn get(
        &self,
        path: &str,
        limit: u64,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError> {
        self.load(path, None, limit, what, request)
    }

    fn link(&self) -> LinkEstimate {
        self.meter.estimate(Instant::now())
    }
}
