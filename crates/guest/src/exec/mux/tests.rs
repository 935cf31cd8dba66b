use super::*;
use crate::exec::frame::{Message, Messages};
use proptest::prelude::*;

/// Moves up to `frames` frames from one end to the other; returns those that the other's caller gets.
fn carry(from: &mut Mux, to: &mut Mux, frames: usize) -> Vec<Frame> {
    let mut bytes = Vec::new();
    for _ in 0..frames {
        if !from.next(&mut bytes) {
            break;
        }
    }
    let mut got = Vec::new();
    for message in Messages::default().feed(&bytes) {
        let Message::Frame(Ok(frame)) = message else {
            panic!("{message:?}");
        };
        got.extend(to.received(frame).unwrap());
    }
    got
}

fn pair() -> (Mux, Mux) {
    (Mux::new(Side::Node), Mux::new(Side::Guest))
}

fn data_of(frames: &[Frame], number: u32) -> Vec<u8> {
    let mut all = Vec::new();
    for frame in frames {
        if let Frame::Data { stream, bytes, .. } = frame
            && *stream == number
        {
            all.extend(bytes);
        }
    }
    all
}

#[test]
fn a_process_is_started_fed_heard_and_over() {
    let (mut node, mut guest) = pair();
    assert!(node.open(1, false, b"cat".to_vec()));
    node.send(1, Channel::Input, b"in");
    node.finish(1, Channel::Input);
    let got = carry(&mut node, &mut guest, 9);
    assert!(matches!(&got[0], Frame::Open { request, .. } if request == b"cat"));
    assert_eq!(data_of(&got, 1), b"in");
    assert!(matches!(got[2], Frame::End { .. }));
    guest.tell(Frame::Started { stream: 1, pid: 5 });
    guest.send(1, Channel::Output, b"out");
    guest.send(1, Channel::Errors, b"err");
    guest.end(1, Outcome::Exited(3));
    let got = carry(&mut guest, &mut node, 9);
    assert_eq!(got.len(), 6, "{got:?}");
    let over = Frame::Over {
        stream: 1,
        outcome: Outcome::Exited(3),
    };
    assert_eq!(got.last(), Some(&over));
    assert!(node.is_empty() && guest.is_empty());
    // what the node sent meanwhile is of no stream, which is no fault of its own
    assert_eq!(guest.received(Frame::Close { stream: 1 }), Ok(None));
}

#[test]
fn a_keystroke_goes_before_a_copy_and_waits_for_no_more_than_the_wire_holds() {
    let (mut node, mut guest) = pair();
    node.open(1, false, Vec::new());
    node.open(2, true, Vec::new());
    carry(&mut node, &mut guest, 9);
    let copy = vec![7; WINDOW_BYTES as usize];
    node.send(1, Channel::Input, &copy);
    let mut wire = Vec::new();
    while node.next(&mut wire) {}
    assert!(wire.len() < WIRE_BYTES_MAX as usize * 11 / 10, "bounded");
    node.send(2, Channel::Input, b"k");
    let mut key = Vec::new();
    assert!(node.next(&mut key), "the wire is full for copies alone");
    assert!(key.len() < 30);
}

#[test]
fn a_stream_that_nobody_reads_stops_alone() {
    let (mut node, mut guest) = pair();
    node.open(1, false, Vec::new());
    node.open(2, false, Vec::new());
    carry(&mut node, &mut guest, 9);
    let mut sent = [0u64; 2];
    for _ in 0..2000 {
        for (n, stream) in [1, 2].into_iter().enumerate() {
            let room = guest.room(stream, Channel::Output).min(DATA_BYTES_MAX);
            guest.send(stream, Channel::Output, &vec![0; room]);
            sent[n] += room as u64;
        }
        for frame in carry(&mut guest, &mut node, 4) {
            if let Frame::Data {
                stream: 2,
                channel,
                bytes,
            } = frame
            {
                node.consumed(2, channel, bytes.len());
            }
        }
        carry(&mut node, &mut guest, 4);
    }
    assert_eq!(sent[0], u64::from(WINDOW_BYTES));
    assert!(sent[1] > 20 * u64::from(WINDOW_BYTES), "{sent:?}");
}

#[test]
fn nobody_may_send_what_only_the_other_side_sends_or_more_than_it_has_credit_for() {
    let data = |stream, channel, length| Frame::Data {
        stream,
        channel,
        bytes: vec![0; length],
    };
    let credit = |bytes| Frame::Credit {
        stream: 1,
        channel: Channel::Input,
        bytes,
    };
    let over = Frame::Over {
        stream: 1,
        outcome: Outcome::Exited(0),
    };
    let started = Frame::Started { stream: 1, pid: 1 };
    for hostile in [
        vec![data(1, Channel::Input, 1)],
        vec![data(2, Channel::Output, 1)],
        vec![credit(0)],
        vec![credit(1)],
        vec![credit(u32::MAX)],
        vec![Frame::Taken { bytes: 0 }],
        vec![Frame::Taken { bytes: 1 }],
        vec![Frame::Close { stream: 1 }],
        vec![started.clone(), started],
        vec![over.clone(), over],
        vec![
            Frame::End {
                stream: 1,
                channel: Channel::Output
            };
            2
        ],
        vec![data(1, Channel::Output, DATA_BYTES_MAX); 17],
    ] {
        let (mut node, _) = pair();
        node.open(1, false, Vec::new());
        let last = hostile.len() - 1;
        for (n, frame) in hostile.into_iter().enumerate() {
            let told = node.received(frame.clone());
            assert_eq!(told.is_err(), n == last, "{n} {frame:?} {told:?}");
        }
    }
}

#[test]
fn there_are_never_more_streams_than_there_may_be() {
    let (mut node, mut guest) = pair();
    for stream in 0..STREAMS_MAX as u32 {
        assert!(node.open(stream, false, Vec::new()));
    }
    assert!(!node.open(1000, false, Vec::new()));
    carry(&mut node, &mut guest, 1000);
    let one_more = Frame::Open {
        stream: 1000,
        interactive: false,
        request: Vec::new(),
    };
    assert!(guest.received(one_more).is_err());
    // one that the node has closed is there until the guest has ended it
    node.close(3);
    assert!(!node.open(1001, false, Vec::new()));
    let got = carry(&mut node, &mut guest, 9);
    assert_eq!(got, [Frame::Close { stream: 3 }]);
    guest.send(3, Channel::Output, b"late");
    guest.end(3, Outcome::Exited(0));
    assert_eq!(carry(&mut guest, &mut node, 9), []);
    assert!(node.open(1001, false, Vec::new()));
}

/// What happens in a random run.
#[derive(Debug, Clone)]
enum Step {
    /// A side sends up to so many bytes on a stream.
    Send(bool, u32, usize),
    /// So many frames cross.
    Carry(bool, usize),
    /// A side consumes up to so many bytes of what it holds of a stream.
    Consume(bool, u32, usize),
    Close(u32),
    End(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 1..5u32;
    prop_oneof![
        4 => (any::<bool>(), stream.clone(), 1..100_000usize).prop_map(|(a, s, n)| Step::Send(a, s, n)),
        6 => (any::<bool>(), 1..12usize).prop_map(|(a, n)| Step::Carry(a, n)),
        4 => (any::<bool>(), stream.clone(), 1..200_000usize).prop_map(|(a, s, n)| Step::Consume(a, s, n)),
        1 => stream.clone().prop_map(Step::Close),
        1 => stream.prop_map(Step::End),
    ]
}

/// Both ends, and what was sent and received of each stream: [to the guest, to the node].
struct World {
    node: Mux,
    guest: Mux,
    sent: BTreeMap<(bool, u32), Vec<u8>>,
    got: BTreeMap<(bool, u32), Vec<u8>>,
    held: BTreeMap<(bool, u32), usize>,
    closed: BTreeSet<u32>,
    next: u8,
}

impl World {
    fn new() -> World {
        let (mut node, mut guest) = pair();
        for stream in 1..5 {
            node.open(stream, stream.is_multiple_of(2), vec![stream as u8]);
        }
        carry(&mut node, &mut guest, 9);
        World {
            node,
            guest,
            sent: BTreeMap::new(),
            got: BTreeMap::new(),
            held: BTreeMap::new(),
            closed: BTreeSet::new(),
            next: 0,
        }
    }

    fn channel(to_guest: bool) -> Channel {
        match to_guest {
            true => Channel::Input,
            false => Channel::Output,
        }
    }

    fn carry(&mut self, to_guest: bool, frames: usize) {
        let got = match to_guest {
            true => carry(&mut self.node, &mut self.guest, frames),
            false => carry(&mut self.guest, &mut self.node, frames),
        };
        for frame in &got {
            if let Frame::Data { stream, bytes, .. } = frame {
                let key = (to_guest, *stream);
                self.got.entry(key).or_default().extend(bytes);
                *self.held.entry(key).or_default() += bytes.len();
            }
        }
    }

    fn consume(&mut self, to_guest: bool, stream: u32, most: usize) {
        let held = self.held.entry((to_guest, stream)).or_default();
        let count = most.min(*held);
        *held -= count;
        let receiver = match to_guest {
            true => &mut self.guest,
            false => &mut self.node,
        };
        receiver.consumed(stream, World::channel(to_guest), count);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(to_guest, stream, most) => {
                let sender = match to_guest {
                    true => &mut self.node,
                    false => &mut self.guest,
                };
                let channel = World::channel(to_guest);
                let count = sender.room(stream, channel).min(most);
                self.next = self.next.wrapping_add(1);
                let bytes = vec![self.next; count];
                sender.send(stream, channel, &bytes);
                self.sent
                    .entry((to_guest, stream))
                    .or_default()
                    .extend(bytes);
            }
            Step::Carry(to_guest, frames) => self.carry(to_guest, frames),
            Step::Consume(to_guest, stream, most) => self.consume(to_guest, stream, most),
            Step::Close(stream) => {
                self.node.close(stream);
                self.closed.insert(stream);
            }
            Step::End(stream) => self.guest.end(stream, Outcome::Exited(0)),
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_nobody_breaks_the_rules_and_all_that_was_sent_arrives(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new();
        let mut ended = BTreeSet::new();
        for step in steps {
            if let Step::End(stream) = step {
                ended.insert(stream);
            }
            world.step(step);
        }
        // everybody reads on: all comes, in order, without a byte twice
        for _ in 0..100 {
            world.carry(true, 1000);
            world.carry(false, 1000);
            for stream in 1..5 {
                world.consume(true, stream, usize::MAX);
                world.consume(false, stream, usize::MAX);
            }
        }
        for ((to_guest, stream), sent) in &world.sent {
            let got = world.got.get(&(*to_guest, *stream)).cloned().unwrap_or_default();
            if world.closed.contains(stream) || (*to_guest && ended.contains(stream)) {
                prop_assert!(sent.starts_with(&got));
            } else {
                prop_assert_eq!(sent.len(), got.len());
                prop_assert!(sent == &got);
            }
        }
    }

    #[test]
    fn no_stream_starves(interactive in 1..6u32, bulk in 1..6u32) {
        let (mut node, mut guest) = pair();
        let all = interactive + bulk;
        for stream in 0..all {
            node.open(stream, stream < interactive, Vec::new());
        }
        carry(&mut node, &mut guest, 100);
        let mut got = vec![0; all as usize];
        for _ in 0..400 {
            for stream in 0..all {
                let room = guest.room(stream, Channel::Output);
                guest.send(stream, Channel::Output, &vec![0; room]);
            }
            for frame in carry(&mut guest, &mut node, 3) {
                if let Frame::Data { stream, channel, bytes } = frame {
                    got[stream as usize] += 1;
                    node.consumed(stream, channel, bytes.len());
                }
            }
            carry(&mut node, &mut guest, 10);
        }
        // each class is served in turn, and of nine frames one is of a copy
        for (stream, count) in got.iter().enumerate() {
            prop_assert!(*count >= 15, "{stream} got {count} of {got:?}");
        }
    }

    #[test]
    fn a_hostile_guest_is_refused_and_nothing_overflows(
        frames in prop::collection::vec(
            (0..6u32, 0..3usize, prop_oneof![Just(0u32), Just(1), Just(70_000), any::<u32>()], 0..8u8), 1..60,
        ),
    ) {
        let (mut node, mut guest) = pair();
        for stream in 0..4 {
            node.open(stream, stream.is_multiple_of(2), Vec::new());
        }
        carry(&mut node, &mut guest, 9);
        for (stream, channel, bytes, kind) in frames {
            let channel = Channel::ALL[channel];
            let frame = match kind {
                0 | 1 => Frame::Data { stream, channel, bytes: vec![0; (bytes as usize).clamp(1, DATA_BYTES_MAX)] },
                2 => Frame::Credit { stream, channel, bytes },
                3 => Frame::Taken { bytes },
                4 => Frame::End { stream, channel },
                5 => Frame::Started { stream, pid: bytes },
                6 => Frame::Over { stream, outcome: Outcome::TimedOut },
                _ => Frame::Close { stream },
            };
            node.send(stream, Channel::Input, &[0; 1000]);
            node.consumed(stream, channel, bytes as usize);
            if node.received(frame).is_err() {
                return Ok(());
            }
            let mut out = Vec::new();
            while node.next(&mut out) {}
            prop_assert!(out.len() < 2 * WIRE_BYTES_MAX as usize);
        }
    }
}
