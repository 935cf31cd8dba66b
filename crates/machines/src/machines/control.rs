//! Existing machines: showing, stopping and removing them, and noticing when one ends by itself.

use crate::machines::{
    Machines, VM_DIR,
    launch::{choose_ports, machine_forward},
    left::running_in,
    room::Room,
    stopped::why_stopped,
};
use floe_api::*;
use floe_ground::{
    error::{NodeError, busy, failed, not_found, refused},
    news::News,
};
use floe_inventory::inventory::{
    Entry, LeftAlone, Operation,
    lifecycle::{Event, Gone, Phase, Qemu, Task, foremost, status},
    remove_all,
};
use floe_machine::{End, Machine, Process, Status};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

/// How long QEMU may take to end after it was asked to.
const QUIT_WAIT: Duration = Duration::from_secs(10);
/// How often the power button of a guest that is to end is pressed.
const PRESS_EVERY: Duration = Duration::from_secs(5);
/// How long a QEMU may take to end that does not take a command any more.
const ENDING_WAIT: Duration = Duration::from_secs(1);
/// How long a leftover QEMU may take to end after it was killed.
const KILL_WAIT: Duration = Duration::from_secs(10);
/// How often the free space on the disk is checked.
const ROOM_EVERY: Duration = Duration::from_secs(1);
/// How long a guest may wait for its source in vain until users are told.
const SOURCE_SILENT_MIN: Duration = Duration::from_secs(3);
/// How often the disk's reserve is refilled if there is room.
const REFILL_EVERY: Duration = Duration::from_secs(5);

/// Presses the guest's power button until the guest has ended; returns false if it has not after `limit`. A guest that is still
/// booting does not notice a button, so it is pressed repeatedly; one that powers down heeds no further one.
fn powers_down(vm: &Machine, limit: Duration) -> bool {
    let mut left = limit;
    loop {
        let wait = left.min(PRESS_EVERY);
        if vm.powerdown().is_err() {
            // it may be ending at this moment
            return vm.wait_end(wait.min(ENDING_WAIT));
        }
        if vm.wait_end(wait) {
            return true;
        }
        left -= wait;
        if left.is_zero() {
            return false;
        }
    }
}

impl Machines {
    /// Returns all machines, by name.
    pub fn list_machines(&self) -> MachineList {
        let entries = self.inventory.all();
        let left = self.inventory.all_left_alone();
        let known = entries.iter().map(|entry| self.info_of(entry));
        let mut machines: Vec<_> = known.chain(left.iter().map(info_left_alone)).collect();
        machines.sort_by(|one, other| one.name.cmp(&other.name));
        MachineList { machines }
    }

    /// Returns one machine.
    pub fn inspect_machine(&self, name: &str) -> Result<MachineInfo, NodeError> {
        match self.inventory.left_alone(name) {
            Some(left) => Ok(info_left_alone(&left)),
            None => Ok(self.info_of(&*self.inventory.get(name)?)),
        }
    }

    /// Returns what is shown of a machine.
    // Long: one structure, field by field.
    pub fn info_of(&self, entry: &Entry) -> MachineInfo {
        let (record, vm, disks, fetcher) = {
            let state = entry.state();
            (
                state.record.clone(),
                state.vm.clone(),
                state.disks.clone(),
                state.fetcher.clone(),
            )
        };
        let life = entry.life();
        let mut detail = match life.gone().and_then(Gone::detail) {
            // its end is decided, and not yet in its record
            Some(end) if !record.detail.starts_with(&end) => end,
            _ => record.detail.clone(),
        };
        let mut paused_for = life.reasons();
        // the QEMU of an orphaned clone may wait for memory that it cannot get, and then does not answer
        let status_of = |vm: &Machine| match life.orphaned().is_some() || life.hangs() {
            true => Ok(Status::Paused),
            false => vm.status(),
        };
        let qemu = vm.as_ref().map_or(Qemu::None, |vm| match status_of(vm) {
            Ok(Status::IoError { disk, no_space }) => {
                detail = why_stopped(&record.name, &disk, no_space, disks.as_ref());
                if !paused_for.contains(&PauseReason::Disk) {
                    paused_for.push(PauseReason::Disk);
                }
                Qemu::Still
            }
            Ok(Status::Paused) => {
                if let Some(operation) = life.task() {
                    detail = format!("{operation} is under way");
                }
                Qemu::Still
            }
            Ok(Status::Running) => Qemu::Runs,
            Ok(Status::Ended(_)) => Qemu::Still,
            Err(error) => {
                detail = error.to_string();
                Qemu::Still
            }
        });
        let waits = disks.as_ref().map(|disks| disks.waits());
        let silent = source_trouble(
            fetcher.as_deref(),
            disks.as_ref(),
            waits.unwrap_or_default(),
        );
        if let Some(silent) = silent.filter(|_| vm.is_some()) {
            detail = match life.hangs() {
                true => {
                    format!("{silent}; it stands still until that comes, and goes on by itself")
                }
                false => silent,
            };
        }
        if life.orphaned().is_some() && matches!(life.phase(), Phase::Left | Phase::Running) {
            if !paused_for.contains(&PauseReason::Orphaned) {
                paused_for.push(PauseReason::Orphaned);
            }
        } else if life.phase() == Phase::Left {
            let waits = entry.state().waits.clone();
            detail = match life.task() {
                _ if !waits.is_empty() => waits,
                Some(Task::Adopt) => "it is being taken over from the earlier node".into(),
                _ => "its QEMU does not answer this node yet".into(),
            };
        }
        let why = foremost(&paused_for);
        match why {
            Some(PauseReason::Orphaned) => detail = life.orphaned().unwrap_or_default().into(),
            Some(PauseReason::User) => {
                detail = {
                    format!(
                        "paused by its user; floe resume {} lets it go on",
                        record.name
                    )
                }
            }
            _ => {}
        }
        let guest = || entry.identity_detail().or_else(|| entry.clock_detail());
        if let Some(why) = guest().filter(|_| detail.is_empty()) {
            detail = why;
        }
        let buffering = entry.buffering();
        if let Some(wait) = buffering.filter(|_| why == Some(PauseReason::Buffering)) {
            detail = format!(
                "{:.1} MiB still to come, about {:.0} s; floe start {} to go on at once",
                wait.missing_bytes as f64 / f64::from(1 << 20),
                wait.eta_s,
                record.name
            );
        }
        if life.phase() == Phase::Parked {
            let now = self.core.started.elapsed();
            let asleep = entry.state().asleep.clone();
            let told = asleep.told(now, &record.name, !record.forwards.is_empty());
            detail = told.unwrap_or(detail);
        }
        let elsewhere = record.turn.as_ref();
        if let Some(why) = elsewhere.and_then(|turn| turn.shown(&record.name)) {
            detail = why;
        }
        if let Some(wait) = record.afterwards.wait().filter(|_| vm.is_none()) {
            let s = wait.as_secs();
            detail = format!("{detail}; it is started again {s} s after that");
        }
        let mut stats = MachineStats::default();
        if let Some(disks) = disks {
            let counted = disks.stats();
            stats.misses = counted.waits;
            stats.requests = counted.faults + counted.reads + counted.writes;
            stats.wait_ms = counted.wait_us as f64 / 1e3;
            stats.overlay_bytes = counted.overlay_bytes;
        }
        let mut sources = record.origin.urls.clone();
        if sources.is_empty() {
            sources.push(self.core.home.repo().display().to_string());
        }
        if let Some(fetcher) = fetcher {
            stats.wire_bytes = fetcher.link().wire_bytes;
        }
        self.resources.count(&record, &mut stats);
        let image = record.shown_image();
        let has = record.size();
        let unused = match vm.is_some() {
            true => record.given.idle_bytes(&record.config),
            false => 0,
        };
        let disks = record.disk_aliases();
        let most = floe_machine::Room::of(&record.config);
        let place = record.network.as_ref();
        MachineInfo {
            name: record.name.clone(),
            status: status(
                life.phase(),
                qemu,
                life.gone().is_some_and(Gone::is_bad),
                why,
            ),
            detail,
            image: image.to_string(),
            image_name: record.image_name.clone(),
            restored: record.restored,
            pid: vm.map(|vm| vm.pid()),
            memory_bytes: has.memory_bytes,
            memory_unused_bytes: unused,
            memory_bytes_max: most.memory_bytes_max,
            cpus: has.cpus,
            cpus_max: most.cpus_max,
            cards: floe_machine::added_card_ids(&record.config.devices),
            disks,
            accel: record
                .config
                .accel
                .clone()
                .unwrap_or_else(|| self.core.accel.name().into()),
            forwards: record.forwards.clone(),
            created_unix_s: record.created_unix_s,
            sources,
            stats,
            network: place.map(|place| self.networks.info(place)),
            allow_host: record.host_access.clone(),
            limits: record.limits,
            park_after_s: record.park_after_s,
            no_trim: record.no_trim,
            cloned: record.family.as_ref().map(|family| Cloned {
                fork: family.fork.clone(),
                parent: family.parent.clone(),
                number: family.number,
                settled: family.settled,
                identity: family.identity,
                ends_unix_s: family.ends_unix_s,
            }),
            paused_for,
            switched_off: matches!(life.gone(), Some(Gone::SwitchedOff(_))),
            remove: record.afterwards.remove,
            restart: record.afterwards.restart,
            restarts: record.afterwards.in_a_row,
            independence: entry.independence(),
            moves: record.turn.as_ref().and_then(|turn| turn.listed()),
            ensemble: record.ensemble.clone(),
        }
    }

    /// Stops a machine: asks the guest to power down, then ends QEMU. Its disks stay. A QEMU that an earlier node has left and that
    /// answers nobody is ended at once.
    pub fn stop_machine(
        &self,
        name: &str,
        request: &StopRequest,
    ) -> Result<MachineInfo, NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Stop)?;
        let afterwards = operation.record().afterwards;
        if afterwards.due && operation.phase() == Phase::Stopped {
            operation.update(|record| record.afterwards = afterwards.stopped())?;
            return Ok(self.info_of(&operation));
        }
        let vm = match operation.vm() {
            Err(_) if operation.waits_for_adoption() => None,
            Err(_) if operation.is_parked() && request.now => None,
            Err(_) if operation.is_parked() => {
                return Err(refused(
                    format!("machine {name} is parked: its guest can't be asked to power down"),
                    format!(
                        "floe wake {name} first, or floe stop --now {name}, which throws its memory away: it starts as after a \
                         power cut then"
                    ),
                ));
            }
            vm => Some(vm?),
        };
        // a paused guest could not power down; a QEMU that doesn't answer is ended below
        let _ = operation.wake();
        operation.drive(Event::Stops)?;
        let mut gone = Gone::Asked;
        match vm {
            Some(vm) => {
                let limit_s = request.timeout_s.unwrap_or(STOP_TIMEOUT_S_DEFAULT);
                // a guest that can't be asked (no ACPI, paused) is switched off below
                if !request.now && !powers_down(&vm, Duration::from_secs(limit_s)) {
                    gone = Gone::SwitchedOff(limit_s);
                }
                vm.quit(QUIT_WAIT)?;
            }
            None => self.end_qemu(&operation),
        }
        self.traces.take_trace(&operation);
        // a disk that failed has lost what it lost; the machine is stopped all the same
        let remark = match self.detach(&operation) {
            Ok(()) => String::new(),
            Err(error) => format!("; {}", error.to_api()),
        };
        operation.gone(gone, &remark)?;
        Ok(self.info_of(&operation))
    }

    /// Removes a machine with its disks.
    pub fn remove_machine(&self, name: &str, force: bool) -> Result<(), NodeError> {
        if let Some(left) = self.inventory.left_alone(name) {
            return self.remove_left_alone(&left, force);
        }
        let operation = self.inventory.get(name)?.begin(Task::Remove)?;
        if operation
            .turn()
            .is_some_and(|turn| turn.is_given_or_offered())
        {
            operation.is_here()?; // it may be the only copy
        }
        self.remove(&operation, force)
    }

    /// Removes this very machine with its disks. Returns false if somebody else has: its name may be another machine's by now.
    pub(crate) fn remove_this(&self, entry: &Arc<Entry>, force: bool) -> Result<bool, NodeError> {
        let operation = entry.begin(Task::Remove)?;
        let named = self.inventory.get(operation.name.as_str());
        if !named.is_ok_and(|named| Arc::ptr_eq(&named, entry)) {
            return Ok(false);
        }
        self.remove(&operation, force).map(|()| true)
    }

    /// Removes the machine of an operation with its disks.
    pub fn remove(&self, operation: &Operation, force: bool) -> Result<(), NodeError> {
        let name = operation.name.as_str();
        if operation.state().vm.is_some() && !force {
            return Err(busy(
                format!("machine {name} is running"),
                format!("floe stop {name} first, or floe rm --force {name}"),
            ));
        }
        operation.drive(Event::Removes)?;
        let record = operation.record();
        self.discard(operation);
        operation.drive(Event::Removed)?;
        let kin = self.kin.get().and_then(Weak::upgrade);
        let struck = kin.map_or(Ok(()), |kin| kin.removed(name));
        self.images.released(&record.image);
        self.images.released(&record.disk_base);
        struck
    }

    /// Removes a machine whose record can't be read, with everything in its directory.
    fn remove_left_alone(&self, left: &LeftAlone, force: bool) -> Result<(), NodeError> {
        let (name, vm_dir) = (&left.name, left.dir.join(VM_DIR));
        // a file in place of its directory has no QEMU
        let runs = || match Machine::process_in(&vm_dir) {
            Err(_) if std::fs::metadata(&left.dir).is_ok_and(|meta| meta.is_file()) => Ok(false),
            found => found.map(|qemu| qemu.is_some()),
        };
        if !force && runs()? {
            return Err(busy(
                format!("the QEMU of machine {name} runs, although its record can't be read"),
                format!("floe rm --force {name} ends it and removes the machine with its disks"),
            ));
        }
        end_vm(&vm_dir);
        remove_all(&left.dir)?;
        self.inventory.forget_left_alone(name);
        self.end_takeover()?;
        self.core.tell(name.as_str(), &News::LeftAloneRemoved);
        let kin = self.kin.get().and_then(Weak::upgrade);
        kin.map_or(Ok(()), |kin| kin.removed(name.as_str()))
    }

    /// Ends a machine and removes all of its files.
    pub fn discard(&self, operation: &Operation) {
        self.end_quietly(operation);
        let record = operation.record();
        let place = self.core.home.root().join(&record.place);
        for dir in [&place, &operation.dir] {
            if let Err(error) = remove_all(dir) {
                tracing::warn!(machine = %operation.name, %error, "was not removed");
            }
        }
        self.forget(operation);
    }

    /// Takes a machine of which nothing is on the disk out of all lists.
    pub fn forget(&self, operation: &Operation) {
        let record = operation.record();
        self.resources.ended(&record);
        self.leave_network(&record);
        self.inventory.remove(&operation.name);
        self.images.forget_image(&record.image);
        self.images.forget_image(&record.disk_base);
    }

    /// Ends QEMU and takes the machine off the mount; errors are only logged.
    pub fn end_quietly(&self, entry: &Entry) {
        let vm = entry.state().vm.clone();
        match vm.map(|vm| vm.quit(QUIT_WAIT)) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(machine = %entry.name, %error, "QEMU did not end");
            }
            // its QEMU, if there is one, never answered this node
            None => self.end_qemu(entry),
        }
        self.traces.take_trace(entry);
        if let Err(error) = self.detach(entry) {
            tracing::warn!(machine = %entry.name, %error, "the machine stays on the mount");
        }
    }

    /// Returns a machine's QEMU process, if one is alive. An error does not say that there is none.
    pub fn qemu_of(&self, entry: &Entry) -> Result<Option<Process>, NodeError> {
        Ok(Machine::process_in(&self.vm_dir(&entry.record()))?)
    }

    /// Kills a machine's QEMU; its disks keep what it has written.
    pub fn end_qemu(&self, entry: &Entry) {
        // one that waits for files that may still come can't even be killed
        if let Err(error) = self.end_takeover() {
            tracing::warn!(machine = %entry.name, %error, "its QEMU may still wait for its files");
        }
        end_vm(&self.vm_dir(&entry.record()));
    }

    /// Whether the mount is still needed once this node has ended: a QEMU runs, has not answered yet, or may run.
    pub fn any_running(&self) -> bool {
        match running_in(&self.core.home) {
            Ok(running) => !running.is_empty(),
            Err(error) => {
                tracing::error!(%error, "nobody knows which QEMUs run; the mount stays for them");
                true
            }
        }
    }

    /// Stops all machines at the same time, also those whose records can't be read.
    pub fn stop_all_machines(&self) {
        let entries = self.inventory.all();
        let known = entries.iter().map(|entry| self.vm_dir(&entry.record()));
        let known: Vec<PathBuf> = known.collect();
        let unknown = running_in(&self.core.home).unwrap_or_else(|error| {
            tracing::error!(%error, "machines that are left alone are not stopped");
            Vec::new()
        });
        let unknown = unknown.into_iter().map(|dir| dir.join(VM_DIR));
        floe_threads::scope(|scope| {
            for dir in unknown.filter(|dir| !known.contains(dir)) {
                scope.spawn("stop", move || stop_unknown(&dir));
            }
            for entry in entries {
                scope.spawn("stop", move || {
                    let afterwards = entry.record().afterwards;
                    if matches!(entry.phase(), Phase::Stopped | Phase::Parked) {
                        return; // one that is due stays due for the next node
                    }
                    let stopped = self.stop_machine(entry.name.as_str(), &StopRequest::default());
                    let stopped = stopped.and_then(|_| {
                        entry.update(|record| record.afterwards = afterwards.stopped_with_node())
                    });
                    if let Err(error) = stopped {
                        tracing::warn!(machine = %entry.name, %error, "was not stopped");
                    }
                });
            }
        });
    }

    /// Adds or removes a port forward.
    pub fn forward(&self, name: &str, request: &ForwardRequest) -> Result<PortForward, NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Forward)?;
        let vm = operation.vm()?;
        if request.remove {
            if !operation.record().forwards.contains(&request.forward) {
                return Err(not_found(
                    format!("{} is not forwarded", request.forward),
                    format!("see floe ps {name}"),
                ));
            }
            match operation.record().network {
                Some(_) => self.networks.close_inbound(name, Some(&request.forward)),
                None => vm.remove_forward(&machine_forward(&request.forward)?)?,
            }
            operation.update(|record| {
                record
                    .forwards
                    .retain(|forward| *forward != request.forward)
            })?;
            return Ok(request.forward.clone());
        }
        if operation.record().forwards.len() >= floe_ground::plan::FORWARDS_MAX {
            return Err(failed(
                "too many port forwards",
                format!("a machine has at most {}", floe_ground::plan::FORWARDS_MAX),
            ));
        }
        let [chosen] = choose_ports(&self.inventory, std::slice::from_ref(&request.forward))?
            .try_into()
            .map_err(|_| failed("no port", ""))?;
        match &operation.record().network {
            Some(place) => self.networks.open_inbound(name, place, &chosen, None)?,
            None => vm.add_forward(machine_forward(&chosen)?)?,
        }
        operation.update(|record| record.forwards.push(chosen.clone()))?;
        Ok(chosen)
    }

    /// Starts the threads that notice when a QEMU ends, and when the disk is short of space or has space again, and that remove what was
    /// left of images.
    pub fn start_watching(self: &Arc<Self>) -> Result<(), NodeError> {
        let threads = &self.core.threads;
        let machines = Arc::downgrade(self);
        // `look` itself waits, and holds only `Ends` meanwhile, so that the service can go
        threads.keep("machine-ends", &self.ends, Duration::ZERO, move |ends| {
            let ended = ends.wait();
            if let Some(machines) = machines.upgrade() {
                machines.look_after_ends(ended);
            }
        })?;
        self.start_watching_faces()?;
        let mut room = Room::new(self.core.home.root().to_owned(), self.images.cache.clone());
        threads.keep("disk-room", self, ROOM_EVERY, move |machines| {
            machines.look_after_room(&mut room);
        })?;
        Ok(
            threads.keep("disk-reserve", self, REFILL_EVERY, |machines| {
                machines.images.collect_rest();
                machines.core.reserve.refill();
            })?,
        )
    }

    /// Handles a QEMU that ended by itself: restarts the guest if it was reset, otherwise takes its disks off the mount.
    pub(super) fn ended(&self, operation: &Operation, vm: &Machine) {
        let end = match vm.status() {
            Ok(Status::Ended(end)) => end,
            _ => return,
        };
        let record = operation.record();
        if end == End::GuestReset && record.restored {
            operation.has_no_qemu();
            // keeps the devices and memory that it was given while it ran; a record that can't be written is written later
            let _ = operation.drive_with(Event::Resets, |record| record.config = vm.config());
            self.networks.close_inbound(&record.name, None);
            let booted = self.boot(operation, "", |record| {
                record.restored = false;
                record.detail = "the guest was reset and was started cold from its disks".into();
            });
            match booted {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(machine = %operation.name, %error, "the guest was reset and can't be started")
                }
            }
        }
        let (bad, detail) = match end {
            End::GuestShutdown => (false, "the guest switched itself off".to_owned()),
            End::Asked => (false, "its QEMU was ended".to_owned()),
            End::GuestReset => (
                true,
                "the guest was reset and can't be started from its disks".to_owned(),
            ),
            End::Lost => {
                let disks = operation.state().disks.clone();
                let starved = disks.and_then(|disks| disks.given_up_memory());
                let starved = starved.map(|why| format!("its QEMU ended: {why}"));
                let why = self.resources.out_of_memory(&record).or(starved);
                let unknown = || format!("its QEMU ended unexpectedly: {}", vm.qemu_log().trim());
                (true, why.unwrap_or_else(unknown))
            }
        };
        self.traces.take_trace(operation);
        if let Err(error) = self.detach(operation) {
            tracing::warn!(machine = %operation.name, %error, "the machine stays on the mount");
        }
        if let Err(error) = operation.gone(Gone::ByItself { bad, why: detail }, "") {
            tracing::warn!(machine = %operation.name, %error, "its record still says that it runs");
        }
    }
}

/// Says for how long the source of a machine's image has given nothing that is waited for, and why.
pub(super) fn source_trouble(
    fetcher: Option<&floe_source::Fetcher>,
    disks: Option<&floe_mount::MachineHandle>,
    waits: floe_mount::Waits,
) -> Option<String> {
    let (lasts, error) = fetcher.and_then(|fetcher| fetcher.trouble()).unzip();
    // between two questions to a source that refuses nobody waits for the fetcher
    let error = error.or_else(|| disks?.why_waits());
    // the first attempt may not have failed yet
    let why = error.map_or_else(
        || "nothing has come yet".to_owned(),
        |error| error.to_string(),
    );
    let lasts = lasts.max(waits.longest())?;
    let told = lasts >= SOURCE_SILENT_MIN;
    told.then(|| format!("waits for its source, {} s now: {why}", lasts.as_secs()))
}

/// Returns what is shown of a machine whose record can't be read.
// Long: one structure, field by field.
fn info_left_alone(left: &LeftAlone) -> MachineInfo {
    MachineInfo {
        name: left.name.to_string(),
        status: MachineStatus::Failed,
        detail: format!("it is left alone: {}; {}", left.why, left.way_out()),
        image: String::new(),
        image_name: String::new(),
        restored: false,
        pid: None,
        memory_bytes: 0,
        memory_unused_bytes: 0,
        memory_bytes_max: 0,
        cpus: 0,
        cpus_max: 0,
        cards: Vec::new(),
        disks: Vec::new(),
        accel: String::new(),
        forwards: Vec::new(),
        created_unix_s: 0,
        sources: Vec::new(),
        stats: MachineStats::default(),
        cloned: None,
        network: None,
        allow_host: HostAccess::None,
        limits: Limits::default(),
        park_after_s: None,
        no_trim: false,
        paused_for: Vec::new(),
        switched_off: false,
        remove: false,
        restart: RestartPolicy::default(),
        restarts: 0,
        independence: None,
        ensemble: None,
        moves: None,
    }
}

/// Stops the QEMU in a directory of which nobody knows whose machine that is.
fn stop_unknown(dir: &Path) {
    match Machine::adopt(dir) {
        Ok(vm) => {
            let limit = Duration::from_secs(STOP_TIMEOUT_S_DEFAULT);
            if !powers_down(&vm, limit) {
                tracing::warn!(dir = %dir.display(), "its guest did not power down, and is switched off");
            }
            if let Err(error) = vm.quit(QUIT_WAIT) {
                tracing::warn!(dir = %dir.display(), %error, "QEMU did not end");
            }
        }
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "its guest can't be asked to power down");
            end_vm(dir);
        }
    }
}

/// Kills the QEMU in a directory, if there is one.
pub fn end_vm(dir: &Path) {
    let qemu = match Machine::process_in(dir) {
        Ok(Some(qemu)) => qemu,
        Ok(None) => return,
        Err(error) => {
            return tracing::error!(dir = %dir.display(), %error, "a QEMU that may run here is not ended");
        }
    };
    qemu.kill();
    if !qemu.wait(KILL_WAIT) {
        tracing::warn!(dir = %dir.display(), "QEMU did not end");
    }
}
