//! Moving whole images: push to a hub, pull from any source.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A switch that ends a transfer at the next item; clones share it.
#[derive(Clone, Default, Debug)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the transfer.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Raw bytes whose place is settled: sent, fetched, or found to be there already.
    pub done_bytes: u64,
    /// Raw bytes of the image's non-zero content.
    pub total_bytes: u64,
    /// Bytes that crossed the network so far.
    pub wire_bytes: u64,
}
