//! A device and a strong host with a slow link between them, and a machine that goes to and fro: for `offload` and `advise`.
//!
//! The device is what a quota leaves of one core to its node and to its QEMU together. The image of the machine, with the memory of its booted
//! guest, is on both sides.
use anyhow::Context as _;
use floe_api::client::ClientError;
use floe_api::{
    ClusterInit, ClusterInvite, ClusterJoin, ErrorCode, MoveReport, MoveRequest, PullRequest,
    PushRequest, RecallRequest, RunRequest, SyncRequest,
};
use floe_contention::io::{CpuCap, DEVICE_PERCENT};
use floe_testbed::guest::Guest;
use floe_testbed::link::{Bridge, Rate, Shape, Trace};
use floe_testbed::live::Node;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The machine.
pub const MACHINE: &str = "phone";
/// Longest time for a job, on the device.
pub const JOB_MAX: Duration = Duration::from_secs(3600);
/// Longest time until a node has forgotten the trip before.
const CALM_MAX: Duration = Duration::from_secs(120);
/// Port of the nodes for each other.
const PORT: u16 = 7071;
/// The guest's image, booted by nobody.
const GUEST: &str = "guest";
/// The image of the booted guest.
const IMAGE: &str = "booted";
/// The strong host's name.
const CLOUD: &str = "cloud";
/// How often it is looked whether somebody answers.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long an answer may take that is asked for while the machine moves.
const ASK_MAX: Duration = Duration::from_secs(1);

/// A link.
#[derive(Clone)]
pub struct Link {
    /// What is added to the names of its figures.
    pub suffix: &'static str,
    /// How people know it.
    pub name: &'static str,
    /// Towards the strong host.
    up: Rate,
    /// Back.
    down: Rate,
    /// Seconds of a round trip.
    pub round_trip_s: f64,
}

impl Link {
    /// Returns the paper's, which is the design's slow link, and a better one.
    pub fn fixed() -> [Link; 2] {
        let link = |suffix, name, bits_s, round_trip_s| Link {
            suffix,
            name,
            up: Rate::BitsPerSecond(bits_s),
            down: Rate::BitsPerSecond(bits_s),
            round_trip_s,
        };
        [
            link("", "7.2 Mbit/s, 120 ms", 7_200_000, 0.12),
            link("_50", "50 Mbit/s, 30 ms", 50_000_000, 0.03),
        ]
    }

    /// Returns a recorded LTE link, which other experiments use, too.
    pub fn lte() -> anyhow::Result<Link> {
        let rate = |file| anyhow::Ok(Rate::Recorded(Arc::new(Trace::recorded(file)?)));
        Ok(Link {
            suffix: "_lte",
            name: "recorded LTE, 60 ms",
            up: rate("Verizon-LTE-short.up")?,
            down: rate("Verizon-LTE-short.down")?,
            round_trip_s: 0.06,
        })
    }

    fn shape(&self, rate: &Rate) -> Shape {
        Shape {
            rate: rate.clone(),
            delay_ns: (self.round_trip_s * 1e9 / 2.0) as u64,
            ..Shape::default()
        }
    }

    /// Joins two hosts by it: the near one is the device.
    pub fn bridge(&self) -> anyhow::Result<Bridge> {
        Ok(Bridge::new(self.shape(&self.up), self.shape(&self.down))?)
    }

    /// Bytes a second towards the strong host; on average, if it was recorded.
    pub fn up_bytes_s(&self) -> f64 {
        bytes_s(&self.up)
    }

    /// The same back.
    pub fn down_bytes_s(&self) -> f64 {
        bytes_s(&self.down)
    }
}

fn bytes_s(rate: &Rate) -> f64 {
    match rate {
        Rate::Unlimited => f64::INFINITY,
        Rate::BitsPerSecond(bits) => *bits as f64 / 8.0,
        Rate::Recorded(trace) => trace.mean_bits_per_s() / 8.0,
    }
}

/// Both hosts and the link.
pub struct Site {
    /// The device.
    pub device: Node,
    /// The strong host.
    pub cloud: Node,
    /// The device's quota; its processes have ended before.
    cap: CpuCap,
    /// Dropped last, because processes at its ends still use it.
    bridge: Bridge,
}

impl Site {
    /// Has `guest` go on on the device, with one CPU and so much memory, from an image of when it had booted: both sides have that, as those
    /// who use images do.
    pub fn new(scratch: &Path, guest: &Guest, memory: u64, link: &Link) -> anyhow::Result<Site> {
        Site::with(scratch, link, |device, cloud| {
            device.import_with(guest, GUEST, memory, 1)?;
            device.boot(GUEST, "origin")?;
            device.capture("origin", IMAGE, true, 0)?;
            copy(device, cloud, &scratch.join("between"))?;
            let request = RunRequest {
                image: IMAGE.into(),
                name: Some(MACHINE.into()),
                ..RunRequest::default()
            };
            device.run(&request, |_| {})?;
            device.ask(MACHINE, JOB_MAX).map(drop)
        })
    }

    /// Boots `guest` on the device: both sides have its disk, and the strong host nothing of its memory.
    pub fn booted(scratch: &Path, guest: &Guest, memory: u64, link: &Link) -> anyhow::Result<Site> {
        Site::with(scratch, link, |device, cloud| {
            for node in [device, cloud] {
                node.import_with(guest, GUEST, memory, 1)?;
            }
            device.boot(GUEST, MACHINE)
        })
    }

    /// Starts both hosts, which know each other; `starts` has the machine run on the first.
    fn with(
        scratch: &Path,
        link: &Link,
        starts: impl FnOnce(&Node, &Node) -> anyhow::Result<()>,
    ) -> anyhow::Result<Site> {
        std::fs::create_dir_all(scratch)?;
        let bridge = link.bridge()?;
        let device = Node::start(Some(&bridge.ends.near), &scratch.join("device"), false)?;
        let cloud = Node::start(Some(&bridge.ends.far), &scratch.join(CLOUD), false)?;
        pair(&device, &cloud)?;
        starts(&device, &cloud)?;
        let cap = CpuCap::new(scratch, device.process()?, DEVICE_PERCENT)?;
        let site = Site {
            device,
            cloud,
            cap,
            bridge,
        };
        site.bound()?;
        Ok(site)
    }

    /// Puts the machine's QEMU under the device's quota.
    fn bound(&self) -> anyhow::Result<()> {
        let qemu = self.device.machine(MACHINE)?.pid;
        self.cap
            .add(qemu.context("the machine has no QEMU on the device")?)
    }

    /// Bytes on the link so far: towards the strong host, and back.
    pub fn wire(&self) -> (u64, u64) {
        let (up, down) = (self.bridge.up.read(), self.bridge.down.read());
        (up.bytes_delivered, down.bytes_delivered)
    }

    /// Lends the machine to the strong host.
    pub fn offload(&self) -> anyhow::Result<MoveReport> {
        let request = MoveRequest {
            to: Some(CLOUD.into()),
            lend: true,
            ..MoveRequest::default()
        };
        let until = Instant::now() + CALM_MAX;
        let once = || -> Result<_, ClientError> {
            let events = self.device.client.move_machine(MACHINE, &request)?;
            events.finish(|_| {})
        };
        loop {
            match once() {
                Ok(outcome) => return outcome.moved.context("the node told no result"),
                // the strong host has not forgotten the trip before
                Err(error) if error.to_api().code == ErrorCode::Busy && Instant::now() < until => {
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Lends the machine, and returns after how many seconds it answers on the strong host, and for how many its guest stood still until it
    /// ran there.
    pub fn answers_there(&self) -> anyhow::Result<(f64, f64)> {
        let began = Instant::now();
        let moved = self.offload()?;
        self.cloud.ask(MACHINE, JOB_MAX)?;
        Ok((began.elapsed().as_secs_f64(), moved.down_ms / 1e3))
    }

    /// Has it come back.
    pub fn recall(&self) -> anyhow::Result<()> {
        let request = RecallRequest::default();
        let events = self.device.client.recall(MACHINE, &request)?;
        events.finish(|_| {})?;
        self.bound()
    }

    /// Has the side that does not run it know what it is.
    pub fn sync(&self) -> anyhow::Result<()> {
        let request = SyncRequest {
            to: Some(CLOUD.into()),
            ..SyncRequest::default()
        };
        let events = self.device.client.sync(MACHINE, &request)?;
        events.finish(|_| {})?;
        Ok(())
    }

    /// Does a job on the strong host: from the user's command to the answer back on the device.
    pub fn trip(&self, job: &str) -> anyhow::Result<Trip> {
        let (before, began) = (self.wire(), Instant::now());
        self.offload()?;
        let there = self.cloud.tell(MACHINE, job, JOB_MAX)?;
        self.recall()?;
        self.device.ask(MACHINE, JOB_MAX)?;
        let (after, took) = (self.wire(), began.elapsed());
        Ok(Trip {
            total_s: took.as_secs_f64(),
            job_s: there.as_secs_f64(),
            up_bytes: (after.0 - before.0) as f64,
            down_bytes: (after.1 - before.1) as f64,
        })
    }
}

/// A job on the strong host.
#[derive(Clone, Copy, Debug)]
pub struct Trip {
    /// From the command to the answer on the device.
    pub total_s: f64,
    /// The job alone.
    pub job_s: f64,
    /// Bytes on the link towards the strong host.
    pub up_bytes: f64,
    /// Bytes back.
    pub down_bytes: f64,
}

impl Trip {
    /// Returns how much work takes as long on the device as by such a trip, in seconds on the device, where this trip's job takes `here_s`;
    /// `None` if the strong host was no faster.
    pub fn break_even_s(&self, here_s: f64) -> Option<f64> {
        let speedup = here_s / self.job_s;
        let ways_s = self.total_s - self.job_s;
        (speedup > 1.0).then(|| ways_s * speedup / (speedup - 1.0))
    }
}

/// Copies the image of the booted guest to the other node through a directory, and not over the link.
fn copy(from: &Node, to: &Node, between: &Path) -> anyhow::Result<()> {
    let push = PushRequest {
        image: IMAGE.into(),
        to: between.display().to_string(),
        ..PushRequest::default()
    };
    from.client.push(&push)?.finish(|_| {})?;
    let pull = PullRequest {
        from: between.join(IMAGE).display().to_string(),
        name: None,
        token: None,
        ca: None,
        trust: true,
    };
    to.client.pull(&pull)?.finish(|_| {})?;
    Ok(())
}

/// Puts the two nodes into a cluster.
fn pair(device: &Node, cloud: &Node) -> anyhow::Result<()> {
    let at = |address: Ipv4Addr| Some(SocketAddr::from((address, PORT)));
    cloud.client.cluster_init(&ClusterInit {
        name: Some(CLOUD.into()),
        listen: at(Bridge::FAR),
        ..ClusterInit::default()
    })?;
    let invited = cloud.client.cluster_invite(&ClusterInvite::default())?;
    device.client.cluster_join(&ClusterJoin {
        url: invited.url,
        invitation: invited.invitation,
        name: Some("device".into()),
        listen: at(Bridge::NEAR),
    })?;
    Ok(())
}

/// Returns for how long nobody answers while `act` has the machine go from one node to the other, and how long `act` took.
pub fn down(
    from: &Node,
    to: &Node,
    act: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(Duration, Duration)> {
    let began = Instant::now();
    // milliseconds from then on; 0: not yet
    let (last, first) = (AtomicU64::new(1), AtomicU64::new(0));
    let gives_up = AtomicBool::new(false);
    let now = || (began.elapsed().as_millis() as u64).max(1);
    let over = || gives_up.load(Ordering::SeqCst) || first.load(Ordering::SeqCst) > 0;
    let acted = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over() {
                if from.ask(MACHINE, ASK_MAX).is_ok() {
                    last.store(now(), Ordering::SeqCst);
                }
                std::thread::sleep(LOOK_EVERY);
            }
        });
        scope.spawn(|| {
            while !over() {
                if to.ask(MACHINE, ASK_MAX).is_ok() {
                    first.store(now(), Ordering::SeqCst);
                }
                std::thread::sleep(LOOK_EVERY);
            }
        });
        let done = act().map(|()| began.elapsed());
        if done.is_ok() {
            let until = Instant::now() + CALM_MAX;
            while first.load(Ordering::SeqCst) == 0 && Instant::now() < until {
                std::thread::sleep(LOOK_EVERY);
            }
        }
        gives_up.store(true, Ordering::SeqCst);
        done
    });
    let took = acted?;
    let (last, first) = (last.into_inner(), first.into_inner());
    anyhow::ensure!(first > 0, "the machine never answered where it went");
    Ok((Duration::from_millis(first.saturating_sub(last)), took))
}
