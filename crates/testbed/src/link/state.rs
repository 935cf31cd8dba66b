//! One direction of a link as a state machine, in virtual nanoseconds.
//!
//! The fate of a packet is decided when it arrives: the packets before it determine when its last bit leaves the queue,
//! so that time is computed at once and the packet is entered into the calendar. A driver that asks late cannot change
//! the rate.
use super::{Rate, Shape};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::VecDeque;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet arrives at this time.
    Arrives {
        /// Nanoseconds on the caller's clock.
        at_ns: u64,
    },
    /// The packet is lost, because of the configured loss.
    Lost,
    /// The packet is dropped, because the queue is full.
    NoRoom,
}

/// One direction of a link, carrying packets of type `P`. Times must not decrease from call to call.
pub struct Link<P> {
    shape: Shape,
    random: StdRng,
    /// For each packet that still waits or is being sent: when its last bit leaves, and its size.
    leaving: VecDeque<(u64, usize)>,
    leaving_bytes: usize,
    /// When the sender becomes free.
    free_ns: u64,
    /// In a recorded trace: the opportunity in use, and the bytes left in it.
    opportunity: (u64, usize),
    /// Packets that are under way and when they arrive, in order.
    calendar: VecDeque<(u64, P)>,
    last_arrival_ns: u64,
}

impl<P> Link<P> {
    /// Makes an idle link. The same seed loses the same packets.
    pub fn new(shape: Shape, seed: u64) -> Link<P> {
        Link {
            shape,
            random: StdRng::seed_from_u64(seed),
            leaving: VecDeque::new(),
            leaving_bytes: 0,
            free_ns: 0,
            opportunity: (0, super::MTU),
            calendar: VecDeque::new(),
            last_arrival_ns: 0,
        }
    }

    /// Accepts a packet of `bytes`.
    pub fn offer(&mut self, now_ns: u64, packet: P, bytes: usize) -> Verdict {
        while self.leaving.front().is_some_and(|(at, _)| *at <= now_ns) {
            let (_, gone) = self.leaving.pop_front().expect("the front was there");
            self.leaving_bytes -= gone;
        }
        if self.leaving_bytes.saturating_add(bytes) > self.shape.queue_limit() {
            return Verdict::NoRoom;
        }
        let left_ns = self.send(now_ns, bytes);
        self.leaving.push_back((left_ns, bytes));
        self.leaving_bytes += bytes;
        // It is lost on the way, not at the entry, so it has used the link.
        if self.shape.loss > 0.0 && self.random.random::<f64>() < self.shape.loss {
            return Verdict::Lost;
        }
        let jitter = self.shape.jitter_ns;
        let delay = if jitter == 0 {
            self.shape.delay_ns
        } else {
            (self.shape.delay_ns + self.random.random_range(0..=2 * jitter)).saturating_sub(jitter)
        };
        let at_ns = (left_ns + delay).max(self.last_arrival_ns);
        self.last_arrival_ns = at_ns;
        self.calendar.push_back((at_ns, packet));
        Verdict::Arrives { at_ns }
    }

    /// Returns when the packet's last bit leaves.
    fn send(&mut self, now_ns: u64, bytes: usize) -> u64 {
        match &self.shape.rate {
            Rate::Unlimited => now_ns,
            Rate::BitsPerSecond(rate) => {
                let takes =
                    (bytes as u128 * 8 * 1_000_000_000).div_ceil(u128::from((*rate).max(1)));
                self.free_ns = self
                    .free_ns
                    .max(now_ns)
                    .saturating_add(takes.try_into().unwrap_or(u64::MAX));
                self.free_ns
            }
            Rate::Recorded(trace) => {
                let (mut nth, mut room) = self.opportunity;
                // An opportunity that passed while nothing waited is lost, as it was on the recorded link.
                if trace.nth_ns(nth) < now_ns {
                    (nth, room) = (trace.first_at(now_ns), super::MTU);
                }
                let mut left = bytes;
                while left > room {
                    left -= room;
                    (nth, room) = (nth + 1, super::MTU);
                }
                self.opportunity = (nth, room - left);
                trace.nth_ns(nth)
            }
        }
    }

    /// Returns the next packet that has arrived by `now_ns`, with its time.
    pub fn arrival(&mut self, now_ns: u64) -> Option<(u64, P)> {
        if self.calendar.front()?.0 > now_ns {
            None
        } else {
            self.calendar.pop_front()
        }
    }

    /// Returns when the next packet arrives.
    pub fn next_arrival_ns(&self) -> Option<u64> {
        self.calendar.front().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Trace;
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    const MS: u64 = 1_000_000;

    fn rate(bits: u64) -> Shape {
        Shape {
            rate: Rate::BitsPerSecond(bits),
            ..Shape::default()
        }
    }

    /// Returns the fates of packets that are offered at given times.
    fn arrivals(shape: Shape, offers: &[(u64, usize)]) -> Vec<Verdict> {
        let mut link = Link::new(shape, 1);
        offers
            .iter()
            .enumerate()
            .map(|(n, (at, bytes))| link.offer(*at, n, *bytes))
            .collect()
    }

    #[test]
    fn each_rule_holds_to_the_nanosecond() {
        let at = |at_ns| Verdict::Arrives { at_ns };
        let recorded = |text: &str| Shape {
            rate: Rate::Recorded(Arc::new(Trace::parse(text.as_bytes()).unwrap())),
            ..Shape::default()
        };
        type Offers = Vec<(u64, usize)>;
        let table: Vec<(&str, Shape, Offers, Vec<Verdict>)> = vec![
            (
                "a perfect wire",
                Shape::default(),
                vec![(5, 1500)],
                vec![at(5)],
            ),
            (
                "delay alone",
                Shape {
                    delay_ns: 60 * MS,
                    ..Shape::default()
                },
                vec![(5, 1500)],
                vec![at(60 * MS + 5)],
            ),
            (
                "1 Mbit/s: 8 us a byte",
                rate(1_000_000),
                vec![(0, 100)],
                vec![at(800_000)],
            ),
            (
                "packets wait for each other",
                rate(1_000_000),
                vec![(0, 100), (0, 50)],
                vec![at(800_000), at(1_200_000)],
            ),
            (
                "an idle link saves nothing up",
                rate(1_000_000),
                vec![(0, 100), (2 * MS, 100)],
                vec![at(800_000), at(2_800_000)],
            ),
            (
                "a full queue drops, and takes again when a packet has left",
                Shape {
                    queue_bytes: Some(250),
                    ..rate(1_000_000)
                },
                vec![(0, 100), (0, 100), (0, 100), (800_000, 100)],
                vec![at(800_000), at(1_600_000), Verdict::NoRoom, at(2_400_000)],
            ),
            (
                "a loss of everything",
                Shape {
                    loss: 1.0,
                    ..Shape::default()
                },
                vec![(0, 9)],
                vec![Verdict::Lost],
            ),
            (
                "recorded: the next opportunity",
                recorded("3\n7\n"),
                vec![(0, 1500), (0, 1500)],
                vec![at(3 * MS), at(7 * MS)],
            ),
            (
                "recorded: several small packets share one",
                recorded("3\n7\n"),
                vec![(0, 700), (0, 700), (0, 700)],
                vec![at(3 * MS), at(3 * MS), at(7 * MS)],
            ),
            (
                "recorded: the loop starts over",
                recorded("3\n7\n"),
                vec![(0, 1500), (0, 1500), (0, 1500)],
                vec![at(3 * MS), at(7 * MS), at(10 * MS)],
            ),
            (
                "recorded: a missed opportunity is lost",
                recorded("3\n7\n"),
                vec![(4 * MS, 1500)],
                vec![at(7 * MS)],
            ),
        ];
        for (name, shape, offers, expected) in table {
            assert_eq!(arrivals(shape, &offers), expected, "{name}");
        }
    }

    #[test]
    fn the_promised_rate_is_exact_in_virtual_time() {
        for bits in [64_000, 7_200_000, 1_000_000_000] {
            let mut link = Link::new(
                Shape {
                    queue_bytes: Some(usize::MAX),
                    delay_ns: 60 * MS,
                    ..rate(bits)
                },
                1,
            );
            let packets = 10_000u64;
            for n in 0..packets {
                link.offer(0, n, 1500);
            }
            let (mut last, mut count) = (0, 0);
            while let Some((at, _)) = link.arrival(u64::MAX) {
                (last, count) = (at, count + 1);
            }
            assert_eq!(count, packets);
            let measured = (packets * 1500 * 8) as f64 / ((last - 60 * MS) as f64 / 1e9);
            assert!(
                (measured / bits as f64 - 1.0).abs() < 1e-6,
                "{bits}: {measured}"
            );
        }
    }

    #[test]
    fn a_recorded_link_passes_its_mean_rate() {
        let trace = Arc::new(Trace::parse(b"0\n1\n1\n9\n20\n").unwrap());
        let shape = Shape {
            rate: Rate::Recorded(trace.clone()),
            queue_bytes: Some(usize::MAX),
            ..Shape::default()
        };
        let mut link = Link::new(shape, 1);
        let mut last = 0;
        for n in 0..5000u64 {
            if let Verdict::Arrives { at_ns } = link.offer(0, n, 1500) {
                last = at_ns;
            }
        }
        assert_eq!(last, 1000 * 20 * MS);
        let measured = 5000.0 * 12_000.0 / (last as f64 / 1e9);
        assert!((measured / trace.mean_bits_per_s() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_share_of_lost_packets_is_the_promised_one() {
        let mut link = Link::new(
            Shape {
                loss: 0.05,
                ..Shape::default()
            },
            7,
        );
        let lost = (0..100_000)
            .filter(|n| link.offer(*n, (), 100) == Verdict::Lost)
            .count();
        assert!((4_700..5_300).contains(&lost), "{lost}");
    }

    #[test]
    fn jitter_stays_in_its_bounds_and_keeps_the_mean() {
        let shape = Shape {
            delay_ns: 60 * MS,
            jitter_ns: 10 * MS,
            ..Shape::default()
        };
        let mut link = Link::new(shape, 3);
        let mut sum = 0.0;
        for n in 0..10_000u64 {
            let now = n * 100 * MS;
            let Verdict::Arrives { at_ns } = link.offer(now, (), 100) else {
                panic!("nothing is lost")
            };
            assert!((50 * MS..=70 * MS).contains(&(at_ns - now)));
            sum += (at_ns - now) as f64;
        }
        assert!((sum / 10_000.0 / (60 * MS) as f64 - 1.0).abs() < 0.01);
    }

    proptest! {
        #[test]
        fn packets_arrive_once_in_order_and_never_faster_than_the_rate(
            bits in 10_000u64..10_000_000, delay in 0u64..100 * MS, jitter in 0u64..20 * MS, loss in 0.0f64..0.5,
            queue in 1_500usize..100_000, gaps in proptest::collection::vec((0u64..5 * MS, 20usize..1500), 1..200)
        ) {
            let shape = Shape { delay_ns: delay, jitter_ns: jitter, loss, queue_bytes: Some(queue), ..rate(bits) };
            let mut link = Link::new(shape, 5);
            let (mut now, mut expected, mut seen, mut waiting) = (0, Vec::new(), Vec::new(), 0u128);
            let mut before = 0;
            for (n, (gap, bytes)) in gaps.iter().enumerate() {
                now += gap;
                while let Some((at, id)) = link.arrival(now) { prop_assert!(at <= now); seen.push(id); }
                match link.offer(now, n, *bytes) {
                    Verdict::Arrives { at_ns } => {
                        prop_assert!(at_ns >= before, "no overtaking");
                        before = at_ns;
                        waiting += *bytes as u128;
                        let least = (*bytes as u64 * 8_000_000_000 / bits) + delay.saturating_sub(jitter);
                        prop_assert!(at_ns >= now + least);
                        // Everything that was accepted since the start can't have passed faster than the rate allows.
                        prop_assert!(u128::from(at_ns + jitter) >= waiting * 8_000_000_000 / u128::from(bits) + u128::from(delay));
                        expected.push(n);
                    }
                    Verdict::Lost => { prop_assert!(loss > 0.0); waiting += *bytes as u128; }
                    Verdict::NoRoom => {}
                }
            }
            while let Some((_, id)) = link.arrival(u64::MAX) { seen.push(id); }
            prop_assert_eq!(seen, expected);
            prop_assert_eq!(link.next_arrival_ns(), None);
        }
    }
}
