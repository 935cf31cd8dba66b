//! Reads the small regions of an image that are needed before its guest runs, such as the device state.

use super::{Found, Sources};
use floe_ground::{
    error::{NodeError, usage},
    patience::{Step, patiently},
};
use floe_image::{Hash, Kind, Segment};
use floe_source::{Request, SourceError};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How long one batch of small regions (device state, its tables) may take: 1 MiB over 56 kbit/s.
const SMALL_READ_TIMEOUT: Duration = Duration::from_secs(150);
/// Largest region that is read into memory: graphics memory of a 4K screen with room, and a bound.
const SMALL_REGION_MAX: u64 = 256 << 20;

impl Sources {
    /// Small regions whole, in two round trips however many they are: first all of their tables, then all of their
    /// chunks. What the cache has costs none.
    pub fn read_small(&self, found: &Found, names: &[&str]) -> Result<Vec<Vec<u8>>, NodeError> {
        let mut regions = Vec::new();
        for name in names {
            let region = found.manifest.region(name).ok_or_else(|| {
                usage(
                    format!("image {} has no region {name}", found.id.short()),
                    "name one of its regions",
                )
            })?;
            if region.size > SMALL_REGION_MAX {
                return Err(usage(
                    format!(
                        "region {name} of image {} has {} bytes",
                        found.id.short(),
                        region.size
                    ),
                    format!("a state has at most {SMALL_REGION_MAX}"),
                ));
            }
            regions.push(region);
        }
        let tables: Vec<(Kind, Hash)> = regions
            .iter()
            .flat_map(|region| &region.segments)
            .map(|hash| (Kind::Segment, *hash))
            .collect();
        let tables = self.items(found, tables)?;
        let mut chunks = Vec::new();
        for region in &regions {
            for segment in &region.segments {
                if let Some(table) = tables.get(segment) {
                    let table = Segment::decode(table).map_err(|error| damaged(found, error))?;
                    chunks.extend(table.hashes().iter().map(|hash| (Kind::Chunk, *hash)));
                }
            }
            chunks.extend(region.patched_chunks().map(|hash| (Kind::Chunk, hash)));
        }
        let chunks = self.items(found, chunks)?;
        let mut out = Vec::new();
        for region in regions {
            let mut bytes = vec![0; region.segments.len() * floe_image::SEGMENT_SPAN as usize];
            for (index, segment) in region.segments.iter().enumerate() {
                let mut table = match tables.get(segment) {
                    Some(table) => Segment::decode(table).map_err(|error| damaged(found, error))?,
                    None => Segment::new(),
                };
                region.patch(index, &mut table);
                for (slot, hash) in table.hashes().iter().enumerate() {
                    if let Some(chunk) = chunks.get(hash) {
                        let at = (index * floe_image::CHUNKS_PER_SEGMENT + slot)
                            * floe_image::CHUNK_SIZE;
                        bytes[at..at + floe_image::CHUNK_SIZE].copy_from_slice(chunk);
                    }
                }
            }
            bytes.truncate(region.size as usize);
            out.push(bytes);
        }
        Ok(out)
    }

    /// Returns items from the cache, and reads the rest in batches from the source.
    fn items(
        &self,
        found: &Found,
        mut wants: Vec<(Kind, Hash)>,
    ) -> Result<HashMap<Hash, Vec<u8>>, NodeError> {
        wants.sort_unstable_by_key(|(_, hash)| *hash);
        wants.dedup();
        wants.retain(|(_, hash)| !hash.is_zero());
        let mut have = HashMap::with_capacity(wants.len());
        let mut missing = Vec::new();
        for (kind, hash) in wants {
            match self.cached(kind, &hash)? {
                Some(bytes) => {
                    have.insert(hash, bytes);
                }
                None => missing.push((kind, hash)),
            }
        }
        for batch in missing.chunks(floe_source::READ_ITEMS_MAX) {
            self.read_patiently(found, batch, &mut have)?;
        }
        Ok(have)
    }

    /// Reads a batch of items, and repeats that while the server, which has given the manifest, gives nothing usable. What arrives is kept
    /// in the cache.
    fn read_patiently(
        &self,
        found: &Found,
        batch: &[(Kind, Hash)],
        have: &mut HashMap<Hash, Vec<u8>>,
    ) -> Result<(), NodeError> {
        let of_server = |url: &String| {
            let place = self.registry.origin(url);
            place.is_ok_and(|place| matches!(place.kind(), "hub" | "web" | "bucket"))
        };
        let may_pass = found.origin.urls.iter().any(of_server);
        let until = Instant::now() + SMALL_READ_TIMEOUT;
        let mut kept = Ok(());
        let read = || {
            let mut wants = batch.to_vec();
            wants.retain(|(_, hash)| !have.contains_key(hash));
            let left = until.saturating_duration_since(Instant::now());
            let source = found.fetcher.source();
            let request = Request::demand(left);
            source.read(&found.id, &wants, &request, &mut |kind, hash, bytes| {
                match self.cache.put_item(kind, &hash, bytes, None) {
                    Err(error) if !error.is_full() => kept = Err(error),
                    _ => {} // if the cache is full, the next reader fetches it again
                }
                have.insert(hash, bytes.to_vec());
            })
        };
        let passes =
            |error: &SourceError| may_pass && (error.is_retryable() || error.may_be_hearsay());
        patiently(read, passes, &mut |step| {
            if let Step::Waits(_, pause) = step {
                // time for the server, which nothing here can shorten
                std::thread::sleep(pause);
            }
            Ok(())
        })?;
        Ok(kept?)
    }

    fn cached(&self, kind: Kind, hash: &Hash) -> Result<Option<Vec<u8>>, NodeError> {
        match kind {
            Kind::Segment => Ok(self
                .cache
                .get_segment(hash, None)
                .map(|segment| segment.encode())),
            Kind::Chunk => {
                let mut bytes = [0; floe_image::CHUNK_SIZE];
                Ok(self
                    .cache
                    .get(hash, &mut bytes, None)?
                    .then(|| bytes.to_vec()))
            }
        }
    }
}

fn damaged(found: &Found, error: floe_image::FormatError) -> NodeError {
    SourceError::Invalid {
        at: found.fetcher.source().describe(),
        what: format!("a segment of image {}", found.id.short()),
        reason: error.to_string(),
    }
    .into()
}
