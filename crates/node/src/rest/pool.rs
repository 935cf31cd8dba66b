//! Substrates and the pool.

use super::{
    answer::{Failure, Input, Path, answer, stream},
    forks::By,
};
use crate::Node;
use axum::{Extension, Json, extract::State, response::Response};
use floe_api::*;
use floe_ground::caller::Caller;
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// Docks a machine as a substrate; the machine goes on.
#[utoipa::path(post, path = "/v1/machines/{name}/dock", tag = "pool", params(("name" = String, Path)),
    request_body = DockRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn dock(
    State(node): Floe,
    caller: Caller,
    Path(name): Path<String>,
    Input(request): Input<DockRequest>,
) -> Response {
    stream(node, "dock", move |node, report| {
        node.pool.dock_machine(&name, &request, &caller, report)
    })
}

/// How full the pool is.
#[utoipa::path(get, path = "/v1/pool", tag = "pool", responses((status = 200, body = PoolStatus)))]
pub async fn status(State(node): Floe, caller: Caller) -> Result<Json<PoolStatus>, Failure> {
    answer(move || Ok(node.pool.status(&caller))).await
}

/// Changes how much memory substrates may take.
#[utoipa::path(post, path = "/v1/pool/resize", tag = "pool", request_body = PoolResizeRequest,
    responses((status = 200, body = PoolStatus)))]
pub async fn resize(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<PoolResizeRequest>,
) -> Result<Json<PoolStatus>, Failure> {
    answer(move || node.pool.resize(&request, &caller)).await
}

/// Reads and hashes the backups of substrates.
#[utoipa::path(post, path = "/v1/pool/verify", tag = "pool", request_body = PoolVerifyRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn verify(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<PoolVerifyRequest>,
) -> Response {
    stream(node, "verify", move |node, report| {
        node.pool.verify(&request, &caller, report)
    })
}

/// The substrates that the caller may see, by name.
#[utoipa::path(get, path = "/v1/pool/substrates", tag = "pool", responses((status = 200, body = SubstrateList)))]
pub async fn list(State(node): Floe, caller: Caller) -> Result<Json<SubstrateList>, Failure> {
    answer(move || Ok(node.pool.substrates(&caller))).await
}

/// One substrate. One that the caller may not see does not exist.
#[utoipa::path(get, path = "/v1/pool/substrates/{name}", tag = "pool", params(("name" = String, Path)),
    responses((status = 200, body = SubstrateInfo), (status = 404, body = ApiError)))]
pub async fn inspect(
    State(node): Floe,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<SubstrateInfo>, Failure> {
    answer(move || node.pool.substrate(&name, &caller)).await
}

/// Removes a substrate with its backup.
#[utoipa::path(delete, path = "/v1/pool/substrates/{name}", tag = "pool", params(("name" = String, Path)),
    responses((status = 200, body = FreedReport), (status = 404, body = ApiError)))]
pub async fn remove(
    State(node): Floe,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<FreedReport>, Failure> {
    answer(move || node.pool.remove(&name, &caller)).await
}

/// Sends a substrate to a hub, a bucket or a directory, or writes it to a file.
#[utoipa::path(post, path = "/v1/pool/substrates/{name}/export", tag = "pool", params(("name" = String, Path)),
    request_body = SubstrateExportRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn export(
    State(node): Floe,
    caller: Caller,
    Path(name): Path<String>,
    Input(request): Input<SubstrateExportRequest>,
) -> Response {
    stream(node, "export", move |node, report| {
        node.pool.export(&name, &request, &caller, report)
    })
}

/// Brings a substrate here from a hub, a bucket, a directory or a file.
#[utoipa::path(post, path = "/v1/pool/import", tag = "pool", request_body = SubstrateImportRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn import(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<SubstrateImportRequest>,
) -> Response {
    stream(node, "import", move |node, report| {
        let request = node.pool.visible_image(request, &caller)?;
        node.pool.import(&request, &caller, report)
    })
}

/// Starts machines from a substrate.
#[utoipa::path(post, path = "/v1/pool/substrates/{name}/activate", tag = "pool", params(("name" = String, Path)),
    request_body = ActivateRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn activate(
    State(node): Floe,
    caller: Caller,
    Path(name): Path<String>,
    Input(request): Input<ActivateRequest>,
) -> Response {
    stream(node, "activate", move |node, report| {
        node.pool.activate(&name, &request, &caller, report)
    })
}

/// Starts machines of several substrates together, in one network.
#[utoipa::path(post, path = "/v1/pool/ensembles", tag = "pool", request_body = EnsembleRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn activate_ensemble(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<EnsembleRequest>,
) -> Response {
    stream(node, "activate", move |node, report| {
        node.ensembles.activate(&request, &caller, report)
    })
}

/// Waits until clones of another node's substrate answer, and brings them to their size: the request that an activation with `hosts`
/// sends to those.
#[utoipa::path(post, path = "/v1/clones/expand", tag = "pool", request_body = ExpandRequest,
    responses((status = 200, body = ExpandReport), (status = 400, body = ApiError)))]
pub async fn expand(
    State(node): Floe,
    by: By,
    Input(request): Input<ExpandRequest>,
) -> Result<Json<ExpandReport>, Failure> {
    answer(move || {
        let by = by.as_ref().map(|Extension(member)| member);
        node.pool.expand(&request, by)
    })
    .await
}
