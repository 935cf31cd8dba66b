//! `touch`: the cost of the first touch of a page of RAM, in a process that maps the mount's file as QEMU does.
//!
//! - cold: the page is in the local store. Compared with a userfaultfd server over the same store, once with both servers
//!   on the toucher's core, once on another.
//! - pushed: the mount has put the page into the page cache beforehand. Compared with a plain file on tmpfs.
//! - shared: another clone on this host has touched the page.
//! - under a real QEMU: the number of bytes that one cold fault reads.
pub mod toucher;
pub mod uffd;
mod under_qemu;

use anyhow::Context as _;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::local::LocalRam;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use toucher::{PAGE, Toucher, stay_on};

/// The core of the servers.
const SERVER_CORE: usize = 0;
/// The core of the toucher if it is not on the servers' core.
const OTHER_CORE: usize = 1;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("touch", context.quick);
    let bytes = context.pick(256 << 20, 32 << 20);
    let rounds = context.pick(7, 2);
    // The mount's threads inherit the core.
    stay_on(Some(SERVER_CORE))?;
    let ram = LocalRam::new(&context.scratch, bytes)?;
    stay_on(None)?;

    let mut all = Rounds::default();
    for round in 0..rounds {
        all.round(&ram, bytes, round as u64)?;
    }
    let unit = "us";
    report
        .add("touch_vs_uffd", "x", &all.cold[0].over(&all.uffd[0]))
        .against(
            "userfaultfd, server on the same core",
            unit,
            all.uffd[0].median(),
        );
    report
        .add(
            "touch_other_core_vs_uffd",
            "x",
            &all.cold[1].over(&all.uffd[1]),
        )
        .against(
            "userfaultfd, server on another core",
            unit,
            all.uffd[1].median(),
        );
    report.add("cold_us_p50", unit, &all.cold[0]).against(
        "userfaultfd",
        unit,
        all.uffd[0].median(),
    );
    report.add("cold_us_p99", unit, &all.cold_p99).against(
        "userfaultfd",
        unit,
        all.uffd_p99.median(),
    );
    report
        .add("cold_other_core_us_p50", unit, &all.cold[1])
        .against("userfaultfd", unit, all.uffd[1].median());
    report
        .add("pushed_vs_mmap", "x", &all.pushed.over(&all.tmpfs))
        .against("mmap of a file on tmpfs", unit, all.tmpfs.median());
    report.add("pushed_us_p50", unit, &all.pushed).against(
        "mmap of a file on tmpfs",
        unit,
        all.tmpfs.median(),
    );
    report.add("shared_us_p50", unit, &all.shared).against(
        "userfaultfd copies the page for each clone",
        unit,
        all.uffd[0].median(),
    );
    report.note(format!(
        "{rounds} rounds of {} pages in random order, one in each 64 KiB (a fault maps cached neighbours too); spread is between rounds",
        toucher::order(bytes, 0).len()
    ));
    drop(ram);
    under_qemu::measure(context, &mut report)?;
    Ok(report)
}

/// Medians of the rounds; pairs are by placement: same core, other core.
#[derive(Default)]
struct Rounds {
    cold: [Samples; 2],
    uffd: [Samples; 2],
    cold_p99: Samples,
    uffd_p99: Samples,
    pushed: Samples,
    shared: Samples,
    tmpfs: Samples,
}

impl Rounds {
    fn round(&mut self, ram: &LocalRam, bytes: usize, seed: u64) -> anyhow::Result<()> {
        for (which, core) in [(0, SERVER_CORE), (1, OTHER_CORE)] {
            // Each image has its own inode with an empty page cache, although its chunks are the same.
            let image = ram.fresh_image()?;
            let path = image.region_path("ram").context("the image has RAM")?;
            let mut first = Toucher::start(Some(&path), bytes, core, seed)?;
            let cold: Samples = first.touch()?.into_iter().collect();
            let served: Samples = touch_by_uffd(ram, bytes, core, seed)?.into_iter().collect();
            self.cold[which].push(cold.median());
            self.uffd[which].push(served.median());
            if which == 0 {
                self.cold_p99.push(cold.quantile(0.99));
                self.uffd_p99.push(served.quantile(0.99));
                let mut clone = Toucher::start(Some(&path), bytes, core, seed)?;
                self.shared.push(median(clone.touch()?));
            }
        }
        let image = ram.fresh_image()?;
        let pushed = ram.mount.push(&image, "ram", 0..(bytes / PAGE) as u64)?;
        anyhow::ensure!(
            pushed.bytes == bytes as u64,
            "only {} of {bytes} bytes could be pushed",
            pushed.bytes
        );
        let path = image.region_path("ram").context("the image has RAM")?;
        self.pushed.push(median(
            Toucher::start(Some(&path), bytes, OTHER_CORE, seed)?.touch()?,
        ));
        self.tmpfs.push(median(
            Toucher::start(Some(ram.tmpfs.path()), bytes, OTHER_CORE, seed)?.touch()?,
        ));
        Ok(())
    }
}

fn median(values: Vec<f64>) -> f64 {
    values.into_iter().collect::<Samples>().median()
}

/// Measures the same touches, answered by a userfaultfd server on a thread of this process, from the same cache.
fn touch_by_uffd(ram: &LocalRam, bytes: usize, core: usize, seed: u64) -> anyhow::Result<Vec<f64>> {
    let mut toucher = Toucher::start(None::<&Path>, bytes, core, seed)?;
    let (fd, start) = (toucher.uffd()?, toucher.address);
    let stop = Arc::new(AtomicBool::new(false));
    let (hashes, cache, stopped) = (ram.hashes.clone(), ram.cache.clone(), stop.clone());
    let server = std::thread::spawn(move || -> anyhow::Result<()> {
        stay_on(Some(SERVER_CORE))?;
        let mut missing = 0;
        uffd::Uffd::serve(&fd, start, &stopped, |page, buffer| {
            match cache.get(&hashes[page], buffer, None) {
                Ok(true) => {}
                _ => missing += 1,
            }
        })?;
        anyhow::ensure!(missing == 0, "{missing} pages were not in the cache");
        Ok(())
    });
    let times = toucher.touch();
    stop.store(true, Relaxed);
    server
        .join()
        .map_err(|_| anyhow::anyhow!("the userfaultfd server panicked"))??;
    times
}
