//! Two hosts with a slow link between them: at the far end a hub with two images of one desktop and with traces of
//! earlier users' machines, at the near end users.
use super::screen::{Screen, until_usable};
use anyhow::{Context as _, bail};
use floe_api::{
    Outcome, REHEARSE_S_DEFAULT, RunRequest, StopRequest, StreamInfo, TraceRequest, TracesRequest,
    Wait,
};
use floe_image::{Hash, TraceReader};
use floe_planner::{Model, ZeroTrace};
use floe_testbed::guest::Guest;
use floe_testbed::link::{Bridge, Shape};
use floe_testbed::live::{Hub, Node};
use floe_testbed::workloads::{Session, Stage, use_desktop};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const HUB_PORT: u16 = 7070;
/// The machine's name, for all users.
const MACHINE: &str = "desk";
/// The name of the second image: the first one's desktop after some use.
const SECOND: &str = "lab-second";
/// Longest time until a desktop is usable.
const USABLE_MAX: Duration = Duration::from_secs(600);
/// Longest time until the hub has a trace, or a model.
const HUB_MAX: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The first seed of earlier users; users who are measured have other seeds.
const TEACHER_SEEDS: u64 = 1000;

/// An image on the hub.
pub struct Published {
    /// Its name on the hub.
    pub name: &'static str,
    /// Its id.
    pub id: Hash,
    /// Its size, compressed.
    pub stored_bytes: u64,
    screen: Screen,
}

/// The hosts, the link and the images. The fields are dropped in this order, because the processes use the link.
pub struct Site {
    origin: Node,
    hub: Hub,
    homes: PathBuf,
    /// The desktop.
    pub first: Published,
    /// The same after a little use.
    pub second: Published,
    /// The link.
    pub bridge: Bridge,
}

/// The result of a user's run.
pub struct Used {
    /// Time from the command until the screen looks as at the capture and reacts.
    pub usable: Duration,
    /// Time from the command until the guest's CPUs ran.
    pub started: Duration,
    /// The node's final figures.
    pub stream: StreamInfo,
    /// Bytes that came over the link.
    pub down_bytes: u64,
    /// What the machine touched, with waits removed.
    pub trace: ZeroTrace,
    /// Time that it waited for chunks, without pauses.
    pub waited: Duration,
    /// The model of earlier runs that its node had.
    pub model: Option<Arc<Model>>,
}

impl Used {
    /// Returns the seconds in which the machine did not run, including its start.
    pub fn wait_s(&self) -> f64 {
        (self.started + self.waited).as_secs_f64() + self.stream.paused_s
    }
}

impl Site {
    /// Makes the images, and lets this many users use the first one next to the hub.
    pub fn prepare(dir: &Path, guest: &Guest, shape: Shape, teachers: u64) -> anyhow::Result<Site> {
        let bridge = Bridge::new(shape.clone(), shape)?;
        let far = Some(&bridge.ends.far);
        let hub = Hub::start(far, &dir.join("hub"), Bridge::FAR, HUB_PORT)?;
        let origin = Node::start(far, &dir.join("origin"), false)?;
        Stage::Screen.prepare(&origin, guest)?;
        eprintln!("stream-real: publishing the desktop, and the same after some use");
        origin.run(&Stage::Screen.request(MACHINE), |_| {})?;
        let mut session = Session::attach(&origin, MACHINE, 0)?;
        session.wait(Duration::from_secs(2))?;
        let screen = Screen::of(&origin, MACHINE)?;
        let first = published(&origin, &hub, Stage::Screen.image(), screen)?;
        use_desktop(&mut session)?;
        origin.capture(MACHINE, SECOND, false, REHEARSE_S_DEFAULT)?;
        let screen = Screen::of(&origin, MACHINE)?;
        let second = published(&origin, &hub, SECOND, screen)?;
        origin.remove(MACHINE)?;
        let site = Site {
            origin,
            hub,
            homes: dir.to_path_buf(),
            first,
            second,
            bridge,
        };
        for teacher in 0..teachers {
            eprintln!("stream-real: earlier user {} of {teachers}", teacher + 1);
            // A node that fetches nothing ahead sees every touch.
            let home = site.homes.join("teacher");
            let node = Node::start_with(Some(&site.bridge.ends.far), &home, &["--demand-only"])?;
            site.use_image(&node, &site.first, TEACHER_SEEDS + teacher)?;
            drop(node);
            std::fs::remove_dir_all(&home)?;
        }
        Ok(site)
    }

    /// Returns the home of the node on which the images were made.
    pub fn origin(&self) -> &Path {
        &self.origin.home
    }

    /// Starts a node at the near end without any data.
    pub fn near(&self, name: &str) -> anyhow::Result<Node> {
        Node::start(Some(&self.bridge.ends.near), &self.homes.join(name), false)
    }

    /// Lets a user start an image from the hub, use it, and stop it. Returns when the hub has learnt from it.
    pub fn use_image(&self, node: &Node, image: &Published, seed: u64) -> anyhow::Result<Used> {
        let known = self.model_traces(&image.id)?;
        let before = self.bridge.down.read().bytes_delivered;
        let start = Instant::now();
        let request = RunRequest {
            image: self.hub.address(image.name),
            name: Some(MACHINE.into()),
            token: Some(self.hub.token.clone()),
            wait: Wait::None,
            ..RunRequest::default()
        };
        let outcome: Outcome = node.run(&request, |_| {})?;
        let mut session = Session::attach(node, MACHINE, seed)?;
        let usable = until_usable(node, MACHINE, &session, &image.screen, USABLE_MAX)?;
        use_desktop(&mut session)?;
        let stream = node.client.stream_info(MACHINE)?;
        let now = StopRequest {
            now: true,
            timeout_s: None,
        };
        node.client.stop(MACHINE, &now)?;
        let down_bytes = self.bridge.down.read().bytes_delivered - before;
        let (trace, waited) = own_trace(node, &image.id)?;
        let model = model_in(&node.home.join("models"), &image.id)?;
        node.remove(MACHINE)?;
        self.wait_for_model(&image.id, known)?;
        Ok(Used {
            usable: usable - start,
            started: Duration::from_secs_f64(outcome.total_ms / 1000.0),
            stream,
            down_bytes,
            trace,
            waited,
            model: model.map(Arc::new),
        })
    }

    /// Copies a whole image over the link.
    pub fn download(&self, name: &str, image: &Published) -> anyhow::Result<Duration> {
        self.near(name)?.download(image.name, &self.hub)
    }

    /// Returns the number of runs from which the hub has learnt.
    fn model_traces(&self, image: &Hash) -> anyhow::Result<u32> {
        model_traces(&self.homes.join("hub"), image)
    }

    fn wait_for_model(&self, image: &Hash, more_than: u32) -> anyhow::Result<()> {
        wait_for_model(&self.homes.join("hub"), image, more_than)
    }
}

/// Returns the number of runs of an image from which the hub with its data in `hub` has learnt.
pub(crate) fn model_traces(hub: &Path, image: &Hash) -> anyhow::Result<u32> {
    let folder = hub.join(format!("traces/{image}"));
    let mut most = 0;
    for owner in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        for file in std::fs::read_dir(owner.path())?.flatten() {
            if file.path().extension().is_some_and(|e| e == "model") {
                most = most.max(Model::decode(&std::fs::read(file.path())?)?.traces());
            }
        }
    }
    Ok(most)
}

/// Waits until the hub has learnt from more runs than this.
pub(crate) fn wait_for_model(hub: &Path, image: &Hash, more_than: u32) -> anyhow::Result<()> {
    wait_for("a model of the run at the hub", || {
        Ok((model_traces(hub, image)? > more_than).then_some(()))
    })
}

fn published(
    origin: &Node,
    hub: &Hub,
    name: &'static str,
    screen: Screen,
) -> anyhow::Result<Published> {
    origin.publish(name, hub)?;
    let image = origin.client.image(name)?.summary;
    Ok(Published {
        name,
        id: image.id.parse()?,
        stored_bytes: image.stored_bytes,
        screen,
    })
}

/// Calls `look` until it returns something.
fn wait_for<T>(what: &str, look: impl Fn() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let end = Instant::now() + HUB_MAX;
    loop {
        match look()? {
            Some(found) => return Ok(found),
            None if Instant::now() > end => bail!("{what} did not come within {HUB_MAX:?}"),
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// Returns the only trace that a node has of an image, and how long its machine waited.
pub(crate) fn own_trace(node: &Node, image: &Hash) -> anyhow::Result<(ZeroTrace, Duration)> {
    let of = TracesRequest {
        image: image.to_string(),
        ..TracesRequest::default()
    };
    let entry = wait_for("the run's trace", || {
        Ok(node.client.traces(&of)?.traces.into_iter().next())
    })?;
    let path = node.home.join(format!("{}.trace", image.short()));
    let request = TraceRequest {
        of,
        trace: entry.summary.hash.clone(),
        path: Some(path.display().to_string()),
        force: true,
    };
    node.client.export_trace(&request)?;
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let trace = ZeroTrace::from_reader(TraceReader::new(&bytes)?);
    Ok((trace, Duration::from_micros(entry.summary.wait_us)))
}

fn model_in(folder: &Path, image: &Hash) -> anyhow::Result<Option<Model>> {
    match std::fs::read(folder.join(format!("{image}.model"))) {
        Ok(bytes) => Ok(Some(Model::decode(&bytes)?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
