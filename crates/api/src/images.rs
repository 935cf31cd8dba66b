//! Images: what is asked and told of them.

use super::*;

/// Query of the calls about one image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ImageQuery {
    /// `name`, `name:tag`, an id or a unique prefix of one.
    pub image: String,
}

/// Answer of `GET /v1/images`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImageList {
    /// Newest first.
    pub images: Vec<ImageSummary>,
}

/// One image, short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImageSummary {
    /// BLAKE3 of the manifest.
    pub id: String,
    /// Names that point to it.
    pub names: Vec<String>,
    /// When it was made, Unix time.
    pub created_unix_s: u64,
    /// The image that it was captured over.
    pub parent: Option<String>,
    /// Whether it is a running machine's state (has `ram` and `device`).
    pub live: bool,
    /// Sum of the regions' sizes.
    pub virtual_bytes: u64,
    /// Bytes of the packs that hold it (shared packs count for every image).
    pub stored_bytes: u64,
    /// Bytes of those packs that other images need as well: what removing this one alone doesn't free.
    #[serde(default)]
    pub shared_bytes: u64,
    /// Whether it has a picture of its screen (`GET /v1/images/{name}/thumbnail`).
    #[serde(default)]
    pub thumbnail: bool,
    /// Free text by key.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Median time of its last runs on this node, from the request to a running guest; `None` before the first.
    #[serde(default)]
    pub start_ms: Option<f64>,
}

/// One image, whole (`GET /v1/image`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImageDetail {
    /// The short form.
    #[serde(flatten)]
    pub summary: ImageSummary,
    /// Its regions.
    pub regions: Vec<RegionInfo>,
    /// Number of packs.
    pub packs: u64,
    /// QEMU machine type it was captured on.
    pub machine_type: Option<String>,
    /// QEMU version it was captured on.
    pub qemu_version: Option<String>,
    /// Accelerator it was captured on.
    pub accel: Option<String>,
    /// CPU model.
    pub cpu_model: Option<String>,
    /// CPU flags that a host must have.
    pub cpu_flags: Vec<String>,
    /// Virtual CPUs.
    pub cpus: Option<u32>,
    /// RAM.
    pub memory_bytes: Option<u64>,
    /// Kernel command line.
    pub cmdline: Option<String>,
    /// Devices, as QEMU takes them.
    pub devices: Vec<String>,
}

/// One region of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RegionInfo {
    /// `ram`, `disk0`, `device`, ...
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// Segments that are not all zero (each stands for up to 4 MiB).
    pub segments: u64,
}

/// What the disk images of an import are taken for, whatever they look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ImportFormat {
    /// The disk's bytes.
    Raw,
}

/// Body of `POST /v1/images/import`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// Disk images (raw, qcow2, vmdk, vdi, vhdx, vhd; also in gzip, xz, Zstandard or an OVA) as absolute paths: `disk0`, `disk1`, ...
    #[serde(default)]
    pub disks: Vec<String>,
    /// What the disk images are; found out if absent.
    #[serde(default)]
    pub format: Option<ImportFormat>,
    /// Kernel for direct boot, absolute path.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Initial ramdisk, absolute path.
    #[serde(default)]
    pub initrd: Option<String>,
    /// Kernel command line.
    #[serde(default)]
    pub cmdline: Option<String>,
    /// `name` or `name:tag` to give it.
    #[serde(default)]
    pub name: Option<String>,
    /// RAM that its machines get if `run` doesn't say.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Virtual CPUs that its machines get if `run` doesn't say.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// Free text by key.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Answer of `POST /v1/uploads`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UploadInfo {
    /// For `DELETE /v1/uploads/{id}`.
    pub id: String,
    /// Where it is, for `POST /v1/images/import`. Removed after a day.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// What an import or a capture stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredReport {
    /// Bytes that were read.
    pub bytes_in: u64,
    /// Chunks that were new.
    pub new_chunks: u64,
    /// What they take, compressed.
    pub new_bytes_compressed: u64,
    /// Chunks that were there already.
    pub dedup_chunks: u64,
    /// Chunks of zeroes.
    pub zero_chunks: u64,
}

/// What crossed the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TransferReport {
    /// Bytes sent or received.
    pub wire_bytes: u64,
    /// Bytes that the other side had.
    pub skipped_bytes: u64,
    /// Whether an earlier, cut transfer was continued.
    pub resumed: bool,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VerifyReport {
    /// Items that were read and hashed.
    pub checked: u64,
    /// What is wrong, one line each; empty if all is well.
    pub problems: Vec<String>,
}

/// Body of `POST /v1/images/optimize`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OptimizeRequest {
    /// The image: a local one, or the path of one in a directory of images.
    pub image: String,
    /// Files with traces to learn from, absolute paths. Without any, what is known of the image here: its traces, the model
    /// of its hub, or its rehearsal.
    #[serde(default)]
    pub traces: Vec<String>,
}

/// What an image is laid out by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaidOutBy {
    /// Traces that the request named.
    Files,
    /// Traces of machines of this host.
    #[default]
    Traces,
    /// The model that a hub made of its users' traces.
    Hub,
    /// What the rehearsal of the capture touched.
    Rehearsal,
}

/// What laying an image out anew came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OptimizeReport {
    /// What it is laid out by.
    pub by: LaidOutBy,
    /// Traces behind it.
    pub traces: u64,
    /// Groups of chunks that are used together, as far as the image holds them.
    pub clusters: u64,
    /// Their chunks, each content counted once.
    pub chunks: u64,
    /// Range requests that fetch all clusters from a server of plain files, one after the other, before.
    pub reads_before: u64,
    /// The bytes that they ask for.
    pub read_bytes_before: u64,
    /// Range requests now.
    pub reads_after: u64,
    /// The bytes that they ask for.
    pub read_bytes_after: u64,
    /// Packs that held the image.
    pub packs_before: u64,
    /// Packs that hold it now.
    pub packs_after: u64,
    /// Bytes of the packs that held the image (shared packs count for every image).
    pub bytes_before: u64,
    /// Bytes of those that hold it now.
    pub bytes_after: u64,
    /// Bytes of the packs that were written.
    pub written_bytes: u64,
    /// Bytes of the packs that were removed.
    pub freed_bytes: u64,
    /// Chunks of the clusters that packs of other images hold as well.
    pub shared_chunks: u64,
    /// What they take, compressed, about: so much is stored twice.
    pub shared_bytes: u64,
}

/// Body of `POST /v1/images/tag` and `/untag`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TagRequest {
    /// The image (ignored by `untag`).
    #[serde(default)]
    pub image: String,
    /// `name` or `name:tag`.
    pub name: String,
}

/// Body of `POST /v1/images/remove`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveImageRequest {
    /// The image.
    pub image: String,
    /// Remove it with all of its names.
    #[serde(default)]
    pub force: bool,
}

/// Answer of `POST /v1/images/remove` and of `POST /v1/cache/gc`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FreedReport {
    /// Bytes given back to the disk.
    pub freed_bytes: u64,
    /// Names that are gone.
    #[serde(default)]
    pub names: Vec<String>,
}

/// Body of `POST /v1/images/export`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// The image.
    pub image: String,
    /// Region to write.
    pub region: String,
    /// File to write, absolute path.
    pub path: String,
    /// `raw` or `qcow2`.
    #[serde(default)]
    pub format: ExportFormat,
    /// Overwrite an existing file.
    #[serde(default)]
    pub force: bool,
}

/// File formats of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// The bytes, sparse.
    #[default]
    Raw,
    /// QEMU's, compressed.
    Qcow2,
}

/// Body of `POST /v1/images/push`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushRequest {
    /// The local image.
    pub image: String,
    /// The hub's address, or a directory.
    pub to: String,
    /// Name there; the local one by default.
    #[serde(default)]
    pub name: Option<String>,
    /// Token for the hub.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the hub.
    #[serde(default)]
    pub ca: Option<String>,
    /// Let everybody read it.
    #[serde(default)]
    pub public: bool,
}

/// Body of `POST /v1/images/pull`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    /// Address with the image's name (`https://hub/name:tag`).
    pub from: String,
    /// Local name; the remote one by default.
    #[serde(default)]
    pub name: Option<String>,
    /// Token for the hub.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the hub.
    #[serde(default)]
    pub ca: Option<String>,
}

/// Body of `POST /v1/mounts`: show an image's regions as plain files in a directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountRequest {
    /// Image: a local one, or an address.
    pub image: String,
    /// Directory, absolute path.
    pub path: String,
    /// Token for the source.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the source.
    #[serde(default)]
    pub ca: Option<String>,
}

/// Body of `POST /v1/mounts/remove`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnmountRequest {
    /// The directory.
    pub path: String,
}

/// Answer of `GET /v1/mounts`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MountList {
    /// Extra views of images.
    pub mounts: Vec<MountInfo>,
}

/// One extra view of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MountInfo {
    /// Image id.
    pub image: String,
    /// The directory.
    pub path: String,
}
