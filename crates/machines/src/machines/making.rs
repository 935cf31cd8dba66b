//! A machine that is being made. Unless it is completed, what was made of it is undone again, and nothing else: what had its name or
//! its directory before is somebody else's.

use super::{Machines, launch::make_machine_dir};
use floe_ground::error::NodeError;
use floe_inventory::inventory::Operation;
use std::{ops::Deref, sync::Arc};

/// A machine that is being made. Dropping it undoes what was made so far, from its QEMU to its place in the list of machines.
pub struct Making {
    machines: Arc<Machines>,
    /// Its first operation; `None` once it is complete.
    operation: Option<Operation>,
    /// Whether its directory was made here. Everything else that a machine has comes after that.
    has_dir: bool,
}

impl Machines {
    /// Begins to make a machine whose name was reserved just now. So far it has no more than that name, what is promised to it, and the
    /// place in a network that its record may name.
    pub fn making(self: &Arc<Self>, operation: Operation) -> Making {
        Making {
            machines: self.clone(),
            operation: Some(operation),
            has_dir: false,
        }
    }
}

impl Making {
    /// Makes its directory; an error if there is one already.
    pub fn make_dir(&mut self) -> Result<(), NodeError> {
        make_machine_dir(&self.dir)?;
        self.has_dir = true;
        Ok(())
    }

    /// Whether anything of it is on the disk.
    pub fn has_dir(&self) -> bool {
        self.has_dir
    }

    /// The machine is complete, and stays.
    pub fn complete(mut self) -> Operation {
        let operation = self.operation.take();
        operation.expect("it is taken out here and when this is dropped")
    }
}

impl Deref for Making {
    type Target = Operation;

    fn deref(&self) -> &Operation {
        let operation = self.operation.as_ref();
        operation.expect("it is there until the machine is complete")
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let Some(operation) = self.operation.take() else {
            return;
        };
        match self.has_dir {
            true => self.machines.discard(&operation),
            false => self.machines.forget(&operation),
        }
    }
}
