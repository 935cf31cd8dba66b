//! Handles machines' traces after the machine: checks them, limits how many are kept, and trains models. Hub and node share
//! this.
//!
//! A trace comes from a machine that ran an image, perhaps on a stranger's host. [`check`] trusts nothing in it. A
//! [`TraceStore`] keeps the newest traces of each image, with a limit for each uploader. A [`Trainer`] trains models from them
//! in the background, which a planner then follows (vTube 3, step 5). [`prepare`] is what a node applies before it sends a
//! trace: it removes names, pauses and repeated accesses.
//!
//! Not here: who may send or read a trace (the hub decides that), and how a model is trained (floe-planner).
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

mod list;
mod programs;
mod store;
mod train;

pub use floe_planner::{ACCESSES_MAX, Method, Model};
pub use list::{ModelEntry, TraceEntry, TraceList};
pub use store::{Added, Kept, StoredModel, TraceStore, count_authors};
pub use train::{Train, Trainer, learn};

use floe_image::{
    Access, CHUNK_SIZE, FormatError, Hash, Manifest, TraceEnd, TraceHeader, TraceReader,
    TraceWriter,
};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use utoipa::ToSchema;

/// Most bytes of a trace: [`ACCESSES_MAX`] accesses of the greatest length (26 bytes), and a header.
pub const TRACE_BYTES_MAX: usize = 5 << 20;
/// Latest time and longest wait in a trace, in microseconds: a year. A trace that claims more is refused.
pub const TRACE_US_MAX: u64 = 366 * 24 * 3600 * 1_000_000;
/// Most traces kept of one image: several times as many as the paper trains with.
pub const TRACES_MAX: usize = 64;
/// Most traces kept of one uploader who isn't the image's owner, so that a stranger can't displace the others.
pub const STRANGER_TRACES_MAX: usize = 16;

/// How many traces of one named sender, other than the image's owner, count in a model, the newest first: a few show what a
/// machine needs, but many traces of one sender would decide what everybody fetches.
pub const STRANGER_TRACES_COUNTED: usize = 4;
/// The same limit for all senders without a name together.
pub const NAMELESS_TRACES_COUNTED: usize = 2;

/// The sizes of an image's regions, which a trace is checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The image.
    pub image: Hash,
    /// The number of chunks of each region, in the manifest's order.
    pub chunks: Vec<u64>,
}

impl Shape {
    /// Returns the shape of an image with this manifest.
    pub fn of(image: Hash, manifest: &Manifest) -> Shape {
        let chunks = |size: u64| size.div_ceil(CHUNK_SIZE as u64);
        Shape {
            image,
            chunks: manifest.regions.iter().map(|r| chunks(r.size)).collect(),
        }
    }

    fn holds(&self, access: &Access) -> bool {
        let chunks = self.chunks.get(usize::from(access.region));
        chunks.is_some_and(|chunks| u64::from(access.chunk) < *chunks)
    }
}

/// Why a trace is refused.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It is not a trace.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It is a trace of another image.
    #[error("the trace is of image {found} and not of {expected}")]
    WrongImage {
        /// The image that the trace names.
        found: Hash,
        /// The image that was expected.
        expected: Hash,
    },
    /// It has too many bytes or accesses.
    #[error("the trace has more than {limit} {what}")]
    TooLarge {
        /// What there are too many of: bytes or accesses.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// It accesses a chunk that the image doesn't have, or has an impossible time.
    #[error("access {number} of the trace {why}")]
    Access {
        /// The access's number, from 0.
        number: usize,
        /// What is wrong with it.
        why: String,
    },
    /// It ends in the middle of an access.
    #[error("the trace ends in the middle of an access, at byte {at}")]
    CutOff {
        /// Where the last whole access ends.
        at: usize,
    },
    /// It has no access.
    #[error("the trace has no access")]
    Empty,
}

/// What a trace contains, in figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceSummary {
    /// Hash of the trace: BLAKE3 of its bytes.
    pub hash: String,
    /// Size in bytes.
    pub bytes: u64,
    /// First accesses in it.
    pub accesses: u64,
    /// Microseconds from the beginning to the end of the last wait or access.
    pub end_us: u64,
    /// Microseconds in which the machine waited for chunks, overlapping waits counted once.
    pub wait_us: u64,
    /// When the trace began, in microseconds of Unix time.
    pub start_unix_us: u64,
}

/// Checks a whole trace, without trusting anything in it; returns its summary.
pub fn check(bytes: &[u8], shape: &Shape) -> Result<TraceSummary, TraceError> {
    if bytes.len() > TRACE_BYTES_MAX {
        return Err(TraceError::TooLarge {
            what: "bytes",
            limit: TRACE_BYTES_MAX,
        });
    }
    let mut reader = TraceReader::new(bytes)?;
    if reader.header().image != shape.image {
        return Err(TraceError::WrongImage {
            found: reader.header().image,
            expected: shape.image,
        });
    }
    let mut summary = TraceSummary {
        hash: Hash::of(bytes).to_string(),
        bytes: bytes.len() as u64,
        accesses: 0,
        end_us: 0,
        wait_us: 0,
        start_unix_us: reader.header().start_unix_us,
    };
    let mut waited_until = 0;
    for (number, access) in reader.by_ref().enumerate() {
        if number >= ACCESSES_MAX {
            return Err(TraceError::TooLarge {
                what: "accesses",
                limit: ACCESSES_MAX,
            });
        }
        let wrong = |why: String| Err(TraceError::Access { number, why });
        if !shape.holds(&access) {
            let (region, chunk) = (access.region, access.chunk);
            return wrong(format!(
                "names chunk {chunk} of region {region}, which the image does not have"
            ));
        }
        if access.t_us > TRACE_US_MAX || access.wait_us > TRACE_US_MAX {
            return wrong("is more than a year long".into());
        }
        let end = access.t_us + access.wait_us;
        summary.wait_us += end.saturating_sub(waited_until.max(access.t_us));
        waited_until = waited_until.max(end);
        summary.accesses += 1;
        summary.end_us = summary.end_us.max(end);
    }
    match reader.end() {
        Some(TraceEnd::Clean) | None if summary.accesses == 0 => Err(TraceError::Empty),
        Some(TraceEnd::Clean) | None => Ok(summary),
        Some(TraceEnd::CutOff | TraceEnd::Damaged) => Err(TraceError::CutOff {
            at: reader.valid_bytes(),
        }),
    }
}

/// Returns a machine's own trace in the form in which it may leave the host: at most [`ACCESSES_MAX`] accesses, each chunk
/// once, without the machine's name and without the time in which it was paused (`pauses`: start and end in microseconds of
/// Unix time, in order). `None` if nothing is left. The result for a trace that has grown begins with the result from before.
pub fn prepare(bytes: &[u8], shape: &Shape, pauses: &[(u64, u64)]) -> Option<Vec<u8>> {
    let reader = TraceReader::new(bytes).ok()?;
    let header = reader.header().clone();
    if header.image != shape.image {
        return None;
    }
    let began = header.start_unix_us;
    let header = TraceHeader {
        machine: String::new(),
        ..header
    };
    let mut writer = TraceWriter::new(Vec::new(), &header).ok()?;
    let mut seen = HashSet::new();
    for access in reader.filter(|access| shape.holds(access)) {
        if seen.len() >= ACCESSES_MAX {
            break;
        }
        if !seen.insert((access.region, access.chunk)) {
            continue;
        }
        let from = began.saturating_add(access.t_us);
        let to = from.saturating_add(access.wait_us);
        // Time in which the machine was paused before the access, and while it waited for it.
        let (mut before, mut within) = (0, 0);
        for (pause, end) in pauses.iter().filter(|(pause, _)| *pause < to) {
            let pause = (*pause).max(began);
            before += (*end).min(from).saturating_sub(pause);
            within += (*end).min(to).saturating_sub(pause.max(from));
        }
        let access = Access {
            t_us: access.t_us.saturating_sub(before).min(TRACE_US_MAX),
            wait_us: access.wait_us.saturating_sub(within).min(TRACE_US_MAX),
            ..access
        };
        writer.push(access).ok()?;
    }
    (!seen.is_empty()).then(|| writer.into_inner())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn shape() -> Shape {
        Shape {
            image: Hash::of(b"image"),
            chunks: vec![100, 50],
        }
    }

    /// Makes a trace of accesses given as (region, chunk, t_us, wait_us).
    pub(crate) fn trace(start_unix_us: u64, accesses: &[(u8, u32, u64, u64)]) -> Vec<u8> {
        let header = TraceHeader {
            image: Hash::of(b"image"),
            machine: "web".into(),
            start_unix_us,
        };
        let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
        for &(region, chunk, t_us, wait_us) in accesses {
            let access = Access {
                region,
                chunk,
                t_us,
                wait_us,
            };
            writer.push(access).unwrap();
        }
        writer.into_inner()
    }

    fn accesses(bytes: &[u8]) -> Vec<(u8, u32, u64, u64)> {
        let reader = TraceReader::new(bytes).unwrap();
        reader
            .map(|a| (a.region, a.chunk, a.t_us, a.wait_us))
            .collect()
    }

    #[test]
    fn a_trace_is_summed_up_and_overlapping_waits_count_once() {
        let bytes = trace(7, &[(0, 1, 0, 100), (0, 2, 50, 100), (1, 49, 500, 10)]);
        let summary = check(&bytes, &shape()).unwrap();
        assert_eq!(
            (summary.accesses, summary.end_us, summary.wait_us),
            (3, 510, 160)
        );
        assert_eq!(summary.hash, Hash::of(&bytes).to_string());
    }

    #[test]
    fn a_trace_of_what_cannot_be_is_refused() {
        let wrong = |bytes: &[u8]| check(bytes, &shape()).unwrap_err().to_string();
        assert!(wrong(&trace(0, &[(0, 100, 0, 0)])).contains("chunk 100 of region 0"));
        assert!(wrong(&trace(0, &[(0, 1, 0, 0), (2, 0, 0, 0)])).contains("access 1"));
        assert!(wrong(&trace(0, &[(0, u32::MAX, 0, 0)])).contains("does not have"));
        assert!(wrong(&trace(0, &[(0, 1, u64::MAX, 0)])).contains("year"));
        assert!(wrong(&trace(0, &[(0, 1, 0, u64::MAX)])).contains("year"));
        assert!(wrong(&trace(0, &[])).contains("no access"));
        let whole = trace(0, &[(0, 1, 5, 5)]);
        assert!(wrong(&whole[..whole.len() - 1]).contains("middle"));
        assert!(wrong(&[]).contains("trace"));
        let other = Shape {
            image: Hash::of(b"other"),
            ..shape()
        };
        assert!(
            check(&whole, &other)
                .unwrap_err()
                .to_string()
                .contains("not of")
        );
        let long: Vec<_> = (0..=ACCESSES_MAX as u64).map(|t| (0, 1, t, 0)).collect();
        assert!(wrong(&trace(0, &long)).contains("accesses"));
        assert!(wrong(&vec![0; TRACE_BYTES_MAX + 1]).contains("bytes"));
    }

    #[test]
    fn what_leaves_the_host_has_no_name_no_pause_and_nothing_twice() {
        let began = 1_000_000;
        let bytes = trace(
            began,
            &[
                (0, 1, 100, 0),
                (0, 1, 200, 0),
                (0, 2, 1000, 400),
                (9, 9, 1000, 0),
                (1, 3, 5000, 10),
            ],
        );
        // Paused from 1200 to 3200: the second half of the second access's wait, and longer.
        let pauses = [(began + 1200, began + 3200)];
        let sent = prepare(&bytes, &shape(), &pauses).unwrap();
        assert_eq!(
            accesses(&sent),
            [(0, 1, 100, 0), (0, 2, 1000, 200), (1, 3, 3000, 10)]
        );
        assert_eq!(TraceReader::new(&sent).unwrap().header().machine, "");
        check(&sent, &shape()).unwrap();
        assert_eq!(prepare(&trace(0, &[]), &shape(), &[]), None);
        assert_eq!(prepare(b"no trace", &shape(), &[]), None);
    }

    proptest! {
        #[test]
        fn bytes_from_anywhere_are_refused_or_summed_up(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut whole = trace(0, &[(0, 1, 0, 0)]);
            whole.extend_from_slice(&bytes);
            for bytes in [&bytes, &whole] {
                if let Ok(summary) = check(bytes, &shape()) {
                    prop_assert!(summary.wait_us <= summary.end_us && summary.accesses as usize <= bytes.len());
                }
                let _ = prepare(bytes, &shape(), &[]);
            }
        }

        #[test]
        fn a_trace_that_went_on_continues_what_was_sent(
            all in proptest::collection::vec((0u8..3, 0u32..120, 0u64..1000, 0u64..1000), 1..60), cut in 0usize..60
        ) {
            let mut t = 0;
            let all: Vec<_> = all.into_iter().map(|(r, c, dt, w)| { t += dt; (r, c, t, w) }).collect();
            let pauses = [(100, 900), (5000, 9000)];
            let whole = prepare(&trace(0, &all), &shape(), &pauses).unwrap_or_default();
            let part = prepare(&trace(0, &all[..cut.min(all.len())]), &shape(), &pauses).unwrap_or_default();
            prop_assert!(whole.starts_with(&part));
            if !whole.is_empty() {
                check(&whole, &shape()).unwrap();
            }
        }
    }
}
