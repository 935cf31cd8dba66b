//! How much may be under way on a connection: what its way carries, and a few milliseconds of queue.
//!
//! What waits for losses, like Cubic, fills the queue before the narrowest place of a way, and a demand comes after all that lies there,
//! whatever its priority. So Cubic has a bound here, which follows from two things: how fast bytes arrive, and how long a packet takes when
//! nothing is before it. It is tightened once packets take longer than that by [`QUEUE_MOST`], and loosened while they don't. From time to
//! time little is sent for one round trip, so that the queue runs empty and shows how long the way is.
//!
//! Beside a flow that does fill the queue a connection keeps what [`LEAST_BYTES`] a round trip are: a host has several connections.
use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use quinn_proto::RttEstimator;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The queue at which the bound is tightened.
const QUEUE_MOST: Duration = Duration::from_millis(3);
/// The queue that is left then: enough that the way does not run empty. Of a long way it is a quarter of the time that a packet takes, since
/// there the network itself delays packets by more than that.
const QUEUE_KEPT: Duration = Duration::from_micros(1500);
const QUEUE_KEPT_SHARE: f64 = 0.25;
/// What may be under way in any case: half a piece, 2.6 ms of 100 Mbit/s.
const LEAST_BYTES: u64 = 32 << 10;
/// Bytes are counted for a round trip, and not for less than this: packets are acknowledged in groups.
const ROUND_LEAST: Duration = Duration::from_millis(4);
/// The fastest of so many rounds counts: others may have had a hole.
const ROUNDS: usize = 8;
/// How often it is measured anew how long the way is. A way that became longer is found out in twice this time.
const WAY_FOR: Duration = Duration::from_secs(3);

/// Makes such controllers.
#[derive(Debug)]
pub(crate) struct ShortQueue;

impl ControllerFactory for ShortQueue {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Bounded {
            cubic: Arc::new(CubicConfig::default()).build(now, current_mtu),
            bound: Bound::default(),
            mtu: current_mtu.into(),
        })
    }
}

/// Cubic with a bound.
struct Bounded {
    cubic: Box<dyn Controller>,
    bound: Bound,
    mtu: u64,
}

impl Controller for Bounded {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.bound.came(now, sent, bytes);
        // what does not limit anything must not grow
        let bounded = self.bound.bytes(self.mtu) < self.cubic.window();
        let limited = app_limited || bounded;
        self.cubic.on_ack(now, sent, bytes, limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.bound.turn(now, app_limited);
        let largest = largest_packet_num_acked;
        self.cubic.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.bound.young = false;
        let persistent = is_persistent_congestion;
        self.cubic
            .on_congestion_event(now, sent, persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window().min(self.bound.bytes(self.mtu))
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Bounded {
            cubic: self.cubic.clone_box(),
            bound: self.bound.clone(),
            mtu: self.mtu,
        })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// What may be under way.
#[derive(Clone, Debug)]
struct Bound {
    bytes: u64,
    /// Whether no queue and no loss was seen yet: the bound is doubled each round.
    young: bool,
    /// Bytes a second in the latest rounds.
    rates: [f64; ROUNDS],
    /// Which of them is the oldest.
    oldest: usize,
    round: Option<Round>,
    way: Way,
    /// Since when the queue is let run empty.
    draining: Option<Instant>,
}

/// What comes in a round trip.
#[derive(Clone, Debug)]
struct Round {
    since: Instant,
    bytes: u64,
    quickest: Duration,
    /// Whether something has come that was sent in it.
    whole: bool,
    /// Whether there was too little to send.
    idle: bool,
}

/// How long packets take at least.
#[derive(Clone, Debug, Default)]
struct Way {
    since: Option<Instant>,
    lately: Option<Duration>,
    before: Option<Duration>,
}

impl Default for Bound {
    fn default() -> Bound {
        Bound {
            bytes: LEAST_BYTES,
            young: true,
            rates: [0.0; ROUNDS],
            oldest: 0,
            round: None,
            way: Way::default(),
            draining: None,
        }
    }
}

impl Way {
    fn came(&mut self, now: Instant, took: Duration) {
        self.since.get_or_insert(now);
        self.lately = Some(self.lately.map_or(took, |quickest| quickest.min(took)));
    }

    /// Returns the time of the quickest packet of late.
    fn takes(&self) -> Option<Duration> {
        self.lately.into_iter().chain(self.before).min()
    }

    /// Returns whether it is time to measure it anew.
    fn turn(&mut self, now: Instant) -> bool {
        let old = |since| now.saturating_duration_since(since) >= WAY_FOR;
        let turns = self.since.is_some_and(old);
        if turns {
            self.since = Some(now);
            self.before = self.lately.take();
        }
        turns
    }
}

impl Bound {
    /// A packet of so many bytes has arrived.
    fn came(&mut self, now: Instant, sent: Instant, bytes: u64) {
        let took = now.saturating_duration_since(sent);
        self.way.came(now, took);
        if self.draining.is_some_and(|since| sent >= since) {
            self.draining = None;
        }
        let round = self.round.get_or_insert(Round::new(now));
        round.bytes += bytes;
        round.quickest = round.quickest.min(took);
        round.whole |= sent >= round.since;
    }

    /// All packets have been noted that arrived by now.
    fn turn(&mut self, now: Instant, idle: bool) {
        let (Some(round), Some(way)) = (&mut self.round, self.way.takes()) else {
            return;
        };
        round.idle |= idle;
        let took = now.saturating_duration_since(round.since);
        if took < ROUND_LEAST || !round.whole {
            return;
        }
        let round = std::mem::replace(round, Round::new(now));
        let rate = round.bytes as f64 / took.as_secs_f64();
        // what a sender with little to say sends, is not what the way carries
        if !round.idle || rate > self.fastest() {
            self.rates[self.oldest] = rate;
            self.oldest = (self.oldest + 1) % ROUNDS;
        }
        let kept = self.kept(way);
        if round.quickest > way + QUEUE_MOST {
            self.young = false;
            self.bytes = kept;
        } else if !round.idle {
            let more = if self.young {
                self.bytes
            } else {
                self.bytes / 8
            };
            self.bytes = (self.bytes + more).min(2 * kept).max(kept);
        }
        if self.way.turn(now) && !round.idle {
            self.draining = Some(now);
        }
    }

    fn fastest(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Returns what leaves a short queue where a packet alone takes this time.
    fn kept(&self, way: Duration) -> u64 {
        let queue = QUEUE_KEPT.max(way.mul_f64(QUEUE_KEPT_SHARE));
        let bytes = self.fastest() * (way + queue).as_secs_f64();
        (bytes as u64).max(LEAST_BYTES)
    }

    /// Returns what may be under way; packets have at most `mtu` bytes.
    fn bytes(&self, mtu: u64) -> u64 {
        let Some((_, way)) = self.draining.zip(self.way.takes()) else {
            return self.bytes;
        };
        let half = self.fastest() * way.as_secs_f64() / 2.0;
        // two are acknowledged at once
        (half as u64).clamp(2 * mtu, self.bytes.max(2 * mtu))
    }
}

impl Round {
    fn new(now: Instant) -> Round {
        Round {
            since: now,
            bytes: 0,
            quickest: Duration::MAX,
            whole: false,
            idle: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    const PACKET: u64 = 1200;
    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;
    /// 100 Mbit/s.
    const FAST: u64 = 12_500_000;
    /// What the link keeps before it loses packets, in nanoseconds of its rate.
    const BUFFER: u64 = 50 * MS;

    enum Flow {
        Ours(Bound),
        /// Fills the buffer, and takes a part of what it sends back with each loss. When it did so last.
        Greedy(f64, u64),
    }

    /// A packet is at its end, or its loss is known.
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    struct Packet {
        at: u64,
        number: u64,
        flow: usize,
        sent: u64,
        lost: bool,
    }

    /// Flows that have always something to send, and a link that all of them share. Times are in nanoseconds.
    struct Net {
        flows: Vec<(Flow, u64)>,
        bytes_per_s: u64,
        /// How long a packet takes at a time, without a queue.
        way: fn(u64) -> u64,
        start: Instant,
        free: u64,
        number: u64,
        packets: BinaryHeap<Reverse<Packet>>,
        /// When packets arrived, of which flow, and how long they waited in the link.
        arrived: Vec<(u64, usize, u64)>,
    }

    impl Net {
        fn run(flows: Vec<Flow>, bytes_per_s: u64, way: fn(u64) -> u64, until: u64) -> Net {
            let mut net = Net {
                flows: flows.into_iter().map(|flow| (flow, 0)).collect(),
                bytes_per_s,
                way,
                start: Instant::now(),
                free: 0,
                number: 0,
                packets: BinaryHeap::new(),
                arrived: Vec::new(),
            };
            for flow in 0..net.flows.len() {
                net.send(0, flow);
            }
            while let Some(Reverse(packet)) = net.packets.pop() {
                if packet.at > until {
                    break;
                }
                net.ends(&packet);
                net.send(packet.at, packet.flow);
            }
            net
        }

        fn send(&mut self, now: u64, flow: usize) {
            let window = match &self.flows[flow].0 {
                Flow::Ours(bound) => bound.bytes(PACKET),
                Flow::Greedy(window, _) => *window as u64,
            };
            while self.flows[flow].1 < window {
                self.flows[flow].1 += PACKET;
                self.number += 1;
                let wait = self.free.saturating_sub(now);
                let lost = wait > BUFFER;
                if !lost {
                    self.free = self.free.max(now) + PACKET * S / self.bytes_per_s;
                    self.arrived.push((now, flow, wait));
                }
                self.packets.push(Reverse(Packet {
                    at: self.free + (self.way)(now),
                    number: self.number,
                    flow,
                    sent: now,
                    lost,
                }));
            }
        }

        fn ends(&mut self, packet: &Packet) {
            let [at, sent] =
                [packet.at, packet.sent].map(|ns| self.start + Duration::from_nanos(ns));
            let (flow, under_way) = &mut self.flows[packet.flow];
            *under_way -= PACKET;
            match flow {
                Flow::Ours(bound) if packet.lost => bound.young = false,
                Flow::Ours(bound) => {
                    bound.came(at, sent, PACKET);
                    bound.turn(at, false);
                }
                Flow::Greedy(window, taken_back) if packet.lost => {
                    if packet.sent > *taken_back {
                        *taken_back = packet.at;
                        *window *= 0.7;
                    }
                }
                Flow::Greedy(window, _) => *window += (PACKET * PACKET) as f64 / *window,
            }
        }

        /// Returns which part of the link a flow had in a time.
        fn share(&self, flow: usize, from: u64, until: u64) -> f64 {
            let theirs =
                |packet: &&(u64, usize, u64)| packet.1 == flow && (from..until).contains(&packet.0);
            let packets = self.arrived.iter().filter(theirs).count() as u64;
            let carries = self.bytes_per_s as f64 * (until - from) as f64 / S as f64;
            (packets * PACKET) as f64 / carries
        }

        /// Returns how long 19 of 20 packets wait at most, from a time on.
        fn waits(&self, from: u64) -> u64 {
            let late = self.arrived.iter().filter(|packet| packet.0 >= from);
            let mut waits: Vec<u64> = late.map(|packet| packet.2).collect();
            waits.sort_unstable();
            waits[waits.len() * 19 / 20]
        }
    }

    fn ours() -> Vec<Flow> {
        vec![Flow::Ours(Bound::default())]
    }

    #[test]
    fn a_link_is_full_and_its_queue_is_short() {
        let near = Net::run(ours(), FAST, |_| MS / 3, 8 * S);
        for second in 1..8 {
            let share = near.share(0, second * S, (second + 1) * S);
            assert!(share > 0.95, "{share} in second {second}");
        }
        assert!(near.waits(S) < 5 * MS, "{} ns", near.waits(S));
        // ten times as fast
        let fast = Net::run(ours(), 10 * FAST, |_| MS / 5, 2 * S);
        let share = fast.share(0, S, 2 * S);
        assert!(share > 0.95 && fast.waits(S) < 5 * MS, "{share}");
    }

    #[test]
    fn a_distant_link_is_full_too() {
        let far = Net::run(ours(), FAST, |_| 50 * MS, 8 * S);
        for second in 1..8 {
            let share = far.share(0, second * S, (second + 1) * S);
            assert!(share > 0.9, "{share} in second {second}");
        }
    }

    #[test]
    fn a_way_that_became_longer_is_found_out() {
        let way = |now: u64| if now < 3 * S { MS } else { 30 * MS };
        let longer = Net::run(ours(), FAST, way, 14 * S);
        let share = longer.share(0, 11 * S, 14 * S);
        assert!(share > 0.9, "{share}");
    }

    #[test]
    fn beside_a_flow_that_fills_the_queue_it_keeps_a_share() {
        let both = vec![
            Flow::Ours(Bound::default()),
            Flow::Greedy(10.0 * PACKET as f64, 0),
        ];
        let net = Net::run(both, FAST, |_| MS / 3, 20 * S);
        for from in [5, 10, 15] {
            let share = net.share(0, from * S, (from + 5) * S);
            assert!(share > 0.03, "{share} after {from} s");
        }
    }

    #[test]
    fn several_share_a_link_and_leave_a_queue_that_none_of_them_makes_longer() {
        let four = (0..4).flat_map(|_| ours()).collect();
        let net = Net::run(four, FAST, |_| MS / 3, 12 * S);
        for flow in 0..4 {
            let share = net.share(flow, 6 * S, 12 * S);
            assert!(share > 0.1, "{share} of flow {flow}");
        }
        assert!(net.waits(6 * S) < 20 * MS, "{} ns", net.waits(6 * S));
    }
}
