//! `fault`: the first touch of a page of RAM that is on another host, over a veth pair to a hub that has it in memory.
//! Compared with a userfaultfd server that requests the same pages from the same hub.
use super::touch::{toucher::Toucher, uffd::Uffd};
use anyhow::Context as _;
use floe_hub::{HubOptions, create_token, serve};
use floe_image::{Hash, Kind};
use floe_mount::{ImageSpec, Mount, MountOptions};
use floe_node::transfer::{PushOptions, push};
use floe_source::{FetchOptions, Fetcher, Registry, Request, Source};
use floe_store::{Cache, Repository};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::Namespace;
use floe_testbed::local::LocalRam;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const NEAR: &str = "10.78.0.1";
const FAR: &str = "10.78.0.2";
const HUB_PORT: u16 = 7070;
/// The core of the toucher; the kernel places everything else.
const TOUCHER_CORE: usize = 1;
/// Time limit for one request of the userfaultfd server.
const DEADLINE: Duration = Duration::from_secs(10);

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("fault", context.quick);
    let bytes = context.pick(128 << 20, 16 << 20);
    let (near, far) = (Namespace::new()?, Namespace::new()?);
    near.join_by_veth(&far, &format!("{NEAR}/30"), &format!("{FAR}/30"))?;

    let home = context.scratch.join("origin");
    let (repository, id) = LocalRam::image(&home, bytes)?;
    let hub_dir = context.scratch.join("hub");
    std::fs::create_dir_all(&hub_dir)?;
    let token = create_token(&hub_dir, "lab")?;
    let listen = format!("{FAR}:{HUB_PORT}").parse()?;
    // Threads stay in the namespace in which they are started.
    let hub = far.run(|| serve(HubOptions::new(&hub_dir, listen)))??;
    let url = format!("http://{listen}");

    let mut all = Rounds::default();
    near.run(|| -> anyhow::Result<()> {
        let options = PushOptions {
            name: Some("ram".into()),
            public: Some(true),
            ..PushOptions::default()
        };
        push(&repository, &id, &url, Some(&token), &options, &|_| {})?;
        // The first round loads the hub's packs into its memory.
        for round in 0..=context.pick(5, 1) {
            let dir = context.scratch.join(format!("near{round}"));
            let measured =
                Round::measure(&dir, &url, &token, &repository, &id, bytes, round as u64)?;
            if round > 0 {
                all.push(&measured);
            }
        }
        Ok(())
    })??;
    hub.shutdown();
    let alternative = "a userfaultfd server that asks the same hub";
    report
        .add("fault_us_p50", "us", &all.p50)
        .against(alternative, "us", all.uffd_p50.median());
    report
        .add("fault_us_p99", "us", &all.p99)
        .against(alternative, "us", all.uffd_p99.median());
    report
        .add("fault_vs_uffd", "x", &all.p50.over(&all.uffd_p50))
        .against(alternative, "us", all.uffd_p50.median());
    report.note(format!(
        "{} rounds, one page in each 64 KiB of {} MB of incompressible RAM, in random order",
        all.p50.len(),
        bytes / 1_000_000
    ));
    Ok(report)
}

#[derive(Default)]
struct Rounds {
    p50: Samples,
    p99: Samples,
    uffd_p50: Samples,
    uffd_p99: Samples,
}

struct Round {
    ours: Samples,
    uffd: Samples,
}

impl Rounds {
    fn push(&mut self, round: &Round) {
        self.p50.push(round.ours.median());
        self.p99.push(round.ours.quantile(0.99));
        self.uffd_p50.push(round.uffd.median());
        self.uffd_p99.push(round.uffd.quantile(0.99));
    }
}

impl Round {
    /// Measures on a host that has nothing of the image.
    fn measure(
        dir: &Path,
        url: &str,
        token: &str,
        repository: &Repository,
        id: &Hash,
        bytes: usize,
        seed: u64,
    ) -> anyhow::Result<Round> {
        let source = Registry::default().open_at(url, Some(token), None)?;
        let manifest = source.manifest(id)?;
        let cache = Arc::new(Cache::open(&dir.join("cache"), 4 * bytes as u64)?);
        let scope = repository.scope(id)?;
        let region = manifest.region("ram").context("the image has RAM")?.clone();
        let mut hashes = Vec::new();
        for segment in &region.segments {
            let table = scope.segment(segment)?;
            // Only the time for the page counts; the tables are loaded in the background when a machine starts.
            cache.put_segment(segment, &table.encode(), None)?;
            hashes.extend_from_slice(table.hashes());
        }
        let uffd = touch_by_uffd(source.clone(), *id, hashes, bytes, seed)?
            .into_iter()
            .collect();

        let fetcher = Arc::new(Fetcher::new(source, cache.clone(), FetchOptions::default()));
        let mountpoint = dir.join("mnt");
        std::fs::create_dir_all(&mountpoint)?;
        let mount = Mount::start(&mountpoint, MountOptions::new(dir.join("run")))?;
        let image = mount.add_image(ImageSpec {
            id: *id,
            manifest,
            fetcher,
            cache,
        })?;
        let path = image.region_path("ram").context("the image has RAM")?;
        let ours = Toucher::start(Some(&path), bytes, TOUCHER_CORE, seed)?
            .touch()?
            .into_iter()
            .collect();
        mount.unmount()?;
        Ok(Round { ours, uffd })
    }
}

fn touch_by_uffd(
    source: Arc<dyn Source>,
    id: Hash,
    hashes: Vec<Hash>,
    bytes: usize,
    seed: u64,
) -> anyhow::Result<Vec<f64>> {
    let mut toucher = Toucher::start(None, bytes, TOUCHER_CORE, seed)?;
    let (fd, start) = (toucher.uffd()?, toucher.address);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let server = std::thread::spawn(move || -> anyhow::Result<()> {
        let mut failed = None;
        Uffd::serve(&fd, start, &stopped, |page, buffer| {
            let want = hashes[page];
            let mut sink = |_: Kind, hash: Hash, data: &[u8]| {
                if hash == want {
                    buffer.copy_from_slice(data);
                }
            };
            if let Err(error) = source.read(
                &id,
                &[(Kind::Chunk, want)],
                &Request::demand(DEADLINE),
                &mut sink,
            ) {
                failed = Some(error);
            }
        })?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    });
    let times = toucher.touch();
    stop.store(true, Relaxed);
    server
        .join()
        .map_err(|_| anyhow::anyhow!("the userfaultfd server panicked"))??;
    times
}
