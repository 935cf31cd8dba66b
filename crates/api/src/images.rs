//! Images: the requests and answers about them.

use super::*;

/// Query of the calls about one image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
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

/// A summary of one image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImageSummary {
    /// BLAKE3 of the manifest.
    pub id: String,
    /// Names that point to it.
    pub names: Vec<String>,
    /// When it was captured or imported, Unix time in seconds.
    pub created_unix_s: u64,
    /// Id of the image that its machine ran when it was captured.
    pub parent: Option<String>,
    /// Whether it has a running machine's state (regions `ram` and `device`).
    pub live: bool,
    /// Sum of the regions' sizes in bytes.
    pub virtual_bytes: u64,
    /// Bytes of the packs that hold it (a shared pack counts for each of its images).
    pub stored_bytes: u64,
    /// Bytes of those packs that other images need as well: removing this image alone does not free them.
    #[serde(default)]
    pub shared_bytes: u64,
    /// Whether it has a picture of its screen (`GET /v1/images/{name}/thumbnail`).
    #[serde(default)]
    pub thumbnail: bool,
    /// Free text by key.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Median of its last runs on this node, in milliseconds from the request to a running guest; `None` before the
    /// first run.
    #[serde(default)]
    pub start_ms: Option<f64>,
}

/// One image in full (`GET /v1/image`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImageDetail {
    /// Its summary.
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
    /// RAM in bytes.
    pub memory_bytes: Option<u64>,
    /// Kernel command line.
    pub cmdline: Option<String>,
    /// Devices, in the form of QEMU's options.
    pub devices: Vec<String>,
    /// Its hardware profile: with 1 nothing can be added to its machines while they run, with 2 processors, memory, cards and disks.
    #[serde(default)]
    pub hardware_profile: u32,
    /// What its machines are made of where that is not the default.
    #[serde(default, skip_serializing_if = "Hardware::is_none")]
    pub hardware: Hardware,
}

/// One region of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RegionInfo {
    /// `ram`, `disk0`, `device`, ...
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Segments that are not all zero (a segment is up to 4 MiB).
    pub segments: u64,
}

/// The format that the disk images of an import are assumed to have, instead of a detected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ImportFormat {
    /// The file's bytes are the disk's bytes.
    Raw,
}

/// Body of `POST /v1/images/import`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// Disk images (raw, qcow2, vmdk, vdi, vhdx, vhd; also in gzip, xz, Zstandard or an OVA) as absolute paths. They
    /// become `disk0`, `disk1`, ...; all disks of an OVA do, in the order of its description.
    #[serde(default)]
    pub disks: Vec<String>,
    /// Format of the disk images; detected if absent.
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
    /// `name` or `name:tag` to give to the image.
    #[serde(default)]
    pub name: Option<String>,
    /// RAM in bytes that the image's machines get unless `run` sets another size.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Virtual CPUs that the image's machines get unless `run` sets another number.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// The hardware that the image's machines get unless `run` sets another. What is absent is found out from the first disk.
    #[serde(default, skip_serializing_if = "Hardware::is_none")]
    pub hardware: Hardware,
    /// The program of floe's agent (`floe-guest`), absolute path, or empty for that which is installed with the node: it is put into
    /// the system on the first disk, and starts with it. Absent: the disk stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Free text by key.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// What starts the agent in a system at each boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgentStarter {
    /// systemd, by a unit.
    Systemd,
    /// busybox's init, by a line of its inittab.
    Busybox,
    /// System V's init, by a line of its inittab.
    Sysvinit,
}

/// Where an import has put floe's agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentReport {
    /// Number of the first disk's partition with the system; absent if the disk has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// What starts it at each boot.
    pub started_by: AgentStarter,
    /// Whether this agent was there already, so that nothing was changed.
    pub already_there: bool,
}

/// Answer of `POST /v1/uploads`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UploadInfo {
    /// Id for `DELETE /v1/uploads/{id}`.
    pub id: String,
    /// The uploaded file's path, for `POST /v1/images/import`. The file is removed after a day.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// What an import or a capture has stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredReport {
    /// Bytes that were read.
    pub bytes_in: u64,
    /// Chunks that were stored anew.
    pub new_chunks: u64,
    /// Bytes that these take, compressed.
    pub new_bytes_compressed: u64,
    /// Chunks that had been stored before.
    pub dedup_chunks: u64,
    /// Chunks of zeroes.
    pub zero_chunks: u64,
}

/// What was transferred over the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TransferReport {
    /// Bytes sent or received.
    pub wire_bytes: u64,
    /// Bytes that were not sent because the other side had them.
    pub skipped_bytes: u64,
    /// Whether an earlier, interrupted transfer was continued.
    pub resumed: bool,
}

/// The result of a check.
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
    /// Files with traces that determine the layout, absolute paths. If empty, what this host knows of the image is used:
    /// its traces, its hub's model, or its rehearsal.
    #[serde(default)]
    pub traces: Vec<String>,
}

/// What determined the layout of an image's packs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaidOutBy {
    /// Traces that the request named.
    Files,
    /// Traces of machines that ran on this host.
    #[default]
    Traces,
    /// The model that a hub made of its users' traces.
    Hub,
    /// What the rehearsal at the capture touched.
    Rehearsal,
}

/// The result of rearranging an image's packs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OptimizeReport {
    /// What determined the layout.
    pub by: LaidOutBy,
    /// Number of traces that it is based on.
    pub traces: u64,
    /// Number of groups of chunks that are used together (what vTube calls clusters) of which the image holds at least a part.
    pub clusters: u64,
    /// Chunks in these groups; equal content counts once.
    pub chunks: u64,
    /// Range requests that it took before to fetch all groups one after the other from a server of plain files.
    pub reads_before: u64,
    /// Bytes that these requests returned.
    pub read_bytes_before: u64,
    /// Range requests that it takes now.
    pub reads_after: u64,
    /// Bytes that these requests return.
    pub read_bytes_after: u64,
    /// Packs that held the image before.
    pub packs_before: u64,
    /// Packs that hold it now.
    pub packs_after: u64,
    /// Bytes of the packs that held the image before (a shared pack counts for each of its images).
    pub bytes_before: u64,
    /// Bytes of the packs that hold it now.
    pub bytes_after: u64,
    /// Bytes of the packs that were written.
    pub written_bytes: u64,
    /// Bytes of the packs that were removed.
    pub freed_bytes: u64,
    /// Chunks of the groups that are also in packs of other images.
    pub shared_chunks: u64,
    /// Approximate bytes of those, compressed: these are stored twice.
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
    /// Remove the image even if it has several names, with all of them.
    #[serde(default)]
    pub force: bool,
}

/// Answer of `POST /v1/images/remove` and of `POST /v1/cache/gc`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FreedReport {
    /// Bytes of disk space that were freed.
    pub freed_bytes: u64,
    /// Names that were removed.
    #[serde(default)]
    pub names: Vec<String>,
}

/// Body of `POST /v1/images/export`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// The image.
    pub image: String,
    /// Name of the region to write.
    pub region: String,
    /// File to write, absolute path.
    pub path: String,
    /// Format of the file.
    #[serde(default)]
    pub format: ExportFormat,
    /// Overwrite an existing file.
    #[serde(default)]
    pub force: bool,
}

/// File formats of an export.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// The region's bytes, in a sparse file.
    #[default]
    Raw,
    /// QEMU's qcow2 format, compressed.
    Qcow2,
}

/// Body of `POST /v1/images/push`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushRequest {
    /// The local image.
    pub image: String,
    /// Address of the hub or bucket (`s3://bucket/prefix`, `gs://`, `az://`), or a directory.
    pub to: String,
    /// Name of the image there; by default the local one.
    #[serde(default)]
    pub name: Option<String>,
    /// Token for the hub.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the hub.
    #[serde(default)]
    pub ca: Option<String>,
    /// Let everybody read the image.
    #[serde(default)]
    pub public: bool,
    /// Then give the image's pieces to the nodes that run it; only to a hub.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub seed: bool,
    /// Until so many other nodes have had all of it, as in [`SwarmSeed`](crate::SwarmSeed); only with `seed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed_until: Option<u32>,
}

/// Body of `POST /v1/images/copy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyRequest {
    /// A local image, or the address of one (hub, static server, bucket, directory).
    pub from: String,
    /// Address of the hub or bucket (`s3://bucket/prefix`, `gs://`, `az://`), a directory as an absolute path, or the image's name on this node.
    pub to: String,
    /// Name of the image there, unless `to` is one; by default the one it has.
    #[serde(default)]
    pub name: Option<String>,
    /// Tokens for the hubs among the two, by address (`https://hub.example`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<String, String>,
    /// PEM file with the certificate authorities of all places that `cas` does not name.
    #[serde(default)]
    pub ca: Option<String>,
    /// PEM files with certificate authorities by the address that each is for: absolute paths on the node's host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cas: BTreeMap<String, String>,
    /// Let everybody read the image; for a hub.
    #[serde(default)]
    pub public: bool,
    /// Whether the image's device state is loaded even if somebody else made it and this node's machines have no users of their own; see
    /// [`RunRequest::trust`](crate::RunRequest::trust).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust: bool,
}

/// Body of `POST /v1/images/pull`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    /// Address with the image's name (`https://hub/name:tag`).
    pub from: String,
    /// Local name of the image; by default the remote one.
    #[serde(default)]
    pub name: Option<String>,
    /// Token for the hub.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the hub.
    #[serde(default)]
    pub ca: Option<String>,
    /// Whether the image's device state is loaded even if somebody else made it and this node's machines have no users of their own; see
    /// [`RunRequest::trust`](crate::RunRequest::trust).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust: bool,
}

/// Body of `POST /v1/mounts`: show an image's regions as plain files in a directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountRequest {
    /// The image: a local one, or an address.
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
    /// All additional views of images.
    pub mounts: Vec<MountInfo>,
}

/// An additional view of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MountInfo {
    /// Image id.
    pub image: String,
    /// The directory.
    pub path: String,
}
