//! Parses requests: ids, names and bodies, all of bounded size.

use super::access::Viewer;
use super::error::{ApiError, ApiResult};
use super::state::Hub;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::{HeaderMap, StatusCode, header, request::Parts};
use bytes::{Bytes, BytesMut};
use floe_front::{Held, TooSlow};
use floe_image::{Hash, ImageName};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

/// The parts of a request's path that the route names.
pub(crate) struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        axum::extract::Path::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(named)| Path(named))
            .map_err(|error| ApiError::bad(error.body_text(), SEE))
    }
}

/// A request's query string.
pub(crate) struct Args<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Args<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<Self> {
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|axum::extract::Query(args)| Args(args))
            .map_err(|error| ApiError::bad(error.body_text(), SEE))
    }
}

/// Where a client finds how to put a request.
const SEE: &str = "see /v1/openapi.json";

/// Bytes that are allocated before a body arrives, whatever its length claims to be.
const BODY_FIRST_BYTES_MAX: u64 = 64 << 10;

/// Parses an image or pack id in a path. Anything else is answered like an unknown id.
pub(crate) fn parse_id(text: &str) -> ApiResult<Hash> {
    text.parse().map_err(|error: floe_image::ParseHashError| {
        ApiError::new(
            StatusCode::NOT_FOUND,
            "not-found",
            error.to_string(),
            "give the full id, or ask /v1/resolve for a name's",
        )
    })
}

/// Parses an image name.
pub(crate) fn parse_name(text: &str) -> ApiResult<ImageName> {
    ImageName::parse(text).map_err(|error| ApiError::bad(error.to_string(), "use NAME or NAME:TAG"))
}

/// Bytes whose memory is counted for a party until they are dropped.
struct Counted {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Counts the memory that an answer takes until its reader has taken it.
pub(crate) fn counted(hub: &Hub, viewer: &Viewer, bytes: impl Into<Bytes>) -> ApiResult<Bytes> {
    let bytes = bytes.into();
    let mut held = hub.memory.hold(viewer.party());
    if !held.grow(bytes.len() as u64) {
        return Err(ApiError::busy(
            "answers that nobody has taken yet are in the way",
        ));
    }
    Ok(Bytes::from_owner(Counted { bytes, _held: held }))
}

/// Reads a whole body of at most `max` bytes, counted for the sender. The connection makes sure that the bytes keep
/// coming.
pub(crate) async fn collect_body(
    hub: &Hub,
    viewer: &Viewer,
    mut body: Body,
    headers: &HeaderMap,
    what: &str,
    max: u64,
) -> ApiResult<Bytes> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > max) {
        return Err(ApiError::too_large(what, max));
    }
    let mut held = hub.memory.hold(viewer.party());
    let mut first: Option<Bytes> = None;
    let mut whole = BytesMut::new();
    loop {
        let Some(frame) = body.frame().await else {
            break;
        };
        let frame = frame.map_err(|error| cut_off(what, error))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let so_far = first.as_ref().map_or(whole.len(), Bytes::len);
        if (so_far + data.len()) as u64 > max {
            return Err(ApiError::too_large(what, max));
        }
        if !held.grow(data.len() as u64) {
            return Err(ApiError::busy("too many bodies are under way"));
        }
        match first.take() {
            // A small body arrives in one piece and is not copied.
            None if whole.is_empty() => first = Some(data),
            piece => {
                if whole.is_empty() {
                    whole.reserve(announced.unwrap_or(0).min(BODY_FIRST_BYTES_MAX) as usize);
                }
                whole.extend_from_slice(&piece.unwrap_or_default());
                whole.extend_from_slice(&data);
            }
        }
    }
    let bytes = first.unwrap_or_else(|| whole.freeze());
    Ok(Bytes::from_owner(Counted { bytes, _held: held }))
}

fn cut_off(what: &str, error: axum::Error) -> ApiError {
    let error = error.into_inner();
    if let Some(slow) = error.downcast_ref::<TooSlow>() {
        return ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            format!("{what}: {slow}"),
            "check the connection and send it again",
        );
    }
    ApiError::bad(format!("{what} was cut off: {error}"), "send it again")
}

/// Parses a JSON body.
pub(crate) async fn json<T: DeserializeOwned>(
    hub: &Hub,
    viewer: &Viewer,
    body: Body,
    headers: &HeaderMap,
) -> ApiResult<T> {
    let max = super::JSON_BYTES_MAX as u64;
    let bytes = collect_body(hub, viewer, body, headers, "the JSON body", max).await?;
    serde_json::from_slice(&bytes).map_err(|e| {
        ApiError::bad(
            format!("the body is not the JSON that is expected: {e}"),
            "see /v1/openapi.json",
        )
    })
}
