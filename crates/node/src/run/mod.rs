//! `run`: starts a machine from an image's name, and reports the time of every stage.
//!
//! `images::sources` (which image, from where) -> `plan` (what to do with it) -> here (mount, QEMU, state). Once the CPUs run the
//! machine is there, and the operation is over; if a sign of life is waited for ([`wait`]), that is after it. This service has no
//! state and no lock of its own.

mod again;
mod identity;
mod wait;

use crate::{
    MachineName,
    core::Core,
    error::{NodeError, busy, failed, refused, usage},
    files::save_manifest,
    images::{
        Images,
        sources::{Found, bind_token},
    },
    independence,
    inventory::{
        Entry, Inventory, Operation,
        lifecycle::{Event, Gone, Phase, Task},
        record::{Afterwards, Household, Origin, RECORD_VERSION, Record, Wanted},
        small::{Fresh, Small},
    },
    machines::{
        Machines,
        launch::{choose_ports, cold_config, machine_access},
        limits::check_park_after,
        making::Making,
        own_disks::OwnDisks,
    },
    plan::{self, Kind, Plan, awaited_port},
    report::Report,
    run::wait::{Sign, wait},
    traces::{Traces, models::Coming},
    unix_now,
};
use floe_api::{
    Happened, Outcome, RestartRequest, RunRequest, StartRequest, SwarmUse, WAIT_TIMEOUT_S_DEFAULT,
    Wait, authorities,
    credentials::{Authorities, HubAddress, Tokens},
};
use floe_machine::{DiskModel, Status, console::ConsoleLog};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// The service that runs machines.
pub(crate) struct Runs {
    pub core: Arc<Core>,
    pub images: Arc<Images>,
    pub traces: Arc<Traces>,
    pub inventory: Arc<Inventory>,
    pub machines: Arc<Machines>,
}

impl Runs {
    /// Creates a machine and starts it. If something fails or the client hangs up before its CPUs run, everything is removed again.
    pub fn run(
        self: &Arc<Self>,
        request: &RunRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let wanted = request
            .name
            .as_deref()
            .map(str::parse::<MachineName>)
            .transpose();
        let wanted = wanted.map_err(|error| usage(error.to_string(), ""))?;
        check_host_access(request)?;
        check_swarm(request)?;
        if request.remove && !request.restart.is_no() {
            return Err(usage(
                "a machine that is removed once it has ended can't be started again",
                "leave out --rm or --restart",
            ));
        }
        self.machines.resources.check_limits(&request.limits)?;
        check_park_after(request.park_after_s)?;
        self.core.check_passable()?;
        let found = self.images.sources.find_in(
            &request.image,
            &request.sources,
            access_of(request)?,
            |step| report.step(step),
        )?;
        self.check_on_a_hub(request, &found)?;
        self.run_found(wanted, request, found, report)
    }

    /// Refuses to bring an image by a list of nodes that nobody can give what none of them has.
    fn check_on_a_hub(&self, request: &RunRequest, found: &Found) -> Result<(), NodeError> {
        let mut places = found.origin.urls.iter();
        let may = places.any(|place| self.images.sources.may_be_hub(place));
        match may || request.swarm_members.is_hub() {
            true => Ok(()),
            false => Err(usage(
                format!(
                    "{:?} is on no hub, from which comes what no member of a swarm has",
                    request.image
                ),
                "name the image on a hub, or leave --swarm-members out",
            )),
        }
    }

    /// Does the same with an image that was found; the request's image is only shown.
    pub(crate) fn run_found(
        self: &Arc<Self>,
        wanted: Option<MachineName>,
        request: &RunRequest,
        found: Found,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        if let Some(name) = &wanted {
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
        let (manifest, fetcher) = (found.manifest.clone(), found.fetcher.clone());
        let model = self
            .traces
            .fetch_model(found.id, manifest, &found.origin, fetcher);
        let operation = self.reserve(wanted, request, &found, &plan, &own)?;
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
                let why = "it could not be started";
                self.core.tell(Happened::MachineRemoved, name.as_str(), why);
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
        wanted: Option<MachineName>,
        request: &RunRequest,
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
        let independent = independence::asked(request.independent.as_ref())?;
        let make = |name: &MachineName, place: &str, uid: Option<u32>| {
            let record = Record {
                version: RECORD_VERSION,
                name: name.to_string(),
                image_name: request.image.clone(),
                image: found.id,
                disk_base: found.id,
                origin: found.origin.clone(),
                config,
                forwards,
                restored: plan.kind == Kind::Restore,
                wanted: Wanted::Starting,
                detail: String::new(),
                created_unix_s: unix_now(),
                uid,
                place: format!("machines/{place}"),
                mount_name: place.to_owned(),
                traced: self.core.options.traces && !request.no_trace && !(request.cold && live),
                pauses: Default::default(),
                family: None,
                network: None,
                host_access: request.allow_host.clone(),
                limits: request.limits,
                household: Household::begin(),
                afterwards: Afterwards {
                    remove: request.remove,
                    restart: request.restart,
                    ..Default::default()
                },
                own_disks: own.records(),
                next_disk: 0,
                own_layers: 0,
                park_after_s: request.park_after_s,
                small,
                fresh,
                given: Default::default(),
                resizing: None,
                independence: independent,
                ensemble: None,
                swarm: swarm_of(request),
                turn: None,
            };
            (self.core.home.machine(place), record)
        };
        self.inventory
            .reserve(wanted, &request.image, make, Task::Run)
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
    pub(crate) fn wait_for_woken(
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
        match entry.life().phase() {
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
        if entry.life().phase() != Phase::Stopped {
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
                tracing::warn!(machine = %operation.name, %error, "its record says that it runs");
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

/// Refuses host access that can't be given.
fn check_host_access(request: &RunRequest) -> Result<(), NodeError> {
    machine_access(&request.allow_host)?;
    if request.network.is_some() && !request.allow_host.is_none() {
        return Err(usage(
            "a family network does not lead to the host's loopback",
            "name link-local addresses with --allow, such as --allow 169.254.169.254:80, or leave --network out",
        ));
    }
    Ok(())
}

/// Refuses members of a swarm that can't be meant.
fn check_swarm(request: &RunRequest) -> Result<(), NodeError> {
    let members = &request.swarm_members;
    let checked = members.check();
    checked.map_err(|why| usage(why, "floe swarm listen prints the line of a node"))?;
    match request.swarm {
        Some(SwarmUse::Off) if !members.is_hub() => Err(usage(
            "the machine is to take no part in a swarm, and is told of members",
            "leave --swarm=off out, or --swarm-members",
        )),
        _ => Ok(()),
    }
}

/// Whether a machine takes part in its image's swarm: always, if its user has said with whom.
fn swarm_of(request: &RunRequest) -> Option<SwarmUse> {
    let told = !request.swarm_members.is_hub();
    request.swarm.or(told.then_some(SwarmUse::On))
}

/// As whom the places of a request are asked, and by which authorities they are believed.
fn access_of(request: &RunRequest) -> Result<Origin, NodeError> {
    Ok(Origin {
        tokens: tokens_of(request)?,
        ca: request.ca.clone(),
        cas: authorities_of(request)?,
        swarm: request.swarm_members.clone(),
        ..Default::default()
    })
}

/// The addresses of the image and its sources.
fn addresses(request: &RunRequest) -> impl Iterator<Item = &str> {
    let more = request.sources.iter().map(String::as_str);
    std::iter::once(&*request.image).chain(more)
}

/// The tokens of a request, each for one hub.
fn tokens_of(request: &RunRequest) -> Result<Tokens, NodeError> {
    let mut tokens = bind_token(request.token.as_deref(), addresses(request))?;
    for (address, token) in &request.tokens {
        let hub = HubAddress::of(address)
            .ok_or_else(|| usage(format!("{address:?} is no hub's address"), ""))?;
        tokens.extend(bind_token(Some(token), [hub.as_str()])?);
    }
    Ok(tokens)
}

/// The certificate authorities of a request, each for one hub or web server. Their files are read here, because a source that cannot
/// be opened would only be left out.
fn authorities_of(request: &RunRequest) -> Result<Authorities, NodeError> {
    let given = request.cas.iter();
    let given = given.map(|(address, file)| (address.as_str(), file.as_str()));
    let bound = authorities::bind(given, addresses(request))?;
    for (hub, file) in &bound {
        if !Path::new(file).is_absolute() {
            return Err(usage(
                format!("{file:?}, the certificate authority of {hub}, is no absolute path"),
                "give the whole path: the node has another working directory",
            ));
        }
        floe_http::trusting(Some(Path::new(file))).map_err(|why| usage(why, ""))?;
    }
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::{SwarmMember, SwarmMembers};

    #[test]
    fn authorities_of_a_request_are_read_and_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let key = rcgen::generate_simple_self_signed(vec!["hub".into()]).unwrap();
        let good = file("good.pem", &key.cert.pem());
        let request = |address: &str, ca: &str| RunRequest {
            image: "https://one.example/web".into(),
            sources: vec!["https://two.example:4500/web".into()],
            ca: Some("/common.pem".into()),
            cas: [(address.to_owned(), ca.to_owned())].into(),
            ..Default::default()
        };
        let origin = access_of(&request("https://two.example:4500", &good)).unwrap();
        assert_eq!(origin.ca_for("https://two.example:4500/web"), Some(&*good));
        assert_eq!(
            origin.ca_for("https://one.example/web"),
            Some("/common.pem"),
            "what has none of its own uses the common one"
        );
        let nowhere = dir.path().join("nowhere.pem");
        for (address, ca, named) in [
            ("https://three.example", &*good, "https://three.example:443"),
            ("https://one.example", "good.pem", "good.pem"),
            (
                "https://one.example",
                nowhere.to_str().unwrap(),
                "nowhere.pem",
            ),
            ("https://one.example", &*file("empty.pem", ""), "empty.pem"),
            (
                "https://one.example",
                &*file("key.pem", "no certificate"),
                "key.pem",
            ),
        ] {
            let error = access_of(&request(address, ca)).unwrap_err().to_api();
            assert_eq!(error.code, floe_api::ErrorCode::Usage, "{error}");
            assert!(error.message.contains(named), "{error}");
        }
        let mut twice = request("https://one.example", &good);
        twice.cas.insert("https://one.example:443/".into(), good);
        let error = access_of(&twice).unwrap_err().to_string();
        assert!(error.contains("two files"), "{error}");
    }

    #[test]
    fn who_names_the_members_of_a_swarm_takes_part_in_it() {
        let listed = RunRequest {
            swarm_members: SwarmMembers::List(vec![SwarmMember {
                key: "0a".repeat(32),
                addresses: vec!["10.0.0.1:4433".into()],
            }]),
            ..Default::default()
        };
        check_swarm(&listed).unwrap();
        assert_eq!(swarm_of(&listed), Some(SwarmUse::On));
        assert_eq!(access_of(&listed).unwrap().swarm, listed.swarm_members);
        let auto = RunRequest {
            swarm: Some(SwarmUse::Auto),
            ..listed.clone()
        };
        assert_eq!(swarm_of(&auto), Some(SwarmUse::Auto));
        assert_eq!(swarm_of(&RunRequest::default()), None);
        for odd in [
            RunRequest {
                swarm: Some(SwarmUse::Off),
                ..listed
            },
            RunRequest {
                swarm_members: SwarmMembers::List(Vec::new()),
                ..Default::default()
            },
        ] {
            let error = check_swarm(&odd).unwrap_err().to_api();
            assert_eq!(error.code, floe_api::ErrorCode::Usage, "{error}");
        }
    }
}
