//! The state machine: events in, actions out.

use crate::budget::Budget;
use crate::model::Model;
use crate::stream::{Lent, Progress, Stream};
use crate::tables::Tables;
use crate::window::Region;
use crate::{Action, BLOCK_CHUNKS, Config, Event, Policy, RegionId, Urgency, segment_of};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Expected chunks that are looked at in vain for one that can be asked for: bounds the work of an event.
const EXPECTED_NAMELESS_MAX: usize = 1024;

/// The planner of one mount.
#[derive(Debug)]
pub struct Planner {
    config: Config,
    regions: HashMap<RegionId, Region>,
    budget: Budget,
    tables: Tables,
    expected: VecDeque<(RegionId, u64)>,
    streams: Vec<Stream>,
}

/// What the planner has seen and done, in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// First touches.
    pub touched: u64,
    /// Guesses that nobody has used.
    pub unused: u64,
    /// Asked for and not here yet.
    pub in_flight: u64,
}

impl Planner {
    /// A planner without regions.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            regions: HashMap::new(),
            budget: Budget::default(),
            tables: Tables::default(),
            expected: VecDeque::new(),
            streams: Vec::new(),
        }
    }

    /// Takes an event that happened at `now_us` (microseconds of any monotonic clock) and says what to do.
    pub fn on_event(&mut self, now_us: u64, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::RegionAdded {
                region,
                chunks,
                segments,
                urgency,
            } => {
                self.add(region, chunks, &segments, urgency, &mut actions);
            }
            Event::RegionRemoved { region } => self.remove(region, &mut actions),
            Event::Miss {
                region,
                chunk,
                candidates,
            } => self.miss(now_us, region, chunk, candidates, &mut actions),
            Event::Hit { region, chunk } => self.hit(now_us, region, chunk, &mut actions),
            Event::Candidates {
                region,
                block,
                candidates,
            } => {
                if let Some((stream, number)) = of_stream(&mut self.streams, region) {
                    stream.looked(number, block, candidates);
                }
                self.looked(region, block, candidates, &mut actions);
            }
            Event::Fetched {
                region,
                block,
                chunks,
                ok,
            } => {
                if let Some((stream, number)) = of_stream(&mut self.streams, region) {
                    stream.fetched(number, block, chunks, ok, now_us);
                }
                self.fetched(region, block, chunks, ok, &mut actions);
            }
            Event::SegmentLoaded {
                region,
                segment,
                ok,
            } => {
                self.tables.loaded(region, segment, ok);
                if let Some((stream, number)) = of_stream(&mut self.streams, region) {
                    stream.table(number, segment);
                }
            }
            Event::LinkEstimate(link) => {
                self.budget.set_link(link);
                self.tables.retry();
                if let Some(link) = self.budget.link() {
                    self.streams.iter_mut().for_each(|s| s.link(link));
                }
            }
            Event::Expect { region, chunks } => self.expect(region, chunks),
            Event::Model { regions, model } => self.model(now_us, regions, model, &mut actions),
            Event::Tick => {}
        }
        self.send_expected(&mut actions);
        for i in 0..self.streams.len() {
            let (streams, mut lent) = self.lend(now_us);
            streams[i].step(&mut lent, &mut actions);
        }
        while let Some((region, segments)) = self.tables.next(self.budget.link(), &self.config) {
            actions.push(Action::FetchSegments { region, segments });
        }
        actions
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        Counters {
            touched: self.budget.touched(),
            unused: self.budget.unused(),
            in_flight: self.budget.in_flight(),
        }
    }

    /// What the models have planned and what came of it, of all images together; zero without a model.
    pub fn progress(&self) -> Progress {
        self.streams
            .iter()
            .map(Stream::progress)
            .fold(Progress::default(), Progress::plus)
    }

    /// The same of the image that a region belongs to; `None` without a model.
    pub fn progress_of(&self, region: RegionId) -> Option<Progress> {
        let stream = self.streams.iter().find(|s| s.region(region).is_some());
        stream.map(Stream::progress)
    }

    /// Chunks in a region's window at present.
    pub fn window_chunks(&self, region: RegionId) -> Option<u32> {
        self.regions.get(&region).map(Region::window_chunks)
    }

    fn lend(&mut self, now_us: u64) -> (&mut Vec<Stream>, Lent<'_>) {
        let lent = Lent {
            now_us,
            config: &self.config,
            budget: &mut self.budget,
            tables: &mut self.tables,
            regions: &mut self.regions,
        };
        (&mut self.streams, lent)
    }

    /// A model takes the place of an earlier one of the same image. One that is not for this policy changes nothing.
    fn model(
        &mut self,
        now_us: u64,
        regions: Vec<RegionId>,
        model: Arc<Model>,
        actions: &mut Vec<Action>,
    ) {
        let policy = self.config.policy;
        let (streams, mut lent) = self.lend(now_us);
        if let Some(stream) = Stream::new(policy, model, regions, &mut lent) {
            let replaced = |s: &Stream| s.regions().iter().any(|r| stream.region(*r).is_some());
            end_streams(streams, replaced, actions);
            streams.push(stream);
        }
    }

    fn add(
        &mut self,
        region: RegionId,
        chunks: u64,
        segments: &[u32],
        urgency: Urgency,
        actions: &mut Vec<Action>,
    ) {
        self.remove(region, actions);
        self.regions
            .insert(region, Region::new(chunks, &self.config));
        self.tables.add(region, segments, urgency);
    }

    fn remove(&mut self, region: RegionId, actions: &mut Vec<Action>) {
        if let Some(state) = self.regions.remove(&region) {
            self.budget.settled(state.unused());
        }
        self.tables.remove(region);
        let over = |s: &Stream| s.region(region).is_some();
        end_streams(&mut self.streams, over, actions);
        self.expected.retain(|(r, _)| *r != region);
    }

    fn miss(
        &mut self,
        now_us: u64,
        region: RegionId,
        chunk: u64,
        candidates: u64,
        actions: &mut Vec<Action>,
    ) {
        if !self.touch(now_us, region, chunk, true) {
            return;
        }
        let known = self.stream_knows(region, chunk);
        let Some(state) = self.regions.get_mut(&region) else {
            return;
        };
        // A guess that is still on its way was right all the same.
        self.budget.settled(state.touch(chunk).0);
        let most = match (self.config.policy, known) {
            (Policy::Neighbours | Policy::Floe, None) => self.budget.guesses(&self.config),
            (Policy::Floe, Some(false)) => self.budget.guesses_beside_model(&self.config),
            _ => 0,
        };
        let chunks = state.miss(chunk, candidates, most, &self.config);
        self.guess(region, chunk / u64::from(BLOCK_CHUNKS), chunks, actions);
    }

    fn hit(&mut self, now_us: u64, region: RegionId, chunk: u64, actions: &mut Vec<Action>) {
        if !self.touch(now_us, region, chunk, false) {
            return;
        }
        let Some(state) = self.regions.get_mut(&region) else {
            return;
        };
        let (right, guessed) = state.touch(chunk);
        self.budget.settled(right);
        if guessed && let Some(block) = state.follow(chunk) {
            actions.push(Action::Look { region, block });
        }
    }

    /// Counts a first touch; whether there is such a chunk.
    fn touch(&mut self, now_us: u64, region: RegionId, chunk: u64, missed: bool) -> bool {
        if !self.regions.get(&region).is_some_and(|r| r.contains(chunk)) {
            return false;
        }
        self.budget.touch();
        let (streams, mut lent) = self.lend(now_us);
        if let Some((stream, number)) = of_stream(streams, region) {
            stream.touch(number, chunk, missed, &mut lent);
        }
        true
    }

    /// Whether the image's model knows a chunk; `None` without a model.
    fn stream_knows(&self, region: RegionId, chunk: u64) -> Option<bool> {
        let mut of = self
            .streams
            .iter()
            .filter_map(|s| Some((s, s.region(region)?)));
        of.next()
            .map(|(stream, number)| stream.knows(number, chunk))
    }

    fn looked(&mut self, region: RegionId, block: u64, candidates: u64, actions: &mut Vec<Action>) {
        let Some(state) = self.regions.get_mut(&region) else {
            return;
        };
        let most = self.budget.guesses(&self.config);
        let chunks = state.looked(block, candidates, most, &self.config);
        self.guess(region, block, chunks, actions);
    }

    fn fetched(
        &mut self,
        region: RegionId,
        block: u64,
        chunks: u64,
        ok: bool,
        actions: &mut Vec<Action>,
    ) {
        self.budget.ended(u64::from(chunks.count_ones()));
        let Some(state) = self.regions.get_mut(&region) else {
            return;
        };
        if !ok {
            self.budget.settled(state.failed(block, chunks));
            return;
        }
        let chunks = state.push(block, chunks, &self.config);
        if chunks != 0 {
            actions.push(Action::Push {
                region,
                block,
                chunks,
            });
        }
    }

    fn guess(&mut self, region: RegionId, block: u64, chunks: u64, actions: &mut Vec<Action>) {
        if chunks != 0 {
            self.budget.sent(u64::from(chunks.count_ones()), true);
            actions.push(Action::Fetch {
                region,
                block,
                chunks,
            });
        }
    }

    fn expect(&mut self, region: RegionId, chunks: Vec<u64>) {
        let Some(state) = self.regions.get_mut(&region) else {
            return;
        };
        let room = self.config.expect_max.saturating_sub(self.expected.len());
        let new = chunks.into_iter().filter(|c| state.contains(*c)).take(room);
        let new: Vec<u64> = new.collect();
        let mut tables: Vec<u32> = Vec::new();
        for table in new.iter().map(|c| segment_of(*c)) {
            if self.tables.is_missing(region, table) && tables.last() != Some(&table) {
                tables.push(table);
            }
        }
        self.tables.hurry(region, &tables);
        self.expected.extend(new.into_iter().map(|c| (region, c)));
    }

    /// Sends what is expected as far as the link has room, a block's chunks together. A chunk whose table isn't here has no
    /// name yet: it keeps its place until then, and those behind it may go first.
    fn send_expected(&mut self, actions: &mut Vec<Action>) {
        let mut room = self.budget.room(&self.config);
        let mut together: BTreeMap<(RegionId, u64), u64> = BTreeMap::new();
        let mut nameless = VecDeque::new();
        while room > 0
            && nameless.len() < EXPECTED_NAMELESS_MAX
            && let Some((region, chunk)) = self.expected.pop_front()
        {
            if self.tables.is_missing(region, segment_of(chunk)) {
                nameless.push_back((region, chunk));
                continue;
            }
            if self
                .regions
                .get_mut(&region)
                .is_some_and(|r| r.expect(chunk))
            {
                let place = (region, chunk / u64::from(BLOCK_CHUNKS));
                *together.entry(place).or_default() |= 1 << (chunk % u64::from(BLOCK_CHUNKS));
                room -= 1;
            }
        }
        while let Some(place) = nameless.pop_back() {
            self.expected.push_front(place);
        }
        for ((region, block), chunks) in together {
            self.budget.sent(u64::from(chunks.count_ones()), false);
            actions.push(Action::Fetch {
                region,
                block,
                chunks,
            });
        }
    }
}

/// Ends the streams of which `over` is true.
fn end_streams(
    streams: &mut Vec<Stream>,
    over: impl Fn(&Stream) -> bool,
    actions: &mut Vec<Action>,
) {
    let ended = streams.extract_if(.., |stream| over(stream));
    ended.for_each(|stream| stream.end(actions));
}

/// The stream of the image that a region belongs to, and the region's number in the manifest.
fn of_stream(streams: &mut [Stream], region: RegionId) -> Option<(&mut Stream, usize)> {
    streams.iter_mut().find_map(|s| {
        let number = s.region(region)?;
        Some((s, number))
    })
}
