//! How much may travel unasked.

use crate::Config;

/// A model leaves this part of a round trip's free chunks to neighbours.
const FREE_BESIDE_MODEL: u64 = 8;

/// A link as it is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second on the wire.
    pub bytes_per_s: f64,
    /// Round trip in microseconds.
    pub rtt_us: u64,
}

/// Counts what was touched, what was fetched ahead and not used, and what is in flight (all in chunks).
#[derive(Debug, Default)]
pub(crate) struct Budget {
    link: Option<Link>,
    touched: u64,
    unused: u64,
    in_flight: u64,
}

impl Budget {
    pub(crate) fn set_link(&mut self, link: Link) {
        let sane = link.bytes_per_s.is_finite() && link.bytes_per_s > 0.0;
        if sane {
            self.link = Some(link);
        }
    }

    pub(crate) fn link(&self) -> Option<Link> {
        self.link
    }

    /// Chunks that the link carries during one round trip: while the demanded one is on its way they cost no time.
    pub(crate) fn free_chunks(&self, config: &Config) -> u64 {
        let Some(link) = self.link else {
            return u64::from(config.in_flight_chunks_min);
        };
        let wire = link.bytes_per_s * link.rtt_us as f64 / 1e6;
        let chunks = wire / config.wire_bytes();
        (chunks as u64).clamp(
            u64::from(config.in_flight_chunks_min),
            u64::from(config.in_flight_chunks_max),
        )
    }

    /// Between the slow and the fast ratio by the logarithm of the speed; slow while nothing is known.
    fn waste_ratio(&self, config: &Config) -> f64 {
        let Some(link) = self.link else {
            return config.waste_ratio_slow;
        };
        let span = (config.fast_bytes_per_s / config.slow_bytes_per_s).ln();
        let at = ((link.bytes_per_s / config.slow_bytes_per_s).ln() / span).clamp(0.0, 1.0);
        config.waste_ratio_slow + at * (config.waste_ratio_fast - config.waste_ratio_slow)
    }

    /// Guesses that may be sent now: bounded by the waste that is allowed and by what may be in flight.
    pub(crate) fn guesses(&self, config: &Config) -> u64 {
        self.guesses_at(self.waste_ratio(config), config)
    }

    /// The same where a model knows most of what will be touched: little is left to neighbours, and what they waste is
    /// added to what the model does.
    pub(crate) fn guesses_beside_model(&self, config: &Config) -> u64 {
        let free = self.free_chunks(config) / FREE_BESIDE_MODEL;
        self.guesses_of(free, config.waste_ratio_beside_model, config)
    }

    fn guesses_at(&self, ratio: f64, config: &Config) -> u64 {
        self.guesses_of(self.free_chunks(config), ratio, config)
    }

    fn guesses_of(&self, free: u64, ratio: f64, config: &Config) -> u64 {
        let waste = free + (self.touched as f64 * ratio) as u64;
        waste.saturating_sub(self.unused).min(self.room(config))
    }

    /// Chunks that may be sent now whatever their reason.
    pub(crate) fn room(&self, config: &Config) -> u64 {
        let most = 2 * self.free_chunks(config);
        most.min(u64::from(config.in_flight_chunks_max))
            .saturating_sub(self.in_flight)
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
