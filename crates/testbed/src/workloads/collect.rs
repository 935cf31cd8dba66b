//! `floe-lab collect`: makes images, runs workloads, and stores traces with a description of them.
use super::convert;
use super::session::Session;
use super::{ALL, SHELL, Workload};
use crate::content::Content;
use crate::guest::Guest;
use crate::live::Node;
use anyhow::{Context, bail};
use floe_image::{Access, TraceHeader, TraceReader};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The name of the machine in which a workload runs.
const MACHINE: &str = "user";
/// Longest time until the node has written out a trace.
const WRITTEN_OUT: Duration = Duration::from_secs(1);

/// Run scripted workloads in real guests and keep their traces
#[derive(clap::Args)]
#[command(after_help = "\
Example: all of them, into the repository
  floe-lab collect --out lab/traces
Example: two runs of one, with pictures of the screen, the images kept for later calls
  floe-lab collect --workload game --count 2 --out /tmp/traces --screens /tmp/screens --work /var/tmp/lab")]
pub struct Arguments {
    /// A workload (repeatable); all of them if none is named
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// Runs of each, seeded 0, 1, 2 ...
    #[arg(long)]
    count: Option<u32>,
    /// The first run's number and seed, to go on with a collection
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u32,
    /// Directory of the traces; each workload has one of its own in it
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Also save the screen at the end of each run
    #[arg(long, value_name = "DIR")]
    screens: Option<PathBuf>,
    /// A guest built by guests/build instead of the desktop one
    #[arg(long, value_name = "DIR")]
    guest: Option<PathBuf>,
    /// Directory for images and machines, kept and used again (default: one that is removed)
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
}

impl Arguments {
    /// Returns the directory for images and machines, if the user has named one.
    pub fn work(&self) -> Option<&Path> {
        self.work.as_deref()
    }

    /// Collects the traces.
    pub fn run(&self, work: &Path) -> anyhow::Result<()> {
        let mut chosen: Vec<&Workload> = Vec::new();
        for name in &self.workload {
            let known = ALL.iter().chain([&SHELL]);
            match known.clone().find(|workload| workload.name == name) {
                Some(workload) => chosen.push(workload),
                None => {
                    let known: Vec<&str> = known.map(|workload| workload.name).collect();
                    bail!("no workload {name:?}; there are {}", known.join(", "));
                }
            }
        }
        if chosen.is_empty() {
            chosen.extend(ALL);
        }
        let collector = Collector {
            guest: match &self.guest {
                Some(dir) => Guest::at(dir)?,
                None => Guest::desktop()?,
            },
            work: work.to_path_buf(),
            out: self.out.clone(),
            screens: self.screens.clone(),
        };
        for workload in chosen {
            let count = self.count.unwrap_or(workload.count);
            collector.collect(workload, self.first..self.first + count)?;
        }
        Ok(())
    }
}

/// The description of a workload's traces (`meta.json` next to them).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The workload's name.
    pub workload: String,
    /// Number of chunks of the image that are not zero, by region.
    pub image_nonzero_chunks: BTreeMap<String, u64>,
    /// Mean size of an accessed chunk in bytes, compressed alone.
    pub wire_bytes_per_chunk: f64,
    /// Seconds of each run, from the start of its trace to the end of its actions.
    pub run_s: Vec<f64>,
    /// Bytes of the whole image, with equal chunks counted once, as one zstd stream.
    pub image_zstd_bytes: u64,
    /// Number of accesses stored for each run.
    pub accesses: Vec<u64>,
    /// The regions' names, by the numbers in the manifest and in traces.
    #[serde(default)]
    pub regions: Vec<String>,
}

/// Runs workloads.
pub struct Collector {
    /// The guest in which they run.
    pub guest: Guest,
    /// Directory of the nodes' homes.
    pub work: PathBuf,
    /// Directory of the traces.
    pub out: PathBuf,
    /// Directory of screenshots.
    pub screens: Option<PathBuf>,
}

/// One run.
struct Run {
    header: TraceHeader,
    accesses: Vec<Access>,
    seconds: f64,
}

impl Collector {
    fn home(&self) -> PathBuf {
        self.work.join("node")
    }

    /// Runs a workload with these seeds. Its directory gets one trace for each, and `meta.json`.
    pub fn collect(
        &self,
        workload: &Workload,
        seeds: std::ops::Range<u32>,
    ) -> anyhow::Result<Meta> {
        let image = {
            let node = Node::demand_only(&self.home())?;
            workload.stage.prepare(&node, &self.guest)?;
            node.client.image(workload.stage.image())?.summary.id
        };
        let content = Content::open(&self.home(), &image)?;
        let dir = self.out.join(workload.name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut meta = Meta {
            workload: workload.name.into(),
            image_nonzero_chunks: content.nonzero(),
            image_zstd_bytes: content.zstd_bytes()?,
            regions: content.regions(),
            ..Meta::default()
        };
        // A continued collection keeps what it has, if that is of the same image.
        let about = dir.join("meta.json");
        if seeds.start > 0 && about.exists() {
            let old: Meta = serde_json::from_slice(&fs::read(&about)?)?;
            if old.image_nonzero_chunks != meta.image_nonzero_chunks {
                bail!(
                    "{} has traces of another image; begin with --first 0",
                    dir.display()
                );
            }
            meta = old;
            meta.run_s.truncate(seeds.start as usize);
            meta.accesses.truncate(seeds.start as usize);
        }
        let mut touched: BTreeSet<(u8, u32)> = BTreeSet::new();
        for seed in seeds {
            let run = self
                .one(workload, &content, seed)
                .with_context(|| format!("run {seed} of {} failed", workload.name))?;
            touched.extend(run.accesses.iter().map(|a| (a.region, a.chunk)));
            let file = dir.join(format!("{seed:02}.trace.zst"));
            let bytes = convert::encode(&run.header, &run.accesses)?;
            fs::write(&file, &bytes).with_context(|| format!("cannot write {}", file.display()))?;
            let waited = convert::waited_us(&run.accesses);
            eprintln!(
                "{} {seed}: {:.1} s, {} chunks touched, {:.1} s waited, {} KB",
                workload.name,
                run.seconds,
                run.accesses.len(),
                waited as f64 / 1e6,
                bytes.len() / 1000
            );
            meta.run_s.push((run.seconds * 1000.0).round() / 1000.0);
            meta.accesses.push(run.accesses.len() as u64);
            meta.wire_bytes_per_chunk = content.mean_wire_bytes(&touched)?.round();
            fs::write(&about, serde_json::to_string_pretty(&meta)? + "\n")?;
        }
        Ok(meta)
    }

    /// Does one run on a new node, whose new mount has nothing in the page cache that would hide touches.
    fn one(&self, workload: &Workload, content: &Content, seed: u32) -> anyhow::Result<Run> {
        let node = Node::demand_only(&self.home())?;
        node.run(&workload.stage.request(MACHINE), |_| {})?;
        let mut session = Session::attach(&node, MACHINE, u64::from(seed))?;
        let result = (workload.run)(&mut session);
        let end = unix_us()?;
        if let Some(dir) = &self.screens {
            let file = dir.join(format!("{}-{seed:02}.png", workload.name));
            fs::create_dir_all(dir)?;
            fs::write(&file, node.client.screenshot(MACHINE)?)?;
        }
        result?;
        session.stop()?;
        std::thread::sleep(WRITTEN_OUT);
        let machine = node.home.join("machines").join(MACHINE);
        let traces = node.traces()?;
        let path = traces
            .iter()
            .find(|path| path.starts_with(&machine))
            .with_context(|| format!("no trace below {}", machine.display()))?;
        let bytes = fs::read(path)?;
        let reader = TraceReader::new(&bytes)?;
        let header = reader.header().clone();
        let end_us = end.saturating_sub(header.start_unix_us);
        let accesses = convert::accesses(reader, end_us, |region, chunk| {
            content.hash(region, chunk).is_some()
        });
        node.remove(MACHINE)?;
        anyhow::ensure!(!accesses.is_empty(), "the machine touched nothing");
        Ok(Run {
            header,
            accesses,
            seconds: end_us as f64 / 1e6,
        })
    }
}

fn unix_us() -> anyhow::Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64)
}
