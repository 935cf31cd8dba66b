//! The image that a request names, found only for a sender who may see it, or owns it.

use super::access::Viewer;
use super::error::{ApiError, ApiResult};
use super::state::Hub;
use super::visible::{OwnImage, VisibleImage};
use super::wire::{Path, parse_id};
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use floe_image::Hash;
use std::collections::HashMap;
use std::sync::Arc;

impl VisibleImage {
    /// Returns the image if `viewer` may see it. Otherwise it is refused like one that does not exist.
    pub fn check(hub: &Hub, id: &Hash, viewer: &Viewer) -> ApiResult<VisibleImage> {
        let found = hub.catalogue.visible(id, viewer.name());
        found.ok_or_else(|| ApiError::no_image(id))
    }
}

impl OwnImage {
    /// Returns the image if `viewer` owns it. A foreign image is refused like a missing one, unless the viewer may see it.
    pub fn check(hub: &Hub, id: &Hash, viewer: &Viewer) -> ApiResult<OwnImage> {
        viewer.user()?;
        let image = VisibleImage::check(hub, id, viewer)?;
        image.own(viewer.name()).map_err(|foreign| {
            ApiError::new(
                StatusCode::FORBIDDEN,
                "not-yours",
                format!("image {id} belongs to {}", foreign.owner()),
                "push it yourself to have one of your own",
            )
        })
    }
}

/// Returns who sends a request, and which image its path names as `id`.
async fn asked_for(parts: &mut Parts, hub: &Arc<Hub>) -> ApiResult<(Viewer, Hash)> {
    let viewer = Viewer::from_request_parts(parts, hub).await?;
    let Path(named) = Path::<HashMap<String, String>>::from_request_parts(parts, hub).await?;
    let id = parse_id(named.get("id").map_or("", String::as_str))?;
    Ok((viewer, id))
}

impl FromRequestParts<Arc<Hub>> for VisibleImage {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> ApiResult<VisibleImage> {
        let (viewer, id) = asked_for(parts, hub).await?;
        VisibleImage::check(hub, &id, &viewer)
    }
}

impl FromRequestParts<Arc<Hub>> for OwnImage {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> ApiResult<OwnImage> {
        let (viewer, id) = asked_for(parts, hub).await?;
        OwnImage::check(hub, &id, &viewer)
    }
}
