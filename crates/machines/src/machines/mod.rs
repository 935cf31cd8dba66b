//! The machines of this host: their lives from start to removal, and the QEMUs started ahead for the next run.
//!
//! A machine is an [`Entry`] of the [`Inventory`]. `inventory::lifecycle` decides what it may do
//! next; this module does it: `launch` (cold starts), `restore` and `standby` (from a running state), `control` (stop,
//! remove, notice an end), `consoles` (looking at guests, typing), `pausing`, `buffering`, `sources` and `stopped` (machines that stand
//! still).
//!
//! Locks: that of limits, then those of the inventory. Those of the standby QEMUs, of the keyboards, of the guards and of what
//! was seen on screens (`faces`) are held only briefly.

pub mod blanks;
mod buffering;
mod consoles;
mod control;
mod disks;
mod ends;
mod faces;
mod families;
pub mod launch;
pub mod left;
pub mod limits;
pub mod making;
mod networks;
pub mod own_disks;
mod pausing;
mod places;
mod renaming;
mod reserving;
pub mod restore;
mod room;
mod sizes;
mod sources;
pub mod standby;
mod stopped;
mod waiting;
mod watching;

pub use blanks::Maker;
pub use control::end_vm;
pub(crate) use disks::disk_called;
pub use launch::VM_DIR;
pub use places::{NewPlace, STANDBY_DIR, is_a_guests};
pub use room::WORK_BYTES;
pub use sizes::size_words;

use crate::screens::Screens;
use floe_ground::{
    error::{NodeError, at},
    guard::Guards,
    keyboard::Keyboards,
};
use floe_image::Hash;
use floe_inventory::{
    core::Core,
    inventory::{Entry, Inventory},
    network::Networks,
    resources::Resources,
};
use floe_library::{
    images::{ImageUser, Images},
    traces::Traces,
};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak, mpsc};

/// Somebody who also keeps a record of machines: the forks service, for clones.
pub trait Kin: Send + Sync {
    /// Called after a machine has been removed, with all its files.
    fn removed(&self, name: &str) -> Result<(), NodeError>;
    /// Whether a record tells of a machine by this name.
    fn knows(&self, name: &str) -> bool;
}

/// The service that starts, stops and watches machines.
pub struct Machines {
    core: Arc<Core>,
    images: Arc<Images>,
    traces: Arc<Traces>,
    networks: Arc<Networks>,
    inventory: Arc<Inventory>,
    /// How much of this host each machine has reserved.
    pub resources: Arc<Resources>,
    standby: standby::Standbys,
    blanks: blanks::Blanks,
    ends: Arc<ends::Ends>,
    keyboards: Keyboards,
    screens: Screens,
    faces: faces::Faces,
    /// Who stops the QEMUs of machines whose lease is over.
    pub guards: Guards,
    /// Held while the limits of a household are changed.
    limiting: Mutex<()>,
    /// Sends each machine whose QEMU starts running to whoever listens to its guest.
    arrivals: mpsc::Sender<Arc<Entry>>,
    kin: OnceLock<Weak<dyn Kin>>,
}

impl Machines {
    /// Creates the service, over what traces need too. `arrivals` gets each machine whose QEMU starts running.
    pub fn new(
        traces: Arc<Traces>,
        networks: Arc<Networks>,
        resources: Arc<Resources>,
        screens: Screens,
        arrivals: mpsc::Sender<Arc<Entry>>,
    ) -> Result<Arc<Machines>, NodeError> {
        let ends = ends::Ends::new().map_err(at("cannot ask the kernel which QEMUs end"))?;
        let machines = Arc::new(Machines {
            core: traces.core.clone(),
            images: traces.images.clone(),
            inventory: traces.inventory.clone(),
            traces,
            networks,
            resources,
            standby: standby::Standbys::default(),
            blanks: blanks::Blanks::default(),
            ends: Arc::new(ends),
            keyboards: Keyboards::default(),
            screens,
            faces: faces::Faces::default(),
            guards: Guards::default(),
            limiting: Mutex::default(),
            arrivals,
            kin: OnceLock::new(),
        });
        let user: Weak<Machines> = Arc::downgrade(&machines);
        machines.images.ask_too(user);
        Ok(machines)
    }

    /// Sets who is called when a machine has been removed; only the first call has an effect.
    pub fn tell_kin(&self, kin: Weak<dyn Kin>) {
        let _ = self.kin.set(kin);
    }

    /// Makes the conversation with the guest of a QEMU begin that now runs.
    pub fn attend(&self, entry: &Arc<Entry>) {
        let _ = self.arrivals.send(entry.clone()); // while the node ends nobody receives
    }

    /// Has a guard look after the QEMU of a machine that runs here by a lease, unless one does.
    pub fn guard_lease(&self, entry: &Entry) {
        let turn = entry.turn();
        let is_leased = turn.is_some_and(|turn| turn.lease_ms().is_some());
        let Some(pid) = entry.state().vm.as_ref().map(|vm| vm.pid()) else {
            return;
        };
        if is_leased && let Err(error) = self.guards.keep(&entry.dir, pid) {
            tracing::error!(machine = %entry.name, %error, "its lease is kept by this node alone");
        }
    }

    /// Returns how many QEMUs wait for a run.
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
