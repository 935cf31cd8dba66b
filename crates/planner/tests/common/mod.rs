//! A machine that replays a trace over a link in virtual time, and checks meanwhile what a planner must never do.

#![allow(dead_code)]

pub mod world;

use floe_planner::{
    Action, Config, Event, Link, Model, Planner, Progress, Timed, Urgency, ZeroTrace,
};
use floe_sched::{Class, MachineId, Purpose, Who};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

pub const SECOND: u64 = 1_000_000;
pub const MOBILE: Link = Link {
    bytes_per_s: 900e3,
    rtt_us: 120_000,
};
pub const TICK_US: u64 = 100_000;
/// The only machine of a run.
pub const ONE: Who = who(1);

/// Returns who a demand of machine `number` is from.
pub const fn who(number: u32) -> Who {
    Who {
        machine: MachineId(number),
        purpose: Purpose::Demand,
        class: Class::Normal,
    }
}

const WIRE_BYTES: f64 = 4096.0 / 2.8;

/// Pseudo-random numbers, the same in every run.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }
}

/// The link's bytes a second at a given time; zero means that it is down.
pub type Speed = Box<dyn Fn(u64) -> f64>;

pub fn steady(link: Link) -> Speed {
    Box::new(move |_| link.bytes_per_s)
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub touched: u64,
    pub misses: u64,
    /// Misses of chunks that had been asked for and were still on their way.
    pub late: u64,
    pub fetched: u64,
    pub stalled_us: u64,
    pub paused_us: u64,
    pub pauses: u64,
    pub launch_us: u64,
    pub end_us: u64,
    pub most_in_flight: u64,
    pub progress: Progress,
}

impl Outcome {
    pub fn wait_s(&self) -> f64 {
        (self.stalled_us + self.paused_us) as f64 / 1e6
    }

    pub fn fetch_ratio(&self) -> f64 {
        self.fetched as f64 / self.touched.max(1) as f64
    }

    pub fn miss_rate(&self) -> f64 {
        self.misses as f64 / self.touched.max(1) as f64
    }
}

pub type At = (u32, u64);

pub struct Wire {
    pub speed: Speed,
    pub rtt_us: u64,
    pub demands: VecDeque<(u64, At)>,
    pub prefetches: VecDeque<(u64, At)>,
    pub free_us: u64,
    pub arriving: BTreeSet<(u64, At)>,
}

impl Wire {
    /// Puts on the wire what can be sent until `now`; it arrives half a round trip later.
    pub fn advance(&mut self, now: u64) {
        while self.free_us <= now {
            let ready = |q: &VecDeque<(u64, At)>| q.front().map(|f| f.0);
            let starts = [ready(&self.demands), ready(&self.prefetches)];
            let Some(first) = starts.iter().flatten().min().copied() else {
                return;
            };
            let start = self.free_us.max(first);
            if start > now {
                return;
            }
            let speed = (self.speed)(start);
            if speed <= 0.0 {
                self.free_us = start + 10_000;
                continue;
            }
            let demand = ready(&self.demands).is_some_and(|r| r <= start);
            let queue = if demand {
                &mut self.demands
            } else {
                &mut self.prefetches
            };
            let Some((_, at)) = queue.pop_front() else {
                return;
            };
            self.free_us = start + (WIRE_BYTES / speed * 1e6) as u64;
            self.arriving.insert((self.free_us + self.rtt_us / 2, at));
        }
    }
}

impl Wire {
    /// Returns when the next chunk can be put on the wire.
    pub fn next_us(&self) -> Option<u64> {
        let ready = |q: &VecDeque<(u64, At)>| q.front().map(|f| f.0);
        let first = [ready(&self.demands), ready(&self.prefetches)];
        let first = first.into_iter().flatten().min()?;
        Some(first.max(self.free_us))
    }
}

/// A run of one machine.
pub struct Run {
    pub planner: Planner,
    pub config: Config,
    wire: Wire,
    regions: u32,
    zero: HashSet<At>,
    here: HashSet<At>,
    asked: HashSet<At>,
    /// Blocks in flight: the chunks that each fetch still waits for.
    fetches: HashMap<(u32, u64), Vec<(u64, u64)>>,
    out: Outcome,
    paused_since: Option<u64>,
    /// How many of the next fetches fail.
    pub failures: u64,
}

impl Run {
    pub fn new(config: Config, link: Link, speed: Speed, chunks: &[u64]) -> Self {
        let mut planner = Planner::new(config);
        planner.on_event(
            0,
            Event::LinkEstimate {
                link: 0,
                measured: link,
            },
        );
        for (region, chunks) in chunks.iter().enumerate() {
            let actions = planner.on_event(
                0,
                Event::RegionAdded {
                    region: region as u32,
                    link: 0,
                    image: 0,
                    chunks: *chunks,
                    segments: vec![],
                    urgency: Urgency::Memory,
                },
            );
            assert!(actions.is_empty());
        }
        Self {
            planner,
            config,
            wire: Wire {
                speed,
                rtt_us: link.rtt_us,
                demands: VecDeque::new(),
                prefetches: VecDeque::new(),
                free_us: 0,
                arriving: BTreeSet::new(),
            },
            regions: chunks.len() as u32,
            zero: HashSet::new(),
            here: HashSet::new(),
            asked: HashSet::new(),
            fetches: HashMap::new(),
            out: Outcome::default(),
            paused_since: None,
            failures: 0,
        }
    }

    pub fn zero_chunk(&mut self, chunk: u64) {
        self.zero.insert((0, chunk));
    }

    pub fn tell(&mut self, now: u64, event: Event) {
        let mut actions = VecDeque::from(self.planner.on_event(now, event));
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Look { region, block, who } => {
                    let candidates = self.candidates(region, block);
                    actions.extend(self.planner.on_event(
                        now,
                        Event::Candidates {
                            region,
                            block,
                            candidates,
                            who,
                        },
                    ));
                }
                Action::Fetch {
                    region,
                    block,
                    chunks,
                    ..
                } => self.fetch(now, region, block, chunks),
                Action::FetchSegments { .. } => panic!("there are no tables"),
                Action::Push { .. } => {}
                Action::Buffer { pause, .. } => self.buffer(now, pause),
            }
            let in_flight = self.planner.counters().in_flight;
            self.out.most_in_flight = self.out.most_in_flight.max(in_flight);
        }
    }

    fn buffer(&mut self, now: u64, pause: bool) {
        assert_ne!(pause, self.paused_since.is_some(), "said twice");
        if pause {
            self.paused_since = Some(now);
            self.out.pauses += 1;
        } else if let Some(since) = self.paused_since.take() {
            self.out.paused_us += now - since;
        }
    }

    fn candidates(&self, region: u32, block: u64) -> u64 {
        let worth = |i: &u64| {
            let at = (region, block * 64 + i);
            !self.zero.contains(&at) && !self.here.contains(&at)
        };
        (0..64).filter(worth).map(|i| 1u64 << i).sum()
    }

    fn fetch(&mut self, now: u64, region: u32, block: u64, chunks: u64) {
        if self.failures > 0 {
            self.failures -= 1;
            let ok = false;
            return self.tell(
                now,
                Event::Fetched {
                    region,
                    block,
                    chunks,
                    ok,
                    who: ONE,
                },
            );
        }
        for i in (0..64).filter(|i| chunks >> i & 1 == 1) {
            let at = (region, block * 64 + i);
            assert!(!self.zero.contains(&at), "a zero chunk was asked for");
            assert!(self.asked.insert(at), "asked for twice: {at:?}");
            self.wire
                .prefetches
                .push_back((now + self.wire.rtt_us / 2, at));
            self.out.fetched += 1;
        }
        self.fetches
            .entry((region, block))
            .or_default()
            .push((chunks, chunks));
    }

    fn arrive(&mut self, now: u64, at: At) {
        self.here.insert(at);
        let place = (at.0, at.1 / 64);
        let bit = 1 << (at.1 % 64);
        let mut done = None;
        if let Some(list) = self.fetches.get_mut(&place) {
            for fetch in list.iter_mut().filter(|f| f.1 & bit != 0) {
                fetch.1 &= !bit;
            }
            done = list.iter().find(|f| f.1 == 0).map(|f| f.0);
            list.retain(|f| f.1 != 0);
        }
        if let Some(chunks) = done {
            self.tell(
                now,
                Event::Fetched {
                    region: at.0,
                    block: place.1,
                    chunks,
                    ok: true,
                    who: ONE,
                },
            );
        }
    }

    /// Replays a trace with a model until the machine has made all accesses, or until `end_us`.
    pub fn replay(mut self, model: Option<Arc<Model>>, trace: &ZeroTrace, end_us: u64) -> Outcome {
        if let Some(model) = model {
            let started = Event::MachineStarted {
                who: ONE,
                image: 0,
                running: false,
            };
            self.tell(0, started);
            let regions = (0..self.regions).collect();
            self.tell(0, Event::Model { regions, model });
        }
        let mut accesses = trace.accesses.iter().copied().peekable();
        // The machine's own clock is `now - behind`.
        let (mut now, mut behind, mut tick, mut estimate) = (0u64, 0u64, 0u64, 0u64);
        let mut waiting: Option<(At, u64)> = None;
        let mut launched = false;
        while accesses.peek().is_some() && now < end_us {
            let running = self.paused_since.is_none() && waiting.is_none();
            if running && !std::mem::replace(&mut launched, true) {
                self.out.launch_us = now;
            }
            let touch = accesses.peek().filter(|_| running).map(|a| a.t_us + behind);
            self.wire.advance(now);
            let arrival = self.wire.arriving.first().map(|a| a.0);
            let wire = self.wire.next_us().map(|t| t.max(now + 1));
            let next = [touch, arrival, wire, Some(tick)];
            let next = next.into_iter().flatten().min().unwrap_or(tick).max(now);
            if !running {
                behind += next - now;
            }
            if waiting.is_some() && self.paused_since.is_none() {
                self.out.stalled_us += next - now;
            }
            now = next;
            self.wire.advance(now);
            if let Some((when, at)) = self.wire.arriving.first().copied()
                && when <= now
            {
                self.wire.arriving.pop_first();
                self.arrive(now, at);
                if waiting.is_some_and(|(w, _)| w == at) {
                    waiting = None;
                }
            } else if let Some(access) = accesses.peek().copied()
                && running
                && access.t_us + behind <= now
            {
                accesses.next();
                waiting = self.touch(now, access);
            } else if tick <= now {
                tick = now + TICK_US;
                if now >= estimate {
                    estimate = now + SECOND;
                    let bytes_per_s = (self.wire.speed)(now);
                    let rtt_us = self.wire.rtt_us;
                    if bytes_per_s > 0.0 {
                        self.tell(
                            now,
                            Event::LinkEstimate {
                                link: 0,
                                measured: Link {
                                    bytes_per_s,
                                    rtt_us,
                                },
                            },
                        );
                    }
                }
                self.tell(now, Event::Tick);
            }
        }
        self.out.end_us = now;
        self.out.progress = self.planner.progress(ONE.machine).unwrap_or_default();
        if let Some(since) = self.paused_since {
            self.out.paused_us += now - since;
        }
        self.out
    }

    fn touch(&mut self, now: u64, access: Timed) -> Option<(At, u64)> {
        let at = (u32::from(access.region), u64::from(access.chunk));
        let (region, chunk) = at;
        self.out.touched += 1;
        if self.here.contains(&at) {
            self.tell(
                now,
                Event::Hit {
                    region,
                    chunk,
                    who: ONE,
                },
            );
            return None;
        }
        self.out.misses += 1;
        self.out.late += u64::from(self.asked.contains(&at));
        if self.asked.insert(at) {
            self.wire
                .demands
                .push_back((now + self.wire.rtt_us / 2, at));
            self.out.fetched += 1;
        } else if let Some(i) = self.wire.prefetches.iter().position(|p| p.1 == at) {
            // It was asked for already: the fetcher turns it into a demand.
            if let Some((_, at)) = self.wire.prefetches.remove(i) {
                self.wire
                    .demands
                    .push_back((now + self.wire.rtt_us / 2, at));
            }
        }
        let candidates = self.candidates(region, chunk / 64) & !(1 << (chunk % 64));
        self.tell(
            now,
            Event::Miss {
                region,
                chunk,
                candidates,
                who: ONE,
            },
        );
        Some((at, now))
    }
}

/// Makes a trace of accesses to region 0, given as (chunk, microseconds).
pub fn trace(accesses: &[(u32, u64)]) -> ZeroTrace {
    let mut first: BTreeMap<u32, u64> = BTreeMap::new();
    for (chunk, t) in accesses {
        let known = first.entry(*chunk).or_insert(*t);
        *known = (*known).min(*t);
    }
    let mut accesses: Vec<Timed> = first
        .into_iter()
        .map(|(chunk, t_us)| Timed {
            t_us,
            region: 0,
            chunk,
        })
        .collect();
    accesses.sort();
    ZeroTrace {
        end_us: accesses.last().map_or(0, |a| a.t_us),
        accesses,
    }
}

/// A made-up workload: a start that all runs share, then activities in an order that differs from run to run. Each activity is
/// a burst of its own chunks, most of which a run touches, and some chunks that no two runs share.
pub struct Workload {
    pub activities: u64,
    pub per_run: u64,
    /// Chunks of an activity.
    pub size: u64,
    pub start: u64,
    /// Percentage of the chunks that a run leaves out, and of those that only this run has.
    pub noise: u64,
    /// Whether all runs do the same in the same order.
    pub fixed: bool,
}

pub const GAME: Workload = Workload {
    activities: 24,
    per_run: 10,
    size: 700,
    start: 4000,
    noise: 3,
    fixed: false,
};

pub const COMPILE: Workload = Workload {
    activities: 12,
    per_run: 12,
    size: 800,
    start: 2000,
    noise: 1,
    fixed: true,
};

/// Small enough to be run many times.
pub const SMALL: Workload = Workload {
    activities: 6,
    per_run: 4,
    size: 300,
    start: 600,
    noise: 3,
    fixed: false,
};

pub const SPACE: u64 = 1 << 20;

impl Workload {
    pub fn run(&self, seed: u64) -> ZeroTrace {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        (0..20).for_each(|_| {
            random.below(2);
        });
        let mut out = Vec::new();
        let mut t = 0;
        self.burst(&mut random, 0, self.start, &mut t, &mut out);
        for i in 0..self.per_run {
            t += 2 * SECOND + random.below(8 * SECOND);
            let activity = if self.fixed {
                i
            } else {
                random.below(self.activities)
            };
            let first = self.start * 2 + activity * self.size * 3;
            self.burst(&mut random, first, self.size, &mut t, &mut out);
        }
        trace(&out)
    }

    fn burst(
        &self,
        random: &mut Random,
        first: u64,
        n: u64,
        t: &mut u64,
        out: &mut Vec<(u32, u64)>,
    ) {
        for i in 0..n {
            *t += random.below(2000) + if random.below(200) == 0 { 200_000 } else { 0 };
            if random.below(100) >= self.noise {
                // Runs of 8 chunks, as in files and heaps.
                out.push(((first + i / 8 * 16 + i % 8) as u32, *t));
            }
            if random.below(100) < self.noise {
                out.push(((SPACE / 2 + random.below(SPACE / 2)) as u32, *t));
            }
        }
    }

    pub fn runs(&self, n: u64) -> Vec<ZeroTrace> {
        (1..=n).map(|seed| self.run(seed)).collect()
    }
}
