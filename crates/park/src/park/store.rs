//! Parks a machine: its memory is stored as an image of its own, and its QEMU ends.

use super::Parks;
use floe_api::{Outcome, ParkQuery, PauseReason, SUBSTRATE_LABEL, StoredReport, VISIBLE_LABEL};
use floe_ground::{
    error::{NodeError, busy},
    report::{Report, millis},
};
use floe_image::{Hash, MachineConfig};
use floe_inventory::inventory::{
    Operation,
    lifecycle::{Event, Task},
    record::{Origin, Record},
    turn::Turn,
};
use floe_library::images::{FORK_LABEL, PARK_LABEL, finish};
use floe_machine::{Capture, CaptureOptions, Machine};
use floe_machines::capture::KEPT_REGIONS;
use floe_store::{Ingest, IngestOptions};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long QEMU may take to end.
pub(super) const QUIT_WAIT: Duration = Duration::from_secs(10);
/// After how many times in a row a machine's memory is stored anew, without what was stored before. In between only what has changed is
/// stored, in a fraction of the time; but what has changed since stays beside it.
const OWN_LAYERS_MAX: u32 = 4;

/// A machine that was stored with its disks.
pub struct Whole {
    /// The image that has all of it.
    pub id: Hash,
    /// What was stored for it.
    pub stored: StoredReport,
    /// From when on its guest stood still.
    pub stopped: Instant,
}

impl Parks {
    /// Stores a machine's memory and ends its QEMU, for its user. One that is parked already stays so. If the query says so, the memory of
    /// its forks is waited for.
    pub fn park(
        self: &Arc<Self>,
        name: &str,
        query: &ParkQuery,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        if query.wait {
            let entry = self.inventory.get(name)?;
            self.forks.settle_all_of(&entry, &report.cancel())?;
            report.stage("forks stored")?;
        }
        self.park_as(Task::Park, name, query.hooks_s, report)
    }

    /// Does so as [`Task::Park`], or as [`Task::ParkIdle`] if no user has asked for it.
    pub(super) fn park_as(
        self: &Arc<Self>,
        task: Task,
        name: &str,
        hooks_s: Option<u32>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let entry = self.inventory.get(name)?;
        entry.wait_for_identity()?;
        let operation = entry.begin(task)?;
        let mut done = (None, None);
        if !operation.is_parked() {
            self.check(&operation)?;
            // what its own image does not have comes from the one under its disks, which must be here whole
            self.captures.bring_parent(&operation, report)?;
            let vm = operation.vm()?;
            // from here on who connects waits, and is not accepted by a guest that is about to stand still
            let held = self.take_ports(&operation, &vm);
            match self.store_machine(&operation, &vm, hooks_s, report) {
                Ok((stored, pause_ms)) => done = (Some(stored), Some(pause_ms)),
                Err(error) => {
                    self.give_back(&operation, &vm, held);
                    return Err(error);
                }
            }
            // from here on it is parked, whatever fails
            self.end_stored(&operation, vm);
            report.stage_at("qemu end", std::time::Instant::now());
            self.hold_ports(&operation.entry, held);
        }
        Ok(Outcome {
            machine: Some(self.machines.info_of(&operation)),
            stored: done.0,
            pause_ms: done.1,
            ..Default::default()
        })
    }

    /// Stores a machine's memory and writes down that it is parked. After an error it goes on as it was.
    // Long: the steps in their order, each beside what undoes it if a later one fails.
    fn store_machine(
        &self,
        operation: &Operation,
        vm: &Arc<Machine>,
        hooks_s: Option<u32>,
        report: &mut Report,
    ) -> Result<(StoredReport, f64), NodeError> {
        let disks = operation.mounted()?;
        // whatever fails, they are thawed after its pause is over
        let hooks = self
            .agents
            .freeze(&operation.entry, "park", hooks_s, report)?;
        let _unnamed = self.unnamed.read();
        let _storing = self.images.storing.read();
        let thumb = self.images.take_thumbnail(vm);
        let options = CaptureOptions {
            stay_paused: true,
            bytes_max: self.machines.resources.capture_bytes_max(),
            ..Default::default()
        };
        operation.stop_buffering()?;
        let paused = operation.pausing(vm, PauseReason::Capture)?;
        // its disks are flushed in the pause: on them is then what its memory knows of, whatever happens to this host
        let captured = vm.capture(options, || disks.flush())?;
        // it goes on if it can't be stored, or if this node is killed before it is
        let paused = paused.stands();
        report.stage("capture")?;
        let mut config = captured.config.clone();
        config.labels.remove(FORK_LABEL);
        operation.label_guest(&mut config);
        let (id, stored) = self.store(operation, &captured, &config, thumb.as_deref(), report)?;
        self.stored.lock().insert(id);
        report.stage("store")?;
        let pause_ms = millis(captured.pause.total());
        drop((captured, disks));
        self.traces.take_trace(operation);
        // from here on it is parked: whatever is killed, the next node ends its QEMU
        operation.drive_with(Event::Parks, |record| becomes_parked(record, id, config))?;
        paused.ended();
        hooks.gone();
        Ok((stored, pause_ms))
    }

    /// Stores a machine with its disks as one image, which no list shows, and ends its QEMU: it is parked there, and goes on there, here or
    /// on a node that has the image. Its record gets this turn with it. After an error it goes on as it was.
    // Long: as in `store_machine`.
    pub fn park_whole(
        &self,
        operation: &Operation,
        hooks_s: Option<u32>,
        turn: Turn,
        report: &mut Report,
    ) -> Result<Whole, NodeError> {
        self.check(operation)?;
        // what its own image does not have comes from the one under its disks, which must be here whole
        self.captures.bring_parent(operation, report)?;
        let vm = operation.vm()?;
        let disks = operation.mounted()?;
        let hooks = self
            .agents
            .freeze(&operation.entry, "move", hooks_s, report)?;
        let _unnamed = self.unnamed.read();
        let _storing = self.images.storing.read();
        let thumb = self.images.take_thumbnail(&vm);
        let options = CaptureOptions {
            stay_paused: true,
            bytes_max: self.machines.resources.capture_bytes_max(),
            ..Default::default()
        };
        operation.stop_buffering()?;
        let paused = operation.pausing(&vm, PauseReason::Capture)?;
        let mut frozen_at = Instant::now();
        let mut captured = vm.capture(options, || {
            frozen_at = Instant::now();
            disks.freeze()
        })?;
        // most of its memory was copied before that, while the guest ran
        let pause = captured.pause;
        let stopped = frozen_at - (pause.drains + pause.stop + pause.device);
        let paused = paused.stands();
        report.stage("capture")?;
        for label in [FORK_LABEL, SUBSTRATE_LABEL, VISIBLE_LABEL] {
            captured.config.labels.remove(label);
        }
        operation.label_guest(&mut captured.config);
        let config = captured.config.clone();
        captured.config.labels.insert(PARK_LABEL.into(), "1".into());
        let thumb = thumb.as_deref();
        let (id, stored) = self.captures.store(operation, &captured, thumb, report)?;
        self.stored.lock().insert(id);
        report.stage("store")?;
        self.captures
            .rebase(operation, &disks, &captured.frozen, &id)?;
        drop((captured, disks));
        self.traces.take_trace(operation);
        let former = operation.record();
        // from here on it is parked: whatever is killed, the next node ends its QEMU
        let parked = operation.drive_with(Event::Parks, |record| {
            becomes_parked(record, id, config);
            record.own_layers = 0; // its disks are in that image, too
            record.turn = Some(turn);
        })?;
        if !parked {
            return Err(busy(
                format!("machine {} has just ended", operation.name),
                "see `floe ps`",
            ));
        }
        paused.ended();
        hooks.gone();
        self.end_stored(operation, vm);
        self.leave_images(operation, &former, &id);
        Ok(Whole {
            id,
            stored,
            stopped,
        })
    }

    /// Notes that an image is some machine's memory: it goes once no machine needs it.
    pub fn is_memory(&self, image: Hash) {
        self.stored.lock().insert(image);
    }

    /// Ends the QEMU of a machine that is stored.
    fn end_stored(&self, operation: &Operation, vm: Arc<Machine>) {
        if let Err(error) = vm.quit(QUIT_WAIT) {
            tracing::warn!(machine = %operation.name, %error, "its QEMU is killed");
            self.machines.end_qemu(operation);
        }
        drop(vm);
        if let Err(error) = self.machines.detach(operation) {
            tracing::warn!(machine = %operation.name, %error, "the machine stays on the mount");
        }
        if let Err(error) = operation.drive(Event::Parked) {
            tracing::warn!(machine = %operation.name, %error, "its record is behind");
        }
    }

    /// Stores what was captured over what was stored of it before, or anew over the image that its disks stand on. Nothing is borrowed
    /// from other images, so that those can go with all that they have.
    fn store(
        &self,
        operation: &Operation,
        captured: &Capture<()>,
        config: &MachineConfig,
        thumb: Option<&[u8]>,
        report: &mut Report,
    ) -> Result<(Hash, StoredReport), NodeError> {
        let record = operation.record();
        let parent_id = match record.own_layers {
            1..OWN_LAYERS_MAX => record.image,
            _ => record.disk_base,
        };
        let parent = self.images.repo.manifest(&parent_id)?;
        let options = IngestOptions {
            parent: Some(parent_id),
            ..Default::default()
        };
        let mut ingest = Ingest::new(&self.images.repo, options)?;
        let line = report.progress_line("store", "bytes");
        ingest.on_progress(move |progress| line.at(progress.done_bytes, progress.total_bytes));
        let over = (&parent_id, &parent);
        let captures = &self.captures;
        captures.store_guest(&mut ingest, operation, captured, thumb, over)?;
        // its disks have an image under them already; these regions only say which disks it has
        let disks = captured.config.disks.iter().map(String::as_str);
        for region in disks.chain(KEPT_REGIONS) {
            if parent.region(region).is_some() {
                ingest.region_from_parent(region)?;
            }
        }
        let mut config = config.clone();
        config.labels.insert(PARK_LABEL.into(), "1".into());
        finish(ingest, config)
    }
}

/// Changes the record of a machine whose memory is in `image` now.
fn becomes_parked(record: &mut Record, image: Hash, config: MachineConfig) {
    record.image = image;
    record.own_layers = match record.own_layers {
        layers @ 1..OWN_LAYERS_MAX => layers + 1,
        _ => 1,
    };
    record.config = config;
    record.restored = true;
    record.detail.clear();
    // image and parent are here, and nobody else will ever run this image
    record.origin = Origin::default();
    record.traced = false;
    if let Some(family) = &mut record.family {
        family.settled = true;
    }
}
