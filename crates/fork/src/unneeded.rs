//! Images of forks that nobody needs any more. Most go with the last of their clones. This finds the others: those that a machine's disks
//! stood on until it was captured, those that a killed node has left.

use super::Forks;
use floe_ground::error::NodeError;
use floe_image::Hash;
use floe_library::images::FORK_LABEL;
use floe_store::Repository;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// How often such images are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The images of forks that are in the repository. No I/O.
#[derive(Debug, Default)]
pub(super) struct Unneeded {
    stored: BTreeSet<Hash>,
    /// Those that nobody needed at the last look.
    idle: BTreeSet<Hash>,
}

impl Unneeded {
    /// Returns the images of forks that an earlier node has stored.
    pub fn of(repository: &Repository) -> Result<Unneeded, NodeError> {
        let images = repository.list()?.into_iter();
        let forks = images.filter(|image| image.labels.contains_key(FORK_LABEL));
        Ok(Unneeded {
            stored: forks.map(|image| image.id).collect(),
            idle: BTreeSet::new(),
        })
    }

    /// Notes an image that was stored.
    pub fn stored(&mut self, id: Hash) {
        self.stored.insert(id);
        self.idle.remove(&id);
    }

    /// Returns what is stored.
    fn all(&self) -> BTreeSet<Hash> {
        self.stored.clone()
    }

    /// Notes which images nobody needs now, and returns those that nobody needed at the look before either: between two steps of an
    /// operation an image may be nobody's for a moment.
    fn look(&mut self, idle: BTreeSet<Hash>) -> Vec<Hash> {
        let due = idle.intersection(&self.idle).copied().collect();
        self.idle = idle;
        due
    }

    /// Forgets an image that is not in the repository any more.
    fn gone(&mut self, id: &Hash) {
        self.stored.remove(id);
        self.idle.remove(id);
    }
}

impl Forks {
    /// Starts the thread that removes forks' images which nobody needs.
    pub fn start_tidying(self: &Arc<Self>) -> Result<(), NodeError> {
        let threads = &self.core.threads;
        Ok(threads.keep("fork-tidy", self, LOOK_EVERY, |forks| forks.tidy())?)
    }

    fn tidy(&self) {
        let stored = self.unneeded.lock().all();
        // no lock is held while services are asked
        let idle = stored
            .into_iter()
            .filter(|id| !self.is_needed(id))
            .collect();
        let due = self.unneeded.lock().look(idle);
        for id in due {
            // one that was given a name stays
            self.drop_fork_image(&id);
            if matches!(self.is_stored(&id), Ok(false)) {
                self.unneeded.lock().gone(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_goes_that_nobody_needed_twice_in_a_row() {
        let [a, b, c] = [1, 2, 3].map(|byte| Hash([byte; 32]));
        let set = |ids: &[Hash]| ids.iter().copied().collect::<BTreeSet<_>>();
        let mut unneeded = Unneeded::default();
        [a, b, c].into_iter().for_each(|id| unneeded.stored(id));
        assert!(unneeded.look(set(&[a, b])).is_empty());
        assert_eq!(unneeded.look(set(&[a])), [a], "b was needed in between");
        unneeded.gone(&a);
        assert_eq!(unneeded.all(), set(&[b, c]));
        assert!(unneeded.look(set(&[b])).is_empty());
        // stored once more for another fork
        unneeded.stored(b);
        assert!(unneeded.look(set(&[b])).is_empty());
        assert_eq!(unneeded.look(set(&[b])), [b]);
    }
}
