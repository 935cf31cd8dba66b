//! Defines what a machine's state is: the data model, and every byte format of floe.
//!
//! An image is a Merkle tree of BLAKE3 hashes: a [`Manifest`] names regions (`ram`, `disk0`, ...), each region lists its
//! [`Segment`]s, each segment lists the hashes of 1024 chunks of 4 KiB. Whoever has the manifest's hash can check every byte
//! below it, wherever it comes from. Chunks and segments are sent and stored as zstd frames in packs ([`PackWriter`],
//! [`PackIndex`]); a [`Layout`] lists the packs that hold an image. With [`batch`] a hub is asked for many items at once, with
//! [`datagram`] a multicast group is; a [`trace`] records what a machine touched and when.
//!
//! Not here: files, sockets, clocks and caches (see `floe-store` and `floe-source`). No decoder trusts its input: it never
//! panics, allocates in proportion to its input only, refuses unknown versions with the reason, and accepts exactly the bytes
//! that the encoder would write, so that each value has one encoding and one hash. `docs/format.md` describes the formats byte
//! by byte.

pub mod batch;
pub mod datagram;
mod error;
mod frame;
mod hash;
mod layout;
mod lineage;
mod manifest;
mod name;
mod over;
mod pack;
mod seal;
mod segment;
pub mod trace;
pub mod tunnel;
pub mod wire;

pub use batch::{
    Encoding, ReadRequest, Record, ResponseDecoder, ResponseEncoder, ResponseError, read_response,
};
pub use error::FormatError;
pub use frame::{Kind, compress_frame, decompress_frame, decompress_frame_into};
pub use hash::{Hash, ParseHashError, chunk_hash, is_zero};
pub use layout::{LAYOUT_BYTES_MAX, LAYOUT_PACKS_MAX, Layout};
pub use lineage::{LINEAGE_DEPTH_MAX, LineageError, lineage};
pub use manifest::{
    CDROM_REGION, CONFIG_BYTES_MAX, CONFIG_LIST_MAX, CONFIG_STRING_MAX, CPU_DRIVER_SUFFIX,
    FIRMWARE_REGION, IMAGE_BYTES_MAX, MANIFEST_BYTES_MAX, MachineConfig, Manifest, NVRAM_REGION,
    PATCHES_MAX, Patch, REGION_NAME_MAX, REGIONS_MAX, Region, SEED_REGION, SPECIAL_DISKS,
    disk_number, is_special_disk, memory_block, memory_region, region_name_is_valid,
};
pub use name::{ImageName, NAME_BYTES_MAX, NameError, TAG_BYTES_MAX};
pub use over::Over;
pub use pack::{
    FrameInfo, Location, PACK_FOOTER_BYTES, PACK_HEADER_BYTES, PACK_INDEX_BYTES_MAX,
    PACK_ITEMS_MAX, PackIndex, PackRef, PackWriter, check_pack_header,
};
pub use seal::{REST_BYTES, RestKey};
pub use segment::Segment;
pub use trace::{Access, TraceEnd, TraceHeader, TraceReader, TraceWriter};

/// Bytes of a chunk: the size of a page, as in vTube, so that equal pages in memory and on disk become one chunk.
pub const CHUNK_SIZE: usize = 4096;
/// Chunks in a segment: 4 MiB of a region.
pub const CHUNKS_PER_SEGMENT: usize = 1024;
/// Bytes of an encoded segment: 1024 hashes of 32 bytes.
pub const SEGMENT_BYTES: usize = CHUNKS_PER_SEGMENT * 32;
/// Bytes of a region that one segment describes.
pub const SEGMENT_SPAN: u64 = (CHUNKS_PER_SEGMENT * CHUNK_SIZE) as u64;
/// Most chunks in one zstd frame: 64 KiB. Larger frames compress little better and make a demand read slower.
pub const FRAME_MAX_CHUNKS: usize = 16;
/// Most compressed bytes of a frame: 64 KiB that don't compress, and zstd's overhead, rounded up generously.
pub const FRAME_BYTES_MAX: u32 = 68 * 1024;
