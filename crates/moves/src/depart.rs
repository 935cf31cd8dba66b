//! Gives a machine to another node.

use super::{
    Moves, check_lease,
    wire::{self, Order, OtherSize, Reply, SealKey, Silence, Travels, Word},
};
use floe_api::{
    ErrorCode, MoveReport, MoveRequest, Outcome, ResizeReport, SizeRequest, StoredReport,
};
use floe_ground::{
    error::{NodeError, busy, failed, refused, usage},
    news::News,
    patience::PATIENCE,
    report::{Report, millis},
};
use floe_inventory::inventory::{
    Entry, Operation,
    lifecycle::Task,
    turn::{Peer, Side, Turn},
};
use floe_library::images::PARK_LABEL;
use floe_machines::capture::Taking;
use floe_park::park::Whole;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often the other node is asked how far it is, and told again what it has not answered. It says nothing by itself.
const AGAIN: Duration = Duration::from_millis(200);

/// For how long the image of a machine that leaves is kept, if it is: until it comes back in the evening of the next day.
const COPY_KEPT: Duration = Duration::from_secs(36 * 3600);

/// A machine that runs on another node now.
struct Moved {
    stored: StoredReport,
    report: MoveReport,
}

/// How far a hand-over is.
enum Step {
    /// The other side is to be spoken to again.
    Again,
    /// It runs there; the text says why it does not, if it is parked there.
    Runs(String),
}

impl Moves {
    /// Moves a machine to the member of this name or address. Unless it is given away, it goes on here after an error.
    pub(super) fn depart(
        self: &Arc<Self>,
        name: &str,
        to: &str,
        request: &MoveRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let to = self.member(to)?;
        let entry = self.inventory.get(name)?;
        entry.wait_for_identity()?;
        let operation = entry.begin(Task::Move)?;
        self.check_goes(&operation, report)?;
        check_loan(&operation, &to, request.lend)?;
        check_lease(request.lease_s, request.lend)?;
        let record = operation.record();
        let mut turn = Turn::offered(record.turn.as_ref(), new_key(), to.clone());
        turn.parked = operation.is_parked();
        turn.lends = request.lend;
        turn.lease_s = request.lease_s.or(turn.lease_s);
        // before its guest stands still for nothing
        let key = self.seal_key(&turn)?;
        let asked = self.ask(&operation, &to, &turn)?;
        report.stage("ask")?;
        if turn.parked {
            if !self.may_go_on(&operation) {
                return Err(busy(
                    format!(
                        "{name} would be woken for this, and its lender does not grant its lease"
                    ),
                    "try again in a moment",
                ));
            }
            report.note(format!("{name} is woken for this, and parked there"));
            self.parks.wake_machine(&operation, false, report)?;
            report.stage("wake")?;
        }
        self.parks.check(&operation)?;
        let ahead_bytes = match request.still || turn.parked {
            true => 0,
            false => self.copy_ahead(&operation, &to, asked, false, report)?,
        };
        let machine = turn.key.clone();
        let hooks_s = request.hooks_s;
        let whole = self.parks.park_whole(&operation, hooks_s, turn, report)?;
        report.stage_at("qemu end", Instant::now());
        let image = whole.id;
        let done = self.hand_over(&operation, &to, whole, key, request.keep, report);
        self.forks.lent.end(&image);
        let mut moved = done?;
        moved.report.wire_bytes = moved.report.wire_bytes.saturating_add(ahead_bytes);
        // one that does not go on there can't take anything
        let goes_on = moved.report.trouble.is_empty();
        let resized = match goes_on {
            true => self.resize_there(name, &to, machine, request, report),
            false => None,
        };
        Ok(Outcome {
            stored: Some(moved.stored),
            moved: Some(moved.report),
            resized,
            ..Default::default()
        })
    }

    /// Asks another node whether a machine could come, as what it is to be there. Returns what it was asked.
    pub(super) fn ask(&self, entry: &Entry, to: &Peer, turn: &Turn) -> Result<Order, NodeError> {
        let record = entry.record();
        let mut config = record.config.clone();
        // that node need not have room for what its guest has given back
        record.given.label(&mut config);
        let asked = Order {
            key: turn.key.clone(),
            number: turn.number,
            word: Word::Asked {
                config: Box::new(config),
            },
            machine: Travels {
                lends: turn.lends,
                lease_s: turn.lease_s,
                ..Travels::of(&record)
            },
        };
        match wire::order(&self.cluster, to, &asked)? {
            Reply::Could => Ok(asked),
            other => Err(no_answer(&to.name, &other)),
        }
    }

    /// Has the other node give the machine the size that it is to have there. The machine runs there whatever comes of that: what did not
    /// come to be is told as a note.
    fn resize_there(
        &self,
        name: &str,
        to: &Peer,
        key: String,
        request: &MoveRequest,
        report: &mut Report,
    ) -> Option<ResizeReport> {
        if request.cpus.is_none() && request.memory_bytes.is_none() {
            return None;
        }
        let size = SizeRequest {
            cpus: request.cpus,
            memory_bytes: request.memory_bytes,
            overcommit: false,
        };
        let asked = OtherSize { key, size };
        let began = Instant::now();
        let done = loop {
            match wire::resize(&self.cluster, to, &asked) {
                Ok(resized) => break Ok(resized),
                // it may just be finishing the move
                Err(Silence::Refused(why))
                    if why.code == ErrorCode::Busy && began.elapsed() < PATIENCE =>
                {
                    if !report.cancel().sleep(AGAIN) {
                        break Err(NodeError::Cancelled);
                    }
                }
                Err(silence) => break Err(silence.into()),
            }
        };
        report.stage_at("resize there", Instant::now());
        match done {
            Ok(resized) => Some(resized),
            Err(error) => {
                let why = error.to_api();
                report.note(format!("{name} has the size that it had: {why}"));
                None
            }
        }
    }

    /// Has the other node bring what the machine is while it goes on. Once it stands still, what it has changed since is left to be
    /// brought. Returns how many bytes crossed the network for it. `order` is one about this hand-over; `kept` is whether no hand-over follows soon.
    pub(super) fn copy_ahead(
        &self,
        operation: &Operation,
        to: &Peer,
        order: Order,
        kept: bool,
        report: &mut Report,
    ) -> Result<u64, NodeError> {
        let labels = BTreeMap::from([(PARK_LABEL.to_owned(), "1".to_owned())]);
        let taking = Taking {
            stop: false,
            rehearse_s: 0,
            hooks_s: Some(0),
            picture: false,
            labels: &labels,
            keep: &|_, _| Ok(()),
        };
        let taken = self.captures.take(operation, &taking, report)?;
        // its disks stand on that now, until they stand on another
        self.parks.is_memory(taken.id);
        let image = match operation.turn() {
            Some(turn) => self.as_told(&turn, taken.id, report)?,
            None => taken.id,
        };
        let word = Word::Ahead {
            image,
            token: self.forks.lent.lend(image),
            kept,
        };
        let began = Instant::now();
        let done = self.bring_ahead(to, &Order { word, ..order }, report);
        self.forks.lent.end(&image);
        if let Ok(bytes) = &done {
            self.saw_rate(to.address, *bytes, began.elapsed(), true);
        }
        done
    }

    fn bring_ahead(&self, to: &Peer, order: &Order, report: &mut Report) -> Result<u64, NodeError> {
        let (cancel, mut heard) = (report.cancel(), Instant::now());
        loop {
            match wire::order(&self.cluster, to, order) {
                Ok(Reply::Ready { wire_bytes }) => {
                    report.stage("copy ahead")?;
                    return Ok(wire_bytes);
                }
                Ok(Reply::Bringing { done, total }) => {
                    heard = Instant::now();
                    report.progress("copy ahead", done, total, "bytes");
                }
                Ok(other) => return Err(no_answer(&to.name, &other)),
                Err(silence) if silence.passes() && heard.elapsed() < PATIENCE => {}
                Err(silence) => return Err(silence.into()),
            }
            if !cancel.sleep(AGAIN) {
                return Err(NodeError::Cancelled);
            }
        }
    }

    /// Finds a member of the cluster to which a machine can move.
    pub(super) fn member(&self, text: &str) -> Result<Peer, NodeError> {
        let own = self.cluster.own_address().ok_or_else(|| {
            refused(
                format!("{text}: this node is in no cluster"),
                "floe cluster init on one host, floe cluster join on the others",
            )
        })?;
        let found = self.cluster.find(text).ok_or_else(|| {
            refused(
                format!("{text} is no member of this node's cluster"),
                "floe cluster members lists them; floe cluster invite here and floe cluster join there make it one",
            )
        })?;
        match found.address == own {
            true => Err(usage(
                format!("{text} is this node, where the machine is"),
                "name another member: floe cluster members lists them",
            )),
            false => Ok(Peer {
                name: found.name,
                address: found.address,
            }),
        }
    }

    /// Refuses what another node could not have as it is here, with the way out.
    pub(super) fn check_goes(&self, entry: &Entry, report: &Report) -> Result<(), NodeError> {
        let name = &entry.name;
        entry.is_here()?;
        entry.answers()?;
        let record = entry.record();
        if let Some(owed) = record.turn.as_ref().and_then(Turn::peer) {
            return Err(busy(
                format!(
                    "{name} has come from {}, which has not forgotten it yet",
                    owed.name
                ),
                format!(
                    "try again in a moment; if {0} is gone for good, take it out of the cluster: floe cluster revoke {0}",
                    owed.name
                ),
            ));
        }
        let late = record.turn.as_ref().and_then(|turn| turn.late.as_ref());
        if let Some(late) = late.filter(|late| !self.was_removed(late)) {
            return Err(busy(
                format!(
                    "{} may have {name} run too: it has not heard yet that {name} went on here",
                    late.name
                ),
                format!(
                    "try again once {0} answers; if {0} is gone for good, take it out of the cluster: floe cluster revoke {0}",
                    late.name
                ),
            ));
        }
        if !entry.is_parked() {
            entry.vm()?;
        }
        if record.network.is_some() {
            return Err(refused(
                format!("machine {name} is in the network of its family, which stays on this host"),
                "machines without --network move; floe fork --hosts has clones in such a network on other hosts",
            ));
        }
        if record.ordered_by().is_some() {
            return Err(refused(
                format!(
                    "machine {name} is here on the order of another node, which looks after it"
                ),
                "move what its user made there",
            ));
        }
        let family = record.family.as_ref();
        if family.is_some_and(|family| family.ends_unix_s.is_some()) {
            report.note(format!(
                "the other node does not know when {name} is to be removed (--ttl)"
            ));
        }
        if !record.host_access.is_none() {
            report.note(format!(
                "what the guest of {name} may reach of this host (--allow-host) it may not reach of another"
            ));
        }
        Ok(())
    }

    /// Has the other node bring a machine that is stored, and gives it away. `key` opens what that node was told of it sealed.
    fn hand_over(
        &self,
        operation: &Operation,
        to: &Peer,
        whole: Whole,
        key: Option<SealKey>,
        keep: bool,
        report: &mut Report,
    ) -> Result<Moved, NodeError> {
        let token = self.forks.lent.lend(whole.id);
        let offered = Word::Offered {
            image: whole.id,
            token,
            key,
        };
        let machine = Travels::of(&operation.record());
        let (cancel, mut heard, mut wire_bytes) = (report.cancel(), Instant::now(), 0);
        loop {
            let Some(turn) = operation.turn() else {
                return Err(failed(
                    "its record does not say how it moves",
                    "report this",
                ));
            };
            let given = matches!(turn.side, Side::Away { .. });
            let word = match given {
                true => Word::Given,
                false => offered.clone(),
            };
            let order = Order {
                key: turn.key.clone(),
                number: turn.number,
                word,
                machine: machine.clone(),
            };
            let said = wire::order(&self.cluster, to, &order);
            if said.is_ok() {
                heard = Instant::now();
            }
            let silent = heard.elapsed() > PATIENCE;
            let step = match said {
                Err(silence) if silence.passes() && !silent && !cancel.is_cancelled() => {
                    Ok(Step::Again)
                }
                Err(silence) => Err(silence.into()),
                Ok(_) if cancel.is_cancelled() && !given => Err(NodeError::Cancelled),
                Ok(reply) => self.hears(operation, &turn, reply, &mut wire_bytes, report),
            };
            match step {
                Ok(Step::Runs(trouble)) => {
                    report.stage_at("go on there", Instant::now());
                    let down_ms = millis(whole.stopped.elapsed());
                    self.leave(operation, to, keep)?;
                    let to = to.name.clone();
                    return Ok(Moved {
                        stored: whole.stored,
                        report: MoveReport {
                            to,
                            wire_bytes,
                            down_ms,
                            trouble,
                        },
                    });
                }
                Ok(Step::Again) => {
                    let _ = cancel.sleep(AGAIN); // who hung up is seen above
                }
                Err(error) => return Err(self.give_up(operation, to, error, report)),
            }
        }
    }

    /// Does what follows from what the other node has answered.
    fn hears(
        &self,
        operation: &Operation,
        turn: &Turn,
        reply: Reply,
        wire_bytes: &mut u64,
        report: &mut Report,
    ) -> Result<Step, NodeError> {
        match reply {
            Reply::Bringing { done, total } => {
                report.progress("bring", done, total, "bytes");
                Ok(Step::Again)
            }
            Reply::Ready { wire_bytes: bytes } => {
                *wire_bytes = bytes;
                report.stage_at("bring", Instant::now());
                self.gives(operation, turn)?;
                Ok(Step::Again)
            }
            Reply::Runs { trouble } => {
                // its user there did not wait for this node's word
                self.gives(operation, turn)?;
                Ok(Step::Runs(trouble))
            }
            Reply::Could | Reply::Stale => Err(failed(
                "the other node has nothing of the machine that it could let go on",
                "floe events there says what became of it",
            )),
        }
    }

    /// Writes down that a machine that is offered is given away, which is the moment from which it is not this node's any more.
    fn gives(&self, operation: &Operation, turn: &Turn) -> Result<(), NodeError> {
        match turn.gives() {
            Some(given) => operation.update(|record| record.turn = Some(given)),
            None => Ok(()),
        }
    }

    /// Ends a hand-over that could not be finished: what is still this node's goes on here. Returns the error for the user.
    fn give_up(
        &self,
        operation: &Operation,
        to: &Peer,
        error: NodeError,
        report: &Report,
    ) -> NodeError {
        if self.take_back(operation) {
            report.note(format!("{} goes on on this node", operation.name));
            return error;
        }
        let name = &operation.name;
        let why = error.to_api();
        failed(
            format!(
                "{name} was given to {}, which does not say that it runs there: {}",
                to.name, why.message
            ),
            format!(
                "this node goes on telling it so, and forgets {name} then; if {} is gone for good, floe move {name} --here has it go on \
                 here",
                to.name
            ),
        )
    }

    /// Takes a machine back that was offered and not given away, and lets it go on. Returns false if that is too late.
    pub(super) fn take_back(&self, operation: &Operation) -> bool {
        let Some(back) = operation.turn().and_then(|turn| turn.takes_back()) else {
            return false;
        };
        match operation.update(|record| record.turn = Some(back)) {
            Ok(()) => {
                let trouble = self.go_on(operation);
                if !trouble.is_empty() {
                    tracing::warn!(machine = %operation.name, trouble, "it was taken back and does not go on");
                }
            }
            // nobody was told that it is given, and it is tried again
            Err(error) => {
                tracing::warn!(machine = %operation.name, %error, "it is not taken back yet")
            }
        }
        true
    }

    /// Does what is due with what is here of a machine that runs on another node: it is kept if it is lent, and removed otherwise.
    pub(super) fn leave(
        &self,
        operation: &Operation,
        to: &Peer,
        keep: bool,
    ) -> Result<(), NodeError> {
        let Some(lent) = operation.turn().and_then(|turn| turn.lent()) else {
            return self.forget(operation, to, keep);
        };
        operation.update(|record| record.turn = Some(lent))?;
        // of one that was parked; from now on they lead there
        drop(operation.take_ports());
        let news = News::Moved(to.name.clone());
        self.core.tell(operation.name.as_str(), &news);
        Ok(())
    }

    /// Removes what is here of a machine that runs on another node. If it is to be kept, or was borrowed, the image of what it was stays for
    /// a while: what was lent once is lent again, and only what it has changed is sent then. Of a borrowed one that is synced sealed, what this
    /// node was told does that.
    fn forget(&self, operation: &Operation, to: &Peer, keep: bool) -> Result<(), NodeError> {
        let name = operation.name.to_string();
        let is_kept = |turn: &Turn| keep || (turn.lender.is_some() && !turn.sealed);
        if let Some(turn) = operation.turn().filter(is_kept) {
            self.keep_copy(&turn.key, operation.record().image, COPY_KEPT);
        }
        // before it is gone from here: what its users do is for nobody otherwise
        let machine = operation.record().created_unix_s;
        self.inputs.was_given(&name, machine, to);
        self.machines.remove(operation, true)?;
        self.core.tell(&name, &News::Moved(to.name.clone()));
        Ok(())
    }
}

/// Returns a key for a machine that has none.
pub(super) fn new_key() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Refuses to move a borrowed machine elsewhere than to its lender, or to lend it on: its lender would not know where it is.
pub(super) fn check_loan(entry: &Entry, to: &Peer, lends: bool) -> Result<(), NodeError> {
    let lender = entry.turn().and_then(|turn| turn.lender);
    match lender {
        Some(lender) if lends || lender.address != to.address => Err(refused(
            format!("{} has lent {} to this node", lender.name, entry.name),
            format!(
                "floe move {0} --to {1} gives it back, as floe recall {0} does on {1}; from there it goes anywhere",
                entry.name, lender.name
            ),
        )),
        _ => Ok(()),
    }
}

/// Returns the error that another node has answered something that is no answer.
fn no_answer(node: &str, reply: &Reply) -> NodeError {
    tracing::warn!(
        node,
        ?reply,
        "a node says something else than what it was asked"
    );
    failed(
        format!("{node}: it does not say whether the machine could come"),
        "check that it is a floe node of the same version",
    )
}

#[cfg(test)]
mod tests {
    use crate::wire::Silence;
    use floe_api::{ApiError, ErrorCode};

    #[test]
    fn only_what_may_be_otherwise_in_a_moment_is_said_again() {
        let refused = |code| {
            Silence::Refused(ApiError {
                code,
                message: "no".into(),
                fix: String::new(),
            })
        };
        assert!(refused(ErrorCode::Busy).passes());
        assert!(!refused(ErrorCode::Refused).passes());
        assert!(!refused(ErrorCode::Failed).passes());
        assert!(Silence::Unheard("no answer".into()).passes());
    }
}
