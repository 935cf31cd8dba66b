//! The handles by which a caller refers to an image or a machine on the mount.

use crate::abi;
use crate::core::Core;
use crate::image::Image;
use crate::inbox::{Message, Stir};
use crate::machine::{self, Machine};
use crate::overlay::{Base, Disk};
use crate::{Buffering, FailedDisk, FrozenDisk, ImageStats, MachineStats, MountError, Waits};
use floe_image::Hash;
use floe_planner::{Event, Model, Progress};
use floe_sched::{Class, Purpose, Who};
use floe_source::SourceError;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An image on the mount.
#[derive(Clone)]
pub struct ImageHandle {
    pub(crate) image: Arc<Image>,
    pub(crate) core: Arc<Core>,
    pub(crate) mountpoint: PathBuf,
}

impl ImageHandle {
    /// Returns its name: the hash of its manifest.
    pub fn id(&self) -> Hash {
        self.image.id
    }

    /// Returns the path of a region's file in the image's directory; `None` if there is no such region.
    pub fn region_path(&self, region: &str) -> Option<PathBuf> {
        self.image.region(region)?;
        Some(
            self.mountpoint
                .join(format!("images/{}/{region}", self.image.id)),
        )
    }

    /// Tells the planner which chunks of a region a machine (or the node itself) will want, in the order in which it will.
    pub fn expect(
        &self,
        region: &str,
        chunks: Vec<u64>,
        machine: Option<&MachineHandle>,
    ) -> Result<(), MountError> {
        let unknown = || MountError::Unknown {
            what: "region",
            name: region.to_owned(),
        };
        let number = self.image.region(region).ok_or_else(unknown)?;
        let expected = Event::Expect {
            region: self.image.regions[number].id,
            chunks,
            who: machine.map_or(Who::node(Purpose::Prefetch), |machine| {
                machine.machine.who(Purpose::Prefetch)
            }),
        };
        self.core.queues.inbox.call(Message::Event(expected));
        Ok(())
    }

    /// Streams by a model from now on, to the machines for which [`MachineHandle::stream`] was called. Call this before they run
    /// if their start is to be buffered too. A model of another image is refused (and logged); one that the planner's policy doesn't use changes nothing.
    pub fn model(&self, model: Arc<Model>) {
        if model.image() != self.image.id {
            tracing::warn!(image = %self.image.id.short(), of = %model.image().short(), "a model of another image is not used");
            return;
        }
        self.image.streaming.activate();
        let regions = self.image.regions.iter().map(|r| r.id).collect();
        let model = Event::Model { regions, model };
        self.core.queues.inbox.call(Message::Event(model));
    }

    /// Calls `listen` with a machine's name when one of the image's machines should be paused for buffering and when it may go
    /// on, one call after the other, on a thread of its own. For those that should be paused now it is called at once. There is
    /// one listener at a time.
    pub fn on_buffering(&self, listen: impl Fn(&str, Buffering) + Send + Sync + 'static) {
        self.image.streaming.listen(listen);
    }

    /// Ends watching which chunks of this image are touched: chunks around touched ones that are here go into the page cache
    /// too, so that a guest waits for fewer pages. Traces and the planner don't see touches of pages that were pushed.
    pub fn unwatch(&self) {
        self.image.unwatched.store(true, Ordering::Relaxed);
    }

    /// Has what is found out of the image's file systems kept in the directory `maps`, in a file for each disk, and taken from there the
    /// next time. These files should go with the image. `is_here` says whether all of the image is on this host by now, so that reading it
    /// costs no link anything: only then is what isn't in the cache read for this. It is asked on threads that may be slow. The first call
    /// for an image counts.
    pub fn keep_maps(&self, maps: PathBuf, is_here: impl Fn() -> bool + Send + Sync + 'static) {
        self.image.maps.keep_in(maps);
        let _ = self.image.looks_here.set(Box::new(is_here));
    }

    /// Returns the counters.
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
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.machine.name
    }

    /// Returns the path of the memory's file, if the image has memory.
    pub fn ram_path(&self) -> Option<PathBuf> {
        self.machine
            .image
            .region("ram")
            .map(|_| self.dir.join("ram"))
    }

    /// Returns the paths of all files of the machine's memory: `ram`, then one for each block that was added to the captured
    /// machine. Empty if the image has no memory.
    pub fn memory_paths(&self) -> Vec<PathBuf> {
        let names = (0..).map(floe_image::memory_region);
        names
            .take_while(|name| self.machine.image.region(name).is_some())
            .map(|name| self.dir.join(name))
            .collect()
    }

    /// Returns the path of a disk's file; `None` if the machine has no such disk.
    pub fn disk_path(&self, disk: &str) -> Option<PathBuf> {
        self.machine.disk(disk).map(|d| self.dir.join(&d.name))
    }

    /// Returns the paths of the disks' files, in the order of [`crate::MachineSpec::disks`].
    pub fn disk_paths(&self) -> Vec<PathBuf> {
        self.machine
            .disks()
            .iter()
            .map(|d| self.dir.join(&d.name))
            .collect()
    }

    /// Sets the VMM's process, by which its memory faults are recognised where its user ([`crate::MachineSpec::uid`]) doesn't
    /// tell. Clones share the memory's file: a fault goes into the trace of the machine whose process took it, and only the
    /// first fault of a page on this host is seen at all.
    pub fn set_pid(&self, pid: u32) {
        self.core.askers.set_process(&self.machine, pid);
    }

    /// Streams the image to this machine from now on, if the image has a model or gets one: the machine has a place of its own
    /// in the model, and pauses of its own. Call this when it starts; `running` says that it ran before, so that its start needs
    /// no buffering. The stream ends when the machine is removed from the mount.
    pub fn stream(&self, running: bool) {
        let machine = self.machine.clone();
        let starts = Stir::Starts { machine, running };
        self.core.queues.inbox.call(Message::Machine(starts));
    }

    /// Returns what the image's model has planned for this machine and what came of it; zero while it isn't streamed. At most a
    /// quarter of a second old.
    pub fn progress(&self) -> Progress {
        *self.machine.progress.lock()
    }

    /// Sets how urgent this machine's requests are compared with others for the same purpose.
    pub fn set_class(&self, class: Class) {
        *self.machine.class.lock() = class;
    }

    /// Puts a new, empty layer on every disk; what was written before is in the frozen ones. Creates two small files a disk.
    /// The machine should be paused, so that all disks are frozen at one moment.
    pub fn freeze(&self) -> Result<FrozenLayers, MountError> {
        let disks = self
            .machine
            .disks()
            .iter()
            .map(|disk| disk.freeze())
            .collect::<Result<_, _>>()?;
        Ok(FrozenLayers { disks })
    }

    /// Returns whether any disk still has layers of this freeze: false once it, or a later freeze, was published and dropped.
    pub fn has_frozen(&self, frozen: &FrozenLayers) -> bool {
        let has = |frozen: &FrozenDisk| {
            let disk = self.machine.disk(frozen.name());
            disk.is_some_and(|disk| disk.has_frozen(frozen))
        };
        frozen.disks.iter().any(has)
    }

    /// Returns the frozen layers that an earlier node has left, given the number of each disk's highest frozen layer, in the disks' order;
    /// `None` if any disk no longer has its layer.
    pub fn frozen(&self, last_layers: &[u32]) -> Option<FrozenLayers> {
        let disks = self.machine.disks();
        if disks.len() != last_layers.len() {
            return None;
        }
        let pairs = disks.iter().zip(last_layers);
        let disks = pairs.map(|(disk, last)| disk.frozen(*last));
        Some(FrozenLayers {
            disks: disks.collect::<Option<_>>()?,
        })
    }

    /// Returns what earlier freezes have left, without another one: all layers of each disk but the top one; `None` if a disk has only
    /// that.
    pub fn frozen_before(&self) -> Option<FrozenLayers> {
        let disks = self.machine.disks();
        let below = |disk: &Arc<Disk>| disk.frozen(disk.top().number.checked_sub(1)?);
        Some(FrozenLayers {
            disks: disks.iter().map(below).collect::<Option<_>>()?,
        })
    }

    /// Returns the number of layers of the disk that has most: each read searches that many.
    pub fn height(&self) -> usize {
        let disks = self.machine.disks();
        disks.iter().map(|disk| disk.height()).max().unwrap_or(0)
    }

    /// Drops frozen layers, whose content `image` has now in regions of the disks' names: these become the disks' bases, and
    /// the frozen layers' files are removed. Layers frozen later stay.
    pub fn drop_frozen(
        &self,
        frozen: &FrozenLayers,
        image: &ImageHandle,
    ) -> Result<(), MountError> {
        for frozen in &frozen.disks {
            // one that was taken away since has no layers to drop, nor has another of its name
            let disk = self.machine.disk(frozen.name());
            let Some(disk) = disk.filter(|disk| disk.has_frozen(frozen)) else {
                continue;
            };
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

    /// Makes a disk larger, also while a VMM has it open; a size in bytes below the disk's is refused. The new part reads as zeros. When
    /// this returns the new size is durable, and it is what the file's attributes say; a VMM must still be told to look at them.
    pub fn grow_disk(&self, disk: &str, bytes: u64) -> Result<(), MountError> {
        let grown = self.machine.disk(disk).ok_or_else(|| MountError::Unknown {
            what: "disk",
            name: disk.to_owned(),
        })?;
        grown.grow(bytes)?;
        let path = format!("machines/{}/{disk}", self.machine.name);
        if let Some(ino) = self.core.tree.ino(&path) {
            let head = abi::notify_inval_attributes(ino);
            // ENOENT: the kernel never looked the name up.
            let _ = self.core.devices[0].notify(abi::notify::INVAL_INODE, &head, &[]);
        }
        Ok(())
    }

    /// Returns the disks' names with their sizes in bytes, in the order of [`crate::MachineSpec::disks`].
    pub fn disk_sizes(&self) -> Vec<(String, u64)> {
        let disks = self.machine.disks();
        let sizes = disks.iter().map(|d| (d.name.clone(), d.size()));
        sizes.collect()
    }

    /// Makes all completed writes durable.
    pub fn flush(&self) -> Result<(), MountError> {
        let disks = self.machine.disks();
        disks.iter().try_for_each(|d| {
            d.flush()
                .map(|_| ())
                .map_err(MountError::io("flush disk", &d.name))
        })
    }

    /// Returns the disks whose flushes fail because the host's disk under them failed. Each further flush tries to write again
    /// what may be lost, and succeeds when all of it was there.
    pub fn failed_disks(&self) -> Vec<FailedDisk> {
        let failed = |d: &Arc<Disk>| {
            let failure = d.failure()?;
            Some(FailedDisk {
                disk: d.name.clone(),
                errno: failure.errno,
                lost_bytes: failure.lost_bytes,
                unknown: failure.unknown,
            })
        };
        self.machine.disks().iter().filter_map(failed).collect()
    }

    /// Accepts the disks as they are now, whatever was lost of what the guest wrote after its last flush. Only for a guest that
    /// starts anew, to which this is a power cut; never for one that goes on running.
    pub fn accept_losses(&self) {
        let disks = self.machine.disks();
        disks.iter().for_each(|disk| disk.accept_losses());
    }

    /// Returns how long the oldest of this machine's requests have waited for what is not on this host. The kernel asks once for a page
    /// that several machines of an image wait for: it counts for the one that touched it first. May read `/proc`.
    pub fn waits(&self) -> Waits {
        self.core.waits(&self.machine)
    }

    /// Returns why this machine's requests wait, if their source has said anything: of one that refuses them also while it is not asked.
    pub fn why_waits(&self) -> Option<SourceError> {
        self.core.why_waits(&self.machine)
    }

    /// Sets how long this machine's requests wait for chunks that no source gives, from now on and for those that wait already, before
    /// they fail; `None` is as long as [`crate::MountOptions::io_timeout`] says.
    pub fn limit_waits(&self, limit: Option<Duration>) {
        self.core.waits_max.set(self.machine.id, limit);
        self.core.queues.retries.limits_changed();
    }

    /// Returns in words the last of its requests that failed because its source did not give what it needs, and why; `None` once another
    /// one that had to wait was served.
    pub fn given_up(&self) -> Option<String> {
        self.machine.given_up.lock().why.clone()
    }

    /// Does the same if that was one for its memory: a VMM that gets an error there ends.
    pub fn given_up_memory(&self) -> Option<String> {
        let given_up = self.machine.given_up.lock();
        given_up.why.clone().filter(|_| given_up.memory)
    }

    /// Returns what [`MachineHandle::given_up`] does once for each such request, of several since the last call for the last one.
    pub fn newly_given_up(&self) -> Option<String> {
        let mut given_up = self.machine.given_up.lock();
        match std::mem::replace(&mut given_up.told, true) {
            true => None,
            false => given_up.why.clone(),
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> MachineStats {
        self.machine.stats()
    }

    /// Writes the trace (`floe_image::trace`) out up to now and returns its file's path.
    pub fn trace_path(&self) -> Result<PathBuf, MountError> {
        self.machine.trace.write_out().map(Path::to_owned)
    }
}

/// The frozen layers of a machine's disks, all of one moment.
pub struct FrozenLayers {
    pub(crate) disks: Vec<FrozenDisk>,
}

impl FrozenLayers {
    /// The disks, in the order of [`crate::MachineSpec::disks`].
    pub fn disks(&self) -> &[FrozenDisk] {
        &self.disks
    }
}
