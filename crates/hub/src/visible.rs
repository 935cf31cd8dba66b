//! Who may see an image: only the check of a caller makes a [`VisibleImage`], and everything that reads an image takes one.
//!
//! A handler takes it as an argument, and is not reached by those who may not see the image. One that forgets to does not compile: it
//! has no packs, no scope, no manifest and no owner's name to go on with. What the hub does by itself, such as filling a pool, it does
//! as the image's owner.

use super::access::Viewer;
use super::catalogue::{Catalogue, Holding};
use super::error::{ApiError, ApiResult};
use super::state::Hub;
use super::wire::{Path, parse_id};
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use floe_image::Hash;
use std::collections::HashMap;
use std::sync::Arc;

/// One owner's copy of an image that somebody may see.
#[derive(Clone, Debug)]
pub(crate) struct VisibleImage {
    id: Hash,
    holding: Holding,
}

impl Catalogue {
    /// Returns the copy of image `id` that `viewer` may see: the viewer's own, or a public one, or one that names the viewer.
    pub fn visible(&self, id: &Hash, viewer: Option<&str>) -> Option<VisibleImage> {
        let held = self.holdings.read();
        let holdings = held.get(id)?;
        let own = holdings.iter().find(|h| Some(&*h.owner) == viewer);
        let names = |h: &&Holding| h.readers.iter().any(|reader| Some(&**reader) == viewer);
        let other = || holdings.iter().find(|h| h.public);
        let other = own.or_else(other).or_else(|| holdings.iter().find(names));
        let holding = other?.clone();
        Some(VisibleImage { id: *id, holding })
    }
}

impl VisibleImage {
    /// Returns the image if `viewer` may see it. Otherwise it is refused like one that does not exist.
    pub fn check(hub: &Hub, id: &Hash, viewer: &Viewer) -> ApiResult<VisibleImage> {
        let found = hub.catalogue.visible(id, viewer.name());
        found.ok_or_else(|| ApiError::no_image(id))
    }

    /// Returns the image's id.
    pub fn id(&self) -> &Hash {
        &self.id
    }

    /// Returns the name of the user whose copy it is.
    pub fn owner(&self) -> &Arc<str> {
        &self.holding.owner
    }

    /// Returns whether everybody may see it.
    pub fn public(&self) -> bool {
        self.holding.public
    }

    /// Returns whose copy it is, with all who may see it.
    pub fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Returns it as the viewer's own, if it is.
    pub fn own(self, viewer: &Viewer) -> Result<OwnImage, VisibleImage> {
        match viewer.name() == Some(&*self.holding.owner) {
            true => Ok(OwnImage(self)),
            false => Err(self),
        }
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

/// An image of the caller's own, which alone may be changed.
#[derive(Clone, Debug)]
pub(crate) struct OwnImage(VisibleImage);

impl OwnImage {
    /// Returns the image if `viewer` owns it. A foreign image is refused like a missing one, unless the viewer may see it.
    pub fn check(hub: &Hub, id: &Hash, viewer: &Viewer) -> ApiResult<OwnImage> {
        viewer.user()?;
        let image = VisibleImage::check(hub, id, viewer)?;
        image.own(viewer).map_err(|foreign| {
            ApiError::new(
                StatusCode::FORBIDDEN,
                "not-yours",
                format!("image {id} belongs to {}", foreign.owner()),
                "push it yourself to have one of your own",
            )
        })
    }
}

impl std::ops::Deref for OwnImage {
    type Target = VisibleImage;

    fn deref(&self) -> &VisibleImage {
        &self.0
    }
}

impl FromRequestParts<Arc<Hub>> for OwnImage {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> ApiResult<OwnImage> {
        let (viewer, id) = asked_for(parts, hub).await?;
        OwnImage::check(hub, &id, &viewer)
    }
}
