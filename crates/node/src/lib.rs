//! The node: runs machines on one host and keeps their images, chunks and disks.
//!
//! One process owns a state directory ([`Home`](floe_api::paths::Home)): the repository, the cache, the mount and the machines
//! in it. It may die at any time. The QEMU processes survive it: they map files of a mount whose descriptors a supervisor
//! process holds, and the next node takes over mount and machines (`adopt`). Each machine is described by its [`record`] on the disk, which is all
//! that the next node needs.
//!
//! A node is its services, in the crates below this one (ARCHITECTURE.md, "The node's services"); [`Node`] lists them in the order in
//! which they may call one another. Here is what needs all of them, and the door:
//!
//! ```text
//! guest      what programs in guests ask for, and what they are told
//! adopt      what an earlier node left
//! doctor     what is wrong with the host
//! serve      putting the services together
//! rest  web  answering
//! ```
//! Calls block, and each runs on a thread; tokio is used only at the socket.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

mod adopt;
pub mod doctor;
mod guest;
pub mod helpers;
mod rest;
mod serve;
mod web;

use floe_api::{
    API_VERSION, ClusterChange, ClusterLeave, MachineInfo, NodeInfo, Outcome, PageInfo,
    PruneReport, PruneRequest, PushRequest,
};
use floe_front::telemetry;
pub use floe_ground::error::NodeError;
use floe_ground::error::{not_found, refused};
pub use floe_ground::names::{MACHINE_NAME_MAX, MachineName, NameError};
pub use floe_ground::options::{
    BLANK_BYTES, CACHE_BUDGET_DEFAULT, EMULATOR_CACHE_MIB_DEFAULT, GUEST_CLONES_DEFAULT,
    IO_PAUSE_S_DEFAULT, NodeOptions, STANDBY_BYTES, SWARM_UPLOAD_MIN, StandbyOptions, SwarmOptions,
    SwarmPolicy, WEB_LISTEN_DEFAULT, WebOptions,
};
pub use floe_ground::{error, pays, plan, report};
pub use floe_inventory::host;
pub use floe_inventory::inventory::record;
pub use floe_inventory::resources::control_groups;
pub use floe_library::images::{installed_agent, sources};
use floe_machine::Accel;
pub use floe_machines::machines::left::running_in;
pub use floe_transfer as transfer;
pub use rest::openapi_json;

pub use serve::{NodeHandle, serve};
use std::sync::Arc;

/// A running node: its services. Each owns its state and may call the services above it in this list, to which it has
/// handles. It reaches those below it only through what they have registered with it (`images::ImageUser`,
/// `machines::Kin`).
pub struct Node {
    pub(crate) core: Arc<floe_inventory::core::Core>,
    /// The cluster that this node is a member of, if any.
    pub(crate) cluster: Arc<floe_hosts::cluster::Cluster>,
    /// Networks that connect the machines of a family (a parent and its clones).
    pub(crate) networks: Arc<floe_inventory::network::Networks>,
    pub(crate) images: Arc<floe_library::images::Images>,
    pub(crate) views: Arc<floe_library::views::Views>,
    pub(crate) inventory: Arc<floe_inventory::inventory::Inventory>,
    /// Where vCPUs run.
    pub(crate) vcpus: Arc<floe_machines::vcpus::Vcpus>,
    pub(crate) traces: Arc<floe_library::traces::Traces>,
    /// Takes part in swarms of images.
    pub(crate) swarms: Arc<floe_exchange::Swarms>,
    /// What agents in guests do for users and for the node.
    pub(crate) agents: Arc<floe_machines::agents::Agents>,
    pub(crate) machines: Arc<floe_machines::machines::Machines>,
    /// Makes machines small, and gives them back what was taken from them.
    pub(crate) shrinks: Arc<floe_machines::shrink::Shrinks>,
    /// Brings machines to other sizes.
    pub(crate) resizes: Arc<floe_machines::resize::Resizes>,
    /// Has guests give back what they do not use of their disks.
    pub(crate) trims: Arc<floe_machines::trim::Trims>,
    /// Makes machines independent of where their images came from.
    pub(crate) independence: Arc<floe_park::independence::Independence>,
    pub(crate) runs: Arc<floe_machines::run::Runs>,
    pub(crate) captures: Arc<floe_machines::capture::Captures>,
    pub(crate) forks: Arc<floe_fork::Forks>,
    /// Machines that stand still in memory.
    pub(crate) pool: Arc<floe_pool::pool::Pool>,
    /// Activates machines of several substrates together.
    pub(crate) ensembles: Arc<floe_pool::ensemble::Ensembles>,
    /// Parks machines and wakes them.
    pub(crate) parks: Arc<floe_park::park::Parks>,
    /// Keeps what users do at machines until their guests have got it.
    pub(crate) inputs: Arc<floe_inputs::Inputs>,
    /// Moves machines to other nodes of the cluster, and takes theirs.
    pub(crate) moves: Arc<floe_moves::Moves>,
    /// Listens to programs in guests until the node ends.
    pub(crate) guests: Arc<guest::Guests>,
    /// Takes over the machines of an earlier node until this node ends.
    pub(crate) adoption: Arc<adopt::Adoption>,
}

/// Operations that concern several services.
impl Node {
    /// Returns the node's version and paths, and how many machines and images it has.
    pub fn info(&self) -> Result<NodeInfo, NodeError> {
        let core = &self.core;
        let accel_reason = match &core.accel {
            Accel::Kvm => None,
            Accel::Tcg { reason } => Some(reason.clone()),
        };
        Ok(NodeInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            api: API_VERSION,
            pid: std::process::id(),
            home: core.home.root().display().to_string(),
            mountpoint: core.options.mountpoint.display().to_string(),
            accel: core.accel.name().into(),
            accel_reason,
            machines: self.inventory.len() as u64,
            images: self.images.repo.list()?.len() as u64,
            standby: self.machines.standby_len() as u64,
            blanks: self.machines.blanks_len() as u64,
            uptime_s: core.started.elapsed().as_secs(),
            took_over: core.took_over,
        })
    }

    /// Returns the addresses of the web page; an error if the node was started without one.
    pub fn page(&self) -> Result<PageInfo, NodeError> {
        let page = self.core.page.as_ref().ok_or_else(|| {
            not_found(
                "this node shows no page",
                "start it with --web 127.0.0.1:7070",
            )
        })?;
        Ok(PageInfo {
            url: page.url(),
            login_url: page.login_url(),
        })
    }

    /// Gives a machine another name.
    pub(crate) fn rename_machine(&self, name: &str, to: &str) -> Result<MachineInfo, NodeError> {
        self.machines.rename_machine(name, to)
    }

    /// Returns whose disk requests go first, and how they fare.
    pub(crate) fn io(&self) -> Result<floe_api::IoReport, NodeError> {
        floe_library::io_report::report(&self.core, &self.images, &self.inventory)
    }

    /// Sends an image to another place, and gives it from here to others if that is asked for.
    pub(crate) fn push(
        &self,
        request: &floe_ground::caller::Visible<PushRequest>,
        report: &mut floe_ground::report::Report,
    ) -> Result<Outcome, NodeError> {
        self.swarms.check_seed(request)?;
        let outcome = self.images.push(request, report)?;
        if let (true, Some(image)) = (request.seed, &outcome.image) {
            self.swarms.seed_pushed(&image.id, request)?;
            report.stage("seed")?;
        }
        Ok(outcome)
    }

    /// Removes what nobody uses, or only returns what that is.
    pub(crate) fn prune(&self, request: &PruneRequest) -> Result<PruneReport, NodeError> {
        let pruning = floe_machines::prune::Pruning {
            core: &self.core,
            images: &self.images,
            inventory: &self.inventory,
            machines: &self.machines,
        };
        pruning.prune(request)
    }

    /// Leaves the cluster, unless clones on other members or on this node still depend on it and the request is not forced.
    pub(crate) fn leave_cluster(&self, request: &ClusterLeave) -> Result<ClusterChange, NodeError> {
        let needed = || self.cluster.own_address().is_some() && self.forks.needs_members();
        if !request.force && needed() {
            return Err(refused(
                "clones read from other members, or run there",
                "wait until they are settled or end them (floe family, floe kill), or leave with --force",
            ));
        }
        self.cluster.leave(request.force)
    }

    /// Brings the metrics up to date. Waits for the swarms to say how they are.
    pub(crate) fn record_metrics(&self) {
        let cache = self.images.cache.stats();
        metrics::gauge!(telemetry::NODE_MACHINES).set(self.inventory.len() as f64);
        metrics::gauge!(telemetry::NODE_STANDBY)
            .set((self.machines.standby_len() + self.machines.blanks_len()) as f64);
        metrics::gauge!(telemetry::NODE_CACHE_BYTES).set(cache.bytes as f64);
        metrics::counter!(telemetry::NODE_CACHE_HITS).absolute(cache.hits);
        metrics::counter!(telemetry::NODE_CACHE_MISSES).absolute(cache.misses);
        self.swarms.record_metrics();
        // while the node ends there is no mount any more
        if let Ok(stats) = self.images.with_mount(|mount| Ok(mount.stats())) {
            metrics::counter!(telemetry::NODE_FAULTS).absolute(stats.region_reads);
            metrics::counter!(telemetry::NODE_DISK_READS).absolute(stats.disk_reads);
            metrics::counter!(telemetry::NODE_DISK_WRITES).absolute(stats.disk_writes);
            metrics::counter!(telemetry::NODE_WAITS).absolute(stats.waits);
            metrics::counter!(telemetry::NODE_WAIT_SECONDS).absolute(stats.wait_us / 1_000_000);
            metrics::counter!(telemetry::NODE_IO_ERRORS).absolute(stats.errors);
        }
    }
}
