//! Work for which the planner's thread would have to read a disk: another thread does it, and reports the outcome as an event. A disk that
//! is slow, or stands still, delays what needs that disk and nothing else.

use crate::core::Core;
use crate::image::Image;
use crate::job::Chore;
use crate::machine;
use crate::queue::{Queue, Queued};
use floe_image::{Hash, Kind};
use floe_planner::{Event, RegionId};
use floe_sched::Who;
use floe_source::SourceError;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Runs until the mount is gone.
pub(crate) fn run(core: &Weak<Core>, chores: &Queue<Chore>) {
    while let Some((who, chore)) = chores.next() {
        let Some(core) = core.upgrade() else {
            return;
        };
        chores.served(who, chore.work());
        match chore {
            Chore::Tables { region, segments } => tables(&core, region, segments, who),
            Chore::Look { region, block } => look(&core, region, block, who),
            Chore::Fetch {
                region,
                block,
                chunks,
            } => fetch(&core, region, block, chunks, who),
            Chore::Account(touches) => {
                core.askers.look_up(touches.asking.thread);
                core.account_now(&touches);
            }
        }
    }
}

/// Returns the image of a region and the region's number in it; `None` once the image is gone.
pub(crate) fn image(core: &Core, region: RegionId) -> Option<(Arc<Image>, usize)> {
    let regions = core.regions.read();
    let (image, number) = regions.get(&region)?;
    Some((image.upgrade()?, *number))
}

/// Reports which chunks of a block are worth fetching. Reads the disk if the block's table isn't in memory.
pub(crate) fn look(core: &Core, region: RegionId, block: u64, who: Who) {
    let found = image(core, region);
    let candidates = found.map_or(0, |(image, number)| image.candidates(number, block));
    core.queues.inbox.answer(Event::Candidates {
        region,
        block,
        candidates,
        who,
    });
}

/// Has chunks of a block fetched. Reads the disk if the block's table isn't in memory.
pub(crate) fn fetch(core: &Core, region: RegionId, block: u64, chunks: u64, who: Who) {
    let done = move |ok| Event::Fetched {
        region,
        block,
        chunks,
        ok,
        who,
    };
    let Some((image, number)) = image(core, region) else {
        return core.queues.inbox.answer(done(false));
    };
    image.regions[number].ahead.set_word(block, chunks);
    let hashes = image.hashes(number, block, chunks);
    machine::add(&core.counters.ahead_chunks, hashes.len() as u64);
    if hashes.is_empty() {
        return core.queues.inbox.answer(done(true));
    }
    // How many items are left, and whether all so far have come.
    let left = Mutex::new((hashes.len(), true));
    let inbox = core.queues.inbox.clone();
    let each = move |_: Kind, _: &Hash, result: Result<(), &SourceError>| {
        let mut left = left.lock();
        left.0 = left.0.saturating_sub(1);
        left.1 &= result.is_ok();
        if left.0 == 0 {
            inbox.answer(done(left.1));
        }
    };
    let items = hashes.into_iter().map(|h| (Kind::Chunk, h)).collect();
    image.backend.prefetch(who, items, Arc::new(each));
}

/// Loads tables that are in the cache, and has the others fetched.
fn tables(core: &Core, region: RegionId, segments: Vec<u32>, who: Who) {
    let Some((image, number)) = image(core, region) else {
        return;
    };
    let mut wanted: HashMap<Hash, Vec<u32>> = HashMap::new();
    for segment in segments {
        if let Some(hash) = image.regions[number].segment_hash(segment) {
            wanted.entry(hash).or_default().push(segment);
        }
    }
    let items = wanted.keys().map(|h| (Kind::Segment, *h)).collect();
    let (inbox, for_image) = (core.queues.inbox.clone(), Arc::downgrade(&image));
    let each = move |_: Kind, hash: &Hash, result: Result<(), &SourceError>| {
        let image = result.ok().and_then(|()| for_image.upgrade());
        let table = image.as_ref().and_then(|i| i.backend.segment(hash));
        for segment in wanted.get(hash).into_iter().flatten() {
            if let (Some(table), Some(image)) = (&table, &image) {
                image.regions[number].set_table(*segment as usize, table.clone());
            }
            inbox.answer(Event::SegmentLoaded {
                region,
                segment: *segment,
                ok: table.is_some(),
            });
        }
    };
    image.backend.prefetch(who, items, Arc::new(each));
}
