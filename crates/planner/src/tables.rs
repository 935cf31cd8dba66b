//! The background loading of segment tables: memory's first, few at a time.

use crate::{Config, Link, RegionId, Urgency};
use std::collections::{HashMap, VecDeque};

/// Tables that wait and tables that are under way.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    memory: VecDeque<(RegionId, u32)>,
    storage: VecDeque<(RegionId, u32)>,
    in_flight: Vec<(RegionId, u32, Urgency)>,
    /// Didn't come; asked for again when the link is next looked at.
    failed: Vec<(RegionId, u32, Urgency)>,
    /// How often a table failed.
    failures: HashMap<(RegionId, u32), u32>,
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
    }

    pub(crate) fn remove(&mut self, region: RegionId) {
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
        let slow = link.is_some_and(|l| l.bytes_per_s < config.slow_bytes_per_s);
        // On a slow link one at a time: a table (up to 32 KiB) delays the demand reads that are behind it on the wire.
        let most = if slow {
            1
        } else {
            config.tables_in_flight_max as usize
        };
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
