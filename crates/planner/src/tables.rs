//! The background loading of segment tables: memory's first, few at a time.

use crate::{Config, Link, RegionId, Urgency};
use std::collections::VecDeque;

/// Tables that wait and tables that are under way.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    memory: VecDeque<(RegionId, u32)>,
    storage: VecDeque<(RegionId, u32)>,
    in_flight: Vec<(RegionId, u32, Urgency)>,
}

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
    }

    /// A failed table goes behind the others: the mount asks for it itself when it is needed at once.
    pub(crate) fn loaded(&mut self, region: RegionId, segment: u32, ok: bool) {
        let Some(at) = self
            .in_flight
            .iter()
            .position(|(r, s, _)| (*r, *s) == (region, segment))
        else {
            return;
        };
        let (region, segment, urgency) = self.in_flight.swap_remove(at);
        if !ok {
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
