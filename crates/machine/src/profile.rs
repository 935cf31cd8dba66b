//! The hardware profile of a machine, which an image names: see `hardware`.

use crate::incompatible::Incompatible;
use floe_image::MachineConfig;

/// The hardware profile of a machine: what can be added while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Profile 1: nothing. All images from before profiles existed have this one.
    Fixed,
    /// Profile 2: vCPUs, memory, cards and disks. A machine that is started cold has this one unless its spec says
    /// otherwise.
    Growable,
}

impl Profile {
    /// The newest profile number that this floe knows.
    pub const NEWEST: u32 = 2;

    /// Returns the profile of an image's configuration; an error if a later floe defined it.
    pub fn of(config: &MachineConfig) -> Result<Profile, Incompatible> {
        match config.profile {
            None => Ok(Profile::Fixed),
            Some(Profile::NEWEST) => Ok(Profile::Growable),
            Some(image) => Err(Incompatible::Profile {
                image,
                known: Profile::NEWEST,
            }),
        }
    }
}
