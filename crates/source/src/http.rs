//! HTTP/1.1 on the calling thread: kept-alive connections, one lane for demand and one for everything else.
//!
//! Each connection has a tokio runtime of its own that runs only while its owner waits in [`Http::call`], so a
//! request costs no hop to another thread. Measured ping-pong of 4 KiB over loopback: some 40 us this way, no more than with
//! a bare blocking socket, 240 us with ureq on the same busy host; a page fault has 250 us in all. An idle connection
//! costs two descriptors.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::http::request::Parts as RequestParts;
use hyper::http::response::Parts;
use hyper::{Method, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use parking_lot::{Condvar, Mutex};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout_at;

use crate::link::{Answer, LinkEstimate, LinkMeter};
use crate::{Options, Request, SourceError};

/// Connections for demand: as many as guests' faults are worth having in flight to one server at once.
const DEMAND_CONNECTIONS_MAX: usize = 16;

/// Connections for all other purposes. Two keep a pipe full while one answer ends; more only take a demand's share.
const BULK_CONNECTIONS_MAX: usize = 4;

/// How long a TCP and TLS handshake may take: three lost SYNs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);

/// A thread that sleeps until its answer comes is woken by a CPU that has to wake up first: some 40 us in a virtual machine. A
/// demand to a server that is near looks for its answer for so long before it sleeps.
const LOOKS_FOR: Duration = Duration::from_micros(250);

/// A server is near up to this round trip, microseconds.
const NEAR_RTT_US_MAX: u64 = 500;

/// A server may ask to be left alone for so long at most.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(15);

/// How much of an error answer is quoted.
const ERROR_TEXT_MAX: usize = 300;

/// Largest response head. Ours are some 200 bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A server behind a base URL.
pub(crate) struct Http {
    host: String,
    port: u16,
    authority: HeaderValue,
    prefix: String,
    shown: String,
    authorization: Option<HeaderValue>,
    tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    demand: Lane,
    bulk: Lane,
    meter: LinkMeter,
    /// The server asked to be left alone until then.
    not_before: Mutex<Option<Instant>>,
}

/// Takes an answer's head and a piece of its body; an error ends the call.
pub(crate) type OnData<'a> = dyn FnMut(&Parts, &[u8]) -> Result<(), SourceError> + 'a;

/// What to send.
pub(crate) struct Ask<'a> {
    /// Verb.
    pub method: Method,
    /// Path below the base URL, with its query; already escaped.
    pub path: &'a str,
    /// Extra headers.
    pub headers: &'a [(&'static str, String)],
    /// Body.
    pub body: Bytes,
    /// Longest body that is accepted.
    pub limit: u64,
    /// What is asked for, for errors.
    pub what: &'a str,
    /// Take any answer, not only one of 200 to 299.
    pub any_status: bool,
}

impl<'a> Ask<'a> {
    /// A plain GET.
    pub fn get(path: &'a str, what: &'a str, limit: u64) -> Ask<'a> {
        Ask {
            method: Method::GET,
            path,
            headers: &[],
            body: Bytes::new(),
            limit,
            what,
            any_status: false,
        }
    }
}

impl Http {
    /// A client for `base`, an http or https URL without query. Nothing is connected yet.
    pub fn new(base: &str, options: &Options) -> Result<Http, SourceError> {
        let bad = |reason: String| SourceError::Unsupported {
            at: shown_url(base),
            reason,
        };
        let uri: Uri = base.parse().map_err(|e| {
            bad(format!(
                "not a URL ({e}); write http(s)://host[:port][/path]"
            ))
        })?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            other => return Err(bad(format!("scheme {other:?} is not http or https"))),
        };
        let authority = uri
            .authority()
            .ok_or_else(|| bad("has no host; write http(s)://host[:port][/path]".into()))?;
        if authority.as_str().contains('@') {
            return Err(bad(
                "credentials in a URL end up in logs; give a token with --token instead".into(),
            ));
        }
        if uri.query().is_some() {
            return Err(bad(
                "a base URL has no query part; leave out everything from the `?`".into(),
            ));
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_string();
        let authorization = match &options.token {
            None => None,
            Some(token) => {
                let mut value =
                    HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
                        bad("the token has characters that no HTTP header may carry".into())
                    })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let tls = if https {
            let name = ServerName::try_from(host.clone())
                .map_err(|e| bad(format!("bad host name: {e}")))?;
            let config = match &options.tls {
                Some(config) => config.clone(),
                None => tls_config(options.ca.as_deref()).map_err(bad)?,
            };
            Some((config, name))
        } else {
            None
        };
        Ok(Http {
            port: authority.port_u16().unwrap_or(if https { 443 } else { 80 }),
            authority: HeaderValue::from_str(authority.as_str())
                .map_err(|e| bad(format!("bad host: {e}")))?,
            prefix: uri.path().trim_end_matches('/').to_string(),
            shown: shown_url(base),
            host,
            authorization,
            tls,
            demand: Lane::new(DEMAND_CONNECTIONS_MAX),
            bulk: Lane::new(BULK_CONNECTIONS_MAX),
            meter: LinkMeter::default(),
            not_before: Mutex::default(),
        })
    }

    /// The base URL, for messages.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// What the link seems to be now.
    pub fn link(&self) -> LinkEstimate {
        self.meter.estimate(Instant::now())
    }

    /// Send `ask` and hand the body of a 2xx answer to `on_data` as it arrives. Other answers become errors.
    ///
    /// Blocks the calling thread, which must not be one of an async runtime's.
    pub fn call(
        &self,
        ask: &Ask<'_>,
        request: &Request,
        on_data: &mut OnData<'_>,
    ) -> Result<Parts, SourceError> {
        let until = Instant::now() + request.deadline;
        let timeout = || self.timeout(ask.what, request.deadline);
        let lane = if request.is_demand() {
            &self.demand
        } else {
            &self.bulk
        };
        let _place = lane.enter(until).ok_or_else(timeout)?;
        self.wait_as_asked(until);
        loop {
            let idle = lane.idle.lock().pop();
            let reused = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.connect(until, ask.what, request.deadline)?,
            };
            let mut answer = self.meter.request(Instant::now());
            let Connection { runtime, send } = &mut connection;
            let Some(runtime) = runtime.as_ref() else {
                continue;
            };
            let look = match self.link().rtt_us {
                Some(rtt) if rtt <= NEAR_RTT_US_MAX && request.is_demand() => LOOKS_FOR,
                _ => Duration::ZERO,
            };
            let outcome = runtime.block_on(async {
                let exchange = looking(self.exchange(send, ask, &mut answer, on_data), look);
                match timeout_at(until.into(), exchange).await {
                    Ok(outcome) => outcome,
                    Err(_) => Err(Fault::Final(timeout())),
                }
            });
            self.meter.ended(answer, Instant::now());
            match outcome {
                Ok(parts) => {
                    lane.idle.lock().push(connection);
                    return Ok(parts);
                }
                // A kept connection that the server has closed meanwhile; all of our requests may be repeated.
                Err(Fault::NoAnswer(_)) if reused => lane.idle.lock().clear(),
                Err(Fault::NoAnswer(reason)) => return Err(self.unreachable(ask.what, reason)),
                Err(Fault::Final(error)) => return Err(error),
            }
        }
    }

    /// Waits as long as the server asked with its last 429 or 503, but leaves half of the request's time for the answer.
    fn wait_as_asked(&self, until: Instant) {
        let Some(not_before) = *self.not_before.lock() else {
            return;
        };
        let now = Instant::now();
        let half = now + until.saturating_duration_since(now) / 2;
        std::thread::sleep(not_before.min(half).saturating_duration_since(now));
        let mut asked = self.not_before.lock();
        if asked.is_some_and(|at| at <= Instant::now()) {
            *asked = None;
        }
    }

    /// Heeds `Retry-After` (in seconds; a date is not worth a parser).
    fn heed(&self, parts: &Parts) {
        let busy = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        let after = parts.headers.get("retry-after");
        let after: Option<u64> = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        if let Some(seconds) = after.filter(|_| busy.contains(&parts.status)) {
            let wait = Duration::from_secs(seconds).min(RETRY_AFTER_MAX);
            *self.not_before.lock() = Some(Instant::now() + wait);
        }
    }

    /// [`Http::call`] for a small body that is wanted whole.
    pub fn fetch(&self, ask: &Ask<'_>, request: &Request) -> Result<(Parts, Vec<u8>), SourceError> {
        let mut body = Vec::new();
        let parts = self.call(ask, request, &mut |_, data| {
            body.extend_from_slice(data);
            Ok(())
        })?;
        Ok((parts, body))
    }

    async fn exchange(
        &self,
        send: &mut SendRequest<Full<Bytes>>,
        ask: &Ask<'_>,
        answer: &mut Answer,
        on_data: &mut OnData<'_>,
    ) -> Result<Parts, Fault> {
        let lost = |e: hyper::Error| Fault::NoAnswer(chain(&e));
        send.ready().await.map_err(lost)?;
        let response = send
            .send_request(self.request(ask).map_err(Fault::Final)?)
            .await
            .map_err(lost)?;
        let (parts, mut body) = response.into_parts();
        let head = 17
            + parts
                .headers
                .iter()
                .map(|(n, v)| n.as_str().len() + v.len() + 4)
                .sum::<usize>();
        self.meter.received(answer, head, Instant::now());
        let good = ask.any_status || parts.status.is_success();
        let mut text = Vec::new();
        let mut total = 0u64;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| {
                Fault::Final(
                    self.unreachable(ask.what, format!("answer broken off: {}", chain(&e))),
                )
            })?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            self.meter.received(answer, data.len(), Instant::now());
            total += data.len() as u64;
            if !good {
                text.extend_from_slice(&data[..data.len().min(ERROR_TEXT_MAX - text.len())]);
                if text.len() == ERROR_TEXT_MAX {
                    break;
                }
            } else if total > ask.limit {
                let reason = format!("the answer is longer than {} bytes", ask.limit);
                return Err(Fault::Final(SourceError::Invalid {
                    at: self.shown.clone(),
                    what: ask.what.into(),
                    reason,
                }));
            } else {
                on_data(&parts, data).map_err(Fault::Final)?;
            }
        }
        if good {
            Ok(parts)
        } else {
            self.heed(&parts);
            Err(Fault::Final(self.status_error(&parts, ask.what, &text)))
        }
    }

    fn request(&self, ask: &Ask<'_>) -> Result<hyper::Request<Full<Bytes>>, SourceError> {
        let unsupported = |reason: String| SourceError::Unsupported {
            at: self.shown.clone(),
            reason,
        };
        let uri = format!("{}{}", self.prefix, ask.path);
        let uri: Uri = uri
            .parse()
            .map_err(|e| unsupported(format!("cannot ask for {uri:?}: {e}")))?;
        let mut parts: RequestParts = hyper::Request::new(()).into_parts().0;
        parts.method = ask.method.clone();
        parts.uri = uri;
        parts.headers.insert(HOST, self.authority.clone());
        if let Some(value) = &self.authorization {
            parts.headers.insert(AUTHORIZATION, value.clone());
        }
        for (name, value) in ask.headers {
            let value = HeaderValue::from_str(value)
                .map_err(|e| unsupported(format!("header {name}: {e}")))?;
            parts.headers.insert(*name, value);
        }
        Ok(hyper::Request::from_parts(
            parts,
            Full::new(ask.body.clone()),
        ))
    }

    fn connect(
        &self,
        until: Instant,
        what: &str,
        allowed: Duration,
    ) -> Result<Connection, SourceError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| SourceError::Local {
                what: what.into(),
                reason: format!("cannot start a connection: {e}"),
            })?;
        let own_limit = Instant::now() + CONNECT_TIMEOUT;
        let opened = runtime
            .block_on(async { timeout_at(until.min(own_limit).into(), self.handshake()).await });
        match opened {
            Ok(Ok(send)) => Ok(Connection {
                runtime: Some(runtime),
                send,
            }),
            Ok(Err(reason)) => Err(self.unreachable(what, reason)),
            Err(_) if until <= own_limit => Err(self.timeout(what, allowed)),
            Err(_) => {
                Err(self.unreachable(what, format!("no connection within {CONNECT_TIMEOUT:?}")))
            }
        }
    }

    async fn handshake(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|e| e.to_string())?;
        // A request is one small write: waiting to fill a packet would cost a delayed acknowledgement.
        tcp.set_nodelay(true).map_err(|e| e.to_string())?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX.max(256 << 10));
        match &self.tls {
            None => {
                let (send, connection) = builder
                    .handshake(TokioIo::new(tcp))
                    .await
                    .map_err(|e| chain(&e))?;
                tokio::spawn(connection);
                Ok(send)
            }
            Some((config, name)) => {
                let connector = tokio_rustls::TlsConnector::from(config.clone());
                let tls = connector
                    .connect(name.clone(), tcp)
                    .await
                    .map_err(|e| tls_reason(&e))?;
                let (send, connection) = builder
                    .handshake(TokioIo::new(tls))
                    .await
                    .map_err(|e| chain(&e))?;
                tokio::spawn(connection);
                Ok(send)
            }
        }
    }

    fn status_error(&self, parts: &Parts, what: &str, text: &[u8]) -> SourceError {
        let at = self.shown.clone();
        let what = what.to_string();
        let text = String::from_utf8_lossy(text).replace(|c: char| c.is_control(), " ");
        match parts.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => SourceError::Missing { at, what },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => SourceError::Denied { at, what },
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                SourceError::Unreachable {
                    at,
                    what,
                    reason: format!("it answered {}", parts.status),
                }
            }
            status if status.is_server_error() => SourceError::Unreachable {
                at,
                what,
                reason: format!("it answered {status} {text}")
                    .trim_end()
                    .to_string(),
            },
            status if status.is_redirection() => {
                let to = parts
                    .headers
                    .get("location")
                    .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned());
                let to = to.unwrap_or_else(|| "nowhere".into());
                SourceError::Unsupported {
                    at,
                    reason: format!(
                        "redirects {what} to {to}; redirects are not followed, use that URL"
                    ),
                }
            }
            status => SourceError::Unsupported {
                at,
                reason: format!("refused {what}: {status} {text}")
                    .trim_end()
                    .to_string(),
            },
        }
    }

    fn unreachable(&self, what: &str, reason: String) -> SourceError {
        SourceError::Unreachable {
            at: self.shown.clone(),
            what: what.into(),
            reason,
        }
    }

    fn timeout(&self, what: &str, after: Duration) -> SourceError {
        SourceError::Timeout {
            at: self.shown.clone(),
            what: what.into(),
            after,
        }
    }
}

enum Fault {
    /// The connection ended before a response head: on a kept connection worth a second try.
    NoAnswer(String),
    Final(SourceError),
}

struct Connection {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    send: SendRequest<Full<Bytes>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Plainly dropping a runtime panics on an async thread; this source may be dropped there.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A bounded set of connections.
struct Lane {
    idle: Mutex<Vec<Connection>>,
    free: Mutex<usize>,
    freed: Condvar,
}

impl Lane {
    fn new(max: usize) -> Lane {
        Lane {
            idle: Mutex::default(),
            free: Mutex::new(max),
            freed: Condvar::new(),
        }
    }

    /// A place in the lane, or `None` when none became free until then.
    fn enter(&self, until: Instant) -> Option<Place<'_>> {
        let mut free = self.free.lock();
        while *free == 0 {
            if self.freed.wait_until(&mut free, until).timed_out() && *free == 0 {
                return None;
            }
        }
        *free -= 1;
        Some(Place(self))
    }
}

struct Place<'a>(&'a Lane);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

/// Trust the given authority alone, or else those of the system.
/// Waits for `answer`, for the first `long` without letting the thread sleep.
async fn looking<T>(answer: impl Future<Output = T>, long: Duration) -> T {
    let mut answer = std::pin::pin!(answer);
    let until = Instant::now() + long;
    while Instant::now() < until {
        tokio::select! {
            biased;
            outcome = &mut answer => return outcome,
            () = tokio::task::yield_now() => {}
        }
    }
    answer.await
}

fn tls_config(ca: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, String> {
    let mut roots = rustls::RootCertStore::empty();
    match ca {
        Some(path) => {
            let fail = |e: &dyn std::fmt::Display| {
                format!(
                    "cannot read certificates from {} ({e}); give a PEM file",
                    path.display()
                )
            };
            for certificate in CertificateDer::pem_file_iter(path).map_err(|e| fail(&e))? {
                roots
                    .add(certificate.map_err(|e| fail(&e))?)
                    .map_err(|e| fail(&e))?;
            }
            if roots.is_empty() {
                return Err(fail(&"it has none"));
            }
        }
        None => {
            let _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err("this system has no CA certificates; install ca-certificates, or give a PEM file with --ca".into());
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn tls_reason(error: &io::Error) -> String {
    format!(
        "TLS: {error}; if its certificate is signed by an authority of your own, give that with --ca"
    )
}

/// `url` without what may be secret in it.
pub(crate) fn shown_url(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => url.to_string(),
    }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Escape the segments of a path.
pub(crate) fn escape_path(path: &str) -> String {
    path.split('/').map(escape).collect::<Vec<_>>().join("/")
}

/// Escape `text` for one path segment or query value (RFC 3986's unreserved characters stay).
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
