//! The batch read: the hot path of a page fault on another host.
//!
//! A read whose frames are all in memory is answered where the request is parsed: no other thread, no await after the
//! body. What needs the disk goes to a thread that may block; a large answer is sent from there piece by piece, so
//! that no request holds more than a few of them in memory.
//!
//! With zstd, a frame of which most items are wanted is sent as it lies in the pack, neighbours included; of others
//! only the wanted items are sent, packed anew: over a slow link 16 chunks for one cost more than 10 us of work.

use super::access::Viewer;
use super::error::{ApiError, ApiResult};
use super::shelf::{Frame, Pack, Scope};
use super::state::Hub;
use super::wire::{collect_body, parse_id, readable};
use crate::telemetry;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use floe_image::{Encoding, Hash, Kind, ReadRequest, ResponseEncoder, batch, compress_frame};
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How the records of the answer are packed: `raw` or `zstd`.
pub(crate) const ENCODING_HEADER: HeaderName = HeaderName::from_static("x-floe-encoding");
/// Most raw bytes that are answered on the spot: more would keep other connections of the thread waiting.
const INLINE_BYTES_MAX: usize = 256 << 10;
/// Most raw bytes of an answer that is built whole.
const WHOLE_BYTES_MAX: usize = 1 << 20;
/// Size of the pieces of larger answers.
const PIECE_BYTES: usize = 128 << 10;
/// Pieces that wait for a slow client.
const PIECES_AHEAD: usize = 4;
/// How long a piece waits for a client that reads nothing.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// zstd level for single items: the fastest, as a guest waits.
const LEVEL: i32 = 1;

/// Items of one frame that are wanted.
struct Group {
    pack: u32,
    frame: u32,
    /// One bit an item.
    mask: u16,
}

/// A request against a scope: what to send, in the order in which it was asked for.
struct Plan {
    scope: Arc<Scope>,
    groups: Vec<Group>,
    missing: Vec<(Kind, Hash)>,
    encoding: Encoding,
    raw_bytes: usize,
}

impl Plan {
    fn new(scope: Arc<Scope>, wants: &[(Kind, Hash)], encoding: Encoding) -> Plan {
        let mut plan = Plan {
            scope,
            groups: Vec::new(),
            missing: Vec::new(),
            encoding,
            raw_bytes: 0,
        };
        let mut known: HashMap<(u32, u32), usize> = HashMap::new();
        for (kind, hash) in wants {
            let Some(place) = plan.scope.find(*kind, hash) else {
                plan.missing.push((*kind, *hash));
                continue;
            };
            let key = (place.pack, place.at.frame);
            let at = *known.entry(key).or_insert_with(|| {
                plan.groups.push(Group {
                    pack: key.0,
                    frame: key.1,
                    mask: 0,
                });
                plan.groups.len() - 1
            });
            let bit = 1 << place.at.slot;
            if plan.groups[at].mask & bit == 0 {
                plan.groups[at].mask |= bit;
                plan.raw_bytes += kind.raw_size();
            }
        }
        plan
    }

    fn pack(&self, group: &Group) -> &Arc<Pack> {
        &self.scope.packs[group.pack as usize]
    }
}

fn write_group<W: Write>(
    out: &mut ResponseEncoder<W>,
    pack: &Pack,
    group: &Group,
    frame: &Frame,
    encoding: Encoding,
) -> io::Result<()> {
    let hashes = pack.index.frame_hashes(group.frame);
    let (wanted, items) = (
        group.mask.count_ones() as usize,
        usize::from(frame.info.items),
    );
    let kind = frame.info.kind;
    if encoding == Encoding::Zstd && wanted * 2 > items {
        return out.frame(kind, hashes, Encoding::Zstd, &frame.compressed);
    }
    let slots = || (0..items).filter(|slot| group.mask & (1 << slot) != 0);
    let written = frame.raw().map(|raw| {
        let size = kind.raw_size();
        if wanted == items {
            return out.frame(kind, hashes, Encoding::Raw, raw);
        }
        let item = |slot: usize| &raw[slot * size..(slot + 1) * size];
        let some: Vec<Hash> = slots().map(|slot| hashes[slot]).collect();
        match encoding {
            Encoding::Raw if wanted == 1 => out.frame(
                kind,
                &some,
                encoding,
                item(group.mask.trailing_zeros() as usize),
            ),
            Encoding::Raw => out.frame(
                kind,
                &some,
                encoding,
                &slots().map(item).collect::<Vec<_>>().concat(),
            ),
            Encoding::Zstd => out.frame(
                kind,
                &some,
                encoding,
                &compress_frame(kind, &slots().map(item).collect::<Vec<_>>(), LEVEL),
            ),
        }
    });
    match written {
        Ok(written) => written,
        // A rotten pack: another source may have it, and this answer goes on.
        Err(error) => {
            tracing::error!(pack = %pack.reference.id, frame = group.frame, %error, "a stored pack is damaged");
            slots().try_for_each(|slot| out.missing(kind, &hashes[slot]))
        }
    }
}

/// The whole answer if all of it is in memory.
fn from_memory(hub: &Hub, plan: &Plan) -> Option<Vec<u8>> {
    let frames: Option<Vec<_>> = plan
        .groups
        .iter()
        .map(|group| hub.shelf.cached(plan.pack(group), group.frame))
        .collect();
    let mut answer =
        Vec::with_capacity(plan.raw_bytes + 64 + 64 * (plan.groups.len() + plan.missing.len()));
    let mut write = || {
        let mut out = ResponseEncoder::new(&mut answer)?;
        for (group, frame) in plan.groups.iter().zip(frames.iter().flatten()) {
            write_group(&mut out, plan.pack(group), group, frame, plan.encoding)?;
        }
        write_missing(&mut out, plan)?;
        out.finish().map(|_| ())
    };
    frames.as_ref()?;
    // Writing to memory fails only if a frame is out of bounds, which no verified pack is.
    write().ok().map(|()| answer)
}

fn write_missing<W: Write>(out: &mut ResponseEncoder<W>, plan: &Plan) -> io::Result<()> {
    plan.missing
        .iter()
        .try_for_each(|(kind, hash)| out.missing(*kind, hash))
}

/// The answer with frames from memory or disk. Blocks.
fn from_disk<W: Write>(hub: &Hub, plan: &Plan, out: W) -> io::Result<W> {
    let mut out = ResponseEncoder::new(out)?;
    let mut open = (u32::MAX, None);
    for group in &plan.groups {
        if open.0 != group.pack {
            open = (group.pack, None);
        }
        let pack = plan.pack(group);
        let frame = hub.shelf.frame(pack, group.frame, &mut open.1)?;
        write_group(&mut out, pack, group, &frame, plan.encoding)?;
    }
    write_missing(&mut out, plan)?;
    out.finish()
}

/// Sends what is written to it in pieces; fails when the client has gone or reads nothing.
struct Pieces {
    buffer: Vec<u8>,
    to: mpsc::Sender<io::Result<Bytes>>,
    runtime: tokio::runtime::Handle,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = Bytes::from(std::mem::take(&mut self.buffer));
        count_bytes(piece.len());
        let send = async { tokio::time::timeout(STALL_TIMEOUT, self.to.send(Ok(piece))).await };
        match self.runtime.block_on(send) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

fn count_bytes(bytes: usize) {
    metrics::counter!(telemetry::HUB_READ_BYTES).increment(bytes as u64);
}

fn answer(body: Body, encoding: Encoding) -> Response {
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (ENCODING_HEADER, HeaderValue::from_static(encoding.name())),
    ];
    (headers, body).into_response()
}

/// Reads many chunks and segments of one image in one request.
///
/// Body and answer are in floe's batch format (docs/format.md). Items that the image does not have are answered by
/// records that say so.
#[utoipa::path(
    post, path = "/v1/images/{id}/read", tag = "read",
    params(("id" = String, Path, description = "64 hex digits"),
           ("x-floe-encoding" = Option<String>, Header, description = "raw or zstd (default)")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
              (status = 400, body = super::ErrorBody), (status = 401, body = super::ErrorBody),
              (status = 404, body = super::ErrorBody), (status = 413, body = super::ErrorBody)))]
pub(crate) async fn read(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let id = parse_id(&id)?;
    let holding = readable(&hub, &id, &viewer)?;
    let asked = headers.get(&ENCODING_HEADER).map(HeaderValue::as_bytes);
    let encoding = Encoding::asked(asked).ok_or_else(|| {
        ApiError::bad("x-floe-encoding is neither raw nor zstd", "use one of them")
    })?;
    let body = collect_body(
        body,
        &headers,
        "the batch request",
        batch::REQUEST_BYTES_MAX as u64,
        &hub.limits,
    )
    .await?;
    let request = ReadRequest::decode(&body).map_err(|e| {
        ApiError::bad(
            e.to_string(),
            "send a batch request as docs/format.md draws it",
        )
    })?;
    let wants = request.wants;

    let plan = match hub.shelf.scope(&id, &holding.owner) {
        Some(scope) => {
            let plan = Plan::new(scope, &wants, encoding);
            if plan.raw_bytes <= INLINE_BYTES_MAX
                && let Some(bytes) = from_memory(&hub, &plan)
            {
                metrics::counter!(telemetry::HUB_READ_ITEMS, "from" => "memory")
                    .increment(wants.len() as u64);
                count_bytes(bytes.len());
                return Ok(answer(Body::from(bytes), encoding));
            }
            Some(plan)
        }
        None => None,
    };

    metrics::counter!(telemetry::HUB_READ_ITEMS, "from" => "disk").increment(wants.len() as u64);
    let permit = hub
        .disk_readers
        .clone()
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (to, mut pieces) = mpsc::channel(PIECES_AHEAD);
    let (ready, is_ready) = tokio::sync::oneshot::channel::<ApiResult<Option<Vec<u8>>>>();
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let plan = match plan.map_or_else(
            || {
                hub.load_scope(&id, &holding)
                    .map(|scope| Plan::new(scope, &wants, encoding))
            },
            Ok,
        ) {
            Ok(plan) => plan,
            Err(error) => return drop(ready.send(Err(error))),
        };
        if plan.raw_bytes <= WHOLE_BYTES_MAX {
            let whole = from_disk(&hub, &plan, Vec::new())
                .map(Some)
                .map_err(ApiError::from);
            return drop(ready.send(whole));
        }
        if ready.send(Ok(None)).is_err() {
            return;
        }
        let pieces = Pieces {
            buffer: Vec::with_capacity(PIECE_BYTES * 2),
            to: to.clone(),
            runtime: runtime.clone(),
        };
        if let Err(error) = from_disk(&hub, &plan, pieces).and_then(|mut pieces| pieces.flush()) {
            tracing::debug!(%error, "a batch read ended early");
            // Cut the answer off visibly: the client must not take it for whole.
            drop(runtime.block_on(async {
                tokio::time::timeout(STALL_TIMEOUT, to.send(Err(error))).await
            }));
        }
    });
    match is_ready
        .await
        .map_err(|_| ApiError::from(io::Error::other("the reading thread ended")))??
    {
        Some(whole) => {
            count_bytes(whole.len());
            Ok(answer(Body::from(whole), encoding))
        }
        None => {
            let stream = futures::stream::poll_fn(move |context| pieces.poll_recv(context));
            Ok(answer(Body::from_stream(stream), encoding))
        }
    }
}
