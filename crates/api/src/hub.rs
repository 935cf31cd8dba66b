//! The types of the hub's HTTP interface that its clients need: requests and answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The header of a batch that gives the encoding of its records: `raw` or `zstd`.
pub const ENCODING_HEADER: &str = "x-floe-encoding";
/// Bytes of one item in the body of a `have` request: kind and hash.
pub const HAVE_QUESTION_BYTES: usize = 33;
/// Largest pack that is uploaded, in bytes: the most that a broken connection loses, and that the hub verifies in
/// memory.
pub const PACK_BYTES_MAX: u64 = 8 << 20;
/// Most items in one `have` request (33 bytes each).
pub const HAVE_ITEMS_MAX: usize = 32 * 1024;

/// The image that a name points to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resolved {
    /// The image's id: 64 hex digits.
    pub id: String,
    /// Whether the client is the user who owns it. Everything else is of somebody else's making.
    #[serde(default)]
    pub own: bool,
}

/// An image in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageEntry {
    /// Its id: 64 hex digits.
    pub id: String,
    /// Its names, as `name:tag`.
    pub names: Vec<String>,
    /// Name of the user who owns it.
    pub owner: String,
    /// Whether everybody may read it.
    pub public: bool,
    /// When it was captured or imported, in seconds since 1970.
    pub created_unix_s: u64,
    /// When it was published here, in seconds since 1970.
    pub pushed_unix_s: u64,
    /// Bytes of its content without zero chunks, uncompressed.
    pub raw_bytes: u64,
    /// Bytes of the packs that hold it, including packs that other images share.
    pub stored_bytes: u64,
    /// Whether it has a picture of its screen.
    #[serde(default)]
    pub thumbnail: bool,
    /// Whether a part of it was found damaged on the hub: it is whole again once it was pushed again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
}

/// All images that the client may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageList {
    /// Newest first.
    pub images: Vec<ImageEntry>,
}

/// Who may read an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Visibility {
    /// `true`: everybody; `false`: its owner alone.
    pub public: bool,
}

/// A substrate on a hub that is a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PooledSubstrate {
    /// Its name; empty if it has none.
    pub name: String,
    /// Id of its image: 64 hex digits.
    pub image: String,
    /// Name of the user who docked it.
    pub owner: String,
    /// Who may see it.
    #[schema(inline)]
    pub visibility: crate::Visibility,
    /// The users of the hub who may see it if it is restricted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// When it was docked, Unix time in seconds.
    pub docked_unix_s: u64,
    /// The machine that it was docked from.
    pub machine: String,
    /// vCPUs of that machine.
    pub cpus: u32,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Bytes of the packs that hold it on the disk, including packs that other images share.
    pub stored_bytes: u64,
    /// Whether it is in memory. If not, it is read from the disk.
    pub in_memory: bool,
}

/// The substrates of a pool that the client may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PooledSubstrates {
    /// By name.
    pub substrates: Vec<PooledSubstrate>,
}

/// A name for an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TagRequest {
    /// `name` or `name:tag`.
    pub name: String,
    /// The image's id. The client must own the image.
    pub id: String,
}

/// Answer to a health check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always `floe-hub`, by which a client tells a hub from a static web server.
    pub service: String,
    /// The hub's version.
    pub version: String,
}

/// An upload that may begin or continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadOpened {
    /// Id of the upload in further requests.
    pub id: String,
    /// Id of the image that is uploaded.
    pub image: String,
    /// Largest pack that is accepted, in bytes.
    pub pack_bytes_max: u64,
    /// Most items in one `have` request.
    pub have_items_max: usize,
    /// Seconds without a request after which the upload is dropped.
    pub expires_after_s: u64,
}

/// The name and visibility that a finished upload gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitRequest {
    /// `name` or `name:tag` that is to point to the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether everybody may read it. If absent, the visibility stays as it was; a new image is private.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
}

/// A published image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Committed {
    /// Its id.
    pub id: String,
    /// Bytes of its content without zero chunks, uncompressed.
    pub raw_bytes: u64,
}

/// The result of sending a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceTaken {
    /// The hash under which the trace is stored: BLAKE3 of its bytes, or of a stored longer trace that begins with it.
    pub hash: String,
    /// Whether the trace, or the longer one, was stored already.
    pub known: bool,
    /// Number of traces that are now stored for the image.
    pub kept: u64,
}

/// The body of every refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The kind of error for programs, such as `not-found`.
    pub code: String,
    /// What is wrong, including the offending value.
    pub message: String,
    /// What to do about it.
    pub fix: String,
}
