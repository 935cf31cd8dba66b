//! A machine as the mount knows it: its image, its disks, its trace.

use crate::MachineStats;
use crate::files::Files;
use crate::image::Image;
use crate::overlay::Disk;
use crate::trace::Trace;
use floe_planner::Progress;
use floe_sched::{Class, MachineId, Purpose, Who};
use parking_lot::{Mutex, RwLock};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) struct Machine {
    /// The number that identifies it in requests to the fetcher and the queues.
    pub id: MachineId,
    /// How urgent its requests are.
    pub class: Mutex<Class>,
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// The directory with its disks and its trace.
    pub dir: PathBuf,
    pub image: Arc<Image>,
    /// In the order in which it got them; only `disks` changes this. Each request looks at it, also on threads that serve the kernel, so
    /// nobody holds it for longer than that takes.
    pub disks: RwLock<Vec<Arc<Disk>>>,
    /// Held while a disk is added or removed, which takes as long as the host's disk and the kernel do.
    pub changing: Mutex<()>,
    pub trace: Trace,
    /// What is planned for it by the image's model; at most a quarter of a second old.
    pub progress: Mutex<Progress>,
    pub counters: Counters,
    /// Its last request that failed because its source did not give what the request needs.
    pub given_up: Mutex<GivenUp>,
    /// Whether [`relieve`] is flushing a disk now.
    pub relieving: AtomicBool,
    /// Which file each block of its disks belongs to.
    pub files: Arc<Files>,
}

/// A request that failed, in words, whether it was one for memory, and whether somebody was told of it.
#[derive(Default)]
pub(crate) struct GivenUp {
    pub why: Option<String>,
    pub memory: bool,
    pub told: bool,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub faults: AtomicU64,
    pub disk_touches: AtomicU64,
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub writes: AtomicU64,
    pub write_bytes: AtomicU64,
    pub flushes: AtomicU64,
    pub waits: AtomicU64,
    pub wait_us: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Flushes a disk on a thread of its own, if so much was written to it without a flush that the room for checksums gets short.
pub(crate) fn relieve(machine: &Arc<Machine>, disk: &Arc<Disk>) {
    if !disk.wants_flush() || machine.relieving.swap(true, Ordering::AcqRel) {
        return;
    }
    let (of, disk) = (machine.clone(), disk.clone());
    let flush = move || {
        if let Err(error) = disk.flush() {
            tracing::error!(machine = of.name, disk = disk.name, %error, "a disk's flush failed");
        }
        of.relieving.store(false, Ordering::Release);
    };
    if floe_threads::spawn("floe-relieve", flush).is_err() {
        machine.relieving.store(false, Ordering::Release);
    }
}

impl Machine {
    /// Notes that a request failed, because its source did not give what that needs.
    pub(crate) fn gives_up(&self, memory: bool, why: String) {
        *self.given_up.lock() = GivenUp {
            why: Some(why),
            memory,
            told: false,
        };
    }

    /// Notes that a request was answered that had to wait: what failed before says nothing of how the machine is now.
    pub(crate) fn is_served(&self) {
        let mut given_up = self.given_up.lock();
        if given_up.told {
            given_up.why = None;
        }
    }

    /// Returns who asks when something is fetched or queued for this machine.
    pub(crate) fn who(&self, purpose: Purpose) -> Who {
        Who {
            machine: self.id,
            purpose,
            class: *self.class.lock(),
        }
    }

    /// Returns the disk of this name.
    pub(crate) fn disk(&self, name: &str) -> Option<Arc<Disk>> {
        let disks = self.disks.read();
        disks.iter().find(|disk| disk.name == name).cloned()
    }

    /// Returns its disks as they are now.
    pub(crate) fn disks(&self) -> Vec<Arc<Disk>> {
        self.disks.read().clone()
    }

    pub(crate) fn stats(&self) -> MachineStats {
        let c = &self.counters;
        let stored: Vec<(u64, u64)> = self.disks().iter().map(|disk| disk.stored()).collect();
        MachineStats {
            faults: read(&c.faults),
            disk_touches: read(&c.disk_touches),
            reads: read(&c.reads),
            read_bytes: read(&c.read_bytes),
            writes: read(&c.writes),
            write_bytes: read(&c.write_bytes),
            flushes: read(&c.flushes),
            waits: read(&c.waits),
            wait_us: read(&c.wait_us),
            overlay_bytes: stored.iter().map(|s| s.0).sum(),
            layers: stored.iter().map(|s| s.1).max().unwrap_or(0),
        }
    }
}
