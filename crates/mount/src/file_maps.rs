//! Whose disks get maps of their files (`files`), and when. They are made when somebody has first sent an input to a machine: nobody waits
//! for a machine that nobody sits in front of.
//!
//! Locks: the list of who has maps, for an input, before the maps themselves.

use crate::core::Core;
use crate::files::{Files, InTurn, Look, make_all};
use crate::holders::{Holders, Turn};
use crate::job::Job;
use crate::machine::Machine;
use crate::options::IoScheduling;
use floe_sched::{Full, Purpose};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Machines that have maps at a time, on all mounts of this process. Each takes some 5 MB for a Debian, and 50 MB for the worst disk; as much
/// again for the image that they stand on, once for all of them.
const MACHINES_MAX: usize = 16;

/// Who has maps.
static HOLDERS: Mutex<Holders<Files>> = Mutex::new(Holders::new(MACHINES_MAX));

/// Makes the maps of a machine's disks at an input, on a thread of its own: if it has none, or could not read some of them a while ago.
/// Where all places are taken, the machine that was used longest ago gives its maps up.
pub(crate) fn begin(core: &Arc<Core>, machine: &Arc<Machine>) {
    if core.options.io != IoScheduling::Vsip {
        return;
    }
    let files = &machine.files;
    let mut holders = HOLDERS.lock();
    let (maps, given_up) = match holders.used(Instant::now(), files) {
        Turn::Waits | Turn::Has => return,
        Turn::LooksAgain => (files.unread(), Vec::new()),
        Turn::Begins { instead_of } => {
            let given_up = instead_of.map_or_else(Vec::new, |of| of.give_up());
            (
                files.of_all_disks(machine.disks(), &in_turn(core, machine)),
                given_up,
            )
        }
    };
    drop(holders);
    drop(given_up); // which takes a while
    if !maps.is_empty() {
        make_all(machine.name.clone(), maps);
    }
}

/// Returns how the maps of a machine's disks have something read: in the queue before the host's disk, at the machine's cost.
fn in_turn(core: &Arc<Core>, machine: &Arc<Machine>) -> InTurn {
    let (core, machine) = (Arc::downgrade(core), Arc::downgrade(machine));
    // Neither is held until the read is done: the mount ends without the thread that waits for it, and what is queued is dropped then.
    Arc::new(move |read: Look, bytes: u64| {
        let (Some(core), Some(machine)) = (core.upgrade(), machine.upgrade()) else {
            return Err(io::Error::other("the machine is gone"));
        };
        let job = Job::Look(read, bytes);
        match core.queues.work.submit(machine.who(Purpose::Settle), job) {
            Err(Full(Job::Look(read, _))) => Ok(Some(read)),
            _ => Ok(None),
        }
    })
}
