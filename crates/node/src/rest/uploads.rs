//! Files that are uploaded to be imported.

use super::answer::{Failure, Path, answer};
use crate::Node;
use axum::{Json, body::Body, extract::State};
use floe_api::{ApiError, UploadInfo};
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// Receives a file, such as a disk, from a client that can't name it by a path on this host. An import with the returned path
/// follows.
#[utoipa::path(post, path = "/v1/uploads", tag = "images",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = UploadInfo), (status = 400, body = ApiError)))]
pub async fn receive(State(node): Floe, body: Body) -> Result<Json<UploadInfo>, Failure> {
    Ok(Json(
        node.images.receive_upload(body.into_data_stream()).await?,
    ))
}

/// Removes an uploaded file.
#[utoipa::path(delete, path = "/v1/uploads/{id}", tag = "images", params(("id" = String, Path)),
    responses((status = 200), (status = 404, body = ApiError)))]
pub async fn drop(State(node): Floe, Path(id): Path<String>) -> Result<Json<()>, Failure> {
    answer(move || node.images.drop_upload(&id)).await
}
