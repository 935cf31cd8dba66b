//! Machines.

use super::answer::{Args, Failure, Input, Path, answer, blocking, stream};
use crate::Node;
use axum::{
    Json,
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use floe_api::*;
use floe_ground::{caller::Caller, error::at, logs};
use floe_inputs::Look;
use std::sync::Arc;
use tokio::net::UnixStream;

type Floe = State<Arc<Node>>;

/// All machines.
#[utoipa::path(get, path = "/v1/machines", tag = "machines", responses((status = 200, body = MachineList)))]
pub async fn list(State(node): Floe) -> Result<Json<MachineList>, Failure> {
    answer(move || Ok(node.machines.list_machines())).await
}

/// Creates a machine from an image and starts it.
#[utoipa::path(post, path = "/v1/machines", tag = "machines", request_body = RunRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn run(State(node): Floe, caller: Caller, Input(request): Input<RunRequest>) -> Response {
    stream(node, "run", move |node, report| {
        let request = node.pool.visible_image(request, &caller)?;
        node.runs.run(&request, report)
    })
}

/// One machine.
#[utoipa::path(get, path = "/v1/machines/{name}", tag = "machines", params(("name" = String, Path)),
    responses((status = 200, body = MachineInfo), (status = 404, body = ApiError)))]
pub async fn inspect(
    State(node): Floe,
    Path(name): Path<String>,
) -> Result<Json<MachineInfo>, Failure> {
    answer(move || node.machines.inspect_machine(&name)).await
}

/// Removes a machine with its disks.
#[utoipa::path(delete, path = "/v1/machines/{name}", tag = "machines", params(("name" = String, Path), RemoveMachineQuery),
    responses((status = 200), (status = 409, body = ApiError)))]
pub async fn remove(
    State(node): Floe,
    Path(name): Path<String>,
    Args(query): Args<RemoveMachineQuery>,
) -> Result<Json<()>, Failure> {
    answer(move || node.machines.remove_machine(&name, query.force)).await
}

/// Starts a stopped machine from its disks, or lets a paused or parked one go on.
#[utoipa::path(post, path = "/v1/machines/{name}/start", tag = "machines", params(("name" = String, Path)),
    request_body = StartRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn start(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<StartRequest>,
) -> Response {
    stream(node, "start", move |node, report| {
        match node.inventory.get(&name)?.is_parked() {
            true => node.parks.wake(&name, &request, report),
            false => node.runs.start_machine(&name, &request, report),
        }
    })
}

/// Stops a machine; its disks stay.
#[utoipa::path(post, path = "/v1/machines/{name}/stop", tag = "machines", params(("name" = String, Path)),
    request_body = StopRequest, responses((status = 200, body = MachineInfo)))]
pub async fn stop(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<StopRequest>,
) -> Result<Json<MachineInfo>, Failure> {
    answer(move || node.machines.stop_machine(&name, &request)).await
}

/// Stops a machine and starts it again from its disks.
#[utoipa::path(post, path = "/v1/machines/{name}/restart", tag = "machines", params(("name" = String, Path)),
    request_body = RestartRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn restart(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<RestartRequest>,
) -> Response {
    stream(node, "restart", move |node, report| {
        node.runs.restart_machine(&name, &request, report)
    })
}

/// Has a machine go back to an image that was captured from it, and go on there. What it has done since is lost.
#[utoipa::path(post, path = "/v1/machines/{name}/rollback", tag = "machines", params(("name" = String, Path)),
    request_body = RollbackRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn rollback(
    State(node): Floe,
    caller: Caller,
    Path(name): Path<String>,
    Input(request): Input<RollbackRequest>,
) -> Response {
    stream(node, "rollback", move |node, report| {
        let request = node.pool.visible_image(request, &caller)?;
        node.parks.rollback(&name, &request, report)
    })
}

/// Gives a machine that runs or is stopped another name.
#[utoipa::path(post, path = "/v1/machines/{name}/rename", tag = "machines", params(("name" = String, Path)),
    request_body = RenameRequest, responses((status = 200, body = MachineInfo)))]
pub async fn rename(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<RenameRequest>,
) -> Result<Json<MachineInfo>, Failure> {
    answer(move || node.rename_machine(&name, &request.name)).await
}

/// A machine's disks.
#[utoipa::path(get, path = "/v1/machines/{name}/disks", tag = "machines", params(("name" = String, Path)),
    responses((status = 200, body = DiskList)))]
pub async fn disks(State(node): Floe, Path(name): Path<String>) -> Result<Json<DiskList>, Failure> {
    answer(move || node.machines.list_disks(&name)).await
}

/// Makes a disk of a machine larger, which runs or is stopped.
#[utoipa::path(post, path = "/v1/machines/{name}/disks", tag = "machines", params(("name" = String, Path)),
    request_body = ResizeRequest, responses((status = 200, body = DiskList)))]
pub async fn resize_disk(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<ResizeRequest>,
) -> Result<Json<DiskList>, Failure> {
    answer(move || node.machines.resize_disk(&name, &request)).await
}

/// Pauses a machine until its user resumes it.
#[utoipa::path(post, path = "/v1/machines/{name}/pause", tag = "machines", params(("name" = String, Path)),
    responses((status = 200, body = MachineInfo)))]
pub async fn pause(
    State(node): Floe,
    Path(name): Path<String>,
) -> Result<Json<MachineInfo>, Failure> {
    answer(move || node.machines.pause_machine(&name)).await
}

/// Ends a user's pause of a machine; `paused_for` says what else it stands still for.
#[utoipa::path(post, path = "/v1/machines/{name}/resume", tag = "machines", params(("name" = String, Path)),
    responses((status = 200, body = MachineInfo)))]
pub async fn resume(
    State(node): Floe,
    Path(name): Path<String>,
) -> Result<Json<MachineInfo>, Failure> {
    answer(move || node.machines.resume_machine(&name)).await
}

/// Parks a machine: its memory is stored and its QEMU ends.
#[utoipa::path(post, path = "/v1/machines/{name}/park", tag = "machines", params(("name" = String, Path), ParkQuery),
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn park(
    State(node): Floe,
    Path(name): Path<String>,
    Args(query): Args<ParkQuery>,
) -> Response {
    stream(node, "park", move |node, report| {
        node.parks.park(&name, &query, report)
    })
}

/// Lets a parked machine go on where it was.
#[utoipa::path(post, path = "/v1/machines/{name}/wake", tag = "machines", params(("name" = String, Path)),
    request_body = StartRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn wake(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<StartRequest>,
) -> Response {
    stream(node, "wake", move |node, report| {
        node.parks.wake(&name, &request, report)
    })
}

/// Captures a machine as an image; the machine goes on.
#[utoipa::path(post, path = "/v1/machines/{name}/capture", tag = "machines", params(("name" = String, Path)),
    request_body = CaptureRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn capture(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<CaptureRequest>,
) -> Response {
    stream(node, "capture", move |node, report| {
        node.captures.capture(&name, &request, report)
    })
}

/// The machine's screen as PNG; of a machine that is lent to another node the screen there.
#[utoipa::path(post, path = "/v1/machines/{name}/screenshot", tag = "machines", params(("name" = String, Path)),
    responses((status = 200, body = Vec<u8>, content_type = "image/png")))]
pub async fn screenshot(State(node): Floe, Path(name): Path<String>) -> Result<Response, Failure> {
    let png = blocking(move || node.inputs.screenshot(&name)).await?;
    Ok(([(header::CONTENT_TYPE, "image/png")], png).into_response())
}

/// Where the machine's console and screen are.
#[utoipa::path(get, path = "/v1/machines/{name}/console", tag = "machines", params(("name" = String, Path)),
    responses((status = 200, body = ConsoleInfo)))]
pub async fn console(
    State(node): Floe,
    Path(name): Path<String>,
) -> Result<Json<ConsoleInfo>, Failure> {
    answer(move || node.machines.console(&name)).await
}

/// What the guest wrote on its console, as far as it is kept (4 to 8 MiB), byte by byte. It may hold anything, including
/// escape sequences for terminals. Of a machine that is lent to another node it is what it wrote there.
#[utoipa::path(get, path = "/v1/machines/{name}/logs", tag = "machines", params(("name" = String, Path), LogQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub async fn logs(
    State(node): Floe,
    Path(name): Path<String>,
    Args(query): Args<LogQuery>,
) -> Result<Response, Failure> {
    let LogQuery { follow, tail_bytes } = query;
    let look = move || {
        let there = Look::Log { tail_bytes, follow };
        let entry = node.inventory.get(&name)?;
        let there = node.inputs.look(&entry, there)?;
        let here = match there {
            Some(_) => None,
            None => Some(node.machines.console_history(&name, tail_bytes)?),
        };
        Ok((here, there))
    };
    let body = match blocking(look).await? {
        (Some(log), _) => Body::from_stream(logs::stream(log, follow)),
        (None, Some(there)) => {
            let there = there.set_nonblocking(true).map(|()| there);
            let there = there.and_then(UnixStream::from_std);
            Body::from_stream(logs::carried(there.map_err(at("no console"))?))
        }
        (None, None) => Body::empty(),
    };
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// Changes how much of its host a machine may use, also while it runs.
#[utoipa::path(post, path = "/v1/machines/{name}/limits", tag = "machines", params(("name" = String, Path)),
    request_body = LimitRequest,
    responses((status = 200, body = MachineInfo), (status = 400, body = ApiError), (status = 404, body = ApiError),
        (status = 422, body = ApiError)))]
pub async fn limit(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<LimitRequest>,
) -> Result<Json<MachineInfo>, Failure> {
    answer(move || node.machines.limit_machine(&name, &request)).await
}

/// Adds or removes a port forward of a running machine.
#[utoipa::path(post, path = "/v1/machines/{name}/forwards", tag = "machines", params(("name" = String, Path)),
    request_body = ForwardRequest, responses((status = 200, body = PortForward)))]
pub async fn forward(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<ForwardRequest>,
) -> Result<Json<PortForward>, Failure> {
    answer(move || node.machines.forward(&name, &request)).await
}

/// How a machine's image streams.
#[utoipa::path(get, path = "/v1/machines/{name}/stream", tag = "machines", params(("name" = String, Path)),
    responses((status = 200, body = StreamInfo), (status = 404, body = ApiError)))]
pub async fn stream_info(
    State(node): Floe,
    Path(name): Path<String>,
) -> Result<Json<StreamInfo>, Failure> {
    answer(move || node.machines.stream_info(&name)).await
}
