//! `hardware`: what it costs that a machine can be given more while it runs. The same guest runs alternately on a machine
//! of hardware profile 2 (room for vCPUs, memory, cards and disks) and on one of profile 1 (no room).
use anyhow::{Context as _, bail};
use floe_image::CHUNK_SIZE;
use floe_machine::{
    Boot, Capture, CaptureOptions, Machine, Profile, Programs, Snapshot, Socket, Spec, Standby,
    accel,
};
use floe_testbed::guest::{Guest, READY};
use floe_testbed::harness::{Context, Report, Samples, interleave};
use floe_testbed::live::tell_console;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const MEMORY: u64 = 256 << 20;
/// How long the guest may take to boot, or to answer.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The profiles, with the numbers that are in the figures' names.
const PROFILES: [(u32, Profile); 2] = [(1, Profile::Fixed), (2, Profile::Growable)];

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("hardware", context.quick);
    let guest = Guest::tiny()?;
    let mut sides = Vec::new();
    for (number, profile) in PROFILES {
        let dir = context.scratch.join(format!("profile{number}"));
        std::fs::create_dir_all(&dir)?;
        sides.push(Side::boot(&guest, &dir, profile)?);
    }
    let (one, two) = (&sides[0], &sides[1]);

    let rounds = context.pick(41, 3);
    let mut memory = [Samples::default(), Samples::default()];
    let [of_one, of_two] = &mut memory;
    let starts = interleave(
        rounds,
        &mut [&mut || one.load(of_one), &mut || two.load(of_two)],
    )?;
    let cold = interleave(
        rounds,
        &mut [&mut || one.start(&guest), &mut || two.start(&guest)],
    )?;
    let boots = interleave(
        context.pick(7, 1),
        &mut [&mut || one.boot_again(&guest), &mut || {
            two.boot_again(&guest)
        }],
    )?;

    for (at, (number, _)) in PROFILES.iter().enumerate() {
        let name = |what: &str| format!("{what}_profile{number}");
        let state = sides[at].capture.device.len() as f64;
        report.add_value(&name("device_state_bytes"), "B", state);
        report.add(&name("start_ms"), "ms", &starts[at]);
        report.add(&name("cold_start_ms"), "ms", &cold[at]);
        report.add(&name("boot_ms"), "ms", &boots[at]);
        report.add(&name("memory_mb"), "MB", &memory[at]);
        report.add_value(&name("guest_memory_mb"), "MB", sides[at].guest_mb);
    }
    let costs = [
        ("start_cost_ms", "ms", &starts),
        ("cold_start_cost_ms", "ms", &cold),
        ("boot_cost_ms", "ms", &boots),
    ];
    for (name, unit, pair) in costs {
        let figure = report.add(name, unit, &more(&pair[0], &pair[1]));
        figure.against("profile 1, whole", unit, pair[0].median());
    }
    let figure = report.add("memory_cost_mb", "MB", &more(&memory[0], &memory[1]));
    figure.against("profile 1, whole", "MB", memory[0].median());
    let state = two.capture.device.len() as f64 - one.capture.device.len() as f64;
    report.add_value("device_state_cost_bytes", "B", state);
    report.add_value("guest_memory_cost_mb", "MB", one.guest_mb - two.guest_mb);
    report.note(
        "start: from QEMU's start until it has loaded a captured state and waits; cold start: until it answers; boot: until the guest's \
         shell is there; memory: QEMU's own without the guest's RAM, the state loaded; guest memory: MemTotal in the guest",
    );
    report.note("costs are medians of the differences of runs side by side, each profile first in every other pair");
    Ok(report)
}

/// Returns how much more the second took than the first, pair by pair.
fn more(one: &Samples, two: &Samples) -> Samples {
    let pairs = one.values().iter().zip(two.values());
    pairs.map(|(one, two)| two - one).collect()
}

/// A guest on a machine of one profile.
struct Side {
    dir: std::path::PathBuf,
    profile: Profile,
    capture: Capture<()>,
    /// Memory that its kernel can use, in MB.
    guest_mb: f64,
}

impl Side {
    /// Boots the guest once, asks it for its memory, and captures it.
    fn boot(guest: &Guest, dir: &Path, profile: Profile) -> anyhow::Result<Side> {
        let machine = Machine::start(spec(guest, dir, profile)?)?;
        wait_ready(&machine)?;
        tell_console(
            machine.connect(Socket::Console)?,
            "grep MemTotal /proc/meminfo",
            PATIENCE,
        )?;
        let said = machine.console_history(1 << 20)?;
        let said = String::from_utf8_lossy(&said).into_owned();
        let options = CaptureOptions {
            stay_paused: true,
            ..CaptureOptions::default()
        };
        let capture = machine.capture(options, || Ok::<_, io::Error>(()))?;
        machine.quit(PATIENCE)?;
        let ram = File::create(dir.join("ram"))?;
        ram.set_len(capture.ram.size())?;
        for (chunk, page) in capture.ram.iter() {
            ram.write_all_at(page, u64::from(chunk) * CHUNK_SIZE as u64)?;
        }
        let kib = said
            .rsplit_once("MemTotal:")
            .and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<f64>().ok());
        Ok(Side {
            dir: dir.to_owned(),
            profile,
            capture,
            guest_mb: kib.context("the guest tells its memory")? * 1024.0 / 1e6,
        })
    }

    /// Returns the milliseconds until a new QEMU has loaded the state; adds its memory to `memory`.
    fn load(&self, memory: &mut Samples) -> anyhow::Result<f64> {
        let mut spec = Spec::new(
            "hardware",
            self.dir.join("vm"),
            accel::detect(),
            Programs::of_this_host()?,
        );
        spec.config = self.capture.config.clone();
        let vram = self.capture.vram.iter();
        let snapshot = Snapshot {
            ram: self.dir.join("ram"),
            blocks: Vec::new(),
            device: self.capture.device.clone(),
            vram: vram.map(|(chunk, page)| (chunk, Box::new(*page))).collect(),
        };
        let start = Instant::now();
        let standby = Standby::prepare(spec, &snapshot)?;
        let took = start.elapsed();
        memory.push(own_mb(standby.machine().pid())?);
        Ok(took.as_secs_f64() * 1e3)
    }

    /// Returns the milliseconds until a new QEMU answers that starts the guest cold.
    fn start(&self, guest: &Guest) -> anyhow::Result<f64> {
        let spec = spec(guest, &self.dir, self.profile)?;
        let start = Instant::now();
        let machine = Machine::start(spec)?;
        let took = start.elapsed();
        machine.quit(PATIENCE)?;
        Ok(took.as_secs_f64() * 1e3)
    }

    /// Returns the milliseconds until the guest's shell is there.
    fn boot_again(&self, guest: &Guest) -> anyhow::Result<f64> {
        let spec = spec(guest, &self.dir, self.profile)?;
        std::fs::remove_dir_all(&spec.dir)?; // removes the console's history as well
        let start = Instant::now();
        let machine = Machine::start(spec)?;
        wait_ready(&machine)?;
        let took = start.elapsed();
        machine.quit(PATIENCE)?;
        Ok(took.as_secs_f64() * 1e3)
    }
}

fn spec(guest: &Guest, dir: &Path, profile: Profile) -> anyhow::Result<Spec> {
    let mut spec = Spec::new(
        "hardware",
        dir.join("vm"),
        accel::detect(),
        Programs::of_this_host()?,
    );
    spec.profile = profile;
    spec.config.memory_bytes = Some(MEMORY);
    spec.config.cpus = Some(1);
    spec.config.cmdline = Some(guest.cmdline()?);
    spec.boot = Some(Boot {
        kernel: guest.kernel(),
        initrd: Some(guest.initrd()),
    });
    Ok(spec)
}

fn wait_ready(machine: &Machine) -> anyhow::Result<()> {
    let start = Instant::now();
    while !String::from_utf8_lossy(&machine.console_history(1 << 20)?).contains(READY) {
        if start.elapsed() > PATIENCE {
            bail!("the tiny guest did not boot: {}", machine.qemu_log());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Returns the memory that only this process has, without the file of the guest's RAM, in MB.
pub(super) fn own_mb(pid: u32) -> anyhow::Result<f64> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let (mut kib, mut counts) = (0.0, true);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first.contains('-') && !first.ends_with(':') {
            counts = !line.ends_with("/ram");
        } else if counts && (first == "Private_Dirty:" || first == "Private_Clean:") {
            kib += words.next().unwrap_or("0").parse::<f64>()?;
        }
    }
    Ok(kib * 1024.0 / 1e6)
}
