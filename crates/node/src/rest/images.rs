//! Images and views of them.

use super::answer::{Args, Failure, Input, answer, stream};
use crate::Node;
use axum::{Json, extract::State, response::Response};
use floe_api::*;
use floe_ground::caller::Caller;
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// All images, newest first.
#[utoipa::path(get, path = "/v1/images", tag = "images", responses((status = 200, body = ImageList)))]
pub async fn list(State(node): Floe, caller: Caller) -> Result<Json<ImageList>, Failure> {
    answer(move || node.pool.images_for(&caller)).await
}

/// One image.
#[utoipa::path(get, path = "/v1/image", tag = "images", params(ImageQuery),
    responses((status = 200, body = ImageDetail), (status = 404, body = ApiError)))]
pub async fn inspect(
    State(node): Floe,
    caller: Caller,
    Args(query): Args<ImageQuery>,
) -> Result<Json<ImageDetail>, Failure> {
    answer(move || {
        let query = node.pool.visible_image(query, &caller)?;
        node.images.image(&query)
    })
    .await
}

/// Imports disks and kernels as an image.
#[utoipa::path(post, path = "/v1/images/import", tag = "images", request_body = ImportRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn import(State(node): Floe, Input(request): Input<ImportRequest>) -> Response {
    stream(node, "import", move |node, report| {
        node.images.import(&request, report)
    })
}

/// Reads and hashes all of an image.
#[utoipa::path(post, path = "/v1/images/verify", tag = "images", request_body = ImageQuery,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn verify(
    State(node): Floe,
    caller: Caller,
    Input(query): Input<ImageQuery>,
) -> Response {
    stream(node, "verify", move |node, report| {
        let query = node.pool.visible_image(query, &caller)?;
        node.images.verify_image(&query, report)
    })
}

/// Arranges an image's packs anew, so that what its machines use together lies side by side.
#[utoipa::path(post, path = "/v1/images/optimize", tag = "images", request_body = OptimizeRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn optimize(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<OptimizeRequest>,
) -> Response {
    stream(node, "optimize", move |node, report| {
        let request = node.pool.visible_image(request, &caller)?;
        node.traces.optimize(&request, report)
    })
}

/// Gives an image an additional name.
#[utoipa::path(post, path = "/v1/images/tag", tag = "images", request_body = TagRequest, responses((status = 200)))]
pub async fn tag(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<TagRequest>,
) -> Result<Json<()>, Failure> {
    answer(move || {
        let request = node.pool.visible_image(request, &caller)?;
        node.images.tag(&request)
    })
    .await
}

/// Removes a name from an image.
#[utoipa::path(post, path = "/v1/images/untag", tag = "images", request_body = TagRequest, responses((status = 200)))]
pub async fn untag(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<TagRequest>,
) -> Result<Json<()>, Failure> {
    answer(move || {
        let name = node.pool.visible_image(request.name, &caller)?;
        node.images.untag(&name)
    })
    .await
}

/// Removes a name, and with the last one the image.
#[utoipa::path(post, path = "/v1/images/remove", tag = "images", request_body = RemoveImageRequest,
    responses((status = 200, body = FreedReport), (status = 409, body = ApiError)))]
pub async fn remove(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<RemoveImageRequest>,
) -> Result<Json<FreedReport>, Failure> {
    answer(move || {
        let request = node.pool.visible_image(request, &caller)?;
        node.images.remove_image(&request)
    })
    .await
}

/// Writes a region of an image to a file.
#[utoipa::path(post, path = "/v1/images/export", tag = "images", request_body = ExportRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn export(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<ExportRequest>,
) -> Response {
    stream(node, "export", move |node, report| {
        let request = node.pool.visible_image(request, &caller)?;
        node.images.export(&request, report)
    })
}

/// Sends an image to a hub or a bucket, or writes it into a directory.
#[utoipa::path(post, path = "/v1/images/push", tag = "images", request_body = PushRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn push(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<PushRequest>,
) -> Response {
    stream(node, "push", move |node, report| {
        let request = node.pool.visible_image(request, &caller)?;
        node.push(&request, report)
    })
}

/// Copies an image between any two places.
#[utoipa::path(post, path = "/v1/images/copy", tag = "images", request_body = CopyRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn copy(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<CopyRequest>,
) -> Response {
    stream(node, "copy", move |node, report| {
        let request = node.pool.visible_image(request, &caller)?;
        node.images.copy(&request, report)
    })
}

/// Fetches a whole image.
#[utoipa::path(post, path = "/v1/images/pull", tag = "images", request_body = PullRequest,
    responses((status = 200, body = Event, content_type = "application/x-ndjson")))]
pub async fn pull(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<PullRequest>,
) -> Response {
    stream(node, "pull", move |node, report| {
        let request = node.pool.visible_image(request, &caller)?;
        node.images.pull(&request, report)
    })
}

/// The views that are mounted.
#[utoipa::path(get, path = "/v1/mounts", tag = "images", responses((status = 200, body = MountList)))]
pub async fn mounts(State(node): Floe) -> Result<Json<MountList>, Failure> {
    answer(move || Ok(node.views.views())).await
}

/// Shows an image's regions as plain files in a directory.
#[utoipa::path(post, path = "/v1/mounts", tag = "images", request_body = MountRequest,
    responses((status = 200, body = MountInfo)))]
pub async fn mount(
    State(node): Floe,
    caller: Caller,
    Input(request): Input<MountRequest>,
) -> Result<Json<MountInfo>, Failure> {
    answer(move || {
        let request = node.pool.visible_image(request, &caller)?;
        node.views.mount_view(&request)
    })
    .await
}

/// Ends a view.
#[utoipa::path(post, path = "/v1/mounts/remove", tag = "images", request_body = UnmountRequest, responses((status = 200)))]
pub async fn unmount(
    State(node): Floe,
    Input(request): Input<UnmountRequest>,
) -> Result<Json<()>, Failure> {
    answer(move || node.views.unmount_view(&request.path)).await
}
