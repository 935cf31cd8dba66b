//! The links that images come over, and how the images on one link share it.
//!
//! Each image's chunks come over one link: one fetcher, one origin. What is in flight on a link is bounded by what the link can
//! carry during a round trip (`pace`), independently of other links. Within that bound the image that has least in flight goes
//! first ([`LinkState::next`]): all images that want something get equally much, what one doesn't use goes to the others, and
//! no image waits until another's plan is done.

use crate::budget::Budget;
use crate::pace::Pace;
use crate::tables::Tables;
use crate::{Config, ImageId, Link, LinkId, RegionId};
use floe_sched::Who;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Beside a model, guessed neighbours may use the chunks that a round trip carries for free, divided by this.
const FREE_BESIDE_MODEL: u64 = 8;
/// Time constant with which it is forgotten how much an image fetched, in microseconds: long enough to bridge the gaps between
/// requests, short enough to notice within seconds that an image has become quiet.
const CARRIED_KEPT_US: f64 = 1e6;

/// One image on a link.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub budget: Budget,
    /// Chunks that are known to be wanted, in the order in which they are wanted.
    pub expected: VecDeque<(RegionId, u64, Who)>,
    regions: u32,
    /// How many chunks it asked for lately; older ones count less.
    carried: f64,
    carried_at_us: u64,
    /// The number of its last turn, in turns of the link.
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

    /// Returns the last measurement.
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

    /// Returns the images for which chunks are expected.
    pub(crate) fn expecting(&self) -> impl Iterator<Item = ImageId> + '_ {
        let waiting = self.flows.iter().filter(|(_, f)| !f.expected.is_empty());
        waiting.map(|(image, _)| *image)
    }

    /// Returns how many chunks the link carries during one round trip: while a demanded chunk is on its way, they cost no time.
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

    /// Returns the allowed ratio of waste: between the slow and the fast one by the logarithm of the bandwidth; slow if it is
    /// unknown.
    fn waste_ratio(&self, config: &Config) -> f64 {
        let Some(link) = self.measured else {
            return config.waste_ratio_slow;
        };
        let span = (config.fast_bytes_per_s / config.slow_bytes_per_s).ln();
        let at = ((link.bytes_per_s / config.slow_bytes_per_s).ln() / span).clamp(0.0, 1.0);
        config.waste_ratio_slow + at * (config.waste_ratio_fast - config.waste_ratio_slow)
    }

    /// Returns how many chunks may be in flight while no model streams over the link.
    pub(crate) fn most(&self, config: &Config) -> u64 {
        (2 * self.free_chunks(config)).min(u64::from(config.in_flight_chunks_max))
    }

    /// Returns how many chunks may be in flight while a model does. `paused`: all machines that stream over it are paused.
    pub(crate) fn window(&self, paused: bool, config: &Config) -> u64 {
        self.pace.window_chunks(self.measured, paused, config)
    }

    /// Returns the most chunks that may ever be in flight, by the last measurement.
    pub(crate) fn room(&self, config: &Config) -> u64 {
        self.most(config).max(self.window(true, config))
    }

    /// Returns how many images use the link now, including `image`, which is about to.
    fn users(&self, image: ImageId, now_us: u64) -> u64 {
        let uses = |flow: &Flow| flow.budget.in_flight() > 0 || flow.carried(now_us) >= 1.0;
        let users = self.flows.iter().filter(|(i, f)| **i == image || uses(f));
        (users.count() as u64).max(1)
    }

    /// Returns the share of the link that an image can count on: what the others leave of it, but never less than an even
    /// share. What another image uses is what it asked for lately or has in flight, whichever is more.
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

    /// Returns the link with the bandwidth that an image can count on.
    pub(crate) fn as_seen_by(&self, image: ImageId, now_us: u64, config: &Config) -> Option<Link> {
        self.measured.map(|link| Link {
            bytes_per_s: link.bytes_per_s * self.share(image, now_us, config),
            ..link
        })
    }

    /// Returns how many guesses may be sent now for an image. The allowed waste bounds them, and what may be in flight, and an
    /// even share of that if other images use the link too. `beside_model`: a model knows most of what will be touched, so few
    /// guesses are left for neighbours, whose waste is added to the model's.
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

    /// Returns whose turn it is among `able` (images, and what each has reserved), and how many chunks of `room` it may send:
    /// it catches up with the image that has next least, and goes `step` chunks further.
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
    /// Whether the region was removed; what was in flight then still takes room.
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

    /// Returns the budgets of all images.
    pub(crate) fn budgets(&self) -> impl Iterator<Item = &Budget> {
        let flows = self.links.values().flat_map(|link| link.flows.values());
        flows.map(|flow| &flow.budget)
    }

    /// Notes a measurement of a link; tables that failed there may be asked for again.
    pub(crate) fn measured(&mut self, link: LinkId, measured: Link) {
        let state = self.links.entry(link).or_default();
        state.measure(measured);
        state.tables.retry();
    }

    pub(crate) fn add(&mut self, region: RegionId, link: LinkId, image: ImageId) {
        // The number was used before: what was in flight for that region isn't waited for any more.
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

    /// Returns the link and the image of a region, unless it was removed.
    pub(crate) fn place(&self, region: RegionId) -> Option<(LinkId, ImageId)> {
        let place = self.places.get(&region).filter(|place| !place.gone)?;
        Some((place.link, place.image))
    }

    /// Returns the state of a region's link, and its image.
    pub(crate) fn of(&mut self, region: RegionId) -> Option<(&mut LinkState, ImageId)> {
        let (link, image) = self.place(region)?;
        Some((self.links.get_mut(&link)?, image))
    }

    pub(crate) fn budget(&mut self, region: RegionId) -> Option<&mut Budget> {
        let (link, image) = self.of(region)?;
        Some(&mut link.flow_mut(image)?.budget)
    }

    /// Removes a region, and its `unused` guesses with it.
    pub(crate) fn remove(&mut self, region: RegionId, unused: u64) {
        let Some((state, image)) = self.of(region) else {
            return;
        };
        state.tables.remove(region);
        if let Some(flow) = state.flow_mut(image) {
            flow.budget.settled(unused);
            flow.expected.retain(|(r, _, _)| *r != region);
            flow.regions -= 1;
        }
        if let Some(place) = self.places.get_mut(&region) {
            place.gone = true;
        }
        self.clear(region);
    }

    /// Forgets a removed region once nothing of it is in flight, with the image and the link if they were there only for it.
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

    /// Notes that a machine touched a chunk for the first time; a missed chunk crosses the link.
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

    /// Notes that a fetch ended, successfully or not.
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
