//! Shows a machine's state to its VMM: memory and disks as files of one FUSE mount.
//!
//! ```text
//! <mountpoint>/images/<image id>/<region>       the content of an image; writes are refused
//! <mountpoint>/machines/<machine>/ram|vram      the same inode as the image's region: clones share its page cache
//! <mountpoint>/machines/<machine>/<disk>        a copy-on-write disk
//! ```
//!
//! [`Mount`] is the one mount of a node. [`Mount::add_image`] makes an image's regions readable long before their bytes are
//! here: a read of a chunk that isn't in the cache asks the fetcher and is answered by the thread that brings it, while the
//! threads that serve the kernel go on. [`Mount::add_machine`] gives a machine its disks: layers over the image
//! ([`MachineHandle::freeze`] adds a layer at once). A node that is killed leaves its `/dev/fuse` descriptors with the
//! [`supervisor`]; the next node takes the connection over and no VMM notices. A [`Keeper`] ensures that a supervisor runs.
//!
//! Not here: where chunks come from (floe-source), what is fetched ahead (floe-planner), what a machine is (floe-machine). The
//! crate speaks the kernel's protocol itself: no FUSE library can take a connection over.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

mod abi;
mod api;
mod askers;
mod backend;
mod blank;
mod chores;
mod classes;
mod core;
mod crew;
mod device;
mod dirs;
mod disks;
mod error;
mod file_maps;
mod files;
mod handles;
mod holders;
mod image;
mod inbox;
mod io;
mod job;
mod keeper;
mod machine;
mod maps;
mod options;
mod overlay;
mod owner;
mod patience;
mod pinned;
mod push;
mod queue;
mod queues;
mod raw;
mod refused;
mod request;
mod retries;
mod serve;
mod specs;
mod start;
mod stats;
mod streaming;
pub mod supervisor;
mod trace;
mod tree;
mod verdicts;
mod waiting;
mod writeback;

pub use api::Mount;
pub use blank::{BlankDisk, BlankSpec};
pub use classes::{IoMachine, IoProgram, IoUnknown};
pub use device::try_mount;
pub use error::MountError;
pub use handles::{FrozenLayers, ImageHandle, MachineHandle};
pub use io::{IoSaid, IoStatus};
pub use keeper::Keeper;
pub use options::{IoScheduling, MountOptions};
pub use overlay::FrozenDisk;
pub use specs::{DiskSpec, ImageSpec, MachineSpec};
pub use stats::{Buffering, FailedDisk, ImageStats, MachineStats, PushReport, Stats, Waits};
