//! The state that clones start from: a machine's at the moment of its fork, or an image's.

use super::{
    Forks,
    build::{Base, Making},
    layer::{self, Layer},
    store::Parent,
};
use floe_api::PauseReason;
use floe_ground::{
    error::{NodeError, failed, not_found, refused},
    names::MachineName,
    plan,
    report::{Report, millis},
    time::unix_now,
};
use floe_inventory::inventory::{Entry, lifecycle::Task, record::Origin};
use floe_library::images::{FORK_LABEL, sources::Found};
use floe_machine::CaptureOptions;
use floe_machines::capture::KEPT_REGIONS;
use std::sync::Arc;

/// What clones start from.
pub(super) struct Instant {
    pub found: Found,
    /// `None` if an image was forked, which is stored already.
    pub layer: Option<Arc<Layer>>,
    pub parent: Option<Parent>,
    pub pause_ms: Option<f64>,
}

/// Returns the error that there is nothing by this name to fork.
pub fn no_parent(name: &str) -> NodeError {
    not_found(
        format!("there is no machine {name}, and no image either"),
        "see `floe ps` and `floe image ls`",
    )
}

impl Instant {
    /// Returns the state of an image that holds a running machine, and what its clones are called after.
    pub fn of_image(found: Found, name: &str) -> (Instant, MachineName) {
        let instant = Instant {
            found,
            layer: None,
            parent: None,
            pause_ms: None,
        };
        (instant, MachineName::from_image(name, |_| false))
    }
}

impl Forks {
    /// Returns the state to clone: a machine's as it is now, or an image's.
    pub(super) fn instant(
        &self,
        name: &str,
        hooks_s: Option<u32>,
        report: &mut Report,
    ) -> Result<(Instant, MachineName), NodeError> {
        let machine = match name.parse::<MachineName>() {
            Ok(_) => self.inventory.get(name).ok(),
            Err(_) => None,
        };
        if let Some(left) = self.inventory.left_alone(name) {
            return Err(failed(
                format!("machine {name} can't be forked: {}", left.why),
                left.way_out(),
            ));
        }
        let Some(entry) = machine else {
            let id = self
                .images
                .repo
                .resolve(name)
                .map_err(|_| no_parent(name))?;
            let manifest = self.images.repo.manifest(&id)?;
            if !plan::is_live(&manifest) {
                return Err(refused(
                    format!("image {name} holds no running machine"),
                    format!("floe run {name}, then fork that"),
                ));
            }
            let origin = Origin::default();
            let found = Found {
                id,
                manifest,
                fetcher: self.images.sources.fetcher(&origin)?,
                origin,
                loads: Arc::default(),
            };
            return Ok(Instant::of_image(found, name));
        };
        let parent = entry.name.clone();
        Ok((self.take_instant(entry, hooks_s, report)?, parent))
    }

    /// Stops a machine, copies what it has written, and lets it go on.
    // Long: the steps of the pause in their order, each beside what undoes it if a later one fails.
    fn take_instant(
        &self,
        entry: Arc<Entry>,
        hooks_s: Option<u32>,
        report: &mut Report,
    ) -> Result<Instant, NodeError> {
        entry.wait_for_identity()?;
        let operation = entry.begin(Task::Fork)?;
        let vm = operation.vm()?;
        let disks = operation.mounted()?;
        let record = operation.record();
        let ram_manifest = self.images.manifest_of(&operation.dir, &record.image)?;
        let disk_manifest = match record.disk_base == record.image {
            true => ram_manifest.clone(),
            false => self.images.manifest_of(&operation.dir, &record.disk_base)?,
        };
        let ram = Base {
            id: record.image,
            manifest: &ram_manifest,
            origin: record.origin.clone(),
            fetcher: self.images.sources.fetcher(&record.origin)?,
        };
        // if its disks were rebased after the start, the image under them was stored on this node
        let disk_origin = match record.disk_base == record.image {
            true => record.origin.clone(),
            false => Origin::default(),
        };
        let under = Base {
            id: record.disk_base,
            manifest: &disk_manifest,
            fetcher: self.images.sources.fetcher(&disk_origin)?,
            origin: disk_origin,
        };
        let agents = &self.captures.agents;
        let hooks = agents.freeze(&entry, "fork", hooks_s, report)?;
        operation.stop_buffering()?;
        let paused = operation.pausing(&vm, PauseReason::Capture)?;
        let options = CaptureOptions {
            in_file: true,
            bytes_max: self.machines.resources.capture_bytes_max(),
            ..Default::default()
        };
        let captured = vm.capture(options, || disks.freeze())?;
        let pause_ms = millis(captured.pause.total());
        report.stage("capture")?;
        for disk in captured.frozen.disks() {
            if disk.base().is_some_and(|(id, _)| id != under.id) {
                return Err(failed(
                    format!(
                        "disk {} does not stand on {}",
                        disk.name(),
                        under.id.short()
                    ),
                    "restart the machine (floe stop, floe start) and fork again",
                ));
            }
        }
        let mut config = captured.config.clone();
        entry.label_guest(&mut config);
        config
            .labels
            .insert(FORK_LABEL.into(), entry.name.to_string());
        let frozen = captured.frozen.disks().iter();
        let making = Making {
            config,
            ram,
            disks: under,
            kept: &KEPT_REGIONS,
            created_unix_s: unix_now(),
            parent: layer::Parent {
                name: entry.name.to_string(),
                created_unix_s: record.created_unix_s,
                last_layers: frozen.map(|disk| disk.last_layer()).collect(),
            },
            dir: &self.layers.dir(),
        };
        let noted: &Report = report;
        let (layer, loads, frozen) = floe_threads::scope(|scope| {
            scope.spawn("fork-record", || drop(paused)); // writes the record to the disk, which takes longer than the hashing
            scope.spawn("fork-thaw", move || hooks.thaw(noted)); // what they hold up waits for the pause, not for the hashing
            Layer::build(captured, making)
        })?;
        report.stage("hash")?;
        let origin = Origin::default();
        let fetcher = self.images.sources.fetcher(&origin)?;
        let layer = Arc::new(layer);
        self.layers.insert(layer.clone()); // from here on the caller must store or drop it
        drop(operation);
        Ok(Instant {
            found: Found {
                id: layer.id,
                manifest: layer.manifest.clone(),
                fetcher,
                origin,
                loads: Arc::new(loads.into()),
            },
            layer: Some(layer),
            parent: Some(Parent { entry, frozen }),
            pause_ms: Some(pause_ms),
        })
    }
}

/// Returns how many bytes a node needs before the first clone's guest runs.
pub(super) fn descriptor_bytes(instant: &Instant) -> u64 {
    match &instant.layer {
        Some(layer) => layer.descriptor_bytes(),
        None => {
            let manifest = &instant.found.manifest;
            let device = manifest.region("device").map_or(0, |region| region.size);
            manifest.encode().len() as u64 + device
        }
    }
}
