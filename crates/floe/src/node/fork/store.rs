//! A fork's layer becomes an ordinary image, in the background: an own pull of the layer into the repository. Until then its
//! clones need this node's memory, and its parent's disks keep their frozen layers.

use super::layer::Layer;
use crate::{
    node::{Job, Node, error::NodeError, machines::Entry, record::Origin},
    transfer::{self, Cancel, Destination, PullOptions},
};
use floe_image::Hash;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};

/// How long until it is tried again, when the disk was full or a source did not answer.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// How often a thread that waits looks whether the node still is.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl Node {
    /// Stores a fork's layer on a thread of its own, however long it takes.
    pub(super) fn store_later(
        self: &Arc<Self>,
        layer: Option<Arc<Layer>>,
        parent: Option<Arc<Entry>>,
    ) {
        let Some(layer) = layer else {
            return;
        };
        let node = Arc::downgrade(self);
        // a node that is to end waits for this: the switch of its job is turned, and nobody looks at it
        let job = self.job(Cancel::default());
        let store = move || {
            store(&node, &layer, parent.as_ref(), job);
        };
        let thread = std::thread::Builder::new().name("fork-store".into());
        if let Err(error) = thread.spawn(store) {
            tracing::error!(%error, "no thread to store a fork; its clones need this node until its end");
        }
    }

    /// Pulls what this node's repository lacks of a fork's image.
    pub(super) fn keep_fork(&self, image: &Hash, origin: &Origin) -> Result<(), NodeError> {
        let fetcher = self.sources.fetcher(origin)?;
        let _storing = self.storing.read();
        let options = PullOptions {
            // clones and parent run now: they need the other cores
            connections: 1,
            ..Default::default()
        };
        let to = Destination::Repository(&self.repo, Some(&self.cache));
        transfer::pull(fetcher.source().as_ref(), image, to, &options, &|_| ())?;
        Ok(())
    }

    /// The parent's disks go on from the stored image, unless they stand on a later one by now.
    fn settle_parent(&self, layer: &Layer, parent: &Arc<Entry>) -> Result<(), NodeError> {
        // one that was removed has no disks any more, and its name may be another's now
        let known = self.machines.get(parent.name.as_str());
        if !known.is_ok_and(|known| Arc::ptr_eq(&known, parent)) {
            return Ok(());
        }
        let operation = parent.begin("fork")?;
        let disks = operation.state.read().disks.clone();
        match disks.filter(|disks| disks.has_frozen(&layer.frozen)) {
            Some(disks) => self.rebase(&operation, &disks, &layer.frozen, &layer.id),
            None => Ok(()),
        }
    }

    /// Clones on this host need nobody any more.
    fn settle_clones(&self, layer: &Layer) {
        for entry in self.machines.all() {
            let waits = |entry: &Entry| {
                let record = &entry.state.read().record;
                record.rests_on_this_node() && record.image == layer.id
            };
            if !waits(&entry) {
                continue;
            }
            let settled = entry.update(|record| {
                if let Some(family) = &mut record.family {
                    family.settled = true;
                }
            });
            if let Err(error) = settled {
                tracing::warn!(machine = %entry.name, %error, "its record says that it needs its parent");
            }
        }
    }
}

fn store(
    node: &Weak<Node>,
    layer: &Arc<Layer>,
    parent: Option<&Arc<Entry>>,
    job: Job,
) -> Option<()> {
    let mut job = Some(job);
    loop {
        let here = node.upgrade()?;
        match here.keep_fork(&layer.id, &Origin::default()) {
            Ok(()) => break,
            Err(error) => {
                here.tell(
                    "fork.not-stored",
                    &layer.id.short(),
                    format!("its clones need this node's memory until it is: {error}"),
                );
            }
        }
        // the node's end cannot wait for a disk to be made larger
        drop((here, job.take()));
        for _ in 0..TRY_AGAIN.as_millis() / LOOK_EVERY.as_millis() {
            node.upgrade()?;
            std::thread::sleep(LOOK_EVERY);
        }
    }
    let node = node.upgrade()?;
    let before = parent.map(|parent| parent.record().disk_base);
    if let Some(parent) = parent
        && let Err(error) = node.settle_parent(layer, parent)
    {
        tracing::warn!(machine = %parent.name, %error, "its disks keep the fork's frozen layers");
    }
    node.layers.remove(&layer.id);
    node.settle_clones(layer);
    node.tell("fork.stored", &layer.id.short(), "");
    drop(job);
    before.inspect(|before| node.drop_fork_image(before));
    node.drop_fork_image(&layer.id);
    Some(())
}
