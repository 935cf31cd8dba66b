//! Tests the promises of links: images on one link share it, and those on another don't notice.

mod common;

use common::*;
use floe_image::Hash;
use floe_planner::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

const POLICIES: [Policy; 3] = [Policy::VmTorrent, Policy::VTube, Policy::Floe];

fn learn(policy: Policy, traces: &[ZeroTrace]) -> Arc<Model> {
    let method = policy.method().unwrap();
    let options = TrainOptions::default();
    Arc::new(train(method, &Hash::of(b"image"), traces, &options))
}

fn config(policy: Policy) -> Config {
    Config {
        policy,
        ..Config::default()
    }
}

fn wire(link: Link) -> Wire {
    Wire {
        speed: steady(link),
        rtt_us: link.rtt_us,
        demands: VecDeque::new(),
        prefetches: VecDeque::new(),
        free_us: 0,
        arriving: BTreeSet::new(),
    }
}

/// A machine with an image of one region, which has the machine's number.
struct Machine {
    link: usize,
    /// When it starts.
    start_us: u64,
    model: Option<Arc<Model>>,
    accesses: VecDeque<Timed>,
    /// How far its own clock is behind, since it started.
    behind_us: Option<u64>,
    waiting: Option<At>,
    paused: bool,
    pauses: u64,
    waited_us: u64,
    /// Chunks that were fetched ahead for it and have arrived.
    came: u64,
}

impl Machine {
    fn new(link: usize, start_us: u64, model: Arc<Model>, trace: &ZeroTrace) -> Machine {
        Machine {
            link,
            start_us,
            model: Some(model),
            accesses: trace.accesses.iter().copied().collect(),
            behind_us: None,
            waiting: None,
            paused: false,
            pauses: 0,
            waited_us: 0,
            came: 0,
        }
    }

    fn runs(&self) -> bool {
        self.behind_us.is_some() && self.waiting.is_none() && !self.paused
    }

    fn next_us(&self) -> Option<u64> {
        match self.behind_us {
            None => Some(self.start_us),
            Some(behind) if self.runs() => Some(self.accesses.front()?.t_us + behind),
            Some(_) => None,
        }
    }
}

/// Machines, their links and one planner, in virtual time.
struct World {
    now: u64,
    planner: Planner,
    links: Vec<Link>,
    wires: Vec<Wire>,
    machines: Vec<Machine>,
    here: HashSet<At>,
    asked: HashSet<At>,
    fetches: HashMap<(u32, u64), Vec<(u64, u64)>>,
}

impl World {
    fn new(config: Config, links: &[Link], machines: Vec<Machine>) -> World {
        let mut world = World {
            now: 0,
            planner: Planner::new(config),
            links: links.to_vec(),
            wires: links.iter().map(|link| wire(*link)).collect(),
            machines,
            here: HashSet::new(),
            asked: HashSet::new(),
            fetches: HashMap::new(),
        };
        world.measure();
        for number in 0..world.machines.len() {
            world.tell(Event::RegionAdded {
                region: number as u32,
                link: world.machines[number].link as LinkId,
                image: number as ImageId,
                chunks: SPACE,
                segments: vec![],
                urgency: Urgency::Memory,
            });
        }
        world.measure();
        world
    }

    fn measure(&mut self) {
        for (link, measured) in self.links.clone().into_iter().enumerate() {
            let link = link as LinkId;
            self.tell(Event::LinkEstimate { link, measured });
        }
    }

    fn candidates(&self, region: u32, block: u64) -> u64 {
        let worth = |i: &u64| !self.here.contains(&(region, block * 64 + i));
        (0..64).filter(worth).map(|i| 1u64 << i).sum()
    }

    fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.planner.on_event(self.now, event) {
                match action {
                    Action::Look { region, block } => events.push_back(Event::Candidates {
                        region,
                        block,
                        candidates: self.candidates(region, block),
                    }),
                    Action::Fetch {
                        region,
                        block,
                        chunks,
                    } => self.fetch(region, block, chunks),
                    Action::Buffer { region, pause, .. } => {
                        let machine = &mut self.machines[region as usize];
                        assert_ne!(machine.paused, pause, "said twice");
                        machine.paused = pause;
                        machine.pauses += u64::from(pause);
                    }
                    Action::FetchSegments { .. } => panic!("there are no tables"),
                    Action::Push { .. } => {}
                }
            }
            for link in 0..self.links.len() as LinkId {
                let known = self.planner.link_use(link);
                let LinkUse { in_flight, room } = known.unwrap_or_default();
                assert!(
                    in_flight <= room,
                    "{in_flight} in flight on link {link}, of {room}"
                );
            }
        }
    }

    fn fetch(&mut self, region: u32, block: u64, chunks: u64) {
        let wire = &mut self.wires[self.machines[region as usize].link];
        for i in (0..64).filter(|i| chunks >> i & 1 == 1) {
            let at = (region, block * 64 + i);
            assert!(self.asked.insert(at), "asked for twice: {at:?}");
            wire.prefetches.push_back((self.now + wire.rtt_us / 2, at));
        }
        let of_block = self.fetches.entry((region, block)).or_default();
        of_block.push((chunks, chunks));
    }

    fn arrive(&mut self, at: At) {
        self.here.insert(at);
        let (region, block, bit) = (at.0, at.1 / 64, 1u64 << (at.1 % 64));
        let machine = &mut self.machines[region as usize];
        if machine.waiting == Some(at) {
            machine.waiting = None;
        }
        let mut done = None;
        if let Some(list) = self.fetches.get_mut(&(region, block)) {
            for fetch in list.iter_mut().filter(|f| f.1 & bit != 0) {
                fetch.1 &= !bit;
                machine.came += 1;
            }
            done = list.iter().find(|f| f.1 == 0).map(|f| f.0);
            list.retain(|f| f.1 != 0);
        }
        if let Some(chunks) = done {
            self.tell(Event::Fetched {
                region,
                block,
                chunks,
                ok: true,
            });
        }
    }

    /// Starts a machine, or lets it touch its next chunk.
    fn go_on(&mut self, number: usize) {
        let region = number as u32;
        let machine = &mut self.machines[number];
        if machine.behind_us.is_none() {
            machine.behind_us = Some(self.now);
            if let Some(model) = machine.model.take() {
                let regions = vec![region];
                self.tell(Event::Model { regions, model });
            }
            return;
        }
        let Some(access) = machine.accesses.pop_front() else {
            return;
        };
        let chunk = u64::from(access.chunk);
        let at = (region, chunk);
        if self.here.contains(&at) {
            return self.tell(Event::Hit { region, chunk });
        }
        machine.waiting = Some(at);
        let wire = &mut self.wires[machine.link];
        let ready = self.now + wire.rtt_us / 2;
        if self.asked.insert(at) {
            wire.demands.push_back((ready, at));
        } else if let Some(i) = wire.prefetches.iter().position(|p| p.1 == at) {
            wire.prefetches.remove(i);
            wire.demands.push_back((ready, at));
        }
        let candidates = self.candidates(region, chunk / 64) & !(1 << (chunk % 64));
        self.tell(Event::Miss {
            region,
            chunk,
            candidates,
        });
    }

    /// Runs until all machines have made all accesses, or until `end_us`.
    fn run(&mut self, end_us: u64) {
        let (mut tick, mut measure) = (self.now, self.now + SECOND);
        while self.now < end_us && self.machines.iter().any(|m| !m.accesses.is_empty()) {
            self.wires.iter_mut().for_each(|w| w.advance(self.now));
            let arrivals = self
                .wires
                .iter()
                .filter_map(|w| Some(w.arriving.first()?.0));
            let sends = self
                .wires
                .iter()
                .filter_map(|w| Some(w.next_us()?.max(self.now + 1)));
            let touches = self.machines.iter().filter_map(Machine::next_us);
            let next = arrivals.chain(sends).chain(touches).chain([tick]).min();
            let next = next.unwrap_or(tick).max(self.now);
            for machine in self.machines.iter_mut().filter(|m| !m.accesses.is_empty()) {
                if let Some(behind) = &mut machine.behind_us
                    && (machine.waiting.is_some() || machine.paused)
                {
                    *behind += next - self.now;
                    machine.waited_us += next - self.now;
                }
            }
            self.now = next;
            self.wires.iter_mut().for_each(|w| w.advance(self.now));
            while let Some(wire) = self
                .wires
                .iter_mut()
                .find(|w| w.arriving.first().is_some_and(|a| a.0 <= self.now))
                && let Some((_, at)) = wire.arriving.pop_first()
            {
                self.arrive(at);
            }
            for number in 0..self.machines.len() {
                if self.machines[number]
                    .next_us()
                    .is_some_and(|at| at <= self.now)
                {
                    self.go_on(number);
                }
            }
            if tick <= self.now {
                tick = self.now + TICK_US;
                self.tell(Event::Tick);
            }
            if measure <= self.now {
                measure = self.now + SECOND;
                self.measure();
            }
        }
    }
}

/// Returns how long a machine waits that has a link for itself.
fn waited_alone_us(policy: Policy, link: Link, model: &Arc<Model>, trace: &ZeroTrace) -> u64 {
    let machine = Machine::new(0, 0, model.clone(), trace);
    let mut world = World::new(config(policy), &[link], vec![machine]);
    world.run(u64::MAX);
    world.machines[0].waited_us
}

fn half(link: Link) -> Link {
    Link {
        bytes_per_s: link.bytes_per_s / 2.0,
        ..link
    }
}

#[test]
fn two_machines_that_start_together_wait_as_if_each_had_half_the_link() {
    for policy in [Policy::VTube, Policy::Floe] {
        let traces = COMPILE.runs(4);
        let (model, trace) = (learn(policy, &traces[1..]), &traces[0]);
        let alone = waited_alone_us(policy, half(MOBILE), &model, trace);
        let machines = [0, 20_000].map(|at| Machine::new(0, at, model.clone(), trace));
        let mut world = World::new(config(policy), &[MOBILE], machines.into());
        world.run(u64::MAX);
        for machine in &world.machines {
            let ratio = machine.waited_us as f64 / alone as f64;
            println!("{policy:?}: {ratio:.2}");
            assert!(
                ratio <= 1.1,
                "{policy:?}: {ratio:.2} of the waiting over half the link"
            );
        }
    }
}

#[test]
fn a_machine_over_another_link_does_not_notice() {
    let fast = Link {
        bytes_per_s: 6.25e6,
        rtt_us: 40_000,
    };
    let traces = COMPILE.runs(4);
    let (model, trace) = (learn(Policy::Floe, &traces[1..]), &traces[0]);
    let machines = [0, 1].map(|link| Machine::new(link, 0, model.clone(), trace));
    let mut world = World::new(config(Policy::Floe), &[MOBILE, fast], machines.into());
    world.run(u64::MAX);
    for (machine, link) in world.machines.iter().zip([MOBILE, fast]) {
        let alone = waited_alone_us(Policy::Floe, link, &model, trace);
        let ratio = machine.waited_us as f64 / alone.max(1) as f64;
        println!("{link:?}: {ratio:.3}");
        assert!((0.99..=1.01).contains(&ratio), "{link:?}: {ratio:.3}");
    }
}

#[test]
fn a_second_machine_buffers_at_its_start_like_the_first() {
    let traces = COMPILE.runs(4);
    let (model, trace) = (learn(Policy::Floe, &traces[1..]), &traces[0]);
    // The first has touched thousands of chunks when the second starts.
    let machines = [0, 60 * SECOND].map(|at| Machine::new(0, at, model.clone(), trace));
    let mut world = World::new(config(Policy::Floe), &[MOBILE], machines.into());
    world.run(60 * SECOND);
    let first = world.machines[0].accesses.len();
    assert!(
        first + 1000 < trace.accesses.len(),
        "the first has not got far"
    );
    world.run(60 * SECOND + 50_000);
    assert!(
        world.machines[1].paused,
        "the second is paused before its first miss"
    );
    assert_eq!(world.machines[1].accesses.len(), trace.accesses.len());
}

#[test]
fn who_comes_later_gets_an_even_part_at_once() {
    // Plans without end: each takes what it gets.
    let long: Vec<(u32, u64)> = (0..40_000).map(|i| (i, u64::from(i))).collect();
    let long = trace(&long);
    let model = learn(Policy::VmTorrent, std::slice::from_ref(&long));
    let idle = ZeroTrace {
        end_us: 3600 * SECOND,
        accesses: vec![Timed {
            t_us: 3600 * SECOND,
            region: 0,
            chunk: 0,
        }],
    };
    let starts = [0, 5, 10].map(|s| s * SECOND);
    let machines = starts.map(|at| Machine::new(0, at, model.clone(), &idle));
    let mut world = World::new(config(Policy::VmTorrent), &[MOBILE], machines.into());
    for (end, users) in [(5, 1), (10, 2), (15, 3)] {
        // Skips a round trip for what is in flight.
        world.run((end - 5) * SECOND + 500_000);
        let before: Vec<u64> = world.machines.iter().map(|m| m.came).collect();
        world.run(end * SECOND);
        let came: Vec<u64> = world
            .machines
            .iter()
            .zip(&before)
            .map(|(m, b)| m.came - b)
            .collect();
        let all: u64 = came.iter().sum();
        println!("{came:?}");
        for one in &came[..users] {
            let share = *one as f64 * users as f64 / all as f64;
            assert!((0.9..=1.1).contains(&share), "{came:?} with {users}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever machines start at whatever time over whatever links: each gets to its end, no link carries more than it has
    /// room for (the driver checks after every event), and no machine waits much longer than over an even share of its link.
    #[test]
    fn no_stream_starves_and_no_link_is_overfull(
        policy in 0usize..3,
        speeds in proptest::collection::vec((300e3f64..8e6, 5_000u64..200_000), 1..4),
        machines in proptest::collection::vec((0usize..3, 0u64..20 * SECOND, 1u64..6), 1..6),
    ) {
        let policy = POLICIES[policy];
        let links: Vec<Link> = speeds.iter().map(|(bytes_per_s, rtt_us)| Link { bytes_per_s: *bytes_per_s, rtt_us: *rtt_us }).collect();
        let traces = SMALL.runs(6);
        let on = |link: usize| link % links.len();
        let made: Vec<_> = machines.iter().map(|(link, start, seed)| {
            let mut others = traces.clone();
            let own = others.remove(*seed as usize);
            (on(*link), *start, learn(policy, &others), own)
        }).collect();
        let together = made.iter().map(|(link, start, model, own)| Machine::new(*link, *start, model.clone(), own));
        let mut world = World::new(config(policy), &links, together.collect());
        world.run(3600 * SECOND);
        for ((link, _, model, own), machine) in made.iter().zip(&world.machines) {
            prop_assert!(machine.accesses.is_empty(), "a machine did not get to its end");
            let users = made.iter().filter(|m| m.0 == *link).count() as f64;
            let part = Link { bytes_per_s: links[*link].bytes_per_s / users, ..links[*link] };
            let alone = waited_alone_us(policy, part, model, own) as f64;
            let waited = machine.waited_us as f64;
            prop_assert!(waited <= 1.3 * alone + 2e6, "{policy:?}: {waited} us, alone over a part {alone} us");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Events in any order, with links that come, go and report wrong figures: the planner never panics, what it counts as in
    /// flight is what was asked for and hasn't ended, and what a removed region had in flight doesn't take room for ever.
    #[test]
    fn no_order_of_events_on_several_links_loses_count(
        events in proptest::collection::vec((0u8..9, 0u32..4, 0u64..700, any::<u64>(), 0u64..SECOND), 0..150),
    ) {
        let traces = [trace(&(0..600).map(|i| (i, u64::from(i) * 1000)).collect::<Vec<_>>())];
        let model = learn(Policy::Floe, &traces);
        let mut planner = Planner::new(config(Policy::Floe));
        let mut fetches: Vec<(u32, u64, u64)> = Vec::new();
        let mut now = 0;
        for (kind, region, chunk, bits, after) in events {
            now += after;
            let link = LinkId::from(region / 2);
            let inside = |block: u64| (0..700u64.saturating_sub(block * 64).min(64)).fold(0, |all, i| all | bits & 1 << i);
            let mut queue = VecDeque::from([match kind {
                0 => Event::RegionAdded { region, link, image: region, chunks: 700, segments: vec![0], urgency: Urgency::Memory },
                1 => Event::RegionRemoved { region },
                2 => Event::LinkEstimate { link, measured: Link { bytes_per_s: bits as f64 / 1e12, rtt_us: after } },
                3 => Event::Miss { region, chunk, candidates: inside(chunk / 64) },
                4 => Event::Hit { region, chunk },
                5 => Event::SegmentLoaded { region, segment: 0, ok: bits & 3 != 0 },
                6 => Event::Model { regions: vec![region], model: model.clone() },
                7 => Event::Expect { region, chunks: (0..chunk).collect() },
                _ => match fetches.pop() {
                    Some((region, block, chunks)) => Event::Fetched { region, block, chunks, ok: bits & 1 == 0 },
                    None => Event::Tick,
                },
            }]);
            while let Some(event) = queue.pop_front() {
                for action in planner.on_event(now, event) {
                    match action {
                        Action::Fetch { region, block, chunks } => fetches.push((region, block, chunks)),
                        Action::Look { region, block } => queue.push_back(Event::Candidates { region, block, candidates: inside(block) }),
                        _ => {}
                    }
                }
            }
        }
        for region in 0..4 {
            for action in planner.on_event(now, Event::RegionRemoved { region }) {
                if let Action::Fetch { region, block, chunks } = action {
                    fetches.push((region, block, chunks));
                }
            }
        }
        for (region, block, chunks) in fetches {
            planner.on_event(now, Event::Fetched { region, block, chunks, ok: false });
        }
        prop_assert_eq!(planner.counters(), Counters::default());
        for link in 0..2 {
            prop_assert_eq!(planner.link_use(link).unwrap_or_default().in_flight, 0);
        }
    }
}
