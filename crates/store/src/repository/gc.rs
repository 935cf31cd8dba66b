//! Removes images, and files that nothing refers to.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use floe_image::{Hash, LAYOUT_BYTES_MAX, Layout, PackRef};
use rustix::fs::FlockOperation;

use super::{Repository, read_bounded};
use crate::{StoreError, durable};

/// How the name of a file in a repository's `tmp/` begins that notes, as a layout, the packs which an unfinished pull has brought.
pub const UNFINISHED_PULL: &str = "pull-";
/// How long what an unfinished pull has brought waits for its next try.
const UNFINISHED_KEPT: Duration = Duration::from_secs(24 * 3600);

/// How many packs of unfinished pulls are looked at: some 64 GB of those of machines that move.
const NOTED_MAX: usize = 1 << 16;

/// What [`Repository::gc`] may remove.
#[derive(Debug, Clone)]
pub struct GcOptions {
    /// Nothing younger than this is removed: it may belong to an ingest or upload that is still running.
    pub min_age: Duration,
    /// Whether to remove images without a tag too (unless they are in `keep`, or an ancestor of an image that stays).
    pub untagged: bool,
    /// Images that something else uses (running machines), and packs (staged uploads); they stay.
    pub keep: Vec<Hash>,
    /// Whether to remove what unfinished pulls have brought, too. Otherwise it stays for their next try, for a day.
    pub unfinished: bool,
}

impl Default for GcOptions {
    fn default() -> Self {
        // A day is longer than any upload that is still running.
        GcOptions {
            min_age: Duration::from_secs(24 * 3600),
            untagged: false,
            keep: Vec::new(),
            unfinished: false,
        }
    }
}

/// What [`Repository::gc`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Number of images.
    pub images: u64,
    /// Number of packs.
    pub packs: u64,
    /// Number of left-over temporary files, and of layouts without a manifest.
    pub temporary: u64,
    /// Bytes freed.
    pub bytes: u64,
}

impl Repository {
    /// Removes an image and its tags. Its packs stay until [`Repository::gc`]; other images that share them are unaffected. Waits for
    /// publishers to finish: whoever publishes the same image just now would leave a manifest without a layout.
    pub fn remove(&self, id: &Hash) -> Result<(), StoreError> {
        let _lock = self.lock(FlockOperation::LockExclusive)?;
        self.remove_locked(id)
    }

    /// Does the same. The caller must hold the lock exclusively.
    fn remove_locked(&self, id: &Hash) -> Result<(), StoreError> {
        if !self.contains(id)? {
            return Err(self.no_image(format!("image {id}")));
        }
        for tag in self.tags()?.into_iter().filter(|tag| tag.id == *id) {
            self.untag(&tag.name)?;
        }
        // The manifest first: without it the image is gone, and a layout alone will be collected.
        for path in [self.manifest_path(id), self.layout_path(id)] {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::io("remove", &path, e));
                }
                _ => {}
            }
        }
        durable::sync_dir(&self.dir().join("images"))
    }

    /// Removes what nothing refers to: packs that are in no layout, layouts without a manifest, temporary files and, if asked
    /// to, images without a tag and what unfinished pulls have brought. Waits for publishers to finish. Removes no pack if any layout
    /// can't be read.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport, StoreError> {
        let _lock = self.lock(FlockOperation::LockExclusive)?;
        let mut sweep = Sweep {
            now: SystemTime::now(),
            min_age: options.min_age,
            report: GcReport::default(),
        };
        let keep: HashSet<Hash> = options.keep.iter().copied().collect();
        let images: HashSet<Hash> = self.image_ids()?.into_iter().collect();
        if options.untagged {
            let kept = self.kept(&images, &keep)?;
            for id in images.difference(&kept) {
                if sweep.is_old(&self.manifest_path(id))?.is_some() {
                    self.remove_locked(id)?;
                    sweep.report.images += 1;
                }
            }
        }
        let images: HashSet<Hash> = self.image_ids()?.into_iter().collect();
        let mut packs = self.listed_packs(&images)?;
        packs.extend(keep);
        let notes = match options.unfinished {
            true => Notes::default(),
            false => self.notes()?,
        };
        packs.extend(notes.packs.iter().map(|pack| pack.id));
        sweep.folder(
            &self.tmp_dir(),
            |name| notes.names.contains(name),
            |report| &mut report.temporary,
        )?;
        let is_litter =
            |name: &str| match name.strip_suffix(".layout").and_then(|id| id.parse().ok()) {
                Some(id) => !images.contains(&id),
                None => false,
            };
        sweep.folder(
            &self.dir().join("images"),
            |name| !is_litter(name),
            |report| &mut report.temporary,
        )?;
        let parent = self.dir().join("packs");
        for folder in std::fs::read_dir(&parent).map_err(|e| StoreError::io("list", &parent, e))? {
            let folder = folder.map_err(|e| StoreError::io("list", &parent, e))?;
            let kind = folder.file_type();
            let kind = kind.map_err(|e| StoreError::io("look at", folder.path(), e))?;
            let is_used =
                |name: &str| match name.strip_suffix(".pack").and_then(|id| id.parse().ok()) {
                    Some(id) => packs.contains(&id),
                    None => true, // not one of floe's files
                };
            if kind.is_dir() {
                sweep.folder(&folder.path(), is_used, |report| &mut report.packs)?;
            }
        }
        Ok(sweep.report)
    }

    /// Removes what was being written here when a process was killed, and returns how many bytes that was: temporary files that have no
    /// name to come back to. Call it only while nobody writes here, as when a node starts. What an unfinished pull noted stays.
    pub fn remove_unfinished(&self) -> Result<u64, StoreError> {
        let _lock = self.lock(FlockOperation::LockExclusive)?;
        let mut sweep = Sweep {
            now: SystemTime::now(),
            min_age: Duration::ZERO,
            report: GcReport::default(),
        };
        let keep = |name: &str| !name.starts_with(durable::TEMPORARY);
        sweep.folder(&self.tmp_dir(), keep, |report| &mut report.temporary)?;
        Ok(sweep.report.bytes)
    }

    /// Returns the packs that unfinished pulls have noted, whatever image they were for, each once. Those that can't be opened are left out.
    pub fn noted_packs(&self) -> Result<Vec<PackRef>, StoreError> {
        let mut seen = HashSet::new();
        let is_here = |pack: &PackRef| {
            // the index of one that is gone may still be known
            !matches!(self.pack_path(&pack.id).try_exists(), Ok(false)) && self.index(pack).is_ok()
        };
        let packs = self.notes()?.packs.into_iter();
        let packs = packs.filter(|pack| seen.insert(pack.id) && is_here(pack));
        Ok(packs.take(NOTED_MAX).collect())
    }

    /// Returns what pulls have noted that may still go on.
    fn notes(&self) -> Result<Notes, StoreError> {
        let tmp = self.tmp_dir();
        let mut notes = Notes::default();
        for entry in std::fs::read_dir(&tmp).map_err(|e| StoreError::io("list", &tmp, e))? {
            let entry = entry.map_err(|e| StoreError::io("list", &tmp, e))?;
            let (path, name) = (entry.path(), entry.file_name());
            let Some(name) = name
                .to_str()
                .filter(|name| name.starts_with(UNFINISHED_PULL))
            else {
                continue;
            };
            let read = || -> Result<Option<Layout>, StoreError> {
                let modified = std::fs::metadata(&path).and_then(|meta| meta.modified());
                let modified = modified.map_err(|e| StoreError::io("look at", &path, e))?;
                // one of the future is young
                let is_old = modified.elapsed().is_ok_and(|age| age > UNFINISHED_KEPT);
                let bytes = read_bounded(&path, LAYOUT_BYTES_MAX as u64)?;
                Ok((!is_old).then(|| Layout::decode(&bytes).ok()).flatten())
            };
            match read() {
                Ok(Some(layout)) => {
                    notes.names.insert(name.to_owned());
                    notes.packs.extend(layout.packs);
                }
                Ok(None) => {}
                // the pull has ended meanwhile
                Err(StoreError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(notes)
    }

    /// Returns the packs of these images. The caller must hold the lock exclusively.
    pub(super) fn listed_packs<'a>(
        &self,
        images: impl IntoIterator<Item = &'a Hash>,
    ) -> Result<HashSet<Hash>, StoreError> {
        let mut packs = HashSet::new();
        for id in images {
            packs.extend(self.layout(id)?.packs.iter().map(|pack| pack.id));
        }
        Ok(packs)
    }

    /// Returns the tagged images, those in `keep`, and their ancestors.
    fn kept(
        &self,
        images: &HashSet<Hash>,
        keep: &HashSet<Hash>,
    ) -> Result<HashSet<Hash>, StoreError> {
        let mut todo: Vec<Hash> = self
            .all_tags()?
            .into_iter()
            .map(|tag| tag.id)
            .chain(keep.iter().copied())
            .collect();
        let mut kept = HashSet::new();
        while let Some(id) = todo.pop() {
            if images.contains(&id) && kept.insert(id) {
                todo.extend(self.manifest(&id)?.parent);
            }
        }
        Ok(kept)
    }
}

/// What unfinished pulls have noted.
#[derive(Default)]
struct Notes {
    /// The files' names.
    names: HashSet<String>,
    /// The packs that they name.
    packs: Vec<PackRef>,
}

struct Sweep {
    now: SystemTime,
    min_age: Duration,
    report: GcReport,
}

impl Sweep {
    /// Returns how many bytes a file has if it is one and old enough; `None` also if it has gone meanwhile.
    fn is_old(&self, path: &Path) -> Result<Option<u64>, StoreError> {
        let io = |e| StoreError::io("look at", path, e);
        let found = match std::fs::metadata(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(io)?,
        };
        // one of the future is not old
        let age = self.now.duration_since(found.modified().map_err(io)?);
        let old = found.is_file() && age.is_ok_and(|age| age >= self.min_age);
        Ok(old.then_some(found.len()))
    }

    /// Removes those files of a folder that are old enough and that `keep` doesn't want.
    fn folder(
        &mut self,
        dir: &Path,
        keep: impl Fn(&str) -> bool,
        counter: impl Fn(&mut GcReport) -> &mut u64,
    ) -> Result<(), StoreError> {
        for entry in std::fs::read_dir(dir).map_err(|e| StoreError::io("list", dir, e))? {
            let entry = entry.map_err(|e| StoreError::io("list", dir, e))?;
            let path = entry.path();
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if keep(name) {
                continue;
            }
            let Some(bytes) = self.is_old(&path)? else {
                continue;
            };
            std::fs::remove_file(&path).map_err(|e| StoreError::io("remove", &path, e))?;
            *counter(&mut self.report) += 1;
            self.report.bytes += bytes;
        }
        Ok(())
    }
}
