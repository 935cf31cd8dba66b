//! The links that images come over, and how the images on one link share it.
//!
//! Each image's chunks come over one link: one fetcher, one origin. What is under way on a link is bounded by what the link
//! carries during a round trip (`pace`), whatever other links do. Within that bound the image that has least under way goes
//! first ([`LinkState::next`]): all who want something get equally much, what one of them does not use goes to the others, and
//! nobody waits for somebody else's plan to end.

use crate::budget::Budget;
use crate::pace::Pace;
use crate::tables::Tables;
use crate::{Config, ImageId, LinkId, RegionId};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A model leaves this part of a round trip's free chunks to neighbours.
const FREE_BESIDE_MODEL: u64 = 8;
/// How fast it is forgotten what an image had carried, in microseconds: long enough to bridge the gaps between requests, short
/// enough to see within seconds that an image has become quiet.
const CARRIED_KEPT_US: f64 = 1e6;

/// A link as it is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second on the wire.
    pub bytes_per_s: f64,
    /// Round trip in microseconds.
    pub rtt_us: u64,
}

/// One image on a link.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub budget: Budget,
    /// Chunks that are known to be wanted, first one first.
    pub expected: VecDeque<(RegionId, u64)>,
    regions: u32,
    /// Chunks that it asked for lately, the older the less they count.
    carried: f64,
    carried_at_us: u64,
    /// When it last had its turn, counted in turns of the link.
    turn: u64,
}

impl Flow {
    fn carried(&self, now_us: u64) -> f64 {
        let ago_us = now_us.saturating_sub(self.carried_at_us) as f64;
        self.carried * (-ago_us / CARRIED_KEPT_US).exp()
    }

    fn carry(&mut self, chunks: u64, now_us: u64) {
        self.carried = self.carried(now_us) + chunks as f64;
        self.carried_at_us = now_us;
    }

    fn is_over(&self) -> bool {
        self.regions == 0 && self.budget.in_flight() == 0
    }
}

/// One link.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    measured: Option<Link>,
    pace: Pace,
    pub tables: Tables,
    flows: BTreeMap<ImageId, Flow>,
    in_flight: u64,
    turns: u64,
}

impl LinkState {
    fn measure(&mut self, link: Link) {
        if link.bytes_per_s.is_finite() && link.bytes_per_s > 0.0 {
            self.measured = Some(link);
            self.pace.estimate(link);
        }
    }

    /// As it was measured last.
    pub(crate) fn measured(&self) -> Option<Link> {
        self.measured
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(crate) fn flow(&self, image: ImageId) -> Option<&Flow> {
        self.flows.get(&image)
    }

    pub(crate) fn flow_mut(&mut self, image: ImageId) -> Option<&mut Flow> {
        self.flows.get_mut(&image)
    }

    /// Images of which something is expected.
    pub(crate) fn expecting(&self) -> impl Iterator<Item = ImageId> + '_ {
        let waiting = self.flows.iter().filter(|(_, f)| !f.expected.is_empty());
        waiting.map(|(image, _)| *image)
    }

    /// Chunks that the link carries during one round trip: while the demanded one is on its way they cost no time.
    fn free_chunks(&self, config: &Config) -> u64 {
        let Some(link) = self.measured else {
            return u64::from(config.in_flight_chunks_min);
        };
        let wire = link.bytes_per_s * link.rtt_us as f64 / 1e6;
        let chunks = wire / config.wire_bytes();
        (chunks as u64).clamp(
            u64::from(config.in_flight_chunks_min),
            u64::from(config.in_flight_chunks_max),
        )
    }

    /// Between the slow and the fast ratio by the logarithm of the speed; slow while nothing is known.
    fn waste_ratio(&self, config: &Config) -> f64 {
        let Some(link) = self.measured else {
            return config.waste_ratio_slow;
        };
        let span = (config.fast_bytes_per_s / config.slow_bytes_per_s).ln();
        let at = ((link.bytes_per_s / config.slow_bytes_per_s).ln() / span).clamp(0.0, 1.0);
        config.waste_ratio_slow + at * (config.waste_ratio_fast - config.waste_ratio_slow)
    }

    /// Chunks that may be in flight while nothing is streamed over the link by a model.
    pub(crate) fn most(&self, config: &Config) -> u64 {
        (2 * self.free_chunks(config)).min(u64::from(config.in_flight_chunks_max))
    }

    /// Chunks that may be in flight while something is. `paused`: all machines that stream over it are.
    pub(crate) fn window(&self, paused: bool, config: &Config) -> u64 {
        self.pace.window_chunks(self.measured, paused, config)
    }

    /// The most that is ever in flight, as the link is measured now.
    pub(crate) fn room(&self, config: &Config) -> u64 {
        self.most(config).max(self.window(true, config))
    }

    /// Images that use the link now, an image counted that is about to.
    fn users(&self, image: ImageId, now_us: u64) -> u64 {
        let uses = |flow: &Flow| flow.budget.in_flight() > 0 || flow.carried(now_us) >= 1.0;
        let users = self.flows.iter().filter(|(i, f)| **i == image || uses(f));
        (users.count() as u64).max(1)
    }

    /// The part of the link that an image can count on: what the others leave of it, and never less than an even part. What the others
    /// use is what they asked for lately or have in flight, whichever is more.
    pub(crate) fn share(&self, image: ImageId, now_us: u64, config: &Config) -> f64 {
        let users = self.users(image, now_us);
        let Some(link) = self.measured.filter(|_| users > 1) else {
            return 1.0 / users as f64;
        };
        let chunks_per_us = link.bytes_per_s / config.wire_bytes() / 1e6;
        let window = self.window(false, config) as f64;
        let used = |flow: &Flow| {
            let lately = flow.carried(now_us) / (chunks_per_us * CARRIED_KEPT_US);
            lately.max(flow.budget.in_flight() as f64 / window)
        };
        let others = self.flows.iter().filter(|(i, _)| **i != image);
        let used: f64 = others.map(|(_, flow)| used(flow)).sum();
        (1.0 - used).max(1.0 / users as f64)
    }

    /// The link as an image finds it: with its part of the bandwidth.
    pub(crate) fn as_seen_by(&self, image: ImageId, now_us: u64, config: &Config) -> Option<Link> {
        self.measured.map(|link| Link {
            bytes_per_s: link.bytes_per_s * self.share(image, now_us, config),
            ..link
        })
    }

    /// Guesses that may be sent now for an image: bounded by the waste that is allowed, by what may be in flight, and where others
    /// use the link too by an even part of it. `beside_model`: a model knows most of what will be touched, so little is left to
    /// neighbours, and what they waste is added to what the model does.
    pub(crate) fn guesses(
        &self,
        image: ImageId,
        beside_model: bool,
        now_us: u64,
        config: &Config,
    ) -> u64 {
        let Some(flow) = self.flows.get(&image) else {
            return 0;
        };
        let users = self.users(image, now_us);
        let free = self.free_chunks(config) / users;
        let (free, ratio) = match beside_model {
            true => (free / FREE_BESIDE_MODEL, config.waste_ratio_beside_model),
            false => (free, self.waste_ratio(config)),
        };
        let room = self.most(config).saturating_sub(self.in_flight);
        let part = match users {
            1 => room,
            _ => (self.window(false, config) / users)
                .max(1)
                .saturating_sub(flow.budget.in_flight()),
        };
        flow.budget.guesses(free, ratio).min(room).min(part)
    }

    /// Whose turn it is among `able` (the image, and what it holds reserved), and how many chunks it may send of the `room` that
    /// there is: it catches up with the next one and goes `step` further.
    pub(crate) fn next(
        &mut self,
        able: &[(ImageId, u64)],
        room: u64,
        step: u64,
    ) -> Option<(ImageId, u64)> {
        let level = |(image, reserved): &(ImageId, u64)| {
            let flow = self.flows.get(image)?;
            Some((flow.budget.in_flight() + reserved, flow.turn, *image))
        };
        let mut levels: Vec<_> = able.iter().filter_map(level).collect();
        levels.sort_unstable();
        let (own, _, image) = *levels.first()?;
        let give = match levels.get(1) {
            Some((next, _, _)) => (next - own + step).min(room),
            None => room,
        };
        self.turns += 1;
        self.flows.get_mut(&image)?.turn = self.turns;
        Some((image, give))
    }
}

/// Where a region's chunks come from.
#[derive(Clone, Copy, Debug)]
struct Place {
    link: LinkId,
    image: ImageId,
    in_flight: u64,
    /// The region was removed; what was in flight then still takes its room.
    gone: bool,
}

/// All links of a mount.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: BTreeMap<LinkId, LinkState>,
    places: HashMap<RegionId, Place>,
}

impl Links {
    pub(crate) fn ids(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    pub(crate) fn get(&self, link: LinkId) -> Option<&LinkState> {
        self.links.get(&link)
    }

    pub(crate) fn get_mut(&mut self, link: LinkId) -> Option<&mut LinkState> {
        self.links.get_mut(&link)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &LinkState> {
        self.links.values()
    }

    /// The budgets of all images.
    pub(crate) fn budgets(&self) -> impl Iterator<Item = &Budget> {
        let flows = self.links.values().flat_map(|link| link.flows.values());
        flows.map(|flow| &flow.budget)
    }

    /// A link was measured; what of its tables failed may be asked for again.
    pub(crate) fn measured(&mut self, link: LinkId, measured: Link) {
        let state = self.links.entry(link).or_default();
        state.measure(measured);
        state.tables.retry();
    }

    pub(crate) fn add(&mut self, region: RegionId, link: LinkId, image: ImageId) {
        // A number that is used again: what was under way for the region before isn't waited for any more.
        if let Some(before) = self.places.get(&region) {
            self.ended(region, before.in_flight);
        }
        let state = self.links.entry(link).or_default();
        state.flows.entry(image).or_default().regions += 1;
        let place = Place {
            link,
            image,
            in_flight: 0,
            gone: false,
        };
        self.places.insert(region, place);
    }

    /// The link and the image of a region that is there.
    pub(crate) fn place(&self, region: RegionId) -> Option<(LinkId, ImageId)> {
        let place = self.places.get(&region).filter(|place| !place.gone)?;
        Some((place.link, place.image))
    }

    /// The state of a region's link, and its image.
    pub(crate) fn of(&mut self, region: RegionId) -> Option<(&mut LinkState, ImageId)> {
        let (link, image) = self.place(region)?;
        Some((self.links.get_mut(&link)?, image))
    }

    pub(crate) fn budget(&mut self, region: RegionId) -> Option<&mut Budget> {
        let (link, image) = self.of(region)?;
        Some(&mut link.flow_mut(image)?.budget)
    }

    /// A region is gone, and with it `unused` guesses.
    pub(crate) fn remove(&mut self, region: RegionId, unused: u64) {
        let Some((state, image)) = self.of(region) else {
            return;
        };
        state.tables.remove(region);
        if let Some(flow) = state.flow_mut(image) {
            flow.budget.settled(unused);
            flow.expected.retain(|(r, _)| *r != region);
            flow.regions -= 1;
        }
        if let Some(place) = self.places.get_mut(&region) {
            place.gone = true;
        }
        self.clear(region);
    }

    /// Forgets a region that is gone once nothing of it is in flight, and what was there only for it.
    fn clear(&mut self, region: RegionId) {
        let Some(place) = self.places.get(&region).copied() else {
            return;
        };
        if !place.gone || place.in_flight > 0 {
            return;
        }
        self.places.remove(&region);
        let Some(state) = self.links.get_mut(&place.link) else {
            return;
        };
        if state.flows.get(&place.image).is_some_and(Flow::is_over) {
            state.flows.remove(&place.image);
        }
        if state.flows.is_empty() {
            self.links.remove(&place.link);
        }
    }

    /// A machine touched a chunk for the first time; one that is missed crosses the link.
    pub(crate) fn touch(&mut self, region: RegionId, missed: bool, now_us: u64) {
        let Some((link, image)) = self.of(region) else {
            return;
        };
        if let Some(flow) = link.flow_mut(image) {
            flow.budget.touch();
            flow.carry(u64::from(missed), now_us);
        }
    }

    pub(crate) fn sent(&mut self, region: RegionId, chunks: u64, guessed: bool, now_us: u64) {
        let Some(place) = self.places.get_mut(&region) else {
            return;
        };
        place.in_flight += chunks;
        let Some(state) = self.links.get_mut(&place.link) else {
            return;
        };
        state.in_flight += chunks;
        if let Some(flow) = state.flows.get_mut(&place.image) {
            flow.budget.sent(chunks, guessed);
            flow.carry(chunks, now_us);
        }
    }

    /// A fetch ended, however.
    pub(crate) fn ended(&mut self, region: RegionId, chunks: u64) {
        let Some(place) = self.places.get_mut(&region) else {
            return;
        };
        let chunks = chunks.min(place.in_flight);
        place.in_flight -= chunks;
        if let Some(state) = self.links.get_mut(&place.link) {
            state.in_flight -= chunks;
            if let Some(flow) = state.flows.get_mut(&place.image) {
                flow.budget.ended(chunks);
            }
        }
        self.clear(region);
    }
}
