//! Machines that move to another node of the cluster.

use super::answer::{Failure, Input, Path, answer, blocking, stream};
use crate::Node;
use axum::{
    Extension, Json,
    extract::{FromRequest, Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use floe_api::*;
use floe_ground::caller::FromMember;
use floe_inputs::{Fate, ForMachine, LOOK_PROTOCOL, LookAsked};
use floe_inventory::inventory::turn::Answer;
use floe_moves::{
    EndAsked, Granted, LeaseAsked, Order, OtherSize, Question, Recall, Recalled, Reply, Results,
    ResultsAsked, Speed, SyncAsked,
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
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

/// Has the node that does not run a machine know what it is, once or from time to time, so that less is left to be sent when it moves.
#[utoipa::path(post, path = "/v1/machines/{name}/sync", tag = "machines", params(("name" = String, Path)),
    request_body = SyncRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn sync(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<SyncRequest>,
) -> Response {
    stream(node, "sync", move |node, report| {
        node.moves.sync(&name, &request, report)
    })
}

/// Whether it would pay to lend a machine to another node of the cluster, and why. The machine is looked at for two seconds.
#[utoipa::path(post, path = "/v1/machines/{name}/advise", tag = "machines", params(("name" = String, Path)),
    request_body = AdviseRequest,
    responses((status = 200, body = Advice), (status = 404, body = ApiError)))]
pub async fn advise(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<AdviseRequest>,
) -> Result<Json<Advice>, Failure> {
    answer(move || node.moves.advise(&name, &request)).await
}

/// How fast this host is, for a member.
pub async fn speed(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
) -> Result<Json<Speed>, Failure> {
    answer(move || Ok(node.moves.speed_for(&by))).await
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

/// Gives a machine that came from a member the size that the member wants for it.
pub async fn resize(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
    Input(asked): Input<OtherSize>,
) -> Result<Json<ResizeReport>, Failure> {
    answer(move || node.moves.resize_for(&asked, &by)).await
}

/// Tells a member what a machine is that it has lent to this node.
pub async fn sync_back(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
    Input(asked): Input<SyncAsked>,
) -> Result<Json<Recalled>, Failure> {
    answer(move || node.moves.sync_for(&asked, &by)).await
}

/// Gives a member a file or directory of a machine that it has lent to this node.
pub async fn results(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
    Input(asked): Input<ResultsAsked>,
) -> Result<Json<Results>, Failure> {
    answer(move || node.moves.results_for(&asked, &by)).await
}

/// Throws a machine away that a member has lent to this node, since the loan is over.
pub async fn end(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
    Input(asked): Input<EndAsked>,
) -> Result<Json<Recalled>, Failure> {
    answer(move || node.moves.end_for(&asked, &by)).await
}

/// Grants the lease of a machine to the member that has borrowed it.
pub async fn lease(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
    Input(asked): Input<LeaseAsked>,
) -> Result<Json<Granted>, Failure> {
    answer(move || node.moves.lease_for(&asked, &by)).await
}

/// Shows a member its machine that this node has borrowed: the connection is switched to what was asked for.
pub async fn look(
    State(node): Floe,
    Extension(by): Extension<FromMember>,
    mut request: Request,
) -> Result<Response, Failure> {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let Input(asked) = Input::<LookAsked>::from_request(request, &()).await?;
    let switching = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static(LOOK_PROTOCOL)),
    ];
    let (moves, now, who) = (node.moves.clone(), asked.clone(), by.clone());
    let shown = blocking(move || node.moves.shown_to(&asked, &by)).await?;
    let Some(upgrade) = upgrade else {
        return Ok((StatusCode::UPGRADE_REQUIRED, switching).into_response());
    };
    tokio::spawn(async move {
        // without it the member has gone
        if let Ok(there) = upgrade.await {
            let goes_on = || moves.shows(&now, &who);
            shown.send(TokioIo::new(there), goes_on).await;
        }
    });
    Ok((StatusCode::SWITCHING_PROTOCOLS, switching).into_response())
}
