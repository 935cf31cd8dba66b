//! Decides how the agent reacts to events: no I/O, no clock.
//!
//! A call belongs to the session in which it was sent. A new session means that something has happened to the machine. If
//! the node that opens it says that this is a clone of a ticket, then a process that called `clone` with this ticket
//! waits here just as in the parent, and gets the clone's number; all other pending calls were the parent's and end with
//! an error. If the node was merely restarted, all pending calls end with an error as well, so that nothing waits
//! forever.

use crate::input::{Inputs, Taken};
use crate::message::{Answer, Call, Identity, Me, Place, Refusal, ToGuest, ToHost, VERSION, codes};
use std::collections::BTreeMap;

/// How long a call waits for a node that does not answer, in ms: a node that is replaced by a newer one is back before
/// that.
pub const SILENT_MS_MAX: u64 = 30_000;
/// The same for `clone`, in ms: this may be a clone whose memory comes over a slow link, before the node's first message.
pub const CLONE_SILENT_MS_MAX: u64 = 120_000;

/// Identifies a program's connection.
pub type Client = u64;

/// An event that the agent reacts to.
#[derive(Debug)]
pub enum Event<'a> {
    /// A line came from the port.
    HostLine(&'a [u8]),
    /// There is no node at the other end of the port.
    HostGone,
    /// A program sent a line.
    ClientLine(Client, &'a [u8]),
    /// A program has closed its connection.
    ClientGone(Client),
    /// The result of [`Action::Place`] for this session.
    Placed(u64, Result<(), String>),
    /// The result of [`Action::Give`] for this session.
    Gave {
        /// The session.
        session: u64,
        /// The inputs.
        inputs: Inputs,
        /// How many of them the guest has got now.
        count: usize,
        /// Why the next one can't be given to it, if that is more than that it has not taken the last ones yet.
        why: Option<String>,
    },
    /// There are hooks in the guest now, or none any more.
    Hooks(bool),
    /// All settings were reported to the node as in place, and hooks are owed a call.
    Owed,
    /// Time has passed.
    Tick,
}

/// What the agent has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// A node has said hello, and knows frames or not: processes of an earlier conversation are nobody's any more.
    Begin {
        /// Whether frames may stand between the lines.
        frames: bool,
    },
    /// Write a line to the port.
    Host(Vec<u8>),
    /// Answer a program's call.
    Client(Client, Answer),
    /// Set clock, random numbers and identity, and report the result with [`Event::Placed`] for this session.
    Place(u64, Box<Place>),
    /// Tell from now on who reads from disks, in this session; with `None` tell nothing any more.
    Watch(Option<u64>),
    /// Give inputs to the guest, and report the result with [`Event::Gave`] for this session.
    Give(u64, Inputs),
}

struct Pending {
    client: Client,
    call: Call,
    /// The session in which the call was sent; `None` if it was not sent yet.
    session: Option<u64>,
    asked_ms: u64,
}

/// The agent's state.
#[derive(Default)]
pub struct Core {
    session: Option<u64>,
    /// Whether the node's settings are in place, so that calls may be sent.
    open: bool,
    closed_since_ms: u64,
    me: Option<Me>,
    /// The identity that is being set.
    placing: Option<Identity>,
    /// What the node is called that has sent it.
    placing_node: Option<String>,
    /// What the node is called that the machine is on, as far as the agent was told.
    node: Option<String>,
    /// Which inputs the guest has got.
    taken: Taken,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    /// The session in which it is told who reads from disks.
    watched: Option<u64>,
    /// Whether there are hooks in the guest.
    hooks: bool,
    /// What the node of this session knows of that; `None` while there is no node.
    hooks_told: Option<bool>,
}

impl Core {
    /// Makes an agent that has not yet been contacted by a node.
    pub fn new() -> Core {
        Core::default()
    }

    /// Returns whether a program waits for an answer, so that [`Event::Tick`] is needed.
    pub fn is_waited_for(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns whether a program waits because no node has opened a session: perhaps no node knows that the agent runs.
    pub fn waits_for_node(&self) -> bool {
        self.is_waited_for() && !self.open
    }

    /// Processes an event and returns what is to be done. `now_ms` must never decrease.
    pub fn handle(&mut self, now_ms: u64, event: Event<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::HostLine(line) => {
                // a line that can't be understood is the rest of one that a fork has cut in two
                if let Ok(message) = ToGuest::decode(line) {
                    self.heard(now_ms, message, &mut actions);
                }
            }
            Event::HostGone => {
                self.close(now_ms);
                self.hooks_told = None;
                self.watch(None, &mut actions);
            }
            Event::ClientLine(client, line) => self.asked(now_ms, client, line, &mut actions),
            Event::ClientGone(client) => self.forget(client, &mut actions),
            Event::Placed(session, result) => self.placed(session, result, &mut actions),
            Event::Gave {
                session,
                inputs,
                count,
                why,
            } => {
                if count > 0 {
                    let number = inputs.first + count as u64 - 1;
                    self.taken.got(inputs.from, number);
                }
                self.tell_taken(session, inputs.from, why, &mut actions);
            }
            Event::Hooks(any) => {
                self.hooks = any;
                self.tell_hooks(false, &mut actions);
            }
            Event::Owed => self.tell_hooks(true, &mut actions),
            Event::Tick => self.give_up(now_ms, &mut actions),
        }
        actions
    }

    fn forget(&mut self, client: Client, actions: &mut Vec<Action>) {
        let of_this: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, call)| call.client == client)
            .map(|(number, _)| *number)
            .collect();
        for number in of_this {
            let sent = self.pending.remove(&number).and_then(|call| call.session);
            if let Some(session) = sent.filter(|_| sent == self.session && self.open) {
                let cancel = ToHost::Cancel { session, number };
                actions.push(Action::Host(cancel.encode()));
            }
        }
    }

    fn close(&mut self, now_ms: u64) {
        if self.open || self.closed_since_ms == 0 {
            self.closed_since_ms = now_ms.max(1);
        }
        self.open = false;
    }

    fn heard(&mut self, now_ms: u64, message: ToGuest, actions: &mut Vec<Action>) {
        match message {
            ToGuest::Hello {
                session, frames, ..
            } => {
                self.close(now_ms);
                self.session = Some(session);
                self.watch(None, actions);
                self.placing = None;
                self.placing_node = None;
                self.hooks_told = Some(self.hooks);
                actions.push(Action::Begin { frames });
                let ready = ToHost::Ready {
                    session,
                    version: VERSION,
                    frames,
                    hooks: self.hooks,
                    inputs: true,
                };
                actions.push(Action::Host(ready.encode()));
            }
            ToGuest::Place { session, place } if self.session == Some(session) => {
                self.placing = place.identity.clone();
                self.placing_node = place.node.clone();
                actions.push(Action::Place(session, place));
            }
            ToGuest::Answer {
                session,
                number,
                answer,
            } => {
                let of_this =
                    |call: &Pending| call.session == Some(session) && self.session == Some(session);
                if self.pending.get(&number).is_some_and(of_this)
                    && let Some(call) = self.pending.remove(&number)
                {
                    actions.push(Action::Client(call.client, answer));
                }
            }
            ToGuest::Watch { session } if self.session == Some(session) => {
                self.watch(Some(session), actions);
            }
            // not before the machine is itself: what a clone gets is its own
            ToGuest::Input { session, inputs } if self.session == Some(session) && self.open => {
                let from = inputs.from;
                match self.taken.new_of(inputs) {
                    Some(inputs) => actions.push(Action::Give(session, inputs)),
                    None => self.tell_taken(session, from, None, actions),
                }
            }
            ToGuest::Place { .. } | ToGuest::Watch { .. } | ToGuest::Input { .. } => {}
        }
    }

    /// Tells the node which of a source's inputs the guest has got.
    fn tell_taken(&self, session: u64, from: u64, why: Option<String>, actions: &mut Vec<Action>) {
        let told = ToHost::Taken {
            session,
            from,
            number: self.taken.last(from),
            why,
        };
        actions.push(Action::Host(told.encode()));
    }

    /// Tells the node of the hooks if it does not know it yet; one that opens a session later hears of them by that.
    fn tell_hooks(&mut self, owed: bool, actions: &mut Vec<Action>) {
        let (Some(session), Some(known)) = (self.session, self.hooks_told) else {
            return;
        };
        let any = self.hooks;
        if owed || known != any {
            self.hooks_told = Some(any);
            let told = ToHost::Hooks { session, any, owed };
            actions.push(Action::Host(told.encode()));
        }
    }

    /// Tells who reads from disks in this session, or in none.
    fn watch(&mut self, session: Option<u64>, actions: &mut Vec<Action>) {
        if self.watched != session {
            self.watched = session;
            actions.push(Action::Watch(session));
        }
    }

    fn placed(&mut self, session: u64, result: Result<(), String>, actions: &mut Vec<Action>) {
        if self.session != Some(session) {
            return;
        }
        let me = self.placing.take().map(|identity| identity.me);
        let is_other = me.is_some() && me != self.me;
        let node = self.placing_node.take();
        let has_moved = node.is_some() && self.node.is_some() && node != self.node;
        if node.is_some() {
            self.node = node;
        }
        let error = result.as_ref().err().cloned();
        let told = match result {
            Ok(()) => ToHost::Placed { session },
            Err(why) => ToHost::NotPlaced { session, why },
        };
        // inform the node first, because a program that is answered below may use the network at once
        actions.push(Action::Host(told.encode()));
        if is_other {
            self.me = me;
        }
        self.open = true;
        let before = std::mem::take(&mut self.pending);
        for (number, call) in before {
            // of this session: what it was sent came once more, and nothing has become of its calls
            if call.session.is_none() || call.session == Some(session) {
                self.pending.insert(number, call);
                continue;
            }
            let answer = self.left_over(&call.call, is_other, has_moved, error.as_deref());
            actions.push(Action::Client(call.client, answer));
        }
        let unsent = self.pending.iter();
        let unsent = unsent.filter(|(_, call)| call.session.is_none());
        let unsent: Vec<u64> = unsent.map(|(number, _)| *number).collect();
        for number in unsent {
            self.send(number, actions);
        }
    }

    /// Returns the answer to a call that was pending before this session.
    fn left_over(
        &self,
        call: &Call,
        is_other: bool,
        has_moved: bool,
        error: Option<&str>,
    ) -> Answer {
        let me = self.me.as_ref().filter(|_| is_other);
        match (me, call) {
            (Some(me), Call::Clone { ticket }) if me.ticket == *ticket => match error {
                None => Answer::Cloned {
                    id: me.id,
                    clones: None,
                },
                Some(why) => Answer::Refused(Refusal::new(
                    codes::FAILED,
                    format!(
                        "this is clone {} and it could not be made one: {why}",
                        me.id
                    ),
                    "it has no network; end it",
                )),
            },
            (Some(me), _) => Answer::Refused(Refusal::new(
                codes::OTHER_MACHINE,
                format!(
                    "the machine was cloned meanwhile, this is clone {} of {}",
                    me.id, me.parent
                ),
                "the parent has the answer; ask anew if a clone should do it",
            )),
            (None, Call::Offload { .. } | Call::Recall) => match self.node.clone() {
                Some(node) if has_moved => Answer::Moved { node },
                node => Answer::Refused(Refusal::new(
                    codes::FAILED,
                    format!(
                        "the machine goes on where it was, on {}",
                        node.as_deref().unwrap_or("its node")
                    ),
                    "floe events on the host says why",
                )),
            },
            (None, _) => Answer::Refused(Refusal::new(
                codes::UNREACHABLE,
                "the node was restarted while the call was under way",
                "nobody knows what came of it: see floe family on the host, then call again",
            )),
        }
    }

    fn asked(&mut self, now_ms: u64, client: Client, line: &[u8], actions: &mut Vec<Action>) {
        let mut refuse = |code: &str, message: String, fix: &str| {
            let refusal = Refusal::new(code, message, fix);
            actions.push(Action::Client(client, Answer::Refused(refusal)));
        };
        let call = match Call::decode(line) {
            Ok(call) => call,
            Err(error) => {
                let fix = "see docs/guest.md for what can be asked";
                return refuse(codes::USAGE, error.to_string(), fix);
            }
        };
        if self.pending.values().any(|call| call.client == client) {
            let message = "a call is under way on this connection".into();
            return refuse(codes::BUSY, message, "wait for its answer");
        }
        self.next += 1;
        let number = self.next;
        let call = Pending {
            client,
            call,
            session: None,
            asked_ms: now_ms,
        };
        self.pending.insert(number, call);
        self.send(number, actions);
    }

    fn send(&mut self, number: u64, actions: &mut Vec<Action>) {
        let Some(session) = self.session.filter(|_| self.open) else {
            return;
        };
        let moves = |pending: &Pending| is_move(&pending.call);
        if self.node.is_none() && self.pending.get(&number).is_some_and(moves) {
            // one that is too old would not answer
            let client = self.pending.remove(&number).map(|pending| pending.client);
            let refusal = Refusal::new(
                codes::NOT_ALLOWED,
                "the node of this machine is in no cluster that it could move in, or is too old to be asked for that",
                "floe cluster on the host shows in which one it is",
            );
            actions.extend(client.map(|client| Action::Client(client, Answer::Refused(refusal))));
            return;
        }
        if let Some(pending) = self.pending.get_mut(&number) {
            pending.session = Some(session);
            let call = ToHost::Call {
                session,
                number,
                call: pending.call.clone(),
            };
            actions.push(Action::Host(call.encode()));
        }
    }

    fn give_up(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        if self.open {
            return;
        }
        let since = self.closed_since_ms;
        let late = |call: &Pending| {
            let limit = match call.call {
                // both come back on another host, whose first message may be late
                Call::Clone { .. } | Call::Offload { .. } | Call::Recall => CLONE_SILENT_MS_MAX,
                _ => SILENT_MS_MAX,
            };
            now_ms.saturating_sub(call.asked_ms.max(since)) >= limit
        };
        let numbers: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, call)| late(call))
            .map(|(n, _)| *n)
            .collect();
        for number in numbers {
            if let Some(call) = self.pending.remove(&number) {
                let refusal = Refusal::new(
                    codes::UNREACHABLE,
                    "the host's node does not answer",
                    "is floe node running there? then call again",
                );
                actions.push(Action::Client(call.client, Answer::Refused(refusal)));
            }
        }
    }
}

/// Whether a call is one that has its machine move.
fn is_move(call: &Call) -> bool {
    matches!(call, Call::Offload { .. } | Call::Recall)
}

#[cfg(test)]
mod tests;
