//! `run`: starts a machine from an image's name, and reports the time of every stage.
//!
//! `checked` (what is asked for) -> `images::sources` (which image, from where) -> `plan` (what to do with it) -> here (mount, QEMU,
//! state). Once the CPUs run the machine is there, and the operation is over; if a sign of life is waited for (`wait`), that is after
//! it. This service has no state and no lock of its own.

mod again;
mod checked;
mod identity;
mod wait;

use crate::{
    machines::{
        Machines,
        launch::{choose_ports, cold_config},
        making::Making,
        own_disks::OwnDisks,
    },
    run::{
        checked::CheckedRun,
        wait::{Sign, wait},
    },
};
use floe_api::{Outcome, RestartRequest, RunRequest, StartRequest, WAIT_TIMEOUT_S_DEFAULT, Wait};
use floe_ground::{
    caller::Visible,
    error::{NodeError, busy, failed, refused, usage},
    files::save_manifest,
    names::MachineName,
    news::News,
    plan::{self, Kind, Plan, awaited_port},
    report::Report,
    time::unix_now,
};
use floe_inventory::{
    core::Core,
    inventory::{
        Entry, Inventory, NewMachine, Operation,
        lifecycle::{Event, Gone, Phase, Task},
        record::{Afterwards, Household, Record},
        small::{Fresh, Small},
    },
};
use floe_library::{
    images::{Images, sources::Found},
    traces::{Traces, models::Coming},
};
use floe_machine::{DiskModel, Status, console::ConsoleLog};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The service that runs machines.
pub struct Runs {
    /// What all services share.
    pub core: Arc<Core>,
    /// The images of this node.
    pub images: Arc<Images>,
    /// What machines touched.
    pub traces: Arc<Traces>,
    /// The machines of this node.
    pub inventory: Arc<Inventory>,
    /// What is done with machines.
    pub machines: Arc<Machines>,
}

impl Runs {
    /// Creates a machine and starts it. If something fails or the client hangs up before its CPUs run, everything is removed again.
    pub fn run(
        self: &Arc<Self>,
        request: &Visible<RunRequest>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let request = self.checked(request)?;
        let found = self.images.sources.find_in(
            &request.image,
            &request.sources,
            request.access.clone(),
            |step| report.step(step),
        )?;
        self.check_on_a_hub(&request, &found)?;
        self.run_found(&request, found, report)
    }

    /// Checks all of a request that can be checked before its image is looked for, on this node.
    pub fn checked<'a>(&self, request: &'a RunRequest) -> Result<CheckedRun<'a>, NodeError> {
        let checked = CheckedRun::of(request)?;
        self.machines.resources.check_limits(&request.limits)?;
        self.core.check_passable()?;
        Ok(checked)
    }

    /// Refuses a list of nodes for the swarm of an image that is on no hub: nobody could give the pieces that none of them has.
    fn check_on_a_hub(&self, request: &RunRequest, found: &Found) -> Result<(), NodeError> {
        let mut places = found.origin.urls.iter();
        let may = places.any(|place| self.images.sources.may_be_hub(place));
        match may || request.swarm_members.is_hub() {
            true => Ok(()),
            false => Err(usage(
                format!(
                    "{:?} is on no hub, and only a hub gives what no member of a swarm has",
                    request.image
                ),
                "name the image on a hub, or leave --swarm-members out",
            )),
        }
    }

    /// Does the same with an image that was found already; the image's name in the request is only shown.
    pub fn run_found(
        self: &Arc<Self>,
        request: &CheckedRun<'_>,
        found: Found,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        if let Some(name) = &request.name {
            self.inventory.check_free(name)?;
        }
        let plan = plan::plan(request, &found.manifest)?;
        identity::check(request, plan.kind, &found.manifest.config)?;
        if plan.kind == Kind::Restore {
            self.images.check_trusted(&found, request.trust)?;
        }
        if request.park_after_s.is_some()
            && plan.hardware.disk_model.as_deref() == Some(DiskModel::Nvme.name())
        {
            return Err(usage(
                "a machine with NVMe disks can't be parked: QEMU cannot save their state",
                "choose another --disk-model, or leave --park-after out",
            ));
        }
        let own = OwnDisks::prepare(request, &plan, &self.images, report)?;
        // It stays with the places in the machine's record: a later node fetches the model for the same rule.
        let mut found = found;
        found.origin.prefetch = request.prefetch;
        let (manifest, fetcher) = (found.manifest.clone(), found.fetcher.clone());
        let model = self
            .traces
            .fetch_model(found.id, manifest, &found.origin, fetcher);
        let operation = self.reserve(request, &found, &plan, &own)?;
        let mut making = self.machines.making(operation);
        let start = Start {
            request,
            found: &found,
            plan: &plan,
            model: &model,
        };
        let began = self.begin_run(&mut making, &start, own, report);
        if let Err(error) = began {
            let (name, had_dir) = (making.name.clone(), making.has_dir());
            drop(making);
            if had_dir {
                self.core.tell(name.as_str(), &News::NotMade);
            }
            return Err(error);
        }
        let operation = making.complete();
        if plan.kind == Kind::Restore {
            self.machines.refill_standby(&found);
            self.machines.prepare_run(&operation.entry);
        }
        report.stage_at("record", Instant::now());
        let entry = operation.entry.clone();
        drop(operation);
        let awaited = Awaited {
            wait: request.wait,
            port: request.wait_port,
            timeout_s: request.wait_timeout_s,
            console_before: (0, 0),
        };
        self.wait_for_guest(&entry, &awaited, report)
    }

    fn reserve(
        &self,
        request: &CheckedRun<'_>,
        found: &Found,
        plan: &Plan,
        own: &OwnDisks,
    ) -> Result<Operation, NodeError> {
        let forwards = choose_ports(&self.inventory, &request.forwards)?;
        let mut config = match plan.kind {
            Kind::Restore => found.manifest.config.clone(),
            Kind::Boot => cold_config(&found.manifest.config, plan),
        };
        if request.own_identity {
            config.labels.extend([Fresh::label()]);
        }
        let fresh = Fresh::of_image(&mut config);
        let small = match plan.kind {
            Kind::Restore => Small::of_image(&config),
            Kind::Boot => Small::default(),
        };
        // a trace of booting such an image would not help those who resume it
        let live = plan::is_live(&found.manifest);
        let make = |name: &MachineName, place: &str, uid: Option<u32>| {
            let record = Record {
                forwards,
                traced: self.core.options.traces && !request.no_trace && !(request.cold && live),
                host_access: request.allow_host.clone(),
                limits: request.limits,
                afterwards: Afterwards {
                    remove: request.remove,
                    restart: request.restart,
                    ..Default::default()
                },
                own_disks: own.records(),
                park_after_s: request.park_after_s,
                no_trim: request.no_trim,
                small,
                fresh,
                independence: request.independent,
                swarm: request.swarm,
                ..Record::new(NewMachine {
                    name: name.as_str(),
                    image_name: &request.image,
                    image: found.id,
                    origin: found.origin.clone(),
                    config,
                    restored: plan.kind == Kind::Restore,
                    created_unix_s: unix_now(),
                    uid,
                    place: format!("machines/{place}"),
                    mount_name: place.to_owned(),
                    household: Household::begin(),
                })
            };
            (self.core.home.machine(place), record)
        };
        self.inventory
            .reserve(request.name.clone(), &request.image, make, Task::Run)
    }

    fn begin_run(
        self: &Arc<Self>,
        entry: &mut Making,
        start: &Start<'_>,
        own: OwnDisks,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let Start {
            request,
            found,
            plan,
            model,
        } = *start;
        self.machines.check_room()?;
        self.machines.reserve_resources(entry, request.overcommit)?;
        entry.make_dir()?;
        entry.record().save(&entry.dir)?;
        if let Some(network) = &request.network {
            self.machines.give_network(entry, network)?;
            report.stage("network")?;
        }
        save_manifest(&entry.dir, &found.id, &found.manifest)?;
        match plan.kind {
            Kind::Restore => {
                self.machines
                    .begin_restore(entry, &request.image, found, model, report)?;
                self.tell_who_it_is(entry, &found.manifest.config, report);
            }
            Kind::Boot => {
                self.machines.attach(entry)?;
                self.machines.streams(entry, model)?;
                report.stage("mount")?;
                self.machines.write_own_disks(entry, own, report)?;
                self.machines.boot(entry, &request.image, |_| ())?;
                report.stage_at("qemu start", Instant::now());
            }
        }
        if plan.hardware.disk_model.as_deref() == Some(DiskModel::Nvme.name()) {
            report.note("a machine with NVMe disks can't be captured or forked: QEMU cannot save their state");
        }
        if let floe_machine::Accel::Tcg { reason } = &self.core.accel {
            report.note(format!("the guest is emulated, slowly: {reason}"));
        }
        self.images.starts.add(&found.id, report.elapsed_ms());
        Ok(())
    }

    /// Waits for a sign of life of a machine that runs, if that is wanted. Whatever comes of it, the machine stays.
    fn wait_for_guest(
        &self,
        entry: &Entry,
        awaited: &Awaited,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let record = entry.record();
        let agent = || entry.state().guest.agent;
        let port = awaited_port(awaited.wait, awaited.port, &record.forwards)?;
        let (sign, name) = match (awaited.wait, port) {
            (Wait::Agent, _) => {
                let (answered, changed) = (&agent, self.inventory.changed());
                (Some(Sign::Agent { answered, changed }), "agent")
            }
            (Wait::Port, Some(forward)) => (Some(Sign::Port(forward.clone())), "port"),
            (Wait::Console, _) => {
                let dir = self.machines.console_dir(&record);
                let before = awaited.console_before;
                (Some(Sign::Console { dir, before }), "first output")
            }
            (Wait::None | Wait::Port, _) => (None, ""),
        };
        if let Some(sign) = sign {
            let timeout_s = awaited.timeout_s.unwrap_or(WAIT_TIMEOUT_S_DEFAULT);
            let timeout = Duration::from_secs(timeout_s);
            match wait(&sign, timeout, &report.cancel(), || self.check_alive(entry))? {
                Some(at) => report.stage_at(name, at),
                None => {
                    let why = entry.still_fetches(entry.waits());
                    let why = why.map_or_else(String::new, |why| format!(": {why}"));
                    return Err(failed(
                        format!(
                            "machine {} runs, but gave no sign of life within {timeout_s} s{why}",
                            entry.name
                        ),
                        format!("see floe logs {}, or wait longer", entry.name),
                    ));
                }
            }
        }
        Ok(Outcome {
            machine: Some(self.machines.info_of(entry)),
            ..Default::default()
        })
    }

    /// Waits for a sign of life of a machine that was woken, if that is wanted.
    pub fn wait_for_woken(
        &self,
        entry: &Entry,
        request: &StartRequest,
        console_before: (u64, u64),
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let awaited = Awaited {
            wait: request.wait,
            port: request.wait_port,
            timeout_s: request.wait_timeout_s,
            console_before,
        };
        self.wait_for_guest(entry, &awaited, report)
    }

    /// Returns an error if a machine is not there any more.
    fn check_alive(&self, entry: &Entry) -> Result<(), NodeError> {
        match entry.phase() {
            Phase::Stopped | Phase::Stopping | Phase::Removing => Err(failed(
                format!("machine {} ended: {}", entry.name, entry.record().detail),
                format!("see floe logs {}", entry.name),
            )),
            _ => Ok(()),
        }
    }

    /// Starts a stopped machine from its disks, or lets a paused one go on.
    pub fn start_machine(
        self: &Arc<Self>,
        name: &str,
        request: &StartRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let entry = self.inventory.get(name)?;
        if let Some(why) = entry.life().orphaned() {
            return Err(refused(format!("machine {name} cannot go on: {why}"), ""));
        }
        awaited_port(request.wait, request.wait_port, &entry.record().forwards)?;
        let operation = entry.begin(Task::Start)?;
        let vm = operation.state().vm.clone();
        if let Some(vm) = vm {
            // after a pause because of a full disk, QEMU retries the failed request when the guest goes on
            if !matches!(vm.status()?, Status::IoError { .. } | Status::Paused) {
                return Err(busy(format!("machine {name} is running"), ""));
            }
            operation.go_on_at_once(true)?;
            report.stage_at("continue", Instant::now());
            return Ok(Outcome {
                machine: Some(self.machines.info_of(&operation)),
                ..Default::default()
            });
        }
        if operation.waits_for_adoption() {
            if self.machines.qemu_of(&operation)?.is_some() {
                return Err(busy(
                    format!("machine {name} runs, but its QEMU does not answer this node yet"),
                    format!("wait, or end it with floe stop --now {name} and start it then"),
                ));
            }
            self.machines.end_quietly(&operation);
        }
        operation.lease_lasts()?;
        self.machines
            .reserve_resources_cold(&operation, request.overcommit)?;
        let console_before = ConsoleLog::position(&self.machines.console_dir(&operation.record()));
        self.start_from_disks(&operation, report)?;
        drop(operation);
        let awaited = Awaited {
            wait: request.wait,
            port: request.wait_port,
            timeout_s: request.wait_timeout_s,
            console_before,
        };
        self.wait_for_guest(&entry, &awaited, report)
    }

    /// Stops a machine and starts it again from its disks. One that is stopped already is only started.
    pub fn restart_machine(
        self: &Arc<Self>,
        name: &str,
        request: &RestartRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let entry = self.inventory.get(name)?;
        let start = &request.start;
        awaited_port(start.wait, start.wait_port, &entry.record().forwards)?;
        if entry.record().afterwards.remove {
            return Err(refused(
                format!("machine {name} was run with --rm: it is removed as soon as it stops"),
                format!("floe stop {name}, and run it anew"),
            ));
        }
        if entry.phase() != Phase::Stopped {
            let stopped = self.machines.stop_machine(name, &request.stop)?;
            if stopped.switched_off {
                report.note(format!("{name} was {}", stopped.detail));
            }
            report.stage("stop")?;
        }
        self.start_machine(name, start, report)
    }

    /// Starts a QEMU from a machine's disks. If that fails, the machine is stopped as before.
    fn start_from_disks(
        &self,
        operation: &Operation,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        if !operation.drive(Event::Starts)? {
            return Err(busy(
                format!("machine {} is being stopped", operation.name),
                "see `floe ps`",
            ));
        }
        let mut start = || {
            self.machines.attach(operation)?;
            report.stage("mount")?;
            self.machines.boot(operation, "from its disks", |record| {
                record.restored = false;
                record.detail.clear();
            })
        };
        if let Err(error) = start() {
            self.machines.end_quietly(operation);
            if let Err(error) = operation.gone(Gone::NotStarted, "") {
                tracing::warn!(machine = %operation.name, %error, "its record still says that it runs");
            }
            return Err(error);
        }
        report.stage_at("qemu start", Instant::now());
        Ok(())
    }
}

/// What a run starts from.
struct Start<'a> {
    request: &'a RunRequest,
    found: &'a Found,
    plan: &'a Plan,
    model: &'a Coming,
}

/// For which sign of life a start waits.
struct Awaited {
    wait: Wait,
    /// The guest's port, if one is named.
    port: Option<u16>,
    /// The longest wait, in seconds.
    timeout_s: Option<u64>,
    /// The position of the console's log before the start.
    console_before: (u64, u64),
}
