//! The cluster that this node is in.

use super::answer::{Failure, Input, answer};
use crate::Node;
use axum::{Json, extract::State};
use floe_api::*;
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// What this node is in its cluster, and who else is in it.
#[utoipa::path(get, path = "/v1/cluster", tag = "cluster", responses((status = 200, body = ClusterInfo)))]
pub async fn info(State(node): Floe) -> Result<Json<ClusterInfo>, Failure> {
    answer(move || Ok(node.cluster.info())).await
}

/// Creates a cluster, with this node as its first member and its authority.
#[utoipa::path(post, path = "/v1/cluster/init", tag = "cluster", request_body = ClusterInit,
    responses((status = 200, body = ClusterInfo), (status = 409, body = ApiError)))]
pub async fn init(
    State(node): Floe,
    Input(request): Input<ClusterInit>,
) -> Result<Json<ClusterInfo>, Failure> {
    answer(move || node.cluster.init(&request)).await
}

/// Creates an invitation, with which one node can join.
#[utoipa::path(post, path = "/v1/cluster/invite", tag = "cluster", request_body = ClusterInvite,
    responses((status = 200, body = ClusterInvited), (status = 422, body = ApiError)))]
pub async fn invite(
    State(node): Floe,
    Input(request): Input<ClusterInvite>,
) -> Result<Json<ClusterInvited>, Failure> {
    answer(move || node.cluster.invite(&request)).await
}

/// Joins a cluster with an invitation.
#[utoipa::path(post, path = "/v1/cluster/join", tag = "cluster", request_body = ClusterJoin,
    responses((status = 200, body = ClusterInfo), (status = 409, body = ApiError), (status = 422, body = ApiError)))]
pub async fn join(
    State(node): Floe,
    Input(request): Input<ClusterJoin>,
) -> Result<Json<ClusterInfo>, Failure> {
    answer(move || node.cluster.join(&request)).await
}

/// Leaves the cluster.
#[utoipa::path(post, path = "/v1/cluster/leave", tag = "cluster", request_body = ClusterLeave,
    responses((status = 200, body = ClusterChange), (status = 422, body = ApiError)))]
pub async fn leave(
    State(node): Floe,
    Input(request): Input<ClusterLeave>,
) -> Result<Json<ClusterChange>, Failure> {
    answer(move || node.leave_cluster(&request)).await
}

/// Removes a member from the cluster: it is refused from then on.
#[utoipa::path(post, path = "/v1/cluster/revoke", tag = "cluster", request_body = ClusterRevoke,
    responses((status = 200, body = ClusterChange), (status = 404, body = ApiError), (status = 422, body = ApiError)))]
pub async fn revoke(
    State(node): Floe,
    Input(request): Input<ClusterRevoke>,
) -> Result<Json<ClusterChange>, Failure> {
    answer(move || node.cluster.revoke(&request.name)).await
}
