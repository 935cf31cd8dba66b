//! Simulates what is requested and has not arrived yet: demand, prefetch, and the wire that they share.
//!
//! The rules are those of the live fetcher. A demand is sent at once; what is demanded together is asked for at the same time, and its
//! answers share the link, so that they count as one. A prefetch waits in a queue; the size and number of
//! the requests made from it are what [`floe_source::budget`] determines for the measured link. A demand for a queued
//! item is sent separately; a demand for an item that is on its way joins it. The live [`LinkMeter`] measures the link.
//! The wire serves demand before prefetch, packet by packet.
use super::wire::{LinkSpec, Wire};
use floe_image::{CHUNK_SIZE, Kind};
use floe_planner::RegionId;
use floe_source::{Answer, FetchOptions, LinkEstimate, LinkMeter, budget};
use floe_testbed::link::MTU;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Most items in one prefetch request, as in the live fetcher.
const PREFETCH_ITEMS_MAX: usize = 1024;

/// An item that is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// What must arrive before a machine can start: manifest, device state, model.
    Preamble,
    /// A segment table.
    Table(RegionId, u32),
    /// A chunk.
    Chunk(RegionId, u64),
}

impl Item {
    fn raw_bytes(self) -> u64 {
        match self {
            Item::Preamble => 0,
            Item::Table(..) => Kind::Segment.raw_size() as u64,
            Item::Chunk(..) => CHUNK_SIZE as u64,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    Flying,
}

/// What happened with a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demanded {
    /// A request for it was sent.
    Sent,
    /// It is already on its way.
    Joined,
}

/// An answer that is on its way.
#[derive(Debug)]
struct Flight {
    /// Earliest time at which its first byte can arrive.
    eligible_ns: u64,
    /// Items with their bytes that haven't passed yet.
    items: VecDeque<(Item, usize)>,
    meter: Answer,
    begun: bool,
}

/// A packet that is passing.
#[derive(Clone, Copy, Debug)]
struct Passing {
    demand: bool,
    bytes: usize,
    end_ns: u64,
}

/// Bytes by their purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes of all items, on the wire.
    pub wire_bytes: u64,
    /// Bytes of segment tables, on the wire.
    pub table_bytes: u64,
    /// Number of chunks that arrived.
    pub chunks: u64,
}

/// The downloads of one machine.
#[derive(Debug)]
pub struct Download {
    wire: Wire,
    rtt_ns: u64,
    meter: LinkMeter,
    zero: Instant,
    options: FetchOptions,
    demand: VecDeque<Flight>,
    prefetch: VecDeque<Flight>,
    queued: VecDeque<(Item, usize)>,
    states: HashMap<Item, State>,
    in_flight_raw: u64,
    arrived_raw: u64,
    passing: Option<Passing>,
    carried: Carried,
}

impl Download {
    /// Makes a download over an idle link.
    pub fn new(link: &LinkSpec) -> Download {
        Download {
            wire: Wire::new(link.rate.clone()),
            rtt_ns: link.rtt_ns,
            meter: LinkMeter::default(),
            // Only differences to this are used.
            zero: Instant::now(),
            options: FetchOptions::default(),
            demand: VecDeque::new(),
            prefetch: VecDeque::new(),
            queued: VecDeque::new(),
            states: HashMap::new(),
            in_flight_raw: 0,
            arrived_raw: 0,
            passing: None,
            carried: Carried::default(),
        }
    }

    fn instant(&self, ns: u64) -> Instant {
        self.zero + Duration::from_nanos(ns)
    }

    /// Requests `item`, of `bytes` on the wire, because the machine waits for it.
    pub fn demand(&mut self, now_ns: u64, item: Item, bytes: usize) -> Demanded {
        self.demand_all(now_ns, &[(item, bytes)])[0]
    }

    /// Requests all that the machine waits for: items with their bytes on the wire, each once. Returns what happened with each.
    pub fn demand_all(&mut self, now_ns: u64, items: &[(Item, usize)]) -> Vec<Demanded> {
        let mut demanded = Vec::with_capacity(items.len());
        let mut sent = VecDeque::new();
        for (item, bytes) in items.iter().copied() {
            let before = self.states.insert(item, State::Flying);
            if before == Some(State::Flying) {
                demanded.push(Demanded::Joined);
                continue;
            }
            if before == Some(State::Queued) {
                self.queued.retain(|(queued, _)| *queued != item);
            }
            sent.push_back((item, bytes));
            demanded.push(Demanded::Sent);
        }
        if !sent.is_empty() {
            let flight = self.flight(now_ns, sent);
            self.demand.push_back(flight);
            self.serve(now_ns);
        }
        demanded
    }

    /// Queues `item` to be fetched ahead of need.
    pub fn prefetch(&mut self, item: Item, bytes: usize) {
        self.states.entry(item).or_insert_with(|| {
            self.queued.push_back((item, bytes));
            State::Queued
        });
    }

    /// Makes requests from the queue, as many as the link permits. Must be called after [`Download::prefetch`].
    pub fn send(&mut self, now_ns: u64) {
        while !self.queued.is_empty() && self.prefetch.len() < self.options.prefetch_threads {
            let link = self.link(now_ns);
            let known = self.arrived_raw > 0 && link.wire_bytes > 0;
            let ratio = link.wire_bytes as f64 / self.arrived_raw.max(1) as f64;
            let ratio = if known { ratio } else { 1.0 };
            let budget = budget(&link, ratio, self.options.prefetch_bytes_max);
            let room = budget.in_flight.saturating_sub(self.in_flight_raw);
            if self.in_flight_raw > 0 && room < budget.batch.min(budget.in_flight) {
                break;
            }
            let (mut items, mut raw) = (VecDeque::new(), 0);
            while let Some((item, bytes)) = self.queued.front().copied() {
                let full = raw + item.raw_bytes() > budget.batch;
                if !items.is_empty() && (full || items.len() == PREFETCH_ITEMS_MAX) {
                    break;
                }
                self.queued.pop_front();
                self.states.insert(item, State::Flying);
                raw += item.raw_bytes();
                items.push_back((item, bytes));
            }
            self.in_flight_raw += raw;
            let flight = self.flight(now_ns, items);
            self.prefetch.push_back(flight);
        }
        self.serve(now_ns);
    }

    fn flight(&self, now_ns: u64, items: VecDeque<(Item, usize)>) -> Flight {
        Flight {
            eligible_ns: now_ns + self.rtt_ns,
            items,
            meter: self.meter.request(self.instant(now_ns)),
            begun: false,
        }
    }

    /// Returns when [`Download::advance`] will next have something to do.
    pub fn next_ns(&self) -> Option<u64> {
        let heads = [self.demand.front(), self.prefetch.front()];
        match self.passing {
            Some(passing) => Some(passing.end_ns),
            None => heads.into_iter().flatten().map(|f| f.eligible_ns).min(),
        }
    }

    /// Advances to `now_ns`. Returns an item that is complete by then, if there is one.
    pub fn advance(&mut self, now_ns: u64) -> Option<Item> {
        let arrived = match self.passing {
            Some(passing) if passing.end_ns <= now_ns => {
                self.passing = None;
                self.passed(passing)
            }
            _ => None,
        };
        if arrived.is_some() {
            self.send(now_ns);
        }
        self.serve(now_ns);
        arrived
    }

    fn passed(&mut self, passing: Passing) -> Option<Item> {
        let now = self.instant(passing.end_ns);
        let flights = if passing.demand {
            &mut self.demand
        } else {
            &mut self.prefetch
        };
        let flight = flights.front_mut()?;
        self.meter.received(&mut flight.meter, passing.bytes, now);
        let (item, left) = flight.items.front_mut()?;
        *left -= passing.bytes;
        self.carried.wire_bytes += passing.bytes as u64;
        if let Item::Table(..) = item {
            self.carried.table_bytes += passing.bytes as u64;
        }
        if *left > 0 {
            return None;
        }
        let item = *item;
        flight.items.pop_front();
        if flight.items.is_empty() {
            self.meter.ended(flight.meter, now);
            flights.pop_front();
        }
        if !passing.demand {
            self.in_flight_raw -= item.raw_bytes();
        }
        self.arrived_raw += item.raw_bytes();
        self.carried.chunks += u64::from(matches!(item, Item::Chunk(..)));
        self.states.remove(&item);
        Some(item)
    }

    /// Puts the next packet on the wire.
    fn serve(&mut self, now_ns: u64) {
        if self.passing.is_some() {
            return;
        }
        let ready = |f: &&mut Flight| f.eligible_ns <= now_ns;
        let zero = self.zero;
        let (demand, flight) = match self.demand.front_mut().filter(ready) {
            Some(flight) => (true, flight),
            None => match self.prefetch.front_mut().filter(ready) {
                Some(flight) => (false, flight),
                None => return,
            },
        };
        let Some((_, left)) = flight.items.front() else {
            return;
        };
        let bytes = (*left).min(MTU);
        let passed = self.wire.carry(now_ns, bytes);
        if !std::mem::replace(&mut flight.begun, true) {
            let first = zero + Duration::from_nanos(passed.first_ns);
            self.meter.received(&mut flight.meter, 0, first);
        }
        self.passing = Some(Passing {
            demand,
            bytes,
            end_ns: passed.last_ns,
        });
    }

    /// Returns the current estimate of the link.
    pub fn link(&self, now_ns: u64) -> LinkEstimate {
        self.meter.estimate(self.instant(now_ns))
    }

    /// Returns what has arrived.
    pub fn carried(&self) -> Carried {
        self.carried
    }

    /// Returns the number of chunks that are on their way, whose bytes are already spent.
    pub fn chunks_flying(&self) -> u64 {
        let flights = self.demand.iter().chain(&self.prefetch);
        let items = flights.flat_map(|f| &f.items);
        items.filter(|(i, _)| matches!(i, Item::Chunk(..))).count() as u64
    }

    /// Returns whether nothing is requested.
    pub fn is_idle(&self) -> bool {
        self.states.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_testbed::link::Rate;

    /// Makes a link of 8 Mbit/s, on which a byte takes a microsecond.
    fn link() -> LinkSpec {
        LinkSpec {
            name: "test".into(),
            rate: Rate::BitsPerSecond(8_000_000),
            rtt_ns: 100_000_000,
        }
    }

    fn arrivals(download: &mut Download) -> Vec<(u64, Item)> {
        let mut all = Vec::new();
        while let Some(at) = download.next_ns() {
            all.extend(download.advance(at).map(|item| (at, item)));
        }
        all
    }

    #[test]
    fn a_demand_takes_the_round_trip_and_its_bytes() {
        let mut download = Download::new(&link());
        let sent = download.demand(7_000_000, Item::Chunk(0, 1), 2000);
        assert_eq!(sent, Demanded::Sent);
        assert_eq!(arrivals(&mut download), [(109_000_000, Item::Chunk(0, 1))]);
        let seen = download.link(200_000_000);
        assert_eq!(seen.rtt_us, Some(100_000));
        assert_eq!(download.carried().wire_bytes, 2000);
        assert!(download.is_idle());
    }

    #[test]
    fn demand_overtakes_prefetch_at_the_next_packet() {
        let mut download = Download::new(&link());
        for chunk in 0..10 {
            download.prefetch(Item::Chunk(0, chunk), 3000);
        }
        download.send(0);
        assert_eq!(
            download.demand(1_000_000, Item::Chunk(1, 0), 1000),
            Demanded::Sent
        );
        let order = arrivals(&mut download);
        // It can arrive from 101 ms on, while the first packet of 1500 bytes is passing; then the prefetch continues.
        assert_eq!(order[0], (102_500_000, Item::Chunk(1, 0)));
        assert_eq!(order[1], (104_000_000, Item::Chunk(0, 0)));
        assert_eq!(order.len(), 11);
    }

    #[test]
    fn a_demand_for_what_is_on_its_way_joins_it_and_for_what_waits_is_sent() {
        let mut download = Download::new(&link());
        // Without an estimate, a request has 64 KiB, and at most three requests have 256 KiB in all.
        for chunk in 0..100 {
            download.prefetch(Item::Chunk(0, chunk), 1000);
        }
        download.send(0);
        assert_eq!(
            download.demand(0, Item::Chunk(0, 0), 1000),
            Demanded::Joined
        );
        assert_eq!(download.demand(0, Item::Chunk(0, 99), 1000), Demanded::Sent);
        let order = arrivals(&mut download);
        assert_eq!(order[0].1, Item::Chunk(0, 99));
        assert_eq!(order.len(), 100, "nothing twice");
    }

    #[test]
    fn what_is_demanded_together_shares_a_round_trip_and_measures_the_link() {
        let mut download = Download::new(&link());
        download.prefetch(Item::Chunk(0, 5), 2000);
        download.send(0);
        download.prefetch(Item::Chunk(0, 7), 2000);
        let items: Vec<(Item, usize)> = (0..100).map(|c| (Item::Chunk(0, c), 2000)).collect();
        let demanded = download.demand_all(0, &items);
        let joined = demanded.iter().filter(|d| **d == Demanded::Joined).count();
        assert_eq!((demanded.len(), joined), (100, 1));
        let order = arrivals(&mut download);
        assert_eq!(order.len(), 100, "nothing twice");
        assert_eq!(order[0], (102_000_000, Item::Chunk(0, 0)));
        assert_eq!(order[99].0, 300_000_000);
        let seen = download.link(300_000_000);
        assert_eq!(seen.rtt_us, Some(100_000));
        let rate = seen.bytes_per_s.unwrap();
        assert!((980_000..=1_050_000).contains(&rate), "{rate}");
        assert!(download.is_idle());
    }

    #[test]
    fn a_long_prefetch_measures_the_link() {
        let mut download = Download::new(&link());
        for chunk in 0..2000 {
            download.prefetch(Item::Chunk(0, chunk), 2000);
        }
        download.send(0);
        let end = arrivals(&mut download).last().unwrap().0;
        let rate = download.link(end).bytes_per_s.unwrap();
        assert!((980_000..=1_050_000).contains(&rate), "{rate}");
        // 4 MB in 4 s, with few gaps: enough is in flight to keep the link busy.
        assert!(end < 4_800_000_000, "{end}");
    }
}
