//! Swarms.

use super::answer::{Failure, Input, Path, answer};
use crate::Node;
use axum::{Json, extract::State};
use floe_api::*;
use floe_ground::caller::Caller;
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// In which swarms this node takes part, and how they are.
#[utoipa::path(get, path = "/v1/swarm", tag = "swarm", responses((status = 200, body = SwarmReport)))]
pub async fn report(State(node): Floe) -> Result<Json<SwarmReport>, Failure> {
    answer(move || Ok(node.swarms.report())).await
}

/// Lets this node listen for other nodes, which otherwise begins with its first swarm. The answer has its key and where it listens.
#[utoipa::path(post, path = "/v1/swarm/listen", tag = "swarm", responses((status = 200, body = SwarmReport), (status = 500, body = ApiError)))]
pub async fn listen(State(node): Floe) -> Result<Json<SwarmReport>, Failure> {
    answer(move || node.swarms.listen()).await
}

/// Lets this node have all of an image and give it to others, until it leaves or enough of them have had it.
#[utoipa::path(post, path = "/v1/swarm/seeds", tag = "swarm", request_body = SwarmSeed,
    responses((status = 200, body = SwarmReport), (status = 400, body = ApiError), (status = 404, body = ApiError)))]
pub async fn seed(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<SwarmSeed>,
) -> Result<Json<SwarmReport>, Failure> {
    answer(move || {
        let request = node.pool.visible_image(request, &caller)?;
        node.swarms.seed(&request)
    })
    .await
}

/// Takes this node out of an image's swarm.
#[utoipa::path(post, path = "/v1/swarm/leave", tag = "swarm", request_body = SwarmLeave,
    responses((status = 200, body = SwarmReport), (status = 404, body = ApiError)))]
pub async fn leave(
    State(node): Floe,
    Input(request): Input<SwarmLeave>,
) -> Result<Json<SwarmReport>, Failure> {
    answer(move || node.swarms.leave(&request)).await
}

/// This node's part in the swarm of an image, for a member of its cluster.
pub async fn offer(
    State(node): Floe,
    Path(image): Path<String>,
) -> Result<Json<SwarmOffer>, Failure> {
    answer(move || node.swarms.offer(&image, false)).await
}

/// The same, with the image's packs.
pub async fn offer_packs(
    State(node): Floe,
    Path(image): Path<String>,
) -> Result<Json<SwarmOffer>, Failure> {
    answer(move || node.swarms.offer(&image, true)).await
}
