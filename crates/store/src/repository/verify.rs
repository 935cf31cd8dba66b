//! Checks an image from its manifest down to every byte of its packs.
//!
//! The packs are read once, frame by frame, on all cores; the hashes of damaged items are remembered. A walk from the manifest
//! over segments to chunks then finds which parts of which region are lost. It needs memory for the damaged hashes and the
//! scope.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use floe_image::{CHUNKS_PER_SEGMENT, FRAME_BYTES_MAX, Hash, Kind, PackRef, Region};
use parking_lot::Mutex;

use super::packs::{check_frame, read_index, read_ref};
use super::scope::Walk;
use super::{Repository, Scope};
use crate::StoreError;

/// How many damages are listed; further ones are only counted.
const DAMAGE_LISTED_MAX: usize = 200;

/// Something damaged that [`Repository::verify`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file, relative to the repository.
    pub file: PathBuf,
    /// What is wrong, with offsets.
    pub what: String,
    /// The part of the image that is lost, if any: "disk0, chunks 4096 to 4111".
    pub lost: Option<String>,
}

/// The result of [`Repository::verify`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Items (segments and chunks) in its packs that were checked.
    pub items: u64,
    /// Packs that were read.
    pub packs: u64,
    /// Everything that is wrong, up to a limit; empty for a sound image.
    pub damage: Vec<Damage>,
    /// How many more damages there are.
    pub more: u64,
}

impl VerifyReport {
    /// Returns whether the image is sound.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }

    fn add(&mut self, file: PathBuf, what: String, lost: Option<String>) {
        if self.damage.len() < DAMAGE_LISTED_MAX {
            self.damage.push(Damage { file, what, lost });
        } else {
            self.more += 1;
        }
    }
}

/// What the threads share.
struct Shared<'a> {
    repository: &'a Repository,
    next: AtomicUsize,
    done_bytes: AtomicU64,
    total_bytes: u64,
    stop: AtomicBool,
    progress: &'a (dyn Fn(u64, u64) -> bool + Sync),
    report: Mutex<VerifyReport>,
    /// Items that have at least one bad copy.
    bad: Mutex<HashSet<(Kind, Hash)>>,
}

impl Repository {
    /// Checks an image completely: manifest, segments, chunks and packs. Calls `progress(done, total)` with bytes of packs, on
    /// any thread; if it returns false, stops with [`StoreError::Cancelled`]. Damage is in the report; an error only means that
    /// the check could not be made.
    pub fn verify(
        &self,
        id: &Hash,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<VerifyReport, StoreError> {
        loop {
            let layout = self.layout(id).ok();
            let report = self.verify_once(id, progress)?;
            // If the packs were rearranged meanwhile, nothing is damaged: check those that are there now.
            if report.is_sound() || layout.is_none() || self.layout(id).ok() == layout {
                return Ok(report);
            }
        }
    }

    fn verify_once(
        &self,
        id: &Hash,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<VerifyReport, StoreError> {
        let mut report = VerifyReport::default();
        let relative = |path: PathBuf| {
            path.strip_prefix(self.dir())
                .map(PathBuf::from)
                .unwrap_or(path)
        };
        let manifest = match self.manifest(id) {
            Ok(manifest) => manifest,
            Err(error @ (StoreError::Corrupt { .. } | StoreError::Format { .. })) => {
                report.add(
                    relative(self.manifest_path(id)),
                    error.to_string(),
                    Some("the whole image".to_owned()),
                );
                return Ok(report);
            }
            Err(error) => return Err(error),
        };
        let layout = match self.layout(id) {
            Ok(layout) => layout,
            Err(error) => {
                report.add(
                    relative(self.layout_path(id)),
                    error.to_string(),
                    Some("the whole image".to_owned()),
                );
                return Ok(report);
            }
        };
        let shared = Shared {
            repository: self,
            next: AtomicUsize::new(0),
            done_bytes: AtomicU64::new(0),
            total_bytes: layout.packs.iter().map(|p| p.file_bytes).sum(),
            stop: AtomicBool::new(false),
            progress,
            report: Mutex::new(report),
            bad: Mutex::default(),
        };
        let threads = std::thread::available_parallelism()
            .map_or(1, |n| n.get())
            .min(layout.packs.len().max(1));
        floe_threads::scope(|scope| {
            scope.spawn_some("verify", threads, || {
                while let Some(pack) = layout
                    .packs
                    .get(shared.next.fetch_add(1, Ordering::Relaxed))
                {
                    shared.pack(pack);
                }
            });
        });
        if shared.stop.load(Ordering::Relaxed) {
            return Err(StoreError::Cancelled);
        }
        let mut report = shared.report.into_inner();
        report
            .damage
            .sort_by(|a, b| (&a.file, &a.what).cmp(&(&b.file, &b.what)));
        // A new scope: one that was opened while its packs were sound would still use them.
        let scope = Scope::new(self.clone(), &layout)?;
        let file = relative(self.manifest_path(id));
        let bad = shared.bad.into_inner();
        for region in &manifest.regions {
            let mut walk = Lost {
                scope: &scope,
                bad: &bad,
                report: &mut report,
                file: &file,
            };
            walk.region(region)?;
        }
        Ok(report)
    }
}

impl Shared<'_> {
    fn add(&self, pack: &PackRef, what: String) {
        let path = self.repository.pack_path(&pack.id);
        let file = path
            .strip_prefix(self.repository.dir())
            .map(PathBuf::from)
            .unwrap_or(path);
        self.report.lock().add(file, what, None);
    }

    fn pack(&self, pack: &PackRef) {
        let path = self.repository.pack_path(&pack.id);
        let opened = File::open(&path)
            .map_err(|e| StoreError::io("open", &path, e))
            .and_then(|file| {
                let found = read_ref(&file, &path)?;
                if found != *pack {
                    return Err(StoreError::Invalid {
                        what: format!("its footer names pack {}, not {}", found.id, pack.id),
                    });
                }
                let index = read_index(&file, &path, pack)?;
                Ok((file, index))
            });
        let (file, index) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.add(pack, error.to_string());
                self.repository.inner.indices.lock().forget(&pack.id);
                return;
            }
        };
        self.report.lock().packs += 1;
        let (mut compressed, mut raw) = (vec![0u8; FRAME_BYTES_MAX as usize], Vec::new());
        for (number, frame) in index.frames().iter().enumerate() {
            let number = number as u32;
            let bytes = &mut compressed[..frame.len as usize];
            let place = || {
                format!(
                    "frame {number} at offset {} ({} bytes)",
                    frame.offset, frame.len
                )
            };
            let hashes = index.frame_hashes(number);
            let checked = file
                .read_exact_at(bytes, frame.offset)
                .map_err(|e| e.to_string())
                .and_then(|()| {
                    check_frame(&index, number, frame, bytes, &mut raw).map_err(|e| e.to_string())
                });
            match checked {
                Ok(wrong) => {
                    if !wrong.is_empty() {
                        let items: Vec<String> = wrong
                            .iter()
                            .map(|&i| format!("{i} ({})", hashes[i].short()))
                            .collect();
                        self.add(
                            pack,
                            format!(
                                "{}: items {} are not what they should be",
                                place(),
                                items.join(", ")
                            ),
                        );
                        self.bad
                            .lock()
                            .extend(wrong.iter().map(|&i| (frame.kind, hashes[i])));
                    }
                }
                Err(why) => {
                    self.add(pack, format!("{}: {why}", place()));
                    self.bad
                        .lock()
                        .extend(hashes.iter().map(|hash| (frame.kind, *hash)));
                }
            }
            self.report.lock().items += u64::from(frame.items);
            let done = self
                .done_bytes
                .fetch_add(frame.len.into(), Ordering::Relaxed)
                + u64::from(frame.len);
            if number.is_multiple_of(64) && !(self.progress)(done, self.total_bytes) {
                self.stop.store(true, Ordering::Relaxed);
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Finds the parts of the image that are lost because of the damage.
struct Lost<'a> {
    scope: &'a Scope,
    bad: &'a HashSet<(Kind, Hash)>,
    report: &'a mut VerifyReport,
    file: &'a PathBuf,
}

impl Lost<'_> {
    /// Returns why the item can't be read; `None` if it can.
    fn fault(
        &self,
        kind: Kind,
        hash: &Hash,
        walk: &mut Walk,
    ) -> Result<Option<&'static str>, StoreError> {
        if self.scope.pack_of(kind, hash, walk)?.is_none() {
            return Ok(Some("in no readable pack"));
        }
        if !self.bad.contains(&(kind, *hash)) {
            return Ok(None);
        }
        // Another pack may have a good copy, which reads use instead.
        let mut good = false;
        let _ = self
            .scope
            .read(&[(kind, *hash)], &mut |_, _, _| good = true);
        Ok((!good).then_some("damaged in every pack that holds it"))
    }

    fn region(&mut self, region: &Region) -> Result<(), StoreError> {
        let name = &region.name;
        let (mut chunk_walk, mut segment_walk) = (Walk::default(), Walk::default());
        let mut run: Option<(u64, u64, &'static str)> = None;
        for (number, hash) in region
            .segments
            .iter()
            .enumerate()
            .filter(|(number, hash)| !hash.is_zero() || !region.patches_of(*number).is_empty())
        {
            let first = (number * CHUNKS_PER_SEGMENT) as u64;
            if !hash.is_zero()
                && let Some(why) = self.fault(Kind::Segment, hash, &mut segment_walk)?
            {
                let lost = format!(
                    "{name}, chunks {first} to {}",
                    first + CHUNKS_PER_SEGMENT as u64 - 1
                );
                self.report.add(
                    self.file.clone(),
                    format!("segment {hash} is {why}"),
                    Some(lost),
                );
                continue;
            }
            let segment = self.scope.table(region, number)?;
            for (i, hash) in segment
                .hashes()
                .iter()
                .enumerate()
                .filter(|(_, hash)| !hash.is_zero())
            {
                let Some(why) = self.fault(Kind::Chunk, hash, &mut chunk_walk)? else {
                    continue;
                };
                let chunk = first + i as u64;
                run = match run {
                    Some((from, to, same)) if to + 1 == chunk && same == why => {
                        Some((from, chunk, why))
                    }
                    other => {
                        self.flush(name, other);
                        Some((chunk, chunk, why))
                    }
                };
            }
        }
        self.flush(name, run);
        Ok(())
    }

    fn flush(&mut self, name: &str, run: Option<(u64, u64, &'static str)>) {
        if let Some((from, to, why)) = run {
            let (what, lost) = if from == to {
                (format!("1 chunk is {why}"), format!("{name}, chunk {from}"))
            } else {
                (
                    format!("{} chunks are {why}", to - from + 1),
                    format!("{name}, chunks {from} to {to}"),
                )
            };
            self.report.add(self.file.clone(), what, Some(lost));
        }
    }
}
