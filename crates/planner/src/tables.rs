//! The background loading of segment tables: memory's first, few at a time.

use crate::{Config, Link, RegionId, Urgency};
use std::collections::{HashMap, HashSet, VecDeque};

/// Tables that wait and tables that are under way.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// Known to be needed soon, before all others.
    hurried: VecDeque<(RegionId, u32, Urgency)>,
    memory: VecDeque<(RegionId, u32)>,
    storage: VecDeque<(RegionId, u32)>,
    in_flight: Vec<(RegionId, u32, Urgency)>,
    /// Didn't come; asked for again when the link is next looked at.
    failed: Vec<(RegionId, u32, Urgency)>,
    /// How often a table failed.
    failures: HashMap<(RegionId, u32), u32>,
    /// All that aren't here and aren't given up.
    missing: HashSet<(RegionId, u32)>,
}

/// A table that failed this often is left to whoever touches its chunks.
const FAILURES_MAX: u32 = 5;

impl Tables {
    pub(crate) fn add(&mut self, region: RegionId, segments: &[u32], urgency: Urgency) {
        let queue = match urgency {
            Urgency::Memory => &mut self.memory,
            Urgency::Storage => &mut self.storage,
        };
        queue.extend(segments.iter().map(|s| (region, *s)));
        self.missing.extend(segments.iter().map(|s| (region, *s)));
    }

    /// Whether a chunk of this table has to wait for it.
    pub(crate) fn is_missing(&self, region: RegionId, segment: u32) -> bool {
        self.missing.contains(&(region, segment))
    }

    /// These tables are needed before all others, in this order.
    pub(crate) fn hurry(&mut self, region: RegionId, segments: &[u32]) {
        let wanted: HashSet<_> = segments.iter().copied().collect();
        let mut found = HashMap::new();
        for (queue, urgency) in [
            (&mut self.memory, Urgency::Memory),
            (&mut self.storage, Urgency::Storage),
        ] {
            queue.retain(|(r, s)| {
                let hurried = *r == region && wanted.contains(s);
                if hurried {
                    found.insert(*s, urgency);
                }
                !hurried
            });
        }
        let in_order = segments.iter().filter_map(|s| found.remove_entry(s));
        self.hurried.extend(in_order.map(|(s, u)| (region, s, u)));
    }

    pub(crate) fn remove(&mut self, region: RegionId) {
        self.hurried.retain(|(r, _, _)| *r != region);
        self.missing.retain(|(r, _)| *r != region);
        self.memory.retain(|(r, _)| *r != region);
        self.storage.retain(|(r, _)| *r != region);
        self.in_flight.retain(|(r, _, _)| *r != region);
        self.failed.retain(|(r, _, _)| *r != region);
        self.failures.retain(|(r, _), _| *r != region);
    }

    /// A table came or failed. A failed one waits, or a dead link would be asked without end.
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
        }
    }

    /// The link was looked at: what failed may be tried again, behind the others.
    pub(crate) fn retry(&mut self) {
        for (region, segment, urgency) in std::mem::take(&mut self.failed) {
            self.add(region, &[segment], urgency);
        }
    }

    /// The next tables to ask for, of one region. Storage's tables (3.5 MB for a small Debian disk, 4 s of a 7.2 Mbit/s
    /// link) stay where they are while the link is slow; the few that are touched are fetched on demand.
    pub(crate) fn next(
        &mut self,
        link: Option<Link>,
        config: &Config,
    ) -> Option<(RegionId, Vec<u32>)> {
        let most = config.tables_in_flight_max as usize;
        if let Some((region, _, _)) = self.hurried.front().copied() {
            let mut segments = Vec::new();
            while self.in_flight.len() < most
                && let Some((r, segment, urgency)) = self.hurried.front().copied()
                && r == region
            {
                self.hurried.pop_front();
                self.in_flight.push((region, segment, urgency));
                segments.push(segment);
            }
            return (!segments.is_empty()).then_some((region, segments));
        }
        let slow = link.is_some_and(|l| l.bytes_per_s < config.slow_bytes_per_s);
        // On a slow link one at a time: a table (up to 32 KiB) delays the demand reads that are behind it on the wire.
        let most = if slow { 1 } else { most };
        let room = most.saturating_sub(self.in_flight.len());
        let (queue, urgency) = match (self.memory.is_empty(), slow) {
            (false, _) => (&mut self.memory, Urgency::Memory),
            (true, false) => (&mut self.storage, Urgency::Storage),
            (true, true) => return None,
        };
        let region = queue.front()?.0;
        let mut segments = Vec::new();
        while segments.len() < room && queue.front().is_some_and(|(r, _)| *r == region) {
            segments.extend(queue.pop_front().map(|(_, s)| s));
        }
        self.in_flight
            .extend(segments.iter().map(|s| (region, *s, urgency)));
        (!segments.is_empty()).then_some((region, segments))
    }
}
