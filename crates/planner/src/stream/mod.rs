//! Streaming by a model: which chunks come next, and when the machine should rather wait for them.
//!
//! A [`Stream`] belongs to one image with one model: it knows which chunks are here and under way (`groups`), and brings each
//! of them once, whichever machines want it. Each machine of the image has a [`Viewer`]: where in the model it is, its plan, and
//! its pause. One of three policies chooses what is planned (`vmtorrent` has no file of its own: its plan is the model's order;
//! `vtube`; `floe`). A machine is paused when it misses a chunk (or starts) and would have to wait anyway, by the plans and the
//! image's share of the link (`plan`, `pauses`); it goes on as soon as the link can keep up. How much a stream may send is decided by its
//! link ([`crate::links`]), which other streams share; the machines of an image take turns in that.
//!
//! A pause always ends: when what it waited for has arrived, when nothing arrives any more, or after [`Config::pause_us_max`].

mod floe;
mod groups;
mod pauses;
mod plan;
mod viewer;
mod vtube;

use crate::model::{ChunkAt, Model};
use crate::tables::Tables;
use crate::window::Region;
use crate::{Action, Config, ImageId, Link, LinkId, Policy, RegionId, segment_of};
use floe_sched::{MachineId, Who};
use groups::{Groups, State};
use plan::lateness;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use viewer::{Rule, Viewer};

/// Most blocks that are being looked at, ahead of sending, at a time.
const LOOKS_MAX: usize = 32;
/// Most chunks without a table that are passed over at a time: bounds the work of an event.
const NAMELESS_MAX: usize = 1024;
/// Assumed round trip of a link that wasn't measured yet, in microseconds.
const RTT_US_UNKNOWN: u64 = 50_000;
/// First and longest pause of sending after a fetch failed, in microseconds.
const FAILED_US_MIN: u64 = 250_000;
const FAILED_US_MAX: u64 = 4_000_000;

/// Why the machine is paused, in figures for the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Bytes that have to come over the link first.
    pub missing_bytes: u64,
    /// How long that takes at the link's present speed, in microseconds.
    pub eta_us: u64,
}

/// What a model has planned for a machine, and what came of it, in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Chunks that were touched, that are here, or that the present plan still lacks.
    pub planned_chunks: u64,
    /// Of these, chunks of the model that are here and not touched yet.
    pub buffered_chunks: u64,
    /// First touches of this machine.
    pub touched: u64,
    /// First touches of this machine that had to wait.
    pub misses: u64,
    /// Chunks of the image fetched ahead by a plan so far, used or not.
    pub fetched_ahead: u64,
    /// Chunks of the model that are here or on their way and not touched yet, whoever asked for them.
    pub unused: u64,
    /// Why the machine is paused, if it is.
    pub buffering: Option<Waiting>,
}

/// What the planner lends to a stream.
pub(crate) struct Lent<'a> {
    pub now_us: u64,
    pub config: &'a Config,
    /// The link with the stream's share of its bandwidth.
    pub link: Option<Link>,
    /// The stream's share of the chunks that may be in flight.
    pub window: u64,
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
    rule: Rule,
    viewers: BTreeMap<MachineId, Viewer>,
    /// How far the viewer had come that was last given a turn.
    turn: u64,
    /// Blocks that were looked at, as (region in the manifest, block).
    looked: HashSet<(usize, u64)>,
    /// Looks that aren't answered yet.
    looking: HashSet<(usize, u64)>,
    /// Tables that chunks of the plans wait for.
    hurried: HashSet<(usize, u32)>,
    /// Speculative chunks, by number, that were sent and are neither touched nor given up.
    speculative: HashSet<u32>,
    backed_sent: u64,
    fetched_ahead: u64,
    touched: u64,
    failed_until_us: u64,
    failed_us: u64,
}

/// What the viewers of a stream send in one turn of their image.
#[derive(Default)]
struct Sending {
    /// Chunks by machine, region in the manifest, and block.
    together: BTreeMap<(MachineId, usize, u64), u64>,
    nameless: usize,
    /// How many speculative chunks may still be sent.
    speculation: u64,
}

impl Stream {
    /// Makes a stream that nobody views; `None` if the model isn't for this policy.
    pub(crate) fn new(
        policy: Policy,
        place: (LinkId, ImageId),
        model: Arc<Model>,
        regions: Vec<RegionId>,
        lent: &Lent<'_>,
    ) -> Option<Self> {
        let policy = policy.rule(model.method())?;
        let chunks_of: Vec<u64> = regions
            .iter()
            .map(|r| lent.regions.get(r).map_or(0, Region::chunks))
            .collect();
        Some(Self {
            place,
            regions,
            groups: Groups::new(&model, &chunks_of),
            rule: Rule::new(policy, &model),
            model,
            viewers: BTreeMap::new(),
            turn: 0,
            looked: HashSet::new(),
            looking: HashSet::new(),
            hurried: HashSet::new(),
            speculative: HashSet::new(),
            backed_sent: 0,
            fetched_ahead: 0,
            touched: 0,
            failed_until_us: 0,
            failed_us: FAILED_US_MIN,
        })
    }

    /// Adds a machine. `running`: it runs already, so its start isn't buffered.
    pub(crate) fn view(&mut self, who: Who, running: bool, lent: &Lent<'_>) {
        let now = (lent.now_us, lent.config);
        let viewer = Viewer::new(who, running, &self.model, &mut self.rule, now);
        self.viewers.entry(who.machine).or_insert(viewer);
    }

    /// Removes a machine; if it is paused, it goes on.
    pub(crate) fn leave(&mut self, machine: MachineId) -> Option<Action> {
        self.viewers.remove(&machine)?.end()
    }

    /// Returns the number in the manifest of one of its regions.
    pub(crate) fn region(&self, region: RegionId) -> Option<usize> {
        self.regions.iter().position(|r| *r == region)
    }

    pub(crate) fn regions(&self) -> &[RegionId] {
        &self.regions
    }

    /// Returns whether any machine views it.
    pub(crate) fn is_viewed(&self) -> bool {
        !self.viewers.is_empty()
    }

    /// Returns whether the model knows a chunk.
    pub(crate) fn knows(&self, region: usize, chunk: u64) -> bool {
        self.groups.find(region, chunk).is_some()
    }

    /// Returns whether neighbours of chunks that the model doesn't know are guessed, too: the published rules know nothing of that.
    pub(crate) fn guesses_beside(&self) -> bool {
        matches!(self.rule, Rule::Floe(_))
    }

    /// Returns what all its machines share.
    fn shared(&self) -> Progress {
        Progress {
            planned_chunks: self.groups.here,
            buffered_chunks: self.groups.here,
            fetched_ahead: self.fetched_ahead,
            unused: self.groups.here + self.groups.flight,
            ..Progress::default()
        }
    }

    /// Returns what is planned for a machine, and what came of it; `None` if it doesn't view this.
    pub(crate) fn progress(&self, machine: MachineId) -> Option<Progress> {
        let viewer = self.viewers.get(&machine)?;
        Some(viewer.progress(self.shared(), &self.groups))
    }

    /// Notes that a machine touched a chunk for the first time. A machine that doesn't view this moves no viewer.
    pub(crate) fn touch(
        &mut self,
        (region, chunk): (usize, u64),
        missed: bool,
        who: Who,
        lent: &Lent<'_>,
    ) {
        self.touched += 1;
        let known = self.groups.find(region, chunk).map(|id| {
            self.speculative.remove(&id);
            let before = self.groups.state(id);
            self.groups.set(id, State::Touched);
            (self.groups.group_of(id), before)
        });
        if let Some(viewer) = self.viewers.get_mut(&who.machine) {
            viewer.who.class = who.class;
            viewer.touch(known, missed, (&self.model, &mut self.rule), lent);
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
                    self.begin_again();
                }
                _ => {}
            }
        }
        if ok {
            self.failed_us = FAILED_US_MIN;
            self.failed_until_us = 0;
            self.viewers.values_mut().for_each(|v| v.came(now_us));
        } else {
            self.failed_until_us = now_us + self.failed_us;
            self.failed_us = (self.failed_us * 2).min(FAILED_US_MAX);
        }
    }

    /// Notes that a table arrived (or was given up): chunks that waited for it may be asked for.
    pub(crate) fn table(&mut self, region: usize, segment: u32) {
        if self.hurried.remove(&(region, segment)) {
            self.begin_again();
        }
    }

    /// Lets all plans be looked through from their beginning, because something in them may be asked for again.
    fn begin_again(&mut self) {
        self.viewers.values_mut().for_each(|v| v.next = 0);
    }

    /// Called after every event: makes plans if it is time, and pauses machines or lets them go on. It sends nothing.
    pub(crate) fn step(&mut self, lent: &Lent<'_>, actions: &mut Vec<Action>) {
        let speculation = self.speculation(lent);
        for viewer in self.viewers.values_mut() {
            let rule = (&*self.model, &mut self.rule);
            viewer.choose(rule, &self.groups, speculation, lent);
        }
        let Some(link) = lent.link else {
            return;
        };
        if !self.viewers.values().any(|v| v.decides(lent.now_us)) {
            return;
        }
        let ahead: Vec<_> = self.viewers.values().map(|v| v.ahead(lent)).collect();
        let late = lateness(&ahead, &self.groups, link, lent.config);
        for (viewer, late) in self.viewers.values_mut().zip(late) {
            if viewer.decides(lent.now_us) {
                actions.extend(viewer.decide(late, lent));
            }
        }
    }

    /// Returns whether all its machines are paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.viewers.values().all(Viewer::is_paused)
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

    /// Returns how many speculative chunks may be sent now: the number that lie unused is bounded whatever the model says, and
    /// however many machines there are.
    fn speculation(&self, lent: &Lent<'_>) -> u64 {
        let credit = (self.touched + self.backed_sent) as f64;
        let most = lent.window + (credit * lent.config.speculation_ratio) as u64;
        most.saturating_sub(self.speculative.len() as u64)
    }

    /// Ends the stream: machines that are paused for it go on.
    pub(crate) fn end(self, actions: &mut Vec<Action>) {
        actions.extend(self.viewers.into_values().filter_map(Viewer::end));
    }

    /// Asks for planned chunks, in the plans' order, as far as there is room; the machines take turns. The caller counts what is
    /// sent.
    pub(crate) fn send(
        &mut self,
        room: u64,
        lent: &mut Lent<'_>,
        actions: &mut Vec<Action>,
    ) -> Turn {
        let mut left = room;
        let mut sending = Sending {
            speculation: self.speculation(lent),
            ..Sending::default()
        };
        let mut able: Vec<MachineId> = self.viewers.keys().copied().collect();
        while left > 0
            && let Some((machine, give)) = self.next_viewer(&able, left)
        {
            let used = self.send_for(machine, give, &mut sending, lent, actions);
            left -= used;
            if used < give {
                able.retain(|other| *other != machine);
            }
        }
        for ((machine, number, block), chunks) in sending.together {
            actions.push(Action::Fetch {
                region: self.regions[number],
                block,
                chunks,
                who: self.viewers.get(&machine).map_or(Who::default(), |v| v.who),
            });
        }
        Turn {
            used: room - left,
            looks: self.reserved(),
        }
    }

    /// Returns whose turn it is among `able`, and how much of `room` it may use: it catches up with the one that has come next
    /// least far, and goes a step further. One that had nothing to send for a while gets no credit for it.
    fn next_viewer(&mut self, able: &[MachineId], room: u64) -> Option<(MachineId, u64)> {
        let mut levels: Vec<(u64, MachineId)> = able
            .iter()
            .filter_map(|machine| Some((self.viewers.get(machine)?.sent.max(self.turn), *machine)))
            .collect();
        levels.sort_unstable();
        let (own, machine) = *levels.first()?;
        let step = (room / able.len() as u64).max(1);
        let give = match levels.get(1) {
            Some((next, _)) => (next - own + step).min(room),
            None => room,
        };
        self.turn = own;
        self.viewers.get_mut(&machine)?.sent = own;
        Some((machine, give))
    }

    /// Asks for what is planned for a machine; returns how much room that used. A block is looked at before its first chunk is
    /// asked for; until the answer its chunks keep their places.
    fn send_for(
        &mut self,
        machine: MachineId,
        room: u64,
        sending: &mut Sending,
        lent: &mut Lent<'_>,
        actions: &mut Vec<Action>,
    ) -> u64 {
        let Some(viewer) = self.viewers.get_mut(&machine) else {
            return 0;
        };
        let who = viewer.who;
        let all = room;
        let mut room = room;
        while let Some(p) = viewer.plan.get(viewer.next)
            && self.groups.new_chunks(p.group) == 0
        {
            viewer.next += 1;
        }
        let mut at = viewer.next;
        'plan: while let Some(planned) = viewer.plan.get(at).copied() {
            at += 1;
            let mut from = 0;
            while let Some(id) = self.groups.next_new(planned.group, from) {
                let looks = self.looking.len() >= LOOKS_MAX;
                if room == 0 || sending.nameless >= NAMELESS_MAX || looks {
                    break 'plan;
                }
                if !planned.backed && sending.speculation == 0 {
                    continue 'plan;
                }
                from = id + 1;
                let ChunkAt { region, chunk } = self.groups.at(id);
                let (number, chunk) = (usize::from(region), u64::from(chunk));
                let (region, place) = (self.regions[number], (number, chunk / 64));
                if lent.tables.is_missing(region, segment_of(chunk)) {
                    sending.nameless += 1;
                    if self.hurried.insert((number, segment_of(chunk))) {
                        lent.tables.hurry(region, &[segment_of(chunk)], who);
                    }
                } else if !self.looked.contains(&place) {
                    room -= 1;
                    if self.looking.insert(place) {
                        let block = place.1;
                        actions.push(Action::Look { region, block, who });
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
                        sending.speculation -= 1;
                    }
                    let together = sending.together.entry((machine, place.0, place.1));
                    *together.or_default() |= 1 << (chunk % 64);
                } else {
                    // Somebody else asked for it: it is here or on its way.
                    self.groups.set(id, State::Here);
                }
            }
        }
        viewer.sent += all - room;
        all - room
    }
}
