//! What a machine has: its size, its network cards and its disks.

use super::answer::{Failure, Input, Path, answer, stream};
use crate::Node;
use axum::{Json, extract::State, response::Response};
use floe_api::*;
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// Changes a machine's CPUs and memory, while it runs or for its next start.
#[utoipa::path(post, path = "/v1/machines/{name}/size", tag = "machines", params(("name" = String, Path)),
    request_body = SizeRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn size(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<SizeRequest>,
) -> Response {
    stream(node, "resize", move |node, report| {
        node.resizes.resize(&name, &request, report)
    })
}

/// Has a running machine's guest tell its disks what it does not use, so that the host gets it back.
#[utoipa::path(post, path = "/v1/machines/{name}/trim", tag = "machines", params(("name" = String, Path)),
    responses((status = 200, body = TrimReport), (status = 404, body = ApiError), (status = 422, body = ApiError)))]
pub async fn trim(
    State(node): Floe,
    Path(name): Path<String>,
) -> Result<Json<TrimReport>, Failure> {
    answer(move || node.trims.trim(&name)).await
}

/// Gives a running machine another network card, on a user network of its own.
#[utoipa::path(post, path = "/v1/machines/{name}/cards", tag = "machines", params(("name" = String, Path)),
    request_body = AttachRequest,
    responses((status = 200, body = AttachedCard), (status = 404, body = ApiError), (status = 422, body = ApiError)))]
pub async fn attach_card(
    State(node): Floe,
    Path(name): Path<String>,
    Input(AttachRequest {}): Input<AttachRequest>,
) -> Result<Json<AttachedCard>, Failure> {
    answer(move || node.resizes.attach_card(&name)).await
}

/// Takes a network card away that a machine was given while it ran, once its guest has let it go.
#[utoipa::path(delete, path = "/v1/machines/{name}/cards/{card}", tag = "machines",
    params(("name" = String, Path), ("card" = String, Path)),
    responses((status = 200), (status = 404, body = ApiError), (status = 422, body = ApiError)))]
pub async fn detach_card(
    State(node): Floe,
    Path((name, card)): Path<(String, String)>,
) -> Result<Json<()>, Failure> {
    answer(move || node.resizes.detach_card(&name, &card)).await
}

/// Gives a machine another disk, while it runs or for its next start.
#[utoipa::path(post, path = "/v1/machines/{name}/disks/{disk}", tag = "machines",
    params(("name" = String, Path), ("disk" = String, Path)), request_body = AttachDiskRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn attach_disk(
    State(node): Floe,
    Path((name, disk)): Path<(String, String)>,
    Input(request): Input<AttachDiskRequest>,
) -> Response {
    stream(node, "attach", move |node, report| {
        node.resizes.attach_disk(&name, &disk, &request, report)
    })
}

/// Takes a disk away from a machine, and what is on it with it: once its guest has let it go if it runs.
#[utoipa::path(delete, path = "/v1/machines/{name}/disks/{disk}", tag = "machines",
    params(("name" = String, Path), ("disk" = String, Path)),
    responses((status = 200), (status = 404, body = ApiError), (status = 422, body = ApiError)))]
pub async fn detach_disk(
    State(node): Floe,
    Path((name, disk)): Path<(String, String)>,
) -> Result<Json<()>, Failure> {
    answer(move || node.resizes.detach_disk(&name, &disk)).await
}
