//! The kinds of events that happen on a node.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use utoipa::ToSchema;

/// The kind of a node's event. In its text form, the part before the dot names what is affected (a machine, an image,
/// ...).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub enum Happened {
    /// A machine runs: it is new, or was started again from its disks.
    #[serde(rename = "machine.started")]
    MachineStarted,
    /// A machine was stopped by its user, or by a capture with `stop`.
    #[serde(rename = "machine.stopped")]
    MachineStopped,
    /// A machine's QEMU ended without having been told to.
    #[serde(rename = "machine.ended")]
    MachineEnded,
    /// A restored guest rebooted, and was therefore started cold from its disks.
    #[serde(rename = "machine.reset")]
    MachineReset,
    /// A machine was removed with its disks.
    #[serde(rename = "machine.removed")]
    MachineRemoved,
    /// A machine has another name, which is the detail.
    #[serde(rename = "machine.renamed")]
    MachineRenamed,
    /// A machine has more or fewer CPUs, or more or less memory; the detail says what it has and had.
    #[serde(rename = "machine.resized")]
    MachineResized,
    /// All of a machine's image is on its host; it needs nothing from elsewhere any more.
    #[serde(rename = "machine.independent")]
    MachineIndependent,
    /// Bringing a machine's image to its host waits; the detail says for what.
    #[serde(rename = "machine.independent-waits")]
    MachineIndependentWaits,
    /// A machine was given a device while it ran; the detail names it.
    #[serde(rename = "machine.attached")]
    MachineAttached,
    /// A device was taken away from a machine while it ran; the detail names it.
    #[serde(rename = "machine.detached")]
    MachineDetached,
    /// A machine was forked.
    #[serde(rename = "machine.forked")]
    MachineForked,
    /// A newly started node has taken over a running machine.
    #[serde(rename = "machine.adopted")]
    MachineAdopted,
    /// A machine that should be running could not be taken over.
    #[serde(rename = "machine.lost")]
    MachineLost,
    /// A machine's record could not be read; the machine's files were not touched.
    #[serde(rename = "machine.left-alone")]
    MachineLeftAlone,
    /// A clone is paused, because what it needs is on a node that does not answer or has lost it.
    #[serde(rename = "machine.orphaned")]
    MachineOrphaned,
    /// A machine was paused by its user.
    #[serde(rename = "machine.paused")]
    MachinePaused,
    /// A machine that was paused runs again.
    #[serde(rename = "machine.continued")]
    MachineContinued,
    /// A machine's memory was stored, and its QEMU ended.
    #[serde(rename = "machine.parked")]
    MachineParked,
    /// An idle machine could not be parked.
    #[serde(rename = "machine.not-parked")]
    MachineNotParked,
    /// A clone was removed because its time to live was over.
    #[serde(rename = "machine.expired")]
    MachineExpired,
    /// A machine goes on on another node of the cluster, which the detail names.
    #[serde(rename = "machine.moved")]
    MachineMoved,
    /// A machine has come from another node of the cluster, which the detail names, and goes on here.
    #[serde(rename = "machine.arrived")]
    MachineArrived,
    /// A machine went on elsewhere without what it did here since; the detail names the image that has that.
    #[serde(rename = "machine.fenced")]
    MachineFenced,
    /// A machine went back to an image that was captured from it; the detail names that. It is woken next.
    #[serde(rename = "machine.rolled-back")]
    MachineRolledBack,
    /// A parked machine goes on.
    #[serde(rename = "machine.woken")]
    MachineWoken,
    /// A parked machine could not go on and stays parked.
    #[serde(rename = "machine.not-woken")]
    MachineNotWoken,
    /// A machine is paused because one of its disks cannot be written.
    #[serde(rename = "machine.stopped-at-disk")]
    MachineStoppedAtDisk,
    /// A machine is paused because its image's source does not send a page of its memory; it goes on by itself.
    #[serde(rename = "machine.waits")]
    MachineWaits,
    /// A request of a machine's guest failed, because no source gave what it needs within its limit; the detail says which, and why.
    #[serde(rename = "machine.request-failed")]
    MachineRequestFailed,
    /// All of a clone's state is on its own host; it no longer needs its parent's node.
    #[serde(rename = "machine.settled")]
    MachineSettled,
    /// A clone's guest knows which clone it is, or could not be informed.
    #[serde(rename = "machine.identity")]
    MachineIdentity,
    /// floe's agent in a machine's guest answers.
    #[serde(rename = "machine.answers")]
    MachineAnswers,
    /// A port could not be forwarded.
    #[serde(rename = "machine.port")]
    MachinePort,
    /// A guest's clock could not be set: it shows the time of its capture, or is late by the time for which its machine stood still.
    #[serde(rename = "machine.clock")]
    MachineClock,
    /// A guest's hooks failed after its machine went on as a copy, or was woken; the detail says which, and why.
    #[serde(rename = "machine.hooks")]
    MachineHooks,
    /// A guest's agent sent something that cannot be understood.
    #[serde(rename = "machine.garbage")]
    MachineGarbage,
    /// A machine's vCPUs are left where they are; the detail says why.
    #[serde(rename = "machine.vcpus")]
    MachineVcpus,
    /// Something has changed about how this node looks after vCPUs; the detail says what.
    #[serde(rename = "host.vcpus")]
    HostVcpus,
    /// An image was added: by an import, a capture or a pull.
    #[serde(rename = "image.added")]
    ImageAdded,
    /// An image was pushed to a hub.
    #[serde(rename = "image.pushed")]
    ImagePushed,
    /// A name was given to an image.
    #[serde(rename = "image.tagged")]
    ImageTagged,
    /// A name was taken away from an image.
    #[serde(rename = "image.untagged")]
    ImageUntagged,
    /// An image was removed.
    #[serde(rename = "image.removed")]
    ImageRemoved,
    /// An image's packs were rearranged in the order in which machines touch them.
    #[serde(rename = "image.optimized")]
    ImageOptimized,
    /// An image's model of what its machines touch could not be used; its machines run without it.
    #[serde(rename = "image.model")]
    ImageModel,
    /// A machine was docked as a substrate.
    #[serde(rename = "substrate.docked")]
    SubstrateDocked,
    /// Machines were started from a substrate.
    #[serde(rename = "substrate.activated")]
    SubstrateActivated,
    /// A substrate was removed.
    #[serde(rename = "substrate.removed")]
    SubstrateRemoved,
    /// A substrate could not be read from its backup.
    #[serde(rename = "substrate.damaged")]
    SubstrateDamaged,
    /// Substrates are in memory again after a start of the node, or after a change of the pool's budget.
    #[serde(rename = "pool.warm")]
    PoolWarm,
    /// A fork's state was stored in the repository.
    #[serde(rename = "fork.stored")]
    ForkStored,
    /// A fork's state could not be stored yet; its clones depend on this node's memory.
    #[serde(rename = "fork.not-stored")]
    ForkNotStored,
    /// A fork's state was discarded, because its clones have ended.
    #[serde(rename = "fork.dropped")]
    ForkDropped,
    /// This node found a fork again that an earlier node had kept in memory.
    #[serde(rename = "fork.found")]
    ForkFound,
    /// A fork's state was lost with the node that kept it in memory.
    #[serde(rename = "fork.lost")]
    ForkLost,
    /// An allocation of a placement plug-in was given back.
    #[serde(rename = "ticket.released")]
    TicketReleased,
    /// A placement plug-in has revoked an allocation.
    #[serde(rename = "ticket.lost")]
    TicketLost,
    /// A host has become able to take clones.
    #[serde(rename = "host.joined")]
    HostJoined,
    /// A host no longer takes clones.
    #[serde(rename = "host.left")]
    HostLeft,
    /// A node has joined the cluster.
    #[serde(rename = "cluster.joined")]
    ClusterJoined,
    /// A node has left the cluster.
    #[serde(rename = "cluster.left")]
    ClusterLeft,
    /// A thread of the node that looks after something made a mistake; it goes on, and the node's log says where.
    #[serde(rename = "thread.failed")]
    ThreadFailed,
    /// The listener was too slow and missed events here; the detail is their number.
    #[serde(rename = "missed")]
    Missed,
    /// A kind of event that this version does not know, sent by a newer node.
    #[serde(other, rename = "other")]
    Other,
}

impl Display for Happened {
    /// Writes the event's name in the interface, such as `machine.started`.
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
        assert_eq!(read("\"machine.offloaded\""), Happened::Other);
    }
}
