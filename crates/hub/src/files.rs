//! Immutable files over HTTP: packs by range, manifests, layouts, and the repository as a static web server shows it.

use super::access::Viewer;
use super::error::{ApiError, ApiResult};
use super::state::{Hub, blocking};
use super::visible::VisibleImage;
use super::wire::{Path, counted, parse_id, parse_name};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use floe_front::Party;
use floe_image::{Hash, Layout};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that are read from the disk at a time for a long answer.
const READ_BYTES: u64 = 256 << 10;
/// Cache header of content that is named by an id and so never changes.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
/// The same for content that not everybody may read.
const IMMUTABLE_PRIVATE: HeaderValue =
    HeaderValue::from_static("private, max-age=31536000, immutable");
/// Cache header of what may change: a layout, a tag.
const MUTABLE: HeaderValue = HeaderValue::from_static("no-cache");
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Which bytes a `Range` header asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Whole,
    /// First and last byte, inclusive.
    Part(u64, u64),
    Unsatisfiable,
}

/// Parses one range of bytes (RFC 9110, 14.2). Several ranges or other units are ignored, as the RFC permits.
fn parse_range(value: Option<&HeaderValue>, size: u64) -> Wanted {
    let spec = value
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.trim().strip_prefix("bytes="));
    let Some((from, to)) = spec
        .filter(|spec| !spec.contains(','))
        .and_then(|spec| spec.trim().split_once('-'))
    else {
        return Wanted::Whole;
    };
    let number = |text: &str| {
        text.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| text.parse::<u64>().ok())
            .flatten()
    };
    match (from, to) {
        ("", suffix) => match number(suffix) {
            Some(0) => Wanted::Unsatisfiable,
            Some(_) if size == 0 => Wanted::Unsatisfiable,
            Some(last) => Wanted::Part(size.saturating_sub(last), size - 1),
            None => Wanted::Whole,
        },
        (from, to) => match (
            number(from),
            if to.is_empty() {
                Some(u64::MAX)
            } else {
                number(to)
            },
        ) {
            (Some(from), Some(to)) if from > to => Wanted::Whole,
            (Some(from), Some(_)) if from >= size => Wanted::Unsatisfiable,
            (Some(from), Some(to)) => Wanted::Part(from, to.min(size - 1)),
            _ => Wanted::Whole,
        },
    }
}

/// A part of a file that is being sent.
struct Part {
    hub: Arc<Hub>,
    party: Party,
    file: Arc<std::fs::File>,
    from: u64,
    left: u64,
}

impl Part {
    /// Reads the next piece when it is the client's turn; no thread waits while the client takes it.
    async fn next(mut self) -> Option<(io::Result<Vec<u8>>, Part)> {
        let length = self.left.min(READ_BYTES);
        if length == 0 {
            return None;
        }
        let (file, from) = (self.file.clone(), self.from);
        let piece = blocking(&self.hub, &self.party, move |_| {
            let mut piece = vec![0; length as usize];
            file.read_exact_at(&mut piece, from)?;
            Ok(piece)
        });
        let piece = piece.await.map_err(|e| io::Error::other(e.body.message));
        self.from += length;
        self.left = if piece.is_ok() { self.left - length } else { 0 };
        Some((piece, self))
    }
}

/// Answers with a file that an id names, or with a part of it.
// Long: one answer, header by header, in the order in which RFC 9110 wants them decided.
async fn immutable_file(
    hub: &Arc<Hub>,
    viewer: &Viewer,
    path: std::path::PathBuf,
    id: &Hash,
    public: bool,
    headers: &HeaderMap,
) -> ApiResult<Response> {
    let etag = format!("\"{id}\"");
    let etag = HeaderValue::from_str(&etag).map_err(io::Error::other)?;
    let named = |name: HeaderName, value: &HeaderValue| {
        headers.get(name).is_some_and(|list| {
            list.to_str().is_ok_and(|list| {
                list.split(',')
                    .any(|one| one.trim() == "*" || one.trim().as_bytes() == value)
            })
        })
    };
    let cache = if public { IMMUTABLE } else { IMMUTABLE_PRIVATE };
    let common = [
        (header::ETAG, etag.clone()),
        (header::CACHE_CONTROL, cache),
        (
            header::ACCEPT_RANGES,
            "bytes".parse().map_err(io::Error::other)?,
        ),
    ];
    if named(header::IF_NONE_MATCH, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, common).into_response());
    }
    let opened = blocking(hub, viewer.party(), move |_| {
        let file = std::fs::File::open(&path)?;
        let size = file.metadata()?.len();
        Ok((file, size))
    });
    let (file, size) = opened.await?;
    let range = headers
        .get(header::RANGE)
        .filter(|_| !headers.contains_key(header::IF_RANGE) || named(header::IF_RANGE, &etag));
    let (status, from, length) = match parse_range(range, size) {
        Wanted::Whole => (StatusCode::OK, 0, size),
        Wanted::Part(from, to) => (StatusCode::PARTIAL_CONTENT, from, to - from + 1),
        Wanted::Unsatisfiable => {
            let whole = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
            let error = ApiError::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "range",
                format!("the file has {size} bytes"),
                "ask for bytes within it",
            );
            return Ok((whole, error).into_response());
        }
    };
    let part = Part {
        hub: hub.clone(),
        party: viewer.party().clone(),
        file: Arc::new(file),
        from,
        left: length,
    };
    let body = if length <= READ_BYTES {
        match part.next().await {
            Some((bytes, _)) => Body::from(counted(hub, viewer, bytes?)?),
            None => Body::empty(),
        }
    } else {
        Body::from_stream(futures::stream::unfold(part, Part::next))
    };
    let mut response = (status, common, body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, BYTES);
    headers.insert(header::CONTENT_LENGTH, length.into());
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {from}-{}/{size}", from + length - 1);
        headers.insert(
            header::CONTENT_RANGE,
            range.parse().map_err(io::Error::other)?,
        );
    }
    Ok(response)
}

pub(crate) fn missing_pack(id: &Hash) -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "not-found",
        format!("there is no pack {id} here"),
        "read the image's layout again; packs may be laid out anew",
    )
}

/// Returns a pack, or a part of it (`Range`).
#[utoipa::path(
    get, path = "/v1/packs/{id}", tag = "read",
    params(("id" = String, Path), ("Range" = Option<String>, Header)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
              (status = 206, content_type = "application/octet-stream", body = Vec<u8>), (status = 304),
              (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody),
              (status = 416, body = super::ErrorBody)))]
pub(crate) async fn pack(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    send_pack(&hub, &viewer, parse_id(&id)?, &headers).await
}

async fn send_pack(
    hub: &Arc<Hub>,
    viewer: &Viewer,
    id: Hash,
    headers: &HeaderMap,
) -> ApiResult<Response> {
    let name = viewer.name().map(str::to_owned);
    let public = blocking(hub, viewer.party(), move |hub| {
        if hub.catalogue.pack_readable(&id, name.as_deref())?.is_none() {
            return Err(missing_pack(&id));
        }
        Ok(name.is_none() || hub.catalogue.is_public_pack(&id)?)
    })
    .await?;
    let path = hub.packs.pack_path(&id);
    immutable_file(hub, viewer, path, &id, public, headers).await
}

/// Returns an image's manifest.
#[utoipa::path(
    get, path = "/v1/images/{id}/manifest", tag = "read", params(("id" = String, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>), (status = 304),
              (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn manifest(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: VisibleImage,
    headers: HeaderMap,
) -> ApiResult<Response> {
    send_manifest(&hub, &viewer, &image, &headers).await
}

async fn send_manifest(
    hub: &Arc<Hub>,
    viewer: &Viewer,
    image: &VisibleImage,
    headers: &HeaderMap,
) -> ApiResult<Response> {
    let path = hub.manifest_of(image);
    immutable_file(hub, viewer, path, image.id(), image.public(), headers).await
}

/// Returns the list of packs that hold an image.
#[utoipa::path(
    get, path = "/v1/images/{id}/layout", tag = "read", params(("id" = String, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
              (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn layout(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: VisibleImage,
) -> ApiResult<Response> {
    send_layout(&hub, &viewer, image).await
}

async fn send_layout(hub: &Arc<Hub>, viewer: &Viewer, image: VisibleImage) -> ApiResult<Response> {
    let packs = blocking(hub, viewer.party(), move |hub| {
        Ok(hub.catalogue.packs(&image)?)
    })
    .await?;
    let headers = [
        (header::CONTENT_TYPE, BYTES),
        (header::CACHE_CONTROL, MUTABLE),
    ];
    Ok((headers, Layout { packs }.encode()).into_response())
}

/// Returns the same files under the names that a static web server gives them: `images/<id>`, `images/<id>.layout`,
/// `packs/<2 hex digits>/<id>.pack`, `tags/<name>`. The path is parsed, never joined to a folder.
#[utoipa::path(
    get, path = "/v1/static/{path}", tag = "read", params(("path" = String, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
              (status = 401, body = super::ErrorBody), (status = 404, body = super::ErrorBody)))]
pub(crate) async fn statically(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(path): Path<String>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let absent = || ApiError::no_image(format_args!("file {path:?}"));
    let seen = |id| VisibleImage::check(&hub, &parse_id(id)?, &viewer);
    let (folder, name) = path.split_once('/').ok_or_else(absent)?;
    match folder {
        "images" => match name.strip_suffix(".layout") {
            Some(id) => send_layout(&hub, &viewer, seen(id)?).await,
            None => send_manifest(&hub, &viewer, &seen(name)?, &headers).await,
        },
        "packs" => {
            let (prefix, file) = name.split_once('/').ok_or_else(absent)?;
            let id = parse_id(file.strip_suffix(".pack").ok_or_else(absent)?)?;
            if !id.to_string().starts_with(prefix) || prefix.len() != 2 {
                return Err(absent());
            }
            send_pack(&hub, &viewer, id, &headers).await
        }
        "tags" => {
            let name = parse_name(name)?;
            let user = viewer.name().map(str::to_owned);
            let found = blocking(&hub, viewer.party(), move |hub| {
                Ok(hub.catalogue.resolve(&name, user.as_deref())?)
            });
            let id = found.await?.ok_or_else(absent)?;
            Ok(([(header::CACHE_CONTROL, MUTABLE)], format!("{id}\n")).into_response())
        }
        _ => Err(absent()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_http_says() {
        let range = |text: &'static str| parse_range(Some(&HeaderValue::from_static(text)), 100);
        assert_eq!(parse_range(None, 100), Wanted::Whole);
        assert_eq!(range("bytes=0-9"), Wanted::Part(0, 9));
        assert_eq!(range("bytes=90-"), Wanted::Part(90, 99));
        assert_eq!(range("bytes=90-1000"), Wanted::Part(90, 99));
        assert_eq!(range("bytes=-10"), Wanted::Part(90, 99));
        assert_eq!(range("bytes=-1000"), Wanted::Part(0, 99));
        assert_eq!(range("bytes=100-"), Wanted::Unsatisfiable);
        assert_eq!(range("bytes=-0"), Wanted::Unsatisfiable);
        for odd in [
            "bytes=9-0",
            "bytes=a-b",
            "items=0-1",
            "bytes=0-1,5-6",
            "bytes=+1-2",
            "bytes=",
            "bytes=--",
        ] {
            assert_eq!(range(odd), Wanted::Whole, "{odd}");
        }
        assert_eq!(
            parse_range(Some(&HeaderValue::from_static("bytes=-5")), 0),
            Wanted::Unsatisfiable
        );
    }
}
