//! `floe-lab demo`: the main job, end to end, as a person sees it. `make demo` runs it.
use crate::experiments::wan::{MACHINE, Wan};
use crate::guest::Guest;
use crate::harness::MachineInfo;
use floe::api::Event;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Memory of the demo's guest.
const MEMORY: u64 = 1 << 30;
/// Progress is shown this often.
const SHOW_EVERY: Duration = Duration::from_millis(250);
/// The link's rate, in bytes a second: what a copy could use at best.
const LINK_BYTES_PER_S: f64 = 7_200_000.0 / 8.0;

/// Capture a running Debian, publish it, and let it go on behind a 7.2 Mbit/s, 120 ms link.
#[derive(clap::Args)]
pub struct Arguments {
    /// Directory with the guest (vmlinuz, initrd, disk.raw), as guests/build makes it
    #[arg(long, value_name = "DIR")]
    guest: Option<PathBuf>,
    /// Also copy the image over the same link and start it then, instead of calculating how long that takes (minutes)
    #[arg(long)]
    measure_copy: bool,
    /// Where data may be written
    #[arg(long, value_name = "DIR", env = "FLOE_LAB_SCRATCH")]
    scratch: Option<PathBuf>,
}

/// One line at a time, with the seconds since the start; the last one may be written over.
struct Screen {
    start: Instant,
    live: bool,
}

impl Screen {
    fn say(&self, text: &str) {
        let clear = if self.live { "\r\x1b[K" } else { "" };
        println!("{clear}{:6.1} s  {text}", self.start.elapsed().as_secs_f64());
        let _ = std::io::stdout().flush();
    }

    fn overwrite(&self, text: &str) {
        if self.live {
            print!("\r\x1b[K{:6.1} s  {text}", self.start.elapsed().as_secs_f64());
            let _ = std::io::stdout().flush();
        }
    }
}

impl Arguments {
    /// Runs it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let guest = match &self.guest {
            Some(dir) => Guest::at(dir)?,
            None => Guest::debian()?,
        };
        let base = self.scratch.clone().map_or_else(std::env::current_dir, Ok)?;
        let scratch = tempfile::Builder::new().prefix(".floe-demo-").tempdir_in(base)?;
        let machine = MachineInfo::here();
        println!("floe demo on {} cores of {}, Linux {}, guests run by {}", machine.cores, machine.cpu, machine.kernel, machine.accelerator);
        let screen = Screen { start: Instant::now(), live: std::io::stdout().is_terminal() };

        screen.say("first host: hub and node, behind the link");
        let wan = Wan::prepare(scratch.path(), &guest, MEMORY, &mut |what| screen.say(what))?;
        screen.say(&format!(
            "published: {} of state, {} compressed",
            megabytes(wan.image.virtual_bytes),
            megabytes(wan.image.stored_bytes)
        ));
        screen.say("second host: an empty node, 7.2 Mbit/s and 120 ms away: floe run HUB/debian-booted");
        let resumed = self.watch(&wan, &screen)?;
        screen.say("the guest answers on its console: it goes on where it was");
        let uptime = resumed.node.ask(MACHINE, Duration::from_secs(120))?;
        screen.say(&format!("and answers again after {:.2} s", uptime.as_secs_f64()));
        let (answered, wire) = (resumed.answered, resumed.wire_at_answer);
        let touched = wan.touched_bytes(&resumed)?;
        drop(resumed);
        let (copy, how) = if self.measure_copy {
            screen.say("for comparison: copying the image over the same link, then starting it");
            (wan.copy_first("copy")?.1.as_secs_f64(), "measured")
        } else {
            (wan.image.stored_bytes as f64 / LINK_BYTES_PER_S, "calculated: its bytes at the link's rate; --measure-copy does it")
        };
        let seconds = answered.as_secs_f64();
        println!();
        println!("  the guest's state                                {:>12}", megabytes(wan.image.virtual_bytes));
        println!("  the image, as stored                             {:>12}", megabytes(wan.image.stored_bytes));
        println!("  touched by the guest so far                      {:>12}", megabytes(touched));
        println!("  crossed the link until the guest answered        {:>12}", megabytes(wire));
        println!("  time until the guest answered                    {:>10.1} s", seconds);
        println!("  time if the image is copied first                {copy:>10.1} s  ({how})");
        println!("  floe is there                                    {:>6.1} times as soon", copy / seconds);
        Ok(ExitCode::SUCCESS)
    }

    /// Resumes while a second thread shows what crosses the link.
    fn watch(&self, wan: &Wan, screen: &Screen) -> anyhow::Result<crate::experiments::wan::Resumed> {
        let (begun, before, over) = (Instant::now(), wan.wire(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let bytes = wan.wire() - before;
                    let rate = bytes as f64 * 8.0 / 1e6 / begun.elapsed().as_secs_f64().max(0.001);
                    screen.overwrite(&format!("{} over the link, {rate:.1} Mbit/s", megabytes(bytes)));
                    std::thread::sleep(SHOW_EVERY);
                }
            });
            let resumed = wan.resume("near", |event| match event {
                Event::Stage { name, ms } => screen.say(&format!("  {name}: {ms:.0} ms")),
                Event::Note { message } => screen.say(&format!("  {message}")),
                _ => {}
            });
            over.store(true, Relaxed);
            resumed
        })
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
