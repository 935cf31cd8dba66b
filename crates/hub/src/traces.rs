//! Receives traces, and returns the models that were trained on them.
//!
//! Whoever may read an image may send a trace of it. Only the owner may see the traces that were sent; everybody else gets
//! 404, as for a private image. Traces belong to a holding: a trace that a reader of Ann's image sends belongs to Ann, even
//! if Bob holds the same image. Models are for everybody who may read the image.

use super::access::Viewer;
use super::allowed;
use super::catalogue::now_unix_ms;
use super::error::{ApiError, ApiResult};
use super::state::{Hub, behind, blocking};
use super::visible::{OwnImage, VisibleImage};
use super::wire::{Args, Path, collect_body, parse_id};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
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

/// How long a request waits for the training that it caused. Training on the longest traces takes about as long.
const TRAINING_WAIT: Duration = Duration::from_secs(20);
/// Cache header of a model: it may change with the next training.
const CHANGING: HeaderValue = HeaderValue::from_static("no-cache");
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Which model is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ModelQuery {
    /// `floe` (the default), `vtube` or `vmtorrent`.
    method: Option<String>,
}

/// Returns the image if it is the client's own; an error if somebody else holds it, even publicly.
fn own(image: VisibleImage, viewer: &Viewer) -> ApiResult<OwnImage> {
    let own = image.own(viewer.name());
    own.map_err(|foreign| ApiError::no_image(foreign.id()))
}

fn shape(hub: &Hub, image: &VisibleImage) -> ApiResult<Shape> {
    let bytes = std::fs::read(hub.manifest_of(image))?;
    let manifest = Manifest::decode(&bytes).map_err(|e| ApiError::invalid(e.to_string()))?;
    Ok(Shape::of(*image.id(), &manifest))
}

/// Stores a machine's trace of an image that the sender may read.
#[utoipa::path(
    post, path = "/v1/images/{id}/traces", tag = "traces", params(("id" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = TraceTaken), (status = 401, body = super::ErrorBody), (status = 403, body = super::ErrorBody),
              (status = 404, body = super::ErrorBody), (status = 413, body = super::ErrorBody),
              (status = 422, body = super::ErrorBody), (status = 429, body = super::ErrorBody), (status = 507, body = super::ErrorBody)))]
pub(crate) async fn send(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: VisibleImage,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Json<TraceTaken>> {
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
        floe_traces::check(&body, &shape(hub, &image)?).map_err(refused)?;
        hub.check_room(body.len() as u64)?;
        // the owner may have removed the image meanwhile; once this lock is held, a removal waits
        let _tracing = hub.tracing.lock();
        let (id, owner) = (image.id(), image.owner());
        if !hub.catalogue.holds(id, owner) {
            return Err(ApiError::no_image(id));
        }
        allowed::check_traces(hub, uploader.as_deref())?;
        let added = hub
            .traces
            .add(id, owner, uploader.as_deref(), &body, now_unix_ms())?;
        if !added.known {
            metrics::counter!(telemetry::HUB_TRACES).increment(1);
            hub.trainer.schedule(id, owner);
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

/// Lists the traces of an image that the client owns.
#[utoipa::path(
    get, path = "/v1/images/{id}/traces", tag = "traces", params(("id" = String, Path)),
    responses((status = 200, body = TraceList), (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn all(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: VisibleImage,
) -> ApiResult<Json<TraceList>> {
    let image = own(image, &viewer)?;
    let list = blocking(&hub, viewer.party(), move |hub| {
        Ok(TraceList::of(
            &hub.traces,
            &shape(hub, &image)?,
            image.owner(),
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

/// Returns one trace of an image that the client owns.
#[utoipa::path(
    get, path = "/v1/images/{id}/traces/{hash}", tag = "traces", params(("id" = String, Path), ("hash" = String, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
              (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn one(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: VisibleImage,
    Path((_id, hash)): Path<(String, String)>,
) -> ApiResult<Response> {
    let image = own(image, &viewer)?;
    let hash = parse_id(&hash)?;
    let bytes = blocking(&hub, viewer.party(), move |hub| {
        let found = hub.traces.read(image.id(), image.owner(), &hash)?;
        found.ok_or_else(|| no_trace(&hash))
    });
    Ok(([(header::CONTENT_TYPE, BYTES)], bytes.await?).into_response())
}

/// Removes one trace of an image that the client owns; the next training does not use it.
#[utoipa::path(
    delete, path = "/v1/images/{id}/traces/{hash}", tag = "traces", params(("id" = String, Path), ("hash" = String, Path)),
    responses((status = 204), (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn remove(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: VisibleImage,
    Path((_id, hash)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    let image = own(image, &viewer)?;
    let hash = parse_id(&hash)?;
    blocking(&hub, viewer.party(), move |hub| {
        if !hub.traces.remove_trace(image.id(), image.owner(), &hash)? {
            return Err(no_trace(&hash));
        }
        hub.trainer.schedule(image.id(), image.owner());
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Returns the model of an image, for its planner. The ETag is the BLAKE3 of its bytes. The default method's model is
/// trained in the background; another method's is trained when it is first requested.
#[utoipa::path(
    get, path = "/v1/images/{id}/model", tag = "traces", params(("id" = String, Path), ModelQuery),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>), (status = 304),
              (status = 400, body = super::ErrorBody), (status = 401, body = super::ErrorBody),
              (status = 404, body = super::ErrorBody)))]
pub(crate) async fn model(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: VisibleImage,
    Args(query): Args<ModelQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
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
    // Only models that may have to be trained first can take long.
    let gate = match method {
        Method::Floe => &hub.gate,
        _ => &hub.long_gate,
    };
    let bytes = behind(gate, &hub, viewer.party(), move |hub| {
        let name = method.name();
        let (id, owner) = (image.id(), &**image.owner());
        let mut model = hub.traces.model(id, owner, name)?;
        if model.is_none() && method != Method::Floe && !hub.traces.traces(id, owner)?.is_empty() {
            hub.trainer.train_now(id, owner, method, TRAINING_WAIT);
            model = hub.traces.model(id, owner, name)?;
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
            // removed just now, with its image
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
