//! What the agents in guests do for their host: processes that users start (`exec`), and what the node itself needs done
//! (`chores`, and `hooks` of its owner), and what users do that the guest is to get (`typed`). The conversation with an agent belongs to
//! a service further down (`guest`), which brings these streams their frames.

mod archive;
mod checks;
mod chores;
mod exec;
mod hooks;
mod traffic;
mod typed;

pub use chores::ChoreError;
pub use exec::{Process, Streams};
pub use hooks::Frozen;
pub use typed::{Given, Say, Typed};

use floe_ground::error::{NodeError, refused};
use floe_inventory::inventory::{Entry, Inventory};
use floe_machine::Machine;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};

/// The service that has agents do things. Locks: `streams`, `typed` and `hooked`, none while another is held.
pub struct Agents {
    inventory: Arc<Inventory>,
    /// Processes in guests, by the QEMU in whose guest they run.
    streams: Mutex<Vec<(Weak<Machine>, Arc<Streams>)>>,
    /// Inputs for guests, by their QEMU.
    typed: Mutex<Vec<(Weak<Machine>, Arc<Typed>)>>,
    /// What is known of hooks in guests.
    hooked: Mutex<Vec<hooks::Hooked>>,
    /// Wakes those who wait for a guest's hooks when somebody has given them back.
    hooks_given_back: Condvar,
}

impl Agents {
    /// Creates the service; no agent is known yet.
    pub fn new(inventory: Arc<Inventory>) -> Arc<Agents> {
        Arc::new(Agents {
            inventory,
            streams: Mutex::default(),
            typed: Mutex::default(),
            hooked: Mutex::default(),
            hooks_given_back: Condvar::new(),
        })
    }

    /// Returns the streams of a QEMU: those of the machine's earlier one, which may still be ending, are others.
    pub fn streams_of(&self, vm: &Arc<Machine>) -> Arc<Streams> {
        let mut known = self.streams.lock();
        if let Some((_, streams)) = known.iter().find(|(of, _)| is_of(of, vm)) {
            return streams.clone();
        }
        known.retain(|(of, _)| of.strong_count() > 0);
        let streams = Arc::new(Streams::new());
        known.push((Arc::downgrade(vm), streams.clone()));
        streams
    }

    /// Forgets the streams of a QEMU that runs no more.
    pub fn forget_streams(&self, vm: &Arc<Machine>) {
        let mut known = self.streams.lock();
        let at = known.iter().position(|(of, _)| is_of(of, vm));
        let streams = at.map(|at| known.swap_remove(at).1);
        drop(known);
        if let Some(streams) = streams {
            streams.lose("the machine has ended");
        }
    }
}

/// Returns what to say of an agent that is silent. If pages that its guest needs have not arrived yet, neither it nor any other agent could
/// answer. `waited`: how often the guest had waited for some before ([`Entry::waits`]). `error`: what else there is to say.
fn why_silent(entry: &Entry, waited: u64, error: NodeError) -> NodeError {
    let Some(why) = entry.still_fetches(waited) else {
        return error;
    };
    let name = &entry.name;
    refused(
        format!("no agent answers in {name} yet: {why}"),
        format!("wait for that (floe ps {name} shows what it waits for), and try again"),
    )
}

fn is_of(known: &Weak<Machine>, vm: &Arc<Machine>) -> bool {
    std::ptr::eq(known.as_ptr(), Arc::as_ptr(vm))
}
