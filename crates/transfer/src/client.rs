//! The hub's interface as function calls, except for the hot reads (those are in `floe-source`).

use super::{Cancel, Failed, NO_HUB, Passes, TransferError, check, retry};
use bytes::Bytes;
use floe_api::hub::{
    CommitRequest, Committed, ErrorBody, HAVE_ITEMS_MAX, HAVE_QUESTION_BYTES, ImageEntry,
    ImageList, PooledSubstrate, PooledSubstrates, Resolved, TagRequest, TraceTaken, UploadOpened,
    Visibility,
};
use floe_api::{PackCheck, PoolStatus, SwarmJoin, SwarmMembership};
use floe_http::{Connections, Ended, Limits, Parts, Proxies, Server, Url, escape, header};
use floe_image::{Hash, Kind};
use floe_traces::{Method, TraceList};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the answer's head may take after the request is sent: a commit first reads the whole image.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a body may stall.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer that is read, in bytes: a list of images.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Most connections at a time: more than a push has packs under way.
const CONNECTIONS_MAX: usize = 16;

/// A client of one hub with one token. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct HubClient {
    server: Arc<Server>,
    connections: Arc<Connections>,
    authorization: Option<Arc<str>>,
    cancel: Cancel,
    /// If set, each request is tried only once, and takes at most this long.
    once: Option<Duration>,
}

/// A request, without the hub's address and token.
struct Ask<'a> {
    method: &'a str,
    path: &'a str,
    /// What is asked for, for error messages.
    what: &'a str,
    /// The body; empty for requests without one.
    body: Bytes,
    /// Hash of the content that is here already; if the hub has the same, its answer is empty.
    seen: Option<&'a Hash>,
}

impl HubClient {
    /// Returns a client for the hub at `url` (http or https; `floe://` means https). `ca` is a PEM file to trust instead of
    /// the system's authorities. Does not connect yet.
    pub fn new(
        url: &str,
        token: Option<&str>,
        ca: Option<&Path>,
        cancel: &Cancel,
    ) -> Result<HubClient, TransferError> {
        HubClient::build(url, token, ca, cancel, None)
    }

    /// Returns a client that tries each request once and takes at most `timeout` for it: for requests not worth waiting for.
    pub fn impatient(
        url: &str,
        token: Option<&str>,
        ca: Option<&Path>,
        cancel: &Cancel,
        timeout: Duration,
    ) -> Result<HubClient, TransferError> {
        HubClient::build(url, token, ca, cancel, Some(timeout))
    }

    fn build(
        url: &str,
        token: Option<&str>,
        ca: Option<&Path>,
        cancel: &Cancel,
        timeout: Option<Duration>,
    ) -> Result<HubClient, TransferError> {
        let no_hub =
            |why: String| TransferError::Options(format!("{}: {why}", floe_http::shown(url)));
        let base = Url::parse(url).ok().and_then(|url| floe_http::web(&url));
        let base = base.ok_or_else(|| {
            TransferError::Options(format!(
                "{:?} is no hub; give its URL, such as https://hub:4500",
                floe_http::shown(url)
            ))
        })?;
        let tls = match base.scheme() {
            "https" => Some(floe_http::trusting(ca).map_err(TransferError::Options)?),
            _ => None,
        };
        let server = Server::new(&base, tls).map_err(&no_hub)?;
        let proxy = Proxies::of_environment().before(&base).map_err(no_hub)?;
        let server = Arc::new(server.through(proxy));
        Ok(HubClient {
            connections: Arc::new(Connections::new(server.clone(), CONNECTIONS_MAX)),
            server,
            authorization: token.map(|token| format!("Bearer {token}").into()),
            cancel: cancel.clone(),
            once: timeout,
        })
    }

    /// Returns the hub's URL.
    pub fn url(&self) -> &str {
        self.server.shown()
    }

    /// Sends a request, and repeats it while that may help. `body` is empty for requests without one.
    fn call(
        &self,
        method: &str,
        path: &str,
        what: &str,
        body: Bytes,
        on_bytes: &dyn Fn(u64),
    ) -> Result<Vec<u8>, TransferError> {
        let ask = Ask {
            method,
            path,
            what,
            body,
            seen: None,
        };
        let passes = |error: &TransferError| match error {
            TransferError::Unreachable { .. } => Passes::Often,
            // these may pass: a hub that restarts behind a proxy or is overloaded, and what a proxy answers by itself; a full
            // disk and a refusal by the hub do not pass by themselves
            TransferError::Refused { status, code, .. } => match status {
                408 | 500 | 502 | 503 | 504 => Passes::Often,
                403 | 429 if code == NO_HUB => Passes::Often,
                404 if code == NO_HUB => Passes::Once,
                _ => Passes::Never,
            },
            _ => Passes::Never,
        };
        if self.once.is_some() {
            let asked = self.call_once(&ask, on_bytes);
            return asked.map_err(|failed| failed.error);
        }
        retry(&self.cancel, passes, || self.call_once(&ask, on_bytes))
    }

    fn call_once(&self, ask: &Ask<'_>, on_bytes: &dyn Fn(u64)) -> Result<Vec<u8>, Failed> {
        let unreachable = |reached: bool, reason: String| TransferError::Unreachable {
            reached,
            url: self.url().to_owned(),
            what: ask.what.to_owned(),
            reason,
        };
        let limits = Limits {
            connect: CONNECT_TIMEOUT,
            until: self.once.map(floe_threads::from_now),
            stall: Some(STALL_TIMEOUT),
            answer: Some(ANSWER_TIMEOUT),
            look: Duration::ZERO,
        };
        let mut sent = |bytes| {
            on_bytes(bytes);
            check(&self.cancel)
        };
        let mut bytes = Vec::new();
        let asked = self.connections.exchange(
            &limits,
            &|| self.request(ask),
            Some(&mut sent),
            &mut |_, piece| {
                bytes.extend_from_slice(piece);
                match bytes.len() > ANSWER_BYTES_MAX {
                    true => Err(unreachable(
                        true,
                        format!("the answer is longer than {ANSWER_BYTES_MAX} bytes"),
                    )),
                    false => Ok(()),
                }
            },
        );
        let head = asked.map_err(|ended| match ended {
            Ended::Fault(fault) => unreachable(fault.was_asked(), fault.to_string()),
            Ended::Caller(error) => error,
        })?;
        if head.status.as_u16() == 304 && ask.seen.is_some() {
            return Ok(Vec::new());
        }
        match head.status.is_success() {
            true => Ok(bytes),
            false => Err(self.refusal(ask, &head, &bytes)),
        }
    }

    fn request(&self, ask: &Ask<'_>) -> Result<floe_http::Request<Bytes>, TransferError> {
        let no_request = |e: &dyn std::fmt::Display| {
            TransferError::Options(format!("cannot ask {} for {}: {e}", self.url(), ask.what))
        };
        let method = ask.method.parse().map_err(|e| no_request(&e))?;
        let mut request = self.server.request(method, ask.path);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, &**authorization);
        }
        if let Some(seen) = ask.seen {
            request = request.header(header::IF_NONE_MATCH, format!("\"{seen}\""));
        }
        if !ask.body.is_empty() {
            let json = ["/commit", "/swarm"]
                .iter()
                .any(|end| ask.path.ends_with(end));
            let media = match json {
                true => "application/json",
                false => "application/octet-stream",
            };
            request = request.header(header::CONTENT_TYPE, media);
        }
        request.body(ask.body.clone()).map_err(|e| no_request(&e))
    }

    /// Converts an answer that is not a success to an error.
    fn refusal(&self, ask: &Ask<'_>, head: &Parts, bytes: &[u8]) -> Failed {
        let status = head.status.as_u16();
        let said = serde_json::from_slice::<ErrorBody>(bytes).unwrap_or_else(|_| {
            let place = Url::parse(self.url()).ok();
            let to = place.and_then(|url| floe_http::redirected(&url, &head.headers).ok());
            let through = self.server.proxy().map(|proxy| proxy.shown().to_owned());
            let through = through.map_or_else(String::new, |proxy| format!(" through {proxy}"));
            ErrorBody {
                code: NO_HUB.into(),
                message: match to.filter(|_| head.status.is_redirection()) {
                    Some(to) => format!("it sends us to {}", floe_http::shown(to.as_str())),
                    None => format!("it answered {status}{through} without saying why"),
                },
                fix: "check that the URL is a hub's, and what stands between".into(),
            }
        });
        let after = head.headers.get(header::RETRY_AFTER);
        let after = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let error = TransferError::Refused {
            url: self.url().to_owned(),
            what: ask.what.to_owned(),
            status,
            code: said.code,
            message: said.message,
            fix: said.fix,
        };
        Failed {
            error,
            after: after.map(Duration::from_secs),
        }
    }

    fn parse<T: DeserializeOwned>(&self, what: &str, bytes: &[u8]) -> Result<T, TransferError> {
        serde_json::from_slice(bytes).map_err(|e| self.protocol(what, e.to_string()))
    }

    fn protocol(&self, what: &str, reason: String) -> TransferError {
        TransferError::Protocol {
            url: self.url().to_owned(),
            what: what.to_owned(),
            reason,
        }
    }

    fn send_json(
        &self,
        method: &str,
        path: &str,
        what: &str,
        body: &impl Serialize,
    ) -> Result<Vec<u8>, TransferError> {
        let body = serde_json::to_vec(body).map_err(|e| TransferError::Options(e.to_string()))?;
        self.call(method, path, what, body.into(), &|_| ())
    }

    /// Begins an upload or continues one.
    pub fn open_upload(&self, manifest: &[u8]) -> Result<UploadOpened, TransferError> {
        let answer = self.call(
            "POST",
            "/v1/uploads",
            "an upload",
            manifest.to_vec().into(),
            &|_| (),
        )?;
        self.parse("an upload", &answer)
    }

    /// Returns for each of at most [`HAVE_ITEMS_MAX`] items whether the hub has it already.
    pub fn have(&self, upload: &str, items: &[(Kind, Hash)]) -> Result<Vec<bool>, TransferError> {
        assert!(items.len() <= HAVE_ITEMS_MAX, "the caller asks in parts");
        let mut body = Vec::with_capacity(items.len() * HAVE_QUESTION_BYTES);
        for (kind, hash) in items {
            body.push(*kind as u8);
            body.extend_from_slice(hash.as_bytes());
        }
        let what = "what it has already";
        let bits = self.call(
            "POST",
            &format!("/v1/uploads/{upload}/have"),
            what,
            body.into(),
            &|_| (),
        )?;
        if bits.len() != items.len().div_ceil(8) {
            return Err(self.protocol(
                what,
                format!("{} bytes answer {} questions", bits.len(), items.len()),
            ));
        }
        Ok((0..items.len())
            .map(|i| bits[i / 8] & (1 << (i % 8)) != 0)
            .collect())
    }

    /// Sends a pack. `on_bytes` is called with the bytes handed to the connection, including those of repeated tries.
    pub fn put_pack(
        &self,
        upload: &str,
        pack: &Hash,
        bytes: Bytes,
        on_bytes: &dyn Fn(u64),
    ) -> Result<(), TransferError> {
        let what = format!("pack {}", pack.short());
        self.call(
            "PUT",
            &format!("/v1/uploads/{upload}/packs/{pack}"),
            &what,
            bytes,
            on_bytes,
        )
        .map(drop)
    }

    /// Publishes an upload.
    pub fn commit(&self, upload: &str, wish: &CommitRequest) -> Result<Committed, TransferError> {
        let what = "the image's publication";
        let answer = self.send_json("POST", &format!("/v1/uploads/{upload}/commit"), what, wish)?;
        self.parse(what, &answer)
    }

    /// Returns the images that the token may read.
    pub fn images(&self) -> Result<Vec<ImageEntry>, TransferError> {
        let answer = self.call("GET", "/v1/images", "its images", Bytes::new(), &|_| ())?;
        self.parse::<ImageList>("its images", &answer)
            .map(|list| list.images)
    }

    /// Returns how full the hub's memory for substrates is, if it is a pool.
    pub fn pool(&self) -> Result<PoolStatus, TransferError> {
        let what = "its pool";
        let answer = self.call("GET", "/v1/pool", what, Bytes::new(), &|_| ())?;
        self.parse(what, &answer)
    }

    /// Returns the substrates of the hub that the token may read, if it is a pool.
    pub fn substrates(&self) -> Result<Vec<PooledSubstrate>, TransferError> {
        let (path, what) = ("/v1/pool/substrates", "its substrates");
        let answer = self.call("GET", path, what, Bytes::new(), &|_| ())?;
        self.parse::<PooledSubstrates>(what, &answer)
            .map(|list| list.substrates)
    }

    /// Returns the image that a name refers to.
    pub fn resolve(&self, name: &str) -> Result<Hash, TransferError> {
        let what = format!("image {name}");
        let answer = self.call(
            "GET",
            &format!("/v1/resolve?name={}", escape(name)),
            &what,
            Bytes::new(),
            &|_| (),
        )?;
        let id = self.parse::<Resolved>(&what, &answer)?.id;
        id.parse()
            .map_err(|e: floe_image::ParseHashError| self.protocol(&what, e.to_string()))
    }

    /// Sends a trace of an image that the token may read.
    pub fn send_trace(&self, id: &Hash, trace: &[u8]) -> Result<TraceTaken, TransferError> {
        let (path, what) = (format!("/v1/images/{id}/traces"), "a trace");
        let answer = self.call("POST", &path, what, trace.to_vec().into(), &|_| ())?;
        self.parse(what, &answer)
    }

    /// Returns the traces of an image of the token's owner.
    pub fn traces(&self, id: &Hash) -> Result<TraceList, TransferError> {
        let (path, what) = (format!("/v1/images/{id}/traces"), "an image's traces");
        let answer = self.call("GET", &path, what, Bytes::new(), &|_| ())?;
        self.parse(what, &answer)
    }

    /// Returns one trace of an image of the token's owner.
    pub fn trace(&self, id: &Hash, trace: &Hash) -> Result<Vec<u8>, TransferError> {
        let path = format!("/v1/images/{id}/traces/{trace}");
        self.call("GET", &path, "a trace", Bytes::new(), &|_| ())
    }

    /// Returns the model of an image; asks only once. `seen` is the BLAKE3 hash of the model that is here; if the hub has the
    /// same, the answer is empty.
    pub fn model(
        &self,
        id: &Hash,
        method: Method,
        seen: Option<&Hash>,
    ) -> Result<Vec<u8>, TransferError> {
        let path = format!("/v1/images/{id}/model?method={}", method.name());
        let ask = Ask {
            method: "GET",
            path: &path,
            what: "an image's model",
            body: Bytes::new(),
            seen,
        };
        let asked = self.call_once(&ask, &|_| ());
        asked.map_err(|failed| failed.error)
    }

    /// Takes part in the swarm of an image that the token may read, or goes on doing so.
    pub fn join_swarm(&self, id: &Hash, me: &SwarmJoin) -> Result<SwarmMembership, TransferError> {
        let (path, what) = (format!("/v1/images/{id}/swarm"), "an image's swarm");
        let answer = self.send_json("POST", &path, what, me)?;
        self.parse(what, &answer)
    }

    /// Takes part in an image's swarm no more. `key` is the node's public key in hexadecimal digits.
    pub fn leave_swarm(&self, id: &Hash, key: &str) -> Result<(), TransferError> {
        let path = format!("/v1/images/{id}/swarm/{key}");
        let what = "the end of a part in a swarm";
        self.call("DELETE", &path, what, Bytes::new(), &|_| ())
            .map(drop)
    }

    /// Returns a range of a pack in the form that proves it by the root of the pack's tree, for the swarm of an image.
    pub fn proven(
        &self,
        image: &Hash,
        pack: &Hash,
        range: &Range<u64>,
    ) -> Result<Vec<u8>, TransferError> {
        let (from, bytes) = (range.start, range.end - range.start);
        let path = format!("/v1/packs/{pack}/proven?from={from}&bytes={bytes}&image={image}");
        self.call("GET", &path, "a piece", Bytes::new(), &|_| ())
    }

    /// Says that what came of a pack was wrong; the hub looks whether it is damaged there.
    pub fn doubt_pack(&self, pack: &Hash) -> Result<PackCheck, TransferError> {
        let (path, what) = (format!("/v1/packs/{pack}/damaged"), "a doubt about a pack");
        let answer = self.call("POST", &path, what, Bytes::new(), &|_| ())?;
        self.parse(what, &answer)
    }

    /// Removes an image of the token's owner.
    pub fn remove(&self, id: &Hash) -> Result<(), TransferError> {
        self.call(
            "DELETE",
            &format!("/v1/images/{id}"),
            "the removal of an image",
            Bytes::new(),
            &|_| (),
        )
        .map(drop)
    }

    /// Points a name to an image of the token's owner.
    pub fn tag(&self, name: &str, id: &Hash) -> Result<(), TransferError> {
        let wish = TagRequest {
            name: name.to_owned(),
            id: id.to_string(),
        };
        self.send_json("PUT", "/v1/tags", "a tag", &wish).map(drop)
    }

    /// Removes a name.
    pub fn untag(&self, name: &str) -> Result<(), TransferError> {
        let path = format!("/v1/tags?name={}", escape(name));
        self.call(
            "DELETE",
            &path,
            "the removal of a tag",
            Bytes::new(),
            &|_| (),
        )
        .map(drop)
    }

    /// Makes an image visible to everybody, or to its owner alone.
    pub fn set_visibility(&self, id: &Hash, public: bool) -> Result<(), TransferError> {
        let path = format!("/v1/images/{id}/visibility");
        self.send_json(
            "PUT",
            &path,
            "an image's visibility",
            &Visibility { public },
        )
        .map(drop)
    }
}
