//! Machines that move to another node of the cluster.

use super::answer::{Failure, Input, Path, answer, stream};
use crate::{
    Node,
    caller::FromMember,
    inputs::{Fate, ForMachine},
    inventory::turn::Answer,
    moves::{Order, Question, Recall, Recalled, Reply},
};
use axum::{Extension, Json, extract::State, response::Response};
use floe_api::*;
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// Has a machine go on on another node of the cluster, which brings what it lacks of it, and forgets it here; or lets one go on here that
/// another node has, or may have.
#[utoipa::path(post, path = "/v1/machines/{name}/move", tag = "machines", params(("name" = String, Path)),
    request_body = MoveRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn move_machine(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<MoveRequest>,
) -> Response {
    stream(node, "move", move |node, report| {
        node.moves.move_machine(&name, &request, report)
    })
}

/// Has a machine come back from the node that it was moved to from here, and waits until it is here.
#[utoipa::path(post, path = "/v1/machines/{name}/recall", tag = "machines", params(("name" = String, Path)),
    request_body = RecallRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn recall(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<RecallRequest>,
) -> Response {
    stream(node, "recall", move |node, report| {
        node.moves.recall(&name, &request, report)
    })
}

/// Keeps what a user does at a machine until its guest has got it: while it stands still, is parked or travels, and also when it was
/// moved to another node from here. Answers once the inputs are on the disk. A guest's agent gives them to it in order and each once;
/// without an agent that takes them, each comes at most once, through QEMU's own keyboard, pointer and console.
#[utoipa::path(post, path = "/v1/machines/{name}/type", tag = "machines", params(("name" = String, Path)),
    request_body = TypeRequest, responses((status = 200, body = TypeReport)))]
pub async fn type_on(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<TypeRequest>,
) -> Result<Json<TypeReport>, Failure> {
    answer(move || node.inputs.type_on(&name, &request)).await
}

/// Gives inputs to a machine that came from the member that has kept them.
pub async fn inputs(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
    Input(said): Input<ForMachine>,
) -> Result<Json<Fate>, Failure> {
    answer(move || node.inputs.receive(&said, &by)).await
}

/// What a member of the cluster says of a machine of its own that is to come here.
pub async fn order(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
    Input(order): Input<Order>,
) -> Result<Json<Reply>, Failure> {
    answer(move || node.moves.receive(&order, &by)).await
}

/// Where a machine is that came from here, for the member that has it.
pub async fn question(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
    Input(question): Input<Question>,
) -> Result<Json<Answer>, Failure> {
    answer(move || node.moves.answer(&question, &by)).await
}

/// Gives a machine back to the member that gave it to this node.
pub async fn give_back(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
    Input(asked): Input<Recall>,
) -> Result<Json<Recalled>, Failure> {
    answer(move || node.moves.give_back(&asked, &by)).await
}
