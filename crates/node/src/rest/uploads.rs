//! Files on their way to an import.

use super::answer::{Failure, answer};
use crate::Node;
use axum::{
    Json,
    body::Body,
    extract::{Path, State},
};
use floe_api::{ApiError, UploadInfo};
use std::sync::Arc;

type Floe = State<Arc<Node>>;

/// Takes a file, such as a disk, from who can't name it by a path of this host. An import by its path follows.
#[utoipa::path(post, path = "/v1/uploads", tag = "images",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = UploadInfo), (status = 400, body = ApiError)))]
pub async fn receive(State(node): Floe, body: Body) -> Result<Json<UploadInfo>, Failure> {
    Ok(Json(
        node.images.receive_upload(body.into_data_stream()).await?,
    ))
}

/// Removes such a file.
#[utoipa::path(delete, path = "/v1/uploads/{id}", tag = "images", params(("id" = String, Path)),
    responses((status = 200), (status = 404, body = ApiError)))]
pub async fn drop(State(node): Floe, Path(id): Path<String>) -> Result<Json<()>, Failure> {
    answer(move || node.images.drop_upload(&id)).await
}
