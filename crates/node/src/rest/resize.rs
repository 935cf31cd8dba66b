//! What a machine has: its size.

use super::answer::{Input, Path, stream};
use crate::Node;
use axum::{extract::State, response::Response};
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
