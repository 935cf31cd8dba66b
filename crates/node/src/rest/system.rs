//! The node itself and its cache.

use super::answer::{Args, Failure, Input, answer, blocking, line, ndjson, stream};
use crate::Node;
use axum::{
    Json,
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use floe_api::*;
use floe_ground::{caller::Caller, news::News};
use floe_inventory::core::event;
use futures::{Stream, StreamExt};
use std::sync::Arc;
use tokio::sync::broadcast::{Receiver, error::RecvError};

type Floe = State<Arc<Node>>;

/// What the node is and runs.
#[utoipa::path(get, path = "/v1/node", tag = "node", responses((status = 200, body = NodeInfo)))]
pub async fn node(State(node): Floe) -> Result<Json<NodeInfo>, Failure> {
    answer(move || node.info()).await
}

/// Where the node's web page is.
#[utoipa::path(get, path = "/v1/page", tag = "node",
    responses((status = 200, body = PageInfo), (status = 404, body = ApiError)))]
pub async fn page(State(node): Floe) -> Result<Json<PageInfo>, Failure> {
    answer(move || node.page()).await
}

/// What is missing on this host, and how to put it right.
#[utoipa::path(get, path = "/v1/doctor", tag = "node", params(DoctorQuery),
    responses((status = 200, body = DoctorReport), (status = 400, body = ApiError)))]
pub async fn doctor(
    State(node): Floe,
    caller: Caller,
    Args(query): Args<DoctorQuery>,
) -> Result<Json<DoctorReport>, Failure> {
    answer(move || crate::doctor::examine(&node, &caller, query.qemu.as_deref())).await
}

/// What happens on the node from now on, or since a time, or what has happened and no more, one NodeEvent per line.
#[utoipa::path(get, path = "/v1/events", tag = "node", params(EventsQuery),
    responses((status = 200, body = NodeEvent, content_type = "application/x-ndjson")))]
pub async fn events(State(node): Floe, caller: Caller, Args(query): Args<EventsQuery>) -> Response {
    let (past, events) = match query.since_unix_ms {
        Some(since) => node.core.listen_since(since),
        None if query.once => node.core.listen_since(0),
        None => (Vec::new(), node.core.listen()),
    };
    let to_come = (!query.once).then(|| all_events(events));
    let to_come = futures::stream::iter(to_come).flatten();
    let events = futures::stream::iter(past).chain(to_come);
    let told = events.filter(move |event| std::future::ready(node.pool.tells(event, &caller)));
    ndjson(Body::from_stream(told.map(|event| line(&event))))
}

fn all_events(events: Receiver<NodeEvent>) -> impl Stream<Item = NodeEvent> + use<> {
    futures::stream::unfold(events, |mut events| async move {
        let event = match events.recv().await {
            Ok(event) => event,
            // a reader that is too slow receives the number of events that it missed
            Err(RecvError::Lagged(count)) => event("", &News::Missed(count)),
            Err(RecvError::Closed) => return None,
        };
        Some((event, events))
    })
}

/// Ends the node; machines go on unless the request says otherwise.
#[utoipa::path(post, path = "/v1/shutdown", tag = "node", request_body = ShutdownRequest, responses((status = 200)))]
pub async fn shutdown(State(node): Floe, Input(request): Input<ShutdownRequest>) -> Json<()> {
    node.core.ask_to_stop(request.stop_machines);
    Json(())
}

/// How full the cache is.
#[utoipa::path(get, path = "/v1/cache", tag = "cache", responses((status = 200, body = CacheInfo)))]
pub async fn cache(State(node): Floe) -> Result<Json<CacheInfo>, Failure> {
    answer(move || Ok(node.images.cache_info())).await
}

/// Removes from cache and repository what nothing needs.
#[utoipa::path(post, path = "/v1/cache/gc", tag = "cache", responses((status = 200, body = FreedReport)))]
pub async fn cache_gc(State(node): Floe) -> Result<Json<FreedReport>, Failure> {
    answer(move || node.images.cache_gc()).await
}

/// Reads and hashes all of the cache.
#[utoipa::path(post, path = "/v1/cache/verify", tag = "cache",
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn cache_verify(State(node): Floe) -> Response {
    stream(node, "cache-verify", |node, report| {
        node.images.cache_verify(report)
    })
}

/// Metrics in the format of Prometheus.
pub async fn metrics(State(node): Floe) -> Result<Response, Failure> {
    let record = move || {
        node.record_metrics();
        Ok(())
    };
    blocking(record).await?;
    let answer = (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
        floe_front::telemetry::render_metrics(),
    );
    Ok(answer.into_response())
}

/// This interface's description.
pub async fn openapi() -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        super::openapi_json(),
    )
        .into_response()
}

/// What the machines that run have used of their host.
#[utoipa::path(get, path = "/v1/usage", tag = "machines", params(UsageQuery), responses((status = 200, body = UsageList)))]
pub async fn usage(
    State(node): Floe,
    Args(query): Args<UsageQuery>,
) -> Result<Json<UsageList>, Failure> {
    answer(move || {
        let mut list = node.machines.usage();
        if query.network {
            node.agents.add_traffic(&mut list);
        }
        Ok(list)
    })
    .await
}

/// Removes what nobody uses, or answers what that is.
#[utoipa::path(post, path = "/v1/prune", tag = "node", request_body = PruneRequest,
    responses((status = 200, body = PruneReport)))]
pub async fn prune(
    State(node): Floe,
    Input(request): Input<PruneRequest>,
) -> Result<Json<PruneReport>, Failure> {
    answer(move || node.prune(&request)).await
}
