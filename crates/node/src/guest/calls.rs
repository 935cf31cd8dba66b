//! Carries out what a program in a guest asks for (SnowFlock, table 1).

use super::ledger::{self, Asked, Limits};
use crate::guest::Guests;
use floe_api::{CloneState, ErrorCode, MoveRequest, Outcome};
use floe_fork::Purpose;
use floe_ground::{error::NodeError, report::Report};
use floe_guest::message::{Answer, Call, Me, Refusal, codes};
use floe_inventory::inventory::{Entry, record::Record};
use floe_threads::Waited;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How often other hosts are asked about their clones: what happens there is told to nobody here.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long ending a clone waits for another operation on it.
const END_WAIT: Duration = Duration::from_secs(60);

/// Carries out a call and returns the answer; `over` says whether nobody waits for it any more.
pub(super) fn carry_out(
    guests: &Arc<Guests>,
    entry: &Arc<Entry>,
    call: Call,
    over: &dyn Fn() -> bool,
) -> Answer {
    let name = entry.name.as_str();
    let done = match call {
        Call::Ticket {
            clones,
            hierarchical,
        } => guests.guest_ticket(entry, clones, hierarchical),
        Call::Clone { ticket } => guests.guest_clone(name, &ticket),
        Call::Exit => guests.guest_exit(entry),
        Call::Join { ticket, timeout_ms } => {
            let limit = timeout_ms.map(Duration::from_millis);
            guests.guest_join(name, &ticket, limit, over)
        }
        Call::Kill { ticket } => guests.guest_kill(name, &ticket),
        Call::Whoami => Ok(guests.guest_self(entry)),
        Call::Offload {
            to,
            cpus,
            memory_bytes,
        } => guests.guest_offload(
            entry,
            MoveRequest {
                to,
                lend: true,
                cpus,
                memory_bytes,
                ..Default::default()
            },
        ),
        Call::Recall => guests.guest_recall(entry),
    };
    done.unwrap_or_else(Answer::Refused)
}

fn went_wrong(error: &NodeError) -> Refusal {
    let error = error.to_api();
    let code = match error.code {
        ErrorCode::Refused => codes::NO_ROOM,
        ErrorCode::Busy => codes::BUSY,
        ErrorCode::Usage => codes::USAGE,
        _ => codes::FAILED,
    };
    Refusal::new(code, error.message, error.fix)
}

impl Guests {
    fn guest_ticket(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        clones: u64,
        hierarchical: bool,
    ) -> Result<Answer, Refusal> {
        let record = entry.record();
        let allowed = record.limits.clones.unwrap_or(0);
        let allowed = allowed.min(self.core.options.guest_clones);
        if allowed == 0 {
            return Err(self.may_not_clone(&record));
        }
        let room = self.forks.room_for_guests(entry.name.as_str());
        let room = room.map_err(|error| went_wrong(&error))?;
        let household = record.household_id();
        let each = match hierarchical {
            true => record.config.cpus_now().unwrap_or(1).max(1),
            false => 1,
        };
        let asked = Asked {
            machine: entry.name.as_str(),
            household,
            clones,
            each,
        };
        let limits = Limits {
            allowed,
            alive: self.forks.clones_of_household(household),
            room,
        };
        let ticket = format!("{:016x}", rand::random::<u64>());
        let now_s = self.core.started.elapsed().as_secs();
        let reserved = self
            .ledger
            .lock()
            .reserve(now_s, &asked, &limits, ticket.clone());
        let (mut clones, mut machines) = reserved?;
        let name = entry.name.as_str();
        match self.forks.reserve_for_guest(name, machines) {
            Ok(None) => {}
            Ok(Some((granted, reserved))) => {
                self.reserved.lock().insert(ticket.clone(), reserved);
                machines = machines.min(granted);
                clones = self.ledger.lock().lessen(&ticket, clones, granted, each);
            }
            Err(error) => {
                self.ledger.lock().discard(name, &ticket);
                return Err(went_wrong(&error));
            }
        }
        self.forks.prepare_for_guest(entry, machines);
        Ok(Answer::Ticket {
            ticket,
            clones,
            each,
        })
    }

    /// Returns the refusal of a guest that may have no clones at all.
    fn may_not_clone(&self, record: &Record) -> Refusal {
        let name = &record.name;
        if self.core.options.guest_clones == 0 {
            return Refusal::new(
                codes::NOT_ALLOWED,
                "guests of this node may not clone their machines",
                "restart the node with another --guest-clones",
            );
        }
        let why = match &record.household.from {
            Some(_) => format!(
                "{name} is a clone on another host than its parent's, and these have no clones of their own"
            ),
            None => format!(
                "machine {name} was run without --clones, so that its guest may not clone it"
            ),
        };
        let fix = format!(
            "its user can allow that: floe run --clones N, or floe limit {name} --clones N"
        );
        Refusal::new(codes::NOT_ALLOWED, why, fix)
    }

    fn guest_clone(self: &Arc<Self>, name: &str, ticket: &str) -> Result<Answer, Refusal> {
        let now_s = self.core.started.elapsed().as_secs();
        let (spent, reserved) = {
            // both locks are held, so that the room always belongs to the ticket or to the fork
            let mut reserved = self.reserved.lock();
            let spent = self.ledger.lock().spend(now_s, name, ticket);
            let claimed = spent.is_ok().then(|| reserved.remove(ticket));
            (spent, claimed.flatten())
        };
        let machines = spent.map_err(|refusal| match self.forks.is_fork_of(name, ticket) {
            // the ticket was used before the node was restarted
            true => Refusal::new(
                codes::SPENT,
                "the ticket was used already",
                "request one for each clone call",
            ),
            false => refusal,
        })?;
        let request = self.forks.guest_fork(machines);
        let (mut report, _) = Report::new(); // no stages are reported: the answer has the result
        // from here on the clones are counted as the fork's, and no longer as the ticket's
        let begun = |fork: &str| self.ledger.lock().begun(fork);
        let purpose = Purpose {
            ticket: Some(ticket),
            reserved,
            begun: Some(&begun),
            ..Default::default()
        };
        let forked = self.forks.fork_for(name, &request, purpose, &mut report);
        let fork = forked.map(|outcome| outcome.fork.unwrap_or_default());
        let mut ledger = self.ledger.lock();
        let fork = fork.map_err(|error| {
            ledger.discard(name, ticket);
            went_wrong(&error)
        })?;
        if fork.running == 0 {
            ledger.discard(name, ticket);
            let failed = |state| matches!(state, CloneState::Failed | CloneState::NotGranted);
            let why = fork.clones.iter().find(|clone| failed(clone.state));
            let why = why.map_or_else(String::new, |clone| format!(": {}", clone.detail));
            return Err(Refusal::new(
                codes::FAILED,
                format!("no clone could be started{why}"),
                "request a new ticket and try again",
            ));
        }
        ledger.started(ticket, fork.running);
        Ok(Answer::Cloned {
            id: 0,
            clones: Some(fork.running),
        })
    }

    /// Ends the machine that the program runs in, so nobody is left to receive an answer.
    fn guest_exit(&self, entry: &Arc<Entry>) -> Result<Answer, Refusal> {
        if entry.record().family.is_none() {
            return Err(Refusal::new(
                codes::NOT_A_CLONE,
                "this machine is no clone",
                "only clones end like this; a parent powers off",
            ));
        }
        let removed = self.once_idle(|| self.machines.remove_machine(entry.name.as_str(), true));
        match removed {
            Err(error) => Err(went_wrong(&error)),
            Ok(()) => Ok(Answer::Done { ended: 1, lost: 0 }),
        }
    }

    /// Does something with a machine as soon as no other operation on it is under way, or returns that it still is after
    /// [`END_WAIT`].
    fn once_idle(&self, act: impl Fn() -> Result<(), NodeError>) -> Result<(), NodeError> {
        let until = Instant::now() + END_WAIT;
        loop {
            let ask = until.min(Instant::now() + ASK_EVERY);
            let changed = self.inventory.changed();
            let done = changed.wait_for(Some(ask), None, || match act() {
                Err(error) if error.code() == ErrorCode::Busy => None,
                done => Some(done),
            });
            match done {
                Waited::Come(done) => return done,
                _ if Instant::now() >= until => return act(),
                _ => {}
            }
        }
    }

    /// Returns an error unless the machine has used the ticket, so that its clones can be joined or killed.
    fn check_spent(&self, name: &str, ticket: &str) -> Result<(), Refusal> {
        let ledger = self.ledger.lock();
        if ledger.is_open(name, ticket) {
            return Err(Refusal::new(
                codes::USAGE,
                "the ticket was not used yet",
                "call clone with it first",
            ));
        }
        match ledger.is_spent(name, ticket) || self.forks.is_fork_of(name, ticket) {
            true => Ok(()),
            false => Err(ledger::unknown()),
        }
    }

    fn guest_join(
        &self,
        name: &str,
        ticket: &str,
        limit: Option<Duration>,
        over: &dyn Fn() -> bool,
    ) -> Result<Answer, Refusal> {
        self.check_spent(name, ticket)?;
        let began = Instant::now();
        let mut asked: Option<Instant> = None;
        let (mut most, mut lost) = (0, 0);
        'look: loop {
            let seen = self.inventory.changed().seen();
            let wait = |until| self.inventory.changed().wait(seen, Some(until));
            // while a fork is under way or the number of its clones is not known yet, there may be clones
            let forking = {
                let ledger = self.ledger.lock();
                ledger.is_spent(name, ticket) && ledger.clones_of(name, ticket).is_none()
            };
            let ask = asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY);
            if ask {
                asked = Some(Instant::now());
            }
            let left = self.forks.clones_left(ticket, ask);
            most = most.max(left.alive + left.dead.len() as u32);
            if left.alive == 0 && !forking {
                // the ticket is over, so clones whose QEMU ended badly are removed too
                for clone in &left.dead {
                    match self
                        .forks
                        .end_a_clone(clone)
                        .map_err(|error| error.to_api())
                    {
                        Ok(()) => lost += 1,
                        // another operation on it is under way, or it has just been removed
                        Err(error)
                            if matches!(error.code, ErrorCode::Busy | ErrorCode::NotFound) =>
                        {
                            wait(Instant::now() + ASK_EVERY);
                            continue 'look;
                        }
                        Err(error) => {
                            lost += 1;
                            tracing::warn!(machine = clone, %error, "a clone that ended stays");
                        }
                    }
                }
                self.forks.strike_all(ticket);
                let mut ledger = self.ledger.lock();
                let ended = ledger.clones_of(name, ticket).unwrap_or(most);
                ledger.discard(name, ticket);
                return Ok(Answer::Done { ended, lost });
            }
            if limit.is_some_and(|limit| began.elapsed() >= limit) {
                return Err(Refusal::new(
                    codes::TIMEOUT,
                    format!("{} clones have not ended in that time", left.alive),
                    "join again, or kill them",
                ));
            }
            if over() {
                return Err(Refusal::new(codes::TIMEOUT, "nobody waits any more", ""));
            }
            let until = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(began.elapsed()));
            wait(floe_threads::from_now(until.min(ASK_EVERY)));
        }
    }

    fn guest_kill(&self, name: &str, ticket: &str) -> Result<Answer, Refusal> {
        let is_open = self.ledger.lock().is_open(name, ticket);
        if is_open {
            // the ticket was never used: its room is free again
            self.ledger.lock().discard(name, ticket);
            self.drop_unclaimed();
            self.machines.drop_blanks(name);
            return Ok(Answer::Done { ended: 0, lost: 0 });
        }
        self.check_spent(name, ticket)?;
        let (mut ended, mut failed) = (0, Vec::new());
        for clone in self.forks.clones_of_fork(ticket) {
            match self.once_idle(|| self.forks.end_a_clone(&clone)) {
                Ok(()) => ended += 1,
                // it has ended by itself meanwhile
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => failed.push(format!("{clone}: {error}")),
            }
        }
        if let Some(first) = failed.first() {
            let what = format!("{} clones were not ended: {first}", failed.len());
            return Err(Refusal::new(codes::FAILED, what, "try again"));
        }
        self.ledger.lock().discard(name, ticket);
        Ok(Answer::Done { ended, lost: 0 })
    }

    /// Lends the machine that the program runs in to another node, or to the only other one.
    fn guest_offload(&self, entry: &Entry, mut request: MoveRequest) -> Result<Answer, Refusal> {
        self.guest_moves(entry, |name, report| {
            if request.to.is_none() {
                request.to = Some(self.moves.only_other()?);
            }
            self.moves.move_machine(name, &request, report)
        })
    }

    /// Has the machine go on on the node that has lent it, or that it comes from.
    fn guest_recall(&self, entry: &Entry) -> Result<Answer, Refusal> {
        self.guest_moves(entry, |name, report| self.moves.go_back(name, report))
    }

    /// Has the machine that the program runs in go on on another node. Where that succeeds nobody here is left to answer: the agent
    /// answers there, once the other node has said what it is called.
    fn guest_moves(
        &self,
        entry: &Entry,
        go: impl FnOnce(&str, &mut Report) -> Result<Outcome, NodeError>,
    ) -> Result<Answer, Refusal> {
        if !self.core.options.guest_moves {
            return Err(Refusal::new(
                codes::NOT_ALLOWED,
                "guests of this node may not have their machines moved",
                "restart the node with --guest-moves",
            ));
        }
        let (mut report, _) = Report::new(); // as above
        let _job = self.core.job(report.cancel());
        let name = entry.name.as_str();
        let moved = go(name, &mut report).map_err(|error| {
            tracing::warn!(machine = name, %error, "it was asked from inside to move, and did not");
            went_wrong(&error)
        })?;
        // nobody hears it
        let node = moved.moved.map_or_else(String::new, |moved| moved.to);
        Ok(Answer::Moved { node })
    }

    fn guest_self(&self, entry: &Entry) -> Answer {
        Answer::Me(Box::new(super::me_of(&entry.record()).unwrap_or(Me {
            id: 0,
            machine: entry.name.to_string(),
            ..Default::default()
        })))
    }
}
