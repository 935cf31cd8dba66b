//! Which hosts a fork's clones may run on: plug-ins connect forks to whatever allocates hosts (SnowFlock, section 4: "policy
//! decisions ... to suitable cluster management software via a plug-in architecture").
//!
//! ```text
//! hosts report room     -> request (a ticket: so many clones on this host, so many on that one)
//!                          clones run   holds? asked now and then: the clones of a withdrawn ticket are ended
//!                          clones ended release
//! ```
//! A ticket is what a request was granted; it may be for fewer clones than were asked for. Plug-ins do not handle the clones
//! themselves: `fork/decide.rs` decides which clone starts where, and where again if a host fails.

mod command;
mod hosts;
mod listed;
mod program;
mod simple;
mod slurm;
mod slurm_text;
pub mod ticket;
mod tickets;

pub use hosts::{Change, Roll, known_hosts};
pub use listed::Known;
pub use tickets::{Held, Tickets};

use floe_api::{Room, paths::Home};
use floe_ground::error::{NodeError, usage};
use std::sync::Arc;

/// What a fork asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The machine or image that is forked.
    pub parent: String,
    /// How many clones.
    pub clones: u32,
    /// Virtual CPUs of each clone.
    pub cpus: u32,
    /// Memory of each clone in bytes: the guest's, and QEMU's own.
    pub memory_bytes: u64,
}

/// A host that may run clones, and what it reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name among the known hosts, or its address.
    pub name: String,
    /// How much room it has, or why it has none.
    pub room: Result<Room, String>,
}

/// What a request was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The ticket to give back; `None` if nothing has to be given back.
    pub ticket: Option<String>,
    /// For each offer, how many clones may run there, or why none.
    pub clones: Vec<Result<u32, String>>,
}

/// A plug-in. Its calls block, each for a bounded time.
pub trait Placement: Send + Sync {
    /// Asks for a ticket. Fails only if the plug-in could not ask; a refusal is part of the grant.
    fn request(&self, ask: &Ask, offers: &[Offer]) -> Result<Grant, NodeError>;

    /// Whether a ticket is still valid; an error says why that is unknown.
    fn holds(&self, _ticket: &str) -> Result<bool, String> {
        Ok(true)
    }

    /// Gives a ticket back; succeeds also if it is no longer valid.
    fn release(&self, _ticket: &str) -> Result<(), String> {
        Ok(())
    }
}

/// The plug-in of a fork that names none: every host takes as many clones as it reports room for.
struct Open;

impl Placement for Open {
    fn request(&self, _: &Ask, offers: &[Offer]) -> Result<Grant, NodeError> {
        let clones = |offer: &Offer| offer.room.clone().map(|room| room.clones);
        Ok(Grant {
            ticket: None,
            clones: offers.iter().map(clones).collect(),
        })
    }
}

/// Returns the plug-in of this name; `None` means that of a fork that names none.
pub fn plug_in(name: Option<&str>, home: &Home) -> Result<Arc<dyn Placement>, NodeError> {
    match name {
        None => Ok(Arc::new(Open)),
        Some("simple") => Ok(Arc::new(simple::Simple)),
        Some("slurm") => Ok(Arc::new(slurm::Slurm::default())),
        Some(name) => match program::Program::find(name, home) {
            Some(program) => Ok(Arc::new(program)),
            None => Err(usage(
                format!("there is no placement {name:?}"),
                format!(
                    "name simple, slurm, or a program in {}",
                    home.placement().display()
                ),
            )),
        },
    }
}
