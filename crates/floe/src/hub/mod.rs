//! The hub: catalogue, packs and uploads over HTTP.
mod options;
pub use options::*;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Why a hub could not start, or its catalogue not be changed.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// An option that does not fit.
    #[error("{0}")]
    Options(String),
}

/// A running hub. Dropping it stops the hub without waiting.
pub struct HubHandle {
    addr: SocketAddr,
    ca_file: Option<PathBuf>,
    fingerprint: Option<String>,
}

impl HubHandle {
    /// The address that the hub listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
    /// The base URL, `http://127.0.0.1:4500`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
    /// The CA file that clients need for a hub that made its own certificate.
    pub fn ca_file(&self) -> Option<&Path> {
        self.ca_file.as_deref()
    }
    /// SHA-256 fingerprint of the certificate, as `openssl x509 -fingerprint` prints it.
    pub fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }
    /// Asks the hub to stop; returns at once.
    pub fn stop(&self) {}
    /// Stops accepting, finishes requests in flight (at most `drain_timeout`), and returns when all is closed.
    /// Blocks: from async code, call it through `spawn_blocking`.
    pub fn shutdown(self) {}
    /// Blocks until the hub has stopped by itself or by [`stop`](Self::stop).
    pub fn wait(self) {}
}

/// Starts a hub on threads of its own and returns once it accepts connections. Callable from any thread, with or
/// without a tokio runtime.
pub fn serve(options: HubOptions) -> Result<HubHandle, HubError> {
    Err(HubError::Options(format!(
        "not served yet: {}",
        options.dir.display()
    )))
}

/// Creates a user if need be and a token for it, straight in the catalogue of the hub in `dir` (running or not).
/// The token is returned once; only its hash is stored.
pub fn create_token(dir: &Path, user: &str) -> Result<String, HubError> {
    Err(HubError::Options(format!(
        "no catalogue in {} for {user}",
        dir.display()
    )))
}
