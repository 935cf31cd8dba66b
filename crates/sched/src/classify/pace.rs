//! How a program, or a stream, goes on reading: since when without a pause, how much, and whether as steadily as a player.

use super::limits::{
    BULK_BYTES, PAUSE_US, PLAYER_BYTES_PER_S_MAX, PLAYER_SLACK_BYTES, WINDOW_US, WINDOWS,
    WINDOWS_FILLED_MIN,
};
use super::runs::Soon;

/// The most that a player reads in a window.
const WINDOW_BYTES_MAX: u64 = PLAYER_BYTES_PER_S_MAX * WINDOW_US / 1_000_000;

/// A request, as a pace sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub now_us: u64,
    pub bytes: u64,
    /// Whether it goes on where an earlier one has ended, in the same file.
    pub is_sequential: bool,
    /// How soon after the last input.
    pub soon: Soon,
}

impl Step {
    /// Returns whether the last input was so recent that it may have caused the request.
    pub fn is_answer(&self) -> bool {
        self.soon[1]
    }
}

/// A run of requests without a pause.
///
/// A player is the exception among interactive programs: it reads whether or not there is an input. Nothing but its pace tells it
/// from a copy, so it is one if the run started on an input, goes through each file in order and for long, never faster than a film is shown, and
/// without jumps. A reader that is merely slow because the disk is busy looks like that as well, but is found out when it is
/// served first: then it reads faster. From that on it isn't believed until its next run.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    start_us: u64,
    last_us: u64,
    bytes: u64,
    requests: u64,
    sequential: u64,
    soon: Soon,
    /// Number of the window that is being filled.
    window: u64,
    filling: u64,
    /// The windows before that one, in a ring.
    full: [u64; WINDOWS],
    /// Bytes in a window when it was first taken for a player.
    believed: Option<u64>,
    is_found_out: bool,
}

impl Pace {
    /// Notes a request. The first one, and each one after a pause, begins a run.
    pub fn note(&mut self, step: Step) {
        let pause_us = step.now_us.saturating_sub(self.last_us);
        if self.requests == 0 || pause_us > PAUSE_US {
            *self = Pace {
                start_us: step.now_us,
                soon: step.soon,
                ..Pace::default()
            };
        }
        self.last_us = self.last_us.max(step.now_us);
        let window = self.run_us(step.now_us) / WINDOW_US;
        while self.window < window {
            self.end_window();
        }
        self.requests += 1;
        self.sequential += u64::from(step.is_sequential);
        self.bytes = self.bytes.saturating_add(step.bytes);
        self.filling = self.filling.saturating_add(step.bytes);
    }

    /// Returns when it had its last request.
    pub fn last_us(&self) -> u64 {
        self.last_us
    }

    /// Returns the requests of this run.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the bytes of this run.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns for how long this run has lasted.
    pub fn run_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.start_us)
    }

    /// Returns whether this run started as soon after an input as a launch does.
    pub fn is_prompt(&self) -> bool {
        self.soon[0]
    }

    /// Returns whether this run started on an input.
    pub fn is_answer(&self) -> bool {
        self.soon[1]
    }

    /// Returns how soon after an input this run started.
    pub fn soon(&self) -> Soon {
        self.soon
    }

    /// Returns whether it reads like a player.
    pub fn is_player(&self) -> bool {
        self.believed.is_some() && !self.is_found_out
    }

    /// Returns whether this run has moved so much that nobody can be waiting for a single request of it.
    pub fn is_bulk(&self) -> bool {
        self.bytes >= BULK_BYTES
    }

    /// Returns whether this run is faster than a player, on average.
    pub fn is_fast(&self, now_us: u64) -> bool {
        let us = self.run_us(now_us).max(WINDOW_US);
        u128::from(self.bytes) * 1_000_000 > u128::from(PLAYER_BYTES_PER_S_MAX) * u128::from(us)
    }

    fn end_window(&mut self) {
        let bytes = std::mem::take(&mut self.filling);
        self.full[(self.window % WINDOWS as u64) as usize] = bytes;
        self.window += 1;
        match self.believed {
            Some(usual) => self.is_found_out |= bytes > 2 * usual + PLAYER_SLACK_BYTES,
            None if self.looks_like_a_player() => {
                self.believed = Some(self.full.iter().sum::<u64>() / WINDOWS as u64);
            }
            None => {}
        }
    }

    fn looks_like_a_player(&self) -> bool {
        let mean = self.full.iter().sum::<u64>() / WINDOWS as u64;
        let most = self.full.iter().copied().max().unwrap_or_default();
        let filled = self.full.iter().filter(|bytes| **bytes > 0).count();
        self.is_answer()
            && self.window >= WINDOWS as u64
            && self.sequential * 4 >= self.requests * 3
            && filled >= WINDOWS_FILLED_MIN
            && mean <= WINDOW_BYTES_MAX
            && most <= 2 * mean + PLAYER_SLACK_BYTES
    }
}
