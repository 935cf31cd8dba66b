//! Who sends a request: a bearer token becomes a user name, or a refusal.

use super::Anonymous;
use super::bearer::token_of;
use super::error::{ApiError, ApiResult};
use super::state::{Hub, apart};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use floe_front::{Party, Peer};
use floe_image::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How old the list of tokens in memory may be before the catalogue is asked for changes by other processes.
const TOKENS_CHECKED: Duration = Duration::from_secs(1);
/// The same for an unknown token: it may have been created just now.
const UNKNOWN_CHECKED: Duration = Duration::from_millis(50);

/// The sender of a request; without a user, a stranger.
#[derive(Clone, Debug)]
pub(crate) struct Viewer {
    name: Option<Arc<str>>,
    party: Party,
}

impl Viewer {
    /// Returns the user's name; `None` for a stranger.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the user's name, or the refusal for a stranger.
    pub fn user(&self) -> ApiResult<&str> {
        self.name()
            .ok_or_else(|| ApiError::unauthorized("this needs a token"))
    }

    /// Returns the party (user or address) with which the request shares resources.
    pub fn party(&self) -> &Party {
        &self.party
    }
}

impl FromRequestParts<Arc<Hub>> for Viewer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> ApiResult<Viewer> {
        if let Some(Asked(known)) = parts.extensions.get::<Asked>() {
            return known.clone();
        }
        let peer = parts.extensions.get::<Peer>().cloned();
        let strangers = peer
            .as_ref()
            .map_or_else(|| Party::at(IpAddr::from([0, 0, 0, 0])), Peer::party);
        let name = match who(parts, hub, &strangers).await {
            Ok(name) => name,
            Err(refused) => {
                parts.extensions.insert(Asked(Err(refused.clone())));
                return Err(refused);
            }
        };
        let party = match &name {
            Some(name) => Party::User(name.clone()),
            None => strangers,
        };
        if let Some(peer) = peer.filter(|_| party.is_user()) {
            peer.is(&party);
        }
        let viewer = Viewer { name, party };
        parts.extensions.insert(Asked(Ok(viewer.clone())));
        Ok(viewer)
    }
}

/// The sender of a request, kept in the request's extensions so that it is determined once.
#[derive(Clone)]
struct Asked(ApiResult<Viewer>);

/// Discards what is known about a request's sender, because its token has changed.
pub(crate) fn ask_again(parts: &mut Parts) {
    parts.extensions.remove::<Asked>();
}

/// Makes strangers' requests wait for their turn before they are routed, whatever they ask for, because a flood of cheap
/// requests is costly as a whole. Users' requests pass; their work waits for its turn where it is done.
pub(crate) async fn admit(State(hub): State<Arc<Hub>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let viewer = Viewer::from_request_parts(&mut parts, &hub).await;
    let strangers = match viewer {
        Ok(viewer) => viewer.party,
        Err(_) => parts
            .extensions
            .get::<Peer>()
            .map_or_else(|| Party::at(IpAddr::from([0, 0, 0, 0])), Peer::party),
    };
    if !strangers.is_user() {
        match hub.gate.enter(&strangers).await {
            Some(turn) => drop(turn),
            None => return ApiError::busy("too much is asked from this address").into_response(),
        }
    }
    next.run(Request::from_parts(parts, body)).await
}

/// Brings the list of tokens up to date if it is older than `age`, else waits until it is that old, so that the catalogue is
/// not asked more often.
async fn refresh(hub: &Arc<Hub>, age: Duration, asked: Instant) -> ApiResult<()> {
    let mut checked = hub.tokens.checked.lock().await;
    let version = match *checked {
        // another request asked the catalogue after this request arrived
        Some((at, _)) if at >= asked => return Ok(()),
        Some((at, version)) => {
            tokio::time::sleep(age.saturating_sub(at.elapsed())).await;
            Some(version)
        }
        None => None,
    };
    let now = Instant::now();
    let (found, tokens) = apart(hub, move |hub| Ok(hub.catalogue.tokens_since(version)?)).await?;
    if let Some(tokens) = tokens {
        *hub.tokens.known.write() = tokens;
    }
    *checked = Some((now, found));
    Ok(())
}

/// Returns the user of a token. Answers from memory, except for one request a second and for unknown tokens.
async fn look_up(hub: &Arc<Hub>, hashed: &Hash) -> ApiResult<Option<Arc<str>>> {
    let asked = Instant::now();
    let fresh = match hub.tokens.checked.try_lock() {
        Ok(checked) => checked.is_some_and(|(at, _)| at.elapsed() < TOKENS_CHECKED),
        // another request is asking the catalogue now
        Err(_) => true,
    };
    if !fresh {
        refresh(hub, Duration::ZERO, asked).await?;
    }
    if let Some(user) = hub.tokens.user(hashed) {
        return Ok(Some(user));
    }
    refresh(hub, UNKNOWN_CHECKED, asked).await?;
    Ok(hub.tokens.user(hashed))
}

/// Returns the user who sent the request; `None` for a stranger.
async fn who(parts: &Parts, hub: &Arc<Hub>, strangers: &Party) -> ApiResult<Option<Arc<str>>> {
    let Some(token) = token_of(parts)? else {
        return match hub.anonymous {
            Anonymous::Denied => Err(ApiError::unauthorized("this hub answers only with a token")),
            Anonymous::ReadPublic => Ok(None),
        };
    };
    let hashed = Hash::of(token.as_bytes());
    if let Some(user) = look_up(hub, &hashed).await? {
        return Ok(Some(user));
    }
    metrics::counter!(floe_front::telemetry::HUB_WRONG_TOKENS).increment(1);
    let Party::Address(address) = strangers else {
        return Err(ApiError::unauthorized("the token is unknown"));
    };
    if hub
        .tokens
        .count_wrong(*address, hub.limits.wrong_tokens_per_minute)
    {
        return Err(ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-wrong-tokens",
            "too many wrong tokens from this address",
            "use the right token, which is good at once",
        ));
    }
    Err(ApiError::unauthorized(
        "the token is unknown or was revoked",
    ))
}
