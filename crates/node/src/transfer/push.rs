//! Push: asks what the hub lacks, sends that in packs, and publishes the image.
//!
//! If the hub lacks everything in a pack, the pack is sent as it is on the disk; items missing from other packs are packed
//! anew. The hub remembers what it received, so a push that was interrupted asks again and sends the rest.

use super::{Cancel, HubClient, Meter, OnProgress, TransferError, check};
use floe_api::hub::{CommitRequest, HAVE_ITEMS_MAX};
use floe_image::{Hash, Kind, PackWriter, Region, compress_frame};
use floe_store::{Repository, Scope};
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// zstd level of frames that are packed anew.
const LEVEL: i32 = 3;
/// How many packs are under way at once: this hides the time in which the hub checks one.
const CONNECTIONS: usize = 4;
/// How often an upload is begun again if the hub lost data that it said it had (an image was removed meanwhile, or the upload
/// expired).
const ROUNDS: u32 = 4;
/// Most bytes that a pack needs for each item beside its frames: its hash, its frame's entry, and what zstd adds to
/// incompressible data.
const ITEM_OVERHEAD_BYTES: u64 = 80;

/// How to push.
#[derive(Clone, Debug, Default)]
pub struct PushOptions {
    /// `name` or `name:tag` that is to refer to the image at the hub.
    pub name: Option<String>,
    /// Whether everybody may read it; `None` leaves that as it is, and makes a new image private.
    pub public: Option<bool>,
    /// A PEM file to trust instead of the system's authorities.
    pub ca: Option<PathBuf>,
    /// How many packs are under way at once; 0 means 4.
    pub connections: usize,
    /// Ends the push.
    pub cancel: Cancel,
}

/// What a push did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PushReport {
    /// Bytes of the packs that were sent.
    pub bytes_sent: u64,
    /// Chunks that were sent.
    pub chunks_sent: u64,
    /// How many non-zero chunks of the image, each counted once, the hub had already.
    pub chunks_reused: u64,
    /// Duration from the first request to the publication.
    pub seconds: f64,
}

/// What one thread sends next.
enum Job {
    /// A pack file as it is.
    File {
        id: Hash,
        path: PathBuf,
        raw_bytes: u64,
        chunks: u64,
    },
    /// Items that must be packed first.
    Items(Vec<(Kind, Hash)>),
}

/// Items of the image, each once, in the order of its regions.
struct Content {
    /// Segments with their chunks.
    segments: Vec<(Hash, Vec<Hash>)>,
    /// Chunks that the manifest refers to directly, beside the segments.
    patched: Vec<Hash>,
    chunks: u64,
    raw_bytes: u64,
}

/// Pushes image `image` of `repository` to the hub at `hub_url`.
pub fn push(
    repository: &Repository,
    image: &Hash,
    hub_url: &str,
    token: Option<&str>,
    options: &PushOptions,
    progress: OnProgress<'_>,
) -> Result<PushReport, TransferError> {
    let started = Instant::now();
    let client = HubClient::new(hub_url, token, options.ca.as_deref(), &options.cancel)?;
    let manifest = repository.manifest_bytes(image)?;
    let scope = repository.scope(image)?;
    let content = read_content(repository, &scope, image, &options.cancel)?;
    let wish = CommitRequest {
        name: options.name.clone(),
        public: options.public,
    };
    let mut report = PushReport::default();
    let mut round = 1;
    loop {
        let done = send_missing(
            repository,
            &scope,
            image,
            &client,
            &manifest,
            &content,
            options,
            progress,
            &mut report,
        )
        .and_then(|upload| client.commit(&upload, &wish));
        match done {
            Ok(_) => break,
            Err(TransferError::Refused { code, .. })
                if matches!(&*code, "incomplete" | "no-upload") && round < ROUNDS =>
            {
                round += 1;
            }
            Err(_) if options.cancel.is_cancelled() => return Err(TransferError::Cancelled),
            Err(error) => return Err(error),
        }
    }
    report.chunks_reused = content.chunks.saturating_sub(report.chunks_sent);
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

fn read_content(
    repository: &Repository,
    scope: &Scope,
    image: &Hash,
    cancel: &Cancel,
) -> Result<Content, TransferError> {
    let manifest = repository.manifest(image)?;
    let mut content = Content {
        segments: Vec::new(),
        patched: Vec::new(),
        chunks: 0,
        raw_bytes: 0,
    };
    let (mut seen_segments, mut seen_chunks) = (HashSet::new(), HashSet::new());
    for id in manifest.regions.iter().flat_map(|region| &region.segments) {
        if id.is_zero() || !seen_segments.insert(*id) {
            continue;
        }
        check(cancel)?;
        let segment = scope.segment(id)?;
        let fresh = |hash: &Hash| !hash.is_zero() && seen_chunks.insert(*hash);
        let chunks: Vec<Hash> = segment.hashes().iter().copied().filter(fresh).collect();
        content.chunks += chunks.len() as u64;
        content.raw_bytes +=
            (chunks.len() * Kind::Chunk.raw_size() + Kind::Segment.raw_size()) as u64;
        content.segments.push((*id, chunks));
    }
    let patched = manifest.regions.iter().flat_map(Region::patched_chunks);
    content.patched = patched.filter(|hash| seen_chunks.insert(*hash)).collect();
    content.chunks += content.patched.len() as u64;
    content.raw_bytes += (content.patched.len() * Kind::Chunk.raw_size()) as u64;
    Ok(content)
}

/// Sends what the hub lacks; returns the upload, ready to be committed.
#[allow(clippy::too_many_arguments)]
fn send_missing(
    repository: &Repository,
    scope: &Scope,
    image: &Hash,
    client: &HubClient,
    manifest: &[u8],
    content: &Content,
    options: &PushOptions,
    progress: OnProgress<'_>,
    report: &mut PushReport,
) -> Result<String, TransferError> {
    let upload = client.open_upload(manifest)?;
    let missing = ask(client, &upload.id, content, &options.cancel)?;
    let missing_bytes: u64 = missing.iter().map(|(kind, _)| kind.raw_size() as u64).sum();
    let pack_bytes_max = upload.pack_bytes_max.min(floe_api::hub::PACK_BYTES_MAX);
    let jobs = plan(repository, image, missing, pack_bytes_max)?;

    let meter = Meter::new(
        content.raw_bytes,
        content.raw_bytes.saturating_sub(missing_bytes),
        progress,
    );
    let queue = Mutex::new(VecDeque::from(jobs));
    let failed: Mutex<Option<TransferError>> = Mutex::new(None);
    let (chunks_sent, bytes_sent) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        while failed.lock().is_none() {
            let Some(job) = queue.lock().pop_front() else {
                return;
            };
            match send(scope, client, &upload.id, &job, &meter) {
                Ok((chunks, bytes)) => {
                    chunks_sent.fetch_add(chunks, Ordering::Relaxed);
                    bytes_sent.fetch_add(bytes, Ordering::Relaxed);
                }
                Err(error) => {
                    failed.lock().get_or_insert(error);
                }
            }
        }
    };
    let connections = if options.connections == 0 {
        CONNECTIONS
    } else {
        options.connections
    };
    let threads = connections.min(queue.lock().len());
    floe_threads::scope(|scope| scope.spawn_some("push", threads, work));
    report.chunks_sent += chunks_sent.into_inner();
    report.bytes_sent += bytes_sent.into_inner();
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(upload.id),
    }
}

/// Returns the items that the hub lacks: asks about whole segments first, then about the chunks of those that it lacks.
fn ask(
    client: &HubClient,
    upload: &str,
    content: &Content,
    cancel: &Cancel,
) -> Result<Vec<(Kind, Hash)>, TransferError> {
    let lacking = |items: Vec<(Kind, Hash)>| -> Result<Vec<(Kind, Hash)>, TransferError> {
        let mut lacking = Vec::new();
        for part in items.chunks(HAVE_ITEMS_MAX) {
            check(cancel)?;
            let have = client.have(upload, part)?;
            lacking.extend(
                part.iter()
                    .zip(have)
                    .filter(|(_, have)| !have)
                    .map(|(item, _)| *item),
            );
        }
        Ok(lacking)
    };
    let segments = lacking(
        content
            .segments
            .iter()
            .map(|(id, _)| (Kind::Segment, *id))
            .collect(),
    )?;
    let absent: HashSet<Hash> = segments.iter().map(|(_, id)| *id).collect();
    let below = content
        .segments
        .iter()
        .filter(|(id, _)| absent.contains(id))
        .flat_map(|(_, chunks)| chunks)
        .chain(&content.patched);
    // a chunk is listed under its first segment only: if the hub has that, it has the chunk
    let mut missing = lacking(below.map(|hash| (Kind::Chunk, *hash)).collect())?;
    missing.extend(segments);
    Ok(missing)
}

/// Decides which pack files are sent as they are, and which items are packed anew. Chunks go before segments, so that a
/// segment that the hub has received is rarely incomplete when a push continues.
fn plan(
    repository: &Repository,
    image: &Hash,
    missing: Vec<(Kind, Hash)>,
    pack_bytes_max: u64,
) -> Result<Vec<Job>, TransferError> {
    let mut open: HashSet<(Kind, Hash)> = missing.iter().copied().collect();
    let mut jobs = Vec::new();
    for pack in repository.layout(image)?.packs {
        if open.is_empty() {
            break;
        }
        if pack.file_bytes > pack_bytes_max {
            continue;
        }
        let path = repository.pack_path(&pack.id);
        let items = match repository.pack_items(&pack) {
            Ok(items) => items,
            // items are then read one by one, and what is damaged is reported there
            Err(error) => {
                tracing::debug!(pack = %pack.id, %error, "cannot send a pack as it is");
                continue;
            }
        };
        if items.iter().all(|item| open.contains(item)) {
            // a pack may hold an item twice; it counts once
            let (mut raw_bytes, mut chunks) = (0, 0);
            for (kind, hash) in items {
                if open.remove(&(kind, hash)) {
                    raw_bytes += kind.raw_size() as u64;
                    chunks += u64::from(kind == Kind::Chunk);
                }
            }
            jobs.push(Job::File {
                id: pack.id,
                path,
                raw_bytes,
                chunks,
            });
        }
    }
    let mut group: Vec<(Kind, Hash)> = Vec::new();
    let mut bytes = 1024;
    for item in missing.into_iter().filter(|item| open.contains(item)) {
        let cost = item.0.raw_size() as u64 + ITEM_OVERHEAD_BYTES;
        if bytes + cost > pack_bytes_max && !group.is_empty() {
            jobs.push(Job::Items(std::mem::take(&mut group)));
            bytes = 1024;
        }
        bytes += cost;
        group.push(item);
    }
    if !group.is_empty() {
        jobs.push(Job::Items(group));
    }
    Ok(jobs)
}

/// Sends one job; returns how many chunks and bytes that was.
fn send(
    scope: &Scope,
    client: &HubClient,
    upload: &str,
    job: &Job,
    meter: &Meter<'_>,
) -> Result<(u64, u64), TransferError> {
    let (id, bytes, raw_bytes, chunks) = match job {
        Job::File {
            id,
            path,
            raw_bytes,
            chunks,
        } => {
            let bytes = std::fs::read(path).map_err(|e| {
                TransferError::Options(format!(
                    "cannot read {}: {e}; check the repository",
                    path.display()
                ))
            })?;
            (*id, bytes, *raw_bytes, *chunks)
        }
        Job::Items(items) => {
            let (id, bytes) = pack(scope, items)?;
            let raw_bytes = items.iter().map(|(kind, _)| kind.raw_size() as u64).sum();
            (
                id,
                bytes,
                raw_bytes,
                items
                    .iter()
                    .filter(|(kind, _)| *kind == Kind::Chunk)
                    .count() as u64,
            )
        }
    };
    let sent = bytes.len() as u64;
    client.put_pack(upload, &id, bytes.into(), &|wire| meter.add(0, wire))?;
    meter.add(raw_bytes, 0);
    Ok((chunks, sent))
}

/// Packs items anew. Neighbours in the old packs stay neighbours, so a frame holds data that was used together.
fn pack(scope: &Scope, items: &[(Kind, Hash)]) -> Result<(Hash, Vec<u8>), TransferError> {
    let in_memory = |e: io::Error| TransferError::Options(format!("cannot pack: {e}"));
    let mut writer = PackWriter::new(Vec::new()).map_err(in_memory)?;
    let mut group: Vec<(Hash, Vec<u8>)> = Vec::new();
    let mut result = Ok(());
    let mut flush = |kind: Kind, group: &mut Vec<(Hash, Vec<u8>)>, result: &mut io::Result<()>| {
        if result.is_ok() && !group.is_empty() {
            let (hashes, bytes): (Vec<Hash>, Vec<&[u8]>) =
                group.iter().map(|(hash, bytes)| (*hash, &**bytes)).unzip();
            *result = writer.push_frame(kind, &hashes, &compress_frame(kind, &bytes, LEVEL));
        }
        group.clear();
    };
    let absent = scope.read(items, &mut |kind, hash, bytes| match kind {
        Kind::Chunk => {
            group.push((hash, bytes.to_vec()));
            if group.len() == kind.frame_items_max() {
                flush(kind, &mut group, &mut result);
            }
        }
        Kind::Segment => flush(kind, &mut vec![(hash, bytes.to_vec())], &mut result),
    })?;
    flush(Kind::Chunk, &mut group, &mut result);
    result.map_err(in_memory)?;
    if let Some((kind, hash)) = absent.first() {
        return Err(TransferError::Options(format!(
            "{} {hash} is missing in this repository; run `floe image verify`",
            kind.name()
        )));
    }
    let (bytes, reference) = writer.finish().map_err(in_memory)?;
    Ok((reference.id, bytes))
}
