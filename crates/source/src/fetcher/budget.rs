//! How much to prefetch over a link at once: enough to keep it busy, little enough that a demand soon has it to itself.

use super::item::Budget;
use crate::LinkEstimate;

/// Seconds that one batch may take: the longest that a demand behind it waits.
const BATCH_S: f64 = 0.25;

/// Fewest raw bytes of a batch: a full frame of chunks. Smaller requests cost a slow link more than they bring.
const BATCH_BYTES_MIN: u64 = 64 << 10;

/// Most raw bytes of a batch: beyond 1 MiB a request's overhead is negligible on any link.
const BATCH_BYTES_MAX: u64 = 1 << 20;

/// How many batches may be under way as long as nothing is known about the link.
const UNKNOWN_BATCHES: u64 = 4;

/// Returns the budget in raw bytes for a link that carries `wire_per_raw` bytes for each raw byte; at most `bytes_max` in
/// flight.
pub fn budget(link: &LinkEstimate, wire_per_raw: f64, bytes_max: u64) -> Budget {
    let Some(rate) = link.bytes_per_s else {
        let in_flight = (BATCH_BYTES_MIN * UNKNOWN_BATCHES).min(bytes_max);
        return Budget {
            batch: BATCH_BYTES_MIN.min(in_flight),
            in_flight,
        };
    };
    let raw_rate = rate as f64 / wire_per_raw.clamp(0.02, 1.2);
    let rtt_s = link.rtt_us.unwrap_or(0) as f64 / 1e6;
    // One batch that is arriving, and one round trip's worth that is requested, so that the link never idles between two
    // batches.
    let in_flight = ((raw_rate * (BATCH_S + rtt_s)) as u64)
        .max(2 * BATCH_BYTES_MIN)
        .min(bytes_max);
    let batch = ((raw_rate * BATCH_S) as u64)
        .clamp(BATCH_BYTES_MIN, BATCH_BYTES_MAX)
        .min(in_flight / 2);
    Budget { batch, in_flight }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(mbit: f64, rtt_ms: u64) -> LinkEstimate {
        let bytes_per_s = Some((mbit * 1e6 / 8.0) as u64);
        LinkEstimate {
            bytes_per_s,
            rtt_us: Some(rtt_ms * 1000),
            ..LinkEstimate::default()
        }
    }

    #[test]
    fn a_batch_takes_at_most_a_quarter_of_a_second() {
        for (mbit, ratio) in [(7.2, 1.0), (7.2, 0.25), (100.0, 1.0), (1000.0, 0.3)] {
            let got = budget(&link(mbit, 120), ratio, 64 << 20);
            let seconds = got.batch as f64 * ratio * 8.0 / (mbit * 1e6);
            assert!(seconds <= 0.2501, "{mbit} Mbit/s: {seconds} s");
        }
    }

    #[test]
    fn a_long_link_is_kept_full() {
        let got = budget(&link(7.2, 120), 1.0, 64 << 20);
        assert!(got.in_flight >= 7_200_000 / 8 * 120 / 1000, "{got:?}");
        assert!(got.batch * 2 <= got.in_flight);
    }

    #[test]
    fn the_bound_holds_on_any_link() {
        assert_eq!(
            budget(&link(100_000.0, 100), 0.1, 8 << 20).in_flight,
            8 << 20
        );
        assert!(budget(&LinkEstimate::default(), 1.0, 100 << 10).in_flight <= 100 << 10);
        assert!(budget(&link(0.1, 10), 1.0, 8 << 20).batch >= BATCH_BYTES_MIN);
    }
}
