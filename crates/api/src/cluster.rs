//! Clusters of nodes: the requests and answers about them.

use super::*;
use std::net::SocketAddr;

/// Default UDP and TCP port on which a node answers the other members of its cluster.
pub const CLUSTER_PORT: u16 = 7071;
/// Default validity of an invitation, in seconds.
pub const INVITATION_S: u64 = 3600;
/// Longest validity of an invitation, in seconds: a week.
pub const INVITATION_S_MAX: u64 = 7 * 24 * 3600;
/// Default validity of a member's certificate, in seconds: 30 days. It is renewed when a third of that is over.
pub const CERTIFICATE_S: u64 = 30 * 24 * 3600;
/// Shortest validity of a certificate, in seconds.
pub const CERTIFICATE_S_MIN: u64 = 60;
/// Longest validity of a certificate, in seconds: two years.
pub const CERTIFICATE_S_MAX: u64 = 2 * 365 * 24 * 3600;

/// Answer of `GET /v1/cluster`: this node's role in its cluster, and the cluster's members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterInfo {
    /// Whether the node is in a cluster. If not, the other fields are empty.
    pub joined: bool,
    /// The cluster's id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// This node's name in the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where the other members reach this node: `https://ADDRESS:PORT`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Whether this node created the cluster, and so invites and revokes members.
    #[serde(default)]
    pub authority: bool,
    /// SHA-256 of the CA's certificate, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fingerprint: String,
    /// When this node's certificate expires, Unix time in seconds. It is renewed long before.
    #[serde(default)]
    pub certified_until_unix_s: u64,
    /// Why the node does not answer the other members, or can't reach the one that created the cluster; empty if all
    /// is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// All members; the one that created the cluster is first.
    #[serde(default)]
    pub members: Vec<ClusterMember>,
}

/// A member of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterMember {
    /// The member's name.
    pub name: String,
    /// Where it answers: `https://ADDRESS:PORT`.
    pub url: String,
    /// Whether it created the cluster.
    pub authority: bool,
    /// Whether it is this node.
    pub this: bool,
}

/// Body of `POST /v1/cluster/init`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterInit {
    /// This node's name; by default its host name.
    #[serde(default)]
    pub name: Option<String>,
    /// Where to answer the other members; by default [`CLUSTER_PORT`] of the address that leads to the network.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub listen: Option<SocketAddr>,
    /// How long members' certificates are valid, in seconds; by default [`CERTIFICATE_S`].
    #[serde(default)]
    pub certificate_s: Option<u64>,
}

/// Body of `POST /v1/cluster/invite`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterInvite {
    /// How long the invitation is valid, in seconds; by default [`INVITATION_S`].
    #[serde(default)]
    pub expires_s: Option<u64>,
}

/// An invitation into a cluster, which one node can use once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterInvited {
    /// The command to type on the other host.
    pub command: String,
    /// Address of the node that created the cluster.
    pub url: String,
    /// The invitation. It is a secret.
    pub invitation: String,
    /// When it expires, Unix time in seconds.
    pub expires_unix_s: u64,
}

/// Body of `POST /v1/cluster/join`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterJoin {
    /// Address of the node that created the cluster: `https://ADDRESS:PORT`.
    pub url: String,
    /// The invitation.
    pub invitation: String,
    /// This node's name; by default its host name.
    #[serde(default)]
    pub name: Option<String>,
    /// Where to answer the other members; by default [`CLUSTER_PORT`] of the address that leads to the node at `url`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub listen: Option<SocketAddr>,
}

/// Body of `POST /v1/cluster/leave`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterLeave {
    /// Leave even if clones still need other members, or if other members need this node because it created the
    /// cluster.
    #[serde(default)]
    pub force: bool,
}

/// Body of `POST /v1/cluster/revoke`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterRevoke {
    /// The member to remove.
    pub name: String,
}

/// The result of removing a member from a cluster, or of leaving it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterChange {
    /// The member that was removed or has left.
    pub name: String,
    /// Members that could not be informed. They fetch the new list when they are back, except the node that created
    /// the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untold: Vec<String>,
}
