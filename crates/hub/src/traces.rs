//! Traces come in, models go out.
//!
//! Whoever may read an image may send a trace of it; only the owner may see what was sent, to everybody else there is nothing
//! here (404), as with a private image. Traces belong to a holding: what ann's readers send is ann's, although bob holds the
//! same image. Models are for all who may read the image.

use super::access::Viewer;
use super::catalogue::{Holding, now_unix_ms};
use super::error::{ApiError, ApiResult};
use super::quota;
use super::state::{Hub, behind, blocking};
use super::wire::{collect_body, parse_id, readable};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use floe_api::hub::TraceTaken;
use floe_front::telemetry;
use floe_image::{Hash, Manifest};
use floe_traces::{Method, Shape, TRACE_BYTES_MAX, TraceList};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;

/// How long a request waits for the training that it caused. A training of the longest traces takes about as long.
const TRAINING_WAIT: Duration = Duration::from_secs(20);
/// Memory and time of a model: it may change with the next training.
const CHANGING: HeaderValue = HeaderValue::from_static("no-cache");
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Which model.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct ModelQuery {
    /// `floe` (the default), `vtube` or `vmtorrent`.
    method: Option<String>,
}

/// The asker's own holding; anybody else's does not show, be it public.
fn own(hub: &Hub, id: &Hash, viewer: &Viewer) -> ApiResult<Holding> {
    let holding = readable(hub, id, viewer)?;
    if viewer.name() == Some(&*holding.owner) {
        Ok(holding)
    } else {
        Err(ApiError::no_image(id))
    }
}

fn shape(hub: &Hub, id: &Hash) -> ApiResult<Shape> {
    let bytes = std::fs::read(hub.manifest_path(id))?;
    let manifest = Manifest::decode(&bytes).map_err(|e| ApiError::invalid(e.to_string()))?;
    Ok(Shape::of(*id, &manifest))
}

/// Takes a machine's trace of an image that the sender may read.
#[utoipa::path(
    post, path = "/v1/images/{id}/traces", tag = "traces", params(("id" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = TraceTaken), (status = 401, body = super::ErrorBody), (status = 403, body = super::ErrorBody),
              (status = 404, body = super::ErrorBody), (status = 413, body = super::ErrorBody),
              (status = 422, body = super::ErrorBody), (status = 429, body = super::ErrorBody), (status = 507, body = super::ErrorBody)))]
pub(crate) async fn send(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Json<TraceTaken>> {
    let id = parse_id(&id)?;
    let holding = readable(&hub, &id, &viewer)?;
    if viewer.name().is_none() && !hub.anonymous_traces {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "no-anonymous-traces",
            "this hub takes no traces without a token",
            "send it with a token, or ask the hub's operator to serve with --anonymous-traces",
        ));
    }
    let max = TRACE_BYTES_MAX as u64;
    let body = collect_body(&hub, &viewer, body, &headers, "the trace", max).await?;
    let uploader = viewer.name().map(str::to_owned);
    let added = blocking(&hub, viewer.party(), move |hub| {
        let refused = |error: floe_traces::TraceError| {
            metrics::counter!(telemetry::HUB_TRACES_REFUSED).increment(1);
            ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid-trace",
                error.to_string(),
                "send a trace that floe wrote for a machine of this image",
            )
        };
        floe_traces::check(&body, &shape(hub, &id)?).map_err(refused)?;
        hub.check_room(body.len() as u64)?;
        // the owner may have removed the image meanwhile; what comes later finds it gone
        let _tracing = hub.tracing.lock();
        if !hub.catalogue.holds(&id, &holding.owner) {
            return Err(ApiError::no_image(id));
        }
        let owner = &holding.owner;
        quota::check_traces(hub, uploader.as_deref())?;
        let added = hub
            .traces
            .add(&id, owner, uploader.as_deref(), &body, now_unix_ms())?;
        if !added.known {
            metrics::counter!(telemetry::HUB_TRACES).increment(1);
            hub.trainer.schedule(&id, owner);
        }
        Ok(added)
    })
    .await?;
    Ok(Json(TraceTaken {
        hash: added.hash.to_string(),
        known: added.known,
        kept: added.kept as u64,
    }))
}

/// Lists the traces of an image of the asker.
#[utoipa::path(
    get, path = "/v1/images/{id}/traces", tag = "traces", params(("id" = String, Path)),
    responses((status = 200, body = TraceList), (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn all(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(id): Path<String>,
) -> ApiResult<Json<TraceList>> {
    let id = parse_id(&id)?;
    let holding = own(&hub, &id, &viewer)?;
    let list = blocking(&hub, viewer.party(), move |hub| {
        Ok(TraceList::of(
            &hub.traces,
            &shape(hub, &id)?,
            &holding.owner,
        )?)
    });
    Ok(Json(list.await?))
}

fn no_trace(id: &Hash) -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "no-trace",
        format!("there is no trace {id} of this image"),
        "list them with GET /v1/images/{id}/traces; older ones make room for newer ones",
    )
}

/// One trace of an image of the asker.
#[utoipa::path(
    get, path = "/v1/images/{id}/traces/{hash}", tag = "traces", params(("id" = String, Path), ("hash" = String, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
              (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn one(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path((id, hash)): Path<(String, String)>,
) -> ApiResult<Response> {
    let id = parse_id(&id)?;
    let holding = own(&hub, &id, &viewer)?;
    let hash = parse_id(&hash)?;
    let bytes = blocking(&hub, viewer.party(), move |hub| {
        let found = hub.traces.read(&id, &holding.owner, &hash)?;
        found.ok_or_else(|| no_trace(&hash))
    });
    Ok(([(header::CONTENT_TYPE, BYTES)], bytes.await?).into_response())
}

/// Removes one trace of an image of the asker; the next training does without it.
#[utoipa::path(
    delete, path = "/v1/images/{id}/traces/{hash}", tag = "traces", params(("id" = String, Path), ("hash" = String, Path)),
    responses((status = 204), (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn remove(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path((id, hash)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    let id = parse_id(&id)?;
    let holding = own(&hub, &id, &viewer)?;
    let hash = parse_id(&hash)?;
    blocking(&hub, viewer.party(), move |hub| {
        if !hub.traces.remove_trace(&id, &holding.owner, &hash)? {
            return Err(no_trace(&hash));
        }
        hub.trainer.schedule(&id, &holding.owner);
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// The model of an image, for its planner. Its ETag is the BLAKE3 of its bytes. One of another method than the usual is made
/// when it is first asked for.
#[utoipa::path(
    get, path = "/v1/images/{id}/model", tag = "traces", params(("id" = String, Path), ModelQuery),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>), (status = 304),
              (status = 400, body = super::ErrorBody), (status = 401, body = super::ErrorBody),
              (status = 404, body = super::ErrorBody)))]
pub(crate) async fn model(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(id): Path<String>,
    Query(query): Query<ModelQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let id = parse_id(&id)?;
    let holding = readable(&hub, &id, &viewer)?;
    let method = match query.method {
        None => Method::Floe,
        Some(name) => {
            name.chars()
                .take(40)
                .collect::<String>()
                .parse()
                .map_err(|error: String| {
                    ApiError::bad(error, "leave the method away for the usual one")
                })?
        }
    };
    // Only what may have to be trained first is long.
    let gate = match method {
        Method::Floe => &hub.gate,
        _ => &hub.long_gate,
    };
    let bytes = behind(gate, &hub, viewer.party(), move |hub| {
        let name = method.name();
        let owner = &*holding.owner;
        let mut model = hub.traces.model(&id, owner, name)?;
        if model.is_none() && method != Method::Floe && !hub.traces.traces(&id, owner)?.is_empty() {
            hub.trainer.train_now(&id, owner, method, TRAINING_WAIT);
            model = hub.traces.model(&id, owner, name)?;
        }
        let absent = || {
            ApiError::new(
                StatusCode::NOT_FOUND,
                "no-model",
                format!("there is no {name} model of image {id} yet"),
                "run the image: models are made of its machines' traces",
            )
        };
        let model = model.ok_or_else(absent)?;
        match std::fs::read(&model.path) {
            Ok(bytes) => Ok(bytes),
            // removed in this moment, with its image
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(absent()),
            Err(error) => Err(error.into()),
        }
    })
    .await?;
    let etag = HeaderValue::from_str(&format!("\"{}\"", Hash::of(&bytes)))
        .map_err(std::io::Error::other)?;
    let common = [
        (header::ETAG, etag.clone()),
        (header::CACHE_CONTROL, CHANGING),
    ];
    if headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .any(|seen| *seen == etag)
    {
        return Ok((StatusCode::NOT_MODIFIED, common).into_response());
    }
    Ok((common, [(header::CONTENT_TYPE, BYTES)], bytes).into_response())
}
