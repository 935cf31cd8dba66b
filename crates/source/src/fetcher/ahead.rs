//! The order of prefetch within a machine's images: first come, first served. Whose turn it is, the policy decides.

use std::collections::{HashMap, VecDeque};

use floe_image::Hash;
use floe_sched::{MachineId, Purpose, Who};

/// For whom something is queued: a machine, and the image that it belongs to.
pub(super) type LaneKey = (MachineId, Hash);

/// Hashes that are queued for prefetch, in one lane for each machine and image. A thread fills a request from one lane, and then
/// that lane waits for its next turn, so that a whole image in the queue (a copy to keep, an upload's check) doesn't hold up the few
/// chunks that a machine is going to touch next.
#[derive(Default)]
pub(super) struct Ahead {
    lanes: HashMap<LaneKey, Lane>,
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Hash>,
    /// Whether it waits for its turn with the policy.
    waits: bool,
}

/// Returns the lane of something that `who` wants of an image.
pub(super) fn lane_of(who: &Who, image: &Hash) -> LaneKey {
    (who.machine, *image)
}

/// Returns for whom a lane waits whose first item is `who`'s: nobody waits for what is in it.
pub(super) fn waits_as(who: &Who) -> Who {
    let purpose = match who.purpose.is_waited_for() {
        true => Purpose::Prefetch,
        false => who.purpose,
    };
    Who { purpose, ..*who }
}

impl Ahead {
    /// Queues a hash behind all others of its lane. Returns whether the lane is to be queued with the policy now.
    pub fn push_back(&mut self, key: LaneKey, hash: Hash) -> bool {
        let lane = self.lanes.entry(key).or_default();
        lane.queue.push_back(hash);
        !std::mem::replace(&mut lane.waits, true)
    }

    /// Queues a hash before all others of its lane; returns the same.
    pub fn push_front(&mut self, key: LaneKey, hash: Hash) -> bool {
        let lane = self.lanes.entry(key).or_default();
        lane.queue.push_front(hash);
        !std::mem::replace(&mut lane.waits, true)
    }

    /// Returns the first hash of a lane.
    pub fn first(&self, key: &LaneKey) -> Option<Hash> {
        self.lanes.get(key)?.queue.front().copied()
    }

    /// Removes what [`Ahead::first`] returned.
    pub fn take_first(&mut self, key: &LaneKey) {
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.queue.pop_front();
        }
    }

    /// The policy has returned a lane, whose turn ends. Returns whether it is to be queued there again.
    pub fn end_turn(&mut self, key: &LaneKey) -> bool {
        let more = self.first(key).is_some();
        if !more {
            self.lanes.remove(key);
        }
        more
    }

    /// Removes the hashes for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&Hash) -> bool) {
        for lane in self.lanes.values_mut() {
            lane.queue.retain(&mut keep);
        }
    }
}
