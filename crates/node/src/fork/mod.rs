//! `fork`: a running machine becomes itself and n clones of this instant (SnowFlock, section 4).
//!
//! ```text
//! stop, device state, freeze disks, copy pages, cont     the parent's pause, as a capture's
//! hash on all cores -> manifest, tables                  `layer`: an image that is in memory
//! n QEMUs on that image                                  `clones`, told by `decide` which one where
//! pack, publish, put the parent's disks on it            `store`: later, if clones still need it, told by `when`
//! ```
//! Pages that are free at the fork (zero, ballooned, reported) have no hash in the manifest, so that nobody ever fetches
//! them: the paper's avoidance without its changes to the guest. Every clone gets a new machine-generation id from QEMU,
//! from which its kernel reseeds its random numbers.

mod clones;
mod decide;
mod family;
mod hosts;
mod kept;
mod kin;
mod layer;
mod layers;
mod multicast;
mod network;
mod parents;
mod record;
mod remote;
mod serve;
mod store;
mod when;

pub(crate) use family::Forks;
pub(crate) use hosts::Reserved;
pub(crate) use kept::Keeping;
pub(crate) use layers::{Layers, Local};
pub(crate) use parents::{Patient, is_parent};
pub(crate) use serve::{Way, router};

use crate::{
    MachineName, Node,
    capture::KEPT_REGIONS,
    error::{NodeError, failed, not_found, refused, usage},
    lifecycle::Task,
    machines::Entry,
    placement::Held,
    plan,
    record::{Attachment, Family, Origin, PauseReason},
    report::{Report, millis},
    resources::ForClones,
    sources::Found,
    unix_now,
};
use clones::LoadedClone;
use decide::{Action, CloneId, Event, Fault, Fork, State};
use floe_api::Happened;
use floe_api::{
    CLONES_MAX, CloneInfo, CloneRequest, CloneState, ForkReport, ForkRequest, Identity, Limits,
    Outcome,
};
use floe_image::Hash;
use floe_machine::{CaptureOptions, Continuing};
use hosts::no_room;
use layer::{Base, Layer, Making};
use parking_lot::Mutex;
use record::ForkRecord;
use remote::Remote;
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    time::Duration,
};
use store::Parent;

/// Label of an image that a fork made: it goes when nobody needs it any more.
pub(crate) const FORK_LABEL: &str = "floe.fork";
/// What is said of a fork with such a host.
const IN_CLEAR_TEXT: &str = "memory of the machine and the page's token cross the network in clear text: whoever can listen there \
    has both; floe cluster init makes it safe";
/// How often a fork that waits for its clones looks whether its caller is still there.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Starts under way at a time for each core: QEMU's start waits for the disk as often as it computes.
const STARTS_PER_CORE: usize = 2;

/// Starts under way at a time on other hosts: each is a request that waits.
const STARTS_AWAY: usize = 32;

/// Where clones may run.
enum Host {
    /// On this node.
    Here,
    /// On another one, which reads the parent's state at this address.
    There(Remote, String),
}

impl Host {
    /// Whether what it is told and what it reads can be read on the way.
    fn is_in_clear_text(&self) -> bool {
        matches!(self, Host::There(remote, _) if !remote.is_member())
    }

    fn url(&self) -> Option<&str> {
        match self {
            Host::Here => None,
            Host::There(remote, _) => Some(remote.url()),
        }
    }
}

/// A fork that was asked for and for which there is room.
struct Asked<'a> {
    request: &'a ForkRequest,
    /// Whose it is; the fork's id if so.
    ticket: Option<&'a str>,
    instant: &'a Instant,
    parent: &'a MachineName,
    hosts: &'a [Host],
    /// This host's resources for its part of the clones.
    room: &'a ForClones,
}

/// What clones start from.
struct Instant {
    found: Found,
    /// `None` of an image: it is stored already.
    layer: Option<Arc<Layer>>,
    parent: Option<Parent>,
    pause_ms: Option<f64>,
}

impl Node {
    /// Forks a running machine, or starts clones of an image that holds one.
    pub fn fork(
        self: &Arc<Self>,
        name: &str,
        request: &ForkRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        self.fork_for(name, request, None, None, report)
    }

    /// The same for the holder of a ticket, whose id becomes the fork's: so a clone knows for whom it was made. It may have room
    /// already.
    pub(crate) fn fork_for(
        self: &Arc<Self>,
        name: &str,
        request: &ForkRequest,
        ticket: Option<&str>,
        reserved: Option<Reserved>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        if request.clones == 0 || request.clones > CLONES_MAX {
            return Err(usage(
                format!("{} clones", request.clones),
                format!("ask for 1 to {CLONES_MAX}"),
            ));
        }
        self.check_passable()?;
        let (names, hosts): (Vec<String>, Vec<Host>) = self.hosts(request)?.into_iter().unzip();
        if hosts.iter().any(Host::is_in_clear_text) {
            report.note(IN_CLEAR_TEXT);
        }
        let mut fork = Fork::new(request.clones, hosts.len());
        // asked before anything is stopped: a fork for which nobody has room costs its parent nothing
        let reserved = match reserved {
            Some(reserved) if reserved.is_of(&hosts) => reserved,
            // the list of hosts has changed since: what was reserved goes back
            _ => self.ask_for_room(name, request, names, &hosts)?,
        };
        reserved.tell(&mut fork);
        if fork.granted() == 0 {
            return Err(no_room(&fork));
        }
        report.stage("hosts")?;
        let (instant, parent) = self.instant(name, report)?;
        let asked = Asked {
            request,
            ticket,
            instant: &instant,
            parent: &parent,
            hosts: &hosts,
            room: &reserved.room,
        };
        let done = self.make_clones(&asked, &mut fork, reserved.held, report);
        let pause_ms = instant.pause_ms;
        // whatever came of it: what was copied goes to the disk, or away
        self.store_later(instant.layer, instant.parent, request.settle);
        Ok(Outcome {
            fork: Some(done?),
            pause_ms,
            ..Default::default()
        })
    }

    /// Makes a fork's clones, and says what became of each.
    fn make_clones(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        fork: &mut Fork,
        mut held: Option<Held>,
        report: &mut Report,
    ) -> Result<ForkReport, NodeError> {
        let (parent, instant, request) = (asked.parent, asked.instant, asked.request);
        let taken = self.machines.all().into_iter();
        let mut record = self.forks.begin(
            asked.ticket,
            parent,
            instant.found.id,
            request.clones,
            unix_now(),
            taken.map(|entry| entry.name.to_string()),
        )?;
        let id = record.id.clone();
        self.guests.fork_begun(&id);
        let clones = self
            .begin_clones(asked, fork, &mut record, held.as_mut(), report)
            .inspect_err(|_| self.forks.forget(&id))?;
        record
            .clones
            .retain_mut(|clone| match fork.state(clone.number) {
                Some(State::Running(host)) => {
                    clone.host = asked.hosts[*host].url().map(str::to_owned);
                    true
                }
                _ => false,
            });
        let running = record.clones.len() as u32;
        let multicast = record.multicast.filter(|_| record.has_clones_away());
        if let Err(error) = self.forks.finish(record) {
            // they run: ending them would lose more
            tracing::error!(fork = id, %error, "a node that starts here later will not know of these clones");
        }
        let _ = report.stage("clones"); // too late to hang up
        self.tell(
            Happened::MachineForked,
            parent.as_str(),
            format!("{running} of {} clones run", request.clones),
        );
        Ok(ForkReport {
            id,
            parent: parent.to_string(),
            image: instant.found.id.to_string(),
            asked: request.clones,
            granted: fork.granted(),
            running,
            descriptor_bytes: descriptor_bytes(instant),
            ticket: held.as_ref().map(Held::name),
            dirty_chunks: instant.layer.as_ref().map_or(0, |layer| layer.ram_chunks),
            multicast,
            clones,
        })
    }

    /// Starts the clones of a fork that has its record.
    fn begin_clones(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        fork: &mut Fork,
        record: &mut ForkRecord,
        held: Option<&mut Held>,
        report: &mut Report,
    ) -> Result<Vec<CloneInfo>, NodeError> {
        let (hosts, request) = (asked.hosts, asked.request);
        if let Some(held) = held {
            held.of_fork(&record.id)?;
        }
        if hosts.iter().any(|host| host.url().is_some()) {
            let in_clear_text = hosts.iter().any(Host::is_in_clear_text);
            record.hosts_token = self.hosts_token(request).filter(|_| in_clear_text);
            record.multicast = self.open_multicast(request.multicast, hosts, record);
            // after a crash in the middle of this their token must still open their parent's state
            self.forks.save(record.clone())?;
        }
        let places = self.places(asked.instant, record, hosts)?;
        let start = Start {
            instant: asked.instant,
            record,
            hosts,
            settle: request.settle,
            places: &places,
            loaded: &Mutex::default(),
            room: asked.room,
        };
        let clones = self.start_clones(fork, &start, report);
        self.leave_vacant(record, &places, fork);
        clones
    }

    /// The state to clone: a machine's of this moment, or an image's.
    fn instant(
        &self,
        name: &str,
        report: &mut Report,
    ) -> Result<(Instant, MachineName), NodeError> {
        let machine = match name.parse::<MachineName>() {
            Ok(_) => self.machines.get(name).ok(),
            Err(_) => None,
        };
        let Some(entry) = machine else {
            let id = self.repo.resolve(name).map_err(|_| {
                not_found(
                    format!("there is no machine {name}, and no image either"),
                    "see `floe ps` and `floe image ls`",
                )
            })?;
            let manifest = self.repo.manifest(&id)?;
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
                fetcher: self.sources.fetcher(&origin)?,
                origin,
                loads: Arc::default(),
            };
            let instant = Instant {
                found,
                layer: None,
                parent: None,
                pause_ms: None,
            };
            return Ok((instant, MachineName::from_image(name, |_| false)));
        };
        let parent = entry.name.clone();
        Ok((self.take_instant(entry, report)?, parent))
    }

    /// Stops a machine, copies what it has written, and lets it go on.
    fn take_instant(&self, entry: Arc<Entry>, report: &mut Report) -> Result<Instant, NodeError> {
        self.wait_for_identity(&entry)?;
        let operation = entry.begin(Task::Fork)?;
        let vm = operation.vm()?;
        let disks = operation.state.read().disks.clone();
        let disks = disks.ok_or_else(|| {
            failed(
                format!("machine {} is not on the mount", entry.name),
                "restart the node",
            )
        })?;
        let record = operation.record();
        let ram_manifest = self.manifest_of(&operation, &record.image)?;
        let disk_manifest = match record.disk_base == record.image {
            true => ram_manifest.clone(),
            false => self.manifest_of(&operation, &record.disk_base)?,
        };
        let ram = Base {
            id: record.image,
            manifest: &ram_manifest,
            origin: record.origin.clone(),
            fetcher: self.sources.fetcher(&record.origin)?,
        };
        // what a machine's disks were put on later was stored here
        let disk_origin = match record.disk_base == record.image {
            true => record.origin.clone(),
            false => Origin::default(),
        };
        let under = Base {
            id: record.disk_base,
            manifest: &disk_manifest,
            fetcher: self.sources.fetcher(&disk_origin)?,
            origin: disk_origin,
        };
        operation.stop_buffering()?;
        let paused = operation.pausing(&vm, PauseReason::Capture)?;
        let options = CaptureOptions {
            in_file: true,
            bytes_max: self.resources.capture_bytes_max(),
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
        entry.label_agent(&mut config);
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
            parent: kept::Parent {
                name: entry.name.to_string(),
                created_unix_s: record.created_unix_s,
                last_layers: frozen.map(|disk| disk.last_layer()).collect(),
            },
            dir: &self.layers.dir(),
        };
        let (layer, loads, frozen) = std::thread::scope(|scope| {
            scope.spawn(|| drop(paused)); // the disk is slower than the cores
            Layer::build(captured, making)
        })?;
        report.stage("hash")?;
        let origin = Origin::default();
        let fetcher = self.sources.fetcher(&origin)?;
        let layer = Arc::new(layer);
        self.layers.insert(layer.clone()); // from here on it is the caller's to store or drop
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

    /// Starts clones until each one runs or has failed; tells of each as it happens.
    fn start_clones(
        self: &Arc<Self>,
        fork: &mut Fork,
        start: &Start<'_>,
        report: &mut Report,
    ) -> Result<Vec<CloneInfo>, NodeError> {
        let Start { record, hosts, .. } = *start;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let away = match hosts.iter().any(|host| host.url().is_some()) {
            true => STARTS_AWAY,
            false => 0,
        };
        let workers = (cores * STARTS_PER_CORE + away).min(fork.granted() as usize);
        let (give, jobs) = mpsc::channel::<Action>();
        let jobs = Mutex::new(jobs);
        let (tell, told) = mpsc::channel::<Event>();
        let mut times: HashMap<CloneId, f64> = HashMap::new();
        let mut cancelled = false;
        std::thread::scope(|scope| -> Result<(), NodeError> {
            for _ in 0..workers {
                let tell = tell.clone();
                let jobs = &jobs;
                let work = move || {
                    loop {
                        let job = jobs.lock().recv();
                        match job {
                            Ok(Action::Start(clone, host)) => {
                                tell_of(clone, &tell, || self.try_clone(start, clone, host))
                            }
                            Ok(Action::Go(clone, _)) => {
                                tell_of(clone, &tell, || self.go(start, clone))
                            }
                            Ok(Action::End(clone, host)) => self.end_clone(start, clone, host),
                            Ok(Action::Over) | Err(_) => return,
                        }
                    }
                };
                let spawned = std::thread::Builder::new().name("clone".into());
                spawned
                    .spawn_scoped(scope, work)
                    .map_err(crate::error::at("cannot start a thread for a clone"))?;
            }
            let mut actions = fork.handle(Event::Ready);
            loop {
                for clone in start.release(&actions) {
                    times.insert(clone, report.elapsed_ms());
                }
                for action in actions.drain(..) {
                    if action == Action::Over {
                        drop(give);
                        return Ok(());
                    }
                    let _ = give.send(action); // its receiver lives as long as this scope
                }
                let event = if !cancelled && report.check().is_err() {
                    cancelled = true;
                    Event::Cancelled
                } else {
                    match told.recv_timeout(LOOK_EVERY) {
                        Ok(event) => event,
                        Err(_) => continue,
                    }
                };
                let about = match &event {
                    Event::Started(clone) => {
                        times.entry(*clone).or_insert_with(|| report.elapsed_ms());
                        Some(*clone)
                    }
                    Event::NotStarted(clone, _) => {
                        times.remove(clone);
                        Some(*clone)
                    }
                    _ => None,
                };
                actions = fork.handle(event);
                let ended = |clone: &CloneId| {
                    matches!(
                        fork.state(*clone),
                        Some(State::Running(_) | State::Failed(_))
                    )
                };
                if let Some(clone) = about.filter(ended) {
                    report.clone_info(info(fork, start, clone, &times));
                }
            }
        })?;
        // who hangs up when all of them run already has a fork
        if cancelled {
            return Err(NodeError::Cancelled);
        }
        let numbers = record.clones.iter().map(|clone| clone.number);
        let infos: Vec<CloneInfo> = numbers
            .map(|number| info(fork, start, number, &times))
            .collect();
        let not_granted = infos
            .iter()
            .filter(|info| info.state == CloneState::NotGranted);
        not_granted.for_each(|info| report.clone_info(info.clone()));
        Ok(infos)
    }

    fn family_of(record: &ForkRecord, clone: CloneId, settled: bool) -> Family {
        Family {
            fork: record.id.clone(),
            parent: record.parent.clone(),
            number: clone,
            settled,
            identity: Identity::default(),
        }
    }

    /// Removes a fork's image that nobody needs any more.
    pub(crate) fn drop_fork_image(&self, id: &Hash) {
        if self.user_of(id).is_some() || self.layers.get(id).is_some() {
            return;
        }
        let Ok(manifest) = self.repo.manifest(id) else {
            return;
        };
        let tagged = self
            .repo
            .tags()
            .map(|tags| tags.iter().any(|tag| tag.id == *id));
        if !manifest.config.labels.contains_key(FORK_LABEL) || tagged.unwrap_or(true) {
            return;
        }
        self.drop_standby(id);
        self.forget_image(id);
        let removed = self.repo.remove(id).map_err(NodeError::from);
        match removed.and_then(|()| self.collect_garbage()) {
            Ok(bytes) => tracing::info!(image = id.short(), bytes, "a fork's image is gone"),
            Err(error) => tracing::warn!(image = id.short(), %error, "a fork's image stays"),
        }
    }
}

/// Tells what came of a step of a clone's start: the fork waits for exactly this.
fn tell_of(clone: CloneId, tell: &mpsc::Sender<Event>, step: impl FnOnce() -> Event) {
    let event = catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| {
        let why = "the node made a mistake, see its log";
        Event::NotStarted(clone, Fault::Unknown(why.into()))
    });
    let _ = tell.send(event);
}

/// What a clone's start needs to know.
#[derive(Clone, Copy)]
struct Start<'a> {
    instant: &'a Instant,
    record: &'a ForkRecord,
    hosts: &'a [Host],
    /// Other nodes are to pull what their clones have not touched.
    settle: bool,
    /// The clones' places in their family's network, by number from 1; empty if there is none.
    places: &'a [Attachment],
    /// The clones of this host that stand still.
    loaded: &'a Mutex<HashMap<CloneId, LoadedClone>>,
    /// Resources of this host that are reserved for them.
    room: &'a ForClones,
}

impl Start<'_> {
    /// A clone's place in its family's network.
    fn network_of(&self, clone: CloneId) -> Option<Attachment> {
        let index = (clone as usize).checked_sub(1)?;
        self.places.get(index).cloned()
    }

    /// Has the guests execute that may go now, all of them before anything else is done for one: it would take the CPUs
    /// from the next. Tells each that does; of another one the rest of its start will tell why not.
    fn release(&self, actions: &[Action]) -> impl Iterator<Item = CloneId> + use<> {
        let go = |action: &Action| match action {
            Action::Go(clone, _) => Some(*clone),
            _ => None,
        };
        let loaded = self.loaded.lock();
        let told = actions.iter().filter_map(go).filter_map(|clone| {
            let (_, loaded) = loaded.get(&clone)?;
            Some((clone, loaded.release().ok()?))
        });
        let told: Vec<(CloneId, Continuing)> = told.collect();
        told.into_iter()
            .filter_map(|(clone, going)| going.wait().ok().map(|()| clone))
    }

    /// What another node is told of a clone.
    fn order(&self, clone: CloneId, name: &str, source: &str) -> CloneRequest {
        CloneRequest {
            name: name.to_owned(),
            fork: self.record.id.clone(),
            parent: self.record.parent.clone(),
            number: clone,
            image: self.instant.found.id.to_string(),
            source: source.to_owned(),
            token: self.record.token.clone(),
            settle: self.settle,
            multicast: self.record.multicast,
            network: None,
            limits: self.limits(),
        }
    }

    /// What each clone may take of its host: what its parent may.
    fn limits(&self) -> Limits {
        let parent = self.instant.parent.as_ref();
        parent.map_or_else(Limits::default, |parent| parent.entry.record().limits)
    }
}

/// Bytes that a node needs before the first clone executes.
fn descriptor_bytes(instant: &Instant) -> u64 {
    match &instant.layer {
        Some(layer) => layer.descriptor_bytes(),
        None => {
            let manifest = &instant.found.manifest;
            let device = manifest.region("device").map_or(0, |region| region.size);
            manifest.encode().len() as u64 + device
        }
    }
}

/// What is known of a clone.
fn info(
    fork: &Fork,
    start: &Start<'_>,
    number: CloneId,
    times: &HashMap<CloneId, f64>,
) -> CloneInfo {
    let mut clones = start.record.clones.iter();
    let clone = clones.find(|clone| clone.number == number);
    let mut on = None;
    let (state, detail) = match fork.state(number) {
        Some(State::Running(host)) => {
            on = start.hosts[*host].url().map(str::to_owned);
            (CloneState::Running, String::new())
        }
        Some(State::Failed(why)) => (CloneState::Failed, why.clone()),
        Some(_) => (CloneState::Failed, "not started".into()),
        None => {
            let why = fork.refusals().first().map(|(_, why)| (*why).to_owned());
            let why = why.unwrap_or_else(|| "no host has room for it".into());
            (CloneState::NotGranted, why)
        }
    };
    CloneInfo {
        number,
        name: clone.map(|clone| clone.name.clone()).unwrap_or_default(),
        host: on,
        state,
        detail,
        running_ms: times.get(&number).copied(),
    }
}
