//! `park` and `wake`: a machine's memory is stored and its QEMU ends, and later it goes on exactly where it was, with its name, its
//! disks, its addresses and its ports.
//!
//! ```text
//! running -> stop, device state, pages -> stored, durably -> record: parked -> QEMU ends         `store`
//! parked -> a QEMU loads what was stored -> record: running -> the guest goes on                 `wake`
//! ```
//! What is stored is an image of the machine's own over the one that its disks stand on: its memory, and nothing of its disks, which
//! stay in its directory as those of a stopped machine. The next time it is parked another takes its place, which has only the
//! difference to store; every few times it is made anew over the disks' image, so that no chain grows. Such an image is in no list and
//! goes once no machine starts from it.
//!
//! What is written to an independent machine's disks is merged into such an image, too (`own_base`).
//!
//! `rollback` is a park, too, at an image that was captured from the machine earlier.
//!
//! Its forwarded ports stay with the node meanwhile (`ports`): the first connection wakes it. Machines that are idle are parked by
//! themselves if their users wish that (`watch`; `decide` says when).
//!
//! Locks: `unnamed` while a machine is parked or put onto its own image, before the images' `storing`; those of the images' set and of
//! the ports, which are only held for a moment.

mod decide;
mod own_base;
mod ports;
mod rollback;
mod store;
mod wake;
mod watch;

pub use store::Whole;

use floe_api::PauseReason;
use floe_fork::Forks;
use floe_ground::error::{NodeError, at, busy, refused};
use floe_image::Hash;
use floe_inventory::{
    core::Core,
    inventory::{Inventory, Operation},
    network::Networks,
};
use floe_library::{
    images::{Images, PARK_LABEL},
    traces::Traces,
};
use floe_machines::{agents::Agents, capture::Captures, machines::Machines, run::Runs};
use parking_lot::{Mutex, RwLock};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// How often stored memory that no machine needs any more is looked for.
const TIDY_EVERY: Duration = Duration::from_secs(2);

/// The service that parks machines and wakes them.
pub struct Parks {
    core: Arc<Core>,
    images: Arc<Images>,
    inventory: Arc<Inventory>,
    traces: Arc<Traces>,
    networks: Arc<Networks>,
    agents: Arc<Agents>,
    machines: Arc<Machines>,
    runs: Arc<Runs>,
    captures: Arc<Captures>,
    forks: Arc<Forks>,
    /// The ports of parked machines.
    ports: Arc<ports::Ports>,
    /// The images that are the memory of a parked machine, or were.
    stored: Mutex<BTreeSet<Hash>>,
    /// Held for reading from when a machine's memory, or what its disks are to stand on, is known as stored until its record names it.
    unnamed: RwLock<()>,
}

impl Parks {
    /// Opens the service, over what captures need too, with the machines that an earlier node has parked.
    pub fn open(
        captures: Arc<Captures>,
        networks: Arc<Networks>,
        runs: Arc<Runs>,
        forks: Arc<Forks>,
    ) -> Result<Arc<Parks>, NodeError> {
        let stored = captures.images.repo.list()?.into_iter();
        let stored = stored.filter(|image| image.labels.contains_key(PARK_LABEL));
        let stored = stored.map(|image| image.id).collect();
        Ok(Arc::new(Parks {
            core: captures.core.clone(),
            images: captures.images.clone(),
            inventory: captures.inventory.clone(),
            traces: captures.traces.clone(),
            networks,
            agents: captures.agents.clone(),
            machines: captures.machines.clone(),
            runs,
            captures,
            forks,
            ports: Arc::new(ports::Ports::new().map_err(at("cannot ask the kernel who connects"))?),
            stored: Mutex::new(stored),
            unnamed: RwLock::new(()),
        }))
    }

    /// Starts the threads that remove stored memory which no machine needs any more, wake machines, and park those that are idle.
    pub fn start_looking_after(self: &Arc<Self>) -> Result<(), NodeError> {
        self.start_answering()?;
        self.start_watching()?;
        let threads = &self.core.threads;
        Ok(threads.keep("park-tidy", self, TIDY_EVERY, |parks| parks.tidy())?)
    }

    fn tidy(&self) {
        let Some(all_named) = self.unnamed.try_write() else {
            return; // a machine is being parked
        };
        if self.inventory.any_left_alone() {
            return; // it may be parked, and its memory would be gone
        }
        let stored: Vec<Hash> = self.stored.lock().iter().copied().collect();
        let unused = stored
            .into_iter()
            // one that was named is kept for its name, as what a machine did too late
            .filter(|id| self.images.user_of(id).is_none() && !self.images.may_have_name(id));
        let mut unused: Vec<Hash> = unused.collect();
        if unused.is_empty() {
            return;
        }
        match self.machines.under_disks() {
            Ok(under) => unused.retain(|id| !under.contains(id)),
            Err(error) => {
                return tracing::warn!(%error, "stored memory stays until it is known what disks stand on");
            }
        }
        drop(all_named);
        for id in unused {
            match self.images.discard(&id) {
                Ok(_) => drop(self.stored.lock().remove(&id)),
                Err(error) => tracing::warn!(image = id.short(), %error, "stored memory stays"),
            }
        }
    }

    /// Refuses to park a machine that could not go on as the same machine afterwards; the error says what to do.
    pub fn check(&self, operation: &Operation) -> Result<(), NodeError> {
        let name = &operation.name;
        if operation.waits_for_adoption() {
            return Err(busy(
                format!("the QEMU of machine {name} does not answer this node yet"),
                "try again in a moment",
            ));
        }
        operation.vm()?;
        if operation.record().rests_on_this_node() {
            return Err(refused(
                format!("the memory that {name} was cloned from is not stored yet"),
                format!("floe park --wait {name} has it stored, and waits for that"),
            ));
        }
        if self.forks.any_unstored_of(name.as_str()) {
            return Err(refused(
                format!("clones of {name} still need the memory that it had at their fork"),
                format!(
                    "floe park --wait {name} has that stored, and waits for it; or end them: floe kill"
                ),
            ));
        }
        let life = operation.life();
        let Some(reason) = life.reasons().first().copied() else {
            return Ok(());
        };
        let fix = match reason {
            PauseReason::User => format!("floe resume {name}, then park it"),
            PauseReason::Buffering => {
                format!("floe wait {name} --for running, then park it: what it needs is on its way")
            }
            PauseReason::Disk => format!("floe ps {name} says what to do about it"),
            PauseReason::Orphaned => "wait until that node answers".to_owned(),
            PauseReason::Capture => "wait until that is over".to_owned(),
            PauseReason::Source => format!("floe wait {name} --for running, then park it"),
        };
        Err(refused(
            format!("machine {name} stands still because {reason}"),
            fix,
        ))
    }
}
