//! The life of a machine: start, capture, restore, adopt.
//!
//! A [`Spec`] describes a machine; [`Machine`] is one QEMU process that runs it, controlled over QMP; a [`Capture`] is
//! its state, taken in a pause of some tens of milliseconds; a [`Standby`] is a machine with a captured state loaded,
//! waiting to be resumed.
//!
//! ```no_run
//! # use floe_machine::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut spec = Spec::new("web", "/var/lib/floe/machines/web", accel::detect(), Programs::of_this_host()?);
//! spec.boot = Some(Boot { kernel: "/boot/vmlinuz".into(), initrd: Some("/boot/initrd.img".into()) });
//! let machine = Machine::start(spec)?;
//! let capture = machine.capture(CaptureOptions::default(), || Ok::<_, std::io::Error>(()))?;
//! println!("paused for {:?}, {} pages", capture.pause.total(), capture.ram.len());
//! # Ok(())
//! # }
//! ```
//!
//! A machine is confined: a user of its own if the caller is root, QEMU's own seccomp sandbox, Unix sockets only. It
//! outlives the process that started it; [`Machine::adopt`] takes it over again. An image's configuration may come from
//! anyone, so nothing in it gets into QEMU's command line unchecked.
//!
//! This crate stores, hashes and fetches nothing (see `floe-store`, `floe-mount`); it gets RAM and disks as paths.
//! Networks between machines, placement and names belong to the node. It has no asynchronous runtime: its calls block.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

pub mod accel;
mod balloon;
mod buffers;
pub mod calls;
mod capture;
pub mod cgroup;
mod clock;
mod command;
mod confine;
pub mod console;
mod copying;
mod devices;
mod disk_size;
mod error;
pub mod exec;
mod face;
mod files;
mod grow;
pub mod guard;
mod hardware;
mod host;
mod hurry;
mod incompatible;
mod input;
mod launch;
mod machine;
mod memory;
mod models;
mod pages;
mod ports;
mod process;
mod profile;
pub mod qga;
pub mod qmp;
mod ram_fd;
mod reads;
mod record;
mod restore;
mod rounds;
mod screen;
mod sectors;
mod shown;
mod socket;
mod sockets;
mod spec;
pub mod tool;
mod usage;
mod writes;

pub use accel::Accel;
pub use buffers::MemoryFile;
pub use capture::{Ahead, Capture, CaptureOptions, Pause};
pub use clock::{AGENT_WAIT_MAX, ClockSync, PendingClock};
pub use command::{RamBacking, give_mac, hardware_of, renew_mac};
pub use devices::{VGA_MEMORY_MIB, added_card_ids, has_network_card};
pub use disk_size::disk_model;
pub use error::{GrowError, MachineError};
pub use exec::User;
pub use grow::Reception;
pub use guard::{CONSOLE_LOG_BYTES, HostAccess};
pub use hardware::{
    MEMORY_SLOTS, MEMORY_STEP_BYTES, Room, give_disk, is_removable_disk, set_size, take_disk,
};
pub use host::Host;
pub use incompatible::{CPU_MODEL_DEFAULT, Incompatible, QEMU_OLDEST};
pub use input::key_of;
pub use launch::START_TIMEOUT;
pub use machine::{Continuing, End, Machine, Status};
pub use models::{DiskModel, Models, NetworkModel};
pub use pages::{Pages, Rest};
pub use process::{Process, ProcessId};
pub use profile::Profile;
pub use record::Record;
pub use restore::{Blank, LOAD_TIMEOUT, Restored, Snapshot, Stage, Standby};
pub use screen::parse_ppm;
pub use sectors::SECTOR_BYTES;
pub use shown::{Shown, shown};
pub use sockets::Socket;
pub use spec::{
    Boot, CMDLINE_BYTES_MAX, CPUS_MAX, DISKS_MAX, MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MAX,
    MEMORY_BYTES_MIN, PortForward, Programs, Protocol, Spec, Tap,
};
pub use usage::Usage;
