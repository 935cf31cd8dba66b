//! Swarms: hosts that bring an image to each other. The hub tells those who may read an image of each other, names the packs and
//! the roots by which every piece of them is verified, and proves the pieces that it gives itself (`crate::proofs`; the requests are in
//! `crate::swarm_routes`). What it keeps for that is here:
//!
//! - `members`: who takes part, and by which layout of the image. A state machine without I/O and clock. Packs of a layout that was replaced
//!   stay while a member names it (`crate::replaced`).
//! - `addresses`: where a member may say that it can be reached, so that nobody can send a swarm to somebody else.
//! - `token`: what members show each other. It changes with the users who may read the image.
//! - `trees`: BLAKE3 trees of packs, each computed once and kept in `trees/`; `tree_file` is their format.
//! - `doubts`: when it looks whether a pack is damaged because somebody says so.
//! - `given`: how much it gave of which image, for the image's owner.
//!
//! That somebody has an image is nobody else's business. So each answer names only members that read, at that moment, the same copy of the
//! image as the asking user. The address at which another user's host runs an image is told only if both users want that; the owner of an
//! image, who asks who takes part, counts as wanting it.

pub(crate) mod addresses;
mod doubts;
mod given;
pub(crate) mod members;
mod token;
pub(crate) mod tree_file;
mod trees;

use super::HubError;
use super::catalogue::now_unix_s;
use doubts::Doubts;
use floe_image::Hash;
use given::Given;
use members::Members;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};
use token::Secret;
use trees::Trees;

/// How long a hub that has started waits for members to say by which layout they read: it does not know who did before. Those of the
/// largest swarm ask every 41 seconds, and half a minute after the hub is back at the latest.
const RETURN: Duration = Duration::from_secs(180);

/// What the hub keeps for swarms.
pub(crate) struct Swarms {
    pub members: Mutex<Members>,
    pub doubts: Mutex<Doubts>,
    pub given: Mutex<Given>,
    pub secret: Secret,
    pub trees: Trees,
    since: Instant,
    began_unix_s: u64,
}

impl Swarms {
    /// Opens what is kept in a hub's folder.
    pub fn open(dir: &Path) -> Result<Swarms, HubError> {
        Ok(Swarms {
            members: Mutex::default(),
            doubts: Mutex::default(),
            given: Mutex::default(),
            secret: Secret::open(dir)?,
            trees: Trees::open(dir)?,
            since: Instant::now(),
            began_unix_s: now_unix_s(),
        })
    }

    /// Forgets the tree of a pack that was removed or replaced.
    pub fn forget_pack(&self, pack: &Hash) {
        self.trees.forget(pack);
    }

    /// Removes trees of packs that are no longer there.
    pub fn clear_litter(&self, knows: impl Fn(&Hash) -> bool) -> Result<(), HubError> {
        self.trees.clear_litter(knows)
    }

    /// Returns the names of the layouts that members of an image's swarm read by.
    pub fn named(&self, image: &Hash) -> HashSet<[u8; 32]> {
        self.members.lock().named(self.now(), *image)
    }

    /// Whether members that read by a layout which was replaced at this time may not have said so yet, because the hub has just started.
    pub fn waits_for_readers(&self, replaced_unix_s: u64) -> bool {
        waits_for_readers(self.began_unix_s, self.now(), replaced_unix_s)
    }

    /// Returns how long the hub has been up.
    pub fn now(&self) -> Duration {
        self.since.elapsed()
    }
}

/// The same for a hub that began at a given time and has been up for so long.
fn waits_for_readers(began_unix_s: u64, up: Duration, replaced_unix_s: u64) -> bool {
    replaced_unix_s < began_unix_s && up < RETURN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_read_by_a_layout_before_the_hub_began_has_time_to_say_so_again() {
        let s = Duration::from_secs;
        assert!(waits_for_readers(1000, s(0), 999) && waits_for_readers(1000, s(179), 1));
        assert!(!waits_for_readers(1000, s(180), 999));
        // of what was replaced since, it has heard who reads by it
        assert!(!waits_for_readers(1000, s(0), 1000) && !waits_for_readers(1000, s(0), 1001));
    }
}
