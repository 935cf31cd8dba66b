//! A recorded link in mahimahi's format: a text file in which each line is the millisecond at which one 1500-byte packet
//! may pass, never decreasing. After the last line it starts again; the last line's time is the length of the loop.
use anyhow::Context as _;
use std::path::PathBuf;

/// Bytes of the largest IP packet: that of Ethernet, so that real stacks behave as on real links.
pub const MTU: usize = 1500;

/// Most lines that are accepted in a trace: hours of a fast link. This bounds the memory for a foreign file.
const LINES_MAX: usize = 16 << 20;

/// Longest trace, in milliseconds: one week.
const PERIOD_MS_MAX: u64 = 7 * 24 * 3_600_000;

/// What is wrong with a trace file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TraceError {
    /// A line is not a number.
    #[error("line {line}: {text:?} is no time; each line has one whole number of milliseconds")]
    NotANumber {
        /// The line's number, from 1.
        line: usize,
        /// The beginning of the line.
        text: String,
    },
    /// The times decrease.
    #[error("line {line}: {now} ms comes after {before} ms; times must not decrease")]
    Backwards {
        /// The line's number, from 1.
        line: usize,
        /// This line's time.
        now: u64,
        /// The previous line's time.
        before: u64,
    },
    /// Nothing could ever pass, or the loop would have no length.
    #[error(
        "the trace ends at 0 ms or has no lines; its last time must be above 0, it is the length of the loop"
    )]
    Empty,
    /// The trace is larger than any that makes sense.
    #[error("the trace has more than {LINES_MAX} lines or is longer than {PERIOD_MS_MAX} ms")]
    TooLarge,
}

/// The moments at which a packet may pass.
#[derive(Debug, PartialEq, Eq)]
pub struct Trace {
    at_ms: Vec<u64>,
}

impl Trace {
    /// Parses mahimahi's format. Blank lines are skipped.
    pub fn parse(bytes: &[u8]) -> Result<Trace, TraceError> {
        let mut at_ms = Vec::new();
        let mut before = 0;
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let text = line.trim_ascii();
            if text.is_empty() {
                continue;
            }
            let now = std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse::<u64>().ok())
                .ok_or_else(|| {
                    let shown = &text[..text.len().min(40)];
                    TraceError::NotANumber {
                        line: index + 1,
                        text: String::from_utf8_lossy(shown).into_owned(),
                    }
                })?;
            if now < before {
                return Err(TraceError::Backwards {
                    line: index + 1,
                    now,
                    before,
                });
            }
            if at_ms.len() == LINES_MAX || now > PERIOD_MS_MAX {
                return Err(TraceError::TooLarge);
            }
            at_ms.push(now);
            before = now;
        }
        if before == 0 {
            return Err(TraceError::Empty);
        }
        Ok(Trace { at_ms })
    }

    /// Reads a recorded link, which is no part of this repository, from the folder that `$FLOE_LINK_TRACES` names.
    pub fn recorded(file: &str) -> anyhow::Result<Trace> {
        let folder = std::env::var_os("FLOE_LINK_TRACES")
            .map_or_else(|| PathBuf::from("../shared/link-traces"), PathBuf::from);
        let path = folder.join(file);
        let bytes = std::fs::read(&path).with_context(|| {
            format!(
                "cannot read the recorded link {}; set FLOE_LINK_TRACES to the folder of mahimahi's traces, or use --quick",
                path.display()
            )
        })?;
        Trace::parse(&bytes).with_context(|| path.display().to_string())
    }

    /// Returns the loop's length.
    pub fn period_ms(&self) -> u64 {
        *self
            .at_ms
            .last()
            .expect("parse refuses a trace without lines")
    }

    /// Returns the mean rate over the whole loop.
    pub fn mean_bits_per_s(&self) -> f64 {
        (self.at_ms.len() * MTU * 8) as f64 / (self.period_ms() as f64 / 1000.0)
    }

    /// Returns when the `n`th opportunity since the start comes; `n` continues over all repetitions of the loop.
    pub fn nth_ns(&self, n: u64) -> u64 {
        let len = self.at_ms.len() as u64;
        ((n / len) * self.period_ms() + self.at_ms[(n % len) as usize]) * 1_000_000
    }

    /// Returns the number of the first opportunity at or after `now_ns`.
    pub fn first_at(&self, now_ns: u64) -> u64 {
        let now_ms = now_ns.div_ceil(1_000_000);
        let (len, period) = (self.at_ms.len() as u64, self.period_ms());
        // The end of one repetition and the 0 ms of the next are the same moment: start searching in the earlier one.
        let round = if now_ms.is_multiple_of(period) {
            (now_ms / period).saturating_sub(1)
        } else {
            now_ms / period
        };
        let within = self
            .at_ms
            .partition_point(|at| round * period + at < now_ms) as u64;
        round * len + within
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bad_trace_is_refused_with_its_line() {
        assert_eq!(Trace::parse(b""), Err(TraceError::Empty));
        assert_eq!(Trace::parse(b"0\n0\n"), Err(TraceError::Empty));
        assert_eq!(
            Trace::parse(b"5\n\n3\n"),
            Err(TraceError::Backwards {
                line: 3,
                now: 3,
                before: 5
            })
        );
        assert_eq!(
            Trace::parse(b"5\nx1\n"),
            Err(TraceError::NotANumber {
                line: 2,
                text: "x1".into()
            })
        );
        assert_eq!(Trace::parse(b"99999999999999\n"), Err(TraceError::TooLarge));
        assert!(Trace::parse(b"-1\n").is_err());
    }

    #[test]
    fn the_rate_is_packets_over_the_loop() {
        let trace = Trace::parse(b"0\n5\r\n5\n10\n").unwrap();
        assert_eq!(trace.period_ms(), 10);
        assert_eq!(trace.mean_bits_per_s(), 4.0 * 12_000.0 / 0.01);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Trace::parse(&bytes);
        }

        #[test]
        fn the_first_opportunity_is_found_as_by_counting(
            steps in proptest::collection::vec(0u64..4, 1..12), now_us in 0u64..100_000
        ) {
            let mut at = 0;
            let mut text = String::new();
            for step in &steps { at += step; text += &format!("{at}\n"); }
            prop_assume!(at > 0);
            let trace = Trace::parse(text.as_bytes()).unwrap();
            let now = now_us * 1000;
            let found = trace.first_at(now);
            prop_assert!(trace.nth_ns(found) >= now);
            prop_assert!(found == 0 || trace.nth_ns(found - 1) < now);
        }
    }
}
