//! Tells the other of two nodes what a machine is, while it goes on: the one to which it will move, the one that has lent it, or the one
//! that will give it back. It is captured as it runs, and the other node brings the chunks that it lacks of that, as ahead of a move. What a
//! lender was told last is what the machine goes on from if its borrower is gone for good.
//!
//! The lender keeps in the machine's record how often that is done by itself ([`super::when`]), wherever the machine runs.

use super::{
    Moves,
    depart::new_key,
    when::{Next, Syncs, Wish},
    wire::{self, Order, Recalled, SyncAsked, Travels, Word},
};
use floe_api::{Outcome, SYNC_EVERY_S_MAX, SYNC_EVERY_S_MIN, SyncReport, SyncRequest, size_text};
use floe_ground::{
    caller::FromMember,
    error::{NodeError, busy, not_found, usage},
    report::Report,
};
use floe_inventory::inventory::{
    Entry, Operation,
    lifecycle::Task,
    turn::{Peer, Syncing, Turn},
};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// How often it is looked which machines are due.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Moves {
    /// Syncs a machine once, or from now on from time to time, or no longer.
    pub fn sync(
        self: &Arc<Self>,
        name: &str,
        request: &SyncRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        check(request)?;
        let entry = self.inventory.get(name)?;
        let with = match request.stop {
            true => None,
            false => Some(self.other_side(&entry, request.to.as_deref())?),
        };
        if let Some(sealed) = request.sealed {
            self.seals(&entry, sealed)?;
        }
        let synced = match &with {
            Some(with) => Some(self.sync_with(&entry, with, report)?),
            None => None,
        };
        let syncing = with.zip(request.every_s);
        if request.stop || syncing.is_some() {
            let syncing = syncing.map(|(with, every_s)| Syncing {
                with,
                every_s,
                threshold_bytes: request.threshold_bytes,
            });
            let operation = self.begin(&entry, Task::Settle)?;
            let operation = operation.ok_or_else(|| gone(name))?;
            operation.update(|record| record.syncing = syncing)?;
        }
        Ok(Outcome {
            machine: Some(self.machines.info_of(&entry)),
            synced,
            ..Default::default()
        })
    }

    /// Returns the node with which a machine is synced.
    fn other_side(&self, entry: &Entry, to: Option<&str>) -> Result<Peer, NodeError> {
        let named = to.map(|to| self.member(to)).transpose()?;
        let turn = entry.turn();
        let known = turn.as_ref().and_then(|turn| {
            let borrower = turn.borrower();
            borrower.or(turn.lender.as_ref()).cloned()
        });
        match (named, known) {
            (Some(named), Some(known)) if named.address != known.address => Err(usage(
                format!("{} is between this node and {}", entry.name, known.name),
                format!("floe sync {} syncs it with that node", entry.name),
            )),
            (Some(named), _) => Ok(named),
            (None, Some(known)) => Ok(known),
            (None, None) => Err(usage(
                format!("{} is lent to no node, and by none", entry.name),
                format!(
                    "floe sync {} --to NODE tells the node of it to which it will go",
                    entry.name
                ),
            )),
        }
    }

    /// Has the node that does not run a machine know what it is.
    fn sync_with(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        with: &Peer,
        report: &mut Report,
    ) -> Result<SyncReport, NodeError> {
        let is_lent = entry.turn().is_some_and(|turn| turn.borrower().is_some());
        let wire_bytes = match is_lent {
            true => {
                self.ask_to_sync(entry, with, 0, report)?;
                report.stage("sync")?;
                0
            }
            false => self.tell(entry, with, report)?,
        };
        Ok(SyncReport {
            with: with.name.clone(),
            wire_bytes,
        })
    }

    /// Tells another node what a machine is that runs here. Returns how many bytes crossed the network for that.
    fn tell(&self, entry: &Arc<Entry>, with: &Peer, report: &mut Report) -> Result<u64, NodeError> {
        entry.wait_for_identity()?;
        let operation = entry.begin(Task::Capture)?;
        self.parks.check(&operation)?;
        let order = self.order_of(&operation, with)?;
        report.stage("ask")?;
        let (key, changes) = (order.key.clone(), self.machines.changes_of(&operation));
        let wire_bytes = self.copy_ahead(&operation, with, order, true, report)?;
        self.known.lock().told(key, changes);
        Ok(wire_bytes)
    }

    /// Returns an order about a machine that is told of. It has its key from now on, and a node that could never have it is not told of it.
    fn order_of(&self, operation: &Operation, with: &Peer) -> Result<Order, NodeError> {
        if operation.turn().is_none() {
            let turn = Turn::told_of(new_key());
            operation.update(|record| record.turn = Some(turn))?;
        }
        let Some(turn) = operation.turn() else {
            return Err(gone(operation.name.as_str()));
        };
        if turn.lender.is_none() {
            return self.ask(operation, with, &turn);
        }
        Ok(Order {
            key: turn.key,
            number: turn.number,
            word: Word::Given, // another takes its place
            machine: Travels::of(&operation.record()),
        })
    }

    /// Tells the lender, who has asked for it, what a borrowed machine is now, or how far that has come.
    pub fn sync_for(
        self: &Arc<Self>,
        asked: &SyncAsked,
        by: &FromMember,
    ) -> Result<Recalled, NodeError> {
        super::check_key(&asked.key)?;
        // no machine has a name with a space
        let what = (format!("sync {}", asked.key), by.address);
        if let Some(how) = self.how_goes(&what) {
            return how;
        }
        let is_its = |turn: &Turn| {
            let lender = turn.lender.as_ref();
            turn.is_here() && lender.is_some_and(|lender| lender.address == by.address)
        };
        let entry = self.find(&asked.key);
        let entry = entry.filter(|entry| entry.turn().as_ref().is_some_and(is_its));
        let entry = entry.ok_or_else(|| not_found("there is no such machine of yours", ""))?;
        if asked.at_least_bytes > 0 && self.changed_less(&entry, asked) {
            return Ok(Recalled::Given);
        }
        let with = Peer {
            name: by.name.clone(),
            address: by.address,
        };
        self.begin_for(what, move |moves, report| {
            moves.tell(&entry, &with, report).map(drop)
        })
    }

    /// Whether a machine has not changed by so much since it was told of.
    fn changed_less(&self, entry: &Entry, asked: &SyncAsked) -> bool {
        let now = self.machines.changes_of(entry);
        let changed = self.known.lock().lacks_from_now_on(&asked.key, now);
        changed < asked.at_least_bytes
    }

    /// Starts the thread that syncs machines by itself.
    pub(super) fn start_syncing(self: &Arc<Self>) -> Result<(), NodeError> {
        let mut known = HashMap::new();
        let threads = &self.core.threads;
        Ok(threads.keep("moves-sync", self, LOOK_EVERY, move |moves| {
            moves.sync_due(&mut known);
        })?)
    }

    /// Syncs the machines that are due, one after the other.
    fn sync_due(self: &Arc<Self>, known: &mut HashMap<String, Syncs>) {
        let mut still = HashMap::new();
        for entry in self.inventory.all() {
            let Some(syncing) = entry.record().syncing.clone() else {
                continue;
            };
            if self.core.threads.over().is_cancelled() {
                return;
            }
            let key = entry.name.to_string();
            let now_ms = self.now_ms();
            // with whom it was to be synced before it was lent, perhaps to another node, no longer counts
            let borrower = entry.turn().and_then(|turn| turn.borrower().cloned());
            let is_lent = borrower.is_some();
            let counts = !is_lent && syncing.threshold_bytes.is_some();
            let changes = counts.then(|| self.machines.changes_of(&entry));
            let begun = Syncs::new(now_ms, changes.unwrap_or_default());
            let mut syncs = known.get(&key).copied().unwrap_or(begun);
            let wish = Wish {
                every_ms: syncing.every_s.saturating_mul(1000),
                threshold_bytes: syncing.threshold_bytes,
            };
            // one that does not run here or there changes nothing
            if is_lent || entry.state().vm.is_some() {
                let next = syncs.next(&wish, now_ms, changes);
                self.does(next, &entry, &borrower.unwrap_or(syncing.with), &mut syncs);
            }
            still.insert(key, syncs);
        }
        *known = still;
    }

    fn does(self: &Arc<Self>, next: Next, entry: &Arc<Entry>, with: &Peer, syncs: &mut Syncs) {
        if next == Next::Wait {
            return;
        }
        let (mut report, _events) = Report::new();
        let _job = self.core.job(report.cancel());
        let changes = self.machines.changes_of(entry);
        let done = match next {
            Next::SyncIf(bytes) => self.ask_to_sync(entry, with, bytes, &mut report),
            Next::Sync | Next::Wait => self.sync_with(entry, with, &mut report).map(drop),
        };
        let now_ms = self.now_ms();
        match done {
            Ok(()) if next == Next::Sync => syncs.synced(now_ms, changes),
            Ok(()) => syncs.asked(now_ms),
            Err(error) => {
                tracing::warn!(machine = %entry.name, %error, "it is not synced, and tried again");
                syncs.failed(now_ms);
            }
        }
    }

    /// Asks the borrower of a machine to tell what it is, if it has changed by so much, and waits until that is done.
    fn ask_to_sync(
        &self,
        entry: &Entry,
        with: &Peer,
        at_least_bytes: u64,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let turn = entry.turn().ok_or_else(|| gone(entry.name.as_str()))?;
        let asked = SyncAsked {
            key: turn.key,
            at_least_bytes,
        };
        let ask = || wire::sync(&self.cluster, with, &asked);
        self.wait_for(entry.name.as_str(), &ask, report)
    }

    fn now_ms(&self) -> u64 {
        self.core.started.elapsed().as_millis() as u64
    }
}

/// Refuses a request that contradicts itself.
fn check(request: &SyncRequest) -> Result<(), NodeError> {
    let range = SYNC_EVERY_S_MIN..=SYNC_EVERY_S_MAX;
    if request.every_s.is_some_and(|s| !range.contains(&s)) {
        return Err(usage(
            "that is too often, or too seldom, to sync a machine",
            format!("name a time from {SYNC_EVERY_S_MIN} s to {SYNC_EVERY_S_MAX} s"),
        ));
    }
    if request.threshold_bytes.is_some() && request.every_s.is_none() {
        let bytes = request.threshold_bytes.unwrap_or_default();
        return Err(usage(
            format!(
                "{} of changes are a bound for what is done by itself",
                size_text(bytes)
            ),
            "name a time, too, after which it is synced in any case",
        ));
    }
    if request.stop && request.sealed.is_some() {
        return Err(usage(
            "what is synced no longer is neither sealed nor readable",
            "name one of both",
        ));
    }
    if request.stop && request.every_s.is_some() {
        return Err(usage(
            "syncing can't begin and end at once",
            "name one of both",
        ));
    }
    Ok(())
}

fn gone(name: &str) -> NodeError {
    busy(
        format!("machine {name} is gone from here just now"),
        "floe ps, here and on the other node, shows where it is",
    )
}
