//! Loads segment tables over one link in the background: memory's first, few at a time, images in turn.

use crate::{Config, ImageId, Link, RegionId, Urgency};
use floe_sched::{Purpose, Who};
use std::collections::{HashMap, HashSet, VecDeque};

/// A table that failed this often isn't loaded here any more; a touch of its chunks will load it.
const FAILURES_MAX: u32 = 5;

/// A table of a region, and how soon it is needed.
type Table = (RegionId, u32, Urgency);

/// Tables of several images, which take turns.
#[derive(Debug, Default)]
struct Lanes(VecDeque<(ImageId, VecDeque<Table>)>);

impl Lanes {
    fn extend(&mut self, image: ImageId, tables: impl IntoIterator<Item = Table>) {
        let known = self.0.iter_mut().find(|(i, _)| *i == image);
        match known {
            Some((_, lane)) => lane.extend(tables),
            None => self.0.push_back((image, tables.into_iter().collect())),
        }
        self.0.retain(|(_, lane)| !lane.is_empty());
    }

    fn retain(&mut self, mut keep: impl FnMut(&Table) -> bool) {
        for (_, lane) in &mut self.0 {
            lane.retain(&mut keep);
        }
        self.0.retain(|(_, lane)| !lane.is_empty());
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the next tables, `most` at most, all of one region of the image whose turn it is; then it is the next image's
    /// turn.
    fn take(&mut self, most: usize) -> Vec<Table> {
        let mut taken: Vec<Table> = Vec::new();
        if most == 0 {
            return taken;
        }
        let Some((image, mut lane)) = self.0.pop_front() else {
            return taken;
        };
        while taken.len() < most
            && let Some(next) = lane.front()
            && taken.first().is_none_or(|first| first.0 == next.0)
        {
            taken.extend(lane.pop_front());
        }
        if !lane.is_empty() {
            self.0.push_back((image, lane));
        }
        taken
    }
}

/// Tables that wait, and tables that are being loaded.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    images: HashMap<RegionId, ImageId>,
    /// Tables that are known to be needed soon, before all others.
    hurried: Lanes,
    memory: Lanes,
    storage: Lanes,
    in_flight: Vec<Table>,
    /// Tables that failed; they are tried again at the link's next measurement.
    failed: Vec<Table>,
    /// How often each table failed.
    failures: HashMap<(RegionId, u32), u32>,
    /// For whom tables are hurried.
    by: HashMap<(RegionId, u32), Who>,
    /// All tables that aren't here and aren't given up.
    missing: HashSet<(RegionId, u32)>,
}

impl Tables {
    pub(crate) fn add(
        &mut self,
        region: RegionId,
        image: ImageId,
        segments: &[u32],
        urgency: Urgency,
    ) {
        self.images.insert(region, image);
        self.missing.extend(segments.iter().map(|s| (region, *s)));
        let lanes = self.lanes(urgency);
        lanes.extend(image, segments.iter().map(|s| (region, *s, urgency)));
    }

    fn lanes(&mut self, urgency: Urgency) -> &mut Lanes {
        match urgency {
            Urgency::Memory => &mut self.memory,
            Urgency::Storage => &mut self.storage,
        }
    }

    /// Returns whether a chunk of this table has to wait for it.
    pub(crate) fn is_missing(&self, region: RegionId, segment: u32) -> bool {
        self.missing.contains(&(region, segment))
    }

    /// Moves tables before all others, in this order, for whom they are needed.
    pub(crate) fn hurry(&mut self, region: RegionId, segments: &[u32], who: Who) {
        let Some(image) = self.images.get(&region).copied() else {
            return;
        };
        let wanted: HashSet<_> = segments.iter().copied().collect();
        let mut found = HashMap::new();
        for lanes in [&mut self.memory, &mut self.storage] {
            lanes.retain(|(r, s, urgency)| {
                let hurried = *r == region && wanted.contains(s);
                if hurried {
                    found.insert(*s, *urgency);
                }
                !hurried
            });
        }
        let in_order = segments.iter().filter_map(|s| found.remove_entry(s));
        let tables: Vec<Table> = in_order.map(|(s, u)| (region, s, u)).collect();
        let by = tables.iter().map(|(r, s, _)| ((*r, *s), who));
        self.by.extend(by);
        self.hurried.extend(image, tables);
    }

    pub(crate) fn remove(&mut self, region: RegionId) {
        self.images.remove(&region);
        for lanes in [&mut self.hurried, &mut self.memory, &mut self.storage] {
            lanes.retain(|(r, _, _)| *r != region);
        }
        self.missing.retain(|(r, _)| *r != region);
        self.in_flight.retain(|(r, _, _)| *r != region);
        self.failed.retain(|(r, _, _)| *r != region);
        self.failures.retain(|(r, _), _| *r != region);
        self.by.retain(|(r, _), _| *r != region);
    }

    /// Notes that a table was loaded or failed. A failed one has to wait, or a dead link would be asked without end.
    pub(crate) fn loaded(&mut self, region: RegionId, segment: u32, ok: bool) {
        let found = self
            .in_flight
            .iter()
            .position(|(r, s, _)| (*r, *s) == (region, segment));
        let Some(at) = found else {
            return;
        };
        let table = self.in_flight.swap_remove(at);
        let failures = self.failures.entry((region, segment)).or_default();
        *failures += u32::from(!ok);
        if !ok && *failures < FAILURES_MAX {
            self.failed.push(table);
        } else {
            self.missing.remove(&(region, segment));
            self.by.remove(&(region, segment));
        }
    }

    /// Queues failed tables again, after the others. Called when the link was measured.
    pub(crate) fn retry(&mut self) {
        for (region, segment, urgency) in std::mem::take(&mut self.failed) {
            if let Some(image) = self.images.get(&region).copied() {
                self.add(region, image, &[segment], urgency);
            }
        }
    }

    /// Returns the next tables to ask for, all of one region, and for whom: the node itself unless they are hurried. Tables of storage (3.5 MB for a small Debian disk, 4 s of a 7.2
    /// Mbit/s link) aren't loaded while the link is slow; the few that are touched are fetched on demand.
    pub(crate) fn next(
        &mut self,
        link: Option<Link>,
        config: &Config,
    ) -> Option<(RegionId, Vec<u32>, Who)> {
        let most = config.tables_in_flight_max as usize;
        let slow = link.is_some_and(|l| l.bytes_per_s < config.slow_bytes_per_s);
        let room = |most: usize| most.saturating_sub(self.in_flight.len());
        // On a slow link one at a time: a table (up to 32 KiB) delays the demand reads behind it on the wire.
        let background = room(if slow { 1 } else { most });
        let taken = if !self.hurried.is_empty() {
            let room = room(most);
            self.hurried.take(room)
        } else if !self.memory.is_empty() {
            self.memory.take(background)
        } else if !slow {
            self.storage.take(background)
        } else {
            return None;
        };
        let (region, first, _) = *taken.first()?;
        let by = self.by.get(&(region, first)).copied();
        let who = by.unwrap_or(Who::node(Purpose::Prefetch));
        self.in_flight.extend(&taken);
        let segments = taken.into_iter().map(|(_, s, _)| s).collect();
        Some((region, segments, who))
    }
}
