//! Turns a fork's layer into an ordinary image in the background, by pulling the layer into this node's own repository. Until
//! then its clones need this node's memory, and its parent's disks keep their frozen layers. `when` decides whether and when.

use super::{
    layer::Layer,
    when::{CpuTimes, Next, Seen, next},
};
use crate::Forks;
use floe_ground::{error::NodeError, news::News};
use floe_image::Hash;
use floe_inventory::{
    core::Job,
    inventory::{Entry, lifecycle::Task, record::Origin},
    resources::host,
};
use floe_machines::machines::Maker;
use floe_mount::FrozenLayers;
use floe_transfer as transfer;
use floe_transfer::{Cancel, Destination, PullOptions};
use std::{
    fs,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

/// How long until storing is tried again after the disk was full or a source did not answer.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// How often `when` is asked; idle cores are measured over the same time.
const DECIDE_EVERY: Duration = Duration::from_secs(1);
/// Memory is short if less than one part in this many is available.
const MEMORY_SHORT: u64 = 8;

/// The machine that was forked, and its frozen disks.
pub(super) struct Parent {
    pub entry: Arc<Entry>,
    pub frozen: FrozenLayers,
}

impl Forks {
    /// Finds the forks' layers that an earlier node left with the supervisor.
    pub fn find_layers_again(&self) -> Vec<Arc<Layer>> {
        let found = self
            .layers
            .find_again(|origin| self.images.sources.fetcher(origin));
        for layer in &found {
            self.core.tell(&layer.id.short(), &News::ForkFound);
        }
        found
    }

    /// Stores or drops layers that were found again, as for new ones, once the machines are on the mount.
    pub fn store_found(self: &Arc<Self>, layers: Vec<Arc<Layer>>) {
        for layer in layers {
            let parent = self.parent_of(&layer);
            self.store_later(Some(layer), parent, false, (Maker::User, 0));
        }
    }

    /// Returns the machine that a layer was forked from, if it still exists with the frozen disks.
    fn parent_of(&self, layer: &Layer) -> Option<Parent> {
        let entry = self.inventory.get(&layer.parent.name).ok()?;
        if entry.record().created_unix_s != layer.parent.created_unix_s {
            return None;
        }
        let disks = entry.state().disks.clone()?;
        let frozen = disks.frozen(&layer.parent.last_layers)?;
        let mut bases = frozen.disks().iter().filter_map(|disk| disk.base());
        let same = bases.all(|(base, _)| Some(base) == layer.manifest.parent);
        same.then_some(Parent { entry, frozen })
    }

    /// Stores or drops a fork's layer on a thread of its own, when `when` says so. With `hurry` it is stored at once. After
    /// that QEMUs are started for so many clones of the next fork, which the same will make.
    pub(super) fn store_later(
        self: &Arc<Self>,
        layer: Option<Arc<Layer>>,
        parent: Option<Parent>,
        hurry: bool,
        (maker, again): (Maker, u32),
    ) {
        let Some(layer) = layer else {
            return;
        };
        let forks = Arc::downgrade(self);
        let ending = layer.hurry.clone();
        // a node that is ending waits for this job
        let job = self.core.job(ending.clone());
        let forked = Instant::now();
        let work = move || {
            if hurry {
                ending.cancel();
            }
            match wait(&forks, &layer, parent.as_ref(), forked, &ending) {
                Some(Next::Drop) => forget(&forks, &layer),
                Some(_) => store(&forks, &layer, parent.as_ref(), job),
                None => None,
            };
            let (forks, parent) = (forks.upgrade(), parent.filter(|_| again > 0));
            if let (Some(forks), Some(parent)) = (forks, parent) {
                forks.prepare_again(&parent.entry, maker, again);
            }
        };
        if let Err(error) = self.core.threads.start("fork-store", work) {
            tracing::error!(%error, "no thread to store a fork; its clones need this node until its end");
        }
    }

    /// Starts QEMUs for the next clones of a machine, one after the other, as nobody waits for them yet.
    fn prepare_again(&self, parent: &Arc<Entry>, maker: Maker, clones: u32) {
        let known = self.inventory.get(parent.name.as_str());
        if known.is_ok_and(|known| Arc::ptr_eq(&known, parent))
            && !self.core.threads.over().is_cancelled()
        {
            self.machines.prepare_clones(parent, maker, clones, 1);
        }
    }

    /// Pulls what this node's repository lacks of a fork's image.
    pub(super) fn keep_fork(&self, image: &Hash, origin: &Origin) -> Result<(), NodeError> {
        let fetcher = self.images.sources.fetcher(origin)?;
        let _storing = self.images.storing.read();
        let options = PullOptions {
            // one connection only, since the clones and the parent need the other cores
            connections: 1,
            ..Default::default()
        };
        let to = Destination::Repository(&self.images.repo, Some(&self.images.cache));
        transfer::pull(fetcher.source().as_ref(), image, to, &options, &|_| ())?;
        self.unneeded.lock().stored(*image);
        Ok(())
    }

    /// Rebases the parent's disks onto the stored image, unless they have been rebased since the fork.
    fn settle_parent(&self, layer: &Layer, parent: &Parent) -> Result<(), NodeError> {
        let Parent { entry, frozen } = parent;
        // a machine that was removed has no disks, and another may have its name by now
        let known = self.inventory.get(entry.name.as_str());
        if !known.is_ok_and(|known| Arc::ptr_eq(&known, entry)) {
            return Ok(());
        }
        let operation = entry.begin(Task::Fork)?;
        let disks = operation.state().disks.clone();
        match disks.filter(|disks| disks.has_frozen(frozen)) {
            Some(disks) => self.captures.rebase(&operation, &disks, frozen, &layer.id),
            None => Ok(()),
        }
    }

    /// Notes in the records of clones on this host that they no longer need this node's memory.
    fn settle_clones(&self, layer: &Layer) {
        for entry in self.inventory.all() {
            let record = entry.record();
            if !record.rests_on_this_node() || record.image != layer.id {
                continue;
            }
            let settled = entry.update(|record| {
                if let Some(family) = &mut record.family {
                    family.settled = true;
                }
            });
            if let Err(error) = settled {
                tracing::warn!(machine = %entry.name, %error, "its record still says that it needs its parent");
            }
        }
    }
}

/// Waits until a layer is to be stored or dropped, which is soon once `hurry` is thrown; returns `None` once the node is gone.
fn wait(
    forks: &Weak<Forks>,
    layer: &Layer,
    parent: Option<&Parent>,
    forked: Instant,
    hurry: &Cancel,
) -> Option<Next> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    // without it nobody knows how busy the host is, and the layer is stored in time
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut times = CpuTimes::read(&read("/proc/stat"));
    loop {
        hurry.sleep(DECIDE_EVERY);
        let now = CpuTimes::read(&read("/proc/stat"));
        let idle_cores = now
            .zip(times)
            .and_then(|(now, then)| now.idle_since(&then, cores));
        times = now;
        let seen = Seen {
            age: forked.elapsed(),
            needed: forks.upgrade()?.images.user_of(&layer.id).is_some(),
            hurry: hurry.is_cancelled(),
            idle_cores,
            memory_short: host::memory()
                .is_some_and(|memory| memory.available_bytes < memory.total_bytes / MEMORY_SHORT),
            height: parent.map_or(0, height),
        };
        match next(&seen) {
            Next::Wait => {}
            next => return Some(next),
        }
    }
}

/// Returns how many layers the parent's disks have, or 0 if none of them is this fork's.
fn height(parent: &Parent) -> usize {
    let disks = parent.entry.state().disks.clone();
    let disks = disks.filter(|disks| disks.has_frozen(&parent.frozen));
    disks.map_or(0, |disks| disks.height())
}

/// Removes a layer that nobody needs; the parent's disks keep their frozen layers.
fn forget(forks: &Weak<Forks>, layer: &Arc<Layer>) -> Option<()> {
    let forks = forks.upgrade()?;
    forks.machines.drop_standby(&layer.id);
    forks.images.forget_image(&layer.id);
    forks.layers.remove(layer);
    layer.bases().for_each(|base| forks.drop_fork_image(base));
    forks.core.tell(&layer.id.short(), &News::ForkDropped);
    Some(())
}

fn store(forks: &Weak<Forks>, layer: &Arc<Layer>, parent: Option<&Parent>, job: Job) -> Option<()> {
    let mut job = Some(job);
    loop {
        let here = forks.upgrade()?;
        match here.keep_fork(&layer.id, &Origin::default()) {
            Ok(()) => break,
            Err(error) => {
                let news = News::ForkNotStored(error.to_string());
                here.core.tell(&layer.id.short(), &news);
            }
        }
        // a node that is ending does not wait until there is room on a disk
        let over = here.core.threads.over().clone();
        drop((here, job.take()));
        if !over.sleep(TRY_AGAIN) {
            return None;
        }
    }
    let forks = forks.upgrade()?;
    if let Some(parent) = parent
        && let Err(error) = forks.settle_parent(layer, parent)
    {
        tracing::warn!(machine = %parent.entry.name, %error, "its disks keep the fork's frozen layers");
    }
    // before it is gone: whoever waits for that finds the clones settled
    forks.settle_clones(layer);
    forks.layers.remove(layer);
    forks.core.tell(&layer.id.short(), &News::ForkStored);
    drop(job);
    layer.bases().for_each(|base| forks.drop_fork_image(base));
    forks.drop_fork_image(&layer.id);
    Some(())
}
