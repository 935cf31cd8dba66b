//! Where a push sends an image: a hub, or a bucket.

use super::bucket::BucketUpload;
use super::hub::HubUpload;
use super::plan::Item;
use super::stock::{Content, Goods};
use super::{Cancel, HubClient, TransferError};
use bytes::Bytes;
use floe_api::hub::CommitRequest;
use floe_image::{ImageName, PackRef};
use floe_source::Bucket;

/// Where a push sends an image.
pub enum Place<'a> {
    /// To a hub, under this name and for these readers.
    Hub(HubClient, CommitRequest),
    /// To a repository in a bucket, under this name.
    Bucket(&'a Bucket, Option<ImageName>),
}

impl Place<'_> {
    /// Finds out what the place has of an image, and begins to send the rest.
    pub(super) fn begin<'a>(
        &'a self,
        goods: &'a Goods<'a>,
        content: &Content,
        cancel: &'a Cancel,
    ) -> Result<Box<dyn Upload + 'a>, TransferError> {
        Ok(match self {
            Place::Hub(client, wish) => {
                Box::new(HubUpload::begin(client, wish, goods, content, cancel)?)
            }
            Place::Bucket(bucket, name) => Box::new(BucketUpload::begin(
                bucket,
                name.as_ref(),
                goods,
                content,
                cancel,
            )?),
        })
    }
}

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
