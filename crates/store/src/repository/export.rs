//! Writes regions back into plain files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use floe_image::{CHUNK_SIZE, Hash, Kind, Region, SEGMENT_SPAN, Segment};

use super::{Repository, Scope};
use crate::StoreError;

/// The result of [`Repository::export`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExportStats {
    /// The region's size in bytes.
    pub bytes: u64,
    /// Bytes written; the rest are holes.
    pub written_bytes: u64,
}

impl Repository {
    /// Writes a region to the file `to` from its start, as a sparse file with the region's size. Calls `progress(done, total)`
    /// with bytes; if it returns false, stops with [`StoreError::Cancelled`].
    pub fn export(
        &self,
        id: &Hash,
        region: &str,
        to: &File,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<ExportStats, StoreError> {
        let write = |e| StoreError::io("write", Path::new("the exported file"), e);
        let manifest = self.manifest(id)?;
        let region = self.find_region(&manifest, id, region)?;
        self.with_scope(id, |scope| {
            to.set_len(0)
                .and_then(|()| to.set_len(region.size))
                .map_err(write)?;
            let mut stats = ExportStats {
                bytes: region.size,
                written_bytes: 0,
            };
            let mut buffer = Vec::new();
            for (number, hash) in region.segments.iter().enumerate() {
                let start = number as u64 * SEGMENT_SPAN;
                if !hash.is_zero() || !region.patches_of(number).is_empty() {
                    let len = (region.size - start).min(SEGMENT_SPAN) as usize;
                    let segment = read_segment(scope, region, number, &mut buffer)?;
                    for (from, to_chunk) in runs(&segment) {
                        let (a, b) = (from * CHUNK_SIZE, (to_chunk * CHUNK_SIZE).min(len));
                        if a < b {
                            to.write_all_at(&buffer[a..b], start + a as u64)
                                .map_err(write)?;
                            stats.written_bytes += (b - a) as u64;
                        }
                    }
                }
                if !progress((start + SEGMENT_SPAN).min(region.size), region.size) {
                    return Err(StoreError::Cancelled);
                }
            }
            Ok(stats)
        })
    }

    /// Returns the content of a small region (device state, kernel); fails if it is larger than `max_bytes`.
    pub fn read_region(
        &self,
        id: &Hash,
        region: &str,
        max_bytes: u64,
    ) -> Result<Vec<u8>, StoreError> {
        let manifest = self.manifest(id)?;
        let region = self.find_region(&manifest, id, region)?;
        if region.size > max_bytes {
            return Err(StoreError::Invalid {
                what: format!(
                    "region {} has {} bytes, more than {max_bytes}; export it to a file",
                    region.name, region.size
                ),
            });
        }
        self.with_scope(id, |scope| {
            let mut out = Vec::with_capacity(region.size as usize);
            let mut buffer = Vec::new();
            for (number, hash) in region.segments.iter().enumerate() {
                let len = (region.size - out.len() as u64).min(SEGMENT_SPAN) as usize;
                if hash.is_zero() && region.patches_of(number).is_empty() {
                    out.resize(out.len() + len, 0);
                } else {
                    read_segment(scope, region, number, &mut buffer)?;
                    out.extend_from_slice(&buffer[..len]);
                }
            }
            Ok(out)
        })
    }

    fn find_region<'a>(
        &self,
        manifest: &'a floe_image::Manifest,
        id: &Hash,
        name: &str,
    ) -> Result<&'a Region, StoreError> {
        manifest.region(name).ok_or_else(|| {
            let names: Vec<&str> = manifest.regions.iter().map(|r| r.name.as_str()).collect();
            StoreError::NotFound {
                what: format!("region {name:?} of image {}", id.short()),
                path: self.dir().to_path_buf(),
                fix: format!("it has {}", names.join(", ")),
            }
        })
    }
}

/// Reads the 4 MiB that a segment and its patches describe; returns the segment.
fn read_segment(
    scope: &Scope,
    region: &Region,
    number: usize,
    buffer: &mut Vec<u8>,
) -> Result<Segment, StoreError> {
    let segment = scope.table(region, number)?;
    buffer.clear();
    buffer.resize(SEGMENT_SPAN as usize, 0);
    let mut wants: Vec<(Hash, usize)> = segment
        .hashes()
        .iter()
        .enumerate()
        .filter(|(_, h)| !h.is_zero())
        .map(|(i, h)| (*h, i))
        .collect();
    wants.sort_unstable();
    let items: Vec<(Kind, Hash)> = wants.iter().map(|(hash, _)| (Kind::Chunk, *hash)).collect();
    let missing = scope.read(&items, &mut |_, hash, bytes| {
        let from = wants.partition_point(|(h, _)| *h < hash);
        for (_, i) in wants[from..].iter().take_while(|(h, _)| *h == hash) {
            buffer[i * CHUNK_SIZE..(i + 1) * CHUNK_SIZE].copy_from_slice(bytes);
        }
    })?;
    match missing.first() {
        None => Ok(segment),
        Some((_, chunk)) => Err(StoreError::Invalid {
            what: format!(
                "{} chunks are in no pack of the image, the first is {chunk}; `floe image verify` tells more, then pull it again",
                missing.len()
            ),
        }),
    }
}

/// Returns the runs of non-zero chunks, as [from, to).
fn runs(segment: &Segment) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (i, _) in segment
        .hashes()
        .iter()
        .enumerate()
        .filter(|(_, h)| !h.is_zero())
    {
        match runs.last_mut() {
            Some((_, to)) if *to == i => *to = i + 1,
            _ => runs.push((i, i + 1)),
        }
    }
    runs
}
