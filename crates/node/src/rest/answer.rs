//! Converts the node's results to HTTP: JSON, errors in one form, and streams of events that notice when the client hangs up.

use crate::Node;
use axum::{
    Json,
    body::Body,
    extract::{FromRequest, FromRequestParts, Request},
    http::{HeaderValue, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use floe_api::{ApiError, ErrorCode, Outcome};
use floe_ground::{error::NodeError, failure::status, report::Report};
use floe_transfer::Cancel;
use futures::StreamExt;
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;
use tokio_stream::wrappers::UnboundedReceiverStream;

pub use floe_ground::failure::{Failure, blocking};

/// Adds to each operation's description the errors that its kind of operation may answer, unless it describes them itself.
pub struct Failures;

impl utoipa::Modify for Failures {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
        const READING: [(ErrorCode, &str); 3] = [
            (ErrorCode::NotFound, "There is no such thing"),
            (ErrorCode::Usage, "The request itself is wrong"),
            (ErrorCode::Failed, "The node or its host failed"),
        ];
        const CHANGING: [(ErrorCode, &str); 3] = [
            (
                ErrorCode::Busy,
                "Another operation on the same thing is under way, or the name is taken",
            ),
            (
                ErrorCode::Refused,
                "It can't be done on this host, or to this thing as it is",
            ),
            (
                ErrorCode::Unreachable,
                "A source, a hub or another node can't be reached",
            ),
        ];
        for item in description.paths.paths.values_mut() {
            let reads = [&mut item.get].into_iter().map(|slot| (slot, false));
            let changes = [&mut item.post, &mut item.put, &mut item.delete];
            let changes = changes.into_iter().map(|slot| (slot, true));
            for (operation, changes) in reads.chain(changes) {
                let Some(operation) = operation else { continue };
                let asks = operation.parameters.is_some() || operation.request_body.is_some();
                let kinds = READING[if asks { 0 } else { 2 }..].iter();
                for (code, text) in kinds.chain(&CHANGING[..if changes { 3 } else { 0 }]) {
                    let body = ContentBuilder::new()
                        .schema(Some(Ref::from_schema_name("ApiError")))
                        .build();
                    let response = ResponseBuilder::new()
                        .description(*text)
                        .content("application/json", body);
                    let status = status(*code).as_str().to_owned();
                    let responses = &mut operation.responses.responses;
                    responses
                        .entry(status)
                        .or_insert_with(|| response.build().into());
                }
            }
        }
    }
}

fn usage(message: String) -> Failure {
    Failure(ApiError {
        code: ErrorCode::Usage,
        message,
        fix: "see docs/openapi-node.json".into(),
    })
}

/// A request's JSON body; an empty body is read as `null`.
pub struct Input<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Input<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|error| usage(error.to_string()))?;
        let bytes = if bytes.is_empty() {
            Bytes::from_static(b"null")
        } else {
            bytes
        };
        serde_json::from_slice(&bytes)
            .map(Input)
            .map_err(|error| usage(format!("the request's body: {error}")))
    }
}

/// A request's query string.
pub struct Args<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Args<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|axum::extract::Query(args)| Args(args))
            .map_err(|error| usage(error.body_text()))
    }
}

/// The parts of a request's path that the route names.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        axum::extract::Path::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(named)| Path(named))
            .map_err(|error| usage(error.body_text()))
    }
}

/// Runs a short call on a thread where it may block; returns its result as JSON.
pub async fn answer<T: Serialize + Send + 'static>(
    call: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<Json<T>, Failure> {
    blocking(call).await.map(Json)
}

/// Throws the switch when the answer's body is dropped: because it is complete, or because the client has gone.
struct HangUp(Cancel);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs a long call on a thread of its own and streams its events.
pub fn stream(
    node: Arc<Node>,
    what: &'static str,
    call: impl FnOnce(&Arc<Node>, &mut Report) -> Result<Outcome, NodeError> + Send + 'static,
) -> Response {
    let (mut report, events) = Report::new();
    let hang_up = HangUp(report.cancel());
    let job = node.core.job(report.cancel());
    let started = floe_threads::spawn(what, move || {
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call(&node, &mut report)));
        let result = result.unwrap_or_else(|_| {
            Err(floe_ground::error::failed(
                "the node made a mistake",
                "see its log, and report it",
            ))
        });
        if let Err(error) = &result {
            tracing::info!(call = what, %error, "call failed");
        }
        report.finish(result);
        drop(job);
    });
    if let Err(error) = started {
        return Failure(ApiError {
            code: ErrorCode::Failed,
            message: error.to_string(),
            fix: "raise the limit of processes".into(),
        })
        .into_response();
    }
    let lines = UnboundedReceiverStream::new(events).map(move |event| {
        let _held = &hang_up;
        line(&event)
    });
    ndjson(Body::from_stream(lines))
}

/// Returns one event as a line.
pub fn line(event: &impl Serialize) -> Result<Bytes, std::io::Error> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line.into())
}

/// Returns an answer of such lines.
pub fn ndjson(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    response
}

/// Answers methods that a path does not have.
pub async fn no_such_method(method: axum::http::Method, uri: Uri) -> Response {
    let error = ApiError {
        code: ErrorCode::Usage,
        message: format!("{method} does nothing at {}", uri.path()),
        fix: "see docs/openapi-node.json".into(),
    };
    (StatusCode::METHOD_NOT_ALLOWED, Json(error)).into_response()
}

/// Answers paths that the interface does not have.
pub async fn no_such_path(uri: Uri) -> Failure {
    Failure(ApiError {
        code: ErrorCode::NotFound,
        message: format!("{} is no path of the node's interface", uri.path()),
        fix: "see docs/openapi-node.json; client and node should have the same version".into(),
    })
}
