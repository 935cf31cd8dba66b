//! `capture`: saves a running machine as an image; the machine goes on.
//!
//! Everything that may take long or fail comes before the pause (a parent that isn't here is pulled) or after it (hashing,
//! storing). In the pause QEMU writes its device state, the disks are frozen and dirty pages are copied. After the image is
//! published the disks are rebased onto it and the frozen layers are removed.
//!
//! A second capture has the first as its parent, and so do its disks. QEMU, however, still maps the memory of the image that
//! it was *restored* from, the original, so its dirty pages are relative to that one. A page that the first capture stored
//! and that is clean now (the balloon gave it back) has the original's content again; such pages are read from the original.

mod disks;
mod greet;
mod rehearse;

pub use disks::Pass;
pub use greet::fresh_place;

use crate::{
    agents::{Agents, Frozen},
    machines::Machines,
};
use floe_api::{
    CaptureRequest, Outcome, PauseReason, REHEARSE_S_DEFAULT, REHEARSE_S_MAX, SUBSTRATE_LABEL,
    StoredReport, VISIBLE_LABEL,
};
use floe_front::page::thumbnail::THUMB_REGION;
use floe_ground::{
    error::{NodeError, failed, usage},
    files::save_manifest,
    news::News,
    report::{Report, millis},
};
use floe_image::{
    CHUNK_SIZE, CHUNKS_PER_SEGMENT, Hash, Kind, Manifest, Region, Segment, memory_region,
};
use floe_inventory::{
    core::Core,
    inventory::{
        Inventory, Operation,
        lifecycle::{Event, Gone, Task},
    },
};
use floe_library::{
    images::{FORK_LABEL, Images, PARK_LABEL, finish, parse_name, sources::Found},
    traces::Traces,
};
use floe_machine::{Capture, CaptureOptions, Pages, Rest};
use floe_mount::{FrozenLayers, MachineHandle, MountError};
use floe_source::Fetcher;
use floe_store::{Ingest, IngestOptions};
use std::{borrow::Cow, collections::BTreeMap, io, sync::Arc};

/// Regions that a capture or a fork copies unchanged from its parent: a machine that resets starts cold with them.
pub const KEPT_REGIONS: [&str; 2] = ["kernel", "initrd"];

/// A machine's state, its disks among it.
pub type Captured = Capture<FrozenLayers>;

/// How a machine is saved as an image.
pub struct Taking<'a> {
    /// Whether the machine ends instead of going on.
    pub stop: bool,
    /// For how many seconds a copy runs, to learn what is touched first.
    pub rehearse_s: u32,
    /// How many seconds hooks in the guest may take beforehand; by default a capture's default, 0 for no hooks.
    pub hooks_s: Option<u32>,
    /// Whether the image gets a picture of the machine's screen.
    pub picture: bool,
    /// The image's labels, beside those of the machine's configuration.
    pub labels: &'a BTreeMap<String, String>,
    /// Called once the image is published and before the machine's disks stand on it, to keep it from being removed, by a name for
    /// instance. If it fails the machine stays as it was, and nothing keeps the image.
    pub keep: &'a dyn Fn(&Hash, &StoredReport) -> Result<(), NodeError>,
}

/// An image that a machine was saved as.
pub struct Taken {
    /// Its id.
    pub id: Hash,
    /// What was stored for it.
    pub stored: StoredReport,
    /// How long the machine stood still, in milliseconds.
    pub pause_ms: f64,
}

/// The service that captures machines. It has no state; `images.storing` is held for reading while something is stored.
pub struct Captures {
    /// What all services share.
    pub core: Arc<Core>,
    /// The images of this node.
    pub images: Arc<Images>,
    /// What machines touched.
    pub traces: Arc<Traces>,
    /// The machines of this node.
    pub inventory: Arc<Inventory>,
    /// What the agents in guests do.
    pub agents: Arc<Agents>,
    /// What is done with machines.
    pub machines: Arc<Machines>,
}

impl Captures {
    /// Captures a machine as an image, and rehearses it if requested.
    pub fn capture(
        self: &Arc<Self>,
        name: &str,
        request: &CaptureRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let new_name = request.name.as_deref().map(parse_name).transpose()?;
        check_rehearsal(request.rehearse_s.unwrap_or_default())?;
        let entry = self.inventory.get(name)?;
        entry.wait_for_identity()?;
        let operation = entry.begin(Task::Capture)?;
        let taking = Taking {
            stop: request.stop,
            rehearse_s: request.rehearse_s.unwrap_or(REHEARSE_S_DEFAULT),
            hooks_s: request.hooks_s,
            picture: true,
            labels: &request.labels,
            keep: &|id, _| match &new_name {
                Some(name) => Ok(self.images.repo.tag(name, id)?),
                None => Ok(()),
            },
        };
        let taken = self.take(&operation, &taking, report)?;
        let image = self.images.summary(&taken.id)?;
        Ok(Outcome {
            image: Some(image),
            machine: Some(self.machines.info_of(&operation)),
            stored: Some(taken.stored),
            pause_ms: Some(taken.pause_ms),
            ..Default::default()
        })
    }

    /// Saves the machine of an operation as an image.
    // Long: the way of a capture from its pause to its end, stage by stage.
    pub fn take(
        self: &Arc<Self>,
        operation: &Operation,
        taking: &Taking<'_>,
        report: &mut Report,
    ) -> Result<Taken, NodeError> {
        let vm = operation.vm()?;
        let disks = operation.mounted()?;
        self.bring_parent(operation, report)?;
        let _storing = self.images.storing.read();
        let thumb = match taking.picture {
            true => self.images.take_thumbnail(&vm),
            false => None,
        };
        let options = CaptureOptions {
            stay_paused: taking.stop,
            bytes_max: self.machines.resources.capture_bytes_max(),
            ..Default::default()
        };
        // whatever fails, they are thawed after its pause is over
        let frozen = self
            .agents
            .freeze(&operation.entry, "capture", taking.hooks_s, report)?;
        let mut frozen = Some(frozen);
        // a pause for buffering must end before the capture begins its own
        operation.stop_buffering()?;
        let paused = operation.pausing(&vm, PauseReason::Capture)?;
        let mut captured = vm.capture(options, || disks.freeze())?;
        // a machine that is to be stopped goes on if the image cannot be stored, or if this node is killed before that
        let paused = taking.stop.then(|| paused.stands());
        if !taking.stop {
            frozen.take().into_iter().for_each(|it| it.thaw(report));
        }
        report.stage("capture")?;
        // the image may be captured from a clone, of what was docked or of stored memory, but is not removed like theirs
        for label in [FORK_LABEL, SUBSTRATE_LABEL, VISIBLE_LABEL, PARK_LABEL] {
            captured.config.labels.remove(label);
        }
        operation.label_guest(&mut captured.config);
        operation.label_machine(&mut captured.config);
        captured.config.labels.extend(taking.labels.clone());
        let published = self.store(operation, &captured, thumb.as_deref(), report);
        // if storing fails, the frozen layers stay and the machine goes on over them
        let (id, stored) = published?;
        let id = self.rehearsed(id, taking.rehearse_s, report)?;
        (taking.keep)(&id, &stored)?;
        let pause_ms = millis(captured.pause.total());
        self.rebase(operation, &disks, &captured.frozen, &id)?;
        report.stage("rebase")?;
        // one that no list shows is not told of
        if !taking.labels.contains_key(PARK_LABEL) {
            let news = News::ImageCaptured(operation.name.to_string());
            self.core.tell(&id.short(), &news);
        }
        if let Some(paused) = paused {
            operation.drive(Event::Stops)?;
            paused.ended();
            frozen.take().into_iter().for_each(Frozen::gone);
            // from here on the image is all that there is of its memory: nothing may fail, or whoever asked would take the image back
            drop((vm, disks));
            self.machines.end_quietly(operation);
            if let Err(error) = operation.gone(Gone::Captured, "") {
                tracing::warn!(machine = %operation.name, %error, "its record does not say yet that it has stopped");
            }
        }
        Ok(Taken {
            id,
            stored,
            pause_ms,
        })
    }

    /// Has an image that was just stored rehearsed, if that takes longer than no time. If whoever asked for it is gone, it goes, too.
    fn rehearsed(
        &self,
        mut id: Hash,
        seconds: u32,
        report: &mut Report,
    ) -> Result<Hash, NodeError> {
        let mut stages = || {
            report.stage("store")?;
            if seconds == 0 {
                return Ok(());
            }
            match self.rehearse(id, seconds, report) {
                Ok(rehearsed) => id = rehearsed,
                Err(NodeError::Cancelled) => return Err(NodeError::Cancelled),
                // without a rehearsal the image only resumes more slowly from afar
                Err(error) => report.note(format!("the image was not rehearsed: {error}")),
            }
            report.stage("rehearse")
        };
        let done = stages();
        if done.is_err() {
            // nobody was told of it; one that is the same may have a name
            let is_wanted = self.images.user_of(&id).is_some() || self.images.may_have_name(&id);
            if !is_wanted && let Err(error) = self.images.discard(&id) {
                tracing::warn!(image = id.short(), %error, "an image that nobody waits for stays");
            }
        }
        done.map(|()| id)
    }

    /// Pulls the parent if it isn't here: a capture shares its packs, and a machine that streams has not fetched all of it.
    pub fn bring_parent(
        &self,
        operation: &Operation,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let record = operation.record();
        if self.images.repo.manifest(&record.disk_base).is_ok() {
            return Ok(());
        }
        report.note("the machine's image is fetched whole first: a capture shares its chunks");
        let manifest = floe_ground::files::load_manifest(&operation.dir, &record.disk_base)?;
        let fetcher = self.images.sources.fetcher(&record.origin)?;
        let found = Found {
            id: record.disk_base,
            manifest,
            origin: record.origin.clone(),
            fetcher,
            loads: Arc::default(),
        };
        self.images.bring_here(&found, report)?;
        report.stage("fetch image")
    }

    /// Stores what was captured as an image over its parent.
    pub fn store(
        &self,
        operation: &Operation,
        captured: &Captured,
        thumb: Option<&[u8]>,
        report: &mut Report,
    ) -> Result<(Hash, StoredReport), NodeError> {
        let record = operation.record();
        let parent_id = record.disk_base;
        let parent = self.images.repo.manifest(&parent_id)?;
        let options = IngestOptions {
            parent: Some(parent_id),
            share: true,
            ..Default::default()
        };
        let mut ingest = Ingest::new(&self.images.repo, options)?;
        let line = report.progress_line("store", "bytes");
        ingest.on_progress(move |progress| line.at(progress.done_bytes, progress.total_bytes));
        let over = (&parent_id, &parent);
        self.store_guest(&mut ingest, operation, captured, thumb, over)?;
        for disk in captured.frozen.disks() {
            let base = match disk.base() {
                Some((id, region)) if id == parent_id => Some(region),
                Some((id, _)) => {
                    return Err(failed(
                        format!(
                            "disk {} stands on {} and not on {}",
                            disk.name(),
                            id.short(),
                            parent_id.short()
                        ),
                        "restart the machine (floe stop, floe start) and capture again",
                    ));
                }
                None => None,
            };
            let chunks = disk.chunks().map(|chunk| chunk.map_err(io_error));
            ingest.region_from_pages(disk.name(), disk.size(), base, chunks)?;
        }
        for region in KEPT_REGIONS {
            if parent.region(region).is_some() {
                ingest.region_from_parent(region)?;
            }
        }
        finish(ingest, captured.config.clone())
    }

    /// Stores all that was captured but the disks, the memory over that of the ingest's parent.
    pub fn store_guest<F>(
        &self,
        ingest: &mut Ingest,
        operation: &Operation,
        captured: &Capture<F>,
        thumb: Option<&[u8]>,
        parent: (&Hash, &Manifest),
    ) -> Result<(), NodeError> {
        ingest.region_bytes("device", &captured.device)?;
        if let Some(thumb) = thumb {
            ingest.region_bytes(THUMB_REGION, thumb)?;
        }
        let blocks = std::iter::once(&captured.ram).chain(&captured.blocks);
        for (block, pages) in blocks.enumerate() {
            self.store_memory(ingest, operation, &memory_region(block), pages, parent)?;
        }
        if captured.vram.size() > 0 {
            let pages = captured
                .vram
                .iter()
                .map(|(chunk, page)| Ok((u64::from(chunk), &page[..])));
            ingest.region_from_pages("vram", captured.vram.size(), None, pages)?;
        }
        Ok(())
    }

    /// Stores the memory that the machine started with, or a block that was added later, over that of the ingest's parent.
    fn store_memory(
        &self,
        ingest: &mut Ingest,
        operation: &Operation,
        name: &str,
        ram: &Pages,
        (parent_id, parent): (&Hash, &Manifest),
    ) -> Result<(), NodeError> {
        let pages = || ram.iter().map(|(chunk, page)| (u64::from(chunk), page));
        let record = operation.record();
        if ram.rest() == Rest::Zero {
            // it is stored over the parent's memory, if there is any, so that unchanged segments refer to the parent's tables
            let base = parent
                .region(name)
                .filter(|region| region.size == ram.size());
            let present: Vec<u64> = pages().map(|(chunk, _)| chunk).collect();
            let gone = match base {
                Some(region) => self.gone(parent_id, region, &present)?,
                None => Vec::new(),
            };
            let gone = gone.into_iter().map(|chunk| (chunk, &[0; CHUNK_SIZE]));
            let pages = merge(pages(), gone).map(|(chunk, page)| Ok((chunk, &page[..])));
            let base = base.map(|region| region.name.as_str());
            return Ok(ingest.region_from_pages(name, ram.size(), base, pages)?);
        }
        if record.image == *parent_id {
            let pages = pages().map(|(chunk, page)| Ok((chunk, &page[..])));
            return Ok(ingest.region_from_pages(name, ram.size(), Some(name), pages)?);
        }
        let original = self.images.manifest_of(&operation.dir, &record.image)?;
        let dirty: Vec<u64> = ram.iter().map(|(chunk, _)| u64::from(chunk)).collect();
        // an image that holds no running machine has no memory
        let base = parent
            .region(name)
            .filter(|region| region.size == ram.size());
        let fetcher = self.images.sources.fetcher(&record.origin)?;
        let reverted = match original.region(name) {
            Some(from) => {
                self.reverted((&record.image, from, &fetcher), (parent_id, base), &dirty)?
            }
            None => Vec::new(),
        };
        let stored = reverted
            .into_iter()
            .map(|(chunk, hash)| (chunk, Content::Stored(hash)));
        let merged = merge(
            pages().map(|(chunk, page)| (chunk, Content::Page(page))),
            stored,
        );
        let read = |(chunk, content)| {
            let bytes = match content {
                Content::Page(page) => Cow::Borrowed(page),
                Content::Stored(hash) if hash.is_zero() => Cow::Borrowed(&[0; CHUNK_SIZE][..]),
                Content::Stored(hash) => {
                    let read = fetcher.demand_wait(&record.image, Kind::Chunk, &hash);
                    Cow::Owned(read.map_err(io::Error::other)?)
                }
            };
            Ok((chunk, bytes))
        };
        let base = base.map(|region| region.name.as_str());
        Ok(ingest.region_from_pages(name, ram.size(), base, merged.map(read))?)
    }

    /// Returns the chunks of a region in the repository that are not zero and not among `present`, a sorted list.
    fn gone(&self, id: &Hash, region: &Region, present: &[u64]) -> Result<Vec<u64>, NodeError> {
        let local = self.images.sources.fetcher(&Default::default())?;
        let mut gone = Vec::new();
        for index in 0..region.segments.len() {
            let table = table(&local, id, region, index)?;
            gone.extend((0..CHUNKS_PER_SEGMENT).filter_map(|slot| {
                let chunk = (index * CHUNKS_PER_SEGMENT + slot) as u64;
                (!table.get(slot).is_zero() && present.binary_search(&chunk).is_err())
                    .then_some(chunk)
            }));
        }
        Ok(gone)
    }

    /// Returns the chunks of memory that differ between the parent, which may have none, and the original, and that the machine has not
    /// dirtied: those have the original's content.
    fn reverted(
        &self,
        (original_id, from, fetcher): (&Hash, &Region, &Fetcher),
        (parent_id, over): (&Hash, Option<&Region>),
        dirty: &[u64],
    ) -> Result<Vec<(u64, Hash)>, NodeError> {
        let nothing = Region::default();
        let local = self.images.sources.fetcher(&Default::default())?;
        let mut chunks = Vec::new();
        for index in changed_segments(from, over.unwrap_or(&nothing)) {
            let there = table(fetcher, original_id, from, index)?;
            let here = match over {
                Some(over) => table(&local, parent_id, over, index)?,
                None => Segment::new(),
            };
            for slot in 0..CHUNKS_PER_SEGMENT {
                let chunk = (index * CHUNKS_PER_SEGMENT + slot) as u64;
                let hash = there.get(slot);
                if hash != here.get(slot) && dirty.binary_search(&chunk).is_err() {
                    chunks.push((chunk, hash));
                }
            }
        }
        Ok(chunks)
    }

    /// Rebases the machine's disks onto its new image.
    pub fn rebase(
        &self,
        operation: &Operation,
        disks: &MachineHandle,
        frozen: &FrozenLayers,
        id: &Hash,
    ) -> Result<(), NodeError> {
        let manifest = self.images.repo.manifest(id)?;
        save_manifest(&operation.dir, id, &manifest)?;
        let fetcher = self.images.sources.fetcher(&Default::default())?;
        let image = self.images.show_image(*id, manifest, fetcher)?;
        self.traces.shows(&image);
        disks.drop_frozen(frozen, &image)?;
        let before = operation.record().disk_base;
        operation.stands_on(image);
        operation.update(|record| record.disk_base = *id)?;
        if before != operation.record().image {
            operation.left_image(&before);
            let _ = std::fs::remove_file(operation.dir.join(format!("{before}.manifest")));
            self.images.forget_image(&before);
            self.images.released(&before);
        }
        Ok(())
    }
}

/// Refuses a rehearsal of so many seconds if that is too long to be meant.
pub fn check_rehearsal(seconds: u32) -> Result<(), NodeError> {
    match seconds {
        0..=REHEARSE_S_MAX => Ok(()),
        _ => Err(usage(
            format!("a rehearsal takes at most {REHEARSE_S_MAX} s"),
            format!("that of a capture takes {REHEARSE_S_DEFAULT} s"),
        )),
    }
}

/// What a chunk of memory is stored from.
enum Content<'a> {
    /// It was copied from the machine.
    Page(&'a [u8]),
    /// It is that chunk of the original.
    Stored(Hash),
}

/// Reads the hashes of the chunks in one segment of a region.
fn table(
    fetcher: &Fetcher,
    image: &Hash,
    region: &Region,
    index: usize,
) -> Result<Segment, NodeError> {
    let hash = region.segments.get(index).copied().unwrap_or(Hash::ZERO);
    let bytes = fetcher.demand_wait(image, Kind::Segment, &hash)?;
    let mut table =
        Segment::decode(&bytes).map_err(|error| failed(error.to_string(), "floe cache verify"))?;
    region.patch(index, &mut table);
    Ok(table)
}

fn io_error(error: MountError) -> io::Error {
    io::Error::other(error)
}

/// Returns the segments that differ.
fn changed_segments(a: &Region, b: &Region) -> Vec<usize> {
    let count = a.segments.len().max(b.segments.len());
    (0..count)
        .filter(|&index| {
            a.segments.get(index) != b.segments.get(index)
                || a.patches_of(index) != b.patches_of(index)
        })
        .collect()
}

/// Merges two ascending lists of chunks; where both have a chunk, the first list's is taken.
fn merge<T>(
    a: impl Iterator<Item = (u64, T)>,
    b: impl Iterator<Item = (u64, T)>,
) -> impl Iterator<Item = (u64, T)> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some((left, _)), Some((right, _))) => match left.cmp(right) {
            std::cmp::Ordering::Less => a.next(),
            std::cmp::Ordering::Greater => b.next(),
            std::cmp::Ordering::Equal => {
                b.next();
                a.next()
            }
        },
        (Some(_), None) => a.next(),
        (None, _) => b.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_wrote_counts_and_what_it_gave_back_is_the_originals() {
        let dirty = [(1, "dirty"), (4, "dirty"), (9, "dirty")];
        let reverted = [
            (0, "original"),
            (4, "original"),
            (5, "original"),
            (12, "original"),
        ];
        let merged: Vec<_> = merge(dirty.into_iter(), reverted.into_iter()).collect();
        let expected = [
            (0, "original"),
            (1, "dirty"),
            (4, "dirty"),
            (5, "original"),
            (9, "dirty"),
            (12, "original"),
        ];
        assert_eq!(merged, expected);
        assert_eq!(
            merge(std::iter::empty::<(u64, ())>(), std::iter::empty()).count(),
            0
        );
    }

    #[test]
    fn only_segments_that_changed_are_looked_into() {
        let region = |segments: &[&[u8]]| Region {
            name: "ram".into(),
            size: segments.len() as u64 * floe_image::SEGMENT_SPAN,
            segments: segments.iter().map(|bytes| Hash::of(bytes)).collect(),
            ..Default::default()
        };
        let (a, b) = (region(&[b"a", b"b", b"c"]), region(&[b"a", b"x", b"c"]));
        assert_eq!(changed_segments(&a, &b), [1]);
        assert_eq!(changed_segments(&a, &a), [0usize; 0]);
    }
}
