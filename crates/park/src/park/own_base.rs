//! Merges what a machine has written to its disks into an image of its own, onto which they are put: figure 3.7 of VM Substrate, steps 6
//! to 8. The guest goes on writing and reading meanwhile, over what is being merged.
//!
//! ```text
//! freeze: a new layer on each disk -> what lies below it is stored, durably -> the disks stand on that
//! ```
//! A kill before the last step leaves the disks as they were, with one layer more. The last step is a capture's: each disk's base is
//! replaced by one rename, and its old layers go after that. Whoever has frozen layers open (a fork that is not stored, a capture) goes
//! on reading them as they were.
//!
//! The image is in no list, like stored memory, and goes once the disks stand on another. It lies over the image that the machine's memory
//! is of, and not over the one that the last merge made, so that nothing is kept of what was overwritten in between.

use super::Parks;
use floe_ground::error::{NodeError, busy};
use floe_image::Hash;
use floe_inventory::inventory::{Entry, Operation, lifecycle::Task};
use floe_library::images::PARK_LABEL;
use floe_machines::capture::Pass;
use floe_threads::Cancel;
use std::{collections::BTreeMap, sync::Arc};

/// With more layers than this on a disk, those that earlier attempts have left are merged before another one is made.
const HEIGHT_MAX: usize = 8;

impl Parks {
    /// Merges what a machine on the mount has written; returns whether that was all until now, or only what earlier attempts have left. All
    /// that its disks stand on must be in the repository. `pass` is asked before each piece is stored. After an error before the last step
    /// the disks stand where they stood; if it is met there, each of them stands there or on the new image.
    pub(crate) fn merge_disks(
        &self,
        entry: &Arc<Entry>,
        cancel: &Cancel,
        pass: Pass<'_>,
    ) -> Result<bool, NodeError> {
        let begin = || -> Result<Operation, NodeError> {
            let begun = entry.begin_when_free(Task::Merge, cancel);
            let operation = begun.ok_or(NodeError::Cancelled)?;
            operation.is_here()?;
            Ok(operation)
        };
        let operation = begin()?;
        let disks = operation.mounted()?;
        let left = match disks.height() > HEIGHT_MAX {
            true => disks.frozen_before(),
            false => None,
        };
        let all = left.is_none();
        let frozen = match left {
            Some(frozen) => frozen,
            None => disks.freeze()?,
        };
        let over = self.merges_over(&operation)?;
        let mut config = match operation.vm() {
            Ok(vm) => vm.config(),
            Err(_) => operation.record().config.clone(),
        };
        config.labels = BTreeMap::from([(PARK_LABEL.to_owned(), "1".to_owned())]);
        drop((operation, disks));
        let id = {
            let _storing = self.images.storing.read();
            self.captures.store_disks(&frozen, &over, config, pass)?
        };
        let begun = begin();
        // from here on it goes unless the record names it before this is given back
        let _unnamed = self.unnamed.read();
        self.is_memory(id);
        let operation = begun?;
        let _storing = self.images.storing.read();
        let disks = operation.state().disks.clone();
        match disks.filter(|disks| disks.has_frozen(&frozen)) {
            Some(disks) => {
                self.captures.rebase(&operation, &disks, &frozen, &id)?;
                Ok(all)
            }
            None => Err(busy(
                format!(
                    "the disks of {} were put elsewhere meanwhile",
                    operation.name
                ),
                "this is tried again",
            )),
        }
    }

    /// Returns the image over which a machine's own image is made: that of its memory, which is here anyway. If that one is its own already,
    /// it is the one under its disks, and if that is its own as well, the one below.
    fn merges_over(&self, operation: &Operation) -> Result<Hash, NodeError> {
        let record = operation.record();
        let repo = &self.images.repo;
        if record.own_layers == 0 && repo.contains(&record.image)? {
            return Ok(record.image);
        }
        let base = record.disk_base;
        let manifest = repo.manifest(&base)?;
        let is_own = manifest.config.labels.contains_key(PARK_LABEL);
        match manifest.parent.filter(|_| is_own) {
            Some(below) if repo.contains(&below)? => Ok(below),
            _ => Ok(base),
        }
    }
}
