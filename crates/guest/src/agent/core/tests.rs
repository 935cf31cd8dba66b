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
            place: Box::new(place.clone()),
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
    world.host(&ToGuest::Place {
        session: 2,
        place: Box::new(place),
    });
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
    let offload = Call::Offload {
        to: None,
        cpus: None,
        memory_bytes: None,
    };
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
        place: Box::new(place.clone()),
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
