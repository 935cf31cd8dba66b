use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

fn small() -> WriteBackOptions {
    WriteBackOptions {
        dirty_bytes_max: 1000,
        start_bytes: 400,
        age_us: 50,
        piece_bytes_min: 10,
        piece_bytes_max: 80,
        piece_us: 20,
    }
}

fn piece(actions: &[Action]) -> Option<u64> {
    actions.iter().find_map(|action| match action {
        Action::Write { bytes, .. } => Some(*bytes),
        _ => None,
    })
}

#[test]
fn a_flush_of_a_gigabyte_is_written_in_pieces_one_after_the_other() {
    let options = WriteBackOptions {
        dirty_bytes_max: 2048 * MIB,
        start_bytes: 2048 * MIB,
        ..WriteBackOptions::default()
    };
    let mut writeback = WriteBack::new(options);
    for _ in 0..1024 {
        assert_eq!(writeback.admit(0, MIB), (Admission::Go, vec![]));
        assert_eq!(writeback.wrote(0, MIB), []);
    }
    let (flush, mut actions) = writeback.flush(1);
    let (mut now, mut pieces) = (1, 0);
    while let Some(bytes) = piece(&actions) {
        assert!(bytes <= options.piece_bytes_max);
        assert_eq!(actions.len(), 1, "nothing is said before it is done");
        pieces += 1;
        now += 1000;
        actions = writeback.written(now, bytes);
    }
    assert_eq!(actions, [Action::Flushed(flush)]);
    assert!((256..300).contains(&pieces), "{pieces} pieces");
}

#[test]
fn pieces_get_smaller_while_the_disk_is_slow_and_larger_when_it_is_fast_again() {
    let mut writeback = WriteBack::new(WriteBackOptions::default());
    let dirty = |writeback: &mut WriteBack| {
        let (go, _) = writeback.admit(0, 64 * MIB);
        assert_eq!(go, Admission::Go);
        piece(&writeback.wrote(0, 64 * MIB)).expect("so much is written at once")
    };
    let mut bytes = dirty(&mut writeback);
    let mut now = 0;
    let mut sizes = vec![bytes];
    for took in [
        1_000, 1_000, 1_000, 1_000, 1_000, 200_000, 200_000, 20_000, 1_000,
    ] {
        now += took;
        bytes = piece(&writeback.written(now, bytes)).expect("there is more");
        sizes.push(bytes);
    }
    let kib: Vec<u64> = sizes.iter().map(|bytes| bytes >> 10).collect();
    assert_eq!(
        kib,
        [256, 512, 1024, 2048, 4096, 4096, 2048, 1024, 1024, 2048]
    );
}

#[test]
fn a_flush_does_not_wait_for_what_is_written_after_it() {
    let mut writeback = WriteBack::new(small());
    writeback.admit(0, 30);
    writeback.wrote(0, 30);
    let (first, actions) = writeback.flush(0);
    assert_eq!(piece(&actions), Some(10));
    writeback.admit(1, 100);
    writeback.wrote(1, 100);
    assert_eq!(
        piece(&writeback.written(2, 10)),
        Some(20),
        "up to the flush only"
    );
    assert_eq!(writeback.written(3, 20), [Action::Flushed(first)]);
    assert_eq!(writeback.dirty_bytes(), 100);
    let (second, _) = writeback.flush(4);
    let (third, _) = writeback.flush(4);
    assert!(first < second && second < third);
    let mut actions = writeback.written(5, 40);
    while let Some(bytes) = piece(&actions) {
        actions = writeback.written(6, bytes);
    }
    assert_eq!(actions, [Action::Flushed(third)], "one answer for both");
}

#[test]
fn a_flush_of_nothing_is_done_at_once() {
    let mut writeback = WriteBack::new(small());
    let (flush, actions) = writeback.flush(0);
    assert_eq!(actions, [Action::Flushed(flush)]);
}

#[test]
fn little_is_written_when_it_is_old_and_not_before() {
    let mut writeback = WriteBack::new(small());
    writeback.admit(100, 8);
    assert_eq!(writeback.wrote(100, 8), []);
    assert_eq!(writeback.wake_us(), Some(150));
    assert_eq!(writeback.tick(149), []);
    let write = Action::Write {
        bytes: 8,
        is_waited_for: false,
    };
    assert_eq!(writeback.tick(150), [write]);
    assert_eq!(writeback.wake_us(), None);
    assert_eq!(writeback.written(160, 8), []);
    assert_eq!(writeback.dirty_bytes(), 0);
}

#[test]
fn writers_at_the_bound_wait_and_go_on_in_their_order() {
    let mut writeback = WriteBack::new(small());
    assert_eq!(writeback.admit(0, 900).0, Admission::Go);
    let (first, actions) = writeback.admit(0, 200);
    assert_eq!((first, actions), (Admission::Wait(Ticket(1)), vec![]));
    // a small one that would fit doesn't overtake it
    assert_eq!(writeback.admit(0, 1).0, Admission::Wait(Ticket(2)));
    let actions = writeback.wrote(0, 900);
    let write = Action::Write {
        bytes: 10,
        is_waited_for: true,
    };
    assert_eq!(actions, [write]);
    let (mut actions, mut gone) = (actions, Vec::new());
    for now in 1..100 {
        let Some(bytes) = piece(&actions) else { break };
        actions = writeback.written(now, bytes);
        gone.extend(
            actions
                .iter()
                .copied()
                .filter(|action| matches!(action, Action::Go(_))),
        );
    }
    assert_eq!(gone, [Action::Go(Ticket(1)), Action::Go(Ticket(2))]);
}

#[test]
fn a_write_larger_than_the_bound_goes_alone() {
    let mut writeback = WriteBack::new(small());
    assert_eq!(writeback.admit(0, 5000).0, Admission::Go);
    assert!(matches!(writeback.admit(0, 1).0, Admission::Wait(_)));
    assert_eq!(writeback.abandoned(0, 5000), [Action::Go(Ticket(1))]);
}

#[test]
fn whoever_waits_hears_of_a_failure_and_the_bytes_stay_dirty() {
    let mut writeback = WriteBack::new(small());
    writeback.admit(0, 1000);
    let bytes = piece(&writeback.wrote(0, 1000)).expect("a piece");
    let (flush, _) = writeback.flush(0);
    assert_eq!(writeback.admit(0, 1).0, Admission::Wait(Ticket(1)));
    let failed = [Action::FlushFailed(flush), Action::Refuse(Ticket(1))];
    assert_eq!(writeback.failed(1), failed);
    assert_eq!(writeback.dirty_bytes(), 1000);
    assert_eq!(
        writeback.wake_us(),
        Some(50),
        "the age, at which nothing can be tried yet"
    );
    assert_eq!(writeback.tick(50), []);
    assert_eq!(writeback.wake_us(), Some(1 + RETRY_US));
    assert_eq!(piece(&writeback.tick(1 + RETRY_US)), Some(bytes));
}

#[test]
fn writers_and_flushes_without_number_need_bounded_memory() {
    let mut writeback = WriteBack::new(small());
    writeback.admit(0, 1000);
    for _ in 0..WAITING_MAX {
        assert!(matches!(writeback.admit(0, 1).0, Admission::Wait(_)));
    }
    assert_eq!(writeback.admit(0, 1).0, Admission::Refused);
    for _ in 0..3 * WAITING_MAX {
        writeback.wrote(0, 1);
        writeback.flush(0);
    }
    assert!(writeback.flushes.len() <= WAITING_MAX);
    assert!(writeback.waiting.len() <= WAITING_MAX);
}

#[derive(Clone, Debug)]
enum Event {
    Admit(u64),
    /// The writer who was told to go longest ago reports; with its bytes written, or not.
    Report(bool),
    Flush,
    /// The disk reports a part of the piece, in hundredths.
    Written(u64),
    Failed,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..300u64).prop_map(Event::Admit),
        4 => prop::bool::weighted(0.9).prop_map(Event::Report),
        2 => Just(Event::Flush),
        6 => (0..=100u64).prop_map(Event::Written),
        1 => Just(Event::Failed),
        2 => (0..100u64).prop_map(Event::Pass),
    ]
}

/// A caller that does what it is told, and checks what it is told.
struct Caller {
    writeback: WriteBack,
    now: u64,
    /// Writes that may go on, in their order.
    going: VecDeque<u64>,
    waiting: BTreeMap<Ticket, u64>,
    /// What each flush wants written.
    flushes: BTreeMap<FlushId, u64>,
    piece: Option<u64>,
    wrote: u64,
    written: u64,
    largest: u64,
}

impl Caller {
    fn obey(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Write { bytes, .. } => {
                    assert!(self.piece.is_none(), "one piece at a time");
                    assert!((1..=small().piece_bytes_max).contains(&bytes));
                    assert!(self.written + bytes <= self.wrote, "only what is dirty");
                    self.piece = Some(bytes);
                }
                Action::Go(ticket) => {
                    let first = self.waiting.keys().next().copied();
                    assert_eq!(first, Some(ticket), "the first to come");
                    let bytes = self.waiting.remove(&ticket).expect("it waited");
                    self.going.push_back(bytes);
                }
                Action::Refuse(ticket) => {
                    assert!(self.waiting.remove(&ticket).is_some());
                }
                Action::Flushed(id) => {
                    for (flush, wants) in self.answer(id) {
                        assert!(wants <= self.written, "{flush:?} is done too soon");
                    }
                }
                Action::FlushFailed(id) => {
                    assert!(!self.answer(id).is_empty());
                }
            }
        }
        let going: u64 = self.going.iter().sum();
        let bound = small().dirty_bytes_max.max(self.largest);
        assert!(self.wrote - self.written + going <= bound);
        assert_eq!(self.writeback.dirty_bytes(), self.wrote - self.written);
    }

    fn answer(&mut self, id: FlushId) -> BTreeMap<FlushId, u64> {
        let later = self.flushes.split_off(&FlushId(id.0 + 1));
        std::mem::replace(&mut self.flushes, later)
    }

    fn step(&mut self, event: &Event) {
        let now = self.now;
        let actions = match event {
            Event::Admit(bytes) => {
                let (admission, actions) = self.writeback.admit(now, *bytes);
                self.largest = self.largest.max(*bytes);
                match admission {
                    Admission::Go => self.going.push_back(*bytes),
                    Admission::Wait(ticket) => {
                        self.waiting.insert(ticket, *bytes);
                    }
                    Admission::Refused => {}
                }
                actions
            }
            Event::Report(is_written) => match (self.going.pop_front(), is_written) {
                (None, _) => Vec::new(),
                (Some(bytes), true) => {
                    self.wrote += bytes;
                    self.writeback.wrote(now, bytes)
                }
                (Some(bytes), false) => self.writeback.abandoned(now, bytes),
            },
            Event::Flush => {
                let (id, actions) = self.writeback.flush(now);
                self.flushes.insert(id, self.wrote);
                actions
            }
            Event::Written(part) => match self.piece {
                None => Vec::new(),
                Some(left) => {
                    let bytes = left * part / 100;
                    self.written += bytes;
                    self.piece = Some(left - bytes).filter(|left| *left > 0);
                    self.writeback.written(now, bytes)
                }
            },
            Event::Failed => match self.piece.take() {
                None => Vec::new(),
                Some(_) => self.writeback.failed(now),
            },
            Event::Pass(us) => {
                self.now += us;
                self.writeback.tick(self.now)
            }
        };
        self.obey(actions);
    }
}

proptest! {
    /// A flush is done only after every byte that was dirty at its begin was reported written; dirty bytes stay below the bound; one
    /// piece is under way at a time; and once the disk goes on, nobody waits for ever.
    #[test]
    fn flushes_are_never_done_too_soon_and_nothing_waits_for_ever(events in prop::collection::vec(event(), 0..300)) {
        let mut caller = Caller {
            writeback: WriteBack::new(small()),
            now: 0,
            going: VecDeque::new(),
            waiting: BTreeMap::new(),
            flushes: BTreeMap::new(),
            piece: None,
            wrote: 0,
            written: 0,
            largest: 0,
        };
        for event in &events {
            caller.step(event);
        }
        // From here on the disk writes what it is given, and writers report.
        for _ in 0..20_000 {
            if !caller.going.is_empty() {
                caller.step(&Event::Report(true));
            } else if caller.piece.is_some() {
                caller.step(&Event::Written(100));
            } else if let Some(wake) = caller.writeback.wake_us() {
                let pass = wake.saturating_sub(caller.now);
                caller.step(&Event::Pass(pass));
            } else {
                break;
            }
        }
        prop_assert!(caller.waiting.is_empty() && caller.flushes.is_empty());
        prop_assert_eq!(caller.written, caller.wrote, "what is dirty becomes old, and is written");
        prop_assert_eq!(caller.writeback.wake_us(), None);
    }
}

#[test]
fn what_somebody_else_has_synced_is_not_written_again() {
    let mut writeback = WriteBack::new(small());
    writeback.admit(0, 300);
    assert_eq!(writeback.wrote(0, 300), []);
    let position = writeback.position();
    writeback.admit(1, 50);
    writeback.wrote(1, 50);
    assert_eq!(writeback.synced(position), 300);
    assert_eq!(
        (writeback.dirty_bytes(), writeback.synced(position)),
        (50, 0)
    );
    // While somebody waits for pieces, these are written all the same.
    let (flush, actions) = writeback.flush(2);
    assert_eq!(piece(&actions), Some(10));
    assert_eq!(writeback.synced(writeback.position()), 0);
    let mut actions = actions;
    while let Some(bytes) = piece(&actions) {
        actions = writeback.written(3, bytes);
    }
    assert_eq!(actions, [Action::Flushed(flush)]);
    assert_eq!(writeback.synced(u64::MAX), 0, "there is nothing left");
}
