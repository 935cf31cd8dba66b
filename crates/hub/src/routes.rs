//! The hub's interface: names, lists, tags and visibility; the table of all routes; and its OpenAPI description.

use super::access::Viewer;
use super::access::admit;
use super::catalogue::ImageRow;
use super::error::{ApiError, ApiResult};
use super::state::{Hub, blocking, blocking_long};
use super::swarm_routes as swarm;
use super::visible::OwnImage;
use super::wire::{Args, json, parse_id, parse_name};
use super::{batch, files, login, publish, substrates, thumbnail, traces, uploads};
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use floe_api::hub::{ErrorBody, Health, ImageEntry, ImageList, Resolved, TagRequest, Visibility};
use floe_front::page::assets;
use floe_front::telemetry;
use floe_image::Hash;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Instant;
use utoipa::{IntoParams, OpenApi};

/// A name to look up.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct NameQuery {
    /// `name`, `name:tag`, `owner/name:tag`, or a full image id.
    name: String,
}

/// Says that the hub works, and that it is a hub.
#[utoipa::path(get, path = "/healthz", tag = "operation", responses((status = 200, body = Health)))]
async fn healthz() -> Json<Health> {
    Json(Health {
        service: "floe-hub".into(),
        version: env!("CARGO_PKG_VERSION").into(),
    })
}

/// Returns the hub's metrics in Prometheus' format.
#[utoipa::path(get, path = "/metrics", tag = "operation",
    responses((status = 200, content_type = "text/plain", body = String), (status = 401, body = ErrorBody)))]
async fn metrics(_viewer: Viewer) -> Response {
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
        telemetry::render_metrics(),
    )
        .into_response()
}

/// Returns this description.
async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Description::openapi())
}

/// Returns the image that a name means to the client: its own image, otherwise a public one.
#[utoipa::path(get, path = "/v1/resolve", tag = "read", params(NameQuery),
    responses((status = 200, body = Resolved), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
              (status = 404, body = ErrorBody)))]
async fn resolve(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Args(query): Args<NameQuery>,
) -> ApiResult<Json<Resolved>> {
    let absent = || {
        let name: String = query.name.chars().take(300).collect();
        ApiError::no_image(format_args!("{name:?}"))
    };
    let id = match query.name.parse::<Hash>() {
        Ok(id) => id,
        Err(_) => {
            let name = parse_name(&query.name)?;
            let user = viewer.name().map(str::to_owned);
            let found = blocking(&hub, viewer.party(), move |hub| {
                Ok(hub.catalogue.resolve(&name, user.as_deref())?)
            });
            found.await?.ok_or_else(absent)?
        }
    };
    let image = hub.catalogue.visible(&id, viewer.name());
    let image = image.ok_or_else(absent)?;
    Ok(Json(Resolved {
        id: id.to_string(),
        own: viewer.name() == Some(&**image.owner()),
    }))
}

/// Lists the images that the client may read.
#[utoipa::path(get, path = "/v1/images", tag = "catalogue",
    responses((status = 200, body = ImageList), (status = 401, body = ErrorBody)))]
async fn images(State(hub): State<Arc<Hub>>, viewer: Viewer) -> ApiResult<Json<ImageList>> {
    let user = viewer.name().map(str::to_owned);
    let rows = blocking(&hub, viewer.party(), move |hub| {
        let rows = hub.catalogue.images(user.as_deref())?;
        let with_picture = |row: ImageRow| {
            let image = hub.catalogue.visible(&row.id, user.as_deref());
            (
                image.is_some_and(|image| thumbnail::there(hub, &image)),
                row,
            )
        };
        Ok(rows.into_iter().map(with_picture).collect::<Vec<_>>())
    })
    .await?;
    let images = rows
        .into_iter()
        .map(|(thumbnail, row)| ImageEntry {
            id: row.id.to_string(),
            names: row
                .tags
                .iter()
                .map(|(name, tag)| format!("{name}:{tag}"))
                .collect(),
            owner: row.owner,
            public: row.public,
            created_unix_s: row.created_unix_s,
            pushed_unix_s: row.pushed_unix_s,
            raw_bytes: row.raw_bytes,
            stored_bytes: row.stored_bytes,
            thumbnail,
            damaged: row.damaged,
        })
        .collect();
    Ok(Json(ImageList { images }))
}

/// Removes an image that the client owns, and its tags.
#[utoipa::path(delete, path = "/v1/images/{id}", tag = "catalogue", params(("id" = String, Path)),
    responses((status = 204), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn remove(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: OwnImage,
) -> ApiResult<StatusCode> {
    blocking_long(&hub, viewer.party(), move |hub| {
        publish::remove(hub, &image)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes an image that the client owns visible to everybody, or to its owner alone.
#[utoipa::path(put, path = "/v1/images/{id}/visibility", tag = "catalogue", params(("id" = String, Path)),
    request_body = Visibility,
    responses((status = 204), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
              (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 507, body = ErrorBody)))]
async fn visibility(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: OwnImage,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<StatusCode> {
    let wish: Visibility = json(&hub, &viewer, body, &headers).await?;
    blocking_long(&hub, viewer.party(), move |hub| {
        publish::set_visibility(hub, &image, wish.public)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Points a name to an image that the client owns.
#[utoipa::path(put, path = "/v1/tags", tag = "catalogue", request_body = TagRequest,
    responses((status = 204), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
              (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn tag(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<StatusCode> {
    viewer.user()?;
    let wish: TagRequest = json(&hub, &viewer, body, &headers).await?;
    let (name, id) = (parse_name(&wish.name)?, parse_id(&wish.id)?);
    let image = OwnImage::check(&hub, &id, &viewer)?;
    blocking(&hub, viewer.party(), move |hub| {
        Ok(hub.catalogue.tag(&image, &name)?)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a name of the client; the image is kept.
#[utoipa::path(delete, path = "/v1/tags", tag = "catalogue", params(NameQuery),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn untag(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Args(query): Args<NameQuery>,
) -> ApiResult<StatusCode> {
    let owner = viewer.user()?.to_owned();
    let name = parse_name(&query.name)?;
    let shown = name.to_string();
    let removed = blocking(&hub, viewer.party(), move |hub| {
        Ok(hub.catalogue.untag(&owner, &name)?)
    })
    .await?;
    if removed {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::no_image(shown))
    }
}

floe_front::interface! {
    #[openapi(
        info(
            title = "floe hub",
            description = "Images of running machines: catalogue, packs, batch reads, uploads and traces. \
            Authorization is a bearer token; a private image looks absent to everybody but its owner and those whom it names."
        ),
        components(schemas(ErrorBody))
    )]
    state Arc<Hub>;
    get "/healthz" healthz,
    get "/metrics" metrics,
    get "/v1/resolve" resolve,
    get "/v1/images" images,
    delete "/v1/images/{id}" remove,
    put "/v1/images/{id}/visibility" visibility,
    put "/v1/tags" tag,
    delete "/v1/tags" untag,
    get "/v1/images/{id}/manifest" files::manifest,
    get "/v1/images/{id}/thumbnail" thumbnail::thumbnail,
    get "/v1/images/{id}/layout" files::layout,
    get "/v1/packs/{id}" files::pack,
    get "/v1/static/{*path}" files::statically,
    post "/v1/images/{id}/read" batch::read,
    post "/v1/images/{id}/swarm" swarm::join,
    get "/v1/images/{id}/swarm" swarm::overview,
    delete "/v1/images/{id}/swarm/{key}" swarm::leave,
    get "/v1/packs/{id}/proven" swarm::proven,
    post "/v1/packs/{id}/damaged" swarm::damaged,
    get "/v1/pool" substrates::status,
    get "/v1/pool/substrates" substrates::list,
    post "/v1/uploads" uploads::open,
    post "/v1/uploads/{id}/have" uploads::have,
    put "/v1/uploads/{id}/packs/{pack}" uploads::put_pack,
    post "/v1/uploads/{id}/commit" uploads::commit,
    delete "/v1/uploads/{id}" uploads::cancel,
    post "/v1/images/{id}/traces" traces::send,
    get "/v1/images/{id}/traces" traces::all,
    get "/v1/images/{id}/traces/{hash}" traces::one,
    delete "/v1/images/{id}/traces/{hash}" traces::remove,
    get "/v1/images/{id}/model" traces::model,
}

/// Returns the text of `docs/openapi-hub.json`.
pub fn openapi_json() -> String {
    let mut text = Description::openapi()
        .to_pretty_json()
        .unwrap_or_else(|e| format!("{{\"error\": \"{e}\"}}"));
    text.push('\n');
    text
}

/// Returns the router with all routes: those that are described, and those of browsers and of programs that make clients.
pub(crate) fn router(hub: Arc<Hub>) -> Router {
    described()
        .merge(assets::router(assets::Page::Hub))
        .route("/login", get(login::login))
        .route("/v1/openapi.json", get(openapi))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        // Every handler reads its body through `collect_body`, which enforces the route's own limit.
        .layer(DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn_with_state(hub.clone(), admit))
        .layer(axum::middleware::from_fn(measure))
        .with_state(hub)
}

async fn no_route(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(200).collect();
    ApiError::new(
        StatusCode::NOT_FOUND,
        "no-route",
        format!("a hub has no {path}"),
        "see /v1/openapi.json",
    )
}

async fn no_method(request: Request) -> ApiError {
    let method = request.method().clone();
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "no-method",
        format!("{method} does not work here"),
        "see /v1/openapi.json",
    )
}

/// Counts and times a request under its route's name, not its path, since clients could make up any number of paths.
async fn measure(route: Option<MatchedPath>, request: Request, next: Next) -> Response {
    let from = Instant::now();
    let route = route.map_or_else(|| "none".to_owned(), |route| route.as_str().to_owned());
    let response = next.run(request).await;
    let status = response.status().as_u16().to_string();
    metrics::counter!(telemetry::HUB_REQUESTS, "route" => route.clone(), "status" => status)
        .increment(1);
    metrics::histogram!(telemetry::HUB_REQUEST_SECONDS, "route" => route)
        .record(from.elapsed().as_secs_f64());
    response
}
