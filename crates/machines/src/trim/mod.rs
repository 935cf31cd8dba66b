//! What guests delete comes back to the host: a guest's file systems tell its disks which blocks they no longer use, and the disks' layers
//! give those up. The agent has them do so when a user asks, and now and then by itself (`decide` says when); many systems do it by
//! themselves, too, which does no harm.
//!
//! This service has no state and no lock of its own.

mod decide;

use crate::agents::Agents;
use decide::{Plan, Seen};
use floe_api::{TrimReport, size_text};
use floe_ground::error::{NodeError, refused};
use floe_guest::chores::{Trimmed, names};
use floe_inventory::{
    core::Core,
    inventory::{Entry, Inventory, lifecycle::Phase},
};
use floe_threads::Cancel;
use std::{sync::Arc, time::Duration};

/// How often the machines are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long a guest may take: file systems of some terabytes take minutes.
const LIMIT: Duration = Duration::from_secs(600);

/// The service that has guests give back what they do not use.
pub struct Trims {
    core: Arc<Core>,
    inventory: Arc<Inventory>,
    agents: Arc<Agents>,
}

impl Trims {
    /// Creates the service.
    pub fn new(core: Arc<Core>, inventory: Arc<Inventory>, agents: Arc<Agents>) -> Arc<Trims> {
        Arc::new(Trims {
            core,
            inventory,
            agents,
        })
    }

    /// Starts the thread that asks guests to do so now and then, unless the node's options forbid it.
    pub fn start_looking_after(self: &Arc<Self>) -> Result<(), NodeError> {
        if !self.core.options.trim {
            return Ok(());
        }
        let mut plan = Plan::default();
        let threads = &self.core.threads;
        Ok(threads.keep("trim", self, LOOK_EVERY, move |trims| {
            trims.look(&mut plan);
        })?)
    }

    fn look(&self, plan: &mut Plan) {
        let all = self.inventory.all();
        let seen: Vec<Seen> = all.iter().filter_map(|entry| seen(entry)).collect();
        let Some(machine) = plan.look(self.core.started.elapsed(), &seen) else {
            return;
        };
        let is_it = |entry: &&Arc<Entry>| entry.state().record.mount_name == machine;
        let Some(entry) = all.iter().find(is_it) else {
            return;
        };
        match self.trim_guest(entry, self.core.threads.over()) {
            Ok(done) => tracing::info!(
                machine = %entry.name,
                told = %size_text(done.bytes),
                freed = %size_text(done.freed_bytes),
                "its guest has told its disks what it does not use"
            ),
            // no agent, or one that does not know of it: the guest does it by itself, or not at all
            Err(error) => {
                tracing::debug!(machine = %entry.name, %error, "its disks keep what it deleted")
            }
        }
    }

    /// Has a machine's guest give back now what it does not use of its disks.
    pub fn trim(&self, name: &str) -> Result<TrimReport, NodeError> {
        let entry = self.inventory.get(name)?;
        entry.vm()?;
        if let Some(reason) = entry.reasons().first() {
            return Err(refused(
                format!("machine {name} stands still because {reason}"),
                format!("see floe ps {name}, and try again when it runs"),
            ));
        }
        self.trim_guest(&entry, &Cancel::default())
    }

    fn trim_guest(&self, entry: &Entry, cancel: &Cancel) -> Result<TrimReport, NodeError> {
        self.agents.check(entry)?;
        let before = taken(entry);
        let done: Trimmed = self
            .agents
            .chore_unless(entry, names::TRIM, &[], LIMIT, cancel)
            .map_err(|error| error.of(entry.name.as_str()))?;
        let refused = done.refused.into_iter();
        Ok(TrimReport {
            bytes: done.bytes,
            freed_bytes: before.saturating_sub(taken(entry)),
            places: done.places,
            refused: refused
                .map(|one| format!("{}: {}", one.what, one.why))
                .collect(),
        })
    }
}

/// What a look sees of a machine; nothing unless its guest runs and nothing is being done with it.
fn seen(entry: &Entry) -> Option<Seen> {
    let life = entry.life();
    if life.phase() != Phase::Running || life.task().is_some() || !life.reasons().is_empty() {
        return None;
    }
    let state = entry.state();
    let counted = state.disks.as_ref()?.stats();
    Some(Seen {
        machine: state.record.mount_name.clone(),
        left_alone: state.record.no_trim,
        written_bytes: counted.write_bytes,
        read_bytes: counted.read_bytes,
    })
}

/// How many bytes a machine's layers take on the host's disk.
fn taken(entry: &Entry) -> u64 {
    let disks = entry.state().disks.clone();
    disks.map_or(0, |disks| disks.stats().overlay_bytes)
}
