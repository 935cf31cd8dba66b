//! The node: runs machines on one host and keeps their images, chunks and disks.
//!
//! One process owns a state directory ([`Home`]): the repository, the cache, the mount and the machines in it. It may die at
//! any time. QEMU processes are not its children in any sense that matters: they map files of a mount whose descriptors a
//! supervisor holds, and the next node takes mount and machines over (`adopt`). What a machine is stands in its
//! [`record`]; nothing else is needed to go on.
//!
//! A `run` goes `sources` (which image, from where) -> `plan` (what to do with it) -> `run` (mount, QEMU, state, wait);
//! the interface is in `rest`. Calls block and run on threads; tokio is only at the socket.

mod address;
mod adopt;
mod buffering;
mod capture;
mod cluster;
mod disk_content;
mod disk_extent;
mod disk_format;
mod disk_import;
pub mod doctor;
pub mod error;
mod files;
mod fork;
mod guest;
pub mod helpers;
pub mod host;
mod images;
mod launch;
mod lifecycle;
mod logs;
mod machines;
mod models;
mod names;
mod network;
mod optimize;
mod options;
mod outbox;
mod placement;
pub mod plan;
mod qemu_img;
pub mod record;
mod rehearse;
pub mod report;
mod reserve;
mod resources;
mod rest;
mod restore;
mod room;
mod run;
mod serve;
pub mod sources;
mod standby;
mod starts;
mod stopped;
mod thumbnail;
mod traces;
pub mod transfer;
mod transfers;
mod unpack;
mod uploads;
mod views;
mod wait;
mod web;

pub use error::NodeError;
pub use names::{MACHINE_NAME_MAX, MachineName, NameError};
pub use options::{
    CACHE_BUDGET_DEFAULT, EMULATOR_CACHE_MIB_DEFAULT, GUEST_CLONES_DEFAULT, NodeOptions,
    STANDBY_BYTES, StandbyOptions, WEB_LISTEN_DEFAULT, WebOptions,
};
pub use resources::control_groups;
pub use rest::openapi_json;
pub use serve::{NodeHandle, serve};

use crate::transfer::Cancel;
use error::failed;
use floe_api::paths::Home;
use floe_api::{API_VERSION, Happened, NodeEvent, NodeInfo};
use floe_front::page::guard::Guard;
use floe_front::telemetry;
use floe_image::{Hash, Manifest};
use floe_machine::Accel;
use floe_mount::{ImageHandle, ImageSpec, Keeper, Mount};
use floe_source::Fetcher;
use floe_store::{Cache, Repository};
use machines::Machines;
use parking_lot::{Mutex, RwLock};
use sources::Sources;
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::{broadcast, watch};

/// Events that a slow listener may lag behind before it loses some.
const EVENTS_KEPT: usize = 1024;

/// A node at work. All calls of the interface are methods, each in the file of its subject.
pub struct Node {
    pub(crate) options: NodeOptions,
    pub(crate) home: Home,
    pub(crate) repo: Repository,
    pub(crate) cache: Arc<Cache>,
    pub(crate) sources: Sources,
    /// `None` once the node is on its way out.
    mount: RwLock<Option<Mount>>,
    /// What outlives this process.
    pub(crate) keeper: Keeper,
    pub(crate) machines: Machines,
    /// Room on the disk for what must be written when it is full.
    pub(crate) reserve: Arc<reserve::Reserve>,
    /// Who was promised how much of this host.
    pub(crate) resources: resources::Resources,
    pub(crate) standby: standby::Pool,
    pub(crate) starts: starts::Starts,
    /// Forks that are not stored yet.
    pub(crate) layers: fork::Layers,
    /// Forks that have clones.
    pub(crate) forks: fork::Forks,
    pub(crate) guests: guest::Guests,
    /// The cluster that it is in, if it is in one.
    pub(crate) cluster: Arc<cluster::Cluster>,
    /// Networks of families.
    pub(crate) networks: network::Networks,
    /// What forks were granted by placement.
    pub(crate) tickets: placement::Tickets,
    pub(crate) traces: Arc<traces::Traces>,
    /// Bytes of the compressed images that machines run, where they are known.
    image_bytes: Mutex<HashMap<Hash, u64>>,
    /// What the planner wishes of machines.
    wishes: mpsc::Sender<buffering::Wish>,
    views: Mutex<Vec<views::View>>,
    /// Read: something is being stored. Write: nothing is, so garbage is really garbage.
    pub(crate) storing: RwLock<()>,
    pub(crate) accel: Accel,
    took_over: bool,
    page: Option<Arc<Guard>>,
    started: Instant,
    events: broadcast::Sender<NodeEvent>,
    stop: watch::Sender<Option<Stop>>,
    jobs: Mutex<HashMap<u64, Cancel>>,
    next_job: AtomicU64,
}

/// How a node is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// Power the machines down too.
    pub machines: bool,
}

impl Node {
    /// What the node is and runs.
    pub fn info(&self) -> Result<NodeInfo, NodeError> {
        let accel_reason = match &self.accel {
            Accel::Kvm => None,
            Accel::Tcg { reason } => Some(reason.clone()),
        };
        Ok(NodeInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            api: API_VERSION,
            pid: std::process::id(),
            home: self.home.root().display().to_string(),
            mountpoint: self.options.mountpoint.display().to_string(),
            accel: self.accel.name().into(),
            accel_reason,
            machines: self.machines.len() as u64,
            images: self.repo.list()?.len() as u64,
            standby: self.standby.len() as u64,
            uptime_s: self.started.elapsed().as_secs(),
            took_over: self.took_over,
        })
    }

    /// Where regions appear as files.
    pub fn mountpoint(&self) -> PathBuf {
        self.options.mountpoint.clone()
    }

    /// Does something with the mount.
    pub(crate) fn with_mount<T>(
        &self,
        call: impl FnOnce(&Mount) -> Result<T, floe_mount::MountError>,
    ) -> Result<T, NodeError> {
        match &*self.mount.read() {
            Some(mount) => Ok(call(mount)?),
            None => Err(failed("the node is stopping", "start it again")),
        }
    }

    /// Shows an image on the mount.
    pub(crate) fn show_image(
        &self,
        id: Hash,
        manifest: Manifest,
        fetcher: Arc<Fetcher>,
    ) -> Result<ImageHandle, NodeError> {
        let cache = self.cache.clone();
        let image = self.with_mount(|mount| {
            mount.add_image(ImageSpec {
                id,
                manifest,
                fetcher,
                cache,
            })
        })?;
        let wishes = self.wishes.clone();
        image.on_buffering(move |said| {
            // the node is on its way out if nobody listens
            let _ = wishes.send(buffering::Wish::of(id, &said));
        });
        Ok(image)
    }

    /// Takes an image off the mount if nothing uses it any more, a QEMU that waits for its next run included.
    pub(crate) fn forget_image(&self, id: &Hash) {
        if self.user_of(id).is_none() && !self.standby.is_for(id) {
            let _ = self.wishes.send(buffering::Wish::over(*id));
            // an image that was never shown is no error
            let _ = self.with_mount(|mount| mount.remove_image(id));
        }
    }

    /// The machine, view or fork that uses an image.
    pub(crate) fn user_of(&self, id: &Hash) -> Option<String> {
        let view = |view: &views::View| {
            (view.image == *id).then(|| format!("the mount on {}", view.path.display()))
        };
        self.machines
            .user_of(id)
            .or_else(|| self.views.lock().iter().find_map(view))
            .or_else(|| self.forks.user_of(id))
            .or_else(|| self.layers.user_of(id))
    }

    /// Images that garbage collection must keep.
    pub(crate) fn images_in_use(&self) -> Vec<Hash> {
        let mut images = self.machines.images();
        images.extend(self.views.lock().iter().map(|view| view.image));
        images.extend(self.layers.bases());
        images
    }

    /// Tells everybody who listens.
    pub(crate) fn tell(&self, kind: Happened, subject: &str, detail: impl Into<String>) {
        let event = event(kind, subject, detail.into());
        tracing::info!(%kind, subject, detail = event.detail);
        let _ = self.events.send(event); // nobody may be listening
    }

    /// Events from now on.
    pub(crate) fn listen(&self) -> broadcast::Receiver<NodeEvent> {
        self.events.subscribe()
    }

    /// Asks the node to end; [`NodeHandle::wait`] returns then.
    pub(crate) fn ask_to_stop(&self, machines: bool) {
        self.stop.send_replace(Some(Stop { machines }));
    }

    /// Enters a long call into the list of those that end with the node.
    pub(crate) fn job(self: &Arc<Self>, cancel: Cancel) -> Job {
        let id = self.next_job.fetch_add(1, Ordering::Relaxed);
        self.jobs.lock().insert(id, cancel);
        Job {
            node: self.clone(),
            id,
        }
    }

    /// Asks all long calls to end; how many there are.
    fn cancel_jobs(&self) -> usize {
        let jobs = self.jobs.lock();
        jobs.values().for_each(Cancel::cancel);
        jobs.len()
    }

    /// Brings the gauges up to date.
    pub(crate) fn record_metrics(&self) {
        let cache = self.cache.stats();
        metrics::gauge!(telemetry::NODE_MACHINES).set(self.machines.len() as f64);
        metrics::gauge!(telemetry::NODE_STANDBY).set(self.standby.len() as f64);
        metrics::gauge!(telemetry::NODE_CACHE_BYTES).set(cache.bytes as f64);
        metrics::counter!(telemetry::NODE_CACHE_HITS).absolute(cache.hits);
        metrics::counter!(telemetry::NODE_CACHE_MISSES).absolute(cache.misses);
        if let Some(mount) = &*self.mount.read() {
            let stats = mount.stats();
            metrics::counter!(telemetry::NODE_FAULTS).absolute(stats.region_reads);
            metrics::counter!(telemetry::NODE_DISK_READS).absolute(stats.disk_reads);
            metrics::counter!(telemetry::NODE_DISK_WRITES).absolute(stats.disk_writes);
            metrics::counter!(telemetry::NODE_WAITS).absolute(stats.waits);
            metrics::counter!(telemetry::NODE_WAIT_SECONDS).absolute(stats.wait_us / 1_000_000);
            metrics::counter!(telemetry::NODE_IO_ERRORS).absolute(stats.errors);
        }
    }
}

/// A long call under way; dropping it strikes it off the list.
pub(crate) struct Job {
    node: Arc<Node>,
    id: u64,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.node.jobs.lock().remove(&self.id);
    }
}

/// An event of this moment.
pub(crate) fn event(kind: Happened, subject: &str, detail: String) -> NodeEvent {
    let time_unix_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis() as u64;
    NodeEvent {
        time_unix_ms,
        kind,
        subject: subject.into(),
        detail,
    }
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
