//! What can happen on a node.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use utoipa::ToSchema;

/// What happened, as an event of the node tells it: the part before the dot says to what (a machine, an image, ...).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub enum Happened {
    /// A machine runs: it was made, or started again from its disks.
    #[serde(rename = "machine.started")]
    MachineStarted,
    /// A machine was stopped by its user, or by a capture that was to stop it.
    #[serde(rename = "machine.stopped")]
    MachineStopped,
    /// A machine's QEMU ended by itself.
    #[serde(rename = "machine.ended")]
    MachineEnded,
    /// A restored guest was reset, and was started cold from its disks.
    #[serde(rename = "machine.reset")]
    MachineReset,
    /// A machine was removed with its disks.
    #[serde(rename = "machine.removed")]
    MachineRemoved,
    /// A machine was forked.
    #[serde(rename = "machine.forked")]
    MachineForked,
    /// A node that was started took a running machine over.
    #[serde(rename = "machine.adopted")]
    MachineAdopted,
    /// A machine that should run could not be taken over.
    #[serde(rename = "machine.lost")]
    MachineLost,
    /// A machine's record could not be read; nothing of it was touched.
    #[serde(rename = "machine.left-alone")]
    MachineLeftAlone,
    /// A clone stands still, because what it needs is on a node that does not answer or has lost it.
    #[serde(rename = "machine.orphaned")]
    MachineOrphaned,
    /// A machine goes on that floe had paused.
    #[serde(rename = "machine.continued")]
    MachineContinued,
    /// A machine stands still at a disk that cannot be written.
    #[serde(rename = "machine.stopped-at-disk")]
    MachineStoppedAtDisk,
    /// All of a clone's state is on its own host.
    #[serde(rename = "machine.settled")]
    MachineSettled,
    /// A clone's guest knows which clone it is, or could not be told.
    #[serde(rename = "machine.identity")]
    MachineIdentity,
    /// A port could not be forwarded.
    #[serde(rename = "machine.port")]
    MachinePort,
    /// A guest's clock shows the time of its capture.
    #[serde(rename = "machine.clock")]
    MachineClock,
    /// A guest's agent said something that cannot be understood.
    #[serde(rename = "machine.garbage")]
    MachineGarbage,
    /// An image came to be: by an import, a capture or a pull.
    #[serde(rename = "image.added")]
    ImageAdded,
    /// An image was pushed to a hub.
    #[serde(rename = "image.pushed")]
    ImagePushed,
    /// A name points to an image.
    #[serde(rename = "image.tagged")]
    ImageTagged,
    /// A name points to nothing any more.
    #[serde(rename = "image.untagged")]
    ImageUntagged,
    /// An image was removed.
    #[serde(rename = "image.removed")]
    ImageRemoved,
    /// An image's packs were laid out anew.
    #[serde(rename = "image.optimized")]
    ImageOptimized,
    /// An image's model of what its machines touch has changed.
    #[serde(rename = "image.model")]
    ImageModel,
    /// A fork's state is in the repository.
    #[serde(rename = "fork.stored")]
    ForkStored,
    /// A fork's state could not be stored yet; its clones need this node's memory.
    #[serde(rename = "fork.not-stored")]
    ForkNotStored,
    /// A fork's state was let go, because its clones have ended.
    #[serde(rename = "fork.dropped")]
    ForkDropped,
    /// A fork that an earlier node had in memory is there again.
    #[serde(rename = "fork.found")]
    ForkFound,
    /// A fork's state went with the node that had it in memory.
    #[serde(rename = "fork.lost")]
    ForkLost,
    /// What a placement plug-in had granted was given back.
    #[serde(rename = "ticket.released")]
    TicketReleased,
    /// A placement plug-in has taken back what it granted.
    #[serde(rename = "ticket.lost")]
    TicketLost,
    /// A host can take clones.
    #[serde(rename = "host.joined")]
    HostJoined,
    /// A host takes no clones any more.
    #[serde(rename = "host.left")]
    HostLeft,
    /// A node is a member of the cluster.
    #[serde(rename = "cluster.joined")]
    ClusterJoined,
    /// A node has left the cluster.
    #[serde(rename = "cluster.left")]
    ClusterLeft,
    /// A thread of the node that looks after something made a mistake; it goes on, and the node's log says where.
    #[serde(rename = "thread.failed")]
    ThreadFailed,
    /// The listener was too slow: so many events are missing here.
    #[serde(rename = "missed")]
    Missed,
    /// Something that a newer node tells of and this program does not know.
    #[serde(other, rename = "other")]
    Other,
}

impl Display for Happened {
    /// The word that stands in the interface, such as `machine.started`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_its_word_in_the_interface_and_an_unknown_word_is_no_error() {
        assert_eq!(
            Happened::MachineStoppedAtDisk.to_string(),
            "machine.stopped-at-disk"
        );
        let read = |text: &str| serde_json::from_str::<Happened>(text).unwrap();
        assert_eq!(read("\"fork.stored\""), Happened::ForkStored);
        assert_eq!(read("\"machine.parked\""), Happened::Other);
    }
}
