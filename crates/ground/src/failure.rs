//! What a request gets whose call fails, and calls on threads where they may block.

use crate::error::NodeError;
use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use floe_api::{ApiError, ErrorCode};

/// An error as an HTTP answer.
pub struct Failure(pub ApiError);

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Failure {
        Failure(error.to_api())
    }
}

/// Returns the status with which an error of this kind is answered.
pub fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::Usage => StatusCode::BAD_REQUEST,
        ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::Busy => StatusCode::CONFLICT,
        ErrorCode::Unreachable => StatusCode::BAD_GATEWAY,
        ErrorCode::Refused => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorCode::Cancelled | ErrorCode::Failed => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (status(self.0.code), Json(self.0)).into_response()
    }
}

/// Runs a short call on a thread where it may block.
pub async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result.map_err(Failure::from),
        Err(error) => {
            tracing::error!(%error, "a call panicked");
            Err(Failure(ApiError {
                code: ErrorCode::Failed,
                message: "the node made a mistake".into(),
                fix: "see its log, and report it".into(),
            }))
        }
    }
}
