//! Puts pages into the page cache before anybody asks for them: NOTIFY_STORE, in messages of 1 MiB (messages of 4 KiB cost five
//! times as much a byte). The kernel blocks on pages that are being read, so no thread that answers requests may do this.

use crate::askers::Asking;
use crate::core::Core;
use crate::image::Image;
use crate::job::PushBlock;
use crate::queue::{Queue, Queued};
use crate::request::Target;
use crate::{PushReport, abi, machine};
use floe_image::{CHUNK_SIZE, is_zero};
use floe_sched::{Purpose, Who};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Most chunks in a message.
const MESSAGE_CHUNKS: usize = 256;

/// Pushes those chunks of a range that are here; with `only_zero`, only the zero ones.
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

/// Pushes the chunks around a touched one, if others nearby were touched before. A touch of a pushed page isn't seen, so this
/// is done only for zero chunks, which no trace records and no planner counts, and for images that nobody watches.
/// `bytes` is what was read.
pub(crate) fn around(
    core: &Core,
    (target, asking): (&Target, Asking),
    ino: u64,
    chunk: u64,
    bytes: &[u8],
) {
    let Target::Region(image, region) = target else {
        return;
    };
    let region = *region;
    let only_zero = !image.unwatched.load(Ordering::Relaxed);
    if only_zero && !is_zero(bytes) {
        return;
    }
    let chunks = image.around(region, chunk);
    if chunks != 0 {
        let who = core.who(target, asking, Purpose::Push);
        submit(
            core,
            who,
            PushBlock {
                image: Arc::downgrade(image),
                ino,
                region,
                block: chunk / 64,
                chunks,
                only_zero,
            },
        );
    }
}

/// Gives an order to the thread that pushes.
pub(crate) fn submit(core: &Core, who: Who, order: PushBlock) {
    // If the queue is full the order is dropped: pushing is only a help.
    let _ = core.queues.pusher.submit(who, order);
}

/// Runs the thread that pushes. Threads that answer requests can't push: they may have to answer the very page that is waited
/// for.
pub(crate) fn run(core: &Weak<Core>, orders: &Queue<PushBlock>) {
    while let Some((who, order)) = orders.next() {
        orders.served(who, order.work());
        if let (Some(core), Some(image)) = (core.upgrade(), order.image.upgrade()) {
            push_block(&core, &image, &order);
        }
    }
}

/// Pushes some chunks of a block, run by run.
fn push_block(core: &Core, image: &Image, order: &PushBlock) {
    let region = order.region;
    let mut left = order.chunks;
    while left != 0 {
        let first = left.trailing_zeros();
        let run = (left >> first).trailing_ones();
        let start = order.block * 64 + u64::from(first);
        let chunks = start..start + u64::from(run);
        if let Err(error) = push(core, image, region, chunks, order.only_zero, order.ino) {
            tracing::debug!(%error, "the kernel did not take pushed pages");
            return;
        }
        left &= !((u64::MAX >> (64 - run)) << first);
    }
}
