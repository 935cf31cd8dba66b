//! Calls about the cluster that the node is in.

use super::{Client, ClientError};
use crate::*;

impl Client {
    /// Returns what the node is in its cluster, and the other members.
    pub fn cluster(&self) -> Result<ClusterInfo, ClientError> {
        self.get("/v1/cluster")
    }
    /// Creates a cluster.
    pub fn cluster_init(&self, request: &ClusterInit) -> Result<ClusterInfo, ClientError> {
        self.post("/v1/cluster/init", request)
    }
    /// Creates an invitation into the cluster.
    pub fn cluster_invite(&self, request: &ClusterInvite) -> Result<ClusterInvited, ClientError> {
        self.post("/v1/cluster/invite", request)
    }
    /// Joins a cluster.
    pub fn cluster_join(&self, request: &ClusterJoin) -> Result<ClusterInfo, ClientError> {
        self.post("/v1/cluster/join", request)
    }
    /// Leaves the cluster.
    pub fn cluster_leave(&self, request: &ClusterLeave) -> Result<ClusterChange, ClientError> {
        self.post("/v1/cluster/leave", request)
    }
    /// Removes a member from the cluster.
    pub fn cluster_revoke(&self, request: &ClusterRevoke) -> Result<ClusterChange, ClientError> {
        self.post("/v1/cluster/revoke", request)
    }
}
