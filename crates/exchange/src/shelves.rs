//! Which images' shelves are being opened or removed. A shelf belongs to an image, whichever hub its swarm is of: opened by one swarm while it
//! is removed, or opened, by another one, it would promise pieces that are gone.

use floe_image::Hash;
use parking_lot::Mutex;
use std::{collections::HashSet, sync::Arc};

/// Those images. Locks: itself, only while it is looked at or changed.
#[derive(Clone, Default)]
pub(super) struct Shelves(Arc<Mutex<HashSet<Hash>>>);

/// The right to open or remove an image's shelf, until it is dropped.
pub(super) struct Claim {
    shelves: Shelves,
    image: Hash,
}

impl Shelves {
    /// Claims an image's shelf; `None` while somebody else has it.
    pub fn claim(&self, image: Hash) -> Option<Claim> {
        let is_free = self.0.lock().insert(image);
        is_free.then(|| Claim {
            shelves: self.clone(),
            image,
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shelves.0.lock().remove(&self.image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shelf_is_one_swarms_at_a_time() {
        let shelves = Shelves::default();
        let (one, other) = (Hash::of(b"one"), Hash::of(b"other"));
        let claim = shelves.claim(one);
        assert!(claim.is_some() && shelves.claim(one).is_none());
        // who is refused takes nothing away
        assert!(shelves.claim(one).is_none() && shelves.claim(other).is_some());
        drop(claim);
        assert!(shelves.claim(one).is_some());
    }
}
