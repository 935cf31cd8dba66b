//! A request that may have to wait for chunks: what it reads or writes, who made it, what it touches.

use crate::askers::Asking;
use crate::image::{Extra, First, Image};
use crate::machine::Machine;
use crate::overlay::Disk;
use crate::patience::Patience;
use floe_sched::Who;
use floe_source::{Outlook, SourceError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

/// What a request reads or writes.
#[derive(Clone)]
pub(crate) enum Target {
    Region(Arc<Image>, usize),
    Disk(Arc<Machine>, Arc<Disk>),
}

/// A request that may have to wait for chunks.
pub(crate) enum Op {
    Read {
        target: Target,
        offset: u64,
        len: usize,
    },
    Write {
        machine: Arc<Machine>,
        disk: Arc<Disk>,
        offset: u64,
        data: Vec<u8>,
    },
    Zero {
        machine: Arc<Machine>,
        disk: Arc<Disk>,
        offset: u64,
        len: u64,
    },
}

/// Where an answer goes, and who made the request.
#[derive(Clone, Copy)]
pub(crate) struct Asker {
    pub device: usize,
    pub unique: u64,
    pub asking: Asking,
}

/// What an answered request touched; goes into counters and traces.
pub(crate) struct Touches {
    pub target: Target,
    pub asking: Asking,
    pub firsts: Vec<First>,
    /// How long the request had to wait; `None` if it was answered at once.
    pub waited_us: Option<u64>,
}

/// A request that waits for chunks.
pub(crate) struct Held {
    pub op: Op,
    pub asker: Asker,
    /// For whom its chunks are fetched.
    pub who: Who,
    pub since: Instant,
    pub left: AtomicUsize,
    pub patience: Mutex<Patience>,
    pub answered: AtomicBool,
    /// Why one of its chunks is not to be had, as the latest attempt found.
    pub failed: Mutex<Option<SourceError>>,
    pub extra: Extra,
    pub firsts: Mutex<Vec<First>>,
}

impl Op {
    /// Returns what it is about.
    pub(crate) fn target(&self) -> Target {
        match self {
            Op::Read { target, .. } => target.clone(),
            Op::Write { machine, disk, .. } | Op::Zero { machine, disk, .. } => {
                Target::Disk(machine.clone(), disk.clone())
            }
        }
    }

    /// Says in words what it does.
    pub(crate) fn what(&self) -> String {
        match self {
            Op::Read {
                target: Target::Region(image, region),
                ..
            } => format!("a read of {}", image.regions[*region].name),
            Op::Read {
                target: Target::Disk(_, disk),
                ..
            } => format!("a read of {}", disk.name),
            Op::Write { disk, .. } | Op::Zero { disk, .. } => format!("a write to {}", disk.name),
        }
    }
}

impl Held {
    /// Notes that a chunk is not to be had. Of several reasons the one counts that does not pass by itself.
    pub(crate) fn lacks(&self, error: SourceError) {
        let mut failed = self.failed.lock();
        let refused = |error: &SourceError| error.outlook() == Outlook::Refused;
        if !failed.as_ref().is_some_and(refused) {
            *failed = Some(error);
        }
    }
}

/// Returns the image whose chunks are needed to read a target.
pub(crate) fn image_of(target: &Target) -> Option<Arc<Image>> {
    match target {
        Target::Region(image, _) => Some(image.clone()),
        Target::Disk(_, disk) => disk.chain().base_image(),
    }
}
