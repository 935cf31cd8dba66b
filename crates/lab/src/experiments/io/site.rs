//! One modelled disk with everything on it: floe's state directories, one for each order of requests, and the peers' raw files. Each side has
//! a desk, which is a real guest, and seven noisy machines.

use super::desk::{self, Desk, Place};
use super::groups::{Groups, WEIGHT};
use super::noise::{self, Got, Noise};
use crate::experiments::local::LocalMount;
use crate::guest::Guest;
use crate::slow_disk::{self, Kind, SlowDisk};
use anyhow::Context as _;
use floe_image::MachineConfig;
use floe_mount::{DiskSpec, IoScheduling, MachineHandle, MachineSpec};
use floe_store::{Ingest, IngestOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many noisy machines there are.
pub const NOISY: usize = 7;
/// Bytes of the modelled disk.
const BYTES: u64 = 12 << 30;
/// The processors of the desks, and of real noisy guests.
const DESK_CPU: usize = 0;
const NOISE_CPU: usize = 1;
/// How long a real guest makes noise, in seconds: longer than a launch beside it.
const GUEST_S: u64 = 8;
/// How long noise goes on before something is measured.
const SETTLE: Duration = Duration::from_millis(1500);

/// Who orders the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidate {
    /// floe's mount.
    Floe(IoScheduling),
    /// QEMU on raw files, and one of the host's schedulers; `desk_weight` is the desk's, the others have [`WEIGHT`].
    Host {
        scheduler: &'static str,
        desk_weight: u32,
    },
}

impl Candidate {
    /// Returns what its figures' names begin with; nothing for floe as it is delivered.
    pub fn prefix(self) -> &'static str {
        match self {
            Candidate::Floe(IoScheduling::Vsip) => "",
            Candidate::Floe(IoScheduling::Fifo) => "fifo.",
            Candidate::Floe(IoScheduling::Off) => "off.",
            Candidate::Host {
                scheduler,
                desk_weight,
            } => match (scheduler, desk_weight) {
                ("bfq", WEIGHT) => "bfq.",
                ("bfq", _) => "bfq_weight.",
                ("mq-deadline", _) => "mq_deadline.",
                ("kyber", _) => "kyber.",
                _ => "none.",
            },
        }
    }

    /// Whether floe is not there.
    pub fn is_peer(self) -> bool {
        matches!(self, Candidate::Host { .. })
    }
}

/// The files of one side's machines, and the desk.
struct Side {
    desk: Desk,
    /// The first noisy machine as a real guest, once it was needed.
    guest: Option<Desk>,
    noisy: Vec<PathBuf>,
    /// How the desk's and the first noisy machine's inputs are told.
    inputs: Vec<MachineHandle>,
}

/// What was measured.
pub struct Cell {
    /// The numbers that the desk answered, of each line.
    pub answers: Vec<Vec<f64>>,
    /// What each noisy machine got meanwhile.
    pub got: Vec<Got>,
    /// How long it took.
    pub seconds: f64,
}

/// What goes on beside the desk.
#[derive(Clone, Copy)]
pub struct Beside {
    pub kind: noise::Kind,
    pub machines: usize,
    /// Whether the first of them moves its mouse without end.
    pub lies: bool,
}

/// Everything. Fields are dropped in this order, as each stands on those below it.
pub struct Site {
    raw: Option<Side>,
    floes: Vec<(IoScheduling, Side)>,
    groups: Option<Groups>,
    _mounts: Vec<LocalMount>,
    guest: Guest,
    initrd: PathBuf,
    scratch: PathBuf,
    /// The modelled disk.
    pub disk: SlowDisk,
}

fn disk_bytes(machine: usize) -> u64 {
    // the first noisy machine may be a real guest, with the program of the desk
    if machine <= 1 {
        desk::DISK_BYTES
    } else {
        noise::DISK_BYTES
    }
}

fn name_of(machine: usize) -> String {
    match machine {
        0 => "desk".into(),
        n => format!("noise{n}"),
    }
}

/// Fills a file with bytes, so that all of it is somewhere on the disk.
fn fill(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let block = crate::workload::noise(1 << 20, 9);
    let mut file = std::fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    for _ in 0..bytes >> 20 {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(())
}

impl Site {
    /// Makes the disk, fills all files, and boots the desks.
    pub fn new(scratch: &Path, floes: &[IoScheduling], raw: bool) -> anyhow::Result<Site> {
        let guest = Guest::tiny()?;
        let initrd = desk::initrd(&guest, scratch)?;
        let disk = SlowDisk::new(&scratch.join("slow"), BYTES)?;
        anyhow::ensure!(disk.is_direct(), "the loop device refuses direct I/O");
        let names: Vec<String> = (0..=NOISY).map(name_of).collect();
        let mut site = Site {
            raw: None,
            floes: Vec::new(),
            groups: Groups::new(&names)?,
            _mounts: Vec::new(),
            guest,
            initrd,
            scratch: scratch.to_owned(),
            disk,
        };
        for io in floes {
            let side = site.floe(*io)?;
            site.floes.push((*io, side));
        }
        if raw {
            site.raw = Some(site.raw()?);
        }
        Ok(site)
    }

    /// Lets floe's schedulers find out what kind of disk this is: so far it was one that takes no time.
    pub fn acquaint(&mut self, kind: Kind, long: Duration) -> anyhow::Result<()> {
        let beside = Beside {
            kind: noise::Kind::Reader,
            machines: NOISY,
            lies: false,
        };
        let all: Vec<IoScheduling> = self.floes.iter().map(|(io, _)| *io).collect();
        for io in all {
            self.measure(Candidate::Floe(io), kind, Some(beside), &[], long)?;
        }
        for local in &self._mounts {
            if let Some(status) = local.mount.io_status() {
                eprintln!(
                    "io: a scheduler gives the disk {} requests at once",
                    status.disk.depth
                );
            }
        }
        Ok(())
    }

    fn raw(&mut self) -> anyhow::Result<Side> {
        let dir = self.disk.root.join("raw");
        std::fs::create_dir_all(&dir)?;
        let files: Vec<PathBuf> = (0..=NOISY).map(|n| dir.join(name_of(n))).collect();
        for (number, file) in files.iter().enumerate() {
            fill(file, disk_bytes(number))?;
        }
        let desk = self.boot("raw-desk", &files[0], DESK_CPU)?;
        if let Some(groups) = &self.groups {
            groups.enter("desk", desk.process())?;
        }
        Ok(Side {
            desk,
            guest: None,
            noisy: files[1..].to_vec(),
            inputs: Vec::new(),
        })
    }

    fn floe(&mut self, io: IoScheduling) -> anyhow::Result<Side> {
        let dir = self.disk.root.join(format!("{io:?}").to_lowercase());
        std::fs::create_dir_all(&dir)?;
        let local = LocalMount::scheduled(&dir, 64 << 20, io)?;
        let mut ingest = Ingest::new(&local.repository, IngestOptions::default())?;
        ingest.region_bytes("disk0", &[0; 1 << 20])?;
        let image = local.show(&ingest.finish(MachineConfig::default())?)?;
        let (mut files, mut inputs) = (Vec::new(), Vec::new());
        for number in 0..=NOISY {
            let handle = local.mount.add_machine(MachineSpec {
                name: name_of(number),
                uid: 0,
                gid: 0,
                image: image.clone(),
                dir: dir.join(name_of(number)),
                disks: vec![DiskSpec {
                    name: "disk0".into(),
                    base: None,
                    size: disk_bytes(number),
                }],
                base: None,
            })?;
            let file = handle.disk_path("disk0").context("it has this disk")?;
            fill(&file, disk_bytes(number))?;
            files.push(file);
            inputs.push(handle);
        }
        self._mounts.push(local);
        let desk = self.boot(&format!("{io:?}-desk"), &files[0], DESK_CPU)?;
        Ok(Side {
            desk,
            guest: None,
            noisy: files[1..].to_vec(),
            inputs,
        })
    }

    fn boot(&self, name: &str, disk: &Path, cpu: usize) -> anyhow::Result<Desk> {
        eprintln!("io: booting {name}");
        let dir = self.scratch.join(name);
        let place = Place {
            dir: &dir,
            disk,
            cpu,
        };
        Desk::boot(&self.guest, &self.initrd, place)
    }

    /// Makes the disk behave, and puts the candidate's scheduler before it. Returns whether the host has that.
    fn prepare(&mut self, candidate: Candidate, kind: Kind) -> anyhow::Result<bool> {
        self.disk.hurry()?;
        let (scheduler, weight) = match candidate {
            Candidate::Floe(_) => ("none", WEIGHT),
            Candidate::Host {
                scheduler,
                desk_weight,
            } => (scheduler, desk_weight),
        };
        if !self.disk.schedulers()?.iter().any(|has| has == scheduler) {
            return Ok(false);
        }
        self.disk.schedule(scheduler)?;
        if weight != WEIGHT
            && !self
                .groups
                .as_ref()
                .is_some_and(|g| g.weigh("desk", weight))
        {
            return Ok(false);
        }
        if weight == WEIGHT
            && let Some(groups) = &self.groups
        {
            groups.weigh("desk", WEIGHT);
        }
        self.disk.forget()?;
        self.disk.behave(kind)?;
        Ok(true)
    }

    /// Lets the desk do all these lines, each after an input, with a pause before each, beside the noise; `None` if the host has
    /// nothing like this candidate.
    pub fn measure(
        &mut self,
        candidate: Candidate,
        kind: Kind,
        beside: Option<Beside>,
        lines: &[String],
        pause: Duration,
    ) -> anyhow::Result<Option<Cell>> {
        if !self.prepare(candidate, kind)? {
            return Ok(None);
        }
        let settle = match beside {
            // credit from before is spent, and everybody has had time to catch up
            Some(Beside { lies: true, .. }) => pause,
            _ => SETTLE,
        };
        let groups = self.groups.as_ref().filter(|_| candidate.is_peer());
        let side = match candidate {
            Candidate::Floe(io) => self
                .floes
                .iter_mut()
                .find(|(of, _)| *of == io)
                .map(|(_, side)| side),
            Candidate::Host { .. } => self.raw.as_mut(),
        };
        let side = side.context("this side was not made")?;
        // noisy machines have more data than the host has memory
        let root = &self.disk.root;
        let _forgets = (!candidate.is_peer()).then(|| Forgets::start(root));
        let mut noise = Vec::new();
        for number in 1..=beside.map_or(0, |beside| beside.machines) {
            let group = groups.map(|groups| groups.group(&name_of(number)));
            let kind = beside.map_or(noise::Kind::Reader, |beside| beside.kind);
            noise.push(Noise::start(kind, &side.noisy[number - 1], group)?);
        }
        let liar = side
            .inputs
            .get(1)
            .filter(|_| beside.is_some_and(|beside| beside.lies));
        rest(settle, liar);
        let before: Vec<Got> = noise.iter().map(Noise::got).collect();
        let start = Instant::now();
        let mut answers = Vec::new();
        for line in lines {
            rest(pause, liar);
            if let Some(handle) = side.inputs.first() {
                handle.input();
            }
            side.desk.begin(line)?;
            answers.push(side.desk.end(line)?);
        }
        if lines.is_empty() {
            rest(pause, liar);
        }
        let seconds = start.elapsed().as_secs_f64();
        let got = noise
            .iter()
            .zip(before)
            .map(|(noise, before)| noise.got().since(before))
            .collect();
        drop(noise);
        Ok(Some(Cell {
            answers,
            got,
            seconds,
        }))
    }

    /// Lets the desk do a line after an input, beside one real guest that makes this noise; `None` if the host has nothing like this
    /// candidate.
    pub fn beside_a_guest(
        &mut self,
        candidate: Candidate,
        kind: Kind,
        noise: &str,
        line: &str,
    ) -> anyhow::Result<Option<Vec<f64>>> {
        self.disk.hurry()?;
        if self.side(candidate)?.guest.is_none() {
            let disk = self.side(candidate)?.noisy[0].clone();
            let guest = self.boot(&format!("{}guest", candidate.prefix()), &disk, NOISE_CPU)?;
            if let Some(groups) = self.groups.as_ref().filter(|_| candidate.is_peer()) {
                groups.enter(&name_of(1), guest.process())?;
            }
            self.side(candidate)?.guest = Some(guest);
        }
        if !self.prepare(candidate, kind)? {
            return Ok(None);
        }
        let root = self.disk.root.clone();
        let _forgets = (!candidate.is_peer()).then(|| Forgets::start(&root));
        let side = self.side(candidate)?;
        let (desk, guest) = (
            &mut side.desk,
            side.guest.as_mut().context("it was booted")?,
        );
        let noisy = format!("noise {noise} {GUEST_S}");
        guest.begin(&noisy)?;
        std::thread::sleep(SETTLE);
        if let Some(handle) = side.inputs.first() {
            handle.input();
        }
        desk.begin(line)?;
        let answer = desk.end(line)?;
        guest.end(&noisy)?;
        Ok(Some(answer))
    }

    fn side(&mut self, candidate: Candidate) -> anyhow::Result<&mut Side> {
        let side = match candidate {
            Candidate::Floe(io) => self
                .floes
                .iter_mut()
                .find(|(of, _)| *of == io)
                .map(|(_, side)| side),
            Candidate::Host { .. } => self.raw.as_mut(),
        };
        side.context("this side was not made")
    }
}

/// Has the host forget what it has read, again and again, until it is dropped.
struct Forgets {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Forgets {
    fn start(root: &Path) -> Forgets {
        const EVERY: Duration = Duration::from_millis(250);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, root) = (stop.clone(), root.to_owned());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                // a file that has just gone is not an error of what is measured
                let _ = slow_disk::forget_clean(&root);
                std::thread::sleep(EVERY);
            }
        });
        Forgets {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Forgets {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits; a liar moves its mouse meanwhile.
fn rest(pause: Duration, liar: Option<&MachineHandle>) {
    const MOUSE: Duration = Duration::from_millis(50);
    let until = Instant::now() + pause;
    while Instant::now() < until {
        if let Some(liar) = liar {
            liar.input();
        }
        std::thread::sleep(MOUSE.min(until.saturating_duration_since(Instant::now())));
    }
}
