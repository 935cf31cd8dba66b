//! The interface through which clones on other hosts read their parent's state: the hub's interface for reading, for one
//! image per fork, with the fork's own token. That token opens nothing else on this node. What a machine is that moves to another node is
//! read in the same way, with a token of its own (`lent`).

use super::Forks;
use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{DefaultBodyLimit, Path, Query, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use floe_api::{ApiError, ErrorCode, hub::ENCODING_HEADER};
use floe_image::{
    Encoding, FRAME_MAX_CHUNKS, Hash, Kind, ReadRequest, ResponseEncoder, batch, compress_frame,
};
use floe_inventory::inventory::record::Origin;
use floe_source::{Fetcher, Request, SourceError};
use serde::Deserialize;
use std::{collections::HashMap, io, sync::Arc, time::Duration};

/// The interface's path below the page's address.
pub const PATH: &str = "/fork";
/// zstd level for what is packed while a guest waits: the fastest.
const LEVEL: i32 = 1;
/// How long a read may take here; it may have to ask one of the parent's sources.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

type Floe = State<Arc<Forks>>;
type Answered = Result<Response, Refusal>;

/// A refusal as an HTTP response.
struct Refusal(StatusCode, ApiError);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

fn refusal(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Refusal {
    let error = ApiError {
        code,
        message: message.into(),
        fix: String::new(),
    };
    Refusal(status, error)
}

/// The answer for a wrong token: as if the image did not exist.
fn absent() -> Refusal {
    refusal(
        StatusCode::NOT_FOUND,
        ErrorCode::NotFound,
        "there is no such image",
    )
}

/// How answers travel to the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Between members of a cluster, encrypted.
    Sealed,
    /// In clear text over the page's port, for forks that were requested so only.
    Clear,
}

/// Returns the routes.
pub fn router(forks: Arc<Forks>, way: Way) -> Router {
    let routes = Router::new()
        .route("/v1/resolve", get(resolve))
        .route("/v1/images/{id}/manifest", get(manifest))
        .route("/v1/images/{id}/read", post(read))
        .fallback(async || absent())
        .layer(Extension(way))
        .layer(DefaultBodyLimit::max(batch::REQUEST_BYTES_MAX))
        .with_state(forks);
    Router::new().nest(PATH, routes)
}

/// Returns the requested image if the token belongs to its fork.
fn allowed(forks: &Forks, way: Way, headers: &HeaderMap, id: &str) -> Result<Hash, Refusal> {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let id: Hash = id.parse().map_err(|_| absent())?;
    match token {
        Some(token) if forks.records.opens(token.trim(), &id, way == Way::Clear) => Ok(id),
        Some(token) if way == Way::Sealed && forks.lent.opens(token.trim(), &id) => Ok(id),
        Some(_) => Err(absent()),
        None => Err(refusal(
            StatusCode::UNAUTHORIZED,
            ErrorCode::Refused,
            "this is for clones of this node's machines",
        )),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(SourceError::Missing { .. })) => Err(absent()),
        // the client tries again later
        Ok(Err(error)) => Err(refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::Unreachable,
            error.to_string(),
        )),
        Err(error) => {
            tracing::error!(%error, "a read for a clone panicked");
            Err(refusal(
                StatusCode::INTERNAL_SERVER_ERROR,
                ErrorCode::Failed,
                "the node made a mistake",
            ))
        }
    }
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

async fn resolve(
    State(forks): Floe,
    Extension(way): Extension<Way>,
    headers: HeaderMap,
    Query(name): Query<Name>,
) -> Answered {
    let id = allowed(&forks, way, &headers, &name.name)?;
    let here = blocking(move || {
        let fetcher = here(&forks)?;
        fetcher.source().resolve(&id.to_string())
    });
    here.await?;
    Ok(Json(serde_json::json!({ "id": id.to_string() })).into_response())
}

async fn manifest(
    State(forks): Floe,
    Extension(way): Extension<Way>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Answered {
    let id = allowed(&forks, way, &headers, &id)?;
    let manifest = blocking(move || {
        let fetcher = here(&forks)?;
        fetcher.source().manifest(&id)
    });
    Ok(bytes(manifest.await?.encode()))
}

async fn read(
    State(forks): Floe,
    Extension(way): Extension<Way>,
    headers: HeaderMap,
    Path(id): Path<String>,
    body: Bytes,
) -> Answered {
    let id = allowed(&forks, way, &headers, &id)?;
    let bad = |why: String| refusal(StatusCode::BAD_REQUEST, ErrorCode::Usage, why);
    let request = ReadRequest::decode(&body).map_err(|error| bad(error.to_string()))?;
    let asked = headers.get(ENCODING_HEADER).map(HeaderValue::as_bytes);
    let encoding = Encoding::asked(asked)
        .ok_or_else(|| bad("x-floe-encoding is neither raw nor zstd".into()))?;
    let answer = blocking(move || {
        let fetcher = here(&forks)?;
        let mut got: HashMap<Hash, Vec<u8>> = HashMap::new();
        let limits = Request::demand(READ_TIMEOUT);
        let wants = &request.wants;
        let result = fetcher
            .source()
            .read(&id, wants, &limits, &mut |_, hash, bytes| {
                got.entry(hash).or_insert_with(|| bytes.to_vec());
            });
        match result {
            Ok(()) | Err(SourceError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
        encode(wants, &got, encoding).map_err(|error| SourceError::Local {
            what: "an answer".into(),
            reason: error.to_string(),
        })
    });
    Ok(bytes(answer.await?))
}

/// Encodes an answer: the items that there are, in the order of the request, in frames as full as possible.
fn encode(
    wants: &[(Kind, Hash)],
    got: &HashMap<Hash, Vec<u8>>,
    encoding: Encoding,
) -> io::Result<Vec<u8>> {
    let raw: usize = got.values().map(Vec::len).sum();
    let mut out = ResponseEncoder::new(Vec::with_capacity(raw + 64 * wants.len() + 64))?;
    for of in [Kind::Segment, Kind::Chunk] {
        let here = wants.iter().filter_map(|(kind, hash)| {
            let bytes = got.get(hash).filter(|_| *kind == of)?;
            Some((*hash, bytes.as_slice()))
        });
        let here: Vec<(Hash, &[u8])> = here.collect();
        let at_a_time = match of {
            Kind::Segment => 1,
            Kind::Chunk => FRAME_MAX_CHUNKS,
        };
        for frame in here.chunks(at_a_time) {
            let hashes: Vec<Hash> = frame.iter().map(|(hash, _)| *hash).collect();
            let items: Vec<&[u8]> = frame.iter().map(|(_, bytes)| *bytes).collect();
            let packed = match encoding {
                Encoding::Raw => items.concat(),
                Encoding::Zstd => compress_frame(of, &items, LEVEL),
            };
            out.frame(of, &hashes, encoding, &packed)?;
        }
    }
    for (kind, hash) in wants.iter().filter(|(_, hash)| !got.contains_key(hash)) {
        out.missing(*kind, hash)?;
    }
    out.finish()
}

/// Returns a fetcher for all images of this node.
fn here(forks: &Forks) -> Result<Arc<Fetcher>, SourceError> {
    let fetcher = forks.images.sources.fetcher(&Origin::default());
    fetcher.map_err(|error| SourceError::Local {
        what: "this node's images".into(),
        reason: error.to_string(),
    })
}

fn bytes(bytes: Vec<u8>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, Body::from(bytes)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_image::{CHUNK_SIZE, read_response};

    #[test]
    fn an_answer_has_each_item_once_and_says_what_is_missing() {
        let chunk = |n: u8| vec![n; CHUNK_SIZE];
        let hash = |n: u8| Hash::of(&chunk(n));
        let mut wants: Vec<(Kind, Hash)> = (1..=40).map(|n| (Kind::Chunk, hash(n))).collect();
        let got: HashMap<Hash, Vec<u8>> = (1..=39).map(|n| (hash(n), chunk(n))).collect();
        let table = vec![7; Kind::Segment.raw_size()];
        let table_hash = Hash::of(&table);
        wants.push((Kind::Segment, table_hash));
        let mut got = got;
        got.insert(table_hash, table.clone());
        for encoding in [Encoding::Raw, Encoding::Zstd] {
            let answer = encode(&wants, &got, encoding).unwrap();
            let mut seen = Vec::new();
            let mut missing = Vec::new();
            let each = |record: floe_image::Record| {
                if let floe_image::Record::Missing { hash, .. } = &record {
                    missing.push(*hash);
                }
                for (_, hash, bytes) in record.items() {
                    assert_eq!(got[&hash], bytes);
                    seen.push(hash);
                }
                Ok(())
            };
            read_response(&answer[..], wants.len(), each).unwrap();
            assert_eq!((seen.len(), missing), (40, vec![hash(40)]));
        }
    }
}
