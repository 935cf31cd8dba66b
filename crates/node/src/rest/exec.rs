//! Processes in guests: a request to start one, whose connection then carries its streams. Of a machine that is lent, its borrower does
//! that, and this node carries the streams; so it is with a clone that runs on another node.

use super::answer::{Failure, Input, Path, blocking};
use crate::Node;
use axum::{
    extract::{FromRequest, Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use floe_api::{ApiError, EXEC_PROTOCOL, ExecRequest};
use floe_inputs::Look;
use floe_machines::agents::Process;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tokio::net::UnixStream;

/// Where a process runs.
enum Runs {
    Here(Process),
    /// With the machine's borrower, or on the clone's host: its streams.
    There(std::os::unix::net::UnixStream),
}

/// Starts a process in the machine's guest. The connection is switched to the protocol `floe-exec`: frames with the process's input,
/// output and end (docs/guest.md). Of a machine that is lent to another node it is a process there; so
/// it is for a clone that runs on another member of the cluster.
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
    let start = move || {
        let entry = match node.inventory.get(&name) {
            Ok(entry) => entry,
            Err(absent) => {
                let host = node.forks.host_of(&name).ok_or(absent)?;
                let there = node.inputs.start_in_clone(&name, &host, request)?;
                return Ok(Runs::There(there));
            }
        };
        let there = Look::Process(Box::new(request.clone()));
        Ok(match node.inputs.look(&entry, there)? {
            Some(there) => Runs::There(there),
            None => Runs::Here(node.agents.exec(&name, &request)?),
        })
    };
    let process = blocking(start).await?;
    tokio::spawn(async move {
        // without it the user has gone, and dropping the process leaves it to itself
        let Ok(user) = upgrade.await else { return };
        let user = TokioIo::new(user);
        match process {
            Runs::Here(process) => process.relay(user).await,
            Runs::There(there) => {
                let there = there.set_nonblocking(true).map(|()| there);
                match there.and_then(UnixStream::from_std) {
                    Ok(there) => floe_http::carry(user, there).await,
                    Err(error) => tracing::warn!(%error, "a process's streams are not carried"),
                }
            }
        }
    });
    Ok((StatusCode::SWITCHING_PROTOCOLS, switching).into_response())
}
