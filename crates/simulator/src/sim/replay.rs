//! Replays one machine's run: its accesses happen at its own time, which stops while it waits.
//!
//! Accesses are served as by the mount: a fault of memory is one chunk, a request of a disk is up to 256. All that a request
//! lacks is demanded at once, and when the last of it is here, the request is tried again from its beginning.
//!
//! The planner is the live one, used as by the mount: it is told every first touch, its decisions are carried out at
//! once, and it gets a new estimate of the link four times a second.
use super::download::{Demanded, Download, Item};
use super::figures::{Run, Stall, StallKind};
use super::wire::LinkSpec;
use floe_image::CHUNKS_PER_SEGMENT;
use floe_planner::{
    Action, BLOCK_CHUNKS, Config, Event, Link, LinkId, Model, Planner, RegionId, Timed, Urgency,
    ZeroTrace,
};
use floe_sched::{MachineId, Who};
use floe_testbed::shape::ImageShape;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// The only link, that of the machine's image.
const LINK: LinkId = 0;
/// The only machine.
const MACHINE: MachineId = MachineId(1);
/// How often the planner gets the time.
const TICK_NS: u64 = 100_000_000;
/// How often it gets the link's estimate, as from the mount.
const LINK_NS: u64 = 250_000_000;
/// If a machine stalls this long while nothing is requested, it will stall forever.
const STUCK_NS: u64 = 60_000_000_000;
/// Longest run: a day of virtual time.
const RUN_NS_MAX: u64 = 86_400_000_000_000;
/// Most chunks of one request of a disk: the kernel sends at most 1 MiB in one.
const REQUEST_CHUNKS_MAX: u32 = 256;
/// Longest time between the recordings of two accesses of one request, in microseconds. The mount records a request's chunks in
/// one go, so that most have the same time; a guest's next request takes longer, its interrupt and the way through its kernel.
const REQUEST_GAP_US: u64 = 5;

/// The input of a replay.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The image that the machine was started from.
    pub image: &'a ImageShape,
    /// What the machine does.
    pub trace: &'a ZeroTrace,
    /// The link over which its chunks arrive.
    pub link: &'a LinkSpec,
    /// The planner's policy and limits.
    pub config: Config,
    /// The model that the policy uses.
    pub model: Option<Arc<Model>>,
    /// Bytes on the wire before the machine can start: manifest, device state, model.
    pub preamble_bytes: usize,
}

/// Why a run failed and has no figures.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The machine waits for something that nobody fetches, which is an error of the planner.
    #[error("at {at_s:.1} s the machine stands still ({why}) and nothing is asked for")]
    Stuck {
        /// Virtual time, in seconds.
        at_s: f64,
        /// Whether it is paused or waits for a chunk.
        why: String,
    },
    /// The run takes longer than a day.
    #[error("the run takes longer than a day; {served} of {all} accesses were served")]
    Endless {
        /// Number of accesses that happened.
        served: usize,
        /// Number of all accesses.
        all: usize,
    },
    /// The trace names a region that the image doesn't have.
    #[error("the trace names region {0}, which the image does not have")]
    Region(u8),
}

/// A fetch whose end the planner wants to know.
#[derive(Clone, Copy, Debug)]
struct Group {
    region: RegionId,
    block: u64,
    chunks: u64,
    left: u32,
    who: Who,
}

/// What the node's store has of one region.
#[derive(Debug)]
struct Store {
    present: Vec<u64>,
    /// Chunks that were pushed into the page cache, so that touches aren't noticed.
    pushed: Vec<u64>,
    /// Chunks that the machine has touched.
    touched: Vec<u64>,
    tables: Vec<bool>,
}

/// A request of the machine that waits for what it lacks.
#[derive(Debug)]
struct Waiting {
    /// The index after that of its last access.
    end: usize,
    /// What was demanded for it and hasn't arrived.
    lacks: BTreeSet<Item>,
    /// What it touched first that was here: it is told when the request is answered.
    hits: Vec<(RegionId, u64)>,
}

struct Replay<'a> {
    setup: &'a Setup<'a>,
    now_ns: u64,
    planner: Planner,
    download: Download,
    stores: Vec<Store>,
    groups: Vec<Group>,
    listeners: HashMap<Item, Vec<usize>>,
    events: VecDeque<Event>,
    /// The machine's own time when it last resumed; the next field is the time of that.
    own_ns: u64,
    since_ns: u64,
    started: bool,
    waiting: Option<Waiting>,
    paused: bool,
    /// Since when and why it stalls.
    still: Option<(u64, StallKind)>,
    next_access: usize,
    run: Run,
}

/// Replays a machine's run to its end.
pub fn replay(setup: &Setup<'_>) -> Result<Run, ReplayError> {
    let known = setup.image.regions.len();
    if let Some(access) = setup
        .trace
        .accesses
        .iter()
        .find(|a| usize::from(a.region) >= known)
    {
        return Err(ReplayError::Region(access.region));
    }
    Replay::new(setup).run()
}

fn bit(words: &[u64], chunk: u64) -> bool {
    words[(chunk / u64::from(BLOCK_CHUNKS)) as usize] >> (chunk % u64::from(BLOCK_CHUNKS)) & 1 == 1
}

fn set(words: &mut [u64], chunk: u64) {
    words[(chunk / u64::from(BLOCK_CHUNKS)) as usize] |= 1 << (chunk % u64::from(BLOCK_CHUNKS));
}

fn table_of(chunk: u64) -> u32 {
    (chunk / CHUNKS_PER_SEGMENT as u64) as u32
}

impl<'a> Replay<'a> {
    fn new(setup: &'a Setup<'a>) -> Replay<'a> {
        let stores = setup.image.regions.iter().map(|r| Store {
            present: vec![0; (r.chunks() / u64::from(BLOCK_CHUNKS)) as usize],
            pushed: vec![0; (r.chunks() / u64::from(BLOCK_CHUNKS)) as usize],
            touched: vec![0; (r.chunks() / u64::from(BLOCK_CHUNKS)) as usize],
            tables: vec![false; (r.chunks() / CHUNKS_PER_SEGMENT as u64) as usize],
        });
        Replay {
            setup,
            now_ns: 0,
            planner: Planner::new(setup.config),
            download: Download::new(setup.link),
            stores: stores.collect(),
            groups: Vec::new(),
            listeners: HashMap::new(),
            events: VecDeque::new(),
            own_ns: 0,
            since_ns: 0,
            started: false,
            waiting: None,
            paused: false,
            still: Some((0, StallKind::Start)),
            next_access: 0,
            run: Run::default(),
        }
    }

    fn run(mut self) -> Result<Run, ReplayError> {
        let bytes = self.setup.preamble_bytes.max(1);
        self.download.demand(0, Item::Preamble, bytes);
        for (number, region) in self.setup.image.regions.iter().enumerate() {
            self.events.push_back(Event::RegionAdded {
                region: number as RegionId,
                link: LINK,
                image: 0,
                chunks: region.chunks(),
                segments: region.tables(),
                urgency: region.urgency,
            });
        }
        let (mut next_tick, mut next_link) = (TICK_NS, LINK_NS);
        let mut idle_since = None;
        loop {
            self.settle();
            let machine = self.machine_ns();
            if machine.is_none() && self.download.is_idle() {
                let since = *idle_since.get_or_insert(self.now_ns);
                if self.now_ns - since > STUCK_NS {
                    return Err(self.stuck());
                }
            } else {
                idle_since = None;
            }
            let ticks = next_tick.min(next_link);
            let arrival = self.download.next_ns().unwrap_or(u64::MAX);
            let next = ticks.min(arrival).min(machine.unwrap_or(u64::MAX));
            if next > RUN_NS_MAX {
                return Err(ReplayError::Endless {
                    served: self.next_access,
                    all: self.setup.trace.accesses.len(),
                });
            }
            self.now_ns = next.max(self.now_ns);
            if arrival <= next {
                if let Some(item) = self.download.advance(self.now_ns) {
                    self.arrived(item);
                }
            } else if machine.is_some_and(|at| at <= next) {
                if self.next_access == self.setup.trace.accesses.len() {
                    return Ok(self.finish());
                }
                self.access();
            } else if next_link <= next {
                next_link += LINK_NS;
                self.tell_link();
            } else {
                next_tick += TICK_NS;
                if self.setup.model.is_some() && self.started {
                    self.events.push_back(Event::Tick);
                }
            }
        }
    }

    fn stuck(&self) -> ReplayError {
        let lacks = self.waiting.as_ref().map(|w| &w.lacks);
        let waiting = lacks.map(|lacks| format!("waiting for {lacks:?}"));
        ReplayError::Stuck {
            at_s: self.now_ns as f64 / 1e9,
            why: waiting.unwrap_or_else(|| "paused".into()),
        }
    }

    /// Returns when the machine does something next: its next access, or its end.
    fn machine_ns(&self) -> Option<u64> {
        if self.still.is_some() {
            return None;
        }
        let trace = self.setup.trace;
        let own_us = match trace.accesses.get(self.next_access) {
            Some(access) => access.t_us,
            None => trace.end_us,
        };
        Some(self.since_ns + (own_us * 1000).saturating_sub(self.own_ns))
    }

    /// Carries out the consequences of pending events, then pauses or resumes the machine.
    fn settle(&mut self) {
        let mut asked = false;
        while let Some(event) = self.events.pop_front() {
            for action in self.planner.on_event(self.now_ns / 1000, event) {
                asked |= matches!(action, Action::Fetch { .. } | Action::FetchSegments { .. });
                self.act(action);
            }
        }
        if asked {
            self.download.send(self.now_ns);
        }
        let kind = match (self.started, self.paused, self.waiting.is_some()) {
            (false, _, _) => Some(StallKind::Start),
            (true, true, _) => Some(StallKind::Buffering),
            (true, false, true) => Some(StallKind::Demand),
            (true, false, false) => None,
        };
        let before = self.still.map(|(_, kind)| kind);
        if kind == before {
            return;
        }
        match self.still.take() {
            Some((from_ns, kind)) => self.run.stalls.push(Stall {
                from_ns,
                to_ns: self.now_ns,
                own_ns: self.own_ns,
                kind,
            }),
            None => self.own_ns += self.now_ns - self.since_ns,
        }
        self.since_ns = self.now_ns;
        self.still = kind.map(|kind| (self.now_ns, kind));
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Fetch {
                region,
                block,
                chunks,
                who,
            } => self.fetch(region, block, chunks, who),
            Action::FetchSegments {
                region, segments, ..
            } => {
                for segment in segments {
                    self.fetch_table(region, segment);
                }
            }
            Action::Look { region, block, who } => {
                let candidates = self.candidates(region, block);
                self.events.push_back(Event::Candidates {
                    region,
                    block,
                    candidates,
                    who,
                });
            }
            Action::Push {
                region,
                block,
                chunks,
                ..
            } => {
                let store = self.stores.get_mut(region as usize);
                if let Some(word) = store.and_then(|s| s.pushed.get_mut(block as usize)) {
                    *word |= chunks;
                }
            }
            Action::Buffer { pause, .. } => self.paused = pause,
        }
    }

    fn candidates(&self, region: RegionId, block: u64) -> u64 {
        let Some(shape) = self.setup.image.region(region) else {
            return 0;
        };
        let store = &self.stores[region as usize];
        let table = table_of(block * u64::from(BLOCK_CHUNKS)) as usize;
        if !store.tables.get(table).is_some_and(|known| *known) {
            return 0;
        }
        shape.block(block) & !store.present[block as usize]
    }

    fn fetch(&mut self, region: RegionId, block: u64, chunks: u64, who: Who) {
        // As in the mount, a chunk without content, or whose hash is not known yet, isn't fetched.
        let wanted = chunks & self.candidates(region, block);
        let group = self.groups.len();
        self.groups.push(Group {
            region,
            block,
            chunks,
            left: wanted.count_ones(),
            who,
        });
        if wanted == 0 {
            return self.fetched(group);
        }
        let bytes = self.setup.image.chunk_wire_bytes;
        let mut rest = wanted;
        while rest != 0 {
            let chunk = block * u64::from(BLOCK_CHUNKS) + u64::from(rest.trailing_zeros());
            rest &= rest - 1;
            let item = Item::Chunk(region, chunk);
            self.listeners.entry(item).or_default().push(group);
            self.download.prefetch(item, bytes);
        }
    }

    fn fetched(&mut self, group: usize) {
        let Group {
            region,
            block,
            chunks,
            who,
            ..
        } = self.groups[group];
        self.events.push_back(Event::Fetched {
            region,
            block,
            chunks,
            ok: true,
            who,
        });
    }

    fn fetch_table(&mut self, region: RegionId, segment: u32) {
        let known = self
            .stores
            .get(region as usize)
            .and_then(|s| s.tables.get(segment as usize));
        if let (Some(false), Some(shape)) = (known, self.setup.image.region(region)) {
            let bytes = shape.table_wire_bytes(segment);
            let item = Item::Table(region, segment);
            self.listeners.entry(item).or_default();
            return self.download.prefetch(item, bytes);
        }
        let ok = known.is_some();
        self.events.push_back(Event::SegmentLoaded {
            region,
            segment,
            ok,
        });
    }

    fn arrived(&mut self, item: Item) {
        match item {
            Item::Preamble => self.start(),
            Item::Table(region, segment) => {
                self.stores[region as usize].tables[segment as usize] = true;
                if self.listeners.remove(&item).is_some() {
                    self.events.push_back(Event::SegmentLoaded {
                        region,
                        segment,
                        ok: true,
                    });
                }
            }
            Item::Chunk(region, chunk) => {
                set(&mut self.stores[region as usize].present, chunk);
                for group in self.listeners.remove(&item).unwrap_or_default() {
                    self.groups[group].left -= 1;
                    if self.groups[group].left == 0 {
                        self.fetched(group);
                    }
                }
            }
        }
        if let Some(waiting) = &mut self.waiting
            && waiting.lacks.remove(&item)
            && waiting.lacks.is_empty()
        {
            let (end, hits) = (waiting.end, std::mem::take(&mut waiting.hits));
            self.attempt(end, hits);
        }
    }

    /// Starts the machine, when everything that it needs has arrived.
    fn start(&mut self) {
        self.started = true;
        self.tell_link();
        self.events.push_back(Event::MachineStarted {
            who: Who::demand(MACHINE),
            image: 0,
            running: false,
        });
        if let Some(model) = &self.setup.model {
            self.events.push_back(Event::Model {
                regions: (0..self.setup.image.regions.len() as RegionId).collect(),
                model: model.clone(),
            });
        }
    }

    fn tell_link(&mut self) {
        let link = self.download.link(self.now_ns);
        if let (Some(bytes_per_s), Some(rtt_us)) = (link.bytes_per_s, link.rtt_us) {
            self.events.push_back(Event::LinkEstimate {
                link: LINK,
                measured: Link {
                    bytes_per_s: bytes_per_s as f64,
                    rtt_us,
                },
            });
        }
    }

    /// Makes the machine's next request.
    fn access(&mut self) {
        self.attempt(self.request_end(), Vec::new());
    }

    /// Returns the index after that of the last access of the request that begins with the next one. A request of a disk reads
    /// one range of it: what lies between two of its first accesses was touched before, or has no content.
    fn request_end(&self) -> usize {
        let accesses = &self.setup.trace.accesses[self.next_access..];
        let first = accesses[0];
        let number = usize::from(first.region);
        let shape = &self.setup.image.regions[number];
        if shape.urgency == Urgency::Memory {
            return self.next_access + 1;
        }
        let touched = &self.stores[number].touched;
        let joined = |pair: &&[Timed]| {
            let (one, next) = (pair[0], pair[1]);
            next.region == one.region
                && next.t_us <= one.t_us + REQUEST_GAP_US
                && (one.chunk + 1..first.chunk.saturating_add(REQUEST_CHUNKS_MAX))
                    .contains(&next.chunk)
                && (one.chunk + 1..next.chunk)
                    .map(u64::from)
                    .all(|between| bit(touched, between) || !shape.has(between))
        };
        self.next_access + 1 + accesses.windows(2).take_while(joined).count()
    }

    /// Tries the request that ends before this access from its beginning, as the mount does: all that it lacks is demanded at
    /// once. `hits` are those of earlier attempts, which waited for something.
    fn attempt(&mut self, end: usize, mut hits: Vec<(RegionId, u64)>) {
        let (image, trace) = (self.setup.image, self.setup.trace);
        let (mut lacks, mut wanted) = (BTreeSet::new(), Vec::new());
        for access in &trace.accesses[self.next_access..end] {
            let (region, chunk) = (RegionId::from(access.region), u64::from(access.chunk));
            let store = &mut self.stores[usize::from(access.region)];
            let segment = table_of(chunk);
            if !store.tables[segment as usize] {
                let item = Item::Table(region, segment);
                if lacks.insert(item) {
                    let bytes = image.regions[usize::from(access.region)].table_wire_bytes(segment);
                    wanted.push((item, bytes));
                }
                continue;
            }
            let first = !bit(&store.touched, chunk);
            set(&mut store.touched, chunk);
            if bit(&store.present, chunk) {
                if first && !bit(&store.pushed, chunk) {
                    hits.push((region, chunk));
                }
                continue;
            }
            let item = Item::Chunk(region, chunk);
            lacks.insert(item);
            wanted.push((item, image.chunk_wire_bytes));
        }
        let demanded = self.download.demand_all(self.now_ns, &wanted);
        for ((item, _), demanded) in wanted.into_iter().zip(demanded) {
            if let Item::Chunk(region, chunk) = item {
                self.missed(region, chunk, demanded);
            }
        }
        if !lacks.is_empty() {
            self.waiting = Some(Waiting { end, lacks, hits });
            return;
        }
        self.waiting = None;
        self.next_access = end;
        let who = Who::demand(MACHINE);
        let hits = hits.into_iter();
        self.events
            .extend(hits.map(|(region, chunk)| Event::Hit { region, chunk, who }));
    }

    /// Counts an access whose chunk isn't here, and tells the planner.
    fn missed(&mut self, region: RegionId, chunk: u64, demanded: Demanded) {
        self.run.missed += u64::from(demanded == Demanded::Sent);
        self.run.late += u64::from(demanded == Demanded::Joined);
        let candidates = self.candidates(region, chunk / u64::from(BLOCK_CHUNKS));
        self.events.push_back(Event::Miss {
            region,
            chunk,
            candidates,
            who: Who::demand(MACHINE),
        });
    }

    fn finish(mut self) -> Run {
        let carried = self.download.carried();
        self.run.accessed = self.setup.trace.accesses.len() as u64;
        self.run.fetched = carried.chunks + self.download.chunks_flying();
        self.run.wire_bytes = carried.wire_bytes;
        self.run.table_bytes = carried.table_bytes;
        self.run.end_ns = self.now_ns;
        self.run.own_ns = self.setup.trace.end_us * 1000;
        self.run
    }
}
