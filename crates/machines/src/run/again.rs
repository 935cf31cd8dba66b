//! Starts machines again that have ended, removes machines that were to go at their end, and clones whose time to live is over. When to do
//! so is decided by [`Afterwards`](floe_inventory::inventory::Afterwards) and [`Family::is_over`](floe_inventory::inventory::record::Family::is_over).

use super::Runs;
use floe_api::StartRequest;
use floe_ground::{error::NodeError, news::News, report::Report, time::unix_now};
use floe_inventory::inventory::{
    Entry,
    lifecycle::{Gone, Phase},
};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often the machines are looked at: as often as the shortest time until a restart.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Runs {
    /// Starts the thread that looks after machines that have ended.
    pub fn start_looking_after(self: &Arc<Self>) -> Result<(), NodeError> {
        let mut due = HashMap::new();
        let threads = &self.core.threads;
        Ok(threads.keep("afterwards", self, LOOK_EVERY, move |runs| {
            runs.look_after(&mut due);
        })?)
    }

    /// `due` has the machines that are to be started again, and when.
    fn look_after(self: &Arc<Self>, due: &mut HashMap<String, Instant>) {
        let (now, now_unix_s) = (Instant::now(), unix_now());
        let mut waiting = HashMap::new();
        for entry in self.inventory.all() {
            let life = entry.life();
            // while another operation is under way, that decides
            if life.task().is_some() {
                continue;
            }
            if is_over(&entry, now_unix_s) {
                self.remove_expired(&entry);
                continue;
            }
            if life.phase() != Phase::Stopped {
                continue;
            }
            let afterwards = entry.record().afterwards;
            let name = entry.name.to_string();
            if afterwards.remove {
                self.remove_ended(&entry);
            } else if let Some(wait) = afterwards.wait() {
                let at = due.get(&name).copied().unwrap_or(now + wait);
                // one that waits for its lender's word has not failed
                match at > now || entry.lease_lasts().is_err() {
                    true => drop(waiting.insert(name, at)),
                    false => self.start_again(&entry),
                }
            }
        }
        *due = waiting;
    }

    fn remove_expired(&self, entry: &Arc<Entry>) {
        let name = entry.name.to_string();
        match self.machines.remove_this(entry, true) {
            Ok(true) => self.core.tell(&name, &News::Expired),
            Ok(false) => {} // its user was faster
            Err(error) => {
                tracing::warn!(machine = name, %error, "its time is over and it is not removed yet");
            }
        }
    }

    fn remove_ended(&self, entry: &Arc<Entry>) {
        if let Err(error) = self.machines.remove_this(entry, false) {
            tracing::warn!(machine = %entry.name, %error, "it has ended and is not removed yet");
        }
    }

    fn start_again(self: &Arc<Self>, entry: &Entry) {
        // nobody reads it
        let (mut report, _events) = Report::new();
        let name = entry.name.as_str();
        let before = entry.record().afterwards;
        let started = self.start_machine(name, &StartRequest::default(), &mut report);
        let Err(error) = started else { return };
        tracing::warn!(machine = %name, %error, "was not started again");
        // an attempt that did not get as far as to QEMU counts too
        let counted = entry.update(|record| {
            if record.afterwards == before {
                record.afterwards = before.ended(&Gone::NotStarted, Duration::ZERO);
            }
        });
        if let Err(error) = counted {
            tracing::warn!(machine = %name, %error, "its record does not count that");
        }
    }
}

/// Whether a machine is a clone whose time is over. One that moves to another node is that node's, or is looked at again when it is taken
/// back.
fn is_over(entry: &Entry, now_unix_s: u64) -> bool {
    let record = entry.record();
    let (turn, family) = (record.turn.as_ref(), record.family.as_ref());
    turn.is_none_or(|turn| !turn.is_elsewhere())
        && family.is_some_and(|family| family.is_over(now_unix_s))
}
