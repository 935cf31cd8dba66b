//! Sequential streams of a machine, found by the places of its requests.

use super::limits::{
    PAUSE_US, STREAM_AHEAD_BYTES, STREAM_BEHIND_BYTES, STREAM_BYTES, STREAM_KEPT_BYTES, STREAMS_MAX,
};
use super::pace::{Pace, Step};
use super::{Place, Program};

#[derive(Clone, Debug)]
struct Stream {
    region: u32,
    /// Where its next request begins, if it leaves nothing out.
    next: u64,
    /// The file of its last request, if that is known.
    file: Option<Program>,
    pace: Pace,
}

/// What the stream of a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flow {
    /// Whether the request goes on where an earlier one has ended, in the same file.
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
    /// Notes a request at this place, in this file if that is known, and returns what its stream is. A stream may go through many files that
    /// lie side by side, but whoever reads those looks for something or copies: a player stays in its file.
    pub fn note(&mut self, place: Place, file: Option<Program>, step: Step) -> Flow {
        let goes_on = |stream: &Stream| {
            stream.region == place.region
                && place.offset <= stream.next.saturating_add(STREAM_AHEAD_BYTES)
                && stream.next <= place.offset.saturating_add(STREAM_BEHIND_BYTES)
                && step.now_us.saturating_sub(stream.pace.last_us()) <= PAUSE_US
        };
        let found = self.0.iter().position(goes_on);
        let at = found.unwrap_or_else(|| self.begin(place, step.now_us));
        let stream = &mut self.0[at];
        // A gap counts as another file: where files are not known, nothing else tells of one.
        let is_sequential = found.is_some() && stream.file == file && place.offset <= stream.next;
        stream.file = file;
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
            file: None,
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
