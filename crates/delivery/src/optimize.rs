//! `optimize`: what it costs to fetch the clusters of a run from a server of plain files, before and after the image's
//! packs were rearranged by the traces of the other runs.
//!
//! The image and its runs come from a real guest: recorded here like `floe-lab collect` does, or taken from a directory
//! that `FLOE_LAB_COLLECTED` names (`collect --work DIR --out DIR/traces`). For each run, a model is trained on the
//! others and the image's packs are rearranged by it. Whenever the run touches a cluster for the first time, the whole
//! cluster is fetched over HTTP from a real server that counts. Chunks that come along unrequested are kept, as in a
//! node's cache.
use super::static_server::StaticServer;
use anyhow::{Context as _, bail, ensure};
use floe_image::{Hash, Kind, Layout};
use floe_planner::{ChunkAt, Method, Model, TrainOptions, ZeroTrace, train};
use floe_source::{Files, Options, READ_ITEMS_MAX, Registry, Request, Source};
use floe_store::Repository;
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::{Bridge, Shape};
use floe_testbed::traces;
use floe_testbed::workloads::{self, Collector};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The workload. Its runs differ, so a model of the others is never quite right.
const WORKLOAD: &str = "game";
/// Number of runs.
const RUNS: u32 = 4;
/// Number of runs of the short version, which uses another workload in a tiny guest.
const QUICK_RUNS: u32 = 3;
/// Over the slow link, a run's first clusters are fetched until this many bytes have arrived, before rearranging.
const LINK_BYTES: u64 = 12 << 20;
/// Time limit for one read.
const READ_MAX: Duration = Duration::from_secs(300);

/// A repository with an image, and the image's runs.
struct Recorded {
    repository: PathBuf,
    image: Hash,
    runs: Vec<ZeroTrace>,
}

/// What a server was asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// Number of range requests for frames.
    requests: u64,
    /// Bytes of these ranges.
    bytes: u64,
    /// Bytes of the layout and of packs' indices.
    index_bytes: u64,
    /// Number of clusters that were requested.
    clusters: u64,
    /// Seconds.
    seconds: f64,
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("optimize", context.quick);
    let recorded = match std::env::var_os("FLOE_LAB_COLLECTED") {
        Some(dir) => Recorded::read(Path::new(&dir), WORKLOAD)?,
        None => record(context)?,
    };
    ensure!(
        recorded.runs.len() >= 2,
        "one run is left out, and there is no other"
    );
    // work on a copy, because rearranging must not change what was collected
    let dir = context.scratch.join("served");
    let served = copy_image(&recorded, &dir)?;
    let original = served.layout(&recorded.image)?;
    let mut all = Figures::default();
    for left_out in 0..recorded.runs.len() {
        all.leave_out(&recorded, &served, &original, left_out)?;
    }
    all.report(&mut report);
    let bridge = Bridge::new(Shape::wan(), Shape::wan())?;
    let (before, after) = over_the_link(&recorded, &served, &original, &bridge)?;
    report.add_value("link_before_s", "s", before.seconds);
    let against = ("the same clusters before", "s", before.seconds);
    let after_s = report.add_value("link_after_s", "s", after.seconds);
    after_s.against(against.0, against.1, against.2);
    report.add_value("link_ratio", "", after.seconds / before.seconds);
    report.note(format!(
        "{} runs of {} accesses on the mean; over 7.2 Mbit/s and 120 ms, the first {} clusters of the first run, one after the other: {} requests for {:.1} MB before, {} for {:.1} MB after",
        recorded.runs.len(),
        recorded.runs.iter().map(|run| run.accesses.len()).sum::<usize>() / recorded.runs.len(),
        before.clusters,
        before.requests,
        before.bytes as f64 / 1e6,
        after.requests,
        after.bytes as f64 / 1e6,
    ));
    Ok(report)
}

/// Runs a workload and returns its traces.
fn record(context: &Context) -> anyhow::Result<Recorded> {
    let (guest, workload, runs) = if context.quick {
        (Guest::tiny()?, &workloads::SHELL, QUICK_RUNS)
    } else {
        let known = workloads::ALL
            .iter()
            .find(|workload| workload.name == WORKLOAD);
        (
            Guest::desktop()?,
            known.context("the workload is gone")?,
            RUNS,
        )
    };
    let collector = Collector {
        guest,
        work: context.scratch.clone(),
        out: context.scratch.join("traces"),
        screens: None,
    };
    collector.collect(workload, 0..runs)?;
    Recorded::read(&context.scratch, workload.name)
}

impl Recorded {
    fn read(dir: &Path, workload: &str) -> anyhow::Result<Recorded> {
        let traces = dir.join("traces").join(workload);
        let (image, runs) = traces::read_runs(&traces)?;
        let repository = dir.join("node/repo");
        Ok(Recorded {
            repository,
            image,
            runs,
        })
    }
}

/// Copies only this image, with its packs unchanged, to a new repository.
fn copy_image(recorded: &Recorded, dir: &Path) -> anyhow::Result<Repository> {
    let from = Repository::open(&recorded.repository)?;
    let to = Repository::create(dir)?;
    let (manifest, layout) = (
        from.manifest(&recorded.image)?,
        from.layout(&recorded.image)?,
    );
    for pack in &layout.packs {
        to.adopt_pack(&from.pack_path(&pack.id))?;
    }
    to.publish(&manifest, &layout)?;
    Ok(to)
}

/// A model's clusters by number: the cluster of each chunk, and the content of each cluster.
struct Clusters {
    of: HashMap<ChunkAt, usize>,
    hashes: Vec<Vec<Hash>>,
    laid_out: Vec<Vec<Hash>>,
}

impl Clusters {
    fn new(repository: &Repository, image: &Hash, model: &Model) -> anyhow::Result<Clusters> {
        let chunks: Vec<ChunkAt> = model.chunks().collect();
        let places: Vec<(u8, u32)> = chunks.iter().map(|at| (at.region, at.chunk)).collect();
        let hashes = repository.chunk_hashes(image, &places)?;
        let content: HashMap<ChunkAt, Hash> = chunks.into_iter().zip(hashes).collect();
        let hash = |at: ChunkAt| content.get(&at).copied().unwrap_or(Hash::ZERO);
        let clusters = || model.clusters().iter().map(|cluster| &cluster.chunks);
        let numbered = clusters().enumerate();
        Ok(Clusters {
            of: numbered
                .flat_map(|(n, chunks)| chunks.iter().map(move |at| (*at, n)))
                .collect(),
            hashes: clusters()
                .map(|chunks| {
                    chunks
                        .iter()
                        .map(|at| hash(*at))
                        .filter(|h| !h.is_zero())
                        .collect()
                })
                .collect(),
            laid_out: model.lay_out(hash),
        })
    }

    /// Returns the clusters that a run touches, in the order of their first touch.
    fn touched(&self, run: &ZeroTrace) -> Vec<&[Hash]> {
        let mut seen = BTreeSet::new();
        let at = |region, chunk| self.of.get(&ChunkAt { region, chunk });
        let numbers = run.accesses.iter().filter_map(|a| at(a.region, a.chunk));
        let first = numbers.filter(|number| seen.insert(**number));
        first.map(|number| &self.hashes[*number][..]).collect()
    }
}

/// Trains a model on all runs but one.
fn model_without(recorded: &Recorded, left_out: usize) -> Model {
    let others = recorded
        .runs
        .iter()
        .enumerate()
        .filter(|(i, _)| *i != left_out);
    let others: Vec<ZeroTrace> = others.map(|(_, run)| run.clone()).collect();
    train(
        Method::Floe,
        &recorded.image,
        &others,
        &TrainOptions::default(),
    )
}

/// Fetches clusters one after the other until `bytes_max` have arrived. Returns what it cost.
fn fetch(
    server: &StaticServer,
    recorded: &Recorded,
    layout: &Layout,
    clusters: &[&[Hash]],
    bytes_max: u64,
) -> anyhow::Result<Cost> {
    let origin = Registry::default().origin(&server.url)?;
    let source = Files::new(&origin, &Options::default())?;
    let request = Request::prefetch(READ_MAX);
    let mut here: HashSet<Hash> = HashSet::new();
    let mut cost = Cost::default();
    server.take();
    let began = Instant::now();
    for cluster in clusters {
        let wants: BTreeSet<Hash> = cluster
            .iter()
            .filter(|h| !here.contains(*h))
            .copied()
            .collect();
        let wants: Vec<(Kind, Hash)> = wants.into_iter().map(|hash| (Kind::Chunk, hash)).collect();
        for part in wants.chunks(READ_ITEMS_MAX) {
            source.read(&recorded.image, part, &request, &mut |_, hash, _| {
                here.insert(hash);
            })?;
        }
        cost.clusters += 1;
        count(&mut cost, server, layout);
        if cost.bytes >= bytes_max {
            break;
        }
    }
    cost.seconds = began.elapsed().as_secs_f64();
    Ok(cost)
}

/// Adds the requests that the server got: for frames, and for the layout and indices.
fn count(cost: &mut Cost, server: &StaticServer, layout: &Layout) {
    for asked in server.take() {
        let pack = layout
            .packs
            .iter()
            .find(|pack| asked.path.contains(&pack.id.to_string()));
        match (pack, asked.start) {
            (Some(pack), Some(start)) if start < pack.index_offset => {
                cost.requests += 1;
                cost.bytes += asked.bytes;
            }
            _ => cost.index_bytes += asked.bytes,
        }
    }
}

/// Restores the packs that the image was collected with.
fn reset(recorded: &Recorded, served: &Repository, original: &Layout) -> anyhow::Result<()> {
    let from = Repository::open(&recorded.repository)?;
    for pack in &original.packs {
        served.adopt_pack(&from.pack_path(&pack.id))?;
    }
    served.publish(&from.manifest(&recorded.image)?, original)?;
    Ok(())
}

#[derive(Default)]
struct Figures {
    requests: Samples,
    bytes: Samples,
    before: Vec<Cost>,
    after: Vec<Cost>,
    optimize_s: Samples,
    stored: Samples,
}

impl Figures {
    fn leave_out(
        &mut self,
        recorded: &Recorded,
        served: &Repository,
        original: &Layout,
        left_out: usize,
    ) -> anyhow::Result<()> {
        let server =
            StaticServer::start(served.dir(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?)?;
        reset(recorded, served, original)?;
        let model = model_without(recorded, left_out);
        let clusters = Clusters::new(served, &recorded.image, &model)?;
        let touched = clusters.touched(&recorded.runs[left_out]);
        let before = fetch(&server, recorded, original, &touched, u64::MAX)?;
        let began = Instant::now();
        let ready = served.rearrange(&recorded.image, &clusters.laid_out, &mut |_, _| true)?;
        let done = ready.publish()?;
        self.optimize_s.push(began.elapsed().as_secs_f64());
        self.stored
            .push(done.bytes_after as f64 / done.bytes_before as f64);
        let layout = served.layout(&recorded.image)?;
        let after = fetch(&server, recorded, &layout, &touched, u64::MAX)?;
        if after.requests == 0 || before.requests == 0 {
            bail!("run {left_out} touches no cluster of the others");
        }
        eprintln!("run {left_out}: before {before:?}, after {after:?}");
        self.requests
            .push(after.requests as f64 / before.requests as f64);
        self.bytes.push(after.bytes as f64 / before.bytes as f64);
        self.before.push(before);
        self.after.push(after);
        Ok(())
    }

    fn report(&self, report: &mut Report) {
        let of =
            |costs: &[Cost], what: fn(&Cost) -> f64| costs.iter().map(what).collect::<Samples>();
        let requests = |cost: &Cost| cost.requests as f64;
        let mb = |cost: &Cost| cost.bytes as f64 / 1e6;
        let index_mb = |cost: &Cost| cost.index_bytes as f64 / 1e6;
        report.add("requests_ratio", "", &self.requests);
        report.add("bytes_ratio", "", &self.bytes);
        report.add(
            "clusters",
            "",
            &of(&self.after, |cost| cost.clusters as f64),
        );
        report.add("requests_before", "", &of(&self.before, requests));
        report.add("requests_after", "", &of(&self.after, requests));
        report.add("mb_before", "MB", &of(&self.before, mb));
        report.add("mb_after", "MB", &of(&self.after, mb));
        report.add("index_mb_before", "MB", &of(&self.before, index_mb));
        report.add("index_mb_after", "MB", &of(&self.after, index_mb));
        report.add("stored_ratio", "", &self.stored);
        report.add("optimize_s", "s", &self.optimize_s);
    }
}

/// Fetches the first run's first clusters over 7.2 Mbit/s and 120 ms, before and after rearranging.
fn over_the_link(
    recorded: &Recorded,
    served: &Repository,
    original: &Layout,
    bridge: &Bridge,
) -> anyhow::Result<(Cost, Cost)> {
    let listener = bridge
        .ends
        .far
        .run(|| TcpListener::bind((Bridge::FAR, 0)))??;
    let server = StaticServer::start(served.dir(), listener)?;
    reset(recorded, served, original)?;
    let model = model_without(recorded, 0);
    let clusters = Clusters::new(served, &recorded.image, &model)?;
    let touched = clusters.touched(&recorded.runs[0]);
    let near = &bridge.ends.near;
    let before = near.run(|| fetch(&server, recorded, original, &touched, LINK_BYTES))??;
    let ready = served.rearrange(&recorded.image, &clusters.laid_out, &mut |_, _| true)?;
    ready.publish()?;
    let layout = served.layout(&recorded.image)?;
    let same = &touched[..before.clusters as usize];
    let after = near.run(|| fetch(&server, recorded, &layout, same, u64::MAX))??;
    fs::remove_dir_all(served.dir()).context("cannot remove the served copy")?;
    Ok((before, after))
}
