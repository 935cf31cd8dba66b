//! A machine's hardware, changed while it runs: its CPUs, its memory, its network cards, its disks.

use super::*;

/// Body of `POST /v1/machines/{name}/size`. What is absent stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SizeRequest {
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// RAM in bytes, whole MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// As in [`RunRequest::overcommit`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overcommit: bool,
}

/// What a guest has of CPUs and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Size {
    /// Virtual CPUs.
    pub cpus: u32,
    /// RAM in bytes.
    pub memory_bytes: u64,
}

/// What came of changing a machine's size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResizeReport {
    /// What it had before.
    pub before: Size,
    /// What was wanted.
    pub wanted: Size,
    /// What it has now: for a machine that runs, what its guest has taken or given.
    pub after: Size,
    /// What its guest has not done, and what helps; empty if it has what was wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short: Vec<ApiError>,
}

/// Body of `POST /v1/machines/{name}/cards`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachRequest {}

/// A network card that a running machine was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachedCard {
    /// Its name: `nic1`, `nic2` ...
    pub card: String,
    /// Whether a driver in the guest uses it.
    pub in_use: bool,
}

/// Body of `POST /v1/machines/{name}/disks/{disk}`: what is to be on the new disk, which is one of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachDiskRequest {
    /// Nothing: the disk is empty and has so many bytes, a multiple of 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// What is in this file of the node's host, in any format that an import takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The file's format, whatever it looks like; by default it is found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImportFormat>,
}

/// A disk that a machine was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachedDisk {
    /// What its user calls it.
    pub name: String,
    /// Its number (`disk1`): its serial number in the guest, and the name of its region in images.
    pub disk: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether a driver in the guest uses it; absent if the machine is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use: Option<bool>,
}

/// Answer of `POST /v1/machines/{name}/trim`: what a guest has told its disks that it does not use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TrimReport {
    /// How many bytes its file systems have told of; the disks may have known of some.
    pub bytes: u64,
    /// How many bytes less its disks take on the host now.
    pub freed_bytes: u64,
    /// How many file systems have told.
    pub places: u32,
    /// Those that did not although they can, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}
