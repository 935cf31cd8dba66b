//! The order of prefetch: within an image first come, first served; images take turns.

use std::collections::VecDeque;

use floe_image::Hash;

/// Hashes that are queued for prefetch, in one lane for each image. A thread fills a request from one lane and then ends that
/// lane's turn, so that a whole image in the queue (a copy to keep, an upload's check) doesn't hold up the few chunks of
/// another image that a machine is going to touch next.
#[derive(Default)]
pub(super) struct Ahead {
    lanes: VecDeque<(Hash, VecDeque<Hash>)>,
}

impl Ahead {
    fn lane(&mut self, image: Hash) -> &mut VecDeque<Hash> {
        let known = self.lanes.iter().position(|(of, _)| *of == image);
        let at = known.unwrap_or_else(|| {
            self.lanes.push_back((image, VecDeque::new()));
            self.lanes.len() - 1
        });
        &mut self.lanes[at].1
    }

    /// Queues a hash behind all others of its image.
    pub fn push_back(&mut self, image: Hash, hash: Hash) {
        self.lane(image).push_back(hash);
    }

    /// Queues a hash before all others of its image.
    pub fn push_front(&mut self, image: Hash, hash: Hash) {
        self.lane(image).push_front(hash);
    }

    /// Returns the image whose turn it is, and the first hash of its lane.
    pub fn first(&mut self) -> Option<(Hash, Hash)> {
        while let Some((image, lane)) = self.lanes.front() {
            if let Some(hash) = lane.front() {
                return Some((*image, *hash));
            }
            self.lanes.pop_front();
        }
        None
    }

    /// Removes what [`Ahead::first`] returned.
    pub fn take_first(&mut self) {
        if let Some((_, lane)) = self.lanes.front_mut() {
            lane.pop_front();
        }
    }

    /// Ends the turn of the image at the front; the next image follows.
    pub fn end_turn(&mut self) {
        if let Some(lane) = self.lanes.pop_front().filter(|(_, lane)| !lane.is_empty()) {
            self.lanes.push_back(lane);
        }
    }

    /// Removes the hashes for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&Hash) -> bool) {
        for (_, lane) in &mut self.lanes {
            lane.retain(&mut keep);
        }
        self.lanes.retain(|(_, lane)| !lane.is_empty());
    }
}
