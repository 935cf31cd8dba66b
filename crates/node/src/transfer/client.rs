//! The hub's interface as function calls, for everything but the hot reads (those are `floe-source`'s).

use super::{Cancel, Failed, NO_HUB, Passes, TransferError, retry};
use floe_api::hub::{
    CommitRequest, Committed, ErrorBody, HAVE_ITEMS_MAX, HAVE_QUESTION_BYTES, ImageEntry,
    ImageList, Resolved, TagRequest, TraceTaken, UploadOpened, Visibility,
};
use floe_image::{Hash, Kind};
use floe_traces::{Method, TraceList};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, SendBody};

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the answer's head after the request is sent: a commit walks the whole image first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Time in which some bytes of a body must move.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer that is read: a list of images.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Bytes handed to the socket at a time: how soon a cancelled upload notices.
const SEND_BYTES: usize = 16 << 10;

/// A hub, spoken to with one token. Cheap to clone; connections are kept and shared.
#[derive(Clone)]
pub struct HubClient {
    agent: Agent,
    base: String,
    authorization: Option<Arc<str>>,
    cancel: Cancel,
    /// Ask once, not again.
    once: bool,
}

/// A body that counts itself and ends when the transfer is cancelled.
struct Sending<'a> {
    left: &'a [u8],
    cancel: &'a Cancel,
    on_bytes: &'a dyn Fn(u64),
}

impl Read for Sending<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("cancelled"));
        }
        let n = to.len().min(self.left.len()).min(SEND_BYTES);
        to[..n].copy_from_slice(&self.left[..n]);
        self.left = &self.left[n..];
        (self.on_bytes)(n as u64);
        Ok(n)
    }
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
        let base = match url.split_once("://") {
            Some(("http" | "https", _)) => url.to_owned(),
            Some(("floe", rest)) => format!("https://{rest}"),
            Some(("floe+http", rest)) => format!("http://{rest}"),
            _ => {
                return Err(TransferError::Options(format!(
                    "{url:?} is no hub; give its URL, such as https://hub:4500"
                )));
            }
        };
        let mut tls = TlsConfig::builder().provider(TlsProvider::Rustls);
        if base.starts_with("https") {
            tls = tls.root_certs(roots(ca)?);
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .tls_config(tls.build())
            .max_idle_connections_per_host(8)
            .timeout_global(timeout)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_per_write(Some(STALL_TIMEOUT))
            .timeout_recv_body(Some(ANSWER_TIMEOUT))
            .build();
        Ok(HubClient {
            agent: config.new_agent(),
            base: base.trim_end_matches('/').to_owned(),
            authorization: token.map(|token| format!("Bearer {token}").into()),
            cancel: cancel.clone(),
            once: timeout.is_some(),
        })
    }

    /// The hub's URL.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// One request, tried again while that may help. `body` is `None` for requests without one.
    fn call(
        &self,
        method: &str,
        path: &str,
        what: &str,
        body: Option<&[u8]>,
        on_bytes: &dyn Fn(u64),
    ) -> Result<Vec<u8>, TransferError> {
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
        if self.once {
            let asked = self.call_once(method, path, what, body, None, on_bytes);
            return asked.map_err(|failed| failed.error);
        }
        retry(&self.cancel, passes, || {
            self.call_once(method, path, what, body, None, on_bytes)
        })
    }

    /// `seen`: the content that is here already; if it is still the same, the answer is empty.
    fn call_once(
        &self,
        method: &str,
        path: &str,
        what: &str,
        body: Option<&[u8]>,
        seen: Option<&Hash>,
        on_bytes: &dyn Fn(u64),
    ) -> Result<Vec<u8>, Failed> {
        let unreachable = |reason: String| TransferError::Unreachable {
            url: self.base.clone(),
            what: what.to_owned(),
            reason,
        };
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", &**authorization);
        }
        if let Some(seen) = seen {
            request = request.header("if-none-match", format!("\"{seen}\""));
        }
        let no_request = |e: ureq::http::Error| {
            TransferError::Options(format!("cannot ask {} for {what}: {e}", self.base))
        };
        let answer = match body {
            None => self.agent.run(request.body(()).map_err(no_request)?),
            Some(bytes) => {
                let mut sending = Sending {
                    left: bytes,
                    cancel: &self.cancel,
                    on_bytes,
                };
                let request = request
                    .header("content-length", bytes.len())
                    .header(
                        "content-type",
                        if path.ends_with("/commit") {
                            "application/json"
                        } else {
                            "application/octet-stream"
                        },
                    )
                    .body(SendBody::from_reader(&mut sending))
                    .map_err(no_request)?;
                self.agent.run(request)
            }
        };
        let mut answer = answer.map_err(|e| unreachable(e.to_string()))?;
        let status = answer.status().as_u16();
        if status == 304 && seen.is_some() {
            return Ok(Vec::new());
        }
        let bytes = answer
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec();
        let bytes = bytes.map_err(|e| unreachable(format!("the answer was cut off: {e}")))?;
        if answer.status().is_success() {
            return Ok(bytes);
        }
        let said = serde_json::from_slice::<ErrorBody>(&bytes).unwrap_or_else(|_| ErrorBody {
            code: NO_HUB.into(),
            message: format!("it answered {status} without saying why"),
            fix: "check that the URL is a hub's, and what stands between".into(),
        });
        let (code, message, fix) = (said.code, said.message, said.fix);
        let after = answer.headers().get("retry-after");
        let after = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let error = TransferError::Refused {
            url: self.base.clone(),
            what: what.to_owned(),
            status,
            code,
            message,
            fix,
        };
        Err(Failed {
            error,
            after: after.map(Duration::from_secs),
        })
    }

    fn parse<T: DeserializeOwned>(&self, what: &str, bytes: &[u8]) -> Result<T, TransferError> {
        serde_json::from_slice(bytes).map_err(|e| self.protocol(what, e.to_string()))
    }

    fn protocol(&self, what: &str, reason: String) -> TransferError {
        TransferError::Protocol {
            url: self.base.clone(),
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
        self.call(method, path, what, Some(&body), &|_| ())
    }

    /// Begins an upload or goes on with it.
    pub fn open_upload(&self, manifest: &[u8]) -> Result<UploadOpened, TransferError> {
        let answer = self.call("POST", "/v1/uploads", "an upload", Some(manifest), &|_| ())?;
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
            Some(&body),
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
        bytes: &[u8],
        on_bytes: &dyn Fn(u64),
    ) -> Result<(), TransferError> {
        let what = format!("pack {}", pack.short());
        self.call(
            "PUT",
            &format!("/v1/uploads/{upload}/packs/{pack}"),
            &what,
            Some(bytes),
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
            None,
            &|_| (),
        )
        .map(drop)
    }

    /// The images that the token may read.
    pub fn images(&self) -> Result<Vec<ImageEntry>, TransferError> {
        let answer = self.call("GET", "/v1/images", "its images", None, &|_| ())?;
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
            None,
            &|_| (),
        )?;
        let id = self.parse::<Resolved>(&what, &answer)?.id;
        id.parse()
            .map_err(|e: floe_image::ParseHashError| self.protocol(&what, e.to_string()))
    }

    /// Sends a trace of an image that the token may read.
    pub fn send_trace(&self, id: &Hash, trace: &[u8]) -> Result<TraceTaken, TransferError> {
        let (path, what) = (format!("/v1/images/{id}/traces"), "a trace");
        let answer = self.call("POST", &path, what, Some(trace), &|_| ())?;
        self.parse(what, &answer)
    }

    /// The traces of an image of the token's owner.
    pub fn traces(&self, id: &Hash) -> Result<TraceList, TransferError> {
        let (path, what) = (format!("/v1/images/{id}/traces"), "an image's traces");
        let answer = self.call("GET", &path, what, None, &|_| ())?;
        self.parse(what, &answer)
    }

    /// One trace of an image of the token's owner.
    pub fn trace(&self, id: &Hash, trace: &Hash) -> Result<Vec<u8>, TransferError> {
        let path = format!("/v1/images/{id}/traces/{trace}");
        self.call("GET", &path, "a trace", None, &|_| ())
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
        let asked = self.call_once("GET", &path, "an image's model", None, seen, &|_| ());
        asked.map_err(|failed| failed.error)
    }

    /// Removes an image of the token's owner.
    pub fn remove(&self, id: &Hash) -> Result<(), TransferError> {
        self.call(
            "DELETE",
            &format!("/v1/images/{id}"),
            "the removal of an image",
            None,
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
        self.call("DELETE", &path, "the removal of a tag", None, &|_| ())
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

/// The authorities to trust: those of the PEM file alone, or the system's.
fn roots(ca: Option<&Path>) -> Result<RootCerts, TransferError> {
    let certs: Vec<Certificate<'static>> = match ca {
        None => {
            let system = rustls_native_certs::load_native_certs().certs;
            system
                .iter()
                .map(|cert| Certificate::from_der(cert).to_owned())
                .collect()
        }
        Some(path) => {
            let read = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let read = read.map_err(|e| {
                TransferError::Options(format!(
                    "cannot read certificates from {}: {e}; give a PEM file",
                    path.display()
                ))
            })?;
            read.iter()
                .map(|cert| Certificate::from_der(cert).to_owned())
                .collect()
        }
    };
    if certs.is_empty() {
        return Err(TransferError::Options(
            "there are no certificate authorities to trust; install ca-certificates, or give the hub's CA file with --ca".into(),
        ));
    }
    Ok(RootCerts::new_with_certs(&certs))
}

/// Percent-encoding for a query's value.
fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}
