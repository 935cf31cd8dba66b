//! Calls about substrates and the pool.

use super::{Client, ClientError, Events, machine_path};
use crate::*;
use bytes::Bytes;
use floe_http::{Method, escape};

impl Client {
    /// Docks a machine as a substrate.
    pub fn dock(&self, machine: &str, request: &DockRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(machine, "/dock"), request)
    }
    /// Starts machines from a substrate.
    pub fn activate(
        &self,
        substrate: &str,
        request: &ActivateRequest,
    ) -> Result<Events, ClientError> {
        self.stream(&substrate_path(substrate, "/activate"), request)
    }
    /// Sends a substrate to a hub, a bucket or a directory, or writes it to a file.
    pub fn export_substrate(
        &self,
        substrate: &str,
        request: &SubstrateExportRequest,
    ) -> Result<Events, ClientError> {
        self.stream(&substrate_path(substrate, "/export"), request)
    }
    /// Brings a substrate here.
    pub fn import_substrate(
        &self,
        request: &SubstrateImportRequest,
    ) -> Result<Events, ClientError> {
        self.stream("/v1/pool/import", request)
    }
    /// Starts machines of several substrates in one network.
    pub fn activate_ensemble(&self, request: &EnsembleRequest) -> Result<Events, ClientError> {
        self.stream("/v1/pool/ensembles", request)
    }
    /// Returns how full the pool is.
    pub fn pool(&self) -> Result<PoolStatus, ClientError> {
        self.get("/v1/pool")
    }
    /// Changes how much memory substrates may take.
    pub fn resize_pool(&self, request: &PoolResizeRequest) -> Result<PoolStatus, ClientError> {
        self.post("/v1/pool/resize", request)
    }
    /// Reads and hashes the backups of substrates; of all, if no names are given.
    pub fn verify_pool(&self, names: Vec<String>) -> Result<Events, ClientError> {
        self.stream("/v1/pool/verify", &PoolVerifyRequest { names })
    }
    /// Returns the substrates that this user may see.
    pub fn substrates(&self) -> Result<SubstrateList, ClientError> {
        self.get("/v1/pool/substrates")
    }
    /// Returns one substrate.
    pub fn substrate(&self, name: &str) -> Result<SubstrateInfo, ClientError> {
        self.get(&substrate_path(name, ""))
    }
    /// Removes a substrate.
    pub fn remove_substrate(&self, name: &str) -> Result<FreedReport, ClientError> {
        self.send(Method::DELETE, &substrate_path(name, ""), Bytes::new())?
            .json()
    }
}

fn substrate_path(name: &str, rest: &str) -> String {
    format!("/v1/pool/substrates/{}{rest}", escape(name))
}
