//! Calls about the cluster that the node is in.

use super::{Client, ClientError};
use crate::*;

impl Client {
    /// What the node is in a cluster, and who else is in it.
    pub fn cluster(&self) -> Result<ClusterInfo, ClientError> {
        self.get("/v1/cluster")
    }
    /// Makes a cluster.
    pub fn cluster_init(&self, request: &ClusterInit) -> Result<ClusterInfo, ClientError> {
        self.post("/v1/cluster/init", request)
    }
    /// Makes an invitation into it.
    pub fn cluster_invite(&self, request: &ClusterInvite) -> Result<ClusterInvited, ClientError> {
        self.post("/v1/cluster/invite", request)
    }
    /// Joins a cluster.
    pub fn cluster_join(&self, request: &ClusterJoin) -> Result<ClusterInfo, ClientError> {
        self.post("/v1/cluster/join", request)
    }
    /// Leaves it.
    pub fn cluster_leave(&self, request: &ClusterLeave) -> Result<ClusterChange, ClientError> {
        self.post("/v1/cluster/leave", request)
    }
    /// Makes a member one no longer.
    pub fn cluster_revoke(&self, request: &ClusterRevoke) -> Result<ClusterChange, ClientError> {
        self.post("/v1/cluster/revoke", request)
    }
}
