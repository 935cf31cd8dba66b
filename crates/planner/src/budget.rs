//! What one image has had fetched ahead, and how much more it may guess.

/// Counts of one image, all in chunks.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    touched: u64,
    unused: u64,
    in_flight: u64,
}

impl Budget {
    /// Guesses that its waste still allows: it may have `free` chunks unused, and `ratio` of what was touched.
    pub(crate) fn guesses(&self, free: u64, ratio: f64) -> u64 {
        let waste = free + (self.touched as f64 * ratio) as u64;
        waste.saturating_sub(self.unused)
    }

    pub(crate) fn touch(&mut self) {
        self.touched += 1;
    }

    pub(crate) fn sent(&mut self, chunks: u64, guessed: bool) {
        self.in_flight += chunks;
        if guessed {
            self.unused += chunks;
        }
    }

    pub(crate) fn ended(&mut self, chunks: u64) {
        self.in_flight = self.in_flight.saturating_sub(chunks);
    }

    /// Guessed chunks that were used, or that never came: they aren't waste.
    pub(crate) fn settled(&mut self, chunks: u64) {
        self.unused = self.unused.saturating_sub(chunks);
    }

    pub(crate) fn touched(&self) -> u64 {
        self.touched
    }

    pub(crate) fn unused(&self) -> u64 {
        self.unused
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }
}
