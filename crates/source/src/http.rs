//! A client of a server that is asked for chunks over HTTP. It keeps separate connections for demand and for everything else,
//! measures the link, waits when the server asks it to, and turns refusals into [`SourceError`]s.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use floe_http::header::{AUTHORIZATION, HeaderValue};
use floe_http::{Ended, Fault, Limits, Method, Parts, Pool, Server, StatusCode};
use parking_lot::Mutex;

use crate::link::{Answer, LinkEstimate, LinkMeter};
use crate::{Origin, Request, SourceError};

/// Most connections for demand: as many of the guests' faults as are worth having in flight to one server at once.
const DEMAND_CONNECTIONS_MAX: usize = 16;

/// Most connections for other purposes. Two keep the link busy while one answer ends; many more would only slow demand down.
const BULK_CONNECTIONS_MAX: usize = 4;

/// How long a TCP and TLS handshake may take: enough for three lost SYNs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);

/// How long a demand to a near server polls for its answer before its thread sleeps. A CPU that has to be woken for a sleeping
/// thread costs some 40 us in a virtual machine.
const LOOKS_FOR: Duration = Duration::from_micros(250);

/// Longest round trip of a server that counts as near, in microseconds.
const NEAR_RTT_US_MAX: u64 = 500;

/// The longest wait that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(15);

/// How many bytes of an error answer are quoted.
const ERROR_TEXT_MAX: usize = 300;

/// A server behind a base URL.
pub(crate) struct Http {
    server: Arc<Server>,
    authorization: Option<HeaderValue>,
    demand: Pool,
    bulk: Pool,
    meter: LinkMeter,
    /// The server asked not to be sent requests before this time.
    not_before: Mutex<Option<Instant>>,
}

/// Called with an answer's head and a piece of its body; an error ends the call.
pub(crate) type OnData<'a> = dyn FnMut(&Parts, &[u8]) -> Result<(), SourceError> + 'a;

/// A request to the server.
pub(crate) struct Ask<'a> {
    /// Its method.
    pub method: Method,
    /// Path below the base URL, with its query; already escaped.
    pub path: &'a str,
    /// Extra headers.
    pub headers: &'a [(&'static str, String)],
    /// Body.
    pub body: Bytes,
    /// Longest body that is accepted.
    pub limit: u64,
    /// What is asked for, for error messages.
    pub what: &'a str,
    /// Accept any answer, not only a status from 200 to 299.
    pub any_status: bool,
}

impl<'a> Ask<'a> {
    /// Makes a plain GET.
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
    /// Makes a client for `origin`, whose URL is http, https or a hub's. `tls` replaces the TLS configuration that follows from
    /// the origin's CA. Doesn't connect yet.
    pub fn new(
        origin: &Origin,
        tls: Option<Arc<rustls::ClientConfig>>,
    ) -> Result<Http, SourceError> {
        let bad = |reason: String| SourceError::Unsupported {
            at: origin.shown(),
            reason,
        };
        let url = floe_http::web(origin.url())
            .ok_or_else(|| bad("has no host; write http(s)://host[:port][/path]".into()))?;
        let authorization = match origin.token() {
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
        let tls = match tls {
            None if url.scheme() == "https" => Some(floe_http::trusting(origin.ca()).map_err(bad)?),
            tls => tls,
        };
        let server = Arc::new(Server::new(&url, tls).map_err(bad)?);
        Ok(Http {
            authorization,
            demand: Pool::new(server.clone(), DEMAND_CONNECTIONS_MAX),
            bulk: Pool::new(server.clone(), BULK_CONNECTIONS_MAX),
            server,
            meter: LinkMeter::default(),
            not_before: Mutex::default(),
        })
    }

    /// Returns the base URL, for messages.
    pub fn shown(&self) -> &str {
        self.server.shown()
    }

    /// Returns what is measured of the link.
    pub fn link(&self) -> LinkEstimate {
        self.meter.estimate(Instant::now())
    }

    /// Sends `ask` and passes the body of a 2xx answer to `on_data` as it arrives. Other answers become errors.
    ///
    /// Blocks the calling thread, which must not belong to an async runtime.
    pub fn call(
        &self,
        ask: &Ask<'_>,
        request: &Request,
        on_data: &mut OnData<'_>,
    ) -> Result<Parts, SourceError> {
        let until = floe_threads::from_now(request.deadline);
        let (pool, look) = match (request.is_demand(), self.link().rtt_us) {
            (true, Some(rtt)) if rtt <= NEAR_RTT_US_MAX => (&self.demand, LOOKS_FOR),
            (true, _) => (&self.demand, Duration::ZERO),
            (false, _) => (&self.bulk, Duration::ZERO),
        };
        self.wait_as_asked(until);
        let limits = Limits {
            until: Some(until),
            look,
            ..Limits::within(request.deadline, CONNECT_TIMEOUT)
        };
        let answer: Cell<Option<Answer>> = Cell::new(None);
        let make = || {
            let request = self.request(ask)?;
            answer.set(Some(self.meter.request(Instant::now())));
            Ok(request)
        };
        let received = |bytes: usize| {
            if let Some(mut measured) = answer.get() {
                self.meter.received(&mut measured, bytes, Instant::now());
                answer.set(Some(measured));
            }
        };
        let mut body = Body {
            http: self,
            ask,
            total: 0,
            error_text: Vec::new(),
        };
        let outcome = pool.exchange(&limits, &make, None, &mut |parts, data| {
            match data.is_empty() {
                true => received(head_bytes(parts)),
                false => {
                    received(data.len());
                    body.take(parts, data, on_data)?;
                }
            }
            Ok(())
        });
        if let Some(measured) = answer.get() {
            self.meter.ended(measured, Instant::now());
        }
        match outcome {
            Ok(parts) if ask.any_status || parts.status.is_success() => Ok(parts),
            Ok(parts) => Err(body.refused(&parts)),
            Err(Ended::Caller(error)) => Err(error),
            Err(Ended::Fault(Fault::Late { .. })) => Err(SourceError::Timeout {
                at: self.shown().into(),
                what: ask.what.into(),
                after: request.deadline,
            }),
            Err(Ended::Fault(fault)) => Err(SourceError::Unreachable {
                at: self.shown().into(),
                what: ask.what.into(),
                reason: fault.to_string(),
            }),
        }
    }

    /// Waits as long as the server asked with its last 429 or 503, but leaves half of the request's time for the answer.
    fn wait_as_asked(&self, until: Instant) {
        let Some(not_before) = *self.not_before.lock() else {
            return;
        };
        let now = Instant::now();
        let half = now + until.saturating_duration_since(now) / 2;
        // the server asked for this pause; nothing here can end it early
        std::thread::sleep(not_before.min(half).saturating_duration_since(now));
        let mut asked = self.not_before.lock();
        if asked.is_some_and(|at| at <= Instant::now()) {
            *asked = None;
        }
    }

    /// Remembers the wait that a `Retry-After` asks for (in seconds; dates are ignored).
    fn keep_retry_after(&self, parts: &Parts) {
        let busy = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        let after = parts.headers.get("retry-after");
        let after: Option<u64> = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        if let Some(seconds) = after.filter(|_| busy.contains(&parts.status)) {
            let wait = Duration::from_secs(seconds).min(RETRY_AFTER_MAX);
            *self.not_before.lock() = Some(floe_threads::from_now(wait));
        }
    }

    /// As [`Http::call`], for a small body: returns all of it.
    pub fn fetch(&self, ask: &Ask<'_>, request: &Request) -> Result<(Parts, Vec<u8>), SourceError> {
        let mut body = Vec::new();
        let parts = self.call(ask, request, &mut |_, data| {
            body.extend_from_slice(data);
            Ok(())
        })?;
        Ok((parts, body))
    }

    fn request(&self, ask: &Ask<'_>) -> Result<floe_http::Request<Bytes>, SourceError> {
        let mut request = self.server.request(ask.method.clone(), ask.path);
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value.clone());
        }
        for (name, value) in ask.headers {
            request = request.header(*name, value);
        }
        request
            .body(ask.body.clone())
            .map_err(|e| SourceError::Unsupported {
                at: self.shown().into(),
                reason: format!("cannot ask for {:?}: {e}", ask.path),
            })
    }

    fn status_error(&self, parts: &Parts, what: &str, text: &[u8]) -> SourceError {
        let at = self.shown().to_owned();
        let what = what.to_string();
        let text = String::from_utf8_lossy(text).replace(|c: char| c.is_control(), " ");
        match parts.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => SourceError::Missing { at, what },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => SourceError::Denied {
                at,
                what,
                fix: SourceError::NO_TOKEN.into(),
            },
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
}

/// Returns how many bytes an answer's head takes on the wire.
fn head_bytes(parts: &Parts) -> usize {
    let headers = parts.headers.iter();
    17 + headers
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum::<usize>()
}

/// An answer's body as it arrives: passed on if the answer is good, quoted in the error if it is a refusal.
struct Body<'a> {
    http: &'a Http,
    ask: &'a Ask<'a>,
    total: u64,
    error_text: Vec<u8>,
}

impl Body<'_> {
    fn take(
        &mut self,
        parts: &Parts,
        data: &[u8],
        on_data: &mut OnData<'_>,
    ) -> Result<(), SourceError> {
        self.total += data.len() as u64;
        if !self.ask.any_status && !parts.status.is_success() {
            let room = ERROR_TEXT_MAX - self.error_text.len();
            self.error_text
                .extend_from_slice(&data[..data.len().min(room)]);
            return match self.error_text.len() {
                ERROR_TEXT_MAX => Err(self.refused(parts)),
                _ => Ok(()),
            };
        }
        if self.total > self.ask.limit {
            return Err(SourceError::Invalid {
                at: self.http.shown().into(),
                what: self.ask.what.into(),
                reason: format!("the answer is longer than {} bytes", self.ask.limit),
            });
        }
        on_data(parts, data)
    }

    fn refused(&self, parts: &Parts) -> SourceError {
        self.http.keep_retry_after(parts);
        self.http
            .status_error(parts, self.ask.what, &self.error_text)
    }
}
