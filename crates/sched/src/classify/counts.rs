//! How many of a program's requests came just before inputs, and how many just after.

use super::limits::{
    AGE_US, BURST_US, COUNTS_MAX, EVIDENCE_MIN, GAP_COUNTS_MAX, PERIOD_US, SLICE_US, SLICES,
    THRESHOLD_PERCENT, VOTES_MAX,
};

/// The time between two inputs, or from a machine's start to its first input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// Its length so far.
    pub us: u64,
    /// Whether it began with an input.
    pub has_input: bool,
}

impl Gap {
    /// Returns the length of the period at each of its ends, if an input ends it now; 0 if both its inputs are one.
    pub fn period_us(self) -> u64 {
        match self.has_input {
            false => PERIOD_US.min(self.us),
            true if self.us < BURST_US => 0,
            true => PERIOD_US.min(self.us / 2),
        }
    }
}

/// What was counted between two inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Requests after the first input.
    pub post: u32,
    /// Requests before the second input.
    pub pre: u32,
}

impl Found {
    /// Returns whether more than the threshold of these requests came after an input.
    pub fn is_interactive(self) -> bool {
        let (post, pre) = (u64::from(self.post), u64::from(self.pre));
        post * 100 > (post + pre) * THRESHOLD_PERCENT
    }

    /// Returns the same share of at most so many requests.
    fn at_most(self, most: u32) -> Found {
        let compared = self.compared();
        if compared <= most {
            return self;
        }
        let post = u64::from(self.post) * u64::from(most) / u64::from(compared);
        Found {
            post: post as u32,
            pre: most - post as u32,
        }
    }

    /// Returns how many requests were compared.
    pub fn compared(self) -> u32 {
        self.post.saturating_add(self.pre)
    }
}

/// The counts of a program, or of several that are judged together.
///
/// The paper counts what comes up to four seconds after an input, and what comes up to four seconds before one. It doesn't say how a
/// request counts that is both. Here, if the time between two inputs is shorter than both periods together, it is divided in the middle:
/// the periods stay equally long, so that a program that pays no regard to inputs still has one half of its requests in each. Inputs that
/// follow each other within [`BURST_US`] count as one; whatever comes between them is not counted. So clicking without end makes nothing
/// interactive.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    settled: Found,
    /// In how many gaps it has asked for enough,
    votes: u32,
    /// and in how many of these it was interactive.
    yes: u32,
    /// Requests since the last input, within its period.
    after: u32,
    /// Requests by the time since the last input, in a ring of slices.
    slices: [u16; SLICES],
    /// Number of the last slice in the ring.
    newest: u64,
    aged_us: u64,
}

impl Counts {
    /// Counts a request at the present end of the gap.
    pub fn add(&mut self, gap: Gap) {
        let slice = (gap.us / SLICE_US).max(self.newest);
        if slice > self.newest {
            let new = (slice - self.newest).min(SLICES as u64);
            for past in 0..new {
                self.slices[((slice - past) % SLICES as u64) as usize] = 0;
            }
            self.newest = slice;
        }
        let count = &mut self.slices[(slice % SLICES as u64) as usize];
        *count = count.saturating_add(1);
        if gap.has_input && gap.us < PERIOD_US {
            self.after = self.after.saturating_add(1);
        }
    }

    /// Ends the gap with an input at `now_us`, and returns what was counted in it.
    pub fn settle(&mut self, now_us: u64, gap: Gap) -> Found {
        let found = self.found(gap);
        self.after = 0;
        self.slices = [0; SLICES];
        self.newest = 0;
        if found.compared() > 0 {
            self.age(now_us);
            let few = found.at_most(GAP_COUNTS_MAX);
            if found.compared() >= EVIDENCE_MIN {
                self.votes += 1;
                self.yes += u32::from(found.is_interactive());
            }
            if self.votes > VOTES_MAX {
                self.votes /= 2;
                self.yes /= 2;
            }
            self.settled.post += few.post;
            self.settled.pre += few.pre;
            if self.settled.compared() > COUNTS_MAX {
                self.halve();
            }
        }
        found
    }

    /// Returns the counts of all gaps that have ended. What came since the last input isn't among them: it would count for the
    /// input before and not yet against the one after.
    pub fn settled(&self) -> Found {
        self.settled
    }

    /// Returns whether it is interactive, by the gaps that have ended: by its requests, and by most of the gaps as well. Otherwise a
    /// copy that ends just after an input would be interactive by this single gap.
    pub fn is_interactive(&self) -> bool {
        let (yes, votes) = (u64::from(self.yes), u64::from(self.votes));
        self.settled.is_interactive() && yes * 100 >= votes * THRESHOLD_PERCENT
    }

    /// Returns in how many gaps it has asked for enough to be judged by each of them.
    pub fn votes(&self) -> u32 {
        self.votes
    }

    /// Returns whether the gaps that ended say enough about a program.
    pub fn is_settled(&self) -> bool {
        self.settled.compared() >= EVIDENCE_MIN
    }

    /// Returns how many requests came since the last input, within its period.
    pub fn after(&self) -> u32 {
        self.after
    }

    fn found(&self, gap: Gap) -> Found {
        let period_us = gap.period_us();
        let pre = self.between(gap, gap.us - period_us, gap.us);
        let post = match gap.has_input {
            false => 0,
            // the ring no longer has its begin
            true if gap.us >= 2 * PERIOD_US => self.after,
            true => self.between(gap, 0, period_us),
        };
        Found { post, pre }
    }

    /// Returns how many requests came from one time to another, both counted from the gap's begin. A slice that is only partly in
    /// between gives its part.
    fn between(&self, gap: Gap, from_us: u64, to_us: u64) -> u32 {
        let oldest = self.newest.saturating_sub(SLICES as u64 - 1);
        let mut sum = 0;
        for slice in (from_us / SLICE_US).max(oldest)..=self.newest {
            let start = slice * SLICE_US;
            // the last slice ends with the gap
            let end = (start + SLICE_US).min(gap.us.max(start + 1));
            let part = to_us.min(end).saturating_sub(from_us.max(start));
            let count = u64::from(self.slices[(slice % SLICES as u64) as usize]);
            sum += count * part * SLICE_US / (end - start);
        }
        (sum / SLICE_US) as u32
    }

    fn age(&mut self, now_us: u64) {
        let mut times = now_us.saturating_sub(self.aged_us) / AGE_US;
        // never so far that nothing is known any more
        while times > 0 && self.settled.compared() >= 4 * EVIDENCE_MIN {
            self.halve();
            times -= 1;
        }
        self.aged_us = now_us;
    }

    fn halve(&mut self) {
        self.settled.post /= 2;
        self.settled.pre /= 2;
    }
}
