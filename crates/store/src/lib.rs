//! Verified images, chunks and segments on the local disk.
//!
//! This crate has three parts; each keeps its data in a directory that survives any kill:
//!
//! * [`Cache`]: raw 4 KiB chunks and 32 KiB segments by hash, shared by all images and machines of a node, within a budget of
//!   bytes. What a running machine touched through a [`Pin`] stays. Page faults are served from here, so [`Cache::get`] takes
//!   about a microsecond and reads the disk without holding a lock.
//! * [`Repository`]: images as immutable files (manifest, layout, packs, tags) that any web server can publish as they are.
//! * [`Ingest`]: turns regions of bytes (a disk file, dirty pages, device state) into segments and packs of a repository, using
//!   all cores, and stores only what the image itself, its parent and other images that it may use don't have.
//!
//! [`SubstratePool`] is the only part that keeps nothing on the disk: the chunks of substrates, compressed in memory.
//!
//! Nothing here uses a network, knows what a VM is or decides what to fetch: see `floe-source`, `floe-machine` and
//! `floe-planner`. Every error is a [`StoreError`]; the one for a full disk says how to go on ([`StoreError::Full`]).
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

mod cache;
mod durable;
mod error;
mod ingest;
mod pool;
pub mod private;
mod repository;

pub use cache::{Cache, CacheReport, CacheStats, Got, Pin, read_now};
pub use durable::{Durability, replace_file, second_name};
pub use error::StoreError;
pub use ingest::{Ingest, IngestOptions, IngestProgress, IngestStats, next_data};
pub use pool::{
    Admitted, Lacking, Packed, Packing, PoolItem, PoolPiece, PoolUsage,
    SMALL_REGIONS as POOL_SMALL_REGIONS, SubstratePool,
};
pub use repository::{
    Damage, ExportStats, FramePlace, GcOptions, GcReport, ImageEntry, Inspection, Optimized,
    Rearranged, RegionInfo, Repository, Scope, TagEntry, UNFINISHED_PULL, VERSION_TEXT,
    VerifyReport, parse_tag_file, tag_file_name,
};
