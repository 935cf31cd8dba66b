//! Pages into the page cache before anybody asks for them: NOTIFY_STORE, in messages of 1 MiB (4 KiB ones cost five times as
//! much a byte). The kernel waits for pages that are being read, so this must not run on a thread that answers requests.

use crate::core::Core;
use crate::image::Image;
use crate::queue::{Queue, Queued};
use crate::{PushReport, abi, machine};
use floe_image::{CHUNK_SIZE, is_zero};
use floe_sched::Purpose;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Chunks in a message.
const MESSAGE_CHUNKS: usize = 256;

/// Pushes the chunks of a range that are here, or only the zero ones.
pub(crate) fn push(
    core: &Core,
    image: &Image,
    region: usize,
    chunks: Range<u64>,
    only_zero: bool,
    ino: u64,
) -> io::Result<PushReport> {
    let mut report = PushReport::default();
    let end = chunks.end.min(image.regions[region].chunks());
    let most = (end.saturating_sub(chunks.start) as usize).min(MESSAGE_CHUNKS);
    let mut buf = vec![0; most * CHUNK_SIZE];
    let mut next = chunks.start;
    while next < end {
        let first = next;
        let mut filled = 0;
        for out in buf.chunks_exact_mut(CHUNK_SIZE) {
            let out = out.try_into().expect("chunks_exact_mut gives whole chunks");
            if next == end || !image.peek(region, next, only_zero, out) {
                break;
            }
            next += 1;
            filled += CHUNK_SIZE;
        }
        if filled == 0 {
            report.missing += 1;
            next += 1;
            continue;
        }
        let offset = first * CHUNK_SIZE as u64;
        let len = (filled as u64).min(image.regions[region].size - offset);
        let head = abi::notify_store(ino, offset, len as u32);
        core.devices[0].notify(abi::notify::STORE, &head, &buf[..len as usize])?;
        report.bytes += len;
        report.messages += 1;
    }
    machine::add(&core.counters.pushes, report.messages);
    machine::add(&core.counters.pushed_bytes, report.bytes);
    Ok(report)
}

/// Chunks of one block that are to be pushed.
pub(crate) struct PushBlock {
    pub image: Weak<Image>,
    pub region: usize,
    pub block: u64,
    pub chunks: u64,
    /// Leave out those that aren't zero.
    pub only_zero: bool,
}

impl Queued for PushBlock {
    fn bytes(&self) -> u64 {
        size_of::<PushBlock>() as u64
    }

    fn is_quick(&self) -> bool {
        false
    }
}

/// After a touch: what is around it goes into the page cache, if others were touched there before. A touch of a pushed page is not
/// seen, so this is for zero chunks, which no trace names and no planner counts, and for images that nobody watches.
pub(crate) fn around(core: &Core, image: &Arc<Image>, region: usize, chunk: u64, bytes: &[u8]) {
    let only_zero = !image.unwatched.load(Ordering::Relaxed);
    if only_zero && !is_zero(bytes) {
        return;
    }
    let chunks = image.around(region, chunk);
    if chunks != 0 {
        submit(
            core,
            image,
            PushBlock {
                image: Arc::downgrade(image),
                region,
                block: chunk / 64,
                chunks,
                only_zero,
            },
        );
    }
}

/// Hands an order to the thread that pushes.
pub(crate) fn submit(core: &Core, image: &Arc<Image>, order: PushBlock) {
    let who = core.ahead_of(image, Purpose::Push);
    // A full queue: pushing is only ever a help.
    let _ = core.pusher.submit(who, order);
}

/// The thread that pushes: those that answer requests must not, as they may have to answer the very page that is waited for.
pub(crate) fn run(core: &Weak<Core>, orders: &Queue<PushBlock>) {
    while let Some((who, order)) = orders.next() {
        orders.served(who, order.bytes());
        if let (Some(core), Some(image)) = (core.upgrade(), order.image.upgrade()) {
            push_block(&core, &image, &order);
        }
    }
}

/// Pushes some chunks of a block, run by run. An inode that the kernel doesn't know yet needs no pages.
fn push_block(core: &Core, image: &Image, order: &PushBlock) {
    let region = order.region;
    let Some(ino) = core.tree.ino(&format!(
        "images/{}/{}",
        image.id, image.regions[region].name
    )) else {
        return;
    };
    let mut left = order.chunks;
    while left != 0 {
        let first = left.trailing_zeros();
        let run = (left >> first).trailing_ones();
        let start = order.block * 64 + u64::from(first);
        let chunks = start..start + u64::from(run);
        if let Err(error) = push(core, image, region, chunks, order.only_zero, ino) {
            tracing::debug!(%error, "the kernel did not take pushed pages");
            return;
        }
        left &= !((u64::MAX >> (64 - run)) << first);
    }
}
