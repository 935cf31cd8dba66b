//! Who asks: a bearer token becomes a user name, or a refusal.

use super::Anonymous;
use super::error::{ApiError, ApiResult};
use super::listener::Peer;
use super::login;
use super::state::{Hub, blocking};
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use floe_image::Hash;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a token is believed without asking the catalogue again: a revoked one ends after that time.
const TOKEN_BELIEVED: Duration = Duration::from_secs(5);
/// Tokens and addresses that are remembered at most; beyond it, all are forgotten.
const REMEMBERED_MAX: usize = 16 * 1024;
/// The window in which wrong tokens are counted.
const WRONG_TOKEN_WINDOW: Duration = Duration::from_secs(60);

/// Who asks; `None` is anybody.
#[derive(Clone, Debug)]
pub(crate) struct Viewer(Option<Arc<str>>);

impl Viewer {
    /// The user's name.
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// The user's name, for what needs one.
    pub fn user(&self) -> ApiResult<&str> {
        self.name()
            .ok_or_else(|| ApiError::unauthorized("this needs a token"))
    }
}

/// Tokens seen lately and wrong ones counted.
#[derive(Default)]
pub(crate) struct Tokens {
    /// By the token's hash, so that neither timing nor a memory dump shows tokens.
    known: Mutex<HashMap<Hash, (Arc<str>, Instant)>>,
    wrong: Mutex<HashMap<IpAddr, (u32, Instant)>>,
}

impl Tokens {
    fn known(&self, hashed: &Hash) -> Option<Arc<str>> {
        let known = self.known.lock();
        let (user, since) = known.get(hashed)?;
        (since.elapsed() < TOKEN_BELIEVED).then(|| user.clone())
    }

    fn learn(&self, hashed: Hash, user: Arc<str>) {
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(hashed, (user, Instant::now()));
    }

    fn too_many_wrong(&self, address: IpAddr, max: u32) -> bool {
        let wrong = self.wrong.lock();
        wrong
            .get(&address)
            .is_some_and(|(count, since)| *count >= max && since.elapsed() < WRONG_TOKEN_WINDOW)
    }

    fn count_wrong(&self, address: IpAddr) {
        let mut wrong = self.wrong.lock();
        if wrong.len() >= REMEMBERED_MAX {
            wrong.retain(|_, (_, since)| since.elapsed() < WRONG_TOKEN_WINDOW);
        }
        let (count, since) = wrong.entry(address).or_insert((0, Instant::now()));
        if since.elapsed() >= WRONG_TOKEN_WINDOW {
            (*count, *since) = (0, Instant::now());
        }
        *count += 1;
    }
}

impl FromRequestParts<Arc<Hub>> for Viewer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> ApiResult<Viewer> {
        let Some(token) = login::token_of(parts)? else {
            return match hub.anonymous {
                Anonymous::Denied => {
                    Err(ApiError::unauthorized("this hub answers only with a token"))
                }
                Anonymous::ReadPublic => Ok(Viewer(None)),
            };
        };
        let hashed = Hash::of(token.as_bytes());
        if let Some(user) = hub.tokens.known(&hashed) {
            return Ok(Viewer(Some(user)));
        }
        let address = parts.extensions.get::<Peer>().map(|peer| peer.0.ip());
        if address.is_some_and(|address| {
            hub.tokens
                .too_many_wrong(address, hub.limits.wrong_tokens_per_minute)
        }) {
            return Err(ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too-many-wrong-tokens",
                "too many wrong tokens from this address",
                "wait a minute, then use the right token",
            ));
        }
        match blocking(hub, move |hub| Ok(hub.catalogue.token_user(&hashed)?)).await? {
            Some(user) => {
                let user: Arc<str> = user.into();
                hub.tokens.learn(hashed, user.clone());
                Ok(Viewer(Some(user)))
            }
            None => {
                metrics::counter!(crate::telemetry::HUB_WRONG_TOKENS).increment(1);
                if let Some(address) = address {
                    hub.tokens.count_wrong(address);
                }
                Err(ApiError::unauthorized(
                    "the token is unknown or was revoked",
                ))
            }
        }
    }
}
