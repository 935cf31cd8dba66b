//! What a caller holds of an image or a machine on the mount.

use crate::core::Core;
use crate::image::Image;
use crate::machine::{self, Machine};
use crate::overlay::{Base, Disk};
use crate::owner::Message;
use crate::{Buffering, FailedDisk, FrozenDisk, ImageStats, MachineStats, MountError};
use floe_image::Hash;
use floe_planner::{Event, Model, Progress};
use floe_sched::Class;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An image on the mount.
#[derive(Clone)]
pub struct ImageHandle {
    pub(crate) image: Arc<Image>,
    pub(crate) core: Arc<Core>,
    pub(crate) mountpoint: PathBuf,
}

impl ImageHandle {
    /// Its name.
    pub fn id(&self) -> Hash {
        self.image.id
    }

    /// A region's file in the image's directory.
    pub fn region_path(&self, region: &str) -> Option<PathBuf> {
        self.image.region(region)?;
        Some(
            self.mountpoint
                .join(format!("images/{}/{region}", self.image.id)),
        )
    }

    /// Tells the planner that these chunks of a region will be wanted, first one first.
    pub fn expect(&self, region: &str, chunks: Vec<u64>) -> Result<(), MountError> {
        let unknown = || MountError::Unknown {
            what: "region",
            name: region.to_owned(),
        };
        let number = self.image.region(region).ok_or_else(unknown)?;
        let _ = self.core.owner.send(Message::Event(Event::Expect {
            region: self.image.regions[number].id,
            chunks,
        }));
        Ok(())
    }

    /// Streams by a model from now on; for the start to be buffered too, before the first machine runs. A model of another
    /// image is refused (and logged), one that is not for the planner's policy changes nothing.
    pub fn model(&self, model: Arc<Model>) {
        if model.image() != self.image.id {
            tracing::warn!(image = %self.image.id.short(), of = %model.image().short(), "a model of another image is not used");
            return;
        }
        self.image.streaming.activate();
        let regions = self.image.regions.iter().map(|r| r.id).collect();
        let _ = self
            .core
            .owner
            .send(Message::Event(Event::Model { regions, model }));
    }

    /// What the model has planned and what came of it; zero without a model. Not older than a quarter of a second.
    pub fn progress(&self) -> Progress {
        self.image.streaming.progress()
    }

    /// Calls `listen` when the image's machines had better be paused for buffering and when they can go on, one call after
    /// the other on a thread of its own. If they are to be paused already, that is told at once. One listener at a time.
    pub fn on_buffering(&self, listen: impl Fn(Buffering) + Send + Sync + 'static) {
        self.image.streaming.listen(listen);
    }

    /// Nobody wants to know any more which chunks of this image are touched: what is around touched ones and here goes into the page
    /// cache with them, so that a guest waits for fewer pages. Traces and the planner miss the touches of what was pushed.
    pub fn unwatch(&self) {
        self.image.unwatched.store(true, Ordering::Relaxed);
    }

    /// The counters.
    pub fn stats(&self) -> ImageStats {
        let tables = self.image.regions.iter().map(|r| r.tables());
        let (tables_loaded, tables) =
            tables.fold((0, 0), |(l, a), (loaded, all)| (l + loaded, a + all));
        ImageStats {
            touched_chunks: machine::read(&self.image.touched),
            missed_chunks: machine::read(&self.image.missed),
            zero_chunks: machine::read(&self.image.zero),
            tables_loaded,
            tables,
        }
    }
}

/// A machine on the mount.
#[derive(Clone)]
pub struct MachineHandle {
    pub(crate) machine: Arc<Machine>,
    pub(crate) core: Arc<Core>,
    pub(crate) dir: PathBuf,
}

impl MachineHandle {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.machine.name
    }

    /// The memory's file, if the image has memory.
    pub fn ram_path(&self) -> Option<PathBuf> {
        self.machine
            .image
            .region("ram")
            .map(|_| self.dir.join("ram"))
    }

    /// The files of all of the machine's memory: `ram`, and then each block that was added to the captured machine. Empty if
    /// the image has no memory.
    pub fn memory_paths(&self) -> Vec<PathBuf> {
        let names = (0..).map(floe_image::memory_region);
        names
            .take_while(|name| self.machine.image.region(name).is_some())
            .map(|name| self.dir.join(name))
            .collect()
    }

    /// The video memory's file, if the image has one.
    pub fn vram_path(&self) -> Option<PathBuf> {
        self.machine
            .image
            .region("vram")
            .map(|_| self.dir.join("vram"))
    }

    /// A disk's file.
    pub fn disk_path(&self, disk: &str) -> Option<PathBuf> {
        self.machine
            .disks
            .iter()
            .find(|d| d.name == disk)
            .map(|d| self.dir.join(&d.name))
    }

    /// The disks' files, in the order in which they were given.
    pub fn disk_paths(&self) -> Vec<PathBuf> {
        self.machine
            .disks
            .iter()
            .map(|d| self.dir.join(&d.name))
            .collect()
    }

    /// The process whose memory faults are this machine's, where its user does not say that ([`crate::MachineSpec::uid`]): clones share the memory's file, so a fault is recorded in the
    /// trace of the machine whose process took it, and only the first one on this host is seen at all.
    pub fn set_pid(&self, pid: u32) {
        self.core.askers.set_process(&self.machine, pid);
    }

    /// How urgent what this machine asks for is, beside what others ask for the same purpose.
    pub fn set_class(&self, class: Class) {
        *self.machine.class.lock() = class;
    }

    /// Puts a new layer on every disk; what was written before is in the frozen ones. Takes the time to make two small
    /// files a disk. The machine should be paused, so that all disks are frozen at one moment.
    pub fn freeze(&self) -> Result<FrozenLayers, MountError> {
        let disks = self
            .machine
            .disks
            .iter()
            .map(Disk::freeze)
            .collect::<Result<_, _>>()?;
        Ok(FrozenLayers { disks })
    }

    /// Whether layers that were frozen then are still the disks' own: no later freeze was published and dropped since.
    pub fn has_frozen(&self, frozen: &FrozenLayers) -> bool {
        let pairs = self.machine.disks.iter().zip(&frozen.disks);
        pairs
            .into_iter()
            .any(|(disk, frozen)| disk.has_frozen(frozen))
    }

    /// What a freeze under an earlier node left, by the highest layers of the disks in their order; `None` if there is nothing of
    /// it any more.
    pub fn frozen(&self, last_layers: &[u32]) -> Option<FrozenLayers> {
        let disks = &self.machine.disks;
        if disks.len() != last_layers.len() {
            return None;
        }
        let pairs = disks.iter().zip(last_layers);
        let disks = pairs.map(|(disk, last)| disk.frozen(*last));
        Some(FrozenLayers {
            disks: disks.collect::<Option<_>>()?,
        })
    }

    /// Layers of the disk that has most of them: each read looks through so many.
    pub fn height(&self) -> usize {
        let heights = self.machine.disks.iter().map(Disk::height);
        heights.max().unwrap_or(0)
    }

    /// The frozen content is now in `image`, in regions of the disks' names: they become the disks' bases and the frozen
    /// layers' files are removed. Layers frozen later stay as they are.
    pub fn drop_frozen(
        &self,
        frozen: &FrozenLayers,
        image: &ImageHandle,
    ) -> Result<(), MountError> {
        for (disk, frozen) in self.machine.disks.iter().zip(&frozen.disks) {
            let unknown = || MountError::Unknown {
                what: "region",
                name: disk.name.clone(),
            };
            let region = image.image.region(&disk.name).ok_or_else(unknown)?;
            disk.drop_frozen(
                frozen,
                Base {
                    image: image.image.clone(),
                    region,
                },
            )?;
        }
        Ok(())
    }

    /// Makes all completed writes durable.
    pub fn flush(&self) -> Result<(), MountError> {
        let mut disks = self.machine.disks.iter();
        disks.try_for_each(|d| {
            d.flush()
                .map(|_| ())
                .map_err(MountError::io("flush disk", &d.name))
        })
    }

    /// The disks whose flushes fail, because the host's disk under them failed. Each further flush tries to make good what may
    /// be lost, and succeeds when it did.
    pub fn failed_disks(&self) -> Vec<FailedDisk> {
        let failed = |d: &Disk| {
            let failure = d.failure()?;
            Some(FailedDisk {
                disk: d.name.clone(),
                errno: failure.errno,
                lost_bytes: failure.lost_bytes,
                unknown: failure.unknown,
            })
        };
        self.machine.disks.iter().filter_map(failed).collect()
    }

    /// Takes the disks as they are from now on, whatever was lost of what the guest wrote after its last flush: for a guest that
    /// starts anew, to which this is a power cut. Never for one that goes on.
    pub fn accept_losses(&self) {
        self.machine.disks.iter().for_each(Disk::accept_losses);
    }

    /// The counters.
    pub fn stats(&self) -> MachineStats {
        self.machine.stats()
    }

    /// The trace file (`floe_image::trace`), written out up to now.
    pub fn trace_path(&self) -> Result<PathBuf, MountError> {
        self.machine.trace.write_out().map(Path::to_owned)
    }
}

/// What was frozen at one moment.
pub struct FrozenLayers {
    pub(crate) disks: Vec<FrozenDisk>,
}

impl FrozenLayers {
    /// The disks, in the order in which they were given.
    pub fn disks(&self) -> &[FrozenDisk] {
        &self.disks
    }
}
