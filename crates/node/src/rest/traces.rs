//! Traces.

use super::answer::{Failure, Input, answer};
use crate::Node;
use axum::{Json, extract::State};
use floe_api::*;
use floe_ground::caller::Caller;
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// The traces of an image's machines, and the models made from them: those of this host, or of an image of yours on a hub.
#[utoipa::path(post, path = "/v1/traces/list", tag = "traces", request_body = TracesRequest,
    responses((status = 200, body = TraceList), (status = 404, body = ApiError)))]
pub async fn list(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<TracesRequest>,
) -> Result<Json<TraceList>, Failure> {
    answer(move || {
        let request = node.pool.visible_image(request, &caller)?;
        node.traces.list_traces(&request)
    })
    .await
}

/// One trace in figures.
#[utoipa::path(post, path = "/v1/traces/show", tag = "traces", request_body = TraceRequest,
    responses((status = 200, body = TraceDetail), (status = 404, body = ApiError)))]
pub async fn show(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<TraceRequest>,
) -> Result<Json<TraceDetail>, Failure> {
    answer(move || {
        let request = node.pool.visible_image(request, &caller)?;
        node.traces.show_trace(&request)
    })
    .await
}

/// Writes a trace to a file.
#[utoipa::path(post, path = "/v1/traces/export", tag = "traces", request_body = TraceRequest,
    responses((status = 200, body = TraceMoved), (status = 404, body = ApiError)))]
pub async fn export(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<TraceRequest>,
) -> Result<Json<TraceMoved>, Failure> {
    answer(move || {
        let request = node.pool.visible_image(request, &caller)?;
        node.traces.export_trace(&request)
    })
    .await
}

/// Reads a trace from a file and keeps it.
#[utoipa::path(post, path = "/v1/traces/import", tag = "traces", request_body = TraceImportRequest,
    responses((status = 200, body = TraceMoved), (status = 422, body = ApiError)))]
pub async fn import(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<TraceImportRequest>,
) -> Result<Json<TraceMoved>, Failure> {
    answer(move || {
        let request = node.pool.visible_image(request, &caller)?;
        node.traces.import_trace(&request)
    })
    .await
}
