//! One modelled disk with everything on it: floe's state directories, one for each order of requests, and the peers' raw files. Each side has
//! a desk, in front of which somebody sits, and seven noisy machines. The desk's requests are replayed; a real guest can use its disk, too.

use super::desk::{self, Desk, Place};
use super::disk::Target;
use super::groups::{CpuCap, Groups, WEIGHT};
use super::launches::Launches;
use super::noise::{self, Agent, Beside, Got, Lie, NOISY, Noise, PLAYER};
use super::replay::{FRAMES_AHEAD, LARGE_FRAME_BYTES, Lanes};
use super::throttle::{Limit, Throttled};
use anyhow::Context as _;
use floe_image::MachineConfig;
use floe_mount::{DiskSpec, IoSaid, IoScheduling, MachineHandle, MachineSpec};
use floe_sched::Class;
use floe_sched::classify::Name;
use floe_store::{Ingest, IngestOptions};
use floe_testbed::guest::Guest;
use floe_testbed::launch::Launch;
use floe_testbed::local::LocalMount;
use floe_testbed::slow_disk::{self, Kind, SlowDisk};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of the modelled disk.
const BYTES: u64 = 12 << 30;
/// The processors of the desk's guest, and of a noisy guest; and how much of it that may use, in percent.
const DESK_CPU: usize = 0;
const NOISE_CPU: usize = 1;
const NOISE_CPU_PERCENT: u32 = 30;
/// How long noise goes on before something is measured.
pub const SETTLE: Duration = Duration::from_millis(1500);
/// Frames of the longest film.
const FRAMES_MAX: u64 = 600;

/// Who orders the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidate {
    /// floe's mount; with the class of all of the desk's requests, where that is said by hand.
    Floe {
        io: IoScheduling,
        desk: Option<Class>,
    },
    /// QEMU on raw files, and one of the host's schedulers; `desk_weight` is the desk's, the others have [`WEIGHT`].
    Host {
        scheduler: &'static str,
        desk_weight: u32,
    },
    /// QEMU's throttle groups, one for each machine, and none of the host's schedulers.
    Throttled,
}

impl Candidate {
    /// Returns what its figures' names begin with; nothing for floe as it is delivered.
    pub fn prefix(self) -> &'static str {
        match self {
            Candidate::Floe { desk: Some(_), .. } => "whole.",
            Candidate::Floe { io, .. } => match io {
                IoScheduling::Vsip => "",
                IoScheduling::Fifo => "fifo.",
                IoScheduling::Off => "off.",
            },
            Candidate::Throttled => "throttle.",
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
        !matches!(self, Candidate::Floe { .. })
    }
}

/// The files of one side's machines, the desk's first.
struct Side {
    files: Vec<PathBuf>,
    /// The same machines on floe's mount; none of the peers' side.
    machines: Vec<MachineHandle>,
    /// The desk, and the first noisy machine, as real guests, once they were needed.
    guests: [Option<Desk>; 2],
}

/// A desk that can be used, beside noise that goes on.
pub struct Stage<'a> {
    /// Its disk.
    pub desk: &'a Target,
    /// The same, opened.
    pub lanes: &'a Lanes,
    /// The machine, if it is one of floe's mount.
    pub machine: Option<&'a MachineHandle>,
    noise: &'a [Noise],
}

impl Stage<'_> {
    /// Starts a program on the desk's own disk that reads without end, beside what the desk does: the mixed machine of the paper's section 4.6.
    pub fn reader(&self) -> anyhow::Result<Noise> {
        let agent = self.machine.map(|machine| Agent {
            machine: machine.clone(),
            lie: Lie::None,
        });
        Noise::start(&noise::Kind::Reader, self.desk, agent)
    }

    /// Returns what each noisy machine has got so far.
    pub fn got(&self) -> Vec<Got> {
        self.noise.iter().map(Noise::got).collect()
    }

    /// Returns what each of them got since then.
    pub fn since(&self, before: &[Got]) -> Vec<Got> {
        let pairs = self.noise.iter().zip(before);
        pairs
            .map(|(noise, before)| noise.got().since(*before))
            .collect()
    }
}

/// Everything. Fields are dropped in this order, as each stands on those below it.
pub struct Site {
    throttled: Option<Throttled>,
    raw: Option<Side>,
    floes: Vec<(IoScheduling, Side)>,
    groups: Option<Groups>,
    /// Of noisy guests.
    caps: Vec<CpuCap>,
    mounts: Vec<LocalMount>,
    guest: Option<(Guest, PathBuf)>,
    scratch: PathBuf,
    desk_bytes: u64,
    noise_bytes: u64,
    /// Where a film stands on the desk's disk.
    pub film_at: u64,
    /// What kind of disk floe's schedulers know.
    known: Option<Kind>,
    /// The modelled disk.
    pub disk: SlowDisk,
}

fn name_of(machine: usize) -> String {
    match machine {
        0 => "desk".into(),
        n => format!("noise{n}"),
    }
}

/// Fills a file with bytes, so that all of it is somewhere on the disk.
fn fill(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let block = floe_testbed::workload::noise(1 << 20, 9);
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
    /// Makes the disk and fills all files, for what is launched at the desk and by noisy machines.
    pub fn new(
        scratch: &Path,
        floes: &[IoScheduling],
        raw: bool,
        launches: &Launches,
    ) -> anyhow::Result<Site> {
        let disk = SlowDisk::new(&scratch.join("slow"), BYTES)?;
        anyhow::ensure!(disk.is_direct(), "the loop device refuses direct I/O");
        let names: Vec<String> = (0..=NOISY).map(name_of).collect();
        let ends = launches.all().into_iter().map(Launch::end);
        let film_at = ends.max().unwrap_or(0).next_multiple_of(1 << 20);
        let film_bytes = (FRAMES_MAX + FRAMES_AHEAD as u64) * LARGE_FRAME_BYTES;
        let mut site = Site {
            throttled: None,
            raw: None,
            floes: Vec::new(),
            groups: Groups::new(scratch, &names)?,
            caps: Vec::new(),
            mounts: Vec::new(),
            guest: None,
            scratch: scratch.to_owned(),
            desk_bytes: (film_at + film_bytes)
                .max(desk::DISK_BYTES)
                .next_multiple_of(1 << 20),
            noise_bytes: launches
                .noise_end()
                .max(noise::DISK_BYTES)
                .next_multiple_of(1 << 20),
            film_at,
            known: None,
            disk,
        };
        for io in floes {
            let side = site.floe(*io)?;
            site.floes.push((*io, side));
        }
        if raw {
            site.raw = Some(site.make_raw()?);
        }
        Ok(site)
    }

    fn bytes_of(&self, machine: usize) -> u64 {
        match machine {
            0 => self.desk_bytes,
            // it may be a real guest
            1 => desk::DISK_BYTES.max(self.noise_bytes),
            _ => self.noise_bytes,
        }
    }

    fn make_raw(&mut self) -> anyhow::Result<Side> {
        let dir = self.disk.root.join("raw");
        std::fs::create_dir_all(&dir)?;
        let files: Vec<PathBuf> = (0..=NOISY).map(|n| dir.join(name_of(n))).collect();
        for (number, file) in files.iter().enumerate() {
            fill(file, self.bytes_of(number))?;
        }
        Ok(Side {
            files,
            machines: Vec::new(),
            guests: [None, None],
        })
    }

    fn floe(&mut self, io: IoScheduling) -> anyhow::Result<Side> {
        let dir = self.disk.root.join(format!("{io:?}").to_lowercase());
        std::fs::create_dir_all(&dir)?;
        let local = LocalMount::scheduled(&dir, 64 << 20, io)?;
        let mut ingest = Ingest::new(&local.repository, IngestOptions::default())?;
        ingest.region_bytes("disk0", &[0; 1 << 20])?;
        let id = ingest.finish(MachineConfig::default())?;
        let image = local.show(&id)?;
        let (mut files, mut machines) = (Vec::new(), Vec::new());
        for number in 0..=NOISY {
            let machine = local.mount.add_machine(MachineSpec {
                name: name_of(number),
                uid: 0,
                gid: 0,
                image: image.clone(),
                dir: dir.join(name_of(number)),
                disks: vec![DiskSpec {
                    name: "disk0".into(),
                    base: None,
                    size: self.bytes_of(number),
                }],
                base: None,
            })?;
            let file = machine.disk_path("disk0").context("it has this disk")?;
            fill(&file, self.bytes_of(number))?;
            files.push(file);
            machines.push(machine);
        }
        // what the paper's white list has: players, which read before they show
        let player = Name::new(PLAYER)?;
        local.mount.say_of_io(id, player, IoSaid::Allowed)?;
        self.mounts.push(local);
        Ok(Side {
            files,
            machines,
            guests: [None, None],
        })
    }

    fn side(&mut self, candidate: Candidate) -> anyhow::Result<&mut Side> {
        let side = match candidate {
            Candidate::Floe { io, .. } => {
                let mut floes = self.floes.iter_mut();
                floes.find(|(of, _)| *of == io).map(|(_, side)| side)
            }
            Candidate::Host { .. } | Candidate::Throttled => self.raw.as_mut(),
        };
        side.context("this side was not made")
    }

    /// Lets floe's schedulers find out what kind of disk this is, if it was another one so far. Nodes have it for as long as they run.
    pub fn acquaint(&mut self, kind: Kind) -> anyhow::Result<()> {
        if self.known == Some(kind) {
            return Ok(());
        }
        self.known = Some(kind);
        let long = match kind {
            Kind::HardDisk => Duration::from_secs(20),
            Kind::Ssd | Kind::SmallSsd => Duration::from_secs(5),
        };
        let readers = Beside {
            kind: noise::Kind::Reader,
            machines: NOISY,
            lie: Lie::None,
        };
        let all: Vec<IoScheduling> = self.floes.iter().map(|(io, _)| *io).collect();
        for io in all {
            let floe = Candidate::Floe { io, desk: None };
            self.beside(floe, kind, Some(&readers), long, |_| Ok(()))?;
        }
        for local in &self.mounts {
            if let Some(status) = local.mount.io_status() {
                eprintln!(
                    "io: a scheduler gives the {} {} requests at once",
                    kind.name(),
                    status.disk.depth
                );
            }
        }
        Ok(())
    }

    /// Makes the disk behave, and puts the candidate's scheduler before it. Returns whether the host has that.
    fn prepare(&mut self, candidate: Candidate, kind: Kind) -> anyhow::Result<bool> {
        self.disk.hurry()?;
        let (scheduler, weight) = match candidate {
            Candidate::Floe { .. } | Candidate::Throttled => ("none", WEIGHT),
            Candidate::Host {
                scheduler,
                desk_weight,
            } => (scheduler, desk_weight),
        };
        if !self.disk.schedulers()?.iter().any(|has| has == scheduler) {
            return Ok(false);
        }
        self.disk.schedule(scheduler)?;
        let weighs = self
            .groups
            .as_ref()
            .is_some_and(|groups| groups.weigh("desk", weight));
        if weight != WEIGHT && !weighs {
            return Ok(false);
        }
        if candidate == Candidate::Throttled && self.throttled.is_none() {
            self.throttled = Some(self.throttle(kind)?);
        }
        if let Candidate::Floe { desk, .. } = candidate {
            let machines = &self.side(candidate)?.machines;
            let desk_machine = machines.first().context("it has a desk")?;
            desk_machine.set_class(desk.unwrap_or_default());
        }
        self.disk.forget()?;
        self.disk.behave(kind)?;
        Ok(true)
    }

    /// Starts QEMU's storage daemon: each machine may have its part in the long run, and all of the disk for ten seconds.
    fn throttle(&mut self, kind: Kind) -> anyhow::Result<Throttled> {
        let files = &self.side(Candidate::Throttled)?.files;
        let names = (0..files.len()).map(name_of);
        let files: Vec<(String, PathBuf)> = names.zip(files.iter().cloned()).collect();
        let limit = Limit {
            per_s: kind.random_per_s() / files.len() as u64,
            burst_per_s: kind.random_per_s(),
            burst_s: 10,
        };
        Throttled::start(&self.scratch.join("throttle"), &files, limit)
    }

    fn target(&self, candidate: Candidate, side: &Side, machine: usize) -> anyhow::Result<Target> {
        let groups = self.groups.as_ref().filter(|_| candidate.is_peer());
        match (&self.throttled, candidate) {
            (Some(throttled), Candidate::Throttled) => Ok(Target::Throttled {
                socket: throttled.socket.clone(),
                export: name_of(machine),
            }),
            _ => Ok(Target::File {
                path: side.files[machine].clone(),
                group: groups.map(|groups| groups.group(&name_of(machine))),
            }),
        }
    }

    /// Uses the desk beside the noise, which begins so long before; `None` if the host has nothing like this candidate.
    pub fn beside<T>(
        &mut self,
        candidate: Candidate,
        kind: Kind,
        beside: Option<&Beside>,
        settle: Duration,
        act: impl FnOnce(&Stage) -> anyhow::Result<T>,
    ) -> anyhow::Result<Option<T>> {
        if !candidate.is_peer() {
            self.acquaint(kind)?;
        }
        if !self.prepare(candidate, kind)? {
            return Ok(None);
        }
        let machines = self.side(candidate)?.machines.clone();
        let side: &Side = match candidate {
            Candidate::Floe { io, .. } => {
                let mut floes = self.floes.iter();
                let side = floes.find(|(of, _)| *of == io).map(|(_, side)| side);
                side.context("this side was not made")?
            }
            _ => self.raw.as_ref().context("this side was not made")?,
        };
        let desk = self.target(candidate, side, 0)?;
        let lanes = Lanes::new(&desk)?;
        // noisy machines have more data than the host has memory
        let _forgets = (!candidate.is_peer()).then(|| Forgets::start(&self.disk.root));
        let mut noise = Vec::new();
        for number in 1..=beside.map_or(0, |beside| beside.machines) {
            let Some(beside) = beside else { break };
            let lie = if number == 1 { beside.lie } else { Lie::None };
            let agent = machines.get(number).map(|machine| Agent {
                machine: machine.clone(),
                lie,
            });
            let target = self.target(candidate, side, number)?;
            noise.push(Noise::start(&beside.kind.of(number), &target, agent)?);
        }
        if beside.is_some() {
            std::thread::sleep(settle);
        }
        let stage = Stage {
            desk: &desk,
            lanes: &lanes,
            machine: machines.first(),
            noise: &noise,
        };
        let done = act(&stage)?;
        noise.iter().try_for_each(Noise::holds)?;
        Ok(Some(done))
    }

    /// Returns the requests of the desk that floe has taken for waited for so far, and all of its requests.
    pub fn taken(&self, candidate: Candidate) -> Option<(u64, u64)> {
        let Candidate::Floe { io, .. } = candidate else {
            return None;
        };
        let at = self.floes.iter().position(|(of, _)| *of == io)?;
        let status = self.mounts.get(at)?.mount.io_status()?;
        let desk = status.machines.into_iter().find(|m| m.name == name_of(0))?;
        let served = desk.status.classes.map(|class| class.served);
        Some((served[Class::Interactive as usize], served.iter().sum()))
    }
}

/// A real guest, and the same from the noisy one beside it.
pub struct Live<'a> {
    /// The guest at which somebody sits.
    pub desk: &'a mut Desk,
    /// The noisy guest.
    pub noise: &'a mut Desk,
    /// The desk's machine on the mount.
    pub machine: &'a MachineHandle,
}

impl Site {
    fn boot(
        &mut self,
        name: &str,
        disk: &Path,
        cpu: usize,
        launches: &[Launch],
    ) -> anyhow::Result<Desk> {
        eprintln!("io: booting {name}");
        if self.guest.is_none() {
            let guest = Guest::tiny()?;
            let initrd = desk::initrd(&guest, &self.scratch, launches)?;
            self.guest = Some((guest, initrd));
        }
        let (guest, initrd) = self.guest.as_ref().context("it was just made")?;
        let dir = self.scratch.join(name);
        let place = Place {
            dir: &dir,
            disk,
            cpu,
        };
        Desk::boot(guest, initrd, place)
    }

    /// Has a real guest at the desk of floe's mount, and a noisy one beside it whose processor is capped. Both boot the first time.
    pub fn live<T>(
        &mut self,
        io: IoScheduling,
        kind: Kind,
        launches: &[Launch],
        act: impl FnOnce(Live) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let candidate = Candidate::Floe { io, desk: None };
        self.acquaint(kind)?;
        self.disk.hurry()?;
        for (number, cpu) in [(0, DESK_CPU), (1, NOISE_CPU)] {
            if self.side(candidate)?.guests[number].is_none() {
                let disk = self.side(candidate)?.files[number].clone();
                let name = format!("{}-guest", name_of(number));
                let guest = self.boot(&name, &disk, cpu, launches)?;
                if number > 0 {
                    let cap = CpuCap::new(&self.scratch, guest.process(), NOISE_CPU_PERCENT)?;
                    self.caps.push(cap);
                }
                self.side(candidate)?.guests[number] = Some(guest);
            }
        }
        self.prepare(candidate, kind)?;
        let _forgets = Forgets::start(&self.disk.root);
        let side = self.side(candidate)?;
        let machine = side.machines.first().context("it has a desk")?;
        let [Some(desk), Some(noise)] = &mut side.guests else {
            anyhow::bail!("the guests were booted");
        };
        act(Live {
            desk,
            noise,
            machine,
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_candidates_figures_have_a_name_of_their_own() {
        let floe = |io, desk| Candidate::Floe { io, desk };
        let host = |scheduler, desk_weight| Candidate::Host {
            scheduler,
            desk_weight,
        };
        let all = [
            floe(IoScheduling::Vsip, None),
            floe(IoScheduling::Fifo, None),
            floe(IoScheduling::Vsip, Some(Class::Interactive)),
            host("bfq", WEIGHT),
            host("bfq", 1000),
            host("kyber", WEIGHT),
            host("mq-deadline", WEIGHT),
            host("none", WEIGHT),
            Candidate::Throttled,
        ];
        let names: std::collections::BTreeSet<_> = all.iter().map(|c| c.prefix()).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(all.iter().filter(|c| c.is_peer()).count(), 6);
        assert_eq!(all[0].prefix(), "");
    }
}
