//! Forks and families.

use super::answer::{Failure, Input, Path, answer, stream};
use crate::Node;
use axum::{Extension, Json, extract::State, response::Response};
use floe_api::*;
use floe_ground::caller::{Caller, FromMember};
use std::sync::Arc;

type Floe = State<Arc<Node>>;
/// The member of the cluster that asks; `None` if a user of this node does.
pub(super) type By = Option<Extension<FromMember>>;

/// Forks a running machine into clones of this moment, or starts clones of an image.
#[utoipa::path(post, path = "/v1/machines/{name}/fork", tag = "machines", params(("name" = String, Path)),
    request_body = ForkRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn fork(
    State(node): Floe,
    caller: Caller,
    Path(name): Path<String>,
    Input(request): Input<ForkRequest>,
) -> Response {
    stream(node, "fork", move |node, report| {
        let name = node.pool.parent_for(name, &caller)?;
        node.forks.fork(&name, &request, report)
    })
}

/// A machine's family: the eldest machine that is known here, with all clones.
#[utoipa::path(get, path = "/v1/machines/{name}/family", tag = "machines", params(("name" = String, Path)),
    responses((status = 200, body = Family), (status = 404, body = ApiError)))]
pub async fn family(
    State(node): Floe,
    by: By,
    Path(name): Path<String>,
) -> Result<Json<Family>, Failure> {
    answer(move || match by {
        Some(Extension(member)) => node.forks.family_for(&name, &member),
        None => node.forks.family(&name),
    })
    .await
}

/// Ends a clone, or all clones of a machine, with their disks.
#[utoipa::path(post, path = "/v1/machines/{name}/kill", tag = "machines", params(("name" = String, Path)),
    request_body = KillRequest,
    responses((status = 200, body = KillReport), (status = 404, body = ApiError), (status = 422, body = ApiError)))]
pub async fn kill(
    State(node): Floe,
    by: By,
    Path(name): Path<String>,
    Input(request): Input<KillRequest>,
) -> Result<Json<KillReport>, Failure> {
    answer(move || match by {
        Some(Extension(member)) => node.forks.kill_for(&name, &request, &member),
        None => node.forks.kill(&name, &request),
    })
    .await
}

/// Starts a clone of another node's machine: the request that a fork with `hosts` sends to those.
#[utoipa::path(post, path = "/v1/clones", tag = "machines", request_body = CloneRequest,
    responses((status = 200, body = MachineInfo), (status = 409, body = ApiError), (status = 422, body = ApiError)))]
pub async fn receive(
    State(node): Floe,
    by: By,
    Input(request): Input<CloneRequest>,
) -> Result<Json<MachineInfo>, Failure> {
    answer(move || {
        let by = by.as_ref().map(|Extension(member)| member);
        node.forks.receive_clone(&request, by)
    })
    .await
}

/// How many clones of other nodes' machines there is room for.
#[utoipa::path(get, path = "/v1/clones/room", tag = "machines",
    responses((status = 200, body = Room), (status = 422, body = ApiError)))]
pub async fn room(State(node): Floe) -> Result<Json<Room>, Failure> {
    answer(move || node.forks.clone_room()).await
}

/// The hosts that are known by name, and what they report now.
#[utoipa::path(get, path = "/v1/hosts", tag = "machines",
    responses((status = 200, body = HostList), (status = 400, body = ApiError)))]
pub async fn hosts(State(node): Floe) -> Result<Json<HostList>, Failure> {
    answer(move || node.forks.hosts_info()).await
}

/// Tells a host of a family's network which hosts the network now has; the parent's node sends this.
#[utoipa::path(post, path = "/v1/networks/{id}/hosts", tag = "machines", params(("id" = String, Path)),
    request_body = NetworkHosts,
    responses((status = 200), (status = 404, body = ApiError)))]
pub async fn network_hosts(
    State(node): Floe,
    by: By,
    Path(id): Path<String>,
    Input(request): Input<NetworkHosts>,
) -> Result<Json<()>, Failure> {
    answer(move || {
        let by = by.map(|Extension(member)| member.address);
        node.networks.meet(&id, &request.hosts, by)
    })
    .await
}
