//! Who asks: carried by every request from the mount down to the source.

/// A machine on this host. Numbers are given by the mount, and not used again while it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineId(pub u32);

impl MachineId {
    /// No machine: the node itself, or a reader that could not be told.
    pub const NONE: MachineId = MachineId(0);
}

/// Why something is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A guest waits for it.
    #[default]
    Demand,
    /// A guest will probably want it.
    Prefetch,
    /// It is here, and a guest will probably want it: it goes into the page cache.
    Push,
    /// A guest's write or flush has to be kept.
    Store,
    /// To be able to give it to others.
    Seed,
    /// To own an image completely, in no hurry.
    Settle,
}

impl Purpose {
    /// Whether a guest stands still until it is done.
    pub fn is_waited_for(self) -> bool {
        matches!(self, Purpose::Demand | Purpose::Store)
    }
}

/// How urgent a request is among those of the same purpose, the most urgent first.
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

/// Who asks, what for, and how urgently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Who {
    /// The machine whose request this is.
    pub machine: MachineId,
    /// Why.
    pub purpose: Purpose,
    /// How urgently.
    pub class: Class,
}

impl Who {
    /// A demand of a machine, of which nothing more is known.
    pub fn demand(machine: MachineId) -> Who {
        Who {
            machine,
            ..Who::default()
        }
    }

    /// The node itself, for this purpose.
    pub fn node(purpose: Purpose) -> Who {
        Who {
            purpose,
            ..Who::default()
        }
    }
}
