//! Machines' traces after the machine: checked, kept within bounds, and turned into models. Hub and node share it.
//!
//! A trace comes from a machine that ran an image, perhaps on a stranger's host. [`check`] believes nothing of it; a
//! [`TraceStore`] keeps the newest ones of each image, each uploader within its share; a [`Trainer`] makes models of them in
//! the background, which a planner then follows (vTube 3, step 5). [`prepare`] is what a node does before it lets a trace out:
//! no names, no pauses, nothing twice.
//!
//! Not here: who may send or read a trace (that is the hub's), and what is learned from it (floe-planner).

mod list;
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

/// Largest trace, in bytes: [`ACCESSES_MAX`] accesses at their longest (26 bytes), and a header.
pub const TRACE_BYTES_MAX: usize = 5 << 20;
/// Latest moment and longest wait in a trace, in microseconds: a year. What claims more is no machine's trace.
pub const TRACE_US_MAX: u64 = 366 * 24 * 3600 * 1_000_000;
/// Traces kept of one image: several times what the paper trains with.
pub const TRACES_MAX: usize = 64;
/// Traces kept of one uploader who is not the image's owner, so that a stranger can't displace the others.
pub const STRANGER_TRACES_MAX: usize = 16;

/// Newest traces of one named sender, other than the image's owner, that count in a model: a few tell what a machine needs, and
/// many of one sender would steer what all others fetch.
pub const STRANGER_TRACES_COUNTED: usize = 4;
/// The same for all who send without a name, together.
pub const NAMELESS_TRACES_COUNTED: usize = 2;

/// The regions of an image, as far as a trace needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The image.
    pub image: Hash,
    /// Chunks of each region, in the manifest's order.
    pub chunks: Vec<u64>,
}

impl Shape {
    /// That of an image with this manifest.
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
    /// It is no trace.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It is another image's.
    #[error("the trace is of image {found} and not of {expected}")]
    WrongImage {
        /// What the trace says.
        found: Hash,
        /// What was expected.
        expected: Hash,
    },
    /// Too many bytes or accesses.
    #[error("the trace has more than {limit} {what}")]
    TooLarge {
        /// Bytes or accesses.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A chunk that the image does not have, or a time that no machine has.
    #[error("access {number} of the trace {why}")]
    Access {
        /// Its number, from 0.
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
    /// Nothing was accessed.
    #[error("the trace has no access")]
    Empty,
}

/// A trace in figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceSummary {
    /// BLAKE3 of its bytes: its name.
    pub hash: String,
    /// Size in bytes.
    pub bytes: u64,
    /// First accesses in it.
    pub accesses: u64,
    /// Microseconds from its beginning to its last access.
    pub end_us: u64,
    /// Microseconds in which the machine waited for chunks, overlapping waits counted once.
    pub wait_us: u64,
    /// When it began, Unix time in microseconds.
    pub start_unix_us: u64,
}

/// Reads a whole trace and believes nothing of it.
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

/// A machine's own trace as it may leave the host: at most [`ACCESSES_MAX`] accesses, each chunk once, without the
/// machine's name and without the time in which it was paused (`pauses`: Unix time in microseconds, from and to, in order).
/// `None` if nothing is left. A trace that went on gives a continuation of what it gave before.
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
        // time that passed while the machine stood still before the access, and while it waited for it
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

    /// A trace of these (region, chunk, t_us, wait_us).
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
        // paused from 1200 to 3200: the second half of the second access' wait, and on
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
