//! The hub's interface as function calls, for everything but the hot reads (those are `floe-source`'s).

use super::{Cancel, Failed, NO_HUB, Passes, TransferError, retry};
use bytes::Bytes;
use floe_api::hub::{
    CommitRequest, Committed, ErrorBody, HAVE_ITEMS_MAX, HAVE_QUESTION_BYTES, ImageEntry,
    ImageList, Resolved, TagRequest, TraceTaken, UploadOpened, Visibility,
};
use floe_http::{Ended, Limits, Parts, Pool, Server, Url, escape, header};
use floe_image::{Hash, Kind};
use floe_traces::{Method, TraceList};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the answer's head after the request is sent: a commit walks the whole image first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Time in which some bytes of a body must move.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer that is read: a list of images.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Connections at a time: more than a push has packs under way.
const CONNECTIONS_MAX: usize = 16;

/// A hub, spoken to with one token. Cheap to clone; connections are kept and shared.
#[derive(Clone)]
pub struct HubClient {
    server: Arc<Server>,
    connections: Arc<Pool>,
    authorization: Option<Arc<str>>,
    cancel: Cancel,
    /// Ask once, not again, and for so long at most.
    once: Option<Duration>,
}

/// A request, but for where it goes and who asks.
struct Ask<'a> {
    method: &'a str,
    path: &'a str,
    /// What is asked for, for errors.
    what: &'a str,
    /// Nothing, for requests without one.
    body: Bytes,
    /// The content that is here already; if it is still the same, the answer is empty.
    seen: Option<&'a Hash>,
}

impl HubClient {
    /// A client for the hub at `url` (http or https; `floe://` means https). `ca` is a PEM file to trust instead of
    /// the system's authorities. Nothing is connected yet.
    pub fn new(
        url: &str,
        token: Option<&str>,
        ca: Option<&Path>,
        cancel: &Cancel,
    ) -> Result<HubClient, TransferError> {
        HubClient::build(url, token, ca, cancel, None)
    }

    /// The same, but it asks once and takes no longer than `timeout` for a whole request: for what is not worth waiting.
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
        let server = Arc::new(Server::new(&base, tls).map_err(no_hub)?);
        Ok(HubClient {
            connections: Arc::new(Pool::new(server.clone(), CONNECTIONS_MAX)),
            server,
            authorization: token.map(|token| format!("Bearer {token}").into()),
            cancel: cancel.clone(),
            once: timeout,
        })
    }

    /// The hub's URL.
    pub fn url(&self) -> &str {
        self.server.shown()
    }

    /// One request, tried again while that may help. `body` is empty for requests without one.
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
            // A hub that restarts behind a proxy, or is asked too much, and what a proxy says for itself; a full disk does not
            // pass by itself, nor does what a hub means.
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
        let unreachable = |reason: String| TransferError::Unreachable {
            url: self.url().to_owned(),
            what: ask.what.to_owned(),
            reason,
        };
        let limits = Limits {
            connect: CONNECT_TIMEOUT,
            until: self.once.map(|limit| Instant::now() + limit),
            stall: Some(STALL_TIMEOUT),
            answer: Some(ANSWER_TIMEOUT),
            look: Duration::ZERO,
        };
        let mut sent = |bytes| {
            on_bytes(bytes);
            self.cancel.check()
        };
        let mut bytes = Vec::new();
        let asked = self.connections.exchange(
            &limits,
            &|| self.request(ask),
            Some(&mut sent),
            &mut |_, piece| {
                bytes.extend_from_slice(piece);
                match bytes.len() > ANSWER_BYTES_MAX {
                    true => Err(unreachable(format!(
                        "the answer is longer than {ANSWER_BYTES_MAX} bytes"
                    ))),
                    false => Ok(()),
                }
            },
        );
        let head = asked.map_err(|ended| match ended {
            Ended::Fault(fault) => unreachable(fault.to_string()),
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
            let media = match ask.path.ends_with("/commit") {
                true => "application/json",
                false => "application/octet-stream",
            };
            request = request.header(header::CONTENT_TYPE, media);
        }
        request.body(ask.body.clone()).map_err(|e| no_request(&e))
    }

    /// What an answer that is none of success means.
    fn refusal(&self, ask: &Ask<'_>, head: &Parts, bytes: &[u8]) -> Failed {
        let status = head.status.as_u16();
        let said = serde_json::from_slice::<ErrorBody>(bytes).unwrap_or_else(|_| ErrorBody {
            code: NO_HUB.into(),
            message: format!("it answered {status} without saying why"),
            fix: "check that the URL is a hub's, and what stands between".into(),
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

    /// Begins an upload or goes on with it.
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

    /// Which of at most [`HAVE_ITEMS_MAX`] items need not be sent.
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

    /// Sends a pack. `on_bytes` is told of bytes as they are handed to the connection, those of repeated tries included.
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

    /// Drops an upload with what was sent for it.
    pub fn cancel_upload(&self, upload: &str) -> Result<(), TransferError> {
        self.call(
            "DELETE",
            &format!("/v1/uploads/{upload}"),
            "the end of an upload",
            Bytes::new(),
            &|_| (),
        )
        .map(drop)
    }

    /// The images that the token may read.
    pub fn images(&self) -> Result<Vec<ImageEntry>, TransferError> {
        let answer = self.call("GET", "/v1/images", "its images", Bytes::new(), &|_| ())?;
        self.parse::<ImageList>("its images", &answer)
            .map(|list| list.images)
    }

    /// The image that a name means.
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

    /// The traces of an image of the token's owner.
    pub fn traces(&self, id: &Hash) -> Result<TraceList, TransferError> {
        let (path, what) = (format!("/v1/images/{id}/traces"), "an image's traces");
        let answer = self.call("GET", &path, what, Bytes::new(), &|_| ())?;
        self.parse(what, &answer)
    }

    /// One trace of an image of the token's owner.
    pub fn trace(&self, id: &Hash, trace: &Hash) -> Result<Vec<u8>, TransferError> {
        let path = format!("/v1/images/{id}/traces/{trace}");
        self.call("GET", &path, "a trace", Bytes::new(), &|_| ())
    }

    /// The model of an image, asked for once. `seen` is the BLAKE3 of the one that is here; if it is still that one, the
    /// answer is empty.
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

    /// Shows an image to everybody, or to its owner alone.
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
