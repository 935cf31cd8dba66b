//! Calls that have machines go on on other nodes of the cluster.

use super::{Client, ClientError, Events, machine_path};
use crate::*;

impl Client {
    /// Has a machine go on on another node of the cluster, and forgets it here or lends it.
    pub fn move_machine(&self, name: &str, request: &MoveRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/move"), request)
    }
    /// Has a machine come back from the node that it was moved to from here.
    pub fn recall(&self, name: &str, request: &RecallRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/recall"), request)
    }
    /// Says whether it would pay to lend a machine to another node.
    pub fn advise(&self, name: &str, request: &AdviseRequest) -> Result<Advice, ClientError> {
        self.post(&machine_path(name, "/advise"), request)
    }
    /// Has the node that does not run a machine know what it is, once or from time to time.
    pub fn sync(&self, name: &str, request: &SyncRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/sync"), request)
    }
}
