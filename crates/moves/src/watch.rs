//! Finishes what a call, or an earlier node, could not: tells the node that a machine was given to, asks the one that it comes from, takes
//! back what was offered and not given.

use super::{
    Moves,
    arrive::AHEAD_KEPT,
    results::is_result,
    wire::{self, Order, Question, Recalled, Reply, Travels, Word},
};
use floe_ground::{
    error::{NodeError, busy, refused},
    report::Report,
};
use floe_hosts::cluster::Member;
use floe_image::Hash;
use floe_inventory::inventory::{
    Entry, Operation,
    afterwards::wait_after,
    lifecycle::Task,
    turn::{Answer, Peer, Side, Told, Turn},
};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often the machines are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often in a row nothing came of looking after a machine, and when it is tried again.
type Tries = HashMap<String, (u32, Instant)>;

impl Moves {
    /// Starts the threads that finish moves, and open and close the ports of lent machines.
    pub fn start_looking_after(self: &Arc<Self>) -> Result<(), NodeError> {
        let mut tries = Tries::new();
        self.start_syncing()?;
        self.start_leasing()?;
        let threads = &self.core.threads;
        // ports do not wait for other nodes' answers
        threads.keep("moves-ports", self, LOOK_EVERY, |moves| {
            moves.look_at_ports();
        })?;
        Ok(threads.keep("moves", self, LOOK_EVERY, move |moves| {
            moves.look(&mut tries);
        })?)
    }

    fn look(&self, tries: &mut Tries) {
        // what only saves sending it again makes room on a full disk
        let is_full = self.machines.check_room().is_err();
        let mut copies = self.copies.lock();
        let over = copies
            .extract_if(|_, copy| copy.left().is_zero() || (is_full && copy.left() > AHEAD_KEPT));
        let over: Vec<Hash> = over
            .filter(|(what, _)| is_result(what))
            .map(|(_, copy)| copy.image)
            .collect();
        drop(copies);
        over.iter().for_each(|image| self.forks.lent.end(image));
        let mut still = Tries::new();
        for entry in self.inventory.all() {
            let Some(turn) = entry.turn().filter(Turn::is_open) else {
                continue;
            };
            let now = Instant::now();
            let (failed, at) = tries.get(&turn.key).copied().unwrap_or((0, now));
            // while an operation is under way, that may be doing it
            if at > now || entry.task().is_some() {
                still.insert(turn.key, (failed, at));
                continue;
            }
            if self.core.threads.over().is_cancelled() {
                return;
            }
            let failed = match self.look_after(&entry) {
                Ok(true) => 0,
                Ok(false) => failed.saturating_add(1),
                Err(error) => {
                    tracing::warn!(machine = %entry.name, %error, "its move is not finished yet");
                    failed.saturating_add(1)
                }
            };
            still.insert(turn.key, (failed, now + wait_after(failed)));
        }
        *tries = still;
    }

    /// Does the next step for a machine. Returns whether anything came of it. The other node is asked before the operation begins: what
    /// users want of the machine does not wait for the network.
    fn look_after(&self, entry: &Arc<Entry>) -> Result<bool, NodeError> {
        let Some(turn) = entry.turn() else {
            return Ok(false);
        };
        match &turn.side {
            Side::Away { to } => self.says_given(entry, &turn, to),
            // a node was killed between its record and its guest
            Side::Here { owes, .. } if turn.is_due() => {
                let Some(operation) = self.settles(entry, &turn)? else {
                    return Ok(false);
                };
                match owes {
                    Some(from) => drop(self.comes(&operation, from)),
                    None => drop(self.go_on(&operation)),
                }
                Ok(true)
            }
            // the call that offered it is over, and has not given it away
            Side::Offered { .. } => {
                let operation = self.settles(entry, &turn)?;
                Ok(operation.is_some_and(|operation| self.take_back(&operation)))
            }
            Side::Here {
                owes: Some(from), ..
            }
            | Side::Arriving { from } => self.asks(entry, &turn, from),
            Side::Here { owes: None, .. } => match &turn.late {
                Some(late) => self.tells_late(entry, &turn, late),
                None => Ok(false),
            },
            Side::Lent { to } if turn.ends => {
                if self.ask_end(&turn, to)? == Recalled::UnderWay {
                    return Ok(false);
                }
                let (mut report, _events) = Report::new(); // nobody waits for it
                self.loan_has_ended(entry, &mut report)
            }
            Side::Lent { .. } | Side::Fenced => Ok(false),
        }
    }

    /// Begins to change how a machine stands that stood like this; nothing if it does not any more, or is gone.
    pub(super) fn settles(
        &self,
        entry: &Arc<Entry>,
        turn: &Turn,
    ) -> Result<Option<Operation>, NodeError> {
        let operation = self.begin(entry, Task::Settle)?;
        Ok(operation.filter(|operation| operation.turn().as_ref() == Some(turn)))
    }

    /// Says again that a machine is given.
    fn says_given(&self, entry: &Arc<Entry>, turn: &Turn, to: &Peer) -> Result<bool, NodeError> {
        let reply = wire::order(&self.cluster, to, &given(entry, turn))?;
        if !matches!(reply, Reply::Runs { .. }) {
            return Ok(false);
        }
        let Some(operation) = self.settles(entry, turn)? else {
            return Ok(false);
        };
        self.leave(&operation, to, false).map(|()| true)
    }

    /// Tells the node that a machine was given to that its user had it go on here: a later hand-over was given, and not to that node.
    fn tells_late(&self, entry: &Arc<Entry>, turn: &Turn, late: &Peer) -> Result<bool, NodeError> {
        let has_heard = match self.was_removed(late) {
            true => true, // it is heard no more
            false => wire::order(&self.cluster, late, &given(entry, turn))? == Reply::Stale,
        };
        if !has_heard {
            return Ok(false);
        }
        let Some(operation) = self.settles(entry, turn)? else {
            return Ok(false);
        };
        operation.update(|record| record.turn = Some(turn.has_told()))?;
        Ok(true)
    }

    /// Asks where a machine is that comes from another node, and does what follows.
    fn asks(&self, entry: &Arc<Entry>, turn: &Turn, from: &Peer) -> Result<bool, NodeError> {
        let question = Question {
            key: turn.key.clone(),
            number: turn.number,
        };
        let answer = match self.was_removed(from) {
            true => Answer::Gone, // it is heard no more
            false => wire::question(&self.cluster, from, &question)?,
        };
        let told = turn.told(question.number, answer);
        if told == Told::Waits {
            return Ok(false);
        }
        let Some(operation) = self.settles(entry, turn)? else {
            return Ok(false);
        };
        match told {
            Told::Becomes(next) => {
                let comes = matches!(turn.side, Side::Arriving { .. });
                operation.update(|record| record.turn = Some(next))?;
                if comes {
                    drop(self.comes(&operation, from));
                }
            }
            Told::Drop => self.machines.remove(&operation, true)?,
            Told::Fence(next) => self.fence(&operation, next)?,
            Told::Waits => return Ok(false),
        }
        Ok(true)
    }

    /// Refuses to force a copy that was not given if the node that it comes from is there: that one may have the machine go on, and move to
    /// a third node, and then nobody would ever tell this one that it is too late. And one whose lease is over while its lender is a member.
    pub(super) fn check_forces(&self, name: &str, turn: &Turn) -> Result<(), NodeError> {
        if turn.lapsed
            && let Some(lender) = turn
                .lender
                .as_ref()
                .filter(|lender| !self.was_removed(lender))
        {
            return Err(refused(
                format!(
                    "{name} is lent, and its lender {} may have it go on",
                    lender.name
                ),
                format!(
                    "it goes on here once {0} answers; if {0} is gone for good, take it out of the cluster first: floe cluster revoke {0}",
                    lender.name
                ),
            ));
        }
        let Side::Arriving { from } = &turn.side else {
            return Ok(());
        };
        let question = Question {
            key: turn.key.clone(),
            number: turn.number,
        };
        if self.was_removed(from) {
            return Ok(());
        }
        let node = &from.name;
        match wire::question(&self.cluster, from, &question) {
            Err(_) | Ok(Answer::Given) => Ok(()),
            Ok(Answer::Wait | Answer::Void) => Err(busy(
                format!("{node} is there, and has not given {name} to this node"),
                format!("floe ps there shows how {name} stands"),
            )),
            Ok(Answer::Gone) => Err(refused(
                format!(
                    "{node} is there, has no {name} any more, and has not given it to this node"
                ),
                format!(
                    "floe rm {name} removes the copy; if {node} has lost its machines, take it out of the cluster first: floe cluster \
                     revoke {node}"
                ),
            )),
        }
    }

    /// Whether a node that was a member of this node's cluster is none any more.
    pub(super) fn was_removed(&self, peer: &Peer) -> bool {
        let is_peer = |member: &Member| member.address == peer.address;
        self.cluster.own_address().is_some() && !self.cluster.others().iter().any(is_peer)
    }
}

/// The word that a machine is given.
fn given(entry: &Entry, turn: &Turn) -> Order {
    Order {
        key: turn.key.clone(),
        number: turn.number,
        word: Word::Given,
        machine: Travels::of(&entry.record()),
    }
}
