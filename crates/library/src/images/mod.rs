//! Images of this host: the repository, the cache, where images come from, and which of them are on the mount.
//!
//! Locks: `storing` is held while something is stored (read) or garbage is collected (write), and is taken before every other
//! lock. `mount` is held for the length of a call into the mount, which may fetch. `users` is only held while it is copied.

pub mod address;
mod hardware;
mod mounted;
mod named;
pub mod sources;
mod starts;
mod thumbnail;
mod transfers;
mod trust;
mod uploads;

pub use floe_import::agent::RawDisk;
pub use floe_import::agent::installed as installed_agent;
pub use mounted::{ImageUser, Serving, WISHES_QUEUED_MAX, Wish};
pub use starts::Starts;

use crate::images::{named::named, sources::Sources};
use floe_api::*;
use floe_front::page::thumbnail::THUMB_REGION;
use floe_ground::{
    caller::Visible,
    error::{NodeError, at, busy, refused, usage},
    files::{beside, put_in_place},
    news::News,
    plan,
    report::Report,
};
use floe_image::{Hash, ImageName, MachineConfig};
use floe_import::{
    agent::{self, Agent},
    disk_boot::DiskBoot,
    disk_file::DISKS_MAX,
    disk_format::Format,
    disk_import::{hold, open_disk, open_disks, open_input},
    qemu_img::{self, DiskImage},
};
use floe_inventory::core::Core;
use floe_store::{Cache, GcOptions, Ingest, IngestOptions, Repository};
use parking_lot::RwLock;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

/// Kernel command line of an import that names none: a console, and freed pages zeroed, which makes a later capture smaller
/// by the memory that the guest once used and freed (in the design: 114 of 1023 MB).
const CMDLINE_DEFAULT: &str = "console=ttyS0 init_on_free=1";
/// Label of an image that a fork made: it is removed when nobody needs it any more.
pub const FORK_LABEL: &str = "floe.fork";
/// Label of an image that is the memory of a parked machine: without a name it is in no list, and goes with that machine.
pub const PARK_LABEL: &str = "floe.park";
/// While something is being stored, garbage collection keeps data younger than this: it may belong to what is being stored.
const GC_AGE_WHILE_BUSY: Duration = Duration::from_secs(24 * 3600);

/// See the module.
pub struct Images {
    core: Arc<Core>,
    /// The images that are stored here.
    pub repo: Repository,
    /// The chunks of all images that machines have touched.
    pub cache: Arc<Cache>,
    /// Opens the sources of images and makes fetchers for them.
    pub sources: Sources,
    /// How long recent runs took, by image.
    pub starts: Starts,
    /// Held for reading while something is stored. Who holds it for writing can remove whatever no image refers to. It is held
    /// while files are synced: it orders what stores and what removes, and no fault or reader of an image takes it.
    pub storing: RwLock<()>,
    /// Whether something was being stored when garbage was last collected, so that some of it may have stayed.
    has_garbage: AtomicBool,
    /// `None` once the node is ending.
    mount: RwLock<Option<Serving>>,
    /// Sends the planner's wishes that machines pause or go on.
    wishes: mpsc::SyncSender<Wish>,
    users: RwLock<Vec<Weak<dyn ImageUser>>>,
}

impl Images {
    /// Creates the service. `wishes` receives when machines are to pause for their images, and when they may go on.
    ///
    /// # Errors
    /// If what is known of earlier starts can't be read now.
    pub fn new(
        core: Arc<Core>,
        repo: Repository,
        cache: Arc<Cache>,
        sources: Sources,
        mount: Serving,
        wishes: mpsc::SyncSender<Wish>,
    ) -> Result<Arc<Images>, NodeError> {
        Ok(Arc::new(Images {
            starts: Starts::open(&core.home)?,
            core,
            repo,
            cache,
            sources,
            storing: RwLock::new(()),
            has_garbage: AtomicBool::new(false),
            mount: RwLock::new(Some(mount)),
            wishes,
            users: RwLock::default(),
        }))
    }

    /// Returns all images, newest first.
    pub fn images(&self) -> Result<ImageList, NodeError> {
        let listed = self.repo.list()?.into_iter();
        // what a machine did too late, and had stored when its lease was over, has a name
        let listed = listed
            .filter(|entry| !entry.labels.contains_key(PARK_LABEL) || !entry.names.is_empty());
        let images = listed.map(|entry| ImageSummary {
            id: entry.id.to_string(),
            names: entry.names.iter().map(ToString::to_string).collect(),
            created_unix_s: entry.created_unix_s,
            parent: entry.parent.map(|id| id.to_string()),
            live: entry.regions.contains_key("ram") && entry.regions.contains_key("device"),
            virtual_bytes: entry.virtual_bytes,
            stored_bytes: entry.pack_bytes,
            shared_bytes: entry.shared_bytes,
            thumbnail: entry.regions.contains_key(THUMB_REGION),
            start_ms: self.starts.typical_ms(&entry.id),
            labels: entry.labels,
        });
        Ok(ImageList {
            images: images.collect(),
        })
    }

    /// Returns everything known of one image.
    pub fn image(&self, query: &Visible<ImageQuery>) -> Result<ImageDetail, NodeError> {
        self.detail(&named(&self.repo, &query.image)?)
    }

    fn detail(&self, id: &Hash) -> Result<ImageDetail, NodeError> {
        let inspection = self.repo.inspect(id)?;
        let manifest = &inspection.manifest;
        let config = &manifest.config;
        Ok(ImageDetail {
            summary: ImageSummary {
                id: id.to_string(),
                names: inspection.names.iter().map(ToString::to_string).collect(),
                created_unix_s: manifest.created_unix_s,
                parent: manifest.parent.map(|id| id.to_string()),
                live: plan::is_live(manifest),
                virtual_bytes: manifest.regions.iter().map(|region| region.size).sum(),
                stored_bytes: inspection.pack_bytes,
                shared_bytes: self.repo.shared_bytes(id)?,
                thumbnail: manifest.region(THUMB_REGION).is_some(),
                start_ms: self.starts.typical_ms(id),
                labels: config.labels.clone(),
            },
            regions: manifest
                .regions
                .iter()
                .map(|region| RegionInfo {
                    name: region.name.clone(),
                    bytes: region.size,
                    segments: region
                        .segments
                        .iter()
                        .filter(|hash| !hash.is_zero())
                        .count() as u64,
                })
                .collect(),
            packs: inspection.packs,
            machine_type: config.machine_type.clone(),
            qemu_version: config.qemu_version.clone(),
            accel: config.accel.clone(),
            cpu_model: config.cpu_model.clone(),
            cpu_flags: config.cpu_flags.clone(),
            cpus: config.cpus_now(),
            memory_bytes: config.memory_bytes_now(),
            cmdline: config.cmdline.clone(),
            devices: config.devices.clone(),
            hardware_profile: config.profile.unwrap_or(1),
            hardware: plan::chosen(config),
        })
    }

    /// Returns what a list shows of an image.
    pub fn summary(&self, id: &Hash) -> Result<ImageSummary, NodeError> {
        Ok(self.detail(id)?.summary)
    }

    /// Imports disks and kernels as one image.
    pub fn import(
        &self,
        request: &ImportRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let name = request.name.as_deref().map(parse_name).transpose()?;
        check_import(request)?;
        let _storing = self.storing.read();
        let options = IngestOptions {
            share: true,
            ..Default::default()
        };
        let mut ingest = Ingest::new(&self.repo, options)?;
        let line = report.progress_line("import", "bytes");
        ingest.on_progress(move |progress| line.at(progress.done_bytes, progress.total_bytes));
        let program = request.agent.as_deref().map(Agent::open).transpose()?;
        let (mut disks, mut agent_report) = (Vec::new(), None);
        let mut found = DiskBoot::default();
        let as_raw = request.format == Some(ImportFormat::Raw);
        let mut sectors = BTreeMap::new();
        for path in request.disks.iter().map(Path::new) {
            for disk in open_disks(path, as_raw, &|| self.scratch("unpack"), report)? {
                let region = format!("disk{}", disks.len());
                let mut raw = self.raw(disk, report)?;
                let boot = hardware::examine(&raw.file, path)?;
                sectors.extend(hardware::note_sector(&region, raw.sector, report));
                if disks.is_empty() && request.kernel.is_none() {
                    found = boot;
                }
                if let (true, Some(program)) = (disks.is_empty(), &program) {
                    let cancel = report.cancel();
                    let tmp = self.core.home.tmp();
                    let host = agent::Host {
                        programs: &self.core.options.programs,
                        cancel: &cancel,
                        tmp: &tmp,
                        scratch: &|| self.scratch("agent"),
                    };
                    let put = agent::put(&host, program, raw, report)?;
                    (raw, agent_report) = (put.0, Some(put.1));
                }
                ingest.region_from_open_file(&region, raw.file, path)?;
                disks.push(region);
                check_disks(disks.len())?;
            }
        }
        for (region, path) in [("kernel", &request.kernel), ("initrd", &request.initrd)] {
            if let Some(path) = path {
                let path = Path::new(path);
                ingest.region_from_open_file(region, open_input(path)?, path)?;
            }
        }
        report.stage("read and hash")?;
        let mut config = MachineConfig {
            cpus: request.cpus,
            memory_bytes: request.memory_bytes,
            cmdline: cmdline(request),
            disks,
            disk_sectors: sectors,
            labels: request.labels.clone(),
            ..Default::default()
        };
        hardware::settle(&mut ingest, &mut config, &request.hardware, found, report)?;
        let (id, stats) = finish(ingest, config)?;
        if let Some(name) = &name {
            self.repo.tag(name, &id)?;
        }
        report.stage("publish")?;
        let named = name.map(|name| name.to_string()).unwrap_or_default();
        self.core.tell(&id.short(), &News::ImageImported(named));
        Ok(Outcome {
            image: Some(self.summary(&id)?),
            stored: Some(stats),
            agent: agent_report,
            ..Default::default()
        })
    }

    /// Opens a disk; in a raw file, whatever it comes in.
    fn open_raw(
        &self,
        path: &Path,
        as_raw: bool,
        report: &mut Report,
    ) -> Result<RawDisk, NodeError> {
        let disk = open_disk(path, as_raw, &|| self.scratch("unpack"), report)?;
        self.raw(disk, report)
    }

    /// Returns a disk in a raw file, of which nothing is missing.
    fn raw(&self, disk: DiskImage, report: &mut Report) -> Result<RawDisk, NodeError> {
        let shown = disk.shown.clone();
        let (bytes, told, format) = (disk.bytes, disk.sector, disk.format);
        if format == Format::Raw {
            if bytes.is_some() {
                hold(&disk.file, &shown, bytes)?;
            }
            return Ok(RawDisk {
                sector: hardware::sector(&disk.file, &shown, told)?,
                file: disk.file,
                shown,
                own: disk.unpacked,
            });
        }
        let raw = self.scratch("convert")?;
        let line = report.progress_line("convert", "1/100 %");
        let programs = &self.core.options.programs;
        qemu_img::convert(programs, disk, raw.as_file(), Format::Raw, &line)?;
        hold(raw.as_file(), &shown, bytes)?;
        report.stage(&format!("convert {}", format.name()))?;
        Ok(RawDisk {
            sector: hardware::sector(raw.as_file(), &shown, told)?,
            file: raw
                .as_file()
                .try_clone()
                .map_err(at("cannot share a file"))?,
            shown,
            own: Some(raw),
        })
    }

    /// Creates an empty temporary file on the state directory's file system.
    pub fn scratch(&self, what: &str) -> Result<tempfile::NamedTempFile, NodeError> {
        let dir = self.core.home.tmp();
        tempfile::Builder::new()
            .prefix(what)
            .tempfile_in(&dir)
            .map_err(at(format!(
                "cannot make a temporary file in {}",
                dir.display()
            )))
    }

    /// Adds the roots of an image's packs to its layout, if an older version has written that without them. If this fails, the layout stays
    /// as it is.
    fn find_roots(&self, id: &Hash) {
        if let Err(error) = self.repo.find_roots(id) {
            tracing::warn!(image = id.short(), %error, "the roots of its packs are not known");
        }
    }

    /// Reads and hashes all of an image.
    pub fn verify_image(
        &self,
        query: &Visible<ImageQuery>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let id = named(&self.repo, &query.image)?;
        let line = report.progress_line("verify", "bytes");
        let found = self
            .repo
            .verify(&id, &move |done, total| line.at(done, total))?;
        report.stage("verify")?;
        if found.is_sound() {
            self.find_roots(&id);
        }
        let mut problems: Vec<String> = found
            .damage
            .iter()
            .map(|damage| {
                let lost = damage
                    .lost
                    .as_ref()
                    .map(|lost| format!(" (lost: {lost})"))
                    .unwrap_or_default();
                format!("{}: {}{lost}", damage.file.display(), damage.what)
            })
            .collect();
        if found.more > 0 {
            problems.push(format!("and {} more", found.more));
        }
        let verify = VerifyReport {
            checked: found.items,
            problems,
        };
        Ok(Outcome {
            image: Some(self.summary(&id)?),
            verify: Some(verify),
            ..Default::default()
        })
    }

    /// Gives an image an additional name.
    pub fn tag(&self, request: &Visible<TagRequest>) -> Result<(), NodeError> {
        let name = parse_name(&request.name)?;
        let id = named(&self.repo, &request.image)?;
        self.repo.tag(&name, &id)?;
        let news = News::ImageTagged(name.to_string());
        self.core.tell(&id.short(), &news);
        Ok(())
    }

    /// Removes a name from an image.
    pub fn untag(&self, name: &Visible<String>) -> Result<(), NodeError> {
        let id = self.repo.untag(&parse_name(name)?)?;
        let news = News::ImageUntagged(String::clone(name));
        self.core.tell(&id.short(), &news);
        Ok(())
    }

    /// Removes a name. With the last name, or with `force`, the image is removed, and all data that only it needed.
    pub fn remove_image(
        &self,
        request: &Visible<RemoveImageRequest>,
    ) -> Result<FreedReport, NodeError> {
        let id = named(&self.repo, &request.image)?;
        let names = self.repo.inspect(&id)?.names;
        let given = ImageName::parse(&request.image)
            .ok()
            .filter(|name| names.contains(name));
        if let (Some(name), false, true) = (&given, request.force, names.len() > 1) {
            self.repo.untag(name)?;
            return Ok(FreedReport {
                freed_bytes: 0,
                names: vec![name.to_string()],
            });
        }
        if given.is_none() && names.len() > 1 && !request.force {
            let list: Vec<String> = names.iter().map(ToString::to_string).collect();
            return Err(refused(
                format!(
                    "image {} has several names: {}",
                    id.short(),
                    list.join(", ")
                ),
                "remove one of the names, or the image with all of them by --force",
            ));
        }
        if let Some(user) = self.user_of(&id) {
            return Err(busy(
                format!("image {} is used by {user}", id.short()),
                "remove that first; a fork lets go of it by itself within minutes",
            ));
        }
        Ok(FreedReport {
            freed_bytes: self.discard_listed(&id)?,
            names: names.iter().map(ToString::to_string).collect(),
        })
    }

    /// Removes an image that nothing uses, what is kept for it, and the packs that only it needed. Returns how many bytes of packs
    /// that freed.
    pub fn discard(&self, id: &Hash) -> Result<u64, NodeError> {
        self.repo.remove(id)?;
        self.drop_kept(id);
        self.forget_image(id);
        self.collect_garbage(false)
    }

    /// Does the same with an image that users see in lists, and tells of it.
    pub fn discard_listed(&self, id: &Hash) -> Result<u64, NodeError> {
        let freed_bytes = self.discard(id)?;
        self.core.tell(&id.short(), &News::ImageRemoved);
        Ok(freed_bytes)
    }

    /// Removes packs that no image needs, and if that is wanted those that `unfinished` pulls have brought. Returns how many bytes that
    /// freed.
    fn collect_garbage(&self, unfinished: bool) -> Result<u64, NodeError> {
        let alone = self.storing.try_write();
        let min_age = if alone.is_some() {
            Duration::ZERO
        } else {
            GC_AGE_WHILE_BUSY
        };
        let options = GcOptions {
            min_age,
            untagged: false,
            keep: self.images_in_use(),
            unfinished,
        };
        let freed = self.repo.gc(&options)?.bytes;
        self.has_garbage.store(alone.is_none(), Ordering::Relaxed);
        Ok(freed)
    }

    /// Whether an image that was made at that time may still be about to get its name: a capture that is being rehearsed, for instance.
    pub fn may_be_stored_now(&self, created_unix_s: u64) -> bool {
        let age_s = floe_ground::time::unix_now().saturating_sub(created_unix_s);
        age_s < GC_AGE_WHILE_BUSY.as_secs() && self.storing.try_write().is_none()
    }

    /// Has [`Images::collect_rest`] remove what no image needs, soon.
    pub fn leaves_garbage(&self) {
        self.has_garbage.store(true, Ordering::Relaxed);
    }

    /// Removes what had to stay when garbage was collected because something was being stored, once nothing is.
    pub fn collect_rest(&self) {
        if !self.has_garbage.load(Ordering::Relaxed) || self.storing.try_write().is_none() {
            return;
        }
        self.has_garbage.store(false, Ordering::Relaxed);
        match self.collect_garbage(false) {
            Ok(bytes) => tracing::info!(bytes, "what removed images needed is gone"),
            Err(error) => {
                tracing::warn!(%error, "what removed images needed stays until garbage is collected again");
            }
        }
    }

    /// Writes a region of an image to a file.
    pub fn export(
        &self,
        request: &Visible<ExportRequest>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let to = PathBuf::from(&request.path);
        if !to.is_absolute() {
            return Err(usage(
                format!("{} is no absolute path", request.path),
                "give the whole path",
            ));
        }
        let beside = beside(&to, request.force)?;
        let id = named(&self.repo, &request.image)?;
        let line = report.progress_line("export", "bytes");
        let mut progress = |done, total| line.at(done, total);
        match request.format {
            ExportFormat::Raw => {
                self.repo
                    .export(&id, &request.region, beside.as_file(), &mut progress)?;
            }
            ExportFormat::Qcow2 => {
                let raw = self.scratch("export")?;
                self.repo
                    .export(&id, &request.region, raw.as_file(), &mut progress)?;
                report.stage("export")?;
                let line = report.progress_line("convert", "1/100 %");
                let disk = DiskImage::raw(raw.path())?;
                let programs = &self.core.options.programs;
                qemu_img::convert(programs, disk, beside.as_file(), Format::Qcow2, &line)?;
            }
        }
        put_in_place(beside, &to)?;
        report.stage("write")?;
        Ok(Outcome {
            image: Some(self.summary(&id)?),
            path: Some(request.path.clone()),
            ..Default::default()
        })
    }

    /// Returns how full the cache is.
    pub fn cache_info(&self) -> CacheInfo {
        let stats = self.cache.stats();
        CacheInfo {
            path: self.core.home.cache().display().to_string(),
            budget_bytes: stats.budget_bytes,
            used_bytes: stats.bytes,
            chunks: stats.chunks,
            pinned_bytes: stats.pinned_bytes,
            hits: stats.hits,
            misses: stats.misses,
        }
    }

    /// Removes from the cache all that no machine holds, and from the repository all that no image needs, with what unfinished pulls have
    /// brought.
    pub fn cache_gc(&self) -> Result<FreedReport, NodeError> {
        let freed_bytes = self.cache.gc(0)? + self.collect_garbage(true)?;
        Ok(FreedReport {
            freed_bytes,
            names: Vec::new(),
        })
    }

    /// Reads and hashes all of the cache; damaged chunks are dropped and will be fetched again.
    pub fn cache_verify(&self, report: &mut Report) -> Result<Outcome, NodeError> {
        let line = report.progress_line("verify", "chunks");
        let found = self.cache.verify(&mut |done, total| line.at(done, total))?;
        report.stage("verify")?;
        let problems = found
            .dropped
            .iter()
            .map(|hash| format!("{hash} was damaged and has been dropped"))
            .collect();
        let verify = VerifyReport {
            checked: found.checked,
            problems,
        };
        Ok(Outcome {
            verify: Some(verify),
            ..Default::default()
        })
    }
}

/// Parses a name that the user gave.
pub fn parse_name(name: &str) -> Result<ImageName, NodeError> {
    ImageName::parse(name).map_err(|error| usage(error.to_string(), ""))
}

/// Publishes what was ingested; returns its id and statistics.
pub fn finish(ingest: Ingest, config: MachineConfig) -> Result<(Hash, StoredReport), NodeError> {
    let (id, stats) = ingest.finish_with_stats(config)?;
    let stored = StoredReport {
        bytes_in: stats.bytes_in,
        new_chunks: stats.new_chunks,
        new_bytes_compressed: stats.new_stored_bytes,
        dedup_chunks: stats.dedup_chunks + stats.unchanged_chunks,
        zero_chunks: stats.zero_chunks,
    };
    Ok((id, stored))
}

/// Returns the command line of the kernel that is imported, if one is.
fn cmdline(request: &ImportRequest) -> Option<String> {
    let default = || {
        request.kernel.as_ref()?;
        Some(match request.disks.is_empty() {
            true => CMDLINE_DEFAULT.to_owned(),
            false => {
                let root = hardware::first_disk(request.hardware.disk_model);
                format!("{CMDLINE_DEFAULT} root={root} rw")
            }
        })
    };
    request.cmdline.clone().or_else(default)
}

fn check_disks(count: usize) -> Result<(), NodeError> {
    match count > DISKS_MAX {
        false => Ok(()),
        true => Err(usage(
            format!("{count} disks"),
            format!("import at most {DISKS_MAX}"),
        )),
    }
}

fn check_import(request: &ImportRequest) -> Result<(), NodeError> {
    if request.disks.is_empty() && request.kernel.is_none() {
        return Err(usage(
            "nothing to import",
            "name a disk image, or a kernel with --kernel",
        ));
    }
    if request.agent.is_some() && request.disks.is_empty() {
        return Err(usage(
            "the agent is put into a disk, and none is given",
            "name a disk image too",
        ));
    }
    check_disks(request.disks.len())?;
    if request.kernel.is_none() && (request.initrd.is_some() || request.cmdline.is_some()) {
        return Err(usage(
            "--initrd and --cmdline need a kernel",
            "give it with --kernel",
        ));
    }
    for path in request
        .disks
        .iter()
        .chain(&request.kernel)
        .chain(&request.initrd)
    {
        if !Path::new(path).is_absolute() {
            return Err(usage(
                format!("{path} is no absolute path"),
                "give the whole path",
            ));
        }
        let file = open_input(Path::new(path))?;
        let is_empty = |meta: std::fs::Metadata| meta.is_file() && meta.len() == 0;
        if file.metadata().is_ok_and(is_empty) {
            return Err(refused(
                format!("{path} is an empty file"),
                "check the path, or the download",
            ));
        }
    }
    Ok(())
}
