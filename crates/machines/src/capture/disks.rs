//! Stores what was written to a machine's disks as an image of them: what they stand on, with that merged into it. Its memory is not
//! looked at, and it goes on meanwhile.

use super::{Captures, io_error, merge};
use floe_ground::error::{NodeError, failed};
use floe_image::{CHUNK_SIZE, Hash, Kind, MachineConfig, Manifest};
use floe_library::images::finish;
use floe_mount::{FrozenDisk, FrozenLayers};
use floe_store::{Ingest, IngestOptions};
use std::io;

/// After how many chunks the pace is asked again: 256 KiB.
const PACED_CHUNKS: u64 = 64;

/// What is asked before so many more raw bytes are stored. It waits, or says why no more are.
pub type Pass<'a> = &'a (dyn Fn(u64) -> io::Result<()> + Sync);

impl Captures {
    /// Stores frozen disks as an image over `over`, whose other regions it has unchanged. A disk may stand on another image than that,
    /// if that is here: what the two differ in is stored, too. The caller holds the images' `storing`, and keeps the image.
    pub fn store_disks(
        &self,
        frozen: &FrozenLayers,
        over: &Hash,
        config: MachineConfig,
        pass: Pass<'_>,
    ) -> Result<Hash, NodeError> {
        let below = self.images.repo.manifest(over)?;
        let options = IngestOptions {
            parent: Some(*over),
            // nobody waits for it, and guests need the other cores
            threads: 1,
            ..Default::default()
        };
        let mut ingest = Ingest::new(&self.images.repo, options)?;
        for disk in frozen.disks() {
            self.store_disk(&mut ingest, disk, (over, &below), pass)?;
        }
        let is_stored = |name: &str| frozen.disks().iter().any(|disk| disk.name() == name);
        for region in below.regions.iter().filter(|it| !is_stored(&it.name)) {
            ingest.region_from_parent(&region.name)?;
        }
        Ok(finish(ingest, config)?.0)
    }

    fn store_disk(
        &self,
        ingest: &mut Ingest,
        disk: &FrozenDisk,
        (over, below): (&Hash, &Manifest),
        pass: Pass<'_>,
    ) -> Result<(), NodeError> {
        let local = self.images.sources.fetcher(&Default::default())?;
        let standing = disk.base();
        let region = standing.and_then(|(_, region)| below.region(region));
        let differing = match standing {
            Some((id, name)) if id != *over => {
                let manifest = self.images.repo.manifest(&id)?;
                let from = manifest.region(name).ok_or_else(|| {
                    failed(
                        format!("image {} lacks {name}, on which a disk stands", id.short()),
                        "floe cache verify",
                    )
                })?;
                let written: Vec<u64> = disk.written().collect();
                self.reverted((&id, from, &local), (over, region), &written)?
            }
            _ => Vec::new(),
        };
        let written = disk.written().map(|chunk| (chunk, None));
        let differing = differing
            .into_iter()
            .map(|(chunk, hash)| (chunk, Some(hash)));
        let base_id = standing.map_or(*over, |(id, _)| id);
        let mut count = 0u64;
        let read = |(chunk, stored): (u64, Option<Hash>)| {
            if count.is_multiple_of(PACED_CHUNKS) {
                pass(PACED_CHUNKS * CHUNK_SIZE as u64)?;
            }
            count += 1;
            let bytes: [u8; CHUNK_SIZE] = match stored {
                None => disk.chunk(chunk).map_err(io_error)?,
                Some(hash) if hash.is_zero() => [0; CHUNK_SIZE],
                Some(hash) => {
                    let read = local.demand_wait(&base_id, Kind::Chunk, &hash);
                    let bytes = read.map_err(io::Error::other)?;
                    <[u8; CHUNK_SIZE]>::try_from(bytes)
                        .map_err(|_| io::Error::other("a chunk is cut off"))?
                }
            };
            Ok((chunk, bytes))
        };
        let pages = merge(written, differing).map(read);
        let base = region.map(|region| region.name.as_str());
        Ok(ingest.region_from_pages(disk.name(), disk.size(), base, pages)?)
    }
}
