//! The mount.

#![allow(unused_variables, clippy::unimplemented)]

use crate::{ImageSpec, ImageStats, MachineSpec, MachineStats, MountError, MountOptions, PushReport, Stats};
use floe_image::{CHUNK_SIZE, Hash};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The mount of a node.
pub struct Mount {}

impl Mount {
    /// Mounts on `mountpoint`, or takes over the connection that the supervisor still holds for it. After a takeover
    /// requests for images and machines that weren't added yet wait: add them all, then call [`Mount::takeover_done`].
    pub fn start(mountpoint: &Path, options: MountOptions) -> Result<Self, MountError> {
        unimplemented!()
    }
    /// Whether a live connection was taken over.
    pub fn took_over(&self) -> bool {
        unimplemented!()
    }
    /// The images and the machines that the connection taken over knows and that weren't added yet.
    pub fn expected(&self) -> (Vec<Hash>, Vec<String>) {
        unimplemented!()
    }
    /// Everything was added again: what is still missing is gone (ESTALE).
    pub fn takeover_done(&self) {
        unimplemented!()
    }
    /// Shows an image. Adding one that is there gives the same handle.
    pub fn add_image(&self, spec: ImageSpec) -> Result<ImageHandle, MountError> {
        unimplemented!()
    }
    /// Shows a machine; its layers go on from what is in its directory. The images in [`Mount::recorded_bases`] of that
    /// directory must have been added.
    pub fn add_machine(&self, spec: MachineSpec) -> Result<MachineHandle, MountError> {
        unimplemented!()
    }
    /// The images that the disks in a machine's directory are relative to.
    pub fn recorded_bases(dir: &Path) -> Result<Vec<Hash>, MountError> {
        unimplemented!()
    }
    /// Takes an image's directory away. Machines that use it keep it.
    pub fn remove_image(&self, id: &Hash) -> Result<(), MountError> {
        unimplemented!()
    }
    /// Makes a machine's disks durable and takes it away. Its files stay in its directory.
    pub fn remove_machine(&self, name: &str) -> Result<(), MountError> {
        unimplemented!()
    }
    /// Puts chunks `chunks` of a region, as far as they are here, into the page cache (NOTIFY_STORE). Blocks; not to be called
    /// from a fetcher's thread.
    pub fn push(&self, image: &ImageHandle, region: &str, chunks: Range<u64>) -> Result<PushReport, MountError> {
        unimplemented!()
    }
    /// The counters.
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }
    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        unimplemented!()
    }
    /// Unmounts; the supervisor forgets the connection. Open files fail from now on. (Dropping a mount does the same.)
    pub fn unmount(self) -> Result<(), MountError> {
        unimplemented!()
    }
    /// Leaves the connection with the supervisor for the next node: to be called just before the process ends.
    pub fn detach(self) -> Result<(), MountError> {
        unimplemented!()
    }
}

/// An image on the mount.
#[derive(Clone)]
pub struct ImageHandle {}

impl ImageHandle {
    /// Its name.
    pub fn id(&self) -> Hash {
        unimplemented!()
    }
    /// A region's file.
    pub fn region_path(&self, region: &str) -> Option<PathBuf> {
        unimplemented!()
    }
    /// Tells the planner that these chunks of a region will be wanted, first one first.
    pub fn expect(&self, region: &str, chunks: Vec<u64>) -> Result<(), MountError> {
        unimplemented!()
    }
    /// The counters.
    pub fn stats(&self) -> ImageStats {
        unimplemented!()
    }
}

/// A machine on the mount.
#[derive(Clone)]
pub struct MachineHandle {}

impl MachineHandle {
    /// Its name.
    pub fn name(&self) -> &str {
        unimplemented!()
    }
    /// The memory's file, if the image has memory.
    pub fn ram_path(&self) -> Option<PathBuf> {
        unimplemented!()
    }
    /// The video memory's file, if the image has one.
    pub fn vram_path(&self) -> Option<PathBuf> {
        unimplemented!()
    }
    /// A disk's file.
    pub fn disk_path(&self, disk: &str) -> Option<PathBuf> {
        unimplemented!()
    }
    /// The disks' files, in the order in which they were given.
    pub fn disk_paths(&self) -> Vec<PathBuf> {
        unimplemented!()
    }
    /// The process whose memory faults are this machine's (for its trace: clones share the memory's file).
    pub fn set_pid(&self, pid: u32) {
        unimplemented!()
    }
    /// Puts a new layer on every disk; what was written before is in the frozen ones. Takes the time to make two small
    /// files a disk. The machine should be paused, so that all disks are frozen at one moment.
    pub fn freeze(&self) -> Result<FrozenLayers, MountError> {
        unimplemented!()
    }
    /// The frozen content is now in `image`: it becomes the disks' base and the frozen layers' files are removed.
    /// Layers frozen later stay as they are.
    pub fn drop_frozen(&self, frozen: &FrozenLayers, image: &ImageHandle) -> Result<(), MountError> {
        unimplemented!()
    }
    /// Makes all completed writes durable.
    pub fn flush(&self) -> Result<(), MountError> {
        unimplemented!()
    }
    /// The counters.
    pub fn stats(&self) -> MachineStats {
        unimplemented!()
    }
    /// The trace file (`floe_image::trace`), written out up to now.
    pub fn trace_path(&self) -> Result<PathBuf, MountError> {
        unimplemented!()
    }
}

/// What was frozen at one moment.
pub struct FrozenLayers {}

impl FrozenLayers {
    /// The disks, in the order in which they were given.
    pub fn disks(&self) -> &[FrozenDisk] {
        unimplemented!()
    }
}

/// One frozen disk.
pub struct FrozenDisk {}

impl FrozenDisk {
    /// The disk's name.
    pub fn name(&self) -> &str {
        unimplemented!()
    }
    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        unimplemented!()
    }
    /// The image and region that the layers are relative to.
    pub fn base(&self) -> Option<(Hash, &str)> {
        unimplemented!()
    }
    /// The chunks that differ from the base, in order. A chunk of which only sectors were written is merged with the base's,
    /// which may have to be fetched: the iterator blocks then.
    pub fn chunks(&self) -> impl Iterator<Item = Result<(u64, [u8; CHUNK_SIZE]), MountError>> + Send + '_ {
        std::iter::empty()
    }
    /// How many chunks that are.
    pub fn count(&self) -> u64 {
        unimplemented!()
    }
}
