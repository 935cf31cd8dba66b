//! Leases: a lent machine runs on its borrower for as long as its lender answers, and a lender that goes on without the borrower waits until
//! the last lease is over. So at no moment both run, also if the link is cut and a user forces the machine. [`lease`](super::lease) decides.
//!
//! A machine whose lease is about to end is stored with its disks and parked by its node. What the node can't do, because it hangs, ended or
//! was killed, a [guard](floe_ground::guard) does: it stops QEMU.

use super::{
    Moves,
    lease::{self, Next},
    wire::{self, Granted, LeaseAsked},
};
use floe_ground::{
    caller::FromMember,
    error::NodeError,
    guard::{self, LEASE_FILE, boot_ms},
    report::Report,
};
use floe_inventory::inventory::{
    Entry, Operation,
    lifecycle::Task,
    turn::{Side, Turn},
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

/// How often leases are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a user who forces a machine is told how long its lease lasts.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// For how long the QEMU of a machine that went on elsewhere answers at the most until it is stored, in milliseconds.
const ANSWERS_MS: u64 = 60_000;

/// What a node knows of leases.
pub(super) struct Leases {
    /// When this node began; it may have granted any lease until then.
    began_ms: u64,
    granted: Mutex<Grants>,
}

/// What a lender has granted.
#[derive(Default)]
struct Grants {
    /// When last, by machines' keys.
    at_ms: HashMap<String, u64>,
    /// Those that are granted no more, since their users force them.
    ended: BTreeSet<String>,
}

/// What a borrower has asked its lenders for.
#[derive(Default)]
struct Asked {
    /// When last, by machines' keys.
    at_ms: HashMap<String, u64>,
    /// The lenders that did not answer then.
    silent: BTreeSet<SocketAddr>,
}

impl Asked {
    fn is_silent(&self, turn: &Turn) -> bool {
        let lender = turn.lender.as_ref();
        lender.is_some_and(|lender| self.silent.contains(&lender.address))
    }
}

/// Grants no lease of a machine while this is there.
pub(super) struct Forcing<'a> {
    leases: &'a Leases,
    key: String,
}

/// Has a machine's guard let QEMU answer while this is there.
pub(super) struct Answers<'a>(&'a Entry);

impl Leases {
    /// Begins without any lease that this node has granted.
    pub fn new() -> Leases {
        Leases {
            began_ms: boot_ms(),
            granted: Mutex::default(),
        }
    }
}

impl Drop for Forcing<'_> {
    fn drop(&mut self) {
        self.leases.granted.lock().ended.remove(&self.key);
    }
}

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        if let Err(error) = guard::write(&self.0.dir, 0) {
            tracing::error!(machine = %self.0.name, %error, "its QEMU is stopped a little later");
        }
    }
}

impl Moves {
    /// Starts the threads that stop machines whose lease ends, and that ask for leases anew.
    pub(super) fn start_leasing(self: &Arc<Self>) -> Result<(), NodeError> {
        let threads = &self.core.threads;
        threads.keep("lease-stop", self, LOOK_EVERY, |moves| moves.stop_due())?;
        let mut asked = Asked::default();
        Ok(threads.keep("lease-ask", self, LOOK_EVERY, move |moves| {
            moves.ask_due(&mut asked);
        })?)
    }

    /// Returns the machines that run here by a lease, or that would.
    fn leased(&self) -> Vec<(Arc<Entry>, Turn)> {
        let all = self.inventory.all().into_iter();
        let of = |entry: Arc<Entry>| {
            let turn = entry.turn().filter(|turn| turn.lease_ms().is_some())?;
            matches!(turn.side, Side::Here { .. }).then_some((entry, turn))
        };
        all.filter_map(of).collect()
    }

    fn stop_due(&self) {
        self.machines.guards.reap();
        for (entry, turn) in self.leased() {
            let pid = entry.state().vm.as_ref().map(|vm| vm.pid());
            let (Some(long_ms), Some(pid)) = (turn.lease_ms(), pid) else {
                continue;
            };
            self.machines.guard_lease(&entry);
            let until = until_of(&entry);
            if lease::next(boot_ms(), long_ms, until, None, true) != Next::Stop {
                continue;
            }
            // its guard was first: it answers nobody, and operations would wait for it, until its lease is granted anew
            if guard::is_stopped(pid) {
                continue;
            }
            if let Err(error) = self.lapse(&entry) {
                tracing::warn!(machine = %entry.name, %error, "its lease ends, and it is not stored yet");
            }
        }
    }

    /// Stores a machine whose lease ends, and parks it. It goes on nowhere before its lender has answered.
    fn lapse(&self, entry: &Arc<Entry>) -> Result<(), NodeError> {
        let Some(operation) = self.begin(entry, Task::Move)? else {
            return Ok(());
        };
        let Some(lapsed) = operation.turn().and_then(|turn| turn.lapses()) else {
            return Ok(());
        };
        let (mut report, _events) = Report::new();
        // its guest's hooks have no time
        let done = self
            .parks
            .park_whole(&operation, Some(0), lapsed, &mut report);
        done.map(drop)
    }

    /// Asks for the leases that are due. Lenders that did not answer last are asked after all others, and one of them each time: they keep
    /// no other's machine waiting until its lease is over.
    fn ask_due(&self, asked: &mut Asked) {
        let mut leased = self.leased();
        leased
            .sort_by_key(|(_, turn)| (asked.is_silent(turn), asked.at_ms.get(&turn.key).copied()));
        let (mut still, mut one_was_silent) = (HashMap::new(), false);
        for (entry, turn) in leased {
            let (Some(lender), Some(long_ms)) = (&turn.lender, turn.lease_ms()) else {
                continue;
            };
            if self.core.threads.over().is_cancelled() {
                return;
            }
            let last = asked.at_ms.get(&turn.key).copied();
            let now = boot_ms();
            // what stands still for that is asked for, whatever its file says
            let until = until_of(&entry).filter(|_| !turn.lapsed);
            let is_due = lease::next(now, long_ms, until, last, false) == Next::Ask;
            if !is_due || (one_was_silent && asked.is_silent(&turn)) {
                still.extend(last.map(|last| (turn.key.clone(), last)));
                continue;
            }
            still.insert(turn.key.clone(), now);
            let renewed = self.renew(&entry, &turn);
            if renewed.is_ok() {
                asked.silent.remove(&lender.address);
            } else {
                one_was_silent = true;
                asked.silent.insert(lender.address);
            }
            let done = renewed.and_then(|granted| self.follows(&entry, &turn, granted));
            if let Err(error) = done {
                tracing::debug!(machine = %entry.name, %error, "its lease is not renewed");
            }
        }
        asked.at_ms = still;
    }

    /// Asks the lender of a machine for its lease, and writes down until when it lasts if it is granted.
    fn renew(&self, entry: &Entry, turn: &Turn) -> Result<Granted, NodeError> {
        let (Some(lender), Some(long_ms)) = (&turn.lender, turn.lease_ms()) else {
            return Ok(Granted::No);
        };
        let asked = LeaseAsked {
            key: turn.key.clone(),
        };
        let asked_ms = boot_ms(); // before anybody hears of it
        let granted = wire::lease(&self.cluster, lender, &asked)?;
        if granted == Granted::Yes {
            guard::write(&entry.dir, lease::until(asked_ms, long_ms))?;
        }
        Ok(granted)
    }

    /// Does what follows from a lender's answer. A machine whose lease was over is let go on by the thread that looks after moves: here
    /// others wait.
    fn follows(&self, entry: &Arc<Entry>, turn: &Turn, granted: Granted) -> Result<(), NodeError> {
        let next = match granted {
            Granted::Yes if turn.lapsed => turn.unlapses(),
            Granted::Gone => turn.needs_no_lease(),
            Granted::Yes | Granted::No => return Ok(()),
        };
        let Some(operation) = self.settles(entry, turn)? else {
            return Ok(());
        };
        if granted == Granted::Gone {
            lasts_for_good(&operation)?;
        }
        operation.update(|record| record.turn = Some(next))
    }

    /// Whether a machine may be let go on as far as leases are concerned: if it has one, that lasts, or its lender grants it now, or has
    /// nothing of it any more.
    pub(super) fn may_go_on(&self, operation: &Operation) -> bool {
        let Some(turn) = operation.turn().filter(|turn| turn.lease_ms().is_some()) else {
            return true;
        };
        let lasts = |until: u64| until > boot_ms().saturating_add(lease::STOPS_MS_BEFORE);
        if until_of(operation).is_some_and(lasts) {
            return true;
        }
        match self.renew(operation, &turn) {
            Ok(Granted::Yes) => true,
            Ok(Granted::Gone) => {
                let next = turn.needs_no_lease();
                let noted = lasts_for_good(operation)
                    .and_then(|()| operation.update(|record| record.turn = Some(next)));
                noted.is_ok()
            }
            Ok(Granted::No) | Err(_) => false,
        }
    }

    /// Has the guard of a machine whose lease is over let its QEMU answer for a while, so that what it did can be stored. `None` if it has no
    /// lease.
    pub(super) fn lets_answer<'a>(
        &self,
        operation: &'a Operation,
    ) -> Result<Option<Answers<'a>>, NodeError> {
        let is_leased = operation
            .turn()
            .is_some_and(|turn| turn.lease_ms().is_some());
        if !is_leased {
            return Ok(None);
        }
        guard::write(&operation.dir, boot_ms().saturating_add(ANSWERS_MS))?;
        Ok(Some(Answers(operation)))
    }

    /// Grants a member the lease of a machine that it has borrowed.
    pub fn lease_for(&self, asked: &LeaseAsked, by: &FromMember) -> Result<Granted, NodeError> {
        super::check_key(&asked.key)?;
        // before it is looked how the machine stands: it may be forced from then on, and is granted no more
        let mut granted = self.leases.granted.lock();
        let Some(entry) = self.find(&asked.key) else {
            return Ok(match self.inventory.any_left_alone() {
                true => Granted::No, // it may be one of those whose records can't be read
                false => Granted::Gone,
            });
        };
        let is_its = entry.turn().is_some_and(|turn| match &turn.side {
            Side::Lent { to } | Side::Away { to } => {
                to.address == by.address && turn.lends && !turn.ends
            }
            _ => false,
        });
        if !is_its || granted.ended.contains(&asked.key) {
            return Ok(Granted::No);
        }
        granted.at_ms.insert(asked.key.clone(), boot_ms());
        Ok(Granted::Yes)
    }

    /// Grants no lease of a machine any more, and waits until the last one is over. It is granted again when what this returns is dropped.
    pub(super) fn outlasts(
        &self,
        turn: &Turn,
        report: &mut Report,
    ) -> Result<Option<Forcing<'_>>, NodeError> {
        let lent = matches!(turn.side, Side::Lent { .. } | Side::Away { .. });
        let Some(lease_s) = turn.lease_s.filter(|_| lent && turn.lends) else {
            return Ok(None);
        };
        let mut granted = self.leases.granted.lock();
        granted.ended.insert(turn.key.clone());
        let at_ms = granted.at_ms.get(&turn.key).copied();
        drop(granted);
        let forcing = Forcing {
            leases: &self.leases,
            key: turn.key.clone(),
        };
        // an earlier node may have granted it until this one began
        let at_ms = at_ms.unwrap_or(self.leases.began_ms);
        let free_ms = lease::free_at(at_ms, lease_s.saturating_mul(1000));
        let began_ms = boot_ms();
        let all_s = free_ms.saturating_sub(began_ms).div_ceil(1000);
        if all_s > 0 {
            report.note(format!(
                "its lease lasts for {all_s} s more at the most, and is waited for"
            ));
        }
        let cancel = report.cancel();
        while boot_ms() < free_ms {
            let done_s = boot_ms().saturating_sub(began_ms) / 1000;
            report.progress("lease", done_s, all_s, "s");
            if !cancel.sleep(TELL_EVERY) {
                return Err(NodeError::Cancelled);
            }
        }
        Ok(Some(forcing))
    }
}

/// Returns until when a machine may run here, as far as that is known.
fn until_of(entry: &Entry) -> Option<u64> {
    let file = entry.dir.join(LEASE_FILE);
    guard::read(&file).unwrap_or_else(|error| {
        tracing::warn!(machine = %entry.name, %error, "its lease can't be read");
        None
    })
}

/// Writes down for a machine's guard, which is there until QEMU has ended, that the machine needs no lease.
fn lasts_for_good(entry: &Entry) -> Result<(), NodeError> {
    guard::write(&entry.dir, u64::MAX)
}
