//! What was fetched ahead for one image, and how much more may be guessed for it.

/// Counts for one image, all in chunks.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    touched: u64,
    unused: u64,
    in_flight: u64,
}

impl Budget {
    /// Returns how many chunks may still be guessed: guesses not (yet) used may number `free`, plus `ratio` times the touched
    /// chunks.
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

    /// Takes guessed chunks off the waste, because they were used or never arrived.
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
