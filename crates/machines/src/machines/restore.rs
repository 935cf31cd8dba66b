//! Continues from an image's running state: first a QEMU that has loaded the state and stands still, then one whose guest
//! runs.

use crate::machines::{Machines, launch::machine_forward};
use floe_ground::{
    error::{NodeError, failed},
    report::Report,
    time::unix_now,
};
use floe_image::{CHUNK_SIZE, MachineConfig, is_zero};
use floe_inventory::inventory::{
    AGENT_LABEL, Entry, HeldPort, Operation, Setter, is_pending,
    lifecycle::{Event, Phase},
    record::Record,
};
use floe_library::{
    images::sources::{Found, Loads},
    traces::{
        TOUCHED_BEFORE_MAX,
        models::Coming,
        rehearsed::{self, TRACE_REGION},
    },
};
use floe_machine::{
    CPU_MODEL_DEFAULT, ClockSync, Continuing, Host, MachineError, Snapshot, Stage, Standby,
};
use floe_mount::{ImageHandle, MachineHandle};
use std::{
    collections::HashMap,
    os::fd::AsFd,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the result of setting a guest's clock is waited for: the agent's own limit and a little more.
const CLOCK_WAIT: Duration = Duration::from_secs(70);

/// A machine whose state is loaded and whose guest has not run since the capture. Dropping it ends its QEMU.
pub struct Loaded {
    standby: Standby,
    /// Port forwards that its QEMU does not have yet.
    forwards: Vec<floe_machine::PortForward>,
    /// Whether its QEMU was started ahead and had waited.
    waited: bool,
    /// When the state was captured, as Unix time in seconds.
    captured_unix_s: u64,
}

impl Loaded {
    fn of(
        found: &Found,
        standby: Standby,
        forwards: Vec<floe_machine::PortForward>,
        waited: bool,
    ) -> Loaded {
        Loaded {
            standby,
            forwards,
            waited,
            captured_unix_s: found.manifest.created_unix_s,
        }
    }

    /// Tells the guest to run. [`Machines::let_go`] then enters the machine.
    pub fn release(&self) -> Result<Continuing, NodeError> {
        Ok(self.standby.machine().begin_cont()?)
    }

    /// Gives its QEMU the ports that it does not have yet, those of `held` with the sockets that listen there. [`Machines::let_go`] would
    /// do that as well, but a caller that can't lose the machine any more must know before whether they can be opened.
    pub fn open_ports(&mut self, held: &[HeldPort]) -> Result<(), NodeError> {
        let vm = self.standby.machine();
        for forward in self.forwards.drain(..) {
            let is_it = |port: &&HeldPort| {
                machine_forward(&port.forward).is_ok_and(|other| other == forward)
            };
            match held.iter().find(is_it) {
                Some(port) => vm.give_port(forward, port.socket.as_fd())?,
                None => vm.add_forward(forward)?,
            }
        }
        Ok(())
    }
}

impl Machines {
    /// Starts a machine from its image's running state, and lets its guest run. `from` is what is published as its origin.
    pub(crate) fn begin_restore(
        self: &Arc<Self>,
        entry: &Operation,
        from: &str,
        found: &Found,
        model: &Coming,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let loaded = self.load_state(entry, found, model, report)?;
        self.let_go(entry, from, loaded, model, report)
    }

    /// Has a QEMU load a machine's state: one that waits for this image if possible, otherwise a new one. A machine that was parked has
    /// disks of its own, which no waiting QEMU knows: it always gets a new one.
    pub fn load_state(
        self: &Arc<Self>,
        entry: &Operation,
        found: &Found,
        model: &Coming,
        report: &mut Report,
    ) -> Result<Loaded, NodeError> {
        // a waiting QEMU has the user network and the address of the image's card, gives its guest no access to the host, has no
        // limits, and is in a household of its own
        let record = entry.record();
        let was_parked = entry.phase() == Phase::Waking;
        let waiting = match record.network {
            None if !was_parked
                && record.host_access.is_none()
                && !record.limits.bind_process()
                && !record.household.joined
                && record.fresh.is_none() =>
            {
                let forwards = record.forwards.iter().map(machine_forward);
                let forwards = forwards.collect::<Result<_, _>>()?;
                let waiting = self.take_standby(&found.id, !is_pending(&record));
                waiting.map(|waiting| (waiting, forwards))
            }
            _ => None,
        };
        if let Some((waiting, forwards)) = waiting {
            let (standby, attached, place) = waiting.into_parts();
            // written to the disk once the guest runs; after a crash before that, QEMUs that had waited are ended anyway
            entry.moves_to(place);
            self.inventory.users.release(record.uid);
            entry.is_attached(attached.disks, attached.images, found.fetcher.clone());
            report.stage("standby")?;
            return Ok(Loaded::of(found, standby, forwards, true));
        }
        let forwards = record.forwards.iter().map(machine_forward);
        let forwards = forwards.collect::<Result<Vec<_>, _>>();
        if !was_parked && let Some(standby) = self.load_on_blank(entry, found, model) {
            report.stage("standby")?;
            return Ok(Loaded::of(found, standby, forwards?, false));
        }
        self.attach(entry)?;
        self.streams(entry, model)?;
        report.stage("mount")?;
        let (disks, images) = {
            let state = entry.state();
            (state.disks.clone(), state.images.clone())
        };
        let disks = disks.ok_or_else(|| failed("the machine has no disks", "report this"))?;
        let snapshot = self.snapshot(found, &disks, &images)?;
        report.stage("state fetch")?;
        let mut record = Record::clone(&entry.record());
        // the ports of a machine that was parked are the node's until it is loaded
        let held = match was_parked {
            false => Vec::new(),
            true => std::mem::take(&mut record.forwards),
        };
        let spec = self.spec(&record, &disks, None)?;
        let on_user_network = held.iter().filter(|_| record.network.is_none());
        let forwards = on_user_network.map(machine_forward);
        let forwards = forwards.collect::<Result<_, _>>()?;
        drop((disks, images));
        let began = Instant::now();
        let standby = Standby::prepare(spec, &snapshot)?;
        tell_stages(standby.stages(), began, report);
        Ok(Loaded::of(found, standby, forwards, false))
    }

    /// Returns an error unless this host's QEMU, or one of this version in its place, can load a state that was captured with this
    /// configuration.
    pub fn check_loads(&self, config: &MachineConfig, qemu: Option<&str>) -> Result<(), NodeError> {
        let model = config.cpu_model.as_deref().unwrap_or(CPU_MODEL_DEFAULT);
        let mut host = Host::clone(&*self.host(model)?);
        if let Some(version) = qemu {
            host.qemu_version = version.to_owned();
        }
        Ok(host.check_restore(config).map_err(MachineError::from)?)
    }

    /// Returns the version of this host's QEMU.
    pub fn qemu_version(&self) -> Result<String, NodeError> {
        Ok(self.host(CPU_MODEL_DEFAULT)?.qemu_version.clone())
    }

    fn host(&self, model: &str) -> Result<Arc<Host>, NodeError> {
        let programs = &self.core.options.programs;
        Ok(Host::probe(programs, &self.core.accel, model)?)
    }

    /// Starts the streaming of an image to a machine that is on the mount now.
    pub fn streams(&self, entry: &Entry, model: &Coming) -> Result<(), NodeError> {
        let (image, disks, wire) = {
            let state = entry.state();
            let wire = state
                .fetcher
                .as_ref()
                .map(|fetcher| fetcher.link().wire_bytes);
            let image = state.images.first().cloned();
            (image, state.disks.clone(), wire.unwrap_or_default())
        };
        entry.starts_at_wire(wire);
        let (Some(image), Some(disks)) = (image, disks) else {
            return Ok(());
        };
        disks.stream(false);
        model.image(&image);
        // chunks that another machine touched are in the page cache, so this machine's use of them would not be seen
        if image.stats().touched_chunks > TOUCHED_BEFORE_MAX && entry.record().traced {
            entry.update(|record| record.traced = false)?;
        }
        let record = entry.record();
        // no trace is taken and all data is on this host, so there is nothing to plan; this also holds for clones beside
        // their parent
        if !record.traced && record.origin.urls.is_empty() {
            image.unwatch();
        }
        Ok(())
    }

    /// Lets the guest of a loaded machine run, and enters its QEMU. From then on the machine exists, whether its client waits for it or
    /// not.
    pub fn let_go(
        self: &Arc<Self>,
        entry: &Operation,
        from: &str,
        loaded: Loaded,
        model: &Coming,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let began = Instant::now();
        let restored = loaded.standby.activate(&loaded.forwards)?;
        if loaded.waited {
            self.streams(entry, model)?;
        }
        tell_stages(&restored.stages, began, report);
        let event = Event::Runs(from.to_owned());
        self.started(entry, &Arc::new(restored.machine), event, |_| ())?;
        // floe's own agent sets the clock, at less cost to the guest
        let awaited = entry.record().config.labels.contains_key(AGENT_LABEL);
        // a state that does not say when it was captured is of no known age
        let captured_unix_s = Some(loaded.captured_unix_s).filter(|at| *at > 0);
        let behind_s = captured_unix_s.map_or(0, |at| unix_now().saturating_sub(at));
        entry.clock_is_behind(behind_s, awaited);
        if !awaited {
            self.look_at_clock(&entry.entry);
        }
        Ok(())
    }

    /// Has QEMU's agent set a clock that is late, in a guest in which nobody waits for floe's.
    pub fn look_at_clock(&self, entry: &Arc<Entry>) {
        if let Some(Setter::Qemus(late)) = entry.clock_to_set(Duration::ZERO) {
            self.set_clock(entry, late);
        }
    }

    /// Has QEMU's agent in the guest set its clock, which is late by so much, in the background, and reports if that fails.
    pub fn set_clock(&self, entry: &Arc<Entry>, late: Duration) {
        let core = self.core.clone();
        set_clock_then(entry, move |entry, done| match done {
            ClockSync::Set { .. } => entry.clock_is_set(),
            // floe's agent has answered, and sets it
            ClockSync::Stale { .. } if entry.state().guest.agent => {}
            ClockSync::Stale { reason } => {
                let news = entry.clock_stays_late(late, reason);
                core.tell(entry.name.as_str(), &news);
            }
        });
    }

    /// Reads the state that QEMU loads, in two round trips. From then on what the image's rehearsal touched is being fetched.
    pub(crate) fn snapshot(
        &self,
        found: &Found,
        disks: &MachineHandle,
        images: &[ImageHandle],
    ) -> Result<Snapshot, NodeError> {
        let memory = disks.memory_paths();
        if let Some(loads) = found.loads.get() {
            return snapshot(loads, memory);
        }
        let mut names = vec!["device"];
        if found.manifest.region("vram").is_some() {
            names.push("vram");
        }
        if found.manifest.region(TRACE_REGION).is_some() {
            names.push(TRACE_REGION);
        }
        let regions = self.images.sources.read_small(found, &names)?;
        let mut regions: HashMap<&str, Vec<u8>> = names.into_iter().zip(regions).collect();
        if let (Some(trace), Some(image)) = (regions.get(TRACE_REGION), images.first()) {
            rehearsed::follow(image, disks, &found.manifest, trace);
        }
        let device = regions.remove("device").unwrap_or_default();
        let vram = regions.remove("vram").unwrap_or_default();
        let chunks = vram
            .chunks(CHUNK_SIZE)
            .enumerate()
            .filter(|(_, chunk)| !is_zero(chunk));
        let vram = chunks.map(|(index, chunk)| {
            let mut page = Box::new([0; CHUNK_SIZE]);
            page[..chunk.len()].copy_from_slice(chunk);
            (index as u32, page)
        });
        let loads = Loads {
            device,
            vram: vram.collect(),
        };
        snapshot(found.loads.get_or_init(|| loads), memory)
    }
}

/// Builds the snapshot. `memory` is the file of the region `ram`, then those of `ram1`, `ram2`, ...
fn snapshot(loads: &Loads, memory: Vec<PathBuf>) -> Result<Snapshot, NodeError> {
    let mut files = memory.into_iter();
    let ram = files.next();
    Ok(Snapshot {
        ram: ram.ok_or_else(|| failed("the machine has no memory on the mount", "report this"))?,
        blocks: files.collect(),
        device: loads.device.clone(),
        vram: loads.vram.clone(),
    })
}

/// Adds QEMU's own stages to the report, one after the other from `began`.
fn tell_stages(stages: &[Stage], began: Instant, report: &mut Report) {
    let mut end = began;
    for stage in stages {
        end += stage.took;
        let name = match stage.name {
            "check" => "host check",
            "qemu" => "qemu start",
            "load" => "state load",
            "vram" => "screen",
            "continue" => "first instruction",
            other => other,
        };
        report.stage_at(name, end);
    }
}

/// Has QEMU's agent in a guest set its clock, in the background. `then` is called with the result, unless the machine has another QEMU by
/// then.
fn set_clock_then(entry: &Arc<Entry>, then: impl FnOnce(&Entry, ClockSync) + Send + 'static) {
    let Some(vm) = entry.state().vm.clone() else {
        return;
    };
    let (clock, pid) = (vm.set_clock(), vm.pid());
    let entry = entry.clone();
    let watcher = floe_threads::spawn("guest-clock-watch", move || {
        let Some(done) = clock.wait(CLOCK_WAIT) else {
            return;
        };
        let now = entry.state().vm.as_ref().map(|now| now.pid());
        if now == Some(pid) {
            then(&entry, done);
        }
    });
    drop(watcher); // without this thread the clock is set too, but a failure is not reported
}
