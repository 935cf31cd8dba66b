//! What all sources of a registry are told.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Options for all sources of a registry.
#[derive(Clone)]
pub struct Options {
    /// Longest time for `resolve`, `manifest` and `layout`. Reads have their own deadlines.
    pub timeout: Duration,
    /// Where static sources keep verified pack indices that they have fetched, so that they needn't fetch them again: 1 GiB of them.
    pub index_dir: Option<PathBuf>,
    /// Names and values in which buckets' credentials and servers, and proxies, are looked for, as in an environment; `None`: this
    /// process's own environment.
    pub environment: Option<Vec<(String, String)>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            // Enough for the manifest of a 1 TiB image over a slow link.
            timeout: Duration::from_secs(30),
            index_dir: None,
            environment: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("timeout", &self.timeout)
            .field("index_dir", &self.index_dir)
            .field("environment", &self.environment.as_ref().map(|_| "***"))
            .finish()
    }
}
