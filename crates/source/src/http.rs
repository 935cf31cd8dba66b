//! A client of a server that is asked for chunks over HTTP. It keeps separate connections for demand and for everything else,
//! measures the link, waits when the server asks it to, goes where the server sends it (`elsewhere`), and turns refusals and answers that
//! can't be what was asked for into [`SourceError`]s (`answer`).

mod answer;
mod elsewhere;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use floe_http::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderValue};
use floe_http::{Connections, Ended, Fault, Limits, Method, Parts, Proxies, Server, StatusCode};
use parking_lot::Mutex;

use crate::link::{Answer, LinkEstimate, LinkMeter};
use crate::{Origin, Request, SourceError};
use answer::Body;
pub(crate) use answer::in_place_of_data;
use elsewhere::{Elsewhere, Place};

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

/// How often in a row a request is sent elsewhere.
const HOPS_MAX: usize = 5;

/// A server behind a base URL.
pub(crate) struct Http {
    server: Arc<Server>,
    authorization: Option<HeaderValue>,
    demand: Connections,
    bulk: Connections,
    /// Where the server has sent us; `None` if nobody goes where it says.
    elsewhere: Option<Elsewhere>,
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
    /// Makes a client for `origin`, whose URL is http, https or a hub's, by `proxies`. Doesn't connect yet.
    pub fn new(origin: &Origin, proxies: Proxies) -> Result<Http, SourceError> {
        Http::build(origin, None, proxies)
    }

    /// Makes a client for one of floe's own hosts, which has this TLS configuration instead of the one that follows from the origin's CA.
    /// It is asked directly, and sends nobody elsewhere. Doesn't connect yet.
    pub fn of_host(origin: &Origin, tls: Arc<rustls::ClientConfig>) -> Result<Http, SourceError> {
        Http::build(origin, Some(tls), Proxies::default())
    }

    fn build(
        origin: &Origin,
        own: Option<Arc<rustls::ClientConfig>>,
        proxies: Proxies,
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
        let is_own = own.is_some();
        let tls = match own {
            None if url.scheme() == "https" => Some(floe_http::trusting(origin.ca()).map_err(bad)?),
            tls => tls,
        };
        let server = Server::new(&url, tls.clone()).map_err(bad)?;
        let server = Arc::new(server.through(proxies.before(&url).map_err(bad)?));
        let elsewhere = Elsewhere::new(url, tls, origin.ca(), proxies);
        Ok(Http {
            elsewhere: (!is_own).then_some(elsewhere),
            authorization,
            demand: Connections::new(server.clone(), DEMAND_CONNECTIONS_MAX),
            bulk: Connections::new(server.clone(), BULK_CONNECTIONS_MAX),
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
    /// A redirect is followed, each time anew, so that a signed address which expires is renewed: without the token if it leads to
    /// another server, and a request that is more than a question only if it may be sent there as it is.
    ///
    /// Blocks the calling thread, which must not belong to an async runtime.
    pub fn call(
        &self,
        ask: &Ask<'_>,
        request: &Request,
        on_data: &mut OnData<'_>,
    ) -> Result<Parts, SourceError> {
        let until = floe_threads::from_now(request.deadline);
        self.wait_as_asked(until);
        let mut place: Option<Place> = None;
        for _ in 0..=HOPS_MAX {
            let parts = self.exchange(ask, place.as_ref(), request, until, on_data)?;
            let Some(elsewhere) = self.elsewhere.as_ref().filter(|_| is_sent_on(ask, &parts))
            else {
                return Ok(parts);
            };
            let next = elsewhere.next(place.as_ref(), ask.path, &parts.headers);
            place = Some(next.map_err(|why| self.not_followed(ask.what, place.as_ref(), &why))?);
        }
        Err(self.unanswered(
            ask.what,
            format!("it sends us from one place to the next, {HOPS_MAX} times and more"),
        ))
    }

    /// Sends `ask` to the server, or to the place that it has sent us to. A redirect that is to be followed is no error.
    fn exchange(
        &self,
        ask: &Ask<'_>,
        place: Option<&Place>,
        request: &Request,
        until: Instant,
        on_data: &mut OnData<'_>,
    ) -> Result<Parts, SourceError> {
        let near = |rtt| rtt <= NEAR_RTT_US_MAX;
        let look = match request.is_demand() && self.link().rtt_us.is_some_and(near) {
            true => LOOKS_FOR,
            false => Duration::ZERO,
        };
        let kept = match (place, request.is_demand()) {
            (Some(place), _) => place.kept(),
            (None, true) => &self.demand,
            (None, false) => &self.bulk,
        };
        let left = until.saturating_duration_since(Instant::now());
        let limits = Limits {
            until: Some(until),
            look,
            ..Limits::within(left, CONNECT_TIMEOUT)
        };
        let answer: Cell<Option<Answer>> = Cell::new(None);
        let make = || {
            let request = self.request(ask, place)?;
            answer.set(Some(self.meter.request(Instant::now())));
            Ok(request)
        };
        let received = |bytes: usize| {
            if let Some(mut measured) = answer.get() {
                self.meter.received(&mut measured, bytes, Instant::now());
                answer.set(Some(measured));
            }
        };
        let mut body = Body::new(self, ask, place);
        let outcome = kept.exchange(
            &limits,
            &make,
            None,
            &mut |parts, data| match data.is_empty() {
                true => {
                    received(head_bytes(parts));
                    body.begin(parts)
                }
                false => {
                    received(data.len());
                    body.take(parts, data, on_data)
                }
            },
        );
        if let Some(measured) = answer.get() {
            self.meter.ended(measured, Instant::now());
        }
        match outcome {
            Ok(parts) if ask.any_status || parts.status.is_success() => Ok(parts),
            Ok(parts) if self.elsewhere.is_some() && is_sent_on(ask, &parts) => Ok(parts),
            Ok(parts) => Err(body.refused(&parts)),
            Err(Ended::Caller(error)) => Err(error),
            Err(Ended::Fault(Fault::Late { .. })) => Err(SourceError::Timeout {
                at: self.shown().into(),
                what: ask.what.into(),
                after: request.deadline,
            }),
            Err(Ended::Fault(fault)) => Err(self.fault(ask.what, place, &fault)),
        }
    }

    /// Returns the error of a connection that failed.
    fn fault(&self, what: &str, place: Option<&Place>, fault: &Fault) -> SourceError {
        let reason = match place {
            Some(place) => format!("it sent us to {}: {fault}", place.shown()),
            None => fault.to_string(),
        };
        match fault.was_asked() || place.is_some() {
            true => self.unanswered(what, reason),
            false => SourceError::Unreachable {
                at: self.shown().into(),
                what: what.into(),
                reason,
            },
        }
    }

    /// Returns the error of an answer that can't be used, which another one may be.
    pub fn unanswered(&self, what: &str, mut reason: String) -> SourceError {
        if let Some(proxy) = self.server.proxy() {
            reason = format!("{reason}, through {}", proxy.shown());
        }
        SourceError::Unanswered {
            at: self.shown().into(),
            what: what.into(),
            reason,
        }
    }

    /// Returns the error of a redirect that is not followed, from the server itself or from where it has sent us. The latter says nothing of
    /// the server: a network's page for signing in sends whoever asks anything from one place to the next.
    fn not_followed(&self, what: &str, from: Option<&Place>, why: &str) -> SourceError {
        match from {
            Some(place) => self.unanswered(
                what,
                format!("it sent us to {}, which {why}", place.shown()),
            ),
            None => SourceError::Unsupported {
                at: self.shown().into(),
                reason: format!("refused {what}: {why}"),
            },
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

    fn request(
        &self,
        ask: &Ask<'_>,
        place: Option<&Place>,
    ) -> Result<floe_http::Request<Bytes>, SourceError> {
        let (mut request, with_token) = match place {
            Some(place) => (place.request(ask.method.clone()), place.is_same_server()),
            None => (self.server.request(ask.method.clone(), ask.path), true),
        };
        // what is compressed on the way has other bytes than the range that was asked for
        request = request.header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(value) = self.authorization.as_ref().filter(|_| with_token) {
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
}

/// Returns whether an answer sends a request elsewhere: a question by any redirect, another request by one that leaves it as it is.
fn is_sent_on(ask: &Ask<'_>, parts: &Parts) -> bool {
    match parts.status.as_u16() {
        301..=303 => ask.method == Method::GET,
        307 | 308 => true,
        _ => false,
    }
}

/// Returns how many bytes an answer's head takes on the wire.
fn head_bytes(parts: &Parts) -> usize {
    let headers = parts.headers.iter();
    17 + headers
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum::<usize>()
}
