//! Uploads: clients send only what the hub lacks, in packs that are checked as they arrive; the image becomes visible
//! when all is there.
//!
//! An upload is identified by its owner and manifest: beginning it again continues it, on any connection and after any
//! restart. Whatever was acknowledged is on the disk. `have` considers only packs of images that the owner may read anyway
//! and packs that this upload has sent, so nobody can find out by it what others keep private.

use super::access::Viewer;
use super::allowed;
use super::catalogue::Upload;
use super::disk::{put_in_place, write_aside, write_durably};
use super::error::{ApiError, ApiResult};
use super::packs::{Scope, verify_pack};
use super::publish::{self, Wish};
use super::quota::{self, Opened};
use super::readers;
use super::state::{Hub, Remembered, blocking, blocking_long};
use super::wire::{Path, collect_body, json, parse_id, parse_name};
use super::{HAVE_INDEX_ITEMS_MAX, MANIFEST_BYTES_MAX};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use floe_api::hub::{CommitRequest, Committed, HAVE_ITEMS_MAX, HAVE_QUESTION_BYTES, UploadOpened};
use floe_front::telemetry;
use floe_image::{Hash, Kind, Manifest, PackRef};
use std::collections::BTreeSet;
use std::sync::Arc;

async fn owned(hub: &Arc<Hub>, viewer: &Viewer, key: String) -> ApiResult<Upload> {
    let owner = viewer.user()?.to_owned();
    blocking(hub, viewer.party(), move |hub| {
        hub.catalogue.upload(&key, &owner)?.ok_or_else(|| {
            ApiError::new(
                StatusCode::NOT_FOUND,
                "no-upload",
                "there is no such upload of yours; it may have expired or been committed",
                "begin it again with POST /v1/uploads; nothing that is published needs to be sent again",
            )
        })
    })
    .await
}

/// Begins an upload, or continues the owner's upload of the same manifest.
#[utoipa::path(
    post, path = "/v1/uploads", tag = "upload", request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = UploadOpened), (status = 401, body = super::ErrorBody),
              (status = 413, body = super::ErrorBody), (status = 422, body = super::ErrorBody),
              (status = 429, body = super::ErrorBody), (status = 507, body = super::ErrorBody)))]
pub(crate) async fn open(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Json<UploadOpened>> {
    let owner = viewer.user()?.to_owned();
    let max = MANIFEST_BYTES_MAX as u64;
    let bytes = collect_body(&hub, &viewer, body, &headers, "the manifest", max).await?;
    blocking(&hub, viewer.party(), move |hub| {
        Manifest::decode(&bytes).map_err(|e| refused("manifest", &e))?;
        let image = Hash::of(&bytes);
        hub.check_room(bytes.len() as u64)?;
        let (quota, max) = (allowed::quota_of(hub, &owner)?, hub.limits.uploads_max);
        let new = (&image, bytes.len() as u64);
        let upload = match hub.catalogue.open_upload(&owner, new, max, &quota)? {
            Opened::Upload(upload) => upload,
            Opened::BeyondQuota(used) => return Err(quota::exceeded(&owner, &used, &quota)),
            Opened::TooMany => {
                return Err(ApiError::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too-many-uploads",
                    format!("{owner} has {max} unfinished uploads, this hub's limit"),
                    "finish or cancel one of them, or wait until they expire",
                ));
            }
        };
        let folder = hub.staging(&upload.key);
        floe_store::private::make_dirs(&folder)?;
        write_durably(&folder.join("manifest"), &bytes)?;
        Ok(Json(UploadOpened {
            id: upload.key,
            image: image.to_string(),
            pack_bytes_max: hub.limits.pack_bytes_max,
            have_items_max: HAVE_ITEMS_MAX,
            expires_after_s: hub.limits.upload_expiry.as_secs(),
        }))
    })
    .await
}

fn refused(reason: &'static str, error: &dyn std::fmt::Display) -> ApiError {
    metrics::counter!(telemetry::HUB_UPLOADS_REFUSED, "reason" => reason).increment(1);
    ApiError::invalid(error.to_string())
}

/// Returns which items need not be sent: one bit for each question, least significant first.
///
/// The body is a list of kind (0 chunk, 1 segment) and hash, 33 bytes each. A segment's bit is set only if all of its
/// chunks are there too, so that a whole unchanged subtree takes one question.
#[utoipa::path(
    post, path = "/v1/uploads/{id}/have", tag = "upload", params(("id" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>), (status = 400, body = super::ErrorBody),
              (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody),
              (status = 503, body = super::ErrorBody, description = "the user asks faster than it may")))]
pub(crate) async fn have(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(key): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let upload = owned(&hub, &viewer, key).await?;
    let max = HAVE_ITEMS_MAX * HAVE_QUESTION_BYTES;
    let body = collect_body(&hub, &viewer, body, &headers, "the question", max as u64).await?;
    let questions = decode_questions(&body)?;
    allowed::pace(&hub, &upload.owner, questions.len()).await?;
    let bits = blocking(&hub, viewer.party(), move |hub| {
        let packs = candidates(hub, &upload)?;
        let mut needed = BTreeSet::new();
        let mut bits = vec![0u8; questions.len().div_ceil(8)];
        for (i, (kind, hash)) in questions.iter().enumerate() {
            if holds(hub, &packs, *kind, hash, &mut needed)? {
                bits[i / 8] |= 1 << (i % 8);
            }
        }
        // Packs that a yes was based on must stay until the commit.
        let needed: Vec<PackRef> = needed.into_iter().collect();
        hub.catalogue.need_packs(&upload.key, &needed)?;
        Ok(bits)
    })
    .await?;
    Ok(Bytes::from(bits).into_response())
}

/// Parses the body of `have`.
pub fn decode_questions(body: &[u8]) -> Result<Vec<(Kind, Hash)>, ApiErrorText> {
    if !body.len().is_multiple_of(HAVE_QUESTION_BYTES)
        || body.len() / HAVE_QUESTION_BYTES > HAVE_ITEMS_MAX
    {
        return Err(ApiErrorText(format!(
            "a question of {} bytes is no list of at most {HAVE_ITEMS_MAX} items of {HAVE_QUESTION_BYTES}",
            body.len()
        )));
    }
    let item = |item: &[u8]| {
        let kind = match item[0] {
            0 => Kind::Chunk,
            1 => Kind::Segment,
            other => {
                return Err(ApiErrorText(format!(
                    "{other} is no kind of item; 0 is a chunk, 1 a segment"
                )));
            }
        };
        let hash: [u8; 32] = item[1..]
            .try_into()
            .map_err(|_| ApiErrorText("a hash has 32 bytes".into()))?;
        Ok((kind, Hash(hash)))
    };
    body.chunks_exact(HAVE_QUESTION_BYTES).map(item).collect()
}

/// Why a question could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ApiErrorText(String);

impl From<ApiErrorText> for ApiError {
    fn from(error: ApiErrorText) -> Self {
        ApiError::bad(error.0, "send kind and hash of each item, 33 bytes")
    }
}

/// Returns the scopes that an upload may build on: what its owner may read anyway, the parent image first, and its own
/// packs.
fn candidates(hub: &Hub, upload: &Upload) -> ApiResult<Vec<Arc<Scope>>> {
    let staged: Vec<_> = hub
        .catalogue
        .upload_packs(&upload.key)?
        .into_iter()
        .filter(|pack| pack.staged)
        .map(|pack| pack.pack)
        .collect();
    let mut remembered = match hub.remembered(&upload.key) {
        Some(remembered) => remembered,
        None => {
            let bytes = std::fs::read(hub.staging(&upload.key).join("manifest"))?;
            let parent = Manifest::decode(&bytes)
                .map_err(|e| refused("manifest", &e))?
                .parent;
            let mut items = 0;
            let mut packs = Vec::new();
            for reference in hub
                .catalogue
                .visible_packs(&upload.owner, parent.as_ref())?
            {
                // Damaged packs must be sent again, so they do not count as present.
                let readable = match hub.packs.is_damaged(&reference.id) {
                    true => continue,
                    false => hub.scope_of(&[reference])?,
                };
                items += readable.len();
                packs.extend(readable.packs);
                // Answering "not here" wrongly costs the client some bytes; an unbounded index would use up the hub's
                // memory.
                if items > HAVE_INDEX_ITEMS_MAX {
                    break;
                }
            }
            Remembered {
                visible: Arc::new(Scope::new(packs)),
                staged: None,
            }
        }
    };
    let scope = match remembered.staged.take() {
        Some((count, scope)) if count == staged.len() => scope,
        _ => Arc::new(staged_scope(hub, &upload.key, &staged)?),
    };
    remembered.staged = Some((staged.len(), scope.clone()));
    let visible = remembered.visible.clone();
    hub.remember(&upload.key, remembered);
    Ok(vec![visible, scope])
}

fn staged_scope(hub: &Hub, key: &str, packs: &[PackRef]) -> ApiResult<Scope> {
    let packs = packs.iter().map(|pack| {
        let path = hub.staged_pack_path(key, &pack.id)?;
        Ok(hub.packs.pack(pack, path)?)
    });
    Ok(Scope::new(packs.collect::<ApiResult<_>>()?))
}

/// Returns whether an item is there with everything below it; adds the packs that contain these to the needed ones.
fn holds(
    hub: &Hub,
    scopes: &[Arc<Scope>],
    kind: Kind,
    hash: &Hash,
    needed: &mut BTreeSet<PackRef>,
) -> ApiResult<bool> {
    let find = |kind, hash: &Hash| {
        scopes
            .iter()
            .find_map(|scope| scope.find(kind, hash).map(|place| (scope, place)))
    };
    let Some((scope, place)) = find(kind, hash) else {
        return Ok(false);
    };
    let mut rests_on = vec![scope.packs[place.pack as usize].reference];
    if kind == Kind::Segment {
        let pack = scope.packs[place.pack as usize].reference.id;
        let segment = match publish::read_segment(hub, scope, place, hash) {
            Err(_) if hub.packs.is_damaged(&pack) => return Ok(false),
            segment => segment?,
        };
        for chunk in segment.hashes().iter().filter(|chunk| !chunk.is_zero()) {
            let Some((scope, place)) = find(Kind::Chunk, chunk) else {
                return Ok(false);
            };
            rests_on.push(scope.packs[place.pack as usize].reference);
        }
    }
    needed.extend(rests_on);
    Ok(true)
}

/// Receives a pack: checks each item, writes it to the disk, then acknowledges it.
#[utoipa::path(
    put, path = "/v1/uploads/{id}/packs/{pack}", tag = "upload", params(("id" = String, Path), ("pack" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204), (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody),
              (status = 413, body = super::ErrorBody), (status = 422, body = super::ErrorBody),
              (status = 429, body = super::ErrorBody), (status = 507, body = super::ErrorBody)))]
pub(crate) async fn put_pack(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path((key, pack)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<StatusCode> {
    let id = parse_id(&pack)?;
    let upload = owned(&hub, &viewer, key).await?;
    let max = hub.limits.pack_bytes_max;
    let bytes = collect_body(&hub, &viewer, body, &headers, "the pack", max).await?;
    blocking(&hub, viewer.party(), move |hub| {
        let room = allowed::room_of(hub, &upload.owner)?;
        let size = bytes.len() as u64;
        hub.catalogue.may_stage(&upload, (&id, size), &room)?;
        hub.check_room(size)?;
        let reference = verify_pack(&bytes, &id).map_err(|e| refused("pack", &e))?;
        let folder = hub.staging(&upload.key);
        let file = write_aside(&folder, &bytes)?;
        let path = folder.join(format!("{id}.pack"));
        let place = || put_in_place(file, &folder, &path);
        hub.catalogue.stage(&upload, &reference, &room, place)?;
        metrics::counter!(telemetry::HUB_UPLOAD_BYTES).increment(bytes.len() as u64);
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Walks the whole tree of the uploaded image, and publishes the image if it is complete.
#[utoipa::path(
    post, path = "/v1/uploads/{id}/commit", tag = "upload", params(("id" = String, Path)), request_body = CommitRequest,
    responses((status = 200, body = Committed), (status = 400, body = super::ErrorBody), (status = 401, body = super::ErrorBody),
              (status = 404, body = super::ErrorBody), (status = 409, body = super::ErrorBody),
              (status = 422, body = super::ErrorBody), (status = 507, body = super::ErrorBody)))]
pub(crate) async fn commit(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(key): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Json<Committed>> {
    let upload = owned(&hub, &viewer, key).await?;
    let request: CommitRequest = json(&hub, &viewer, body, &headers).await?;
    let name = request.name.as_deref().map(parse_name).transpose()?;
    blocking_long(&hub, viewer.party(), move |hub| {
        let folder = hub.staging(&upload.key);
        let manifest = std::fs::read(folder.join("manifest"))?;
        let packs = hub.catalogue.upload_packs(&upload.key)?;
        // A pack that was removed with its image since `have` relied on it counts as missing, not as an error; so does
        // a damaged one.
        let mut whole = Vec::with_capacity(packs.len());
        for pack in packs.into_iter().map(|staged| staged.pack) {
            let path = hub.staged_pack_path(&upload.key, &pack.id)?;
            let damaged = hub.packs.is_damaged(&pack.id) && !path.starts_with(&folder);
            if path.try_exists()? && !damaged {
                whole.push(hub.packs.pack(&pack, path)?);
            }
        }
        let scope = Scope::new(whole);
        let own = hub
            .catalogue
            .visible(&upload.image, Some(&upload.owner))
            .filter(|image| **image.owner() == *upload.owner);
        let public = request
            .public
            .unwrap_or_else(|| own.is_some_and(|image| image.public()));
        let readers = match public {
            true => Vec::new(),
            false => Manifest::decode_verified(&manifest, &upload.image)
                .map_or(Vec::new(), |manifest| readers::named_by(&manifest.config)),
        };
        let wish = Wish {
            owner: &upload.owner,
            public,
            readers: &readers,
            name: name.as_ref(),
            upload: Some(&upload.key),
        };
        let raw_bytes = publish::publish(hub, &upload.image, &manifest, &scope, &folder, &wish)
            .inspect_err(|_| {
                metrics::counter!(telemetry::HUB_UPLOADS_REFUSED, "reason" => "commit")
                    .increment(1);
            })?;
        hub.drop_upload(&upload.key)?;
        hub.sweep()?;
        Ok(Json(Committed {
            id: upload.image.to_string(),
            raw_bytes,
        }))
    })
    .await
}

/// Cancels an upload.
#[utoipa::path(
    delete, path = "/v1/uploads/{id}", tag = "upload", params(("id" = String, Path)),
    responses((status = 204), (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn cancel(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(key): Path<String>,
) -> ApiResult<StatusCode> {
    let upload = owned(&hub, &viewer, key).await?;
    blocking_long(&hub, viewer.party(), move |hub| {
        hub.drop_upload(&upload.key)?;
        hub.sweep()?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
