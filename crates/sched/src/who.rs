//! Who makes a request, and why: every request carries this from the mount down to the source.

/// A machine on this host. The mount assigns numbers, and uses none twice while it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineId(pub u32);

impl MachineId {
    /// No machine: the node itself, or a reader that isn't known.
    pub const NONE: MachineId = MachineId(0);
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A guest waits for the data.
    #[default]
    Demand,
    /// A guest will probably want the data.
    Prefetch,
    /// The data is here, and a guest will probably want it: put it into the page cache.
    Push,
    /// A guest's write or flush has to be stored.
    Store,
    /// The node fetches the data to give it to others.
    Seed,
    /// The node fetches an image completely, in no hurry.
    Settle,
}

impl Purpose {
    /// Returns whether a guest stands still until the request is done.
    pub fn is_waited_for(self) -> bool {
        matches!(self, Purpose::Demand | Purpose::Store)
    }
}

/// How urgent a request is among those with the same purpose, the most urgent first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A person waits for the answer.
    Interactive,
    /// Nothing is known about it.
    #[default]
    Normal,
    /// Nobody will notice if it comes later.
    Bulk,
}

/// Who makes a request, for what purpose, and how urgent it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Who {
    /// The machine whose request this is.
    pub machine: MachineId,
    /// Its purpose.
    pub purpose: Purpose,
    /// How urgent it is.
    pub class: Class,
}

impl Who {
    /// Makes a demand of a machine, of normal urgency.
    pub fn demand(machine: MachineId) -> Who {
        Who {
            machine,
            ..Who::default()
        }
    }

    /// Makes a request of the node itself for this purpose, of normal urgency.
    pub fn node(purpose: Purpose) -> Who {
        Who {
            purpose,
            ..Who::default()
        }
    }
}
