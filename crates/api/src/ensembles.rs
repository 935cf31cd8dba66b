//! Ensembles: machines of several substrates that are activated together, in one network.

use super::*;

/// Largest file that describes an ensemble, in bytes.
pub const ENSEMBLE_FILE_BYTES_MAX: usize = 64 << 10;
/// Most members of an ensemble.
pub const ENSEMBLE_MEMBERS_MAX: usize = 32;
/// Most machines of an ensemble: each has an address of one network.
pub const ENSEMBLE_MACHINES_MAX: u32 = 64;
/// Default time until all machines of an ensemble must be ready, in seconds.
pub const ENSEMBLE_READY_S_DEFAULT: u64 = 120;
/// Longest such time, in seconds.
pub const ENSEMBLE_READY_S_MAX: u64 = 24 * 3600;

/// Body of `POST /v1/pool/ensembles`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnsembleRequest {
    /// The content of a TOML file that says which members there are; docs/pools.md describes it.
    pub file: String,
    /// End all of its machines again if one of them is not ready in time.
    #[serde(default)]
    pub all_or_nothing: bool,
    /// Start them even if this host has too little memory for them.
    #[serde(default)]
    pub overcommit: bool,
    /// How long to wait until all machines are ready, in seconds; by default [`ENSEMBLE_READY_S_DEFAULT`]. They run before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_s: Option<u64>,
}

/// A machine's part in an ensemble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InEnsemble {
    /// The ensemble's name.
    pub ensemble: String,
    /// The name of the file's member that it was made for.
    pub member: String,
    /// Its host name, by which the others reach it.
    pub host: String,
}

/// A machine of an ensemble that was activated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EnsembleMachine {
    /// Its name.
    pub name: String,
    /// The name of the file's member that it was made for.
    pub member: String,
    /// Its host name, by which the others reach it.
    pub host: String,
    /// Its address in their network.
    pub address: String,
    /// The substrate that it was activated from.
    pub substrate: String,
    /// Its ports that this host forwards.
    pub forwards: Vec<PortForward>,
    /// Whether it runs.
    pub runs: bool,
    /// From the request until its CPUs ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ms: Option<f64>,
    /// From the request until its guest answered, with its network and its size, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers_ms: Option<f64>,
    /// From the request until it was ready, in milliseconds. Absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<f64>,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<ApiError>,
}

/// What became of an ensemble.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EnsembleReport {
    /// Its name.
    pub name: String,
    /// Whether all of its machines were ended again, because one was not ready.
    pub taken_back: bool,
    /// Its machines, in the order of the file.
    pub machines: Vec<EnsembleMachine>,
}

impl EnsembleReport {
    /// Returns how many of its machines are ready.
    pub fn ready(&self) -> usize {
        let ready = |machine: &&EnsembleMachine| machine.ready_ms.is_some();
        self.machines.iter().filter(ready).count()
    }

    /// Whether all of its machines are ready.
    pub fn is_whole(&self) -> bool {
        self.ready() == self.machines.len()
    }
}
