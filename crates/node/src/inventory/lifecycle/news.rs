//! What users and programs are told about a machine's life. Every text of such an event is made here.

use super::state::Gone;
use floe_api::{Happened, PauseReason};

/// Something that happened to a machine. It is published once it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
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
}

impl News {
    /// Returns the kind and the text of the event; `None` for what is not published.
    pub fn published(&self) -> Option<(Happened, String)> {
        Some(match self {
            News::Started(from) => (Happened::MachineStarted, from.clone()),
            News::Reset => (
                Happened::MachineReset,
                "started cold from its disks".to_owned(),
            ),
            News::Adopted => (Happened::MachineAdopted, String::new()),
            News::Gone(Gone::NotStarted) => {
                (Happened::MachineEnded, "it could not be started".to_owned())
            }
            News::Gone(gone) => {
                let kind = match gone {
                    Gone::Asked | Gone::SwitchedOff(_) | Gone::Captured => Happened::MachineStopped,
                    Gone::NotTakenOver(_) => Happened::MachineLost,
                    Gone::ByItself { .. } | Gone::NotStarted => Happened::MachineEnded,
                };
                (kind, gone.detail().unwrap_or_default())
            }
            News::Parked => (Happened::MachineParked, String::new()),
            News::RolledBack(to) => (Happened::MachineRolledBack, format!("to {to}")),
            News::Woken => (Happened::MachineWoken, String::new()),
            News::NotWoken(why) => (Happened::MachineNotWoken, why.clone()),
            News::Removed => (Happened::MachineRemoved, String::new()),
            News::Paused => (Happened::MachinePaused, "by its user".to_owned()),
            News::Orphaned(why) => (Happened::MachineOrphaned, why.clone()),
            News::Waits(why) => (Happened::MachineWaits, why.clone()),
            News::StoppedAtDisk(why) => (Happened::MachineStoppedAtDisk, why.clone()),
            News::Continued(why) => (Happened::MachineContinued, why.clone()),
            News::ContinuedAfter(reasons) => {
                let words: Vec<_> = reasons.iter().map(ToString::to_string).collect();
                let why = format!("it had been paused because {}", words.join(" and "));
                (Happened::MachineContinued, why)
            }
        })
    }
}
