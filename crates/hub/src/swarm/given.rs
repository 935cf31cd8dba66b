//! How much the hub gave to the swarm of each owner's copy of an image, since it started. No I/O, no clock.

use floe_image::Hash;
use std::collections::HashMap;
use std::sync::Arc;

/// Copies that are counted, some 10 MB of memory. Further ones are not counted.
const COPIES_MAX: usize = 1 << 16;

/// Bytes, by image and owner.
#[derive(Debug, Default)]
pub(crate) struct Given(HashMap<(Hash, Arc<str>), u64>);

impl Given {
    /// Adds bytes to what was given of an owner's copy.
    pub fn add(&mut self, image: Hash, owner: &Arc<str>, bytes: u64) {
        let copy = (image, owner.clone());
        if self.0.len() < COPIES_MAX || self.0.contains_key(&copy) {
            *self.0.entry(copy).or_default() += bytes;
        }
    }

    /// Returns how many bytes were given of an owner's copy.
    pub fn of(&self, image: Hash, owner: &Arc<str>) -> u64 {
        let copy = (image, owner.clone());
        self.0.get(&copy).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_copy_is_counted_for_itself_and_there_is_an_end_to_them() {
        let mut given = Given::default();
        let image = |n: u32| Hash::of(&n.to_le_bytes());
        let [ann, bob] = ["ann", "bob"].map(Arc::<str>::from);
        given.add(image(0), &bob, 3);
        for n in 0..COPIES_MAX as u32 {
            given.add(image(n), &ann, 5);
        }
        given.add(image(0), &ann, 2);
        let last = COPIES_MAX as u32 - 2;
        let counted = [0, last, last + 1].map(|n| given.of(image(n), &ann));
        assert_eq!((counted, given.of(image(0), &bob)), ([7, 5, 0], 3));
    }
}
