//! Machines of this host: their list, their lives from a start to their removal, and the QEMUs that wait for the next.
//!
//! A machine is an [`Entry`](crate::inventory::Entry) of the [`Inventory`]. What it may do next is decided in `inventory::lifecycle`; here it is done:
//! `launch` (cold starts), `restore` and `standby` (from a running state), `control` (stop, remove, notice an end),
//! `buffering` and `stopped` (machines that stand still).
//!
//! Locks: those of the inventory; the pool's of QEMUs that wait is held for moments.

mod buffering;
mod control;
mod ends;
pub(crate) mod launch;
mod limits;
mod networks;
mod reserving;
pub(crate) mod restore;
mod room;
pub(crate) mod standby;
mod stopped;

pub(crate) use control::end_vm;
pub(crate) use standby::DIR as STANDBY_DIR;

use crate::{
    MachineName,
    core::Core,
    error::{NodeError, at},
    images::{ImageUser, Images},
    inventory::Inventory,
    network::Networks,
    resources::Resources,
    traces::Traces,
};
use floe_image::Hash;
use std::sync::{Arc, OnceLock, Weak, mpsc};

/// Whoever keeps account of machines elsewhere: forks, whose clones they are.
pub(crate) trait Kin: Send + Sync {
    /// A machine has been removed, with all that was its own.
    fn removed(&self, name: &str) -> Result<(), NodeError>;
}

/// See the module.
pub(crate) struct Machines {
    core: Arc<Core>,
    images: Arc<Images>,
    traces: Arc<Traces>,
    networks: Arc<Networks>,
    inventory: Arc<Inventory>,
    /// Who was promised how much of this host.
    pub resources: Resources,
    standby: standby::Pool,
    ends: Arc<ends::Ends>,
    /// Hears of each QEMU that begins: its guest may have something to say.
    arrivals: mpsc::Sender<MachineName>,
    kin: OnceLock<Weak<dyn Kin>>,
}

impl Machines {
    /// Those of an inventory; `arrivals` hears of each QEMU that begins.
    pub fn new(
        core: Arc<Core>,
        images: Arc<Images>,
        traces: Arc<Traces>,
        networks: Arc<Networks>,
        inventory: Arc<Inventory>,
        arrivals: mpsc::Sender<MachineName>,
    ) -> Result<Arc<Machines>, NodeError> {
        let ends = ends::Ends::new().map_err(at("cannot ask the kernel which QEMUs end"))?;
        let resources = Resources::of_this_host(&core.home, core.options.memory_bytes_max);
        let machines = Arc::new(Machines {
            core,
            images,
            traces,
            networks,
            inventory,
            resources,
            standby: standby::Pool::default(),
            ends: Arc::new(ends),
            arrivals,
            kin: OnceLock::new(),
        });
        let user: Weak<Machines> = Arc::downgrade(&machines);
        machines.images.ask_too(user);
        Ok(machines)
    }

    /// Says who is told of machines that have been removed; only the first one counts.
    pub fn tell_kin(&self, kin: Weak<dyn Kin>) {
        let _ = self.kin.set(kin);
    }

    /// Has somebody listen to the guest of a QEMU that runs now.
    pub fn attend(&self, name: &MachineName) {
        let _ = self.arrivals.send(name.clone()); // nobody listens while the node ends
    }

    /// How many QEMUs wait for a run.
    pub fn standby_len(&self) -> usize {
        self.standby.len()
    }
}

impl ImageUser for Machines {
    fn user_of(&self, image: &Hash) -> Option<String> {
        self.inventory.user_of(image)
    }

    fn images(&self) -> Vec<Hash> {
        self.inventory.images()
    }

    fn keeps_shown(&self, image: &Hash) -> bool {
        self.standby.is_for(image)
    }

    fn removed(&self, image: &Hash) {
        self.drop_standby(image);
    }
}
