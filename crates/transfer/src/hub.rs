//! An image on its way to a hub: the hub says what it lacks, and remembers what it received.

use super::plan::Item;
use super::stock::{Content, Goods};
use super::upload::Upload;
use super::{Cancel, HubClient, TransferError, check};
use bytes::Bytes;
use floe_api::hub::{CommitRequest, HAVE_ITEMS_MAX, PACK_BYTES_MAX};
use floe_image::{Hash, Kind, PackRef};
use std::collections::HashSet;

pub(super) struct HubUpload<'a> {
    client: &'a HubClient,
    wish: &'a CommitRequest,
    id: String,
    pack_bytes_max: u64,
    missing: Vec<Item>,
}

impl<'a> HubUpload<'a> {
    pub fn begin(
        client: &'a HubClient,
        wish: &'a CommitRequest,
        goods: &Goods<'_>,
        content: &Content,
        cancel: &Cancel,
    ) -> Result<Self, TransferError> {
        let upload = client.open_upload(&goods.manifest.encode())?;
        Ok(HubUpload {
            missing: ask(client, &upload.id, content, cancel)?,
            pack_bytes_max: upload.pack_bytes_max.min(PACK_BYTES_MAX),
            id: upload.id,
            client,
            wish,
        })
    }
}

impl Upload for HubUpload<'_> {
    fn take_missing(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.missing)
    }

    fn pack_bytes_max(&self) -> u64 {
        self.pack_bytes_max
    }

    fn is_resumed(&self) -> bool {
        // the hub doesn't tell what of it came by which upload
        false
    }

    fn put_pack(
        &self,
        pack: &PackRef,
        bytes: Bytes,
        on_bytes: &dyn Fn(u64),
    ) -> Result<(), TransferError> {
        self.client.put_pack(&self.id, &pack.id, bytes, on_bytes)
    }

    fn publish(&self, _sent: &[PackRef]) -> Result<(), TransferError> {
        self.client.commit(&self.id, self.wish).map(drop)
    }
}

/// Returns the items that the hub lacks: asks about whole segments first, then about the chunks of those that it lacks.
fn ask(
    client: &HubClient,
    upload: &str,
    content: &Content,
    cancel: &Cancel,
) -> Result<Vec<Item>, TransferError> {
    let lacking = |items: Vec<Item>| -> Result<Vec<Item>, TransferError> {
        let mut lacking = Vec::new();
        for part in items.chunks(HAVE_ITEMS_MAX) {
            check(cancel)?;
            let have = client.have(upload, part)?;
            lacking.extend(
                part.iter()
                    .zip(have)
                    .filter(|(_, have)| !have)
                    .map(|(item, _)| *item),
            );
        }
        Ok(lacking)
    };
    let segments = lacking(
        content
            .segments
            .iter()
            .map(|(id, _)| (Kind::Segment, *id))
            .collect(),
    )?;
    let absent: HashSet<Hash> = segments.iter().map(|(_, id)| *id).collect();
    let below = content
        .segments
        .iter()
        .filter(|(id, _)| absent.contains(id))
        .flat_map(|(_, chunks)| chunks)
        .chain(&content.patched);
    // a chunk is listed under its first segment only: if the hub has that, it has the chunk
    let mut missing = lacking(below.map(|hash| (Kind::Chunk, *hash)).collect())?;
    missing.extend(segments);
    Ok(missing)
}
