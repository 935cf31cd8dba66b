//! The planner's state machine: takes events, returns actions.

use crate::budget::Budget;
use crate::links::Links;
use crate::model::Model;
use crate::stream::{Lent, Progress, Stream};
use crate::window::Region;
use crate::{
    Action, BLOCK_CHUNKS, Config, Event, ImageId, LinkId, Policy, RegionId, Urgency, segment_of,
};
use floe_sched::{MachineId, Purpose, Who};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// How many expected chunks without a table are passed over at most: bounds the work of an event.
const EXPECTED_NAMELESS_MAX: usize = 1024;
/// Nothing of a plan is sent until the link's window divided by this is free, so that requests don't become tiny.
const ROOM_SHARE: u64 = 8;

/// A machine that had more first touches than this before its image's model came counts as running.
const STARTED_TOUCHES: u64 = 64;

/// The planner of one mount.
#[derive(Debug)]
pub struct Planner {
    config: Config,
    regions: HashMap<RegionId, Region>,
    links: Links,
    streams: Vec<Stream>,
    machines: BTreeMap<MachineId, Machine>,
}

/// A machine that uses an image.
#[derive(Debug)]
struct Machine {
    who: Who,
    image: ImageId,
    running: bool,
    /// Its first touches.
    touched: u64,
}

/// What the planner has seen and done, in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// First touches.
    pub touched: u64,
    /// Guesses that were not used (yet).
    pub unused: u64,
    /// Chunks that the planner asked for and that haven't arrived.
    pub in_flight: u64,
}

/// How full a link is, in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkUse {
    /// Chunks that the planner asked for, for any reason, and that haven't arrived.
    pub in_flight: u64,
    /// The most chunks that may be in flight, by the last measurement of the link.
    pub room: u64,
}

impl Planner {
    /// Makes a planner without regions.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            regions: HashMap::new(),
            links: Links::default(),
            streams: Vec::new(),
            machines: BTreeMap::new(),
        }
    }

    /// Handles an event that happened at `now_us` (microseconds of any monotonic clock) and returns what to do.
    // Long: one table of events, each with who takes it in.
    pub fn on_event(&mut self, now_us: u64, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::RegionAdded {
                region,
                link,
                image,
                chunks,
                segments,
                urgency,
            } => {
                self.remove(region, &mut actions);
                self.add(region, (link, image), chunks, &segments, urgency);
            }
            Event::RegionRemoved { region } => self.remove(region, &mut actions),
            Event::MachineStarted {
                who,
                image,
                running,
            } => self.machine_started(now_us, who, image, running),
            Event::MachineGone { machine } => {
                self.machines.remove(&machine);
                let left = self.streams.iter_mut().filter_map(|s| s.leave(machine));
                actions.extend(left);
            }
            Event::Miss {
                region,
                chunk,
                candidates,
                who,
            } => self.miss(now_us, (region, chunk), candidates, who, &mut actions),
            Event::Hit { region, chunk, who } => {
                self.hit(now_us, (region, chunk), who, &mut actions);
            }
            Event::Candidates {
                region,
                block,
                candidates,
                who,
            } => {
                if let Some((stream, number)) = of_stream(&mut self.streams, region) {
                    stream.looked(number, block, candidates);
                }
                self.looked(now_us, (region, block), candidates, who, &mut actions);
            }
            Event::Fetched {
                region,
                block,
                chunks,
                ok,
                who,
            } => {
                if let Some((stream, number)) = of_stream(&mut self.streams, region) {
                    stream.fetched(number, block, chunks, ok, now_us);
                }
                let fetched = (region, block, chunks);
                self.fetched(fetched, ok, who, &mut actions);
            }
            Event::SegmentLoaded {
                region,
                segment,
                ok,
            } => {
                if let Some((link, _)) = self.links.of(region) {
                    link.tables.loaded(region, segment, ok);
                }
                if let Some((stream, number)) = of_stream(&mut self.streams, region) {
                    stream.table(number, segment);
                }
            }
            Event::LinkEstimate { link, measured } => self.links.measured(link, measured),
            Event::Expect {
                region,
                chunks,
                who,
            } => self.expect(region, chunks, who),
            Event::Model { regions, model } => self.model(now_us, regions, model, &mut actions),
            Event::Tick => {}
        }
        for i in 0..self.streams.len() {
            if let Some((streams, lent)) = self.lend(now_us, self.streams[i].place) {
                streams[i].step(&lent, &mut actions);
            }
        }
        for link in self.links.ids() {
            self.send(now_us, link, &mut actions);
            let Some(state) = self.links.get_mut(link) else {
                continue;
            };
            let measured = state.measured();
            while let Some((region, segments, who)) = state.tables.next(measured, &self.config) {
                actions.push(Action::FetchSegments {
                    region,
                    segments,
                    who,
                });
            }
        }
        actions
    }

    /// Returns what happened so far, over all links.
    pub fn counters(&self) -> Counters {
        let sum = |of: fn(&Budget) -> u64| self.links.budgets().map(of).sum();
        Counters {
            touched: sum(Budget::touched),
            unused: sum(Budget::unused),
            in_flight: self.links.all().map(|link| link.in_flight()).sum(),
        }
    }

    /// Returns how full a link is; `None` if no region comes over it.
    pub fn link_use(&self, link: LinkId) -> Option<LinkUse> {
        self.links.get(link).map(|state| LinkUse {
            in_flight: state.in_flight(),
            room: state.room(&self.config),
        })
    }

    /// Returns what is planned for a machine by its image's model, and what came of it; `None` if it isn't streamed.
    pub fn progress(&self, machine: MachineId) -> Option<Progress> {
        self.streams.iter().find_map(|s| s.progress(machine))
    }

    /// Returns the size of a region's window now, in chunks; `None` if there is no such region.
    pub fn window_chunks(&self, region: RegionId) -> Option<u32> {
        self.regions.get(&region).map(Region::window_chunks)
    }

    /// Returns the streams, and what a stream of this image needs beside itself; `None` if nothing of the image is left.
    fn lend(
        &mut self,
        now_us: u64,
        (link, image): (LinkId, ImageId),
    ) -> Option<(&mut Vec<Stream>, Lent<'_>)> {
        let state = self.links.get_mut(link)?;
        let share = state.share(image, now_us, &self.config);
        let window = state.window(false, &self.config);
        let lent = Lent {
            now_us,
            config: &self.config,
            link: state.as_seen_by(image, now_us, &self.config),
            window: (window as f64 * share) as u64,
            tables: &mut state.tables,
            regions: &mut self.regions,
        };
        Some((&mut self.streams, lent))
    }

    /// Takes a model, in place of an earlier one of the same image. A model that isn't for this policy changes nothing.
    fn model(
        &mut self,
        now_us: u64,
        regions: Vec<RegionId>,
        model: Arc<Model>,
        actions: &mut Vec<Action>,
    ) {
        let policy = self.config.policy;
        let Some(place) = regions.first().and_then(|r| self.links.place(*r)) else {
            return;
        };
        let Some((streams, lent)) = self.lend(now_us, place) else {
            return;
        };
        let Some(stream) = Stream::new(policy, place, model, regions, &lent) else {
            return;
        };
        let replaced = |s: &Stream| s.regions().iter().any(|r| stream.region(*r).is_some());
        end_streams(streams, replaced, actions);
        streams.push(stream);
        let of_image = |m: &&Machine| m.image == place.1;
        let machines = self.machines.values().filter(of_image);
        let known: Vec<(Who, bool)> = machines
            .map(|m| (m.who, m.running || m.touched > STARTED_TOUCHES))
            .collect();
        for (who, running) in known {
            self.view(now_us, place, who, running);
        }
    }

    /// Streams to a machine from now on, if its image has a model.
    fn view(&mut self, now_us: u64, place: (LinkId, ImageId), who: Who, running: bool) {
        if let Some((streams, lent)) = self.lend(now_us, place)
            && let Some(stream) = streams.iter_mut().find(|s| s.place == place)
        {
            stream.view(who, running, &lent);
        }
    }

    fn machine_started(&mut self, now_us: u64, who: Who, image: ImageId, running: bool) {
        let who = Who {
            purpose: Purpose::Prefetch,
            ..who
        };
        if who.machine == MachineId::NONE {
            return;
        }
        if let Some(known) = self.machines.get_mut(&who.machine) {
            known.who = who;
            return;
        }
        let machine = Machine {
            who,
            image,
            running,
            touched: 0,
        };
        self.machines.insert(who.machine, machine);
        let stream = self.streams.iter().find(|s| s.place.1 == image);
        if let Some(place) = stream.map(|s| s.place) {
            self.view(now_us, place, who, running);
        }
    }

    fn add(
        &mut self,
        region: RegionId,
        (link, image): (LinkId, ImageId),
        chunks: u64,
        segments: &[u32],
        urgency: Urgency,
    ) {
        self.regions
            .insert(region, Region::new(chunks, &self.config));
        self.links.add(region, link, image);
        if let Some((state, _)) = self.links.of(region) {
            state.tables.add(region, image, segments, urgency);
        }
    }

    fn remove(&mut self, region: RegionId, actions: &mut Vec<Action>) {
        let unused = self.regions.remove(&region).map_or(0, |r| r.unused());
        self.links.remove(region, unused);
        let over = |s: &Stream| s.region(region).is_some();
        end_streams(&mut self.streams, over, actions);
    }

    fn miss(
        &mut self,
        now_us: u64,
        (region, chunk): (RegionId, u64),
        candidates: u64,
        who: Who,
        actions: &mut Vec<Action>,
    ) {
        if !self.touch(now_us, (region, chunk), true, who) {
            return;
        }
        let known = self.stream_knows(region, chunk);
        let Some(state) = self.regions.get_mut(&region) else {
            return;
        };
        // A guess that is still on its way was right too.
        let right = state.touch(chunk).0;
        self.settled(region, right);
        let most = match (self.config.policy, known) {
            (Policy::Neighbours | Policy::Floe, None) => self.guesses(now_us, region, false),
            (Policy::Floe, Some(false)) => self.guesses(now_us, region, true),
            _ => 0,
        };
        let Some(state) = self.regions.get_mut(&region) else {
            return;
        };
        let chunks = state.miss(chunk, candidates, most, &self.config);
        let block = chunk_block(chunk);
        self.guess(now_us, (region, block, chunks), who, actions);
    }

    /// Returns how many guesses may be sent now for a region's image.
    fn guesses(&mut self, now_us: u64, region: RegionId, beside_model: bool) -> u64 {
        let config = self.config;
        let found = self.links.of(region);
        found.map_or(0, |(link, image)| {
            link.guesses(image, beside_model, now_us, &config)
        })
    }

    /// Takes guesses of a region off the waste, because they were right or never arrived.
    fn settled(&mut self, region: RegionId, chunks: u64) {
        if let Some(budget) = self.links.budget(region) {
            budget.settled(chunks);
        }
    }

    fn hit(
        &mut self,
        now_us: u64,
        (region, chunk): (RegionId, u64),
        who: Who,
        actions: &mut Vec<Action>,
    ) {
        if !self.touch(now_us, (region, chunk), false, who) {
            return;
        }
        let Some(state) = self.regions.get_mut(&region) else {
            return;
        };
        let (right, guessed) = state.touch(chunk);
        if guessed && let Some(block) = state.follow(chunk) {
            let who = ahead(who);
            actions.push(Action::Look { region, block, who });
        }
        self.settled(region, right);
    }

    /// Notes a first touch; returns whether the region has such a chunk.
    fn touch(
        &mut self,
        now_us: u64,
        (region, chunk): (RegionId, u64),
        missed: bool,
        who: Who,
    ) -> bool {
        if !self.regions.get(&region).is_some_and(|r| r.contains(chunk)) {
            return false;
        }
        self.links.touch(region, missed, now_us);
        if let Some(machine) = self.machines.get_mut(&who.machine) {
            machine.touched += 1;
        }
        let place = self.links.place(region);
        if let Some((streams, lent)) = place.and_then(|place| self.lend(now_us, place))
            && let Some((stream, number)) = of_stream(streams, region)
        {
            stream.touch((number, chunk), missed, who, &lent);
        }
        true
    }

    /// Returns whether only the image's model decides what is fetched beside a chunk, because it knows the chunk or its rule guesses
    /// nothing; `None` without a model, or if nothing is streamed by it.
    fn stream_knows(&self, region: RegionId, chunk: u64) -> Option<bool> {
        let viewed = self.streams.iter().filter(|s| s.is_viewed());
        let mut of = viewed.filter_map(|s| Some((s, s.region(region)?)));
        of.next()
            .map(|(stream, number)| !stream.guesses_beside() || stream.knows(number, chunk))
    }

    fn looked(
        &mut self,
        now_us: u64,
        (region, block): (RegionId, u64),
        candidates: u64,
        who: Who,
        actions: &mut Vec<Action>,
    ) {
        let most = self.guesses(now_us, region, false);
        let Some(state) = self.regions.get_mut(&region) else {
            return;
        };
        let chunks = state.looked(block, candidates, most, &self.config);
        self.guess(now_us, (region, block, chunks), who, actions);
    }

    fn fetched(
        &mut self,
        (region, block, chunks): (RegionId, u64, u64),
        ok: bool,
        who: Who,
        actions: &mut Vec<Action>,
    ) {
        self.links.ended(region, u64::from(chunks.count_ones()));
        let Some(state) = self.regions.get_mut(&region) else {
            return;
        };
        if !ok {
            let guesses = state.failed(block, chunks);
            return self.settled(region, guesses);
        }
        let chunks = state.push(block, chunks, &self.config);
        if chunks != 0 {
            actions.push(Action::Push {
                region,
                block,
                chunks,
                who: Who {
                    purpose: Purpose::Push,
                    ..who
                },
            });
        }
    }

    fn guess(
        &mut self,
        now_us: u64,
        (region, block, chunks): (RegionId, u64, u64),
        who: Who,
        actions: &mut Vec<Action>,
    ) {
        if chunks != 0 {
            let count = u64::from(chunks.count_ones());
            self.links.sent(region, count, true, now_us);
            actions.push(Action::Fetch {
                region,
                block,
                chunks,
                who: ahead(who),
            });
        }
    }

    fn expect(&mut self, region: RegionId, chunks: Vec<u64>, who: Who) {
        let (Some(state), Some((link, image))) = (self.regions.get(&region), self.links.of(region))
        else {
            return;
        };
        let known = link.flow(image).map_or(0, |flow| flow.expected.len());
        let room = self.config.expect_max.saturating_sub(known);
        let new = chunks.into_iter().filter(|c| state.contains(*c)).take(room);
        let new: Vec<u64> = new.collect();
        let mut tables: Vec<u32> = Vec::new();
        for table in new.iter().map(|c| segment_of(*c)) {
            if link.tables.is_missing(region, table) && tables.last() != Some(&table) {
                tables.push(table);
            }
        }
        link.tables.hurry(region, &tables, ahead(who));
        if let Some(flow) = link.flow_mut(image) {
            let new = new.into_iter().map(|c| (region, c, ahead(who)));
            flow.expected.extend(new);
        }
    }

    /// Sends over a link what is expected and what is planned, as far as there is room: one image after the other, first the
    /// one that has least in flight.
    fn send(&mut self, now_us: u64, link: LinkId, actions: &mut Vec<Action>) {
        let Some(state) = self.links.get(link) else {
            return;
        };
        let on_link = self.streams.iter().filter(|s| s.place.0 == link);
        let streaming = on_link.clone().any(Stream::is_viewed);
        let limit = match streaming {
            true => state.window(on_link.clone().all(Stream::is_paused), &self.config),
            false => state.most(&self.config),
        };
        let mut reserved: u64 = on_link.clone().map(Stream::reserved).sum();
        let mut able: Vec<(ImageId, u64)> = state.expecting().map(|image| (image, 0)).collect();
        for stream in on_link.filter(|s| s.may_send(now_us)) {
            let image = stream.place.1;
            if able.iter().all(|(known, _)| *known != image) {
                able.push((image, 0));
            }
        }
        let least = if streaming { limit / ROOM_SHARE } else { 1 };
        let step = (limit / ROOM_SHARE / (able.len() as u64).max(1)).max(1);
        if limit.saturating_sub(state.in_flight() + reserved) < least.max(1) {
            return;
        }
        while let Some(state) = self.links.get_mut(link)
            && let room = limit.saturating_sub(state.in_flight() + reserved)
            && room > 0
            && let Some((image, give)) = state.next(&able, room, step)
        {
            let (used, looks) = self.turn(now_us, (link, image), give, actions);
            reserved += looks;
            // The image has nothing more to send, or waits for the answer to a look.
            if used < give || looks > 0 {
                able.retain(|(other, _)| *other != image);
            }
        }
    }

    /// Lets an image send up to `room` chunks: what is expected, then what its model plans. Returns how much room it used, and
    /// how much of that is reserved for blocks that it looks at first.
    fn turn(
        &mut self,
        now_us: u64,
        place: (LinkId, ImageId),
        room: u64,
        actions: &mut Vec<Action>,
    ) -> (u64, u64) {
        let expected = self.send_expected(now_us, place, room, actions);
        let mut planned = Vec::new();
        let stream = self.streams.iter().position(|s| s.place == place);
        let mut turn = crate::stream::Turn::default();
        if expected < room
            && let Some(i) = stream.filter(|i| self.streams[*i].may_send(now_us))
            && let Some((streams, mut lent)) = self.lend(now_us, place)
        {
            turn = streams[i].send(room - expected, &mut lent, &mut planned);
        }
        for action in &planned {
            if let Action::Fetch { region, chunks, .. } = action {
                let count = u64::from(chunks.count_ones());
                self.links.sent(*region, count, false, now_us);
            }
        }
        actions.append(&mut planned);
        (expected + turn.used, turn.looks)
    }

    /// Sends what is expected of an image, chunks of a block together; returns the number of chunks. The hash of a chunk whose
    /// table isn't here isn't known: the chunk keeps its place until then, and those behind it may go first.
    fn send_expected(
        &mut self,
        now_us: u64,
        (link, image): (LinkId, ImageId),
        most: u64,
        actions: &mut Vec<Action>,
    ) -> u64 {
        let Some(state) = self.links.get_mut(link) else {
            return 0;
        };
        let mut expected = match state.flow_mut(image) {
            Some(flow) => std::mem::take(&mut flow.expected),
            None => return 0,
        };
        let mut room = most;
        let mut together: BTreeMap<(RegionId, u64), (u64, Who)> = BTreeMap::new();
        let mut nameless = VecDeque::new();
        while room > 0
            && nameless.len() < EXPECTED_NAMELESS_MAX
            && let Some((region, chunk, who)) = expected.pop_front()
        {
            if state.tables.is_missing(region, segment_of(chunk)) {
                nameless.push_back((region, chunk, who));
                continue;
            }
            if self
                .regions
                .get_mut(&region)
                .is_some_and(|r| r.expect(chunk))
            {
                let place = (region, chunk_block(chunk));
                let (chunks, _) = together.entry(place).or_insert((0, who));
                *chunks |= 1 << (chunk % u64::from(BLOCK_CHUNKS));
                room -= 1;
            }
        }
        while let Some(place) = nameless.pop_back() {
            expected.push_front(place);
        }
        if let Some(flow) = state.flow_mut(image) {
            flow.expected = expected;
        }
        for ((region, block), (chunks, who)) in together {
            let count = u64::from(chunks.count_ones());
            self.links.sent(region, count, false, now_us);
            actions.push(Action::Fetch {
                region,
                block,
                chunks,
                who,
            });
        }
        most - room
    }
}

/// Returns who asks, for something that nobody waits for.
fn ahead(who: Who) -> Who {
    Who {
        purpose: Purpose::Prefetch,
        ..who
    }
}

/// Returns the number of a chunk's block.
fn chunk_block(chunk: u64) -> u64 {
    chunk / u64::from(BLOCK_CHUNKS)
}

/// Ends the streams for which `over` returns true.
fn end_streams(
    streams: &mut Vec<Stream>,
    over: impl Fn(&Stream) -> bool,
    actions: &mut Vec<Action>,
) {
    let ended = streams.extract_if(.., |stream| over(stream));
    ended.for_each(|stream| stream.end(actions));
}

/// Returns the stream of the image that a region belongs to, and the region's number in the manifest.
fn of_stream(streams: &mut [Stream], region: RegionId) -> Option<(&mut Stream, usize)> {
    streams.iter_mut().find_map(|s| {
        let number = s.region(region)?;
        Some((s, number))
    })
}
