//! The batch read: the hot path of a page fault on another host.
//!
//! If all frames of a read are in memory, the answer is made where the request is parsed: no other thread, no await after
//! the body. What needs the disk is done on a thread that may block; each piece of a large answer is made there separately,
//! so a client that stops reading holds one piece in memory, and no thread.
//!
//! With zstd, a frame of which most items are wanted is sent as it is stored in the pack, including the other items. Of
//! other frames, only the wanted items are sent, compressed again: over a slow link, 16 chunks instead of one cost more
//! than 10 us of work.

use super::access::Viewer;
use super::disk::is_damage;
use super::error::{ApiError, ApiResult};
use super::packs::{Frame, Pack, Scope};
use super::state::{Hub, blocking};
use super::visible::VisibleImage;
use super::wire::{collect_body, counted};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use floe_api::hub::ENCODING_HEADER;
use floe_front::telemetry;
use floe_front::{Held, Party};
use floe_image::{Encoding, Hash, Kind, ReadRequest, ResponseEncoder, batch, compress_frame};
use futures::StreamExt;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

/// Most raw bytes that are answered from memory at once: more would delay other connections of the thread.
const INLINE_BYTES_MAX: usize = 256 << 10;
/// Size of the pieces of longer answers, in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// zstd level for single items: the fastest, because a guest waits.
const LEVEL: i32 = 1;

/// The wanted items of one frame.
struct Group {
    pack: u32,
    frame: u32,
    /// One bit per item.
    mask: u16,
}

/// What to send for a request, in the order in which it was requested.
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
    // A frame was checked when it was read into memory.
    written.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?
}

/// What answers a group without the disk.
enum Ready {
    /// Its frame.
    Frame(Arc<Frame>),
    /// The wanted items of it, from the pool's memory.
    Items(Vec<Hash>, Vec<Vec<u8>>),
}

/// Returns what a group is answered with if it is in memory.
fn ready(hub: &Hub, pack: &Pack, group: &Group) -> Option<Ready> {
    if let (Some(pool), Some(info)) = (&hub.pool, pack.index.frame(group.frame)) {
        let hashes = pack.index.frame_hashes(group.frame).iter().enumerate();
        let wanted = hashes.filter(|(slot, _)| group.mask & (1 << slot) != 0);
        let wanted: Vec<Hash> = wanted.map(|(_, hash)| *hash).collect();
        if let Some(items) = pool.items(info.kind, &wanted) {
            return Some(Ready::Items(wanted, items));
        }
    }
    hub.packs.cached(pack, group.frame).map(Ready::Frame)
}

fn write_ready<W: Write>(
    out: &mut ResponseEncoder<W>,
    pack: &Pack,
    group: &Group,
    ready: &Ready,
    encoding: Encoding,
) -> io::Result<()> {
    let (wanted, items) = match ready {
        Ready::Frame(frame) => return write_group(out, pack, group, frame, encoding),
        Ready::Items(wanted, items) => (wanted, items),
    };
    let Some(info) = pack.index.frame(group.frame) else {
        return Ok(());
    };
    let slices: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
    match encoding {
        Encoding::Raw => out.frame(info.kind, wanted, encoding, &slices.concat()),
        Encoding::Zstd => {
            let packed = compress_frame(info.kind, &slices, LEVEL);
            out.frame(info.kind, wanted, encoding, &packed)
        }
    }
}

/// Writes records that say that a group's items are missing.
fn write_lost<W: Write>(
    out: &mut ResponseEncoder<W>,
    pack: &Pack,
    group: &Group,
) -> io::Result<()> {
    let Some(frame) = pack.index.frame(group.frame) else {
        return Ok(());
    };
    let hashes = pack.index.frame_hashes(group.frame).iter().enumerate();
    let mut lost = hashes.filter(|(slot, _)| group.mask & (1 << slot) != 0);
    lost.try_for_each(|(_, hash)| out.missing(frame.kind, hash))
}

/// Returns the whole answer if all of it is in memory.
fn from_memory(hub: &Hub, plan: &Plan) -> Option<Vec<u8>> {
    let all: Option<Vec<_>> = plan
        .groups
        .iter()
        .map(|group| ready(hub, plan.pack(group), group))
        .collect();
    let mut answer =
        Vec::with_capacity(plan.raw_bytes + 64 + 64 * (plan.groups.len() + plan.missing.len()));
    let mut write = || {
        let mut out = ResponseEncoder::new(&mut answer)?;
        for (group, ready) in plan.groups.iter().zip(all.iter().flatten()) {
            write_ready(&mut out, plan.pack(group), group, ready, plan.encoding)?;
        }
        write_missing(&mut out, plan)?;
        out.finish().map(|_| ())
    };
    all.as_ref()?;
    // Writing to memory fails only if an item is outside of its frame, which no verified pack has.
    write().ok().map(|()| answer)
}

fn write_missing<W: Write>(out: &mut ResponseEncoder<W>, plan: &Plan) -> io::Result<()> {
    plan.missing
        .iter()
        .try_for_each(|(kind, hash)| out.missing(*kind, hash))
}

/// An answer that is sent piece by piece. Each piece is made in the client's turn; between two turns, only the piece that
/// the client has not yet taken is held, and no thread.
struct Sending {
    hub: Arc<Hub>,
    party: Party,
    plan: Plan,
    next: usize,
    out: Option<ResponseEncoder<Vec<u8>>>,
    /// Number and file of the pack that was read last.
    open: (u32, Option<File>),
    _held: Held,
}

impl Sending {
    /// Returns the next piece. Blocks.
    fn piece(&mut self) -> io::Result<Vec<u8>> {
        let Some(mut out) = self.out.take() else {
            return Ok(Vec::new());
        };
        while let Some(group) = self.plan.groups.get(self.next) {
            if out.get_mut().len() >= PIECE_BYTES {
                let piece = std::mem::take(out.get_mut());
                self.out = Some(out);
                return Ok(piece);
            }
            self.next += 1;
            if self.open.0 != group.pack {
                self.open = (group.pack, None);
            }
            let pack = self.plan.pack(group);
            if let Some(ready @ Ready::Items(..)) = ready(&self.hub, pack, group) {
                write_ready(&mut out, pack, group, &ready, self.plan.encoding)?;
                continue;
            }
            match self.hub.packs.frame(pack, group.frame, &mut self.open.1) {
                Ok(frame) => write_group(&mut out, pack, group, &frame, self.plan.encoding)?,
                // A damaged pack: another source may have its items, and the answer continues.
                Err(error) if is_damage(&error) => {
                    self.hub.found_damaged(&pack.reference.id, &error);
                    write_lost(&mut out, pack, group)?;
                }
                Err(error) => return Err(error),
            }
        }
        write_missing(&mut out, &self.plan)?;
        out.finish()
    }

    /// Makes the next piece when it is the client's turn.
    async fn next(self) -> Option<(io::Result<Vec<u8>>, Option<Sending>)> {
        self.out.as_ref()?;
        let (hub, party) = (self.hub.clone(), self.party.clone());
        let made = blocking(&hub, &party, move |_| {
            let mut sending = self;
            let piece = sending.piece()?;
            Ok((piece, sending))
        });
        Some(match made.await {
            Ok((piece, sending)) => {
                count_bytes(piece.len());
                (Ok(piece), Some(sending))
            }
            // The connection is cut, so that the client does not take the answer for complete.
            Err(error) => (Err(io::Error::other(error.body.message)), None),
        })
    }
}

pub(crate) fn count_bytes(bytes: usize) {
    metrics::counter!(telemetry::HUB_READ_BYTES).increment(bytes as u64);
}

fn answer(body: Body, encoding: Encoding) -> Response {
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            HeaderName::from_static(ENCODING_HEADER),
            HeaderValue::from_static(encoding.name()),
        ),
    ];
    (headers, body).into_response()
}

/// Reads many chunks and segments of one image in one request.
///
/// Body and answer are in floe's batch format (docs/format.md). For an item that the image does not have, the answer
/// contains a record that says so.
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
    image: VisibleImage,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let asked = headers.get(ENCODING_HEADER).map(HeaderValue::as_bytes);
    let encoding = Encoding::asked(asked).ok_or_else(|| {
        ApiError::bad("x-floe-encoding is neither raw nor zstd", "use one of them")
    })?;
    let max = batch::REQUEST_BYTES_MAX as u64;
    let body = collect_body(&hub, &viewer, body, &headers, "the batch request", max).await?;
    let request = ReadRequest::decode(&body).map_err(|e| {
        ApiError::bad(
            e.to_string(),
            "send a batch request as docs/format.md draws it",
        )
    })?;
    let wants = request.wants;
    if let Some(pool) = &hub.pool {
        pool.used(image.id());
    }

    let plan = match hub.packs.scope(&image) {
        Some(scope) => {
            let busy = || ApiError::busy("this read did not get its turn for a minute");
            let turn = hub.gate.enter(viewer.party()).await.ok_or_else(busy)?;
            let plan = Plan::new(scope, &wants, encoding);
            if plan.raw_bytes <= INLINE_BYTES_MAX
                && let Some(bytes) = from_memory(&hub, &plan)
            {
                metrics::counter!(telemetry::HUB_READ_ITEMS, "from" => "memory")
                    .increment(wants.len() as u64);
                count_bytes(bytes.len());
                drop(turn);
                return Ok(answer(counted(&hub, &viewer, bytes)?.into(), encoding));
            }
            Some(plan)
        }
        None => None,
    };
    metrics::counter!(telemetry::HUB_READ_ITEMS, "from" => "disk").increment(wants.len() as u64);
    from_disk(&hub, &viewer, image, plan, wants, encoding).await
}

/// Makes the answer from frames in memory and on disk: as one body if it is short, else piece by piece.
async fn from_disk(
    hub: &Arc<Hub>,
    viewer: &Viewer,
    image: VisibleImage,
    plan: Option<Plan>,
    wants: Vec<(Kind, Hash)>,
    encoding: Encoding,
) -> ApiResult<Response> {
    let mut held = hub.memory.hold(viewer.party());
    if !held.grow(2 * PIECE_BYTES as u64) {
        return Err(ApiError::busy(
            "answers that nobody has taken yet are in the way",
        ));
    }
    let (all, party) = (hub.clone(), viewer.party().clone());
    let begun = blocking(hub, viewer.party(), move |hub| {
        let plan = match plan {
            Some(plan) => plan,
            None => Plan::new(hub.load_scope(&image)?, &wants, encoding),
        };
        let mut sending = Sending {
            hub: all,
            party,
            plan,
            next: 0,
            out: Some(ResponseEncoder::new(Vec::with_capacity(PIECE_BYTES))?),
            open: (u32::MAX, None),
            _held: held,
        };
        let first = sending.piece()?;
        Ok((first, sending))
    });
    let (first, sending) = begun.await?;
    count_bytes(first.len());
    if sending.out.is_none() {
        return Ok(answer(counted(hub, viewer, first)?.into(), encoding));
    }
    let rest = futures::stream::unfold(Some(sending), async |sending| sending?.next().await);
    let pieces = futures::stream::once(async { Ok(first) }).chain(rest);
    Ok(answer(Body::from_stream(pieces), encoding))
}
