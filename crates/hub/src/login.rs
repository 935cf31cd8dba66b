//! `/login?token=...`: stores a token as the cookie of a browser, which then need not show it.

use super::access::{Viewer, ask_again};
use super::bearer::cookie_name;
use super::error::ApiError;
use super::state::Hub;
use axum::extract::{FromRequestParts, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use floe_api::credentials::check_token;
use std::sync::Arc;

/// How long a browser stays logged in, in seconds: a month.
const COOKIE_S: u64 = 30 * 24 * 3600;

/// Query of `/login`.
#[derive(serde::Deserialize)]
pub(crate) struct Login {
    #[serde(default)]
    token: String,
}

/// Stores the token of the address in a cookie, and redirects to the page without the token.
pub(crate) async fn login(
    State(hub): State<Arc<Hub>>,
    Query(login): Query<Login>,
    request: Request,
) -> Response {
    let (mut parts, _) = request.into_parts();
    let token = login.token;
    // check the token, and count wrong ones, as for all requests
    let bearer = check_token(&token).ok().map(|()| format!("Bearer {token}"));
    let Some(Ok(bearer)) = bearer.map(HeaderValue::try_from) else {
        return ApiError::unauthorized("this is no token").into_response();
    };
    let cookie = cookie_name(&parts);
    parts.headers.insert(header::AUTHORIZATION, bearer);
    ask_again(&mut parts);
    if let Err(error) = Viewer::from_request_parts(&mut parts, &hub).await {
        return error.into_response();
    }
    let cookie = format!("{cookie}={token}; Path=/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Strict");
    let head = [
        (header::SET_COOKIE, cookie.as_str()),
        (header::LOCATION, "/"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (StatusCode::SEE_OTHER, head).into_response()
}
