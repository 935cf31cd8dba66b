//! Noisy machines: requests like those of a machine, made to its disk. On a mount, the file says which machine it is; on a raw file, the
//! thread's control group does.

use super::disk::{Buffer, Disk, Target};
use super::replay::{Lanes, replay};
use anyhow::Context as _;
use floe_mount::MachineHandle;
use floe_sched::Op;
use floe_sched::classify::{Name, Told};
use floe_testbed::launch::Launch;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many noisy machines there are.
pub const NOISY: usize = 7;
/// What a noisy machine uses of its disk, in bytes. A power of two, so that odd steps reach every block.
pub const DISK_BYTES: u64 = 64 << 20;
/// From one block to the next that is read, in blocks: far, and all are read before one is read again.
const STEP: u64 = 2_731;
/// How often a guest's agent looks who has read what.
const AGENT_EVERY: Duration = Duration::from_millis(40);
/// How often somebody clicks who does nothing else.
const CLICK_EVERY: Duration = Duration::from_millis(200);
/// After so many reads an agent that lies has another name for who reads.
const LIE_READS: u64 = 200;
/// What the program is called that a liar renames his reader to.
pub const PLAYER: &str = "mplayer";
/// What a reader is called.
const READER: &str = "reader";

/// What a noisy machine does.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Four random reads of 16 KiB at a time, without end.
    Reader,
    /// What an operating system does that boots: it reads (two at a time), logs (two writes at a time), and flushes its log.
    Boot,
    /// What was recorded of machines, again and again: the first noisy machine does the first of these, the next one the next.
    Recorded(Vec<Arc<Launch>>),
    /// Four small writes at a time, each followed by a flush.
    Sync,
}

impl Kind {
    fn threads(&self) -> u64 {
        match self {
            Kind::Reader | Kind::Sync => 4,
            Kind::Boot => 5,
            Kind::Recorded(_) => 1,
        }
    }

    /// Returns what the noisy machine of this number does, from 1 on: one thing that was recorded, if there are several.
    pub fn of(&self, number: usize) -> Kind {
        match self {
            Kind::Recorded(all) => {
                let at = number.saturating_sub(1) % all.len().max(1);
                Kind::Recorded(all.get(at).cloned().into_iter().collect())
            }
            other => other.clone(),
        }
    }
}

/// How a machine's user lies, so that a program that nobody waits for goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Not at all.
    None,
    /// He clicks without end.
    Click,
    /// The program has the name of one that is allowed.
    Rename,
    /// The guest's agent tells of a new program again and again, which began on a click.
    Agent,
}

impl Lie {
    /// Those who lie, with their names in figures.
    pub const ALL: [(&str, Lie); 3] = [
        ("click", Lie::Click),
        ("rename", Lie::Rename),
        ("agent", Lie::Agent),
    ];

    /// Returns what the agent calls the program after so many reads.
    fn name(self, reads: u64) -> String {
        match self {
            Lie::None | Lie::Click => READER.into(),
            Lie::Rename => PLAYER.into(),
            Lie::Agent => format!("tool{}", reads / LIE_READS),
        }
    }

    fn clicks(self) -> bool {
        matches!(self, Lie::Click | Lie::Agent)
    }
}

/// What goes on beside the desk.
#[derive(Clone)]
pub struct Beside {
    pub kind: Kind,
    pub machines: usize,
    /// How the first of them lies.
    pub lie: Lie,
}

/// A machine whose guest has an agent.
pub struct Agent {
    pub machine: MachineHandle,
    pub lie: Lie,
}

/// What a machine got.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Got {
    pub requests: f64,
    pub waited_us: f64,
}

impl Got {
    /// Returns what came after `earlier`.
    pub fn since(self, earlier: Got) -> Got {
        Got {
            requests: self.requests - earlier.requests,
            waited_us: self.waited_us - earlier.waited_us,
        }
    }

    /// Returns the mean time of a request.
    pub fn mean_us(self) -> f64 {
        self.waited_us / self.requests.max(1.0)
    }
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    next: AtomicU64,
    requests: AtomicU64,
    waited_us: AtomicU64,
    /// What was read since the agent looked last: offset and bytes.
    read: Mutex<Vec<(u64, u64)>>,
    has_agent: bool,
    /// Why a request failed, after which its thread has ended.
    failed: Mutex<Option<anyhow::Error>>,
}

/// A noisy machine at work, until it is dropped.
pub struct Noise {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Noise {
    /// Starts it on its disk.
    pub fn start(kind: &Kind, target: &Target, agent: Option<Agent>) -> anyhow::Result<Noise> {
        let shared = Arc::new(Shared {
            has_agent: agent.is_some(),
            ..Shared::default()
        });
        let mut noise = Noise {
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for thread in 0..kind.threads() {
            let (shared, target, kind) = (shared.clone(), target.clone(), kind.clone());
            noise.thread("noise", move || {
                let ended = match &kind {
                    Kind::Recorded(launches) => match launches.first() {
                        Some(launch) => again(launch, &target, &shared),
                        None => Ok(()),
                    },
                    _ => target
                        .open()
                        .and_then(|mut disk| run(&kind, thread, &mut disk, &shared)),
                };
                if let Err(error) = ended {
                    *shared.failed.lock() = Some(error);
                }
            })?;
        }
        if let Some(agent) = agent {
            noise.thread("agent", move || tell(&agent, &shared))?;
        }
        Ok(noise)
    }

    fn thread(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        let started = builder.spawn(run).context("a noisy machine has no thread");
        self.threads.push(started?);
        Ok(())
    }

    /// Fails if one of its requests did: then it has made less noise than was meant.
    pub fn holds(&self) -> anyhow::Result<()> {
        match self.shared.failed.lock().take() {
            Some(error) => Err(error.context("a noisy machine's request failed")),
            None => Ok(()),
        }
    }

    /// Returns what it has got so far.
    pub fn got(&self) -> Got {
        Got {
            requests: self.shared.requests.load(Relaxed) as f64,
            waited_us: self.shared.waited_us.load(Relaxed) as f64,
        }
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What the agent does, and the user.
fn tell(agent: &Agent, shared: &Shared) {
    let mut clicked: Option<Instant> = None;
    while !shared.stop.load(Relaxed) {
        std::thread::sleep(AGENT_EVERY);
        if agent.lie.clicks() && clicked.is_none_or(|at| at.elapsed() >= CLICK_EVERY) {
            clicked = Some(Instant::now());
            agent.machine.input();
        }
        let read = std::mem::take(&mut *shared.read.lock());
        let name = agent.lie.name(shared.requests.load(Relaxed));
        let Ok(name) = Name::new(&name) else { continue };
        let told: Vec<Told> = read
            .into_iter()
            .map(|(offset, bytes)| Told {
                name,
                from: Some(offset),
                bytes,
            })
            .collect();
        if !told.is_empty() {
            agent.machine.told_who_asks(&told);
        }
    }
}

/// Replays what was recorded until it is told to stop.
fn again(launch: &Launch, target: &Target, shared: &Shared) -> anyhow::Result<()> {
    let lanes = Lanes::new(target)?;
    while !shared.stop.load(Relaxed) {
        replay(&lanes, launch, None, &mut |us| {
            shared.waited_us.fetch_add(us, Relaxed);
            shared.requests.fetch_add(1, Relaxed);
            !shared.stop.load(Relaxed)
        })?;
    }
    Ok(())
}

fn run(kind: &Kind, thread: u64, disk: &mut Disk, shared: &Shared) -> anyhow::Result<()> {
    let mut buffer = Buffer::new(64 << 10, thread as u8 + 1);
    let mut random = (thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while !shared.stop.load(Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let number = shared.next.fetch_add(1, Relaxed);
        let place = |bytes: u64| number.wrapping_mul(STEP) % (DISK_BYTES / bytes) * bytes;
        let (op, bytes, pause_us) = match (kind, thread) {
            (Kind::Boot, 0 | 1) => (Op::Read, 32 << 10, 100 + random % 5_900),
            (Kind::Boot, 2 | 3) => (Op::Write, 64 << 10, 2_000 + random % 18_000),
            (Kind::Boot, _) => (Op::Flush, 0, 50_000 + random % 250_000),
            (Kind::Sync, _) => (Op::Write, 16 << 10, 0),
            _ => (Op::Read, 16 << 10, 25 + random % 75),
        };
        let offset = place(bytes.max(4096));
        let start = Instant::now();
        disk.request(op, offset, buffer.first(bytes as usize))?;
        if matches!(kind, Kind::Sync) {
            disk.request(Op::Flush, 0, &mut [])?;
        }
        let waited_us = start.elapsed().as_micros() as u64;
        shared.waited_us.fetch_add(waited_us, Relaxed);
        shared.requests.fetch_add(1, Relaxed);
        if shared.has_agent && op == Op::Read {
            shared.read.lock().push((offset, bytes));
        }
        std::thread::sleep(Duration::from_micros(pause_us));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_liar_has_the_name_that_helps_him_and_an_honest_user_has_none() {
        assert_eq!(Lie::None.name(5000), Lie::Click.name(0));
        assert_eq!(Lie::Rename.name(5000), PLAYER);
        assert_ne!(Lie::Agent.name(0), Lie::Agent.name(LIE_READS));
        assert!(!Lie::None.clicks() && !Lie::Rename.clicks());
        let names: Vec<&str> = Lie::ALL.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["click", "rename", "agent"]);
    }

    #[test]
    fn each_noisy_machine_replays_another_one_that_was_recorded() {
        let launch = |name: &str| {
            Arc::new(Launch {
                name: name.into(),
                steps: Vec::new(),
            })
        };
        let kind = Kind::Recorded(vec![launch("compile"), launch("desktop")]);
        let names = [1, 2, 3].map(|number| match kind.of(number) {
            Kind::Recorded(one) => one.iter().map(|launch| launch.name.clone()).collect(),
            _ => Vec::new(),
        });
        assert_eq!(names.concat(), ["compile", "desktop", "compile"]);
        assert!(matches!(Kind::Sync.of(4), Kind::Sync));
    }

    #[test]
    fn noise_that_could_not_be_made_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::File {
            path: dir.path().join("no-disk"),
            group: None,
        };
        let mut noise = Noise::start(&Kind::Reader, &target, None).unwrap();
        for thread in noise.threads.drain(..) {
            thread.join().unwrap();
        }
        assert!(noise.holds().is_err());
        assert_eq!(noise.got(), Got::default());
    }

    #[test]
    fn what_a_machine_got_meanwhile_is_the_difference() {
        let (before, after) = (
            Got {
                requests: 10.0,
                waited_us: 500.0,
            },
            Got {
                requests: 30.0,
                waited_us: 2500.0,
            },
        );
        assert_eq!(after.since(before).mean_us(), 100.0);
        assert_eq!(Got::default().mean_us(), 0.0);
    }
}
