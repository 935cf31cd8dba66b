//! Recorded workloads: `lab/traces/<workload>/{NN.trace.zst, meta.json}`, written by `floe-lab collect` and read by the
//! simulator.
use crate::shape::{ImageShape, RegionShape, urgency_of};
use crate::workloads::Meta;
use anyhow::{Context as _, bail};
use floe_image::{Hash, TraceReader};
use floe_planner::ZeroTrace;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Largest unpacked size of a trace file, in bytes.
const TRACE_BYTES_MAX: usize = 64 << 20;

/// Returns the regions' names by number. If they are not listed, it is the order in which a capture writes regions with
/// content.
fn names(meta: &Meta) -> Vec<String> {
    if !meta.regions.is_empty() {
        return meta.regions.clone();
    }
    let rank = |name: &str| {
        let first = ["device", "ram", "vram"];
        first.iter().position(|n| *n == name).unwrap_or(first.len())
    };
    let mut names: Vec<String> = meta.image_nonzero_chunks.keys().cloned().collect();
    names.sort_by_key(|name| rank(name));
    names
}

/// Returns a trace of these accesses (microseconds, region, chunk), for tests.
pub fn of(accesses: &[(u64, u8, u32)], end_us: u64) -> ZeroTrace {
    let accesses = accesses.iter().copied();
    let timed = accesses.map(|(t_us, region, chunk)| floe_planner::Timed {
        t_us,
        region,
        chunk,
    });
    ZeroTrace {
        accesses: timed.collect(),
        end_us,
    }
}

/// A workload: its traces with waits removed.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What else is known about them.
    pub meta: Meta,
    /// The runs, in the order of their files' names.
    pub traces: Vec<ZeroTrace>,
    /// The image, as far as it is known.
    pub image: ImageShape,
    /// The image's id.
    pub image_id: Hash,
}

impl Workload {
    /// Returns the names of the image's regions, by the numbers that traces use.
    pub fn regions(&self) -> Vec<String> {
        names(&self.meta)
    }

    /// Combines runs of several workloads of one image into one workload: what a hub learns from if its users do
    /// different things.
    pub fn merged(name: &str, of: &[&Workload], runs: usize) -> anyhow::Result<Workload> {
        let first = of.first().context("no workload to combine")?;
        let wire: f64 = of.iter().map(|w| w.meta.wire_bytes_per_chunk).sum();
        let meta = Meta {
            workload: name.into(),
            image_nonzero_chunks: first.meta.image_nonzero_chunks.clone(),
            image_zstd_bytes: first.meta.image_zstd_bytes,
            regions: names(&first.meta),
            wire_bytes_per_chunk: wire / of.len() as f64,
            ..Meta::default()
        };
        let most = of.iter().map(|w| w.traces.len()).max().unwrap_or(0);
        // in turn, because different users come in any order
        let by_turns =
            (0..most.min(runs)).flat_map(|n| of.iter().filter_map(move |w| w.traces.get(n)));
        let traces: Vec<ZeroTrace> = by_turns.cloned().collect();
        let image = image_of(&meta, &traces)?;
        Ok(Workload {
            meta,
            traces,
            image,
            image_id: first.image_id,
        })
    }
}

/// The traces of the source tree, for unit tests, which run in their package's directory.
pub const OF_THE_TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/traces");

/// Returns the folder of the traces: `$FLOE_LAB_TRACES`, or `lab/traces` under the current directory.
pub fn folder() -> PathBuf {
    std::env::var_os("FLOE_LAB_TRACES").map_or_else(|| "lab/traces".into(), PathBuf::from)
}

/// Reads all workloads of a folder, ordered by name.
pub fn read_all(folder: &Path) -> anyhow::Result<Vec<Workload>> {
    let entries = fs::read_dir(folder).with_context(|| {
        format!(
            "cannot read {}; run this at the root of the source tree, or set FLOE_LAB_TRACES",
            folder.display()
        )
    })?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.join("meta.json").is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        bail!("{} holds no workload with a meta.json", folder.display());
    }
    paths.iter().map(|path| read(path)).collect()
}

/// Reads one workload.
pub fn read(dir: &Path) -> anyhow::Result<Workload> {
    let meta = fs::read(dir.join("meta.json"))
        .with_context(|| format!("cannot read meta.json in {}", dir.display()))?;
    let meta: Meta =
        serde_json::from_slice(&meta).with_context(|| format!("meta.json in {}", dir.display()))?;
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(".trace.zst") {
            files.push(path);
        }
    }
    files.sort();
    let mut traces = Vec::new();
    let mut ids = BTreeSet::new();
    for file in &files {
        let (id, trace) =
            read_trace(file).with_context(|| format!("cannot read {}", file.display()))?;
        ids.insert(id);
        traces.push(trace);
    }
    if ids.len() > 1 {
        bail!(
            "the traces of {} are of {} images",
            dir.display(),
            ids.len()
        );
    }
    let image = image_of(&meta, &traces)?;
    Ok(Workload {
        meta,
        traces,
        image,
        image_id: ids.first().copied().unwrap_or(Hash::ZERO),
    })
}

/// Reads only the traces of a workload's directory, and the id of their image.
pub fn read_runs(dir: &Path) -> anyhow::Result<(Hash, Vec<ZeroTrace>)> {
    let workload = read(dir)?;
    Ok((workload.image_id, workload.traces))
}

fn read_trace(file: &Path) -> anyhow::Result<(Hash, ZeroTrace)> {
    let bytes = zstd::bulk::decompress(&fs::read(file)?, TRACE_BYTES_MAX)?;
    let reader = TraceReader::new(&bytes)?;
    Ok((reader.header().image, ZeroTrace::from_reader(reader)))
}

/// Builds the image from its description. Traces show which of the touched chunks exist. The other non-zero chunks are
/// spread evenly by a fixed rule, so that a prefetch of neighbours finds as many as it would on average.
fn image_of(meta: &Meta, traces: &[ZeroTrace]) -> anyhow::Result<ImageShape> {
    let names = names(meta);
    let mut touched: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); names.len()];
    for access in traces.iter().flat_map(|t| &t.accesses) {
        touched
            .get_mut(usize::from(access.region))
            .with_context(|| format!("a trace names region {}, of {names:?}", access.region))?
            .insert(access.chunk);
    }
    let regions = names.iter().zip(&touched).map(|(name, touched)| {
        let span = touched.last().map_or(0, |last| u64::from(*last) + 1);
        let mut region = RegionShape::new(span, urgency_of(name));
        touched.iter().for_each(|c| region.put(u64::from(*c)));
        let all = meta.image_nonzero_chunks.get(name).copied().unwrap_or(0);
        let others = all.saturating_sub(touched.len() as u64);
        let free = span.saturating_sub(touched.len() as u64);
        for chunk in (0..span).filter(|c| others > 0 && !touched.contains(&(*c as u32))) {
            if scattered(chunk) % free.max(1) < others {
                region.put(chunk);
            }
        }
        region
    });
    Ok(ImageShape {
        regions: regions.collect(),
        chunk_wire_bytes: (meta.wire_bytes_per_chunk.round() as usize).clamp(1, 8192),
    })
}

/// Scatters numbers by a fixed rule (the finaliser of splitmix64).
fn scattered(n: u64) -> u64 {
    let n = (n.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_image::{Access, Hash, TraceHeader, TraceWriter};
    use floe_planner::Urgency;

    fn write(dir: &Path, name: &str, accesses: &[(u8, u32, u64, u64)]) {
        let header = TraceHeader {
            image: Hash::of(b"image"),
            machine: "test".into(),
            start_unix_us: 1,
        };
        let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
        for (region, chunk, t_us, wait_us) in accesses.iter().copied() {
            writer
                .push(Access {
                    region,
                    chunk,
                    t_us,
                    wait_us,
                })
                .unwrap();
        }
        let packed = zstd::bulk::compress(&writer.into_inner(), 19).unwrap();
        fs::write(dir.join(name), packed).unwrap();
    }

    #[test]
    fn a_workload_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let meta = Meta {
            workload: "w".into(),
            image_nonzero_chunks: [("ram".into(), 2000), ("disk0".into(), 1)].into(),
            regions: ["device", "ram", "disk0"].map(String::from).into(),
            wire_bytes_per_chunk: 1400.4,
            ..Meta::default()
        };
        let to = dir.path().join("w");
        fs::create_dir(&to).unwrap();
        fs::write(to.join("meta.json"), serde_json::to_vec(&meta).unwrap()).unwrap();
        write(
            &to,
            "01.trace.zst",
            &[(1, 4000, 1000, 0), (2, 7, 9000, 500)],
        );
        write(&to, "00.trace.zst", &[(1, 3, 0, 100)]);
        let all = read_all(dir.path()).unwrap();
        assert_eq!((all.len(), all[0].traces.len()), (1, 2));
        let image = &all[0].image;
        assert_eq!(image.chunk_wire_bytes, 1400);
        // device, ram, disk0
        assert_eq!(image.regions.len(), 3);
        assert!(image.regions[1].has(3) && image.regions[1].has(4000));
        let ram = image.regions[1].nonzero_chunks();
        assert!((1800..2200).contains(&ram), "{ram} of some 2000");
        assert_eq!(image.regions[2].nonzero_chunks(), 1);
        let urgency = [0, 1, 2].map(|n: usize| image.regions[n].urgency);
        assert_eq!(
            urgency,
            [Urgency::Storage, Urgency::Memory, Urgency::Storage]
        );
        assert_eq!(all[0].traces[0].accesses[0].chunk, 3);
    }

    #[test]
    fn a_trace_of_another_image_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let meta = Meta::default();
        fs::write(
            dir.path().join("meta.json"),
            serde_json::to_vec(&meta).unwrap(),
        )
        .unwrap();
        write(dir.path(), "00.trace.zst", &[(9, 1, 0, 0)]);
        assert!(read(dir.path()).is_err());
        fs::write(dir.path().join("00.trace.zst"), b"no zstd").unwrap();
        assert!(read(dir.path()).is_err());
    }
}
