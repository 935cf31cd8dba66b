use super::*;
use floe_guest::input::Taken;
use proptest::prelude::*;

/// The source of all inputs, where one is enough.
const FROM: u64 = 7;
/// How many inputs go through how many cuts, as users are promised.
const INPUTS: u64 = 10_000;
const CUTS: usize = 50;

fn kept(from: u64, number: u64) -> Kept {
    Kept {
        from,
        number,
        gap_ms: 0,
        input: Input::Text(format!("{number}\n").into_bytes()),
    }
}

fn some(from: u64, numbers: std::ops::RangeInclusive<u64>) -> Vec<Kept> {
    numbers.map(|number| kept(from, number)).collect()
}

fn said(waiting: &Waiting) -> Inputs {
    match waiting.next(u64::MAX) {
        Next::Say(inputs) => inputs,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_comes_again_is_not_kept_again_and_a_gap_is_refused() {
    let mut waiting = Waiting::default();
    let new = waiting.sort(some(FROM, 1..=3)).unwrap();
    assert_eq!(new.len(), 3);
    waiting.keep(new);
    let new = waiting.sort(some(FROM, 2..=5)).unwrap();
    assert_eq!(new, some(FROM, 4..=5));
    waiting.keep(new);
    assert_eq!(
        waiting.sort(some(FROM, 7..=7)).unwrap_err(),
        Unkept::After(5)
    );
    // one of which nothing is known any more may go on anywhere
    assert_eq!(waiting.sort(some(8, 9..=9)).unwrap(), some(8, 9..=9));
    // all that was kept has gone, and comes again
    waiting.taken(0, FROM, 5);
    assert!(waiting.is_empty());
    assert!(waiting.sort(some(FROM, 1..=5)).unwrap().is_empty());
}

#[test]
fn what_waits_has_a_bound() {
    let mut waiting = Waiting::default();
    waiting.keep(some(FROM, 1..=WAITING_MAX as u64));
    let next = WAITING_MAX as u64 + 1;
    assert_eq!(
        waiting.sort(some(FROM, next..=next)).unwrap_err(),
        Unkept::Full
    );
    let mut waiting = Waiting::default();
    let long = |number| Kept {
        input: Input::Text(vec![b'a'; 256]),
        ..kept(FROM, number)
    };
    let all = WAITING_BYTES_MAX as u64 / 256;
    waiting.keep((1..=all).map(long).collect());
    assert_eq!(waiting.sort(vec![long(all + 1)]).unwrap_err(), Unkept::Full);
    assert_eq!(waiting.taken(0, FROM, 1), 1);
    assert_eq!(waiting.sort(vec![long(all + 1)]).unwrap().len(), 1);
}

#[test]
fn those_that_are_due_together_are_said_together_and_each_keeps_its_gap() {
    let mut waiting = Waiting::default();
    let mut all = some(FROM, 1..=4);
    all[2].gap_ms = 250;
    all.extend(some(8, 1..=1));
    waiting.keep(all);
    let first = said(&waiting);
    assert_eq!((first.from, first.first, first.last()), (FROM, 1, 2));
    assert_eq!(waiting.taken(1000, FROM, 2), 2);
    assert_eq!(waiting.next(1249), Next::At(1250));
    let second = said(&waiting);
    assert_eq!((second.first, second.last()), (3, 4));
    // only one of them was taken
    assert_eq!(waiting.taken(1300, FROM, 3), 1);
    let third = said(&waiting);
    assert_eq!((third.first, third.last()), (4, 4));
    waiting.taken(1300, FROM, 4);
    assert_eq!(said(&waiting).from, 8);
    // an answer that comes late is about nothing that waits
    assert_eq!(waiting.taken(1300, FROM, 4), 0);
    waiting.taken(1300, 8, 1);
    assert_eq!(waiting.next(1300), Next::Nothing);
}

#[test]
fn what_may_be_there_goes_no_other_way() {
    let mut waiting = Waiting::default();
    waiting.keep(some(FROM, 1..=3));
    let inputs = said(&waiting);
    assert!(!waiting.may_be_there(&inputs));
    waiting.was_said(&inputs);
    waiting.taken(0, FROM, 2);
    assert!(waiting.may_be_there(&said(&waiting)));
    waiting.keep(some(FROM, 4..=4));
    waiting.taken(0, FROM, 3);
    assert!(!waiting.may_be_there(&said(&waiting)));
}

/// What a guest and its agent are: all of it is in the machine's memory, and is saved and loaded together.
#[derive(Clone, Default)]
struct Guest {
    taken: Taken,
    /// What the guest has got, in order.
    got: Vec<(u64, u64)>,
}

impl Guest {
    /// What the agent does with a message; it can give so many inputs now.
    fn hears(&mut self, inputs: &Inputs, room: usize) -> u64 {
        let from = inputs.from;
        if let Some(new) = self.taken.new_of(inputs.clone()) {
            let count = room.min(new.events.len());
            for number in (new.first..).take(count) {
                self.got.push((from, number));
            }
            if count > 0 {
                self.taken.got(from, new.first + count as u64 - 1);
            }
        }
        self.taken.last(from)
    }
}

/// What happens to one message.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It arrives, and so does its answer.
    Answered,
    /// It arrives, and its answer is lost.
    Unanswered,
    /// It is lost.
    Lost,
}

/// What is cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The node that keeps the inputs: what it has not written is gone, and so is what it knew of numbers.
    Node,
    /// The machine goes on elsewhere, with all of its memory.
    Moves,
    /// The user's connection, whose last answer is lost: the last inputs come again.
    User,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Answered),
        1 => Just(Fate::Unanswered),
        1 => Just(Fate::Lost),
    ]
}

fn cut() -> impl Strategy<Value = Cut> {
    prop_oneof![Just(Cut::Node), Just(Cut::Moves), Just(Cut::User)]
}

/// Sends all inputs through all cuts. Returns what the guest has got.
fn run(fates: &[Fate], cuts: &[(u64, Cut)], rooms: &[usize], batch: u64) -> Vec<(u64, u64)> {
    let (mut waiting, mut guest) = (Waiting::default(), Guest::default());
    let (mut typed, mut step) = (0u64, 0usize);
    let mut cuts = cuts.iter().peekable();
    while typed < INPUTS || !waiting.is_empty() {
        if typed < INPUTS && waiting.len() < 500 {
            let last = (typed + batch).min(INPUTS);
            let new = waiting.sort(some(FROM, typed + 1..=last)).unwrap();
            waiting.keep(new); // it is durable here
            typed = last;
        }
        while let Some((_, cut)) = cuts.next_if(|(at, _)| *at <= typed) {
            match cut {
                Cut::Node => {
                    // the next node finds what is on its disk
                    let found: Vec<Kept> = waiting.all().cloned().collect();
                    waiting = Waiting::default();
                    waiting.keep(found);
                }
                Cut::Moves => {
                    let there = guest.clone();
                    guest = there;
                }
                // it does not know that they were kept, or taken
                Cut::User => typed -= batch.min(typed),
            }
        }
        if let Next::Say(inputs) = waiting.next(step as u64) {
            let fate = fates[step % fates.len()];
            waiting.was_said(&inputs);
            let room = rooms[step % rooms.len()];
            match fate {
                Fate::Answered => {
                    let number = guest.hears(&inputs, room);
                    waiting.taken(step as u64, inputs.from, number);
                }
                Fate::Unanswered => {
                    guest.hears(&inputs, room);
                }
                Fate::Lost => {}
            }
        }
        step += 1;
        assert!(step < 1_000_000, "it never ends");
    }
    guest.got
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn ten_thousand_inputs_come_in_order_and_once_through_fifty_cuts(
        fates in prop::collection::vec(fate(), 100),
        cuts in prop::collection::vec((1..=INPUTS, cut()), CUTS),
        rooms in prop::collection::vec(0usize..70, 20),
        batch in 1u64..100,
    ) {
        let (mut cuts, mut rooms, mut fates) = (cuts, rooms, fates);
        cuts.sort_by_key(|(at, _)| *at);
        rooms.push(1); // a guest that takes nothing for ever gets nothing
        fates.push(Fate::Answered);
        let got = run(&fates, &cuts, &rooms, batch);
        let all: Vec<(u64, u64)> = (1..=INPUTS).map(|number| (FROM, number)).collect();
        prop_assert_eq!(got, all);
    }
}

proptest! {
    #[test]
    fn sources_that_type_at_once_keep_their_own_order(
        turns in prop::collection::vec((1u64..4, 1u64..9), 1..60),
        fates in prop::collection::vec(fate(), 1..20),
    ) {
        let (mut waiting, mut guest) = (Waiting::default(), Guest::default());
        let mut typed: BTreeMap<u64, u64> = BTreeMap::new();
        for (from, count) in turns {
            let last = typed.entry(from).or_default();
            let new = waiting.sort(some(from, *last + 1..=*last + count)).unwrap();
            waiting.keep(new);
            *last += count;
        }
        let mut fates = fates;
        fates.push(Fate::Answered);
        for step in 0..100_000usize {
            let Next::Say(inputs) = waiting.next(0) else { break };
            match fates[step % fates.len()] {
                Fate::Answered => {
                    let number = guest.hears(&inputs, 64);
                    waiting.taken(0, inputs.from, number);
                }
                Fate::Unanswered => {
                    guest.hears(&inputs, 64);
                }
                Fate::Lost => {}
            }
        }
        prop_assert!(waiting.is_empty());
        for (from, last) in typed {
            let got: Vec<u64> = guest.got.iter().filter(|(f, _)| *f == from).map(|(_, n)| *n).collect();
            prop_assert_eq!(got, (1..=last).collect::<Vec<_>>());
        }
    }
}

#[test]
fn the_one_that_an_agent_cannot_give_is_the_one_after_the_last_that_it_gave() {
    let text = |byte: u8| Input::Text(vec![byte]);
    let batch = Inputs {
        from: 7,
        first: 5,
        events: vec![text(b'a'), text(b'b')],
    };
    let next = |number| next_of(&batch, number).map(|next| (next.first, next.events));
    assert_eq!(next(4), Some((5, vec![text(b'a')])));
    assert_eq!(next(5), Some((6, vec![text(b'b')])));
    assert_eq!(
        next(0),
        next(4),
        "those before these came through QEMU, and it knows of none"
    );
    for none in [6, u64::MAX] {
        assert_eq!(next(none), None, "{none}");
    }
}
