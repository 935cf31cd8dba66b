//! The number of bytes that one cold fault of a real guest reads: a tiny guest is captured, and restored with its RAM on
//! the mount. QEMU asks for huge pages; if the exec wrapper did not refuse them, a fault would read 4 MiB.
use anyhow::{Context as _, bail};
use floe_image::CHUNK_SIZE;
use floe_machine::{Boot, CaptureOptions, Machine, Programs, Snapshot, Socket, Spec, accel};
use floe_store::{Ingest, IngestOptions};
use floe_testbed::guest::{Guest, READY};
use floe_testbed::harness::{Context, Report};
use floe_testbed::live::ask_console;
use floe_testbed::local::LocalMount;
use std::io;
use std::time::{Duration, Instant};

const MEMORY: u64 = 256 << 20;
const CACHE_BYTES: u64 = 1 << 30;
/// Longest time for the guest to boot, or to answer.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Adds the figure `bytes_per_fault`.
pub fn measure(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let guest = Guest::tiny()?;
    let dir = context.scratch.join("under-qemu");
    std::fs::create_dir_all(&dir)?;
    let mut spec = Spec::new(
        "touch",
        dir.join("boot"),
        accel::detect(),
        Programs::of_this_host()?,
    );
    spec.config.memory_bytes = Some(MEMORY);
    spec.config.cpus = Some(1);
    spec.config.cmdline = Some(guest.cmdline()?);
    spec.boot = Some(Boot {
        kernel: guest.kernel(),
        initrd: Some(guest.initrd()),
    });
    let machine = Machine::start(spec)?;
    let start = Instant::now();
    while !String::from_utf8_lossy(&machine.console_history(1 << 20)?).contains(READY) {
        if start.elapsed() > PATIENCE {
            bail!("the tiny guest did not boot: {}", machine.qemu_log());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let capture = machine.capture(
        CaptureOptions {
            stay_paused: true,
            ..CaptureOptions::default()
        },
        || Ok::<_, io::Error>(()),
    )?;
    machine.quit(PATIENCE)?;

    let local = LocalMount::new(&dir, CACHE_BYTES)?;
    let mut ingest = Ingest::new(&local.repository, IngestOptions::default())?;
    ingest.region_from_pages(
        "ram",
        capture.ram.size(),
        None,
        capture
            .ram
            .iter()
            .map(|(chunk, page)| Ok((u64::from(chunk), page))),
    )?;
    let image = local.show(&ingest.finish(capture.config.clone())?)?;
    let ram = image.region_path("ram").context("the image has RAM")?;
    let vram = capture
        .vram
        .iter()
        .map(|(chunk, page)| (chunk, Box::new(*page)))
        .collect();
    let mut spec = Spec::new(
        "touch",
        dir.join("restored"),
        accel::detect(),
        Programs::of_this_host()?,
    );
    spec.config = capture.config;
    let restored = Machine::restore(
        spec,
        &Snapshot {
            ram,
            blocks: Vec::new(),
            device: capture.device,
            vram,
        },
    )?;
    ask_console(restored.machine.connect(Socket::Console)?, PATIENCE)?;
    let stats = local.mount.stats();
    restored.machine.quit(PATIENCE)?;
    anyhow::ensure!(
        stats.region_reads > 100,
        "a guest that answers touches more than {} pages",
        stats.region_reads
    );
    let per_fault = stats.region_read_bytes as f64 / stats.region_reads as f64;
    let figure = report.add_value("bytes_per_fault", "B", per_fault);
    figure.n = stats.region_reads as usize;
    figure.against("the page itself", "B", CHUNK_SIZE as f64);
    Ok(())
}
