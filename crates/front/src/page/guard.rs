//! Decides who may use a node through its page.
//!
//! A browser sends requests of any page that it shows to any address that it can reach, including loopback. So:
//! - a `Host` that is not an address of this host is a name that was rebound to it: refused;
//! - an `Origin` (or `Sec-Fetch-Site`) other than the page's own means another page, also for WebSockets: refused;
//! - everything that reveals or does something (`/v1`, `/metrics`) needs the token, as the cookie that `/login?token=...`
//!   sets (HttpOnly, SameSite=Strict) or as a bearer token. The page's files need none: they contain no secret, and say
//!   how to log in.

use super::token::Token;
use crate::{Party, Peer};
use axum::{
    Json, Router,
    extract::{Query, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use floe_api::{ApiError, ErrorCode};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// How long a browser stays logged in, in seconds: a month.
const COOKIE_S: u64 = 30 * 24 * 3600;
/// The user for whom connections count that have shown the page's token.
const TOKEN_HOLDERS: &str = "the node's user";
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The settings against which requests are checked.
#[derive(Debug)]
pub struct Guard {
    listen: SocketAddr,
    token: Token,
    cookie: String,
}

impl Guard {
    /// Makes the guard of a page that listens at this address.
    pub fn new(listen: SocketAddr, token: Token) -> Guard {
        // cookies don't distinguish ports: two nodes on one host must not overwrite each other's
        let cookie = format!("floe_{}", listen.port());
        Guard {
            listen,
            token,
            cookie,
        }
    }

    /// Returns the address where the page listens.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Returns the page's token.
    pub fn token(&self) -> &str {
        self.token.text()
    }

    /// Returns the page's address.
    pub fn url(&self) -> String {
        let mut addr = self.listen;
        if addr.ip().is_unspecified() {
            addr.set_ip(IpAddr::from([127, 0, 0, 1]));
        }
        format!("http://{addr}/")
    }

    /// Returns the address that logs a browser in.
    pub fn login_url(&self) -> String {
        format!("{}login?token={}", self.url(), self.token.text())
    }

    fn is_own_host(&self, authority: &str) -> bool {
        let (host, port) = split_authority(authority);
        let port_fits = port.is_none_or(|port| port == self.listen.port());
        let name_fits = match host.parse::<IpAddr>() {
            // this is an address, so no name can have been rebound
            Ok(address) => address.is_loopback() || !self.listen.ip().is_loopback(),
            Err(_) => host.eq_ignore_ascii_case("localhost"),
        };
        port_fits && name_fits
    }

    fn check_origin(&self, headers: &HeaderMap, host: Option<&str>) -> Result<(), Failure> {
        let host = host.ok_or_else(|| foreign("the request names no host"))?;
        if !self.is_own_host(host) {
            return Err(foreign("the request is for another host's name"));
        }
        if let Some(origin) = headers.get(header::ORIGIN) {
            let own = origin
                .to_str()
                .is_ok_and(|origin| origin.eq_ignore_ascii_case(&format!("http://{host}")));
            if !own {
                return Err(foreign("the request comes from another web page"));
            }
        }
        match headers.get(&FETCH_SITE).map(HeaderValue::as_bytes) {
            None | Some(b"same-origin" | b"none") => Ok(()),
            Some(_) => Err(foreign("the request comes from another web page")),
        }
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        if bearer.is_some_and(|given| self.token.is(given.trim())) {
            return Ok(());
        }
        let cookies = headers.get_all(header::COOKIE).iter();
        let mine = cookies
            .filter_map(|value| value.to_str().ok())
            .flat_map(|list| list.split(';'))
            .filter_map(|one| one.trim().split_once('='))
            .filter(|(name, _)| *name == self.cookie);
        match mine.into_iter().any(|(_, value)| self.token.is(value)) {
            true => Ok(()),
            false => Err(Failure(
                StatusCode::UNAUTHORIZED,
                ApiError {
                    code: ErrorCode::Refused,
                    message: "this page is for the node's user".into(),
                    fix: "open it with `floe open`, which knows its token".into(),
                },
            )),
        }
    }
}

/// A refused request.
struct Failure(StatusCode, ApiError);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

fn foreign(message: &str) -> Failure {
    Failure(
        StatusCode::FORBIDDEN,
        ApiError {
            code: ErrorCode::Refused,
            message: message.into(),
            fix: "use the address that `floe open --print` shows".into(),
        },
    )
}

/// Splits `host:port`, `[v6]:port` or a host alone. A port that is no number is returned as 0, on which nobody listens.
fn split_authority(authority: &str) -> (&str, Option<u16>) {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or((rest, "")),
        None => match authority.find(':') {
            Some(at) => authority.split_at(at),
            None => (authority, ""),
        },
    };
    let port = rest.strip_prefix(':').map(|port| port.parse().unwrap_or(0));
    let port = port.or((!rest.is_empty()).then_some(0));
    (host, port)
}

/// Returns routes for the page's files, for requests that name this host, and for the interface, which also needs the
/// token.
pub fn guarded(guard: Arc<Guard>, files: Router, interface: Router) -> Router {
    let files = files
        .route("/login", get(login).with_state(guard.clone()))
        .layer(from_fn_with_state(guard.clone(), host_only));
    files.merge(interface.layer(from_fn_with_state(guard, with_token)))
}

fn host(request: &Request) -> Option<&str> {
    let named = request.headers().get(header::HOST);
    let named = named.and_then(|host| host.to_str().ok());
    named.or_else(|| {
        request
            .uri()
            .authority()
            .map(|authority| authority.as_str())
    })
}

/// Checks only the host. A link from another page may lead here; it sends no cookie and can't read the answer.
async fn host_only(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    if host(&request).is_some_and(|host| guard.is_own_host(host)) {
        return next.run(request).await;
    }
    foreign("the request is for another host's name").into_response()
}

async fn with_token(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let checked = guard
        .check_origin(request.headers(), host(&request))
        .and_then(|()| guard.check_token(request.headers()));
    match checked {
        Ok(()) => {
            // clients with the token do not share limits with those without
            if let Some(peer) = request.extensions().get::<Peer>() {
                peer.is(&Party::User(TOKEN_HOLDERS.into()));
            }
            next.run(request).await
        }
        Err(failure) => {
            tracing::debug!(
                path = request.uri().path(),
                "a request of a page was refused"
            );
            failure.into_response()
        }
    }
}

/// Query of `/login`.
#[derive(serde::Deserialize)]
struct Login {
    #[serde(default)]
    token: String,
}

/// Stores the token of the address in a cookie, and redirects to the page without the token.
async fn login(State(guard): State<Arc<Guard>>, Query(login): Query<Login>) -> Response {
    if !guard.token.is(&login.token) {
        return (
            StatusCode::UNAUTHORIZED,
            "This is not the page's token. `floe open` knows it.\n",
        )
            .into_response();
    }
    let cookie = format!(
        "{}={}; Path=/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Strict",
        guard.cookie,
        guard.token.text()
    );
    (
        StatusCode::SEE_OTHER,
        [
            (header::SET_COOKIE, cookie.as_str()),
            (header::LOCATION, "/"),
            (header::CACHE_CONTROL, "no-store"),
            (header::REFERRER_POLICY, "no-referrer"),
        ],
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, http};
    use tower::ServiceExt;

    const TOKEN: &str = "0123456789abcdef";

    fn app(listen: &str) -> Router {
        let token = Token::chosen(TOKEN).unwrap();
        let guard = Arc::new(Guard::new(listen.parse().unwrap(), token));
        let files = Router::new().route("/", get(async || "page"));
        let interface = Router::new()
            .route("/v1/node", get(async || "node"))
            .route("/metrics", get(async || "figures"))
            .fallback(async || "no such path");
        guarded(guard, files, interface)
    }

    async fn ask(listen: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut request = http::Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        app(listen)
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap()
    }

    const HERE: &str = "127.0.0.1:7070";
    const COOKIE: (&str, &str) = ("cookie", "a=b; floe_7070=0123456789abcdef");

    #[tokio::test]
    async fn the_token_becomes_a_cookie_that_no_script_and_no_other_site_can_use() {
        let answer = ask(HERE, &format!("/login?token={TOKEN}"), &[("host", HERE)]).await;
        assert_eq!(answer.status(), StatusCode::SEE_OTHER);
        let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
        assert!(
            cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
            "{cookie}"
        );
        assert_eq!(answer.headers()[header::LOCATION], "/");
        let wrong = ask(HERE, "/login?token=wrong", &[("host", HERE)]).await;
        assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
        assert!(!wrong.headers().contains_key(header::SET_COOKIE));
    }

    #[tokio::test]
    async fn without_the_token_nothing_is_told_but_how_to_get_in() {
        for path in ["/v1/node", "/metrics", "/any", "//v1/node"] {
            let answer = ask(HERE, path, &[("host", HERE)]).await;
            assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
            for cookie in ["floe_7070=wrong", "floe_1=0123456789abcdef", "floe_7070"] {
                let answer = ask(HERE, path, &[("host", HERE), ("cookie", cookie)]).await;
                assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{cookie}");
            }
            assert_eq!(
                ask(HERE, path, &[("host", HERE), COOKIE]).await.status(),
                StatusCode::OK
            );
            let bearer = ("authorization", "Bearer 0123456789abcdef");
            assert_eq!(
                ask(HERE, path, &[("host", HERE), bearer]).await.status(),
                StatusCode::OK
            );
        }
        assert_eq!(
            ask(HERE, "/", &[("host", HERE)]).await.status(),
            StatusCode::OK
        );
    }

    #[tokio::test]
    async fn a_name_that_was_rebound_to_this_host_gets_nothing() {
        for host in [
            "evil.example",
            "evil.example:7070",
            "127.0.0.1:7071",
            "localhost.evil:7070",
            "10.0.0.1:7070",
            "",
        ] {
            for path in ["/", "/v1/node", "/login?token=0123456789abcdef"] {
                let answer = ask(HERE, path, &[("host", host), COOKIE]).await;
                assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{host} {path}");
            }
        }
        for host in [
            "localhost:7070",
            "127.0.0.1:7070",
            "[::1]:7070",
            "LOCALHOST:7070",
        ] {
            assert_eq!(
                ask(HERE, "/v1/node", &[("host", host), COOKIE])
                    .await
                    .status(),
                StatusCode::OK
            );
        }
        // on the network, any address of the host is accepted, but no name
        let wide = "0.0.0.0:7070";
        let there = [("host", "192.0.2.1:7070"), COOKIE];
        assert_eq!(ask(wide, "/v1/node", &there).await.status(), StatusCode::OK);
        let named = [("host", "evil.example:7070"), COOKIE];
        assert_eq!(
            ask(wide, "/v1/node", &named).await.status(),
            StatusCode::FORBIDDEN
        );
    }

    #[tokio::test]
    async fn another_web_page_can_do_nothing_even_with_the_users_cookie() {
        for foreign in [
            ("origin", "http://evil.example"),
            ("origin", "http://127.0.0.1:8080"),
            ("origin", "https://127.0.0.1:7070"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            let answer = ask(HERE, "/v1/node", &[("host", HERE), COOKIE, foreign]).await;
            assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{foreign:?}");
        }
        let own = ("origin", "http://127.0.0.1:7070");
        let site = ("sec-fetch-site", "same-origin");
        assert_eq!(
            ask(HERE, "/v1/node", &[("host", HERE), COOKIE, own, site])
                .await
                .status(),
            StatusCode::OK
        );
    }

    #[test]
    fn authorities_are_taken_apart() {
        assert_eq!(split_authority("a:1"), ("a", Some(1)));
        assert_eq!(split_authority("a"), ("a", None));
        assert_eq!(split_authority("[::1]:80"), ("::1", Some(80)));
        assert_eq!(split_authority("[::1]"), ("::1", None));
        assert_eq!(split_authority("a:b"), ("a", Some(0)));
        assert_eq!(split_authority("[::1]x"), ("::1", Some(0)));
        assert_eq!(split_authority("a:99999"), ("a", Some(0)));
    }
}
