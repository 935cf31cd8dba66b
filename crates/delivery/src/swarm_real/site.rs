//! A hub and hosts at one switch, each behind a slow link of its own, and an image on the hub that all hosts start at the same second.
use super::guest::{READS_BYTES, STOPS_BYTES, Sum, told};
use super::player::play;
use super::script::{InPieces, Run, Script};
use super::torrent::Torrent;
use crate::stream_real::site::{model_traces, wait_for_model};
use anyhow::{Context as _, bail, ensure};
use floe_api::paths::Home;
use floe_api::{
    ImportRequest, IndependentRequest, OptimizeRequest, REHEARSE_S_DEFAULT, RunRequest,
    StopRequest, SwarmUse, Wait,
};
use floe_image::Hash;
use floe_simulator::swarm_sim::sweep::LEARNT;
use floe_simulator::swarm_sim::{PIECE_BYTES, Profile, Recorded, pieces::profile};
use floe_store::Repository;
use floe_swarm::policy::PieceId;
use floe_testbed::guest::Guest;
use floe_testbed::harness::{HostTimes, cpu_times, own_memory};
use floe_testbed::link::Segment;
use floe_testbed::live::{Hub, Node};
use floe_testbed::traces;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The workload: a boot from the disk.
const WORKLOAD: &str = "boot";
const HUB_PORT: u16 = 7070;
/// The image's name, and the machine's.
const IMAGE: &str = "lab-swarm";
const MACHINE: &str = "peer";

/// The captured guest's image, its memory, and the longest time until it answers.
const GUEST_IMAGE: &str = "lab-guest";
const GUEST_MEMORY_BYTES: u64 = 128 << 20;
const GUEST_MAX: Duration = Duration::from_secs(300);

/// The unit in which the kernel counts a file's room on the disk.
const BLOCK_BYTES: u64 = 512;
/// How often a node's memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The longest time for a guest to read the disk, from a hub that sixteen hosts read at once.
const READ_MAX: Duration = Duration::from_secs(1200);

/// What a host, by its number, does with its node's machine once that runs. It returns how long it has waited for the machine's disk.
type Work<'a> = dyn Fn(usize, &Node) -> anyhow::Result<Duration> + Sync + 'a;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Most hosts besides the hub's.
    pub hosts: usize,
    /// Of the largest swarm, hosts whose guest reads the disk itself, without time of its own, and finds that its bytes are right. Nothing
    /// else of them is measured.
    pub guests: usize,
    /// Of each link, in both directions.
    pub bits_per_s: u64,
    /// The recorded times are divided by this.
    pub faster: f64,
    /// Most compressed bytes of the chunks that a machine touches: a recorded one does no more.
    pub touched_bytes: u64,
    /// Most compressed bytes of the image: it has no more than the recorded one.
    pub image_bytes: u64,
    /// All hosts start within this time.
    pub spread: Duration,
}

/// How an image comes to its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// As floe does it by itself, which begins a swarm once a second host asks for the image.
    Ours,
    /// By the same policy, which `--swarm` has asked for: from the first byte on.
    Asked,
    /// By the paper's policy, through the same code.
    P2pP,
    /// From each other, what is needed and nothing else.
    P2pD,
    /// From the hub, as floe does it without a swarm.
    Hub,
    /// From the hub in the swarm's pieces, with what was learnt from earlier runs.
    CsP,
    /// The same, what is needed and nothing else.
    CsD,
    /// It is here already.
    Local,
    /// It is here already, in a folder of the host's own to which it came by BitTorrent.
    Torrent,
}

impl Mode {
    /// Its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Ours => "ours",
            Mode::Asked => "asked",
            Mode::P2pP => "p2p_p",
            Mode::P2pD => "p2p_d",
            Mode::Hub => "hub",
            Mode::CsP => "cs_p",
            Mode::CsD => "cs_d",
            Mode::Local => "local",
            Mode::Torrent => "bittorrent",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Mode::Ours | Mode::Asked | Mode::Hub | Mode::Local | Mode::Torrent => &[],
            Mode::P2pP => &["--swarm-policy", "p2p_p"],
            Mode::P2pD => &["--swarm-policy", "p2p_d", "--demand-only"],
            Mode::CsP => &["--swarm-policy", "cs_p"],
            Mode::CsD => &["--swarm-policy", "cs_d", "--demand-only"],
        }
    }
}

/// What came of hosts that started an image together.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of each host that replays: seconds from the command until its machine has done everything.
    pub took_s: Vec<f64>,
    /// Of the same: seconds from the command until its machine ran.
    pub started_s: Vec<f64>,
    /// Of the same: seconds in which its machine's disk was waited for.
    pub waited_s: Vec<f64>,
    /// Bytes that left the hub's host, headers included.
    pub seed_bytes: u64,
    /// Bytes that left all other hosts.
    pub peer_bytes: u64,
    /// Of their nodes' processes: seconds of processor time since the command, and the most memory that was no file's meanwhile, in MB.
    pub cpu_s: Vec<f64>,
    /// See `cpu_s`.
    pub memory_mb: Vec<f64>,
    /// The share of all processors' time, 0 to 1, that nothing used from the first command until the last machine was done.
    pub idle: f64,
}

impl Outcome {
    /// Returns the hosts' mean run time.
    pub fn mean_s(&self) -> f64 {
        self.took_s.iter().sum::<f64>() / self.took_s.len().max(1) as f64
    }
}

/// The hosts and the image. Fields are dropped in this order, as processes use the network.
pub struct Site {
    hub: Hub,
    origin: Node,
    homes: PathBuf,
    id: Hash,
    /// What machines do.
    pub script: Script,
    /// The checksum of what guests read.
    sum: Sum,
    /// The same as a swarm sees it.
    pub recorded: Vec<Recorded>,
    /// Pieces of the image.
    pub pieces: u32,
    /// Those that have nothing but a pack's index.
    indices: HashSet<PieceId>,
    /// What was learnt from the first runs, and the indices by which that is found.
    pub profile: Profile,
    /// What it was made with.
    pub size: Size,
    /// The network; the hub is at its first host.
    pub segment: Segment,
}

impl Site {
    /// Makes the image, and lets earlier users teach the hub.
    pub fn prepare(dir: &Path, size: Size) -> anyhow::Result<Site> {
        let workload = traces::read(&traces::folder().join(WORKLOAD))?;
        let image_bytes = size.image_bytes.min(workload.meta.image_zstd_bytes);
        let mut script = Script::new(&workload, size.touched_bytes, image_bytes)?;
        script.speed_up(size.faster);
        let segment = Segment::new(1 + size.hosts).context("hosts of our own need root")?;
        let first = segment.host(0);
        let hub = Hub::start(Some(first), &dir.join("hub"), segment.address(0), HUB_PORT)?;
        let origin = Node::start(Some(first), &dir.join("origin"), false)?;
        eprintln!("swarm-real: making the image");
        let disk = dir.join("disk.raw");
        script.write_disk(&disk, LEARNT)?;
        let sum = script.sum(&disk, LEARNT)?;
        let request = ImportRequest {
            disks: vec![disk.display().to_string()],
            name: Some(IMAGE.into()),
            memory_bytes: Some(STOPS_BYTES),
            cpus: Some(1),
            ..ImportRequest::default()
        };
        origin.client.import(&request)?.finish(|_| {})?;
        std::fs::remove_file(&disk)?;
        let id = origin.client.image(IMAGE)?.summary.id.parse()?;
        let repository = Repository::open(&origin.home.join("repo"))?;
        lay_out(&origin, &script)?;
        origin.publish(IMAGE, &hub)?;
        let InPieces {
            runs: recorded,
            pieces,
            indices,
        } = script.pieces(&repository, &id)?;
        let learnt: Vec<&Recorded> = recorded.iter().take(LEARNT).collect();
        let site = Site {
            profile: profile(&learnt),
            hub,
            origin,
            homes: dir.to_path_buf(),
            id,
            script,
            sum,
            recorded,
            pieces,
            indices,
            size,
            segment,
        };
        site.teach()?;
        for host in 0..=size.hosts {
            site.segment.limit(host, size.bits_per_s)?;
        }
        Ok(site)
    }

    /// Returns the bytes of the pieces that the profile names, without those of indices.
    pub fn profile_bytes(&self) -> f64 {
        let pieces = self.profile.pieces.iter();
        let pieces = pieces.filter(|piece| !self.indices.contains(piece));
        (pieces.count() as u64 * PIECE_BYTES) as f64
    }

    /// Returns the bytes of the image's packs.
    pub fn image_bytes(&self) -> anyhow::Result<u64> {
        let repository = Repository::open(&self.origin.home.join("repo"))?;
        let packs = repository.layout(&self.id)?.packs;
        Ok(packs.iter().map(|pack| pack.file_bytes).sum())
    }

    /// Returns the number of a host's run: those that were learnt from are nobody's.
    pub fn run_of(&self, host: usize) -> usize {
        LEARNT + host % (self.script.runs.len() - LEARNT)
    }

    /// Returns when a host starts, after the first.
    pub fn start_of(&self, host: usize) -> Duration {
        let spread_us = self.size.spread.as_micros() as u64;
        Duration::from_micros(host as u64 * 7_919_000 % spread_us.max(1))
    }

    /// Lets so many hosts get a repository that has the image alone by BitTorrent, each into a folder of its own, and start it from there as
    /// in [`Site::start`]. Returns how long the downloads took, on the mean, and what came of the starts.
    pub fn by_torrent(&self, hosts: usize) -> anyhow::Result<(Duration, Outcome)> {
        let home = self.homes.join("given");
        let node = Node::start(Some(self.segment.host(0)), &home, false)?;
        node.download(IMAGE, &self.hub)?;
        drop(node);
        let repository = Home::at(&home).repo();
        let took = Torrent::new(&self.segment, &repository, hosts)?
            .download(hosts, |host| self.torrent_of(host))?;
        let mean = took.iter().sum::<Duration>() / hosts as u32;
        eprintln!(
            "swarm-real: all of the image by BitTorrent to {hosts} hosts: {:.1} s",
            mean.as_secs_f64()
        );
        let outcome = self.start(Mode::Torrent, hosts)?;
        for host in 0..hosts {
            std::fs::remove_dir_all(self.torrent_of(host))?;
        }
        std::fs::remove_dir_all(&home)?;
        Ok((mean, outcome))
    }

    /// Returns the folder into which a host gets files by BitTorrent.
    fn torrent_of(&self, host: usize) -> PathBuf {
        self.homes.join(format!("torrent-{host}"))
    }

    /// Lets earlier users' machines, next to the hub, do what the first runs did.
    fn teach(&self) -> anyhow::Result<()> {
        let hub = self.homes.join("hub");
        for run in 0..LEARNT {
            eprintln!("swarm-real: earlier user {}", run + 1);
            let home = self.homes.join("teacher");
            // a node that fetches nothing ahead sees every touch
            let node = Node::start_with(Some(self.segment.host(0)), &home, &["--demand-only"])?;
            let known = model_traces(&hub, &self.id)?;
            once(
                &node,
                &self.request((Mode::Hub, IMAGE, 0), true),
                &self.script.runs[run],
            )?;
            wait_for_model(&hub, &self.id, known)?;
            drop(node);
            std::fs::remove_dir_all(&home)?;
        }
        Ok(())
    }

    fn request(&self, (mode, image, host): (Mode, &str, usize), trace: bool) -> RunRequest {
        let local = match mode {
            Mode::Local => Some(Home::at(&self.origin.home).repo()),
            Mode::Torrent => Some(self.torrent_of(host).join("repo")),
            _ => None,
        };
        RunRequest {
            image: match &local {
                Some(repository) => repository.join(image).display().to_string(),
                None => self.hub.address(image),
            },
            name: Some(MACHINE.into()),
            token: local.is_none().then(|| self.hub.token.clone()),
            wait: Wait::None,
            no_trace: !trace,
            swarm: match mode {
                Mode::Ours => None,
                Mode::Hub | Mode::Local | Mode::Torrent => Some(SwarmUse::Off),
                _ => Some(SwarmUse::On),
            },
            ..RunRequest::default()
        }
    }

    /// Makes an image of a machine that runs, and publishes it. Returns its name.
    pub fn capture_guest(&self) -> anyhow::Result<&'static str> {
        let guest = Guest::tiny()?;
        self.origin
            .import_with(&guest, "guest", GUEST_MEMORY_BYTES, 1)?;
        self.origin.boot("guest", "maker")?;
        self.origin
            .capture("maker", GUEST_IMAGE, true, REHEARSE_S_DEFAULT)?;
        self.origin.remove("maker")?;
        self.origin.publish(GUEST_IMAGE, &self.hub)?;
        Ok(GUEST_IMAGE)
    }

    /// Lets so many hosts, which have nothing of the image, start it at the same second, each to do what a recorded machine did; the last of
    /// them have guests that do.
    pub fn start(&self, mode: Mode, hosts: usize) -> anyhow::Result<Outcome> {
        let replaying = self.replaying(hosts);
        self.together((mode, IMAGE), (hosts, replaying), &|host, node| {
            if host >= replaying {
                return self.hear_guest(host, node);
            }
            play(&disk_of(node), &self.script.runs[self.run_of(host)])
        })
    }

    /// Returns how many of so many hosts replay a run. The others, the last, have guests that read the disk.
    pub fn replaying(&self, hosts: usize) -> usize {
        match hosts == self.size.hosts {
            true => hosts.saturating_sub(self.size.guests),
            false => hosts,
        }
    }

    /// Waits until a guest has read what it is to read, and holds its checksum to the disk as it was made.
    fn hear_guest(&self, host: usize, node: &Node) -> anyhow::Result<Duration> {
        let log = PathBuf::from(node.client.console(MACHINE)?.log);
        let began = Instant::now();
        while began.elapsed() < READ_MAX {
            let console = std::fs::read(&log)?;
            if let Some(sum) = told(&String::from_utf8_lossy(&console)) {
                let right = self.sum.told();
                ensure!(
                    sum == right,
                    "the guest of host {host} has read {sum}, not {right}"
                );
                return Ok(began.elapsed());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("the guest of host {host} has not read everything within {READ_MAX:?}")
    }

    /// Lets so many hosts start it, and bring all of it to their disks. Returns the bytes that each of them then keeps of it on its disk.
    pub fn bring_all(&self, mode: Mode, hosts: usize) -> anyhow::Result<Vec<u64>> {
        let kept = Mutex::new(Vec::new());
        self.together((mode, IMAGE), (hosts, hosts), &|_, node| {
            let request = IndependentRequest {
                wait: true,
                ..IndependentRequest::default()
            };
            let began = Instant::now();
            node.client.independent(MACHINE, &request)?.finish(|_| {})?;
            kept.lock().push(kept_bytes(&node.home)?);
            Ok(began.elapsed())
        })?;
        Ok(kept.into_inner())
    }

    /// Lets so many hosts, which have nothing of an image of [`Site::capture_guest`], go on with its guest until that answers.
    pub fn resume(&self, mode: Mode, image: &str, hosts: usize) -> anyhow::Result<Outcome> {
        self.together((mode, image), (hosts, hosts), &|_, node| {
            node.ask(MACHINE, GUEST_MAX)
        })
    }

    /// Lets so many hosts start an image at the same second, and do `work` with its machine. The first `measured` of them tell how that went;
    /// the machines of the others are larger, so that their guests read the disk.
    fn together(
        &self,
        (mode, image): (Mode, &str),
        (hosts, measured): (usize, usize),
        work: &Work<'_>,
    ) -> anyhow::Result<Outcome> {
        let dir = self.homes.join(format!("{}-{hosts}", mode.name()));
        let ready = Ready::new(hosts);
        let sent = || -> io::Result<Vec<u64>> {
            (0..=hosts)
                .map(|host| self.segment.sent_bytes(host))
                .collect()
        };
        let before = sent()?;
        let results: Vec<anyhow::Result<Told>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..hosts)
                .map(|host| {
                    let (home, ready) = (dir.join(host.to_string()), &ready);
                    let reads = host >= measured;
                    scope.spawn(move || self.host((mode, image, host, reads), &home, ready, work))
                })
                .collect();
            let told = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| bail!("a host's thread panicked"))
            });
            told.collect()
        });
        let after = sent()?;
        let mut outcome = Outcome {
            seed_bytes: after[0] - before[0],
            peer_bytes: after[1..].iter().sum::<u64>() - before[1..].iter().sum::<u64>(),
            idle: ready.idle()?,
            ..Outcome::default()
        };
        let told = results.into_iter().collect::<anyhow::Result<Vec<Told>>>()?;
        for told in told.into_iter().take(measured) {
            outcome.took_s.push(told.took_s);
            outcome.started_s.push(told.started_s);
            outcome.waited_s.push(told.waited_s);
            outcome.cpu_s.push(told.cpu_s);
            outcome.memory_mb.push(told.memory_mb);
        }
        std::fs::remove_dir_all(&dir)?;
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        eprintln!(
            "{image}: {} on {hosts} hosts: {:.1} s, of which {:.1} s until it runs; {:.1} MB left the hub, {:.1} MB the others; {:.2} s of \
             processor, {:.0} MB of memory a node; {:.0} % of the processors were left",
            mode.name(),
            outcome.mean_s(),
            mean(&outcome.started_s),
            outcome.seed_bytes as f64 / 1e6,
            outcome.peer_bytes as f64 / 1e6,
            mean(&outcome.cpu_s),
            mean(&outcome.memory_mb),
            outcome.idle * 100.0
        );
        Ok(outcome)
    }

    /// One host. If it fails, the others need not wait for it.
    fn host(
        &self,
        (mode, image, host, reads): (Mode, &str, usize, bool),
        home: &Path,
        ready: &Ready,
        work: &Work<'_>,
    ) -> anyhow::Result<Told> {
        let node = Node::start_with(Some(self.segment.host(host + 1)), home, mode.flags());
        ready.wait();
        let told = node.and_then(|node| {
            Ok((
                self.use_image((mode, image, host, reads), &node, work)?,
                node,
            ))
        });
        // who is done goes on giving until all are
        ready.wait();
        Ok(told?.0)
    }

    fn use_image(
        &self,
        (mode, image, host, reads): (Mode, &str, usize, bool),
        node: &Node,
        work: &Work<'_>,
    ) -> anyhow::Result<Told> {
        let process = node.process()?;
        let before = cpu_times(process)?;
        std::thread::sleep(self.start_of(host));
        let began = Instant::now();
        let request = RunRequest {
            memory_bytes: reads.then_some(READS_BYTES),
            ..self.request((mode, image, host), false)
        };
        node.run(&request, |_| {})?;
        let started_s = began.elapsed().as_secs_f64();
        let timed = || work(host, node).map(|waited| (waited, began.elapsed()));
        let ((waited, took), memory) = with_memory(process, timed)?;
        Ok(Told {
            took_s: took.as_secs_f64(),
            started_s,
            waited_s: waited.as_secs_f64(),
            cpu_s: (cpu_times(process)?.own_ms - before.own_ms) / 1e3,
            memory_mb: memory as f64 / 1e6,
        })
    }
}

/// Where hosts wait for each other, twice: before they begin, and when they are done.
struct Ready {
    all: Barrier,
    /// What the processors had done when all were there, each time.
    times: Mutex<Vec<anyhow::Result<HostTimes>>>,
}

impl Ready {
    fn new(hosts: usize) -> Ready {
        Ready {
            all: Barrier::new(hosts),
            times: Mutex::default(),
        }
    }

    fn wait(&self) {
        if self.all.wait().is_leader() {
            self.times.lock().push(HostTimes::now());
        }
    }

    /// Returns the share of all processors' time that nothing used between the two.
    fn idle(self) -> anyhow::Result<f64> {
        let times = self.times.into_inner().into_iter();
        let times = times.collect::<anyhow::Result<Vec<HostTimes>>>()?;
        let [begun, done] = times[..] else {
            bail!("the hosts did not wait for each other");
        };
        Ok(done.idle_since(&begun))
    }
}

/// Does some work, and returns what came of it, and the most bytes of a process's memory that were no file's meanwhile.
fn with_memory<T>(
    process: u32,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, u64)> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| -> anyhow::Result<u64> {
            let mut most = own_memory(process)?;
            while !over.load(Relaxed) {
                std::thread::sleep(LOOK_EVERY);
                most = most.max(own_memory(process)?);
            }
            Ok(most)
        });
        let done = work();
        over.store(true, Relaxed);
        let most = looks.join();
        let most = most.unwrap_or_else(|_| bail!("the thread that looks at memory panicked"));
        Ok((done?, most?))
    })
}

/// Returns the bytes on the disk of all that a node keeps of images: its repository, its cache, and what it has of swarms. A file of
/// several names counts once.
fn kept_bytes(home: &Path) -> anyhow::Result<u64> {
    let home = Home::at(home);
    let mut folders = vec![home.repo(), home.cache(), home.swarm()];
    let (mut bytes, mut seen) = (0, HashSet::new());
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder);
        for entry in entries.with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let about = match entry.metadata() {
                // temporary files come and go
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                about => about?,
            };
            if about.is_dir() {
                folders.push(entry.path());
            } else if seen.insert((about.dev(), about.ino())) {
                bytes += about.blocks() * BLOCK_BYTES;
            }
        }
    }
    Ok(bytes)
}

/// Runs a machine once, lets it do what a recorded one did, and stops it.
fn once(node: &Node, request: &RunRequest, run: &Run) -> anyhow::Result<()> {
    node.run(request, |_| {})?;
    play(&disk_of(node), run)?;
    let now = StopRequest {
        now: true,
        timeout_s: None,
    };
    node.client.stop(MACHINE, &now)?;
    Ok(())
}

/// Does what the documents advise before an image is published for many hosts: runs it some times where it was made, and lays its packs
/// out by what the machines touched.
fn lay_out(origin: &Node, script: &Script) -> anyhow::Result<()> {
    for (number, run) in script.runs[..LEARNT].iter().enumerate() {
        eprintln!(
            "swarm-real: run {} before the image is laid out",
            number + 1
        );
        let request = RunRequest {
            image: IMAGE.into(),
            name: Some(MACHINE.into()),
            wait: Wait::None,
            ..RunRequest::default()
        };
        once(origin, &request, run)?;
        origin.remove(MACHINE)?;
    }
    let request = OptimizeRequest {
        image: IMAGE.into(),
        ..OptimizeRequest::default()
    };
    origin.client.optimize(&request)?.finish(|_| {})?;
    Ok(())
}

/// What one host tells.
struct Told {
    took_s: f64,
    started_s: f64,
    waited_s: f64,
    cpu_s: f64,
    memory_mb: f64,
}

fn disk_of(node: &Node) -> PathBuf {
    let mount = Home::at(&node.home).mountpoint();
    mount.join("machines").join(MACHINE).join("disk0")
}
