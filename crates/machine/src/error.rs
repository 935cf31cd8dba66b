//! Errors of machines, grouped by what the caller can do about them.

use std::path::PathBuf;
use std::time::Duration;

use crate::qga::QgaError;
use crate::qmp::QmpError;

/// Why a machine could not be started, restored, captured or controlled.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The spec can't be carried out; nothing was started.
    #[error("the machine can't be described to QEMU: {what}")]
    Spec {
        /// What is wrong with which field, and what would be right.
        what: String,
    },
    /// An image's recorded configuration contains something that floe never writes.
    #[error("the image's configuration is refused: {what}")]
    Untrusted {
        /// The offending value and the rule that it breaks.
        what: String,
    },
    /// No QEMU at the given path.
    #[error("QEMU was not found at {program}: {source}; install the package qemu-system-x86")]
    QemuMissing {
        /// The program that was tried.
        program: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// QEMU ended, or did not answer, before the machine was up.
    #[error("QEMU did not start machine {name}: {reason}{}", log_suffix(.log))]
    Start {
        /// The machine's name.
        name: String,
        /// What was observed from outside.
        reason: String,
        /// The last lines that QEMU itself wrote.
        log: String,
    },
    /// QEMU refused the captured state.
    #[error("QEMU refused the captured state of machine {name}: {reason}{}; start it cold from its disks instead", log_suffix(.log))]
    Restore {
        /// The machine's name.
        name: String,
        /// What was observed from outside.
        reason: String,
        /// The last lines that QEMU itself wrote.
        log: String,
    },
    /// This host can't continue the captured machine.
    #[error(transparent)]
    Incompatible(#[from] crate::incompatible::Incompatible),
    /// The machine's QEMU has ended.
    #[error(
        "machine {name} is not running (its QEMU, process {pid}, has ended); start it again to go on"
    )]
    Dead {
        /// The machine's name.
        name: String,
        /// The id of the process that has ended.
        pid: u32,
    },
    /// Another capture of the machine is running; there can be only one.
    #[error("machine {name} is being captured already; wait until that capture is done")]
    CaptureRunning {
        /// The machine's name.
        name: String,
    },
    /// The pages that must be kept during the pause don't fit into memory.
    #[error(
        "capturing machine {name} needs more than the {limit_bytes} bytes of memory that are free on this host; \
         shrink the guest with its balloon, or free memory, and capture again (the machine goes on)"
    )]
    CaptureTooLarge {
        /// The machine's name.
        name: String,
        /// The bytes that the capture was allowed to keep.
        limit_bytes: u64,
    },
    /// The machine has hardware whose state QEMU cannot save.
    #[error("machine {name} can't be captured or forked: {why}")]
    Unsavable {
        /// The machine's name.
        name: String,
        /// What hardware that is, and the way out.
        why: &'static str,
    },
    /// The capture failed; the machine was resumed if it still exists.
    #[error("capturing machine {name} failed at {step}: {reason}")]
    Capture {
        /// The machine's name.
        name: String,
        /// The step that failed.
        step: &'static str,
        /// Why.
        reason: String,
    },
    /// The caller's freeze of the disks failed; the machine was resumed.
    #[error(
        "freezing the disks of machine {name} failed: {reason}; the machine goes on, nothing was captured"
    )]
    Freeze {
        /// The machine's name.
        name: String,
        /// The error that the caller's closure returned.
        reason: String,
    },
    /// The directory has no state of a running machine.
    #[error("{dir} holds no running machine: {reason}")]
    NotAdoptable {
        /// The machine's directory.
        dir: PathBuf,
        /// What is missing or does not match.
        reason: String,
    },
    /// QEMU did not do something in time.
    #[error("machine {name}: {what} took longer than {limit:?}")]
    Timeout {
        /// The machine's name.
        name: String,
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit: Duration,
    },
    /// Something can't be added to the machine, or removed from it.
    #[error(transparent)]
    Grow(#[from] GrowError),
    /// A QMP command failed.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// A command to the guest agent failed.
    #[error(transparent)]
    Agent(#[from] QgaError),
    /// A file operation or a system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted, with the path.
        what: String,
        /// The operating system's error.
        source: std::io::Error,
    },
}

/// Why something can't be added to a machine, or removed from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// This machine can't be given anything, or nothing of that kind, while it runs.
    #[error(
        "machine {name} can't be given {what} while it runs: it was started without room for that; \
         start it cold (floe run --cold) with as much as it needs"
    )]
    Fixed {
        /// The machine's name.
        name: String,
        /// `CPUs`, `memory`, `cards and disks`.
        what: &'static str,
    },
    /// The machine would exceed its limit, which was set at its cold start.
    #[error(
        "machine {name} has {has} {unit} and can have {most} in all: {asked} more are too many"
    )]
    Limit {
        /// The machine's name.
        name: String,
        /// What is counted: `CPUs`, `bytes of memory`, `disks`.
        unit: &'static str,
        /// How many it has.
        has: u64,
        /// How many it can have.
        most: u64,
        /// How many more were asked for.
        asked: u64,
    },
    /// All memory slots or all places of the bus are taken.
    #[error("machine {name} has no free {what} ({most} are taken); {way_out}")]
    NoSlot {
        /// The machine's name.
        name: String,
        /// `memory slot`, `place for a card or disk`.
        what: &'static str,
        /// How many there are.
        most: usize,
        /// What to do.
        way_out: &'static str,
    },
    /// An invalid argument.
    #[error("{what}")]
    Bad {
        /// What is wrong with which argument, and what would be right.
        what: String,
    },
    /// There is no such card or disk, or it can't be removed because the machine was started with it.
    #[error("machine {name} has no {id} that was added while it ran; only those can be taken away")]
    NotThere {
        /// The machine's name.
        name: String,
        /// The card's id or the disk's name.
        id: String,
    },
    /// The guest refuses to release a device.
    #[error(
        "the guest of machine {name} does not let {id} go: it is in use; unmount or close it in the guest first"
    )]
    Kept {
        /// The machine's name.
        name: String,
        /// The card's id or the disk's name.
        id: String,
    },
    /// The guest did not answer. If it releases the device later, this is noticed then.
    #[error(
        "the guest of machine {name} has not let {id} go within {limit:?}: is it paused, or without a driver for PCI hot-plug?"
    )]
    Silent {
        /// The machine's name.
        name: String,
        /// The card's id or the disk's name.
        id: String,
        /// How long was waited.
        limit: Duration,
    },
}

impl MachineError {
    /// Returns a function that wraps an I/O error together with what was being done.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> MachineError {
        let what = what.into();
        move |source| MachineError::Io { what, source }
    }
}

fn log_suffix(log: &str) -> String {
    if log.is_empty() {
        String::new()
    } else {
        format!(" (QEMU said: {})", log.trim_end().replace('\n', "; "))
    }
}
