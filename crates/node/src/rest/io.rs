//! Whose disk requests go first.

use super::answer::{Failure, Input, Path, answer};
use crate::Node;
use axum::{Json, extract::State};
use floe_api::*;
use floe_ground::caller::Caller;
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// Whose disk requests go first, and how they fare.
#[utoipa::path(get, path = "/v1/io", tag = "node", responses((status = 200, body = IoReport)))]
pub async fn io(State(node): Floe) -> Result<Json<IoReport>, Failure> {
    answer(move || node.io()).await
}

/// Which programs of an image are interactive: said by hand, or learned from your machines of it.
#[utoipa::path(post, path = "/v1/io/list", tag = "node", request_body = IoListRequest,
    responses((status = 200, body = IoList), (status = 404, body = ApiError)))]
pub async fn list(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<IoListRequest>,
) -> Result<Json<IoList>, Failure> {
    answer(move || {
        let image = node.pool.visible_image(request.image, &caller)?;
        node.traces.list_programs(&image)
    })
    .await
}

/// Says by hand whether a program of an image is interactive. Answers with the list as it is then.
#[utoipa::path(post, path = "/v1/io/say", tag = "node", request_body = IoSayRequest,
    responses((status = 200, body = IoList), (status = 400, body = ApiError), (status = 404, body = ApiError)))]
pub async fn say(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<IoSayRequest>,
) -> Result<Json<IoList>, Failure> {
    answer(move || {
        let image = node.pool.visible_image(request.image, &caller)?;
        node.traces
            .say_of_program(&image, &request.program, request.say)
    })
    .await
}

/// Somebody types on the machine's console, whose socket doesn't lead through the node. What is typed is not told.
#[utoipa::path(post, path = "/v1/machines/{name}/input", tag = "machines", params(("name" = String, Path)),
    responses((status = 200, body = InputNoted), (status = 404, body = ApiError)))]
pub async fn input(
    State(node): Floe,
    Path(name): Path<String>,
) -> Result<Json<InputNoted>, Failure> {
    answer(move || {
        let entry = node.inventory.get(&name)?;
        Ok(node.inputs.noted(&entry))
    })
    .await
}
