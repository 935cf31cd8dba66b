//! Converts the mount's trace of a machine to the trace that is stored.
use floe_image::{Access, TraceHeader, TraceReader, TraceWriter};
use std::collections::HashSet;

/// Compression level of stored traces, which are written once and read often.
const ZSTD_LEVEL: i32 = 19;

/// Returns the accesses of a trace up to `end_us`: ordered by time, each chunk once, without zero chunks. The time of an
/// access is when its wait began; waits are kept.
pub fn accesses(
    trace: TraceReader<'_>,
    end_us: u64,
    nonzero: impl Fn(u8, u32) -> bool,
) -> Vec<Access> {
    let mut accesses: Vec<Access> = trace
        .filter(|access| access.t_us <= end_us && nonzero(access.region, access.chunk))
        .collect();
    accesses.sort_by_key(|access| access.t_us);
    let mut seen = HashSet::new();
    accesses.retain(|access| seen.insert((access.region, access.chunk)));
    accesses
}

/// Returns the microseconds in which at least one access waited: chunks of one read wait at the same time.
pub fn waited_us(accesses: &[Access]) -> u64 {
    let (mut waited, mut until) = (0, 0);
    for access in accesses {
        let end = access.t_us + access.wait_us;
        waited += end.saturating_sub(until.max(access.t_us));
        until = until.max(end);
    }
    waited
}

/// Returns a compressed trace file.
pub fn encode(header: &TraceHeader, accesses: &[Access]) -> std::io::Result<Vec<u8>> {
    let mut writer = TraceWriter::new(Vec::new(), header)?;
    for access in accesses {
        writer.push(*access)?;
    }
    zstd::encode_all(&writer.into_inner()[..], ZSTD_LEVEL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_image::Hash;
    use proptest::prelude::*;

    fn header() -> TraceHeader {
        TraceHeader {
            image: Hash::of(b"image"),
            machine: "m".into(),
            start_unix_us: 5,
        }
    }

    fn access(region: u8, chunk: u32, t_us: u64, wait_us: u64) -> Access {
        Access {
            region,
            chunk,
            t_us,
            wait_us,
        }
    }

    fn raw(accesses: &[Access]) -> Vec<u8> {
        let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
        for access in accesses {
            writer.push(*access).unwrap();
        }
        writer.into_inner()
    }

    #[test]
    fn zero_chunks_repetitions_and_what_came_after_the_end_are_left_out() {
        let recorded = raw(&[
            access(1, 7, 10, 0),
            access(1, 8, 20, 300),
            access(2, 8, 30, 0),
            access(1, 7, 40, 0),
            access(1, 9, 50, 0),
            access(1, 10, 61, 0),
        ]);
        let kept = accesses(TraceReader::new(&recorded).unwrap(), 60, |_, chunk| {
            chunk != 9
        });
        let expected = [
            access(1, 7, 10, 0),
            access(1, 8, 20, 300),
            access(2, 8, 30, 0),
        ];
        assert_eq!(kept, expected);
        let file = encode(&header(), &kept).unwrap();
        let file = zstd::decode_all(&file[..]).unwrap();
        let reader = TraceReader::new(&file).unwrap();
        assert_eq!(*reader.header(), header());
        assert_eq!(reader.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn waits_that_overlap_are_counted_once() {
        let waits = [
            access(1, 1, 10, 5),
            access(1, 2, 12, 2),
            access(1, 3, 14, 6),
            access(1, 4, 30, 0),
            access(1, 5, 40, 1),
        ];
        assert_eq!(waited_us(&waits), 11);
    }

    #[test]
    fn a_trace_that_was_cut_off_gives_what_came_before() {
        let recorded = raw(&[access(1, 1, 1, 0), access(1, 2, 2, 0)]);
        let reader = TraceReader::new(&recorded[..recorded.len() - 1]).unwrap();
        assert_eq!(accesses(reader, 9, |_, _| true), [access(1, 1, 1, 0)]);
    }

    proptest! {
        #[test]
        fn kept_traces_are_ordered_unique_and_without_zero_chunks(
            touched in prop::collection::vec((0u8..4, 0u32..50, 0u64..1000, 0u64..9), 0..200),
            end_us in 0u64..100_000,
        ) {
            let mut t = 0;
            let touched: Vec<Access> = touched
                .into_iter()
                .map(|(region, chunk, after, wait)| {
                    t += after;
                    access(region, chunk, t, wait)
                })
                .collect();
            let recorded = raw(&touched);
            let kept = accesses(TraceReader::new(&recorded).unwrap(), end_us, |_, chunk| chunk % 3 != 0);
            prop_assert!(kept.is_sorted_by_key(|a| a.t_us));
            let names: HashSet<_> = kept.iter().map(|a| (a.region, a.chunk)).collect();
            prop_assert_eq!(names.len(), kept.len());
            let expected: HashSet<_> = touched
                .iter()
                .filter(|a| a.t_us <= end_us && a.chunk % 3 != 0)
                .map(|a| (a.region, a.chunk))
                .collect();
            prop_assert_eq!(names, expected);
        }
    }
}
