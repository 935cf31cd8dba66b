//! Sequential streams of a machine, found by the places of its requests.

use super::Place;
use super::limits::{
    PAUSE_US, STREAM_AHEAD_BYTES, STREAM_BEHIND_BYTES, STREAM_BYTES, STREAM_KEPT_BYTES, STREAMS_MAX,
};
use super::pace::{Pace, Step};

#[derive(Clone, Debug)]
struct Stream {
    region: u32,
    /// Where its next request begins, if it leaves nothing out.
    next: u64,
    pace: Pace,
}

/// What the stream of a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flow {
    /// Whether the request goes on where an earlier one has ended.
    pub is_sequential: bool,
    /// Whether the stream is long and fast.
    pub is_bulk: bool,
    /// Whether it is read like a player reads.
    pub is_player: bool,
}

/// The streams of a machine, few at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams(Vec<Stream>);

impl Streams {
    /// Notes a request at this place, and returns what its stream is.
    pub fn note(&mut self, place: Place, step: Step) -> Flow {
        let goes_on = |stream: &Stream| {
            stream.region == place.region
                && place.offset <= stream.next.saturating_add(STREAM_AHEAD_BYTES)
                && stream.next <= place.offset.saturating_add(STREAM_BEHIND_BYTES)
                && step.now_us.saturating_sub(stream.pace.last_us()) <= PAUSE_US
        };
        let found = self.0.iter().position(goes_on);
        let at = found.unwrap_or_else(|| self.begin(place, step.now_us));
        let stream = &mut self.0[at];
        let is_sequential = found.is_some();
        stream.pace.note(Step {
            is_sequential,
            ..step
        });
        let end = place.offset.saturating_add(step.bytes);
        stream.next = stream.next.max(end);
        Flow {
            is_sequential,
            is_bulk: stream.pace.bytes() >= STREAM_BYTES && stream.pace.is_fast(step.now_us),
            is_player: stream.pace.is_player(),
        }
    }

    /// Makes room for a stream at this place, and returns its index. New ones give way first, so that random requests, each of
    /// which may begin a stream, don't hide those that are there.
    fn begin(&mut self, place: Place, now_us: u64) -> usize {
        let new = Stream {
            region: place.region,
            next: place.offset,
            pace: Pace::default(),
        };
        if self.0.len() < STREAMS_MAX {
            self.0.push(new);
            return self.0.len() - 1;
        }
        let worth = |stream: &Stream| {
            let idle_us = now_us.saturating_sub(stream.pace.last_us());
            let is_kept = stream.pace.bytes() >= STREAM_KEPT_BYTES && idle_us <= PAUSE_US;
            (is_kept, stream.pace.last_us())
        };
        let least = (0..self.0.len()).min_by_key(|at| worth(&self.0[*at]));
        let at = least.unwrap_or_default();
        self.0[at] = new;
        at
    }
}
