//! What time it is.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current Unix time in seconds.
pub fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
