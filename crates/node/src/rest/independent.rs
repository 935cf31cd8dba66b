//! Machines that are made independent of where their images came from.

use super::answer::{Input, Path, stream};
use crate::Node;
use axum::{extract::State, response::Response};
use floe_api::*;
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// Brings all of a machine's image to this host in the background, so that it needs nothing from elsewhere; or gives that up.
#[utoipa::path(post, path = "/v1/machines/{name}/independent", tag = "machines", params(("name" = String, Path)),
    request_body = IndependentRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn independent(
    State(node): Floe,
    Path(name): Path<String>,
    Input(request): Input<IndependentRequest>,
) -> Response {
    stream(node, "independent", move |node, report| {
        node.independence.ask(&name, &request, report)
    })
}
