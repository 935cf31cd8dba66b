//! Thumbnails of the catalogue's images, read from their packs.

use super::access::Viewer;
use super::error::{ApiError, ApiResult};
use super::packs::Scope;
use super::state::{Hub, blocking};
use super::visible::VisibleImage;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use floe_front::page::thumbnail::{Keep, THUMB_BYTES_MAX, THUMB_REGION, answer, is_png};
use floe_image::{CHUNK_SIZE, CHUNKS_PER_SEGMENT, Hash, Kind, Manifest, Segment};
use std::sync::Arc;

/// Most images for which it is remembered whether they have a thumbnail; beyond that, all are forgotten.
const REMEMBERED_MAX: usize = 64 * 1024;

/// Returns whether an image has a thumbnail. Blocks.
pub(crate) fn there(hub: &Hub, image: &VisibleImage) -> bool {
    if let Some(known) = hub.thumbnails.lock().get(image.id()) {
        return *known;
    }
    let Ok(bytes) = std::fs::read(hub.manifest_of(image)) else {
        return false; // not remembered: it can't be read now
    };
    let found =
        Manifest::decode(&bytes).is_ok_and(|manifest| manifest.region(THUMB_REGION).is_some());
    let mut known = hub.thumbnails.lock();
    if known.len() >= REMEMBERED_MAX {
        known.clear();
    }
    known.insert(*image.id(), found);
    found
}

/// Returns the screen at an image's capture, as PNG.
#[utoipa::path(
    get, path = "/v1/images/{id}/thumbnail", tag = "catalogue", params(("id" = String, Path)),
    responses((status = 200, content_type = "image/png", body = Vec<u8>), (status = 304),
              (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn thumbnail(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: VisibleImage,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let id = *image.id();
    let keep = if image.public() {
        Keep::Public
    } else {
        Keep::Private
    };
    let png = blocking(&hub, viewer.party(), move |hub| {
        let scope = match hub.packs.scope(&image) {
            Some(scope) => scope,
            None => hub.load_scope(&image)?,
        };
        Ok(read(hub, &scope, &image))
    });
    let png = png.await?.filter(|png| is_png(png));
    let png = png.ok_or_else(|| ApiError::no_image(format_args!("{id} with a thumbnail")))?;
    Ok(answer(&id, png, keep, &headers))
}

/// Returns the region's bytes; `None` if there is no such region, or a pack is damaged.
fn read(hub: &Hub, scope: &Scope, image: &VisibleImage) -> Option<Vec<u8>> {
    let manifest = Manifest::decode(&std::fs::read(hub.manifest_of(image)).ok()?).ok()?;
    let region = manifest.region(THUMB_REGION)?;
    if region.size > THUMB_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::with_capacity(region.size as usize + CHUNK_SIZE);
    for segment in &region.segments {
        let segment = match segment.is_zero() {
            true => Segment::new(),
            false => Segment::decode(&item(hub, scope, Kind::Segment, segment)?).ok()?,
        };
        for slot in 0..CHUNKS_PER_SEGMENT {
            if bytes.len() as u64 >= region.size {
                break;
            }
            match segment.get(slot) {
                hash if hash.is_zero() => bytes.resize(bytes.len() + CHUNK_SIZE, 0),
                hash => bytes.extend(item(hub, scope, Kind::Chunk, &hash)?),
            }
        }
    }
    bytes.truncate(region.size as usize);
    Some(bytes)
}

fn item(hub: &Hub, scope: &Scope, kind: Kind, hash: &Hash) -> Option<Vec<u8>> {
    let place = scope.find(kind, hash)?;
    let pack = scope.packs.get(place.pack as usize)?;
    let frame = hub.packs.frame(pack, place.at.frame, &mut None).ok()?;
    Some(frame.item(place.at.slot).ok()?.to_vec())
}
