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
                actions.push(Action::Place(session, Box::new(place)));
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
mod tests {
    use super::*;
    use crate::message::ENTROPY_BYTES;

    /// An agent and the messages that its node would see.
    struct World {
        core: Core,
        now_ms: u64,
        /// What its node says that it is called.
        node: Option<String>,
    }

    impl World {
        fn new() -> World {
            World {
                core: Core::new(),
                now_ms: 1,
                node: None,
            }
        }

        fn host(&mut self, message: &ToGuest) -> Vec<Action> {
            let line = message.encode();
            self.core.handle(self.now_ms, Event::HostLine(&line))
        }

        fn ask(&mut self, client: Client, call: &Call) -> Vec<Action> {
            self.core
                .handle(self.now_ms, Event::ClientLine(client, &call.encode()))
        }

        /// Opens a session completely, like a node.
        fn open(&mut self, session: u64, identity: Option<Identity>) -> Vec<Action> {
            let ready = self.host(&ToGuest::Hello {
                session,
                version: 1,
                frames: session.is_multiple_of(2),
            });
            let told = ToHost::Ready {
                session,
                version: VERSION,
                frames: session.is_multiple_of(2),
                hooks: false,
                inputs: true,
            };
            let frames = session.is_multiple_of(2);
            assert_eq!(
                ready,
                [Action::Begin { frames }, Action::Host(told.encode())]
            );
            let place = Place {
                time_ns: 1,
                entropy: vec![7; ENTROPY_BYTES],
                generation: None,
                identity,
                node: self.node.clone(),
            };
            let actions = self.host(&ToGuest::Place {
                session,
                place: place.clone(),
            });
            assert_eq!(actions, [Action::Place(session, Box::new(place))]);
            self.core
                .handle(self.now_ms, Event::Placed(session, Ok(())))
        }
    }

    fn identity(ticket: &str, id: u32) -> Identity {
        Identity {
            me: Me {
                id,
                machine: format!("web.{id}"),
                parent: "web".into(),
                ticket: ticket.into(),
            },
            ..Default::default()
        }
    }

    fn clone(ticket: &str) -> Call {
        Call::Clone {
            ticket: ticket.into(),
        }
    }

    fn refused(actions: &[Action], client: Client) -> &str {
        let found = actions.iter().find_map(|action| match action {
            Action::Client(to, Answer::Refused(refusal)) if *to == client => Some(&refusal.code),
            _ => None,
        });
        found.map_or("", String::as_str)
    }

    #[test]
    fn whoever_called_clone_is_told_its_number_in_the_clone_and_zero_in_the_parent() {
        let mut parent = World::new();
        parent.open(1, None);
        let sent = parent.ask(5, &clone("t"));
        let call = ToHost::Call {
            session: 1,
            number: 1,
            call: clone("t"),
        };
        assert_eq!(sent, [Action::Host(call.encode())]);
        // the same machine a moment later, on another host
        let mut copy = World::new();
        copy.open(1, None);
        copy.ask(5, &clone("t"));
        let told = copy.open(2, Some(identity("t", 3)));
        assert_eq!(
            told,
            [
                Action::Host(ToHost::Placed { session: 2 }.encode()),
                Action::Client(
                    5,
                    Answer::Cloned {
                        id: 3,
                        clones: None
                    }
                ),
            ]
        );
        let answer = Answer::Cloned {
            id: 0,
            clones: Some(4),
        };
        let told = parent.host(&ToGuest::Answer {
            session: 1,
            number: 1,
            answer: answer.clone(),
        });
        assert_eq!(told, [Action::Client(5, answer.clone())]);
        // a message that was on its way to the parent at the fork reaches the clone too, and is ignored there
        copy.ask(6, &clone("u"));
        assert!(
            copy.host(&ToGuest::Answer {
                session: 1,
                number: 1,
                answer
            })
            .is_empty()
        );
        assert!(copy.core.is_waited_for());
    }

    #[test]
    fn a_clone_that_is_not_of_this_ticket_refuses_what_was_the_parents() {
        let mut world = World::new();
        world.open(1, None);
        world.ask(5, &clone("mine"));
        world.ask(6, &Call::Exit);
        let told = world.open(2, Some(identity("another", 1)));
        assert_eq!(refused(&told, 5), codes::OTHER_MACHINE);
        assert_eq!(refused(&told, 6), codes::OTHER_MACHINE);
        // the node of that clone is restarted, but the clone stays the same
        world.ask(7, &clone("another"));
        let told = world.open(3, Some(identity("another", 1)));
        assert_eq!(refused(&told, 7), codes::UNREACHABLE);
    }

    #[test]
    fn a_clone_without_its_identity_is_told_so() {
        let mut world = World::new();
        world.open(1, None);
        world.ask(5, &clone("t"));
        world.host(&ToGuest::Hello {
            session: 2,
            version: 1,
            frames: false,
        });
        let place = Place {
            time_ns: 1,
            entropy: vec![7; ENTROPY_BYTES],
            generation: None,
            identity: Some(identity("t", 1)),
            node: None,
        };
        world.host(&ToGuest::Place { session: 2, place });
        let told = world
            .core
            .handle(1, Event::Placed(2, Err("no card".into())));
        let not = ToHost::NotPlaced {
            session: 2,
            why: "no card".into(),
        };
        assert_eq!(told[0], Action::Host(not.encode()));
        assert_eq!(refused(&told, 5), codes::FAILED);
    }

    #[test]
    fn whoever_has_the_machine_moved_is_told_where_it_is_once_it_is_there() {
        let offload = Call::Offload { to: None };
        let told = |actions: &[Action], client: Client| {
            let mut all = actions.iter();
            all.find_map(|action| match action {
                Action::Client(to, Answer::Moved { node }) if *to == client => Some(node.clone()),
                _ => None,
            })
        };
        let mut world = World::new();
        world.node = Some("phone".into());
        world.open(1, None);
        let sent = world.ask(5, &offload);
        assert!(matches!(&sent[..], [Action::Host(line)] if line.starts_with(b"call ")));
        world.ask(6, &Call::Whoami);
        world.node = Some("cloud".into());
        let actions = world.open(2, None);
        assert_eq!(told(&actions, 5), Some("cloud".into()));
        assert_eq!(refused(&actions, 6), codes::UNREACHABLE);
        // it could not move, and was woken where it was
        world.ask(7, &Call::Recall);
        let actions = world.open(3, None);
        assert_eq!(refused(&actions, 7), codes::FAILED);
        // a clone is no machine that has moved, wherever it is
        world.ask(8, &offload);
        world.node = Some("other".into());
        let actions = world.open(4, Some(identity("t", 1)));
        assert_eq!(refused(&actions, 8), codes::OTHER_MACHINE);
        // a node that says nothing of a cluster is not asked
        let mut world = World::new();
        world.ask(5, &offload);
        let actions = world.open(1, None);
        assert_eq!(refused(&actions, 5), codes::NOT_ALLOWED);
        assert!(!world.core.is_waited_for());
    }

    #[test]
    fn an_input_is_given_once_whoever_sends_it_again() {
        let inputs = |first: u64, count: u8| Inputs {
            from: 9,
            first,
            events: (0..count)
                .map(|n| crate::input::Input::Text(vec![n + 1]))
                .collect(),
        };
        let input = |session, first, count| ToGuest::Input {
            session,
            inputs: inputs(first, count),
        };
        let taken = |session, number, why: Option<&str>| {
            let told = ToHost::Taken {
                session,
                from: 9,
                number,
                why: why.map(str::to_owned),
            };
            [Action::Host(told.encode())]
        };
        let mut world = World::new();
        world.open(1, None);
        let give = world.host(&input(1, 1, 3));
        assert_eq!(give, [Action::Give(1, inputs(1, 3))]);
        let gave = |world: &mut World, session, inputs, count, why: Option<&str>| {
            let why = why.map(str::to_owned);
            let event = Event::Gave {
                session,
                inputs,
                count,
                why,
            };
            world.core.handle(1, event)
        };
        assert_eq!(
            gave(&mut world, 1, inputs(1, 3), 2, None),
            taken(1, 2, None)
        );
        // another host, which has heard of none of them
        assert!(world.host(&input(2, 1, 3)).is_empty(), "no node is there");
        world.open(2, None);
        let again = world.host(&input(2, 1, 3));
        let [Action::Give(2, rest)] = &again[..] else {
            panic!("{again:?}");
        };
        assert_eq!((rest.first, rest.events.len()), (3, 1));
        let stuck = gave(&mut world, 2, rest.clone(), 0, Some("no keyboard"));
        assert_eq!(stuck, taken(2, 2, Some("no keyboard")));
        gave(&mut world, 2, rest.clone(), 1, None);
        assert_eq!(world.host(&input(2, 1, 3)), taken(2, 3, None));
    }

    #[test]
    fn what_comes_again_in_a_session_ends_no_call_and_no_process() {
        let mut world = World::new();
        world.open(1, Some(identity("t", 1)));
        world.ask(5, &Call::Whoami);
        let place = Place {
            time_ns: 2,
            entropy: vec![8; ENTROPY_BYTES],
            generation: None,
            identity: Some(identity("t", 1)),
            node: None,
        };
        let again = world.host(&ToGuest::Place {
            session: 1,
            place: place.clone(),
        });
        assert_eq!(again, [Action::Place(1, Box::new(place))]);
        let told = world.core.handle(1, Event::Placed(1, Ok(())));
        let placed = ToHost::Placed { session: 1 };
        assert_eq!(told, [Action::Host(placed.encode())]);
        let answer = Answer::Refused(Refusal::new(codes::BUSY, "later", ""));
        let told = world.host(&ToGuest::Answer {
            session: 1,
            number: 1,
            answer: answer.clone(),
        });
        assert_eq!(told, [Action::Client(5, answer)]);
    }

    #[test]
    fn nobody_waits_in_silence_for_a_node_that_is_gone() {
        let mut world = World::new();
        // the call was made before a node was there
        assert!(world.ask(5, &Call::Whoami).is_empty());
        world.now_ms = 10;
        let sent = world.open(1, None);
        assert!(matches!(&sent[1], Action::Host(line) if line.starts_with(b"call ")));
        world.ask(6, &clone("t"));
        world.core.handle(1_000, Event::HostGone);
        world.core.handle(2_000, Event::HostGone);
        assert!(
            world
                .core
                .handle(1_000 + SILENT_MS_MAX - 1, Event::Tick)
                .is_empty()
        );
        let told = world.core.handle(1_000 + SILENT_MS_MAX, Event::Tick);
        assert_eq!((told.len(), refused(&told, 5)), (1, codes::UNREACHABLE));
        let told = world.core.handle(1_000 + CLONE_SILENT_MS_MAX, Event::Tick);
        assert_eq!(refused(&told, 6), codes::UNREACHABLE);
        // a node that is connected may take its time
        let mut world = World::new();
        world.open(1, None);
        world.ask(5, &clone("t"));
        assert!(world.core.handle(u64::MAX, Event::Tick).is_empty());
    }

    #[test]
    fn who_reads_is_told_only_to_a_node_that_asked_for_it_in_this_session() {
        let mut world = World::new();
        world.open(1, None);
        assert!(world.host(&ToGuest::Watch { session: 2 }).is_empty());
        let watch = [Action::Watch(Some(1))];
        assert_eq!(world.host(&ToGuest::Watch { session: 1 }), watch);
        assert!(world.host(&ToGuest::Watch { session: 1 }).is_empty());
        let gone = world.core.handle(1, Event::HostGone);
        assert_eq!(gone, [Action::Watch(None)]);
    }

    #[test]
    fn a_node_hears_of_hooks_when_it_says_hello_and_when_they_change() {
        let mut world = World::new();
        let tell = |world: &mut World, event| world.core.handle(1, event);
        let told = |session, any, owed| {
            let told = ToHost::Hooks { session, any, owed };
            vec![Action::Host(told.encode())]
        };
        // nobody is there to hear of it
        assert!(tell(&mut world, Event::Hooks(true)).is_empty());
        let hello = ToGuest::Hello {
            session: 3,
            version: 1,
            frames: false,
        };
        let ready = ToHost::Ready {
            session: 3,
            version: VERSION,
            frames: false,
            hooks: true,
            inputs: true,
        };
        assert_eq!(world.host(&hello)[1], Action::Host(ready.encode()));
        assert!(tell(&mut world, Event::Hooks(true)).is_empty());
        assert_eq!(tell(&mut world, Event::Owed), told(3, true, true));
        assert_eq!(tell(&mut world, Event::Hooks(false)), told(3, false, false));
        tell(&mut world, Event::HostGone);
        assert!(tell(&mut world, Event::Hooks(true)).is_empty());
    }

    #[test]
    fn a_program_has_one_call_at_a_time_and_none_that_means_nothing() {
        let mut world = World::new();
        world.open(1, None);
        world.ask(5, &Call::Exit);
        assert_eq!(refused(&world.ask(5, &Call::Exit), 5), codes::BUSY);
        let told = world.core.handle(1, Event::ClientLine(6, b"format disk=1"));
        assert_eq!(refused(&told, 6), codes::USAGE);
        let told = world.core.handle(1, Event::ClientGone(5));
        let cancel = ToHost::Cancel {
            session: 1,
            number: 1,
        };
        assert_eq!(told, [Action::Host(cancel.encode())]);
        assert!(!world.core.is_waited_for());
        assert!(
            world
                .core
                .handle(1, Event::HostLine(b"\xff\x00"))
                .is_empty()
        );
    }
}
