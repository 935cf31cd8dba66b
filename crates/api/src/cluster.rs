//! Clusters of nodes: what is asked and told of them.

use super::*;
use std::net::SocketAddr;

/// UDP and TCP port on which a node answers its cluster, unless told otherwise.
pub const CLUSTER_PORT: u16 = 7071;
/// How long an invitation is good unless told otherwise, seconds.
pub const INVITATION_S: u64 = 3600;
/// Longest life of an invitation, seconds: a week.
pub const INVITATION_S_MAX: u64 = 7 * 24 * 3600;
/// How long a member's certificate is good unless told otherwise, seconds: 30 days. It is renewed when a third of that is over.
pub const CERTIFICATE_S: u64 = 30 * 24 * 3600;
/// Shortest life of a certificate, seconds.
pub const CERTIFICATE_S_MIN: u64 = 60;
/// Longest life of a certificate, seconds: two years.
pub const CERTIFICATE_S_MAX: u64 = 2 * 365 * 24 * 3600;

/// Answer of `GET /v1/cluster`: what this node is in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterInfo {
    /// Whether it is in one. If not, the rest is empty.
    pub joined: bool,
    /// The cluster's id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// This node's name in it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where the other members reach it: `https://ADDRESS:PORT`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Whether this node made the cluster, and so invites and revokes.
    #[serde(default)]
    pub authority: bool,
    /// SHA-256 of the CA's certificate, hex digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fingerprint: String,
    /// Until when this node's certificate is good, Unix time. It is renewed long before.
    #[serde(default)]
    pub certified_until_unix_s: u64,
    /// Why the node does not answer the others, or hears nothing of the one that made the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// All members, the one that made the cluster first.
    #[serde(default)]
    pub members: Vec<ClusterMember>,
}

/// A member of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterMember {
    /// Its name.
    pub name: String,
    /// Where it answers.
    pub url: String,
    /// Whether it made the cluster.
    pub authority: bool,
    /// Whether it is this node.
    pub this: bool,
}

/// Body of `POST /v1/cluster/init`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterInit {
    /// This node's name; its host name by default.
    #[serde(default)]
    pub name: Option<String>,
    /// Where to answer the other members; [`CLUSTER_PORT`] of the address that leads to the network by default.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub listen: Option<SocketAddr>,
    /// How long members' certificates are good, seconds; [`CERTIFICATE_S`] by default.
    #[serde(default)]
    pub certificate_s: Option<u64>,
}

/// Body of `POST /v1/cluster/invite`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterInvite {
    /// How long the invitation is good, seconds; [`INVITATION_S`] by default.
    #[serde(default)]
    pub expires_s: Option<u64>,
}

/// An invitation into a cluster, which one node can use once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterInvited {
    /// What to type on the other host.
    pub command: String,
    /// Where the authority answers.
    pub url: String,
    /// The invitation; it is a secret.
    pub invitation: String,
    /// Until when it is good, Unix time.
    pub expires_unix_s: u64,
}

/// Body of `POST /v1/cluster/join`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterJoin {
    /// Where the authority answers: `https://ADDRESS:PORT`.
    pub url: String,
    /// The invitation.
    pub invitation: String,
    /// This node's name; its host name by default.
    #[serde(default)]
    pub name: Option<String>,
    /// Where to answer the other members; [`CLUSTER_PORT`] of the address that leads to the authority by default.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub listen: Option<SocketAddr>,
}

/// Body of `POST /v1/cluster/leave`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterLeave {
    /// Leave although clones need the way to other members, or although other members need this node's authority.
    #[serde(default)]
    pub force: bool,
}

/// Body of `POST /v1/cluster/revoke`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterRevoke {
    /// The member that is to be one no longer.
    pub name: String,
}

/// What became of a change of a cluster's members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterChange {
    /// The member that is one no longer.
    pub name: String,
    /// Members that could not be told. They ask by themselves, as soon as they are back; the one that made the cluster does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untold: Vec<String>,
}
