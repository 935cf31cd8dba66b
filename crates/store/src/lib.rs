//! Verified state on the local disk.
//!
//! Three things live here, and each is a directory that survives any kill:
//!
//! * [`Cache`]: raw 4 KiB chunks and 32 KiB segments by hash, shared by every image and machine of a node, within a byte
//!   budget. What a running machine touched through a [`Pin`] stays. A page fault ends here, so [`Cache::get`] takes
//!   about a microsecond and holds no lock over I/O.
//! * [`Repository`]: images as immutable files (manifest, layout, packs, tags) that any web server can publish as they are.
//! * [`Ingest`]: turns regions of bytes (a disk file, dirty pages, device state) into segments and packs of a repository
//!   with all cores, and stores only what neither the image itself nor its parent has.
//!
//! Nothing here talks to a network, knows what a VM is or decides what to fetch: see `floe-source`, `floe-machine` and
//! `floe-planner`. Every error is a [`StoreError`], and a full disk is one that says how to go on ([`StoreError::Full`]).

mod cache;
mod durable;
mod error;
mod ingest;
pub mod private;
mod repository;

pub use cache::{Cache, CacheReport, CacheStats, Pin};
pub use durable::{Durability, replace_file};
pub use error::StoreError;
pub use ingest::{Ingest, IngestOptions, IngestProgress, IngestStats};
pub use repository::{
    Damage, ExportStats, FramePlace, GcOptions, GcReport, ImageEntry, Inspection, Optimized,
    Rearranged, RegionInfo, Repository, Scope, TagEntry, VerifyReport, parse_tag_file,
    tag_file_name,
};
