//! Machines, their links and one planner, in virtual time.

use super::*;
use floe_image::Hash;
use floe_planner::*;

pub fn learn(policy: Policy, traces: &[ZeroTrace]) -> Arc<Model> {
    let method = policy.method().unwrap();
    let options = TrainOptions::default();
    Arc::new(train(method, &Hash::of(b"image"), traces, &options))
}

pub fn config(policy: Policy) -> Config {
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

/// By region and block what was asked for: the chunks, those that haven't come, and for whom.
type Fetches = HashMap<(u32, u64), Vec<(u64, u64, Who)>>;

/// A machine, and its image's only region, which several machines may have.
pub struct Machine {
    link: usize,
    /// The number of its image and region; its own number unless it shares another's.
    pub image: Option<u32>,
    /// When it starts.
    start_us: u64,
    model: Option<Arc<Model>>,
    pub accesses: VecDeque<Timed>,
    /// How far its own clock is behind, since it started.
    behind_us: Option<u64>,
    waiting: Option<At>,
    /// Whether it runs already when the planner first hears of it.
    pub running: bool,
    pub paused: bool,
    pub pauses: u64,
    pub waited_us: u64,
    /// Chunks that were fetched ahead for it and have arrived.
    pub came: u64,
}

impl Machine {
    pub fn new(link: usize, start_us: u64, model: Arc<Model>, trace: &ZeroTrace) -> Machine {
        Machine {
            link,
            image: None,
            start_us,
            model: Some(model),
            accesses: trace.accesses.iter().copied().collect(),
            behind_us: None,
            waiting: None,
            running: false,
            paused: false,
            pauses: 0,
            waited_us: 0,
            came: 0,
        }
    }

    /// Makes it a machine of image 0.
    pub fn sharing(mut self) -> Machine {
        self.image = Some(0);
        self
    }

    pub fn runs(&self) -> bool {
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
pub struct World {
    now: u64,
    pub planner: Planner,
    links: Vec<Link>,
    wires: Vec<Wire>,
    pub machines: Vec<Machine>,
    here: HashSet<At>,
    pub asked: HashSet<At>,
    /// Chunks that a machine has touched; a kernel shows only the first touch of a page on a host.
    touched: HashSet<At>,
    /// Images whose model was told.
    modelled: HashSet<u32>,
    fetches: Fetches,
}

impl World {
    pub fn new(config: Config, links: &[Link], machines: Vec<Machine>) -> World {
        let mut world = World {
            now: 0,
            planner: Planner::new(config),
            links: links.to_vec(),
            wires: links.iter().map(|link| wire(*link)).collect(),
            machines,
            here: HashSet::new(),
            asked: HashSet::new(),
            touched: HashSet::new(),
            modelled: HashSet::new(),
            fetches: HashMap::new(),
        };
        world.measure();
        for number in 0..world.machines.len() {
            let image = world.machines[number].image;
            let image = *world.machines[number]
                .image
                .insert(image.unwrap_or(number as u32));
            if world.machines[..number]
                .iter()
                .any(|m| m.image == Some(image))
            {
                continue;
            }
            world.tell(Event::RegionAdded {
                region: image,
                link: world.machines[number].link as LinkId,
                image,
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
                    Action::Look { region, block, who } => events.push_back(Event::Candidates {
                        region,
                        block,
                        candidates: self.candidates(region, block),
                        who,
                    }),
                    Action::Fetch {
                        region,
                        block,
                        chunks,
                        who,
                    } => self.fetch(region, block, chunks, who),
                    Action::Buffer { machine, pause, .. } => {
                        let machine = &mut self.machines[machine.0 as usize - 1];
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

    fn fetch(&mut self, region: u32, block: u64, chunks: u64, who: Who) {
        let machine = &self.machines[who.machine.0 as usize - 1];
        assert_eq!(machine.image, Some(region), "asked for another image");
        assert_eq!(who.purpose, Purpose::Prefetch);
        let wire = &mut self.wires[machine.link];
        for i in (0..64).filter(|i| chunks >> i & 1 == 1) {
            let at = (region, block * 64 + i);
            assert!(self.asked.insert(at), "asked for twice: {at:?}");
            wire.prefetches.push_back((self.now + wire.rtt_us / 2, at));
        }
        let of_block = self.fetches.entry((region, block)).or_default();
        of_block.push((chunks, chunks, who));
    }

    fn arrive(&mut self, at: At) {
        self.here.insert(at);
        let (region, block, bit) = (at.0, at.1 / 64, 1u64 << (at.1 % 64));
        for machine in &mut self.machines {
            machine.waiting = machine.waiting.filter(|waits| *waits != at);
        }
        let mut done = None;
        if let Some(list) = self.fetches.get_mut(&(region, block)) {
            for fetch in list.iter_mut().filter(|f| f.1 & bit != 0) {
                fetch.1 &= !bit;
                self.machines[fetch.2.machine.0 as usize - 1].came += 1;
            }
            done = list.iter().find(|f| f.1 == 0).map(|f| (f.0, f.2));
            list.retain(|f| f.1 != 0);
        }
        if let Some((chunks, who)) = done {
            self.tell(Event::Fetched {
                region,
                block,
                chunks,
                ok: true,
                who,
            });
        }
    }

    /// Starts a machine, or lets it touch its next chunk.
    fn go_on(&mut self, number: usize) {
        let who = who(number as u32 + 1);
        let machine = &mut self.machines[number];
        let region = machine.image.unwrap();
        if machine.behind_us.is_none() {
            machine.behind_us = Some(self.now);
            let (model, running) = (machine.model.take(), machine.running);
            self.tell(Event::MachineStarted {
                who,
                image: region,
                running,
            });
            // One model for each image: that of the machine that starts first.
            if self.modelled.insert(region)
                && let Some(model) = model
            {
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
        let first = self.touched.insert(at);
        if self.here.contains(&at) {
            if first {
                self.tell(Event::Hit { region, chunk, who });
            }
            return;
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
        if !first {
            return;
        }
        let candidates = self.candidates(region, chunk / 64) & !(1 << (chunk % 64));
        self.tell(Event::Miss {
            region,
            chunk,
            candidates,
            who,
        });
    }

    /// Takes a machine away.
    pub fn leave(&mut self, number: usize) {
        let machine = MachineId(number as u32);
        let machine_left = &mut self.machines[number - 1];
        machine_left.accesses.clear();
        machine_left.waiting = None;
        self.tell(Event::MachineGone { machine });
    }

    /// Runs until all machines have made all accesses, or until `end_us`.
    pub fn run(&mut self, end_us: u64) {
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
pub fn waited_alone_us(policy: Policy, link: Link, model: &Arc<Model>, trace: &ZeroTrace) -> u64 {
    let machine = Machine::new(0, 0, model.clone(), trace);
    let mut world = World::new(config(policy), &[link], vec![machine]);
    world.run(u64::MAX);
    world.machines[0].waited_us
}

pub fn half(link: Link) -> Link {
    Link {
        bytes_per_s: link.bytes_per_s / 2.0,
        ..link
    }
}
