//! Where a push sends an image: a hub, or a bucket.

use super::bucket::BucketUpload;
use super::hub::HubUpload;
use super::stock::{Content, Goods};
use super::upload::Upload;
use super::{Cancel, HubClient, TransferError};
use floe_api::hub::CommitRequest;
use floe_image::ImageName;
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
