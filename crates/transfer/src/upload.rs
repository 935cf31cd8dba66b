//! What a push asks of a place, whichever it is.

use super::TransferError;
use super::plan::Item;
use bytes::Bytes;
use floe_image::PackRef;

/// An image on its way to a place.
pub(super) trait Upload: Sync {
    /// Takes what the place lacks, chunks before segments.
    fn take_missing(&mut self) -> Vec<Item>;
    /// Returns the size of the largest pack that may be sent.
    fn pack_bytes_max(&self) -> u64;
    /// Returns whether the place has something of an earlier try.
    fn is_resumed(&self) -> bool;
    /// Sends one pack. `on_bytes` is called with the bytes that were handed to the connection.
    fn put_pack(
        &self,
        pack: &PackRef,
        bytes: Bytes,
        on_bytes: &dyn Fn(u64),
    ) -> Result<(), TransferError>;
    /// Makes the image visible; `sent` are the packs of this try. A refusal with the code [`INCOMPLETE`] says that the place lacks
    /// something after all.
    fn publish(&self, sent: &[PackRef]) -> Result<(), TransferError>;
}

/// The code of a refusal to publish an image of which something is missing.
pub(super) const INCOMPLETE: &str = "incomplete";
