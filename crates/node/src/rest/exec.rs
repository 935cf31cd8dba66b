//! Processes in guests: a request to start one, whose connection then carries its streams.

use super::answer::{Failure, Input, Path, blocking};
use crate::Node;
use axum::{
    extract::{FromRequest, Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use floe_api::{ApiError, EXEC_PROTOCOL, ExecRequest};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;

/// Starts a process in the machine's guest. The connection is switched to the protocol `floe-exec`: frames with the process's input,
/// output and end (docs/guest.md).
#[utoipa::path(post, path = "/v1/machines/{name}/exec", tag = "machines", params(("name" = String, Path)),
    request_body = ExecRequest,
    responses((status = 101, description = "the protocol floe-exec"), (status = 400, body = ApiError),
              (status = 404, body = ApiError), (status = 409, body = ApiError), (status = 422, body = ApiError),
              (status = 426, description = "the request does not ask for floe-exec")))]
pub async fn exec(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    mut request: Request,
) -> Result<Response, Failure> {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let wanted = request.headers().get(header::UPGRADE);
    let wanted = wanted.is_some_and(|protocol| protocol == EXEC_PROTOCOL);
    let Input(request) = Input::<ExecRequest>::from_request(request, &()).await?;
    let switching = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL)),
    ];
    let Some(upgrade) = upgrade.filter(|_| wanted) else {
        return Ok((StatusCode::UPGRADE_REQUIRED, switching).into_response());
    };
    let process = blocking(move || node.agents.exec(&name, &request)).await?;
    tokio::spawn(async move {
        // without it the user has gone, and dropping the process leaves it to itself
        if let Ok(user) = upgrade.await {
            process.relay(TokioIo::new(user)).await;
        }
    });
    Ok((StatusCode::SWITCHING_PROTOCOLS, switching).into_response())
}
