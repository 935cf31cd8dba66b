//! Finds and removes what nobody uses: stopped machines, images without a name, chunks and packs that nothing needs.

use crate::machines::Machines;
use floe_api::{Prune, PruneReport, PruneRequest, Pruned};
use floe_ground::error::NodeError;
use floe_image::Hash;
use floe_inventory::{
    core::Core,
    inventory::{Entry, Inventory, lifecycle::Phase},
};
use floe_library::images::Images;
use std::{os::unix::fs::MetadataExt, path::Path};

/// How deep a machine's directory is searched for what it takes of the disk.
const DEPTH_MAX: usize = 8;

/// What is searched for things that nobody uses.
pub struct Pruning<'a> {
    /// What all services share.
    pub core: &'a Core,
    /// The images of this node.
    pub images: &'a Images,
    /// The machines of this node.
    pub inventory: &'a Inventory,
    /// What is done with machines.
    pub machines: &'a Machines,
}

impl Pruning<'_> {
    /// Removes what nobody uses, or only returns what that is. What could not be removed is reported, and the rest is removed.
    pub fn prune(&self, request: &PruneRequest) -> Result<PruneReport, NodeError> {
        let wants = |what| request.what == what || request.what == Prune::All;
        let mut report = PruneReport::default();
        // both are looked for first, so that nothing is removed that a dry run did not name
        if wants(Prune::Machines) {
            report.machines = self.idle_machines();
        }
        let images = match (wants(Prune::Images), self.inventory.any_left_alone()) {
            (true, false) => self.nameless_images()?,
            (true, true) => {
                let kept =
                    "images stay: machines whose records can't be read may need them (floe ps)";
                report.problems.push(kept.into());
                Vec::new()
            }
            (false, _) => Vec::new(),
        };
        if wants(Prune::Cache) {
            let cache = self.images.cache_info();
            report.cache_bytes = cache.used_bytes.saturating_sub(cache.pinned_bytes);
        }
        if request.dry_run {
            report.images = images.into_iter().map(|(_, image)| image).collect();
            return Ok(report);
        }
        let mut removed = Vec::new();
        for machine in std::mem::take(&mut report.machines) {
            match self.machines.remove_machine(&machine.name, false) {
                Ok(()) => removed.push(machine),
                Err(error) => report.problems.push(error.to_api().to_string()),
            }
        }
        report.freed_bytes += removed.iter().map(|machine| machine.bytes).sum::<u64>();
        report.machines = removed;
        for (id, mut image) in images {
            if self.images.user_of(&id).is_some() || self.images.may_have_name(&id) {
                continue; // somebody has begun to use it, or has named it
            }
            match self.images.discard_listed(&id) {
                Ok(freed) => {
                    image.bytes = freed;
                    report.freed_bytes += freed;
                    report.images.push(image);
                }
                Err(error) => report.problems.push(error.to_api().to_string()),
            }
        }
        if wants(Prune::Cache) {
            report.cache_bytes = self.images.cache_gc()?.freed_bytes;
            report.freed_bytes += report.cache_bytes;
        }
        Ok(report)
    }

    /// Machines that have ended and are not about to be started again.
    fn idle_machines(&self) -> Vec<Pruned> {
        let idle = |entry: &Entry| {
            let life = entry.life();
            let due = entry.record().afterwards.due;
            life.phase() == Phase::Stopped && life.task().is_none() && !due
        };
        let entries = self.inventory.all().into_iter().filter(|entry| idle(entry));
        entries
            .map(|entry| {
                let place = self.core.home.root().join(&entry.state().record.place);
                let other = place != entry.dir;
                Pruned {
                    name: entry.name.to_string(),
                    bytes: disk_bytes(&place, DEPTH_MAX)
                        + if other {
                            disk_bytes(&entry.dir, DEPTH_MAX)
                        } else {
                            0
                        },
                }
            })
            .collect()
    }

    /// Images that have no name and that nothing uses, with the bytes that each has for itself, but none that is just about to get a name. An
    /// error if any name can't be read.
    fn nameless_images(&self) -> Result<Vec<(Hash, Pruned)>, NodeError> {
        self.images.repo.all_tags()?;
        let mut found = Vec::new();
        for image in self.images.images()?.images {
            let Ok(id) = image.id.parse::<Hash>() else {
                continue;
            };
            let may_go = !self.images.may_be_stored_now(image.created_unix_s);
            if image.names.is_empty() && may_go && self.images.user_of(&id).is_none() {
                let bytes = image.stored_bytes.saturating_sub(image.shared_bytes);
                let name = id.short();
                found.push((id, Pruned { name, bytes }));
            }
        }
        Ok(found)
    }
}

/// Returns how many bytes of the disk a directory takes. What goes away meanwhile takes none.
fn disk_bytes(dir: &Path, depth: usize) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() && depth > 0 => disk_bytes(&entry.path(), depth - 1),
        Ok(data) => data.blocks() * 512,
        Err(_) => 0,
    });
    bytes.sum()
}
