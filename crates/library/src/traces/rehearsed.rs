//! What an image's rehearsal touched: the image's runs prefetch it in the same order.

use floe_image::{Manifest, TraceReader};
use floe_mount::{ImageHandle, MachineHandle};

/// The region that holds a rehearsal's trace.
pub const TRACE_REGION: &str = "trace";
/// Most accesses of a trace that a run follows, 256 MiB of chunks: an image's author can't make its users fetch without end.
pub(crate) const FOLLOWED_MAX: usize = 65_536;

/// Passes to the mount what an image's rehearsal touched, for a machine that is about to run.
pub fn follow(image: &ImageHandle, machine: &MachineHandle, manifest: &Manifest, trace: &[u8]) {
    for (region, chunks) in runs(manifest, trace) {
        if let Err(error) = image.expect(&region, chunks, Some(machine)) {
            tracing::debug!(%error, region, "the rehearsal's trace names a region that is not shown");
        }
    }
}

/// Splits a trace into runs of accesses to one region, in the order of time.
fn runs(manifest: &Manifest, trace: &[u8]) -> Vec<(String, Vec<u64>)> {
    let reader = match TraceReader::new(trace) {
        Ok(reader) => reader,
        Err(error) => {
            tracing::warn!(%error, "the image's rehearsal can't be read; everything is fetched when it is touched");
            return Vec::new();
        }
    };
    let mut runs: Vec<(String, Vec<u64>)> = Vec::new();
    for access in reader.take(FOLLOWED_MAX) {
        let Some(region) = manifest.regions.get(usize::from(access.region)) else {
            continue;
        };
        match runs.last_mut() {
            Some((name, chunks)) if *name == region.name => chunks.push(access.chunk.into()),
            _ => runs.push((region.name.clone(), vec![access.chunk.into()])),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_image::{Access, Hash, Region, TraceHeader, TraceWriter};

    fn manifest() -> Manifest {
        let region = |name: &str| Region {
            name: name.into(),
            size: floe_image::SEGMENT_SPAN,
            segments: vec![Hash::ZERO],
            ..Default::default()
        };
        Manifest {
            regions: vec![region("device"), region("ram"), region("disk0")],
            ..Default::default()
        }
    }

    #[test]
    fn a_trace_is_followed_in_its_order_and_unknown_regions_are_left_out() {
        let header = TraceHeader {
            image: Hash::of(b"image"),
            machine: "copy".into(),
            start_unix_us: 0,
        };
        let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
        for (region, chunk) in [(1, 9), (1, 3), (2, 5), (40, 1), (1, 4)] {
            let access = Access {
                region,
                chunk,
                t_us: 0,
                wait_us: 0,
            };
            writer.push(access).unwrap();
        }
        let ram = |chunks: &[u64]| ("ram".to_owned(), chunks.to_vec());
        let expected = [ram(&[9, 3]), ("disk0".to_owned(), vec![5]), ram(&[4])];
        assert_eq!(runs(&manifest(), &writer.into_inner()), expected);
    }

    #[test]
    fn a_region_that_is_no_trace_is_not_followed() {
        assert_eq!(runs(&manifest(), b"not a trace"), []);
    }
}
