//! Users at screens and consoles: what they do goes to QEMU as fast as it comes while a machine runs here, and is kept while it would be
//! lost there.
//!
//! It would be where the machine stands still, has no QEMU here, or is another node's. What follows on inputs that wait is kept as well, so
//! that it does not overtake them. A guest whose agent takes no inputs gets them as before, unless there is no QEMU here at all: for it
//! nobody could promise more than that each comes at most once.

use super::{Inputs, Look, decide::Kept, rests};
use crate::{error::NodeError, inventory::Entry, typist::Typist, vnc::Stand};
use floe_guest::input::Input;
use parking_lot::Mutex;
use std::{os::unix::net::UnixStream, sync::Arc};

/// A user at one machine: one source of inputs.
struct User {
    inputs: Arc<Inputs>,
    entry: Arc<Entry>,
    from: u64,
    /// The number of its next input.
    next: Mutex<u64>,
}

impl Typist for User {
    fn screen(&self) -> Result<UnixStream, NodeError> {
        match self.inputs.look(&self.entry, Look::Screen)? {
            Some(there) => Ok(there),
            None => self.inputs.machines.vnc(self.entry.name.as_str()),
        }
    }

    fn stand(&self) -> Stand {
        self.inputs.stand(&self.entry)
    }

    fn has_done(&self) {
        self.entry.has_input();
    }

    fn keep(&self, inputs: Vec<Input>) -> Result<(), NodeError> {
        let mut next = self.next.lock();
        let numbered = (*next..).zip(inputs);
        let kept: Vec<Kept> = numbered
            .map(|(number, input)| Kept {
                from: self.from,
                number,
                gap_ms: 0,
                input,
            })
            .collect();
        let count = kept.len() as u64;
        self.inputs.keep(self.entry.name.as_str(), kept)?;
        *next += count;
        Ok(())
    }
}

impl Inputs {
    /// Returns a new user at a machine.
    pub fn user(self: &Arc<Self>, entry: &Arc<Entry>) -> Arc<dyn Typist> {
        Arc::new(User {
            inputs: self.clone(),
            entry: entry.clone(),
            from: rand::random(),
            next: Mutex::new(1),
        })
    }

    /// How inputs for a machine fare just now.
    fn stand(&self, entry: &Entry) -> Stand {
        let turn = entry.turn();
        let is_elsewhere = turn.as_ref().is_some_and(|turn| turn.is_elsewhere());
        let Ok(vm) = entry.vm() else {
            // one that is stopped begins anew, where nothing of this is meant
            let goes_on = entry.is_parked() || entry.waits_for_adoption();
            return Stand {
                // what is passed on goes to the borrower's QEMU
                still: turn.is_none_or(|turn| turn.borrower().is_none()),
                kept: goes_on || is_elsewhere,
            };
        };
        let still = is_elsewhere || rests(entry);
        let comes_later = still || self.waits_for(entry.name.as_str());
        Stand {
            still,
            kept: comes_later && self.agents.takes_inputs(&vm) == Some(true),
        }
    }

    /// Whether inputs wait for a machine, or are being kept or given at this moment.
    fn waits_for(&self, name: &str) -> bool {
        let known = self.boxes.lock().get(name).cloned();
        known.is_some_and(|known| {
            let now = known.try_lock();
            now.is_none_or(|now| !now.waiting.is_empty())
        })
    }
}
