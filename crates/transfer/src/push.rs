//! Push: finds out what a place lacks, sends that in packs, and publishes the image.
//!
//! If the place lacks everything in a pack, the pack is sent as it is on the disk; items missing from other packs are packed
//! anew. What was received stays there, so a push that was interrupted asks again and sends the rest.

use super::place::Place;
use super::plan::{Job, jobs, raw_bytes};
use super::stock::{Content, Goods, Stock};
use super::upload::{INCOMPLETE, Upload};
use super::{Cancel, HubClient, Meter, OnProgress, TransferError};
use floe_api::hub::CommitRequest;
use floe_image::{Hash, Kind, PackRef};
use floe_store::Repository;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

/// How many packs are under way at once: this hides the time in which the other side checks one.
const CONNECTIONS: usize = 4;
/// How often an upload is begun again if the place lost data that it said it had (an image was removed meanwhile, or the upload
/// expired).
const ROUNDS: u32 = 4;

/// How to push to a hub.
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
    /// How many non-zero chunks of the image, each counted once, the place had already.
    pub chunks_reused: u64,
    /// Whether the place had something of an earlier try, as far as it tells.
    pub resumed: bool,
    /// Duration from the first request to the publication.
    pub seconds: f64,
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
    let client = HubClient::new(hub_url, token, options.ca.as_deref(), &options.cancel)?;
    let wish = CommitRequest {
        name: options.name.clone(),
        public: options.public,
    };
    let (stock, place) = (Stock::Repository(repository), Place::Hub(client, wish));
    let connections = options.connections;
    send(stock, image, &place, connections, &options.cancel, progress)
}

/// Sends image `image` of any stock to any place, with at most `connections` packs under way at once (0 means 4).
pub fn send(
    stock: Stock<'_>,
    image: &Hash,
    place: &Place<'_>,
    connections: usize,
    cancel: &Cancel,
    progress: OnProgress<'_>,
) -> Result<PushReport, TransferError> {
    let started = Instant::now();
    let push = || -> Result<PushReport, TransferError> {
        let goods = Goods::open(stock, image, cancel)?;
        let content = goods.content()?;
        let mut report = PushReport::default();
        let mut round = 1;
        loop {
            let mut upload = place.begin(&goods, &content, cancel)?;
            report.resumed |= round == 1 && upload.is_resumed();
            let sent = send_missing(
                &goods,
                &content,
                upload.as_mut(),
                connections,
                progress,
                &mut report,
            );
            match sent.and_then(|sent| upload.publish(&sent)) {
                Ok(()) => break,
                Err(TransferError::Refused { code, .. })
                    if matches!(&*code, INCOMPLETE | "no-upload") && round < ROUNDS =>
                {
                    round += 1;
                }
                Err(error) => return Err(error),
            }
        }
        report.chunks_reused = content.chunks.saturating_sub(report.chunks_sent);
        Ok(report)
    };
    let mut report = push().map_err(|error| match cancel.is_cancelled() {
        true => TransferError::Cancelled,
        false => error,
    })?;
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Sends what the place lacks; returns the packs that were sent.
fn send_missing(
    goods: &Goods<'_>,
    content: &Content,
    upload: &mut dyn Upload,
    connections: usize,
    progress: OnProgress<'_>,
    report: &mut PushReport,
) -> Result<Vec<PackRef>, TransferError> {
    let missing = upload.take_missing();
    let missing_bytes: u64 = missing.iter().map(|(kind, _)| raw_bytes(*kind)).sum();
    let jobs = jobs(missing, goods.contents(), upload.pack_bytes_max());
    let upload = &*upload;
    let meter = Meter::new(
        content.raw_bytes,
        content.raw_bytes.saturating_sub(missing_bytes),
        progress,
    );
    let queue = Mutex::new(VecDeque::from(jobs));
    let failed: Mutex<Option<TransferError>> = Mutex::new(None);
    let done: Mutex<Vec<(PackRef, u64)>> = Mutex::default();
    let work = || {
        while failed.lock().is_none() {
            let Some(job) = queue.lock().pop_front() else {
                return;
            };
            match send_one(goods, upload, &job, &meter) {
                Ok(sent) => done.lock().push(sent),
                Err(error) => {
                    failed.lock().get_or_insert(error);
                }
            }
        }
    };
    let connections = match connections {
        0 => CONNECTIONS,
        given => given,
    };
    let threads = connections.min(queue.lock().len());
    floe_threads::scope(|scope| scope.spawn_some("push", threads, work));
    let done = done.into_inner();
    report.chunks_sent += done.iter().map(|(_, chunks)| chunks).sum::<u64>();
    report.bytes_sent += done.iter().map(|(pack, _)| pack.file_bytes).sum::<u64>();
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(done.into_iter().map(|(pack, _)| pack).collect()),
    }
}

/// Sends one job; returns the pack, and how many chunks of the image are in it.
fn send_one(
    goods: &Goods<'_>,
    upload: &dyn Upload,
    job: &Job,
    meter: &Meter<'_>,
) -> Result<(PackRef, u64), TransferError> {
    let (pack, bytes, raw, chunks) = match job {
        Job::Pack {
            pack,
            raw_bytes,
            chunks,
        } => (*pack, goods.pack_bytes(pack)?, *raw_bytes, *chunks),
        Job::Items(items) => {
            let (pack, bytes) = goods.pack(items)?;
            let raw = items.iter().map(|(kind, _)| raw_bytes(*kind)).sum();
            let chunks = items.iter().filter(|(kind, _)| *kind == Kind::Chunk);
            (pack, bytes, raw, chunks.count() as u64)
        }
    };
    upload.put_pack(&pack, bytes.into(), &|wire| meter.add(0, wire))?;
    meter.add(raw, 0);
    Ok((pack, chunks))
}
