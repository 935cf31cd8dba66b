//! Finds the token of a request: a program sends it in a header, a browser as the cookie that `/login?token=...` sets.
//!
//! A browser sends cookies with requests of any page that it shows. So the cookie is SameSite=Strict and HttpOnly, it only
//! permits reading, and a request that the browser marks as made by another site's page is treated as one without a cookie.

use super::error::{ApiError, ApiResult};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, header};
use floe_api::credentials::{TOKEN_CHARACTERS_MAX, check_token};

/// The header in which a browser says which page made a request.
const FETCH_SITE: &str = "sec-fetch-site";

/// Returns the token of a request; `None` for an anonymous request.
pub(crate) fn token_of(parts: &Parts) -> ApiResult<Option<String>> {
    let Some(value) = parts.headers.get(header::AUTHORIZATION) else {
        return Ok(cookie_of(parts));
    };
    let token = value.to_str().ok().and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let token = token.filter(|token| (1..=TOKEN_CHARACTERS_MAX).contains(&token.len()));
    token
        .map(|token| Some(token.to_owned()))
        .ok_or_else(|| ApiError::unauthorized("the Authorization header is not `Bearer TOKEN`"))
}

/// Returns the request's host as the browser names it. Cookies don't distinguish ports, so the port is part of the
/// cookie's name.
fn host(parts: &Parts) -> Option<&str> {
    let named = parts.headers.get(header::HOST);
    let named = named.and_then(|host| host.to_str().ok());
    named.or_else(|| parts.uri.authority().map(|authority| authority.as_str()))
}

/// Returns the name of the cookie that has the token of this port's hub.
pub(super) fn cookie_name(parts: &Parts) -> String {
    let port = host(parts).and_then(|host| host.rsplit_once(':'));
    let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
    format!("floe_hub_{}", port.unwrap_or_default())
}

fn cookie_of(parts: &Parts) -> Option<String> {
    let reads = matches!(parts.method, Method::GET | Method::HEAD);
    if !reads || !from_own_page(parts) {
        return None;
    }
    let name = cookie_name(parts);
    let cookies = parts.headers.get_all(header::COOKIE).iter();
    cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(';'))
        .filter_map(|one| one.trim().split_once('='))
        .find(|(found, _)| *found == name)
        .map(|(_, token)| token.to_owned())
        .filter(|token| check_token(token).is_ok())
}

fn from_own_page(parts: &Parts) -> bool {
    let own = match parts.headers.get(header::ORIGIN) {
        None => true,
        // an origin that can't be parsed counts as another site
        Some(origin) => {
            let origin = origin.to_str().ok().and_then(|text| text.split_once("://"));
            origin.is_some_and(|(_, at)| host(parts).is_some_and(|host| host == at))
        }
    };
    let site = parts.headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
    own && matches!(site, None | Some(b"same-origin" | b"none"))
}
