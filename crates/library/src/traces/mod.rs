//! What machines touched: kept on this host, sent to the hub that their image came from, shown to the user.
//!
//! A machine's trace is read from the mount when the machine stops, when it is removed, and each minute in which it grew. It
//! is kept by image in `traces/` of the state directory and, if the image came from a hub, put into the `outbox`. Local
//! images get their models here, as they would on a hub.
//!
//! Only the first machine that runs an image on a mount shows what the image needs: the kernel then has those pages in its
//! cache, and a later machine's accesses to them are not seen. So a machine is traced only if almost nothing of its
//! image was touched before.

mod bases;
pub mod models;
mod optimize;
pub(crate) mod outbox;
mod programs;
pub mod rehearsed;

use crate::{
    images::{ImageUser, Images, address::is_address},
    traces::{
        bases::Bases,
        outbox::{Destination, Outbox},
    },
};
use floe_api::*;
use floe_ground::{
    caller::Visible,
    error::{NodeError, at, at_named, not_found, refused, usage},
    files::{beside, load_manifest, put_in_place, read_bounded},
};
use floe_image::{CHUNK_SIZE, Hash, Manifest, TraceReader};
use floe_inventory::{
    core::Core,
    inventory::{Entry, Inventory, record::Wanted},
};
use floe_mount::ImageHandle;
use floe_traces::{Shape, TRACE_BYTES_MAX, TraceStore, Trainer};
use floe_transfer::Cancel;
use parking_lot::Mutex;
use std::{
    collections::{BTreeSet, HashMap},
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The owner of this host's traces and models in the store.
pub(crate) const LOCAL: &str = "local";
/// How often the traces of running machines are taken.
const TAKE_EVERY: Duration = Duration::from_secs(60);
/// A local image is trained once no new trace of it has arrived for this long.
const TRAINING_QUIET: Duration = Duration::from_secs(3);
/// How long a user's question to a hub about traces may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);
/// For how many images traces are kept although they are not in the repository; the least recently run are dropped.
const FOREIGN_IMAGES_MAX: usize = 64;
/// How many chunks of an image may have been touched before a machine's trace no longer shows what a run needs: loading a
/// device state and reading a boot sector touch some.
pub const TOUCHED_BEFORE_MAX: u64 = 256;

/// What is kept of traces on this host.
struct Kept {
    /// Traces and models by image.
    pub store: Arc<TraceStore>,
    /// Makes models of local images.
    pub trainer: Trainer,
    /// Traces on their way to hubs.
    pub outbox: Outbox,
}

impl Kept {
    /// Opens it in the state directory.
    fn open(home: &floe_api::paths::Home) -> Result<Kept, NodeError> {
        let dir = home.traces();
        let store = TraceStore::open(&dir);
        let store = Arc::new(store.map_err(at(format!("cannot open {}", dir.display())))?);
        let trainer = Trainer::start(store.clone(), TRAINING_QUIET, Box::new(floe_traces::learn))
            .map_err(at("cannot start the training's thread"))?;
        Ok(Kept {
            store,
            trainer,
            outbox: Outbox::open(home.outbox())?,
        })
    }
}

/// The service that keeps traces.
pub struct Traces {
    /// What all services share.
    pub core: Arc<Core>,
    /// The images of this node.
    pub images: Arc<Images>,
    /// The machines of this node.
    pub inventory: Arc<Inventory>,
    kept: Arc<Kept>,
    /// Sizes in bytes of the compressed images that machines run, if known.
    image_bytes: Mutex<HashMap<Hash, u64>>,
    /// On which base disk each image stands.
    bases: Bases,
    /// Held from before a list of interactive programs is read from the mount until it is stored, so that no earlier state is written over
    /// a later one.
    storing_programs: Mutex<()>,
}

impl ImageUser for Traces {
    fn removed(&self, image: &Hash) {
        // before it is forgotten: others may stand on it
        if let Err(error) = self.keep_bases(&BTreeSet::new()) {
            tracing::warn!(%error, "it is not stored on which disks images stand");
        }
        self.forget_traces(image);
        self.forget_base(image);
        self.drop_unused_programs();
    }
}

impl Traces {
    /// Opens the service with what is kept in the state directory.
    pub fn open(
        core: Arc<Core>,
        images: Arc<Images>,
        inventory: Arc<Inventory>,
    ) -> Result<Arc<Traces>, NodeError> {
        let traces = Arc::new(Traces {
            kept: Arc::new(Kept::open(&core.home)?),
            core,
            images,
            inventory,
            image_bytes: Mutex::default(),
            bases: Bases::default(),
            storing_programs: Mutex::default(),
        });
        let user: Weak<Traces> = Arc::downgrade(&traces);
        traces.images.ask_too(user);
        Ok(traces)
    }

    /// Returns the size in bytes of a compressed image, if known.
    pub fn image_bytes(&self, image: &Hash) -> Option<u64> {
        self.image_bytes.lock().get(image).copied()
    }

    /// Tells the mount of an image that it shows where it may keep what it finds out of its disks, and how to look whether all of it is on
    /// this host: it may come while its machines run.
    pub fn shows(&self, image: &ImageHandle) {
        let (repository, id) = (self.images.repo.clone(), image.id());
        let is_here = move || {
            repository.contains(&id).unwrap_or_else(|error| {
                tracing::debug!(%error, "it is not known whether an image is on this host");
                false
            })
        };
        image.keep_maps(self.kept.store.folder(&id, LOCAL), is_here);
    }

    /// Sends no more traces; those that wait are sent by the next node.
    pub fn close(&self) {
        self.keep_programs();
        self.kept.outbox.close();
    }

    /// Starts the threads that read traces and send them.
    pub fn start_tracing(self: &Arc<Self>) -> Result<(), NodeError> {
        self.take_over_programs();
        let taken = Instant::now();
        self.core
            .threads
            .keep("trace-take", self, TAKE_EVERY, move |traces| {
                // traces of machines that have only just started show little
                if taken.elapsed() < TAKE_EVERY {
                    return;
                }
                traces.keep_programs();
                for entry in traces.inventory.all() {
                    if entry.state().vm.is_some() {
                        traces.take_trace(&entry);
                    }
                }
            })?;
        let sending = self.kept.clone();
        let send = move || sending.outbox.run();
        self.core.threads.keep_running("trace-send", send)?;
        if let Err(error) = self.kept.trainer.schedule_outdated() {
            tracing::warn!(%error, "the kept traces can't be listed");
        }
        Ok(())
    }

    /// Reads a machine's trace as it is now, keeps it, and puts it into the outbox if its image came from a hub. Errors are
    /// only logged: they must not keep a machine from stopping.
    pub fn take_trace(&self, entry: &Entry) {
        if let Err(error) = self.try_take_trace(entry) {
            tracing::warn!(machine = %entry.name, %error, "the machine's trace was not kept");
        }
    }

    fn try_take_trace(&self, entry: &Entry) -> Result<(), NodeError> {
        let (record, disks, taken) = {
            let state = entry.state();
            (state.record.clone(), state.disks.clone(), state.taken_bytes)
        };
        let Some(disks) = disks.filter(|_| record.traced && record.wanted != Wanted::Starting)
        else {
            return Ok(());
        };
        let path = disks.trace_path()?;
        let shown = format!("cannot read {}", path.display());
        let length = std::fs::metadata(&path).map_err(at(&shown))?.len();
        if length == taken {
            return Ok(());
        }
        // a longer trace would be cut off anyway
        let bytes = read_bounded(&path, TRACE_BYTES_MAX as u64).map_err(at(&shown))?;
        let manifest = self.images.manifest_of(&entry.dir, &record.image)?;
        let shape = Shape::of(record.image, &manifest);
        let Some(trace) = floe_traces::prepare(&bytes, &shape, &entry.pauses()) else {
            return Ok(());
        };
        let run = format!("{} {}", record.mount_name, record.created_unix_s);
        match Destination::of(
            record.image,
            &record.origin,
            self.core.options.own_hub.as_ref(),
        ) {
            Some(hub) => {
                self.keep(&shape, &trace, false)?;
                self.kept.outbox.put(&hub, &run, &trace)?;
            }
            None => {
                self.keep(&shape, &trace, true)?;
            }
        }
        entry.trace_taken(length);
        Ok(())
    }

    /// Keeps a trace on this host; returns whether it was there already.
    fn keep(&self, shape: &Shape, trace: &[u8], train: bool) -> Result<bool, NodeError> {
        let now_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64);
        let store = &self.kept.store;
        let added = store
            .add(&shape.image, LOCAL, Some(LOCAL), trace, now_ms)
            .map_err(at("cannot keep a trace"))?;
        if train && !added.known {
            self.kept.trainer.schedule(&shape.image, LOCAL);
        }
        self.forget_foreign_traces(&shape.image);
        Ok(added.known)
    }

    /// Drops traces of images that are not in the repository if there are too many. (Traces of others are removed with the
    /// image.)
    fn forget_foreign_traces(&self, new: &Hash) {
        let store = &self.kept.store;
        let is_foreign =
            |image: &Hash| image != new && matches!(self.images.repo.contains(image), Ok(false));
        match store.images() {
            Ok(images) => {
                let images = images.into_iter().map(|(image, _)| image);
                for image in too_many(store, images.filter(is_foreign)) {
                    self.forget_traces(&image);
                }
            }
            Err(error) => tracing::warn!(%error, "traces of images that are not here stay"),
        }
    }

    /// Removes an image's traces and models.
    pub(crate) fn forget_traces(&self, image: &Hash) {
        if let Err(error) = self.kept.store.remove(image, LOCAL) {
            tracing::warn!(image = image.short(), %error, "an image's traces stay");
        }
    }

    /// Returns the model that was trained from an image's traces on this host. The usual kind is trained whenever a trace comes; another
    /// one is here when it is asked for first, and kept up to date then.
    pub(crate) fn local_model(&self, image: &Hash, method: floe_traces::Method) -> Option<Vec<u8>> {
        let model = || self.kept.store.model(image, LOCAL, method.name()).ok()?;
        if method != floe_traces::Method::Floe && model().is_none() {
            let patience = optimize::TRAIN_PATIENCE;
            self.kept.trainer.train_now(image, LOCAL, method, patience);
        }
        std::fs::read(model()?.path).ok()
    }

    /// Returns whose traces a user means: those of an image of this host, or of one on a hub.
    fn whose(&self, of: &TracesRequest) -> Result<Whose, NodeError> {
        if is_address(&of.image) {
            let (token, ca) = (of.token.as_deref(), of.ca.as_deref());
            let found =
                self.images
                    .sources
                    .find(&of.image, token, ca, floe_ground::patience::impatient)?;
            let hub = Destination::of(found.id, &found.origin, self.core.options.own_hub.as_ref())
                .ok_or_else(|| {
                    refused(
                        format!("{} is on no hub", of.image),
                        "ask for its traces on this host by its id",
                    )
                })?;
            return Ok(Whose {
                shape: Shape::of(found.id, &found.manifest),
                manifest: found.manifest,
                hub: Some(hub),
            });
        }
        let id = self.images.repo.resolve(&of.image).or_else(|error| {
            // an image that was only run here, and not pulled
            let kept = self.kept.store.images().unwrap_or_default();
            let mut named = kept
                .into_iter()
                .map(|(id, _)| id)
                .chain(self.inventory.images())
                .filter(|id| of.image.len() >= 6 && id.to_string().starts_with(&of.image));
            named.next().ok_or(error)
        })?;
        let manifest = self.images.repo.manifest(&id).map_err(NodeError::from);
        let manifest = manifest.or_else(|error| {
            let machines = self.inventory.all();
            let mut beside = machines.iter().map(|entry| load_manifest(&entry.dir, &id));
            beside.find_map(Result::ok).ok_or(error)
        })?;
        Ok(Whose {
            shape: Shape::of(id, &manifest),
            manifest,
            hub: None,
        })
    }

    /// Returns the traces and models of an image.
    pub fn list_traces(&self, of: &Visible<TracesRequest>) -> Result<TraceList, NodeError> {
        let whose = self.whose(of)?;
        self.traces_of(&whose)
    }

    fn traces_of(&self, whose: &Whose) -> Result<TraceList, NodeError> {
        match &whose.hub {
            Some(hub) => Ok(hub
                .client(ASK_TIMEOUT, &Cancel::default())?
                .traces(&hub.image)?),
            None => TraceList::of(&self.kept.store, &whose.shape, LOCAL)
                .map_err(at("cannot read the traces")),
        }
    }

    /// Returns a trace that is named by its hash or the beginning of it.
    fn trace(&self, whose: &Whose, name: &str) -> Result<(TraceEntry, Vec<u8>), NodeError> {
        let list = self.traces_of(whose)?;
        let mut named = list
            .traces
            .into_iter()
            .filter(|entry| entry.summary.hash.starts_with(name));
        let (first, second) = (named.next(), named.next());
        let none = || {
            not_found(
                format!("there is no trace {name} of this image"),
                "list them with floe trace ls",
            )
        };
        let entry = match (first, second) {
            (Some(entry), None) => entry,
            (Some(_), Some(_)) => {
                return Err(usage(
                    format!("several traces begin with {name}"),
                    "give more of its hash",
                ));
            }
            (None, _) => return Err(none()),
        };
        let hash = entry.summary.hash.parse().map_err(|_| none())?;
        let image = &whose.shape.image;
        let bytes = match &whose.hub {
            Some(hub) => hub
                .client(ASK_TIMEOUT, &Cancel::default())?
                .trace(image, &hash)?,
            None => self
                .kept
                .store
                .read(image, LOCAL, &hash)
                .map_err(at("cannot read the trace"))?
                .ok_or_else(none)?,
        };
        floe_traces::check(&bytes, &whose.shape).map_err(|error| {
            refused(format!("the trace is damaged: {error}"), "take another one")
        })?;
        Ok((entry, bytes))
    }

    /// Returns one trace.
    pub fn show_trace(&self, request: &Visible<TraceRequest>) -> Result<TraceDetail, NodeError> {
        let whose = self.whose(&request.of)?;
        let (entry, bytes) = self.trace(&whose, &request.trace)?;
        Ok(detail(entry, &bytes, &whose.manifest))
    }

    /// Writes a trace to a file.
    pub fn export_trace(&self, request: &Visible<TraceRequest>) -> Result<TraceMoved, NodeError> {
        let path = request.path.as_deref().unwrap_or_default();
        let to = absolute(path)?;
        let mut file = beside(&to, request.force)?;
        let whose = self.whose(&request.of)?;
        let (entry, bytes) = self.trace(&whose, &request.trace)?;
        file.write_all(&bytes)
            .map_err(at_named(format!("cannot write {path}")))?;
        put_in_place(file, &to)?;
        Ok(TraceMoved {
            hash: entry.summary.hash,
            path: path.to_owned(),
            known: true,
        })
    }

    /// Reads a trace from a file and keeps it.
    pub fn import_trace(
        &self,
        request: &Visible<TraceImportRequest>,
    ) -> Result<TraceMoved, NodeError> {
        let from = absolute(&request.path)?;
        let bytes = read_bounded(&from, TRACE_BYTES_MAX as u64 + 1)
            .map_err(at_named(format!("cannot read {}", request.path)))?;
        let whose = self.whose(&request.to)?;
        let summary = floe_traces::check(&bytes, &whose.shape).map_err(|error| {
            refused(
                format!("{}: {error}", request.path),
                "import a trace that floe trace export wrote for this image",
            )
        })?;
        let known = match &whose.hub {
            Some(hub) => {
                let client = hub.client(ASK_TIMEOUT, &Cancel::default())?;
                client.send_trace(&hub.image, &bytes)?.known
            }
            None => self.keep(&whose.shape, &bytes, true)?,
        };
        Ok(TraceMoved {
            hash: summary.hash,
            path: request.path.clone(),
            known,
        })
    }
}

/// Returns those of these images whose traces are too many to be kept, the least recently run. What can't be read is not known to be
/// old, and stays.
fn too_many(store: &TraceStore, images: impl Iterator<Item = Hash>) -> Vec<Hash> {
    let mut by_age = Vec::new();
    for image in images {
        match store.traces(&image, LOCAL) {
            Ok(traces) => by_age.push((traces.last().map_or(0, |trace| trace.received_ms), image)),
            Err(error) => tracing::warn!(image = image.short(), %error, "an image's traces stay"),
        }
    }
    by_age.sort_unstable();
    by_age.truncate(by_age.len().saturating_sub(FOREIGN_IMAGES_MAX));
    by_age.into_iter().map(|(_, image)| image).collect()
}

/// The image whose traces are meant.
struct Whose {
    shape: Shape,
    manifest: Manifest,
    hub: Option<Destination>,
}

fn absolute(path: &str) -> Result<PathBuf, NodeError> {
    let path = Path::new(path);
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    Err(usage(
        format!("{} is no absolute path", path.display()),
        "give the whole path",
    ))
}

/// Returns a verified trace in figures.
fn detail(entry: TraceEntry, bytes: &[u8], manifest: &Manifest) -> TraceDetail {
    let mut counts = vec![0u64; manifest.regions.len()];
    let parts = TRACE_PARTS.min(entry.summary.accesses as usize).max(1);
    let mut over_time = vec![0; parts];
    for access in TraceReader::new(bytes).into_iter().flatten() {
        if let Some(count) = counts.get_mut(usize::from(access.region)) {
            *count += 1;
        }
        let part = u128::from(access.t_us) * parts as u128 / (u128::from(entry.summary.end_us) + 1);
        if let Some(count) = over_time.get_mut(part as usize) {
            *count += 1;
        }
    }
    let regions = manifest.regions.iter().zip(counts);
    TraceDetail {
        regions: regions
            .filter(|(_, chunks)| *chunks > 0)
            .map(|(region, chunks)| TraceRegion {
                region: region.name.clone(),
                chunks,
                bytes: chunks * CHUNK_SIZE as u64,
            })
            .collect(),
        accesses_over_time: over_time,
        entry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_image::{Access, Region, TraceHeader, TraceWriter};

    #[test]
    fn the_least_recently_run_images_lose_their_traces_and_none_that_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let store = TraceStore::open(dir.path()).unwrap();
        let images: Vec<Hash> = (0..FOREIGN_IMAGES_MAX as u64 + 3)
            .map(|number| Hash::of(&number.to_le_bytes()))
            .collect();
        for (number, image) in images.iter().enumerate() {
            let now_ms = 1000 + number as u64;
            store.add(image, LOCAL, None, b"a trace", now_ms).unwrap();
        }
        let of_all = || too_many(&store, images.iter().copied());
        assert_eq!(of_all(), images[..3]);
        // two that can't be read: one of the oldest, and the newest
        for image in [images[1], images[images.len() - 1]] {
            let folder = dir.path().join(image.to_string()).join(LOCAL);
            let file = folder.join(format!("99~-~{}.trace", Hash::of(b"another")));
            std::os::unix::fs::symlink(&file, &file).unwrap();
            store.traces(&image, LOCAL).unwrap_err();
        }
        assert_eq!(of_all(), images[..1]);
    }

    #[test]
    fn a_trace_is_shown_by_region_and_over_time() {
        let region = |name: &str| Region {
            name: name.into(),
            size: 100 * CHUNK_SIZE as u64,
            segments: vec![Hash::ZERO],
            patches: Vec::new(),
        };
        let manifest = Manifest {
            regions: vec![region("device"), region("ram"), region("disk0")],
            ..Default::default()
        };
        let header = TraceHeader {
            image: manifest.id(),
            machine: String::new(),
            start_unix_us: 0,
        };
        let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
        for (region, chunk, t_us) in [(1, 1, 0), (1, 2, 10), (2, 1, 20), (1, 3, 999)] {
            let access = Access {
                region,
                chunk,
                t_us,
                wait_us: 0,
            };
            writer.push(access).unwrap();
        }
        let bytes = writer.into_inner();
        let summary = floe_traces::check(&bytes, &Shape::of(manifest.id(), &manifest)).unwrap();
        let entry = TraceEntry {
            summary,
            uploader: None,
            received_unix_ms: 0,
            weight_percent: 100,
        };
        let shown = detail(entry, &bytes, &manifest);
        let regions: Vec<_> = shown
            .regions
            .iter()
            .map(|r| (&*r.region, r.chunks))
            .collect();
        assert_eq!(regions, [("ram", 3), ("disk0", 1)]);
        assert_eq!(shown.accesses_over_time, [3, 0, 0, 1]);
    }
}
