//! What users and programs are told. Every text of every event is made here, and whoever tells something tells a [`News`], by
//! `Core::tell`: an event says the same whoever has noticed what it tells of. Two have another way: that a thread has failed, and to one
//! listener that it has missed some.
//!
//! What is told of a machine's life (the first part of [`News`]) only `inventory/lifecycle/` decides, once it is durable.

use floe_api::{Happened, PauseReason, size_text};
use std::time::Duration;

/// Something that happened. What it happened to is the event's subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    // of a machine's life
    /// It runs: it is new, or was started again. The text says from what.
    Started(String),
    /// Its guest was reset and was started cold.
    Reset,
    /// This node has taken it over.
    Adopted,
    /// Its QEMU has ended.
    Gone(Gone),
    /// Its memory is stored, and it has no QEMU.
    Parked,
    /// It is where this image was captured of it, and has no QEMU.
    RolledBack(String),
    /// It goes on from its stored memory.
    Woken,
    /// It stays parked, for this reason.
    NotWoken(String),
    /// It was removed with its disks.
    Removed,
    /// Its user has paused it.
    Paused,
    /// It is paused because it needs another node, for this reason.
    Orphaned(String),
    /// It is paused because a page of its memory does not come, as this says.
    Waits(String),
    /// QEMU has paused it because of a disk, as this says.
    StoppedAtDisk(String),
    /// It runs again, for this reason.
    Continued(String),
    /// It runs again: it had been paused by an earlier node for these reasons.
    ContinuedAfter(Vec<PauseReason>),

    // of machines otherwise
    /// A machine could not be started for the first time, and what was made of it is removed.
    NotMade,
    /// Its record can't be read, for this reason.
    LeftAlone(String),
    /// Such a machine was removed.
    LeftAloneRemoved,
    /// The time to live of a clone is over, and it was removed.
    Expired,
    /// It could not be parked although it is idle, for this reason.
    NotParked(String),
    /// It goes on on this other node of the cluster.
    Moved(String),
    /// It has come from this other node of the cluster.
    Arrived(String),
    /// It went on elsewhere without what it did here since, which the image of this name has; empty if it did nothing.
    Fenced(String),
    /// It has this name now.
    Renamed(String),
    /// It has this size now; both in words.
    Resized {
        /// What it has.
        has: String,
        /// What it had.
        had: String,
    },
    /// Its guest does not use so many bytes of its memory.
    Unused(u64),
    /// It was given this device.
    Attached(String),
    /// This device was taken away from it.
    Detached(String),
    /// A request of its guest failed for want of its source, as this says.
    RequestFailed(String),
    /// All of its image is on this host.
    Independent,
    /// Bringing its image here waits, for this reason.
    IndependentWaits(String),
    /// So many of the clones that were asked for run.
    Forked {
        /// How many run.
        running: u32,
        /// How many were asked for.
        asked: u32,
    },
    /// All of a clone's state is on this host.
    Settled,
    /// Its guest knows which clone it is.
    Identified,
    /// Its guest could not be told which clone it is, for this reason.
    NotIdentified(String),
    /// Its guest has not answered in time, as this says.
    IdentityLate(String),
    /// floe's agent in its guest answers.
    Answers,
    /// Its guest's agent sends what can't be understood.
    Garbage,
    /// Its guest's hooks failed, each as one of these says.
    Hooks(Vec<String>),
    /// Its guest's clock shows the time of its capture, for this reason.
    ClockNotSet(String),
    /// Its guest's clock is late by what its machine stood still.
    ClockLate {
        /// By so much.
        late: Duration,
        /// Why it was not set.
        why: String,
    },
    /// A port of it is not open, for this reason.
    Port(String),
    /// A port of it, which is parked, can't wake it.
    PortCannotWake {
        /// The port.
        port: String,
        /// Why not.
        why: String,
    },
    /// Its vCPUs are left where they are, as this says.
    VcpusLeft(String),

    // of images
    /// An image was brought here from this place.
    ImageBrought(String),
    /// An image was made of what a user gave, and has this name, or none.
    ImageImported(String),
    /// An image was captured from this machine.
    ImageCaptured(String),
    /// An image was sent to this place.
    ImagePushed(String),
    /// An image has this name, too.
    ImageTagged(String),
    /// An image has no longer this name.
    ImageUntagged(String),
    /// An image was removed.
    ImageRemoved,
    /// The packs of an image, which was named so, were laid out anew.
    ImageOptimized(String),
    /// An image's model is not used, for this reason.
    ImageWithoutModel(String),

    // of substrates
    /// A substrate was made, from this machine or place.
    Docked(String),
    /// So many machines of a substrate run.
    Activated(usize),
    /// A substrate was removed.
    Undocked,
    /// A substrate can't be read from its backup, for this reason.
    Damaged {
        /// The substrate.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// Substrates are in memory again.
    Warm {
        /// How many.
        count: usize,
        /// How long that took.
        took: Duration,
    },

    // of forks and hosts
    /// A fork's state is in the repository.
    ForkStored,
    /// It is not yet, for this reason.
    ForkNotStored(String),
    /// It was dropped.
    ForkDropped,
    /// It was found again by this node.
    ForkFound,
    /// It is lost.
    ForkLost,
    /// What a plug-in had granted was given back.
    TicketReleased,
    /// A plug-in has taken back what it had granted.
    TicketLost,
    /// A host takes clones from now on.
    HostJoined,
    /// A host takes no more clones, for this reason.
    HostLeft(String),
    /// A node at this address is in the cluster.
    ClusterJoined(String),
    /// A node is no longer in the cluster.
    ClusterLeft,

    // of the node itself
    /// How vCPUs are looked after has changed, as this says.
    Vcpus(String),
    /// A thread has failed and goes on.
    ThreadFailed,
    /// A listener has missed so many events.
    Missed(u64),
}

/// Why a machine has no QEMU any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It was ended on request: the guest powered down, or was to be ended without being asked.
    Asked,
    /// Its guest was asked to power down, did not do so within these seconds, and was switched off.
    SwitchedOff(u64),
    /// A capture has ended it.
    Captured,
    /// It ended by itself, for this reason; `bad` if that was not the guest's wish.
    ByItself {
        /// Whether it crashed.
        bad: bool,
        /// The reason in words.
        why: String,
    },
    /// A node that started could not take it over, for this reason.
    NotTakenOver(String),
    /// It could not be started.
    NotStarted,
}

impl Gone {
    /// Returns what is shown about a machine that ended so; nothing if its record says already what was last known.
    pub fn detail(&self) -> Option<String> {
        Some(match self {
            Gone::Asked => "stopped on request".into(),
            Gone::SwitchedOff(s) => format!(
                "switched off: its guest did not power down within {s} s, and starts as after a power cut"
            ),
            Gone::Captured => "stopped by a capture".into(),
            Gone::ByItself { why, .. } | Gone::NotTakenOver(why) => why.clone(),
            Gone::NotStarted => return None,
        })
    }

    /// Whether the machine is shown as failed.
    pub fn is_bad(&self) -> bool {
        matches!(
            self,
            Gone::ByItself { bad: true, .. } | Gone::NotTakenOver(_)
        )
    }
}

impl News {
    /// Returns the kind and the text of the event.
    // Long: one table of all news.
    pub fn event(&self) -> (Happened, String) {
        let bare = |kind: Happened| (kind, String::new());
        let said = |kind: Happened, text: &str| (kind, text.to_owned());
        match self {
            News::Started(from) => said(Happened::MachineStarted, from),
            News::Reset => said(Happened::MachineReset, "started cold from its disks"),
            News::Adopted => bare(Happened::MachineAdopted),
            News::Gone(gone) => (gone.kind(), gone.news()),
            News::Parked => bare(Happened::MachineParked),
            News::RolledBack(to) => (Happened::MachineRolledBack, format!("to {to}")),
            News::Woken => bare(Happened::MachineWoken),
            News::NotWoken(why) => said(Happened::MachineNotWoken, why),
            News::Removed => bare(Happened::MachineRemoved),
            News::Paused => said(Happened::MachinePaused, "by its user"),
            News::Orphaned(why) => said(Happened::MachineOrphaned, why),
            News::Waits(why) => said(Happened::MachineWaits, why),
            News::StoppedAtDisk(why) => said(Happened::MachineStoppedAtDisk, why),
            News::Continued(why) => said(Happened::MachineContinued, why),
            News::ContinuedAfter(reasons) => {
                let words: Vec<_> = reasons.iter().map(ToString::to_string).collect();
                let why = format!("it had been paused because {}", words.join(" and "));
                (Happened::MachineContinued, why)
            }

            News::NotMade => said(Happened::MachineRemoved, "it could not be started"),
            News::LeftAlone(why) => said(Happened::MachineLeftAlone, why),
            News::LeftAloneRemoved => said(Happened::MachineRemoved, "it was left alone"),
            News::Expired => said(
                Happened::MachineExpired,
                "the time that its fork gave it is over",
            ),
            News::NotParked(why) => (
                Happened::MachineNotParked,
                format!("it is idle, and can't be parked: {why}"),
            ),
            News::Moved(to) => (Happened::MachineMoved, format!("to {to}")),
            News::Arrived(from) => (Happened::MachineArrived, format!("from {from}")),
            News::Fenced(image) => said(Happened::MachineFenced, image),
            News::Renamed(to) => said(Happened::MachineRenamed, to),
            News::Resized { has, had } => {
                (Happened::MachineResized, format!("{has}; it had {had}"))
            }
            News::Unused(0) => said(Happened::MachineResized, "its guest uses all of its memory"),
            News::Unused(bytes) => (
                Happened::MachineResized,
                format!(
                    "its guest does not use {} of its memory; floe resize brings that into use, or says why not",
                    size_text(*bytes)
                ),
            ),
            News::Attached(device) => said(Happened::MachineAttached, device),
            News::Detached(device) => said(Happened::MachineDetached, device),
            News::RequestFailed(why) => said(Happened::MachineRequestFailed, why),
            News::Independent => bare(Happened::MachineIndependent),
            News::IndependentWaits(why) => said(Happened::MachineIndependentWaits, why),
            News::Forked { running, asked } => (
                Happened::MachineForked,
                format!("{running} of {asked} clones run"),
            ),
            News::Settled => bare(Happened::MachineSettled),
            News::Identified => said(Happened::MachineIdentity, "in place"),
            News::NotIdentified(why) => (Happened::MachineIdentity, format!("not in place: {why}")),
            News::IdentityLate(why) => said(Happened::MachineIdentity, why),
            News::Answers => said(Happened::MachineAnswers, "floe's agent"),
            News::Garbage => said(
                Happened::MachineGarbage,
                "its guest sends what can't be understood; it is ignored for a while",
            ),
            News::Hooks(failed) => (Happened::MachineHooks, failed.join("; ")),
            News::ClockNotSet(why) => (
                Happened::MachineClock,
                format!("the guest's clock was not set: {why}"),
            ),
            News::ClockLate { late, why } => (
                Happened::MachineClock,
                format!(
                    "the guest's clock is {} s late, since its machine stood still, and was not set: {why}",
                    late.as_secs()
                ),
            ),
            News::Port(why) => said(Happened::MachinePort, why),
            News::PortCannotWake { port, why } => (
                Happened::MachinePort,
                format!("{port} can't wake it: {why}"),
            ),
            News::VcpusLeft(why) => said(Happened::MachineVcpus, why),

            News::ImageBrought(from) => said(Happened::ImageAdded, from),
            News::ImageImported(name) => said(Happened::ImageAdded, name),
            News::ImageCaptured(machine) => {
                (Happened::ImageAdded, format!("captured from {machine}"))
            }
            News::ImagePushed(to) => said(Happened::ImagePushed, to),
            News::ImageTagged(name) => said(Happened::ImageTagged, name),
            News::ImageUntagged(name) => said(Happened::ImageUntagged, name),
            News::ImageRemoved => bare(Happened::ImageRemoved),
            News::ImageOptimized(name) => said(Happened::ImageOptimized, name),
            News::ImageWithoutModel(why) => (
                Happened::ImageModel,
                format!("it runs without its model: {why}"),
            ),

            News::Docked(from) => (Happened::SubstrateDocked, format!("from {from}")),
            News::Activated(count) => (
                Happened::SubstrateActivated,
                format!("{count} machines run"),
            ),
            News::Undocked => bare(Happened::SubstrateRemoved),
            News::Damaged { name, why } => (
                Happened::SubstrateDamaged,
                format!("its backup is damaged (floe pool verify {name}): {why}"),
            ),
            News::Warm { count, took } => (
                Happened::PoolWarm,
                format!(
                    "{count} substrates are in memory again after {:.1} s",
                    took.as_secs_f64()
                ),
            ),

            News::ForkStored => bare(Happened::ForkStored),
            News::ForkNotStored(why) => (
                Happened::ForkNotStored,
                format!("its clones need this node's memory until it is: {why}"),
            ),
            News::ForkDropped => said(Happened::ForkDropped, "its clones have ended"),
            News::ForkFound => said(Happened::ForkFound, "its memory outlived its node"),
            News::ForkLost => said(Happened::ForkLost, "its node ended before it was stored"),
            News::TicketReleased => said(Happened::TicketReleased, "its clones have ended"),
            News::TicketLost => said(Happened::TicketLost, "its clones are ended"),
            News::HostJoined => bare(Happened::HostJoined),
            News::HostLeft(why) => said(Happened::HostLeft, why),
            News::ClusterJoined(address) => said(Happened::ClusterJoined, address),
            News::ClusterLeft => bare(Happened::ClusterLeft),

            News::Vcpus(what) => said(Happened::HostVcpus, what),
            News::ThreadFailed => said(
                Happened::ThreadFailed,
                "its work went wrong, see the log; it goes on",
            ),
            News::Missed(count) => (Happened::Missed, count.to_string()),
        }
    }
}

impl Gone {
    /// Returns the kind of the event that tells of it.
    fn kind(&self) -> Happened {
        match self {
            Gone::Asked | Gone::SwitchedOff(_) | Gone::Captured => Happened::MachineStopped,
            Gone::NotTakenOver(_) => Happened::MachineLost,
            Gone::ByItself { .. } | Gone::NotStarted => Happened::MachineEnded,
        }
    }

    /// Returns the text of that event.
    fn news(&self) -> String {
        let unsaid = || "it could not be started".to_owned();
        self.detail().unwrap_or_else(unsaid)
    }
}
