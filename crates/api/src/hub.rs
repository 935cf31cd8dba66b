//! The types of the hub's interface that its clients need: what a hub answers and is asked, over HTTP.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The header of a batch that says how its records are packed: `raw` or `zstd`.
pub const ENCODING_HEADER: &str = "x-floe-encoding";
/// Bytes of one question in the body of `have`: kind and hash.
pub const HAVE_QUESTION_BYTES: usize = 33;
/// Largest pack that is uploaded, in bytes: what a cut connection loses at most, and what the hub verifies in memory.
pub const PACK_BYTES_MAX: u64 = 8 << 20;
/// Most hashes in one `have` question (33 bytes each).
pub const HAVE_ITEMS_MAX: usize = 32 * 1024;

/// What a name means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resolved {
    /// The image's id: 64 hex digits.
    pub id: String,
}

/// An image in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageEntry {
    /// Its id: 64 hex digits.
    pub id: String,
    /// Its names, as `name:tag`.
    pub names: Vec<String>,
    /// Whose it is.
    pub owner: String,
    /// Whether everybody may read it.
    pub public: bool,
    /// When it was captured or imported, in seconds since 1970.
    pub created_unix_s: u64,
    /// When it was published here, in seconds since 1970.
    pub pushed_unix_s: u64,
    /// Raw bytes of its non-zero content.
    pub raw_bytes: u64,
    /// Bytes of the packs that hold it, shared ones included.
    pub stored_bytes: u64,
    /// Whether it has a picture of its screen.
    #[serde(default)]
    pub thumbnail: bool,
}

/// All images that the asker may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageList {
    /// Newest first.
    pub images: Vec<ImageEntry>,
}

/// Who may read an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Visibility {
    /// Everybody, or its owner alone.
    pub public: bool,
}

/// A name for an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TagRequest {
    /// `name` or `name:tag`.
    pub name: String,
    /// The image's id, which the asker must own.
    pub id: String,
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always `floe-hub`: how a client tells a hub from a static web server.
    pub service: String,
    /// The hub's version.
    pub version: String,
}

/// An upload that may begin or go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadOpened {
    /// Names the upload in its other requests.
    pub id: String,
    /// The image that it will become.
    pub image: String,
    /// Packs larger than this are refused, in bytes.
    pub pack_bytes_max: u64,
    /// Most questions in one `have`.
    pub have_items_max: usize,
    /// After so many seconds without a request it is dropped.
    pub expires_after_s: u64,
}

/// How an upload shall be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitRequest {
    /// `name` or `name:tag` that shall point to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether everybody may read it; as it was before if absent, private for a new image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
}

/// A published image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Committed {
    /// Its id.
    pub id: String,
    /// Raw bytes of its non-zero content.
    pub raw_bytes: u64,
}

/// What became of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceTaken {
    /// The name under which it is kept: BLAKE3 of its bytes, or of a longer trace's that it is the beginning of.
    pub hash: String,
    /// Whether it, or the longer one, was there already.
    pub known: bool,
    /// Traces of the image that are kept now.
    pub kept: u64,
}

/// The body of every refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// A word for programs, such as `not-found`.
    pub code: String,
    /// What is wrong, with the offending value.
    pub message: String,
    /// What to do about it.
    pub fix: String,
}
