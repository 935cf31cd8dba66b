//! Pages into the page cache before anybody asks for them: NOTIFY_STORE, in messages of 1 MiB (4 KiB ones cost five times as
//! much a byte). The kernel waits for pages that are being read, so this must not run on a thread that answers requests.

use crate::core::Core;
use crate::image::Image;
use crate::{PushReport, abi, machine};
use crossbeam_channel::Receiver;
use floe_image::CHUNK_SIZE;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Chunks in a message.
const MESSAGE_CHUNKS: usize = 256;

/// Pushes the chunks of a range that are here.
pub(crate) fn push(
    core: &Core,
    image: &Image,
    region: usize,
    chunks: Range<u64>,
    ino: u64,
) -> io::Result<PushReport> {
    let mut report = PushReport::default();
    let mut buf = vec![0; MESSAGE_CHUNKS * CHUNK_SIZE];
    let end = chunks.end.min(image.regions[region].chunks());
    let mut next = chunks.start;
    while next < end {
        let first = next;
        let mut filled = 0;
        for out in buf.chunks_exact_mut(CHUNK_SIZE) {
            let out = out.try_into().expect("chunks_exact_mut gives whole chunks");
            if next == end || !image.peek(region, next, out) {
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

/// Chunks of one block that the planner wants pushed.
pub(crate) struct PushBlock {
    pub image: Weak<Image>,
    pub region: usize,
    pub block: u64,
    pub chunks: u64,
}

/// The thread that pushes for the planner: the owner must not, as it may have to answer the very page that is waited for.
pub(crate) fn run(core: &Weak<Core>, inbox: &Receiver<PushBlock>) {
    while let Ok(order) = inbox.recv() {
        if let (Some(core), Some(image)) = (core.upgrade(), order.image.upgrade()) {
            push_block(&core, &image, order.region, order.block, order.chunks);
        }
    }
}

/// Pushes some chunks of a block, run by run. An inode that the kernel doesn't know yet needs no pages.
pub(crate) fn push_block(core: &Core, image: &Arc<Image>, region: usize, block: u64, chunks: u64) {
    let Some(ino) = core.tree.ino(&format!(
        "images/{}/{}",
        image.id, image.regions[region].name
    )) else {
        return;
    };
    let mut left = chunks;
    while left != 0 {
        let first = left.trailing_zeros();
        let run = (left >> first).trailing_ones();
        let start = block * 64 + u64::from(first);
        if let Err(error) = push(core, image, region, start..start + u64::from(run), ino) {
            tracing::debug!(%error, "the kernel did not take pushed pages");
            return;
        }
        left &= !((u64::MAX >> (64 - run)) << first);
    }
}
