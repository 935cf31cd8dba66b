//! Streaming by a model: which chunks come next, and when the machine should rather wait for them.
//!
//! A [`Stream`] belongs to one image with one model. One of three policies chooses its groups (`vmtorrent` has no file of its
//! own: its plan is the model's order; `vtube`; `floe`). Everything else is shared: the state of each chunk (`groups`) and the
//! decision to pause (`plan`). The machine is paused when it misses a chunk (or starts) and would have to wait anyway, by the
//! plan and its share of the link; it goes on as soon as the link can keep up. How much a stream may send is decided by its
//! link ([`crate::links`]), which other streams share.
//!
//! A pause always ends: when what it waited for has arrived, when nothing arrives any more, or after [`Config::pause_us_max`].

mod floe;
mod groups;
mod plan;
mod vtube;

use crate::model::{ChunkAt, Model};
use crate::tables::Tables;
use crate::window::Region;
use crate::{Action, Config, ImageId, Link, LinkId, Policy, RegionId, segment_of};
use groups::{Groups, State};
use plan::{Planned, lateness};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Most blocks that are being looked at, ahead of sending, at a time.
const LOOKS_MAX: usize = 32;
/// Most chunks without a table that are passed over at a time: bounds the work of an event.
const NAMELESS_MAX: usize = 1024;
/// Assumed round trip of a link that wasn't measured yet, in microseconds.
const RTT_US_UNKNOWN: u64 = 50_000;
/// First and longest pause of sending after a fetch failed, in microseconds.
const FAILED_US_MIN: u64 = 250_000;
const FAILED_US_MAX: u64 = 4_000_000;
/// If an image had more first touches than this before its model came, its machine counts as started.
const STARTED_TOUCHES: u64 = 64;

/// Why the machine is paused, in figures for the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Bytes that have to come over the link first.
    pub missing_bytes: u64,
    /// How long that takes at the link's present speed, in microseconds.
    pub eta_us: u64,
}

/// What models have planned and done, in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Chunks that were touched, that are here, or that the present plan still lacks.
    pub planned_chunks: u64,
    /// Of these, chunks of the model that are here and not touched yet.
    pub buffered_chunks: u64,
    /// First touches.
    pub touched: u64,
    /// First touches that had to wait.
    pub misses: u64,
    /// Chunks fetched ahead by a plan so far, used or not.
    pub fetched_ahead: u64,
    /// Chunks of the model that are here or on their way and not touched yet, whoever asked for them.
    pub unused: u64,
    /// Why the machine is paused, if it is.
    pub buffering: Option<Waiting>,
}

impl Progress {
    pub(crate) fn plus(self, other: Progress) -> Progress {
        Progress {
            planned_chunks: self.planned_chunks + other.planned_chunks,
            buffered_chunks: self.buffered_chunks + other.buffered_chunks,
            touched: self.touched + other.touched,
            misses: self.misses + other.misses,
            fetched_ahead: self.fetched_ahead + other.fetched_ahead,
            unused: self.unused + other.unused,
            buffering: self.buffering.or(other.buffering),
        }
    }
}

#[derive(Debug)]
enum Chooser {
    VmTorrent,
    VTube(vtube::VTube),
    Floe(floe::Floe),
}

#[derive(Debug)]
struct Pause {
    since_us: u64,
    progress_us: u64,
    told: Waiting,
}

/// What the planner lends to a stream.
pub(crate) struct Lent<'a> {
    pub now_us: u64,
    pub config: &'a Config,
    /// The link with the stream's share of its bandwidth.
    pub link: Option<Link>,
    /// The stream's share of the chunks that may be in flight.
    pub window: u64,
    /// First touches of the image, before and since the model came.
    pub touched: u64,
    pub tables: &'a mut Tables,
    pub regions: &'a mut HashMap<RegionId, Region>,
}

/// The result of a stream's turn to send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// How much room it used, in chunks: chunks that it asked for, and blocks that it looks at before it asks for their chunks.
    pub used: u64,
    /// How many of these are blocks that it looks at.
    pub looks: u64,
}

/// The streaming of one image.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The link that it comes over, and its image there.
    pub place: (LinkId, ImageId),
    model: Arc<Model>,
    regions: Vec<RegionId>,
    groups: Groups,
    chooser: Chooser,
    plan: Vec<Planned>,
    /// Index of the first part of the plan that may have something to send.
    next: usize,
    /// Blocks that were looked at, as (region in the manifest, block).
    looked: HashSet<(usize, u64)>,
    /// Looks that aren't answered yet.
    looking: HashSet<(usize, u64)>,
    /// Tables that chunks of the plan wait for.
    hurried: HashSet<(usize, u32)>,
    /// Speculative chunks, by number, that were sent and are neither touched nor given up.
    speculative: HashSet<u32>,
    backed_sent: u64,
    fetched_ahead: u64,
    touched: u64,
    misses: u64,
    started_us: u64,
    paused_us: u64,
    pause: Option<Pause>,
    /// No pause begins before this time: the machine must make progress between two pauses.
    no_pause_before_us: u64,
    failed_until_us: u64,
    failed_us: u64,
    /// Set at the start and at a miss, until it is decided whether to pause.
    stalled: bool,
    /// Whether the miss was of a chunk that the model knows.
    late: bool,
    last_group: Option<u32>,
    replan: bool,
}

impl Stream {
    /// Makes a stream; `None` if the model isn't for this policy.
    pub(crate) fn new(
        policy: Policy,
        place: (LinkId, ImageId),
        model: Arc<Model>,
        regions: Vec<RegionId>,
        lent: &Lent<'_>,
    ) -> Option<Self> {
        if policy.method() != Some(model.method()) {
            return None;
        }
        let chunks_of: Vec<u64> = regions
            .iter()
            .map(|r| lent.regions.get(r).map_or(0, Region::chunks))
            .collect();
        let groups = Groups::new(&model, &chunks_of);
        let started = lent.touched > STARTED_TOUCHES;
        let (mut chooser, mut plan) = (Chooser::VmTorrent, Vec::new());
        match policy {
            Policy::VTube => {
                let mut vtube = vtube::VTube::new(&model);
                if !started {
                    vtube.trigger(&model, None, 0, lent.config);
                }
                vtube.hint_at_us = lent.config.hint_us;
                chooser = Chooser::VTube(vtube);
            }
            Policy::Floe => chooser = Chooser::Floe(floe::Floe::new(&model)),
            _ => {
                let rows = model.rows().iter().enumerate();
                plan.extend(rows.map(|(g, row)| Planned {
                    group: g as u32,
                    due_us: u64::from(row.mean_ms) * 1000,
                    order_us: u64::from(row.mean_ms) * 1000,
                    sure: true,
                    backed: true,
                }));
            }
        }
        Some(Self {
            place,
            model,
            regions,
            groups,
            chooser,
            plan,
            next: 0,
            looked: HashSet::new(),
            looking: HashSet::new(),
            hurried: HashSet::new(),
            speculative: HashSet::new(),
            backed_sent: 0,
            fetched_ahead: 0,
            touched: 0,
            misses: 0,
            started_us: lent.now_us,
            paused_us: 0,
            pause: None,
            no_pause_before_us: 0,
            failed_until_us: 0,
            failed_us: FAILED_US_MIN,
            stalled: !started,
            late: false,
            last_group: None,
            replan: true,
        })
    }

    /// Returns the number in the manifest of one of its regions.
    pub(crate) fn region(&self, region: RegionId) -> Option<usize> {
        self.regions.iter().position(|r| *r == region)
    }

    pub(crate) fn regions(&self) -> &[RegionId] {
        &self.regions
    }

    /// Returns whether the model knows a chunk.
    pub(crate) fn knows(&self, region: usize, chunk: u64) -> bool {
        self.groups.find(region, chunk).is_some()
    }

    pub(crate) fn progress(&self) -> Progress {
        let wanted = self
            .plan
            .iter()
            .map(|p| u64::from(self.groups.missing_chunks(p.group)));
        Progress {
            planned_chunks: self.groups.here + wanted.sum::<u64>() + self.touched,
            buffered_chunks: self.groups.here,
            touched: self.touched,
            misses: self.misses,
            fetched_ahead: self.fetched_ahead,
            unused: self.groups.here + self.groups.flight,
            buffering: self.pause.as_ref().map(|p| p.told),
        }
    }

    /// Returns the time on the machine's own clock: since the model came, without pauses.
    fn run_us(&self, now_us: u64) -> u64 {
        let open = self
            .pause
            .as_ref()
            .map_or(0, |p| now_us.saturating_sub(p.since_us));
        now_us
            .saturating_sub(self.started_us)
            .saturating_sub(self.paused_us + open)
    }

    /// Notes that a chunk was touched for the first time.
    pub(crate) fn touch(&mut self, region: usize, chunk: u64, missed: bool, lent: &mut Lent<'_>) {
        self.touched += 1;
        self.misses += u64::from(missed);
        let Some(id) = self.groups.find(region, chunk) else {
            return;
        };
        let run_us = self.run_us(lent.now_us);
        self.speculative.remove(&id);
        let known = self.groups.state(id);
        self.groups.set(id, State::Touched);
        let group = self.groups.group_of(id);
        self.last_group = Some(group);
        self.stalled |= missed;
        self.late |= missed && known != State::Never;
        match &mut self.chooser {
            Chooser::VmTorrent => {}
            Chooser::VTube(vtube) => {
                if missed {
                    self.replan |= vtube.trigger(&self.model, Some(group), run_us, lent.config);
                }
            }
            Chooser::Floe(floe) => floe.touch(&self.model, group, missed, run_us),
        }
    }

    /// Takes the answer to a look: chunks that aren't worth fetching now are never fetched.
    pub(crate) fn looked(&mut self, region: usize, block: u64, candidates: u64) {
        self.looking.remove(&(region, block));
        self.looked.insert((region, block));
        let all: Vec<(u32, u32)> = self.groups.block(region, block).collect();
        for (bit, id) in all {
            if candidates >> bit & 1 == 0 && self.groups.state(id) == State::New {
                self.groups.set(id, State::Never);
            }
        }
    }

    /// Notes that a fetch ended, whoever asked for it.
    pub(crate) fn fetched(
        &mut self,
        region: usize,
        block: u64,
        chunks: u64,
        ok: bool,
        now_us: u64,
    ) {
        let all: Vec<(u32, u32)> = self.groups.block(region, block).collect();
        for (_, id) in all.into_iter().filter(|(bit, _)| chunks >> bit & 1 == 1) {
            match (self.groups.state(id), ok) {
                (State::Flight | State::New, true) => self.groups.set(id, State::Here),
                (State::Flight, false) => {
                    self.fetched_ahead = self.fetched_ahead.saturating_sub(1);
                    self.speculative.remove(&id);
                    self.groups.set(id, State::New);
                    self.next = 0;
                }
                _ => {}
            }
        }
        if ok {
            self.failed_us = FAILED_US_MIN;
            self.failed_until_us = 0;
            if let Some(pause) = &mut self.pause {
                pause.progress_us = now_us;
            }
        } else {
            self.failed_until_us = now_us + self.failed_us;
            self.failed_us = (self.failed_us * 2).min(FAILED_US_MAX);
        }
    }

    /// Notes that a table arrived (or was given up): chunks that waited for it may be asked for.
    pub(crate) fn table(&mut self, region: usize, segment: u32) {
        if self.hurried.remove(&(region, segment)) {
            self.next = 0;
        }
    }

    /// Called after every event: makes a plan if it is time, and pauses the machine or lets it go on. It sends nothing.
    pub(crate) fn step(&mut self, lent: &Lent<'_>, actions: &mut Vec<Action>) {
        self.choose(lent);
        self.pause(lent, actions);
    }

    /// Returns whether its machine is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    /// Returns whether it may have something to send: not while it waits for the answer to a look, nor soon after a failed
    /// fetch.
    pub(crate) fn may_send(&self, now_us: u64) -> bool {
        self.looking.is_empty() && now_us >= self.failed_until_us
    }

    /// Returns how much room is reserved until its looks are answered, in chunks.
    pub(crate) fn reserved(&self) -> u64 {
        self.looking.len() as u64
    }

    /// Returns how many speculative chunks may be sent now: the number that lie unused is bounded whatever the model says.
    fn speculation(&self, lent: &Lent<'_>) -> u64 {
        let credit = (self.touched + self.backed_sent) as f64;
        let most = lent.window + (credit * lent.config.speculation_ratio) as u64;
        most.saturating_sub(self.speculative.len() as u64)
    }

    fn choose(&mut self, lent: &Lent<'_>) {
        let run_us = self.run_us(lent.now_us);
        let link = lent.link.unwrap_or(Link {
            bytes_per_s: lent.config.slow_bytes_per_s,
            rtt_us: RTT_US_UNKNOWN,
        });
        let speculation = self.speculation(lent);
        match &mut self.chooser {
            Chooser::VmTorrent => {}
            Chooser::VTube(vtube) => {
                if run_us >= vtube.hint_at_us {
                    vtube.hint_at_us = run_us + lent.config.hint_us;
                    if self.last_group.is_some() {
                        self.replan |=
                            vtube.trigger(&self.model, self.last_group, run_us, lent.config);
                    }
                }
                if std::mem::take(&mut self.replan) {
                    self.plan = vtube.plan(&self.groups);
                    self.next = 0;
                }
            }
            Chooser::Floe(floe) => {
                if floe.is_due(run_us) {
                    let choice = floe::Choice {
                        config: lent.config,
                        link,
                        run_us,
                        speculation,
                    };
                    self.plan = floe.plan(&self.groups, &choice);
                    self.next = 0;
                }
            }
        }
    }

    fn pause(&mut self, lent: &Lent<'_>, actions: &mut Vec<Action>) {
        let Some(link) = lent.link else {
            return;
        };
        let stalled = self.stalled && !matches!(self.chooser, Chooser::VmTorrent);
        if self.pause.is_none() && (!stalled || lent.now_us < self.no_pause_before_us) {
            return;
        }
        let foreseen = self.pause.is_some() || std::mem::take(&mut self.late);
        self.stalled = false;
        // A machine that has overtaken its plan will do so again: it goes on only with a reserve.
        let reserve = matches!(self.chooser, Chooser::Floe(_)) && foreseen;
        let reserve_us = if reserve { lent.config.reserve_us } else { 0 };
        let run_us = self.run_us(lent.now_us) + reserve_us;
        let late = lateness(&self.plan, &self.groups, run_us, link, lent.config);
        let told = Waiting {
            missing_bytes: late.bytes,
            eta_us: late.us,
        };
        let pausing = match &mut self.pause {
            None if late.us < lent.config.pause_us_min => return,
            None => {
                self.pause = Some(Pause {
                    since_us: lent.now_us,
                    progress_us: lent.now_us,
                    told,
                });
                true
            }
            Some(pause) => {
                pause.told = told;
                let idle_us = lent.now_us.saturating_sub(pause.progress_us);
                let long_us = lent.now_us.saturating_sub(pause.since_us);
                let go_on = late.us == 0
                    || idle_us >= lent.config.pause_idle_us_max
                    || long_us >= lent.config.pause_us_max;
                if !go_on {
                    return;
                }
                self.paused_us += long_us;
                self.pause = None;
                self.no_pause_before_us = lent.now_us + lent.config.run_us_min;
                false
            }
        };
        actions.extend(self.buffer(pausing, told));
    }

    /// Ends the stream: a machine that is paused for it goes on.
    pub(crate) fn end(self, actions: &mut Vec<Action>) {
        if self.pause.is_some() {
            actions.extend(self.buffer(false, Waiting::default()));
        }
    }

    fn buffer(&self, pause: bool, told: Waiting) -> Option<Action> {
        self.regions.first().map(|region| Action::Buffer {
            region: *region,
            pause,
            missing_bytes: told.missing_bytes,
            eta_us: told.eta_us,
        })
    }

    /// Asks for planned chunks, in the plan's order, as far as there is room. A block is looked at before its first chunk is
    /// asked for; until the answer its chunks keep their places. The caller counts what is sent.
    pub(crate) fn send(
        &mut self,
        room: u64,
        lent: &mut Lent<'_>,
        actions: &mut Vec<Action>,
    ) -> Turn {
        let all = room;
        let mut room = room;
        let mut together: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let mut nameless = 0;
        let mut speculation = self.speculation(lent);
        while let Some(p) = self.plan.get(self.next)
            && self.groups.new_chunks(p.group) == 0
        {
            self.next += 1;
        }
        let mut at = self.next;
        'plan: while let Some(planned) = self.plan.get(at).copied() {
            at += 1;
            let mut from = 0;
            while let Some(id) = self.groups.next_new(planned.group, from) {
                if room == 0 || nameless >= NAMELESS_MAX || self.looking.len() >= LOOKS_MAX {
                    break 'plan;
                }
                if !planned.backed && speculation == 0 {
                    continue 'plan;
                }
                from = id + 1;
                let ChunkAt { region, chunk } = self.groups.at(id);
                let (number, chunk) = (usize::from(region), u64::from(chunk));
                let (region, place) = (self.regions[number], (number, chunk / 64));
                if lent.tables.is_missing(region, segment_of(chunk)) {
                    nameless += 1;
                    if self.hurried.insert((number, segment_of(chunk))) {
                        lent.tables.hurry(region, &[segment_of(chunk)]);
                    }
                } else if !self.looked.contains(&place) {
                    room -= 1;
                    if self.looking.insert(place) {
                        let block = place.1;
                        actions.push(Action::Look { region, block });
                    }
                } else if lent
                    .regions
                    .get_mut(&region)
                    .is_some_and(|r| r.expect(chunk))
                {
                    room -= 1;
                    self.groups.set(id, State::Flight);
                    self.fetched_ahead += 1;
                    if planned.backed {
                        self.backed_sent += 1;
                    } else {
                        self.speculative.insert(id);
                        speculation -= 1;
                    }
                    *together.entry(place).or_default() |= 1 << (chunk % 64);
                } else {
                    // Somebody else asked for it: it is here or on its way.
                    self.groups.set(id, State::Here);
                }
            }
        }
        for ((number, block), chunks) in together {
            actions.push(Action::Fetch {
                region: self.regions[number],
                block,
                chunks,
            });
        }
        Turn {
            used: all - room,
            looks: self.reserved(),
        }
    }
}
