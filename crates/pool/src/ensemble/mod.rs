//! Ensembles: machines of several substrates that are activated together, in one network of their own, and told of each other.
//!
//! ```text
//! file (TOML) -> `file` -> names, addresses, ports -> network -> all machines at once -> `decide`: greet, join -> ready, or not
//! ```
//! *Greet*: wait for the guest's agent, bring the machine to its size, write the names of all into its `/etc/hosts`. *Join*: once those
//! that it comes after are ready, run its hooks with the word `joined`, and wait for the sign that it is ready.
//!
//! Only the machines' own records say which ensemble each belongs to. So what a killed node has left of an ensemble is a few machines like
//! all others, which say what they are part of. Lock: `under_way`, while nothing else is taken.

mod decide;
mod file;

use crate::pool::{Basis, Pool};
use decide::{Action, Course, Event, Index, State, Verdict};
use file::{Described, Member, Sign, Wrong, hosts};
use floe_api::{
    ActivateRequest, ApiError, CloneState, ENSEMBLE_READY_S_DEFAULT, ENSEMBLE_READY_S_MAX,
    EnsembleMachine, EnsembleReport, EnsembleRequest, ErrorCode, InEnsemble, NetworkRequest,
    Outcome,
};
use floe_fork::Planned;
use floe_ground::{
    caller::Caller,
    error::{NodeError, busy, failed, usage},
    names::MachineName,
    report::{Report, millis},
};
use floe_guest::chores::{self, HOOK_LIMIT, HOOKS_MAX, Hooks, Hosts};
use floe_inventory::{
    inventory::{Entry, Inventory, is_pending},
    network::Networks,
};
use floe_machines::{
    agents::Agents,
    machines::{Machines, launch::choose_ports},
};
use floe_threads::{Cancel, Waited};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// How long a guest may take to write the names of the others.
const NAMES_LIMIT: Duration = Duration::from_secs(30);
/// How long a command may take that says whether a machine is ready.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// How long until a machine that is not ready is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long a machine that is to be ended may be busy with something else.
const BUSY_LIMIT: Duration = Duration::from_secs(60);

/// The service that activates ensembles.
pub struct Ensembles {
    /// The machines of this node.
    pub inventory: Arc<Inventory>,
    /// What is done with machines.
    pub machines: Arc<Machines>,
    /// The networks of families.
    pub networks: Arc<Networks>,
    /// What the agents in guests do.
    pub agents: Arc<Agents>,
    /// The substrates.
    pub pool: Arc<Pool>,
    /// Names of ensembles that are being activated.
    pub under_way: Mutex<BTreeSet<String>>,
}

/// A name that nobody else activates under. Dropping this gives it back.
struct Taken<'a> {
    ensembles: &'a Ensembles,
    name: String,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.ensembles.under_way.lock().remove(&self.name);
    }
}

/// The machines of a member, all alike.
struct Part {
    member: Member,
    basis: Basis,
    /// The number of its first machine.
    first: Index,
    planned: Vec<Planned>,
}

/// All that is decided before anything starts.
struct Prepared {
    parts: Vec<Part>,
    /// `NAME=ADDRESS`, as every machine is told.
    names: Vec<String>,
}

/// One activation.
struct Running<'a> {
    prepared: &'a Prepared,
    /// The part that each machine belongs to.
    part_of: &'a [usize],
    began: Instant,
    until: Instant,
    overcommit: bool,
    /// Thrown when nothing more is to be done for the machines.
    over: &'a Cancel,
    times: &'a Mutex<Vec<Times>>,
}

/// When a machine ran, when its guest answered, and when it was ready, in milliseconds.
#[derive(Clone, Copy, Default)]
struct Times {
    first: Option<f64>,
    answers: Option<f64>,
    ready: Option<f64>,
}

impl Ensembles {
    /// Activates what a file describes. Unless an error is returned, the report says what became of each machine.
    pub fn activate(
        self: &Arc<Self>,
        request: &EnsembleRequest,
        caller: &Caller,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let began = Instant::now();
        let ready_s = request.ready_s.unwrap_or(ENSEMBLE_READY_S_DEFAULT);
        if !(1..=ENSEMBLE_READY_S_MAX).contains(&ready_s) {
            return Err(usage(
                format!("{ready_s} s until all machines must be ready"),
                format!("allow 1 to {ENSEMBLE_READY_S_MAX}"),
            ));
        }
        let described = file::read(&request.file).map_err(in_file)?;
        let taken = self.take_name(&described.name)?;
        self.check_new(&described)?;
        let mut prepared = self.prepare(&described, caller)?;
        self.make_network(&described, &mut prepared)?;
        report.stage("plan")?;
        let part_of: Vec<usize> = prepared
            .parts
            .iter()
            .enumerate()
            .flat_map(|(index, part)| vec![index; part.planned.len()])
            .collect();
        let over = Cancel::default();
        let times = Mutex::new(vec![Times::default(); part_of.len()]);
        let running = Running {
            prepared: &prepared,
            part_of: &part_of,
            began,
            until: began + Duration::from_secs(ready_s),
            overcommit: request.overcommit,
            over: &over,
            times: &times,
        };
        let mut course = running.course(request.all_or_nothing);
        let verdict = self.run(&running, &mut course, report);
        let cancelled = report.cancel().is_cancelled();
        let back = verdict.is_err() || cancelled || matches!(verdict, Ok(Verdict::TakeBack));
        if back {
            self.take_back(&prepared);
        }
        self.leave_vacant(&prepared);
        drop(taken);
        verdict?;
        if cancelled {
            return Err(NodeError::Cancelled);
        }
        Ok(Outcome {
            ensemble: Some(self.report(&described, &running, &course, back)),
            ..Default::default()
        })
    }

    fn take_name(&self, name: &MachineName) -> Result<Taken<'_>, NodeError> {
        let name = name.to_string();
        if !self.under_way.lock().insert(name.clone()) {
            return Err(busy(format!("ensemble {name} is being activated"), "wait"));
        }
        let ensembles = self;
        Ok(Taken { ensembles, name })
    }

    /// Refuses an ensemble of which some machines are there already, and says which.
    fn check_new(&self, described: &Described) -> Result<(), NodeError> {
        let name = &described.name;
        let mut there = BTreeMap::new();
        for entry in self.inventory.all() {
            let record = entry.record();
            let of = record.ensemble.as_ref();
            if of.is_some_and(|of| of.ensemble == name.as_str()) {
                let runs = if entry.vm().is_ok() {
                    "runs"
                } else {
                    "is there"
                };
                there.insert(record.name.clone(), runs);
            }
        }
        if there.is_empty() {
            return Ok(());
        }
        let known: Vec<String> = there
            .iter()
            .map(|(name, how)| format!("{name} {how}"))
            .collect();
        let names = described
            .members
            .iter()
            .flat_map(|member| machines(name, member));
        let missing: Vec<String> = names.filter(|name| !there.contains_key(name)).collect();
        let missing = match missing.is_empty() {
            true => String::new(),
            false => format!("; missing: {}", missing.join(", ")),
        };
        Err(busy(
            format!("ensemble {name} is there: {}{missing}", known.join(", ")),
            format!("floe rm --force --ensemble {name} removes it, then activate it again"),
        ))
    }

    /// Finds substrates, names, addresses and ports for all machines. Nothing is started, and nothing is kept.
    fn prepare(&self, described: &Described, caller: &Caller) -> Result<Prepared, NodeError> {
        let numbers = numbers(&described.members).map_err(in_file)?;
        let mut numbers = numbers.into_iter();
        let (mut parts, mut names, mut first) = (Vec::new(), Vec::new(), 0);
        let mut ports = BTreeSet::new();
        for member in &described.members {
            let size = ActivateRequest {
                cpus: member.cpus,
                memory_bytes: member.memory_bytes,
                ..Default::default()
            };
            let basis = self.pool.basis(&member.substrate, &size, caller);
            let basis = basis.map_err(|error| {
                let line = match error.code() {
                    ErrorCode::NotFound => member.substrate_line,
                    _ => member.size_line,
                };
                at_line(line, &member.name, error)
            })?;
            let forwards = choose_ports(&self.inventory, &member.ports)
                .map_err(|error| at_line(member.line, &member.name, error))?;
            for forward in &forwards {
                if !ports.insert((forward.host_address.clone(), forward.host_port)) {
                    return Err(in_file(Wrong {
                        line: member.line,
                        what: format!("port {} is forwarded twice", forward.host_port),
                        fix: "choose another port of this host".into(),
                    }));
                }
            }
            let mut planned = Vec::new();
            let wanted = machines(&described.name, member);
            for (name, host) in wanted.into_iter().zip(hosts(member)) {
                let number = numbers.next().unwrap_or_default();
                let name: MachineName = name
                    .parse()
                    .map_err(|error: floe_ground::names::NameError| usage(error.to_string(), ""))?;
                self.inventory.check_free(&name)?;
                let address = Networks::address_of(number);
                names.push(format!("{host}={address}"));
                if member.count > 1 {
                    names.push(format!("{}={address}", member.name));
                }
                planned.push(Planned {
                    name,
                    place: floe_inventory::inventory::record::Attachment {
                        network: String::new(),
                        number,
                    },
                    forwards: forwards.clone(),
                    ensemble: InEnsemble {
                        ensemble: described.name.to_string(),
                        member: member.name.clone(),
                        host,
                    },
                });
            }
            let count = planned.len();
            parts.push(Part {
                member: member.clone(),
                basis,
                first,
                planned,
            });
            first += count;
        }
        Ok(Prepared { parts, names })
    }

    /// Creates the network, with all machines in it.
    fn make_network(
        &self,
        described: &Described,
        prepared: &mut Prepared,
    ) -> Result<(), NodeError> {
        let request = NetworkRequest {
            allow: described.allow.clone(),
            bytes_per_s: described.bytes_per_s,
        };
        let all = prepared.parts.iter().flat_map(|part| &part.planned);
        let members: Vec<(&str, u32)> = all
            .map(|one| (one.name.as_str(), one.place.number))
            .collect();
        let places = self.networks.create_with(&request, &members)?;
        let all = prepared.parts.iter_mut().flat_map(|part| &mut part.planned);
        for (one, place) in all.zip(places) {
            one.place = place;
        }
        Ok(())
    }

    /// Starts all machines and does what `course` decides, until it is over.
    fn run(
        self: &Arc<Self>,
        running: &Running<'_>,
        course: &mut Course,
        report: &mut Report,
    ) -> Result<Verdict, NodeError> {
        let (tell, told) = mpsc::channel::<Event>();
        let gone = tell.clone();
        let _hook = report.cancel().on_cancel(move || {
            let _ = gone.send(Event::Cancelled); // after the scope nobody listens
        });
        let total = running.part_of.len() as u64;
        floe_threads::scope(|scope| {
            // whatever happens here, the threads are told that it is over
            let ended = Ending(running.over);
            for part in &running.prepared.parts {
                let tell = tell.clone();
                scope.try_spawn("member", move || self.start(running, part, &tell))?;
            }
            loop {
                let left = running.until.saturating_duration_since(Instant::now());
                let event = told.recv_timeout(left).unwrap_or(Event::Late);
                if let Event::Ready(machine) = event {
                    running.times.lock()[machine].ready = Some(millis(running.began.elapsed()));
                }
                for action in course.handle(event) {
                    let tell = tell.clone();
                    match action {
                        Action::Greet(machine) => {
                            let greet = move || self.greet(running, machine);
                            scope.try_spawn("greet", told_of(tell, machine, greet))?
                        }
                        Action::Join(machine) => {
                            let join = move || self.join(running, machine);
                            scope.try_spawn("join", told_of(tell, machine, join))?
                        }
                        Action::Over(verdict) => {
                            drop(ended);
                            if verdict == Verdict::TakeBack {
                                // what waits for a guest goes on at once when its machine ends
                                self.take_back(running.prepared);
                            }
                            report.stage_at("ready", Instant::now());
                            return Ok(verdict);
                        }
                    };
                }
                report.progress("ready", course.ready() as u64, total, "machines");
            }
        })
    }

    /// Starts a part's machines.
    fn start(self: &Arc<Self>, running: &Running<'_>, part: &Part, tell: &mpsc::Sender<Event>) {
        let (mut alone, _) = Report::new();
        let before = millis(running.began.elapsed());
        let ends = alone.cancel();
        let _hook = running.over.on_cancel(move || ends.cancel());
        let started =
            self.pool
                .start_planned(&part.basis, &part.planned, running.overcommit, &mut alone);
        for at in 0..part.planned.len() {
            let machine = part.first + at;
            let event = match &started {
                Err(error) => Event::Failed(machine, error.to_api().to_string()),
                Ok(clones) => match clones.get(at) {
                    Some(clone) if clone.state == CloneState::Running => {
                        let ran = clone.running_ms.map(|ms| before + ms);
                        running.times.lock()[machine].first = ran;
                        Event::Started(machine)
                    }
                    Some(clone) => Event::Failed(machine, clone.detail.clone()),
                    None => Event::Failed(machine, "it was not started".into()),
                },
            };
            let _ = tell.send(event); // after the course is over nobody listens
        }
    }

    /// Waits for a machine's guest, gives it its size, and tells it the names of all.
    fn greet(&self, running: &Running<'_>, machine: Index) -> Result<Event, String> {
        let (part, planned) = running.of(machine);
        let name = planned.name.as_str();
        let entry = self
            .inventory
            .get(name)
            .map_err(|error| error.to_string())?;
        let look = || {
            let state = entry.state();
            let Some(_) = &state.vm else {
                return Some(Err(format!("it has ended: {}", state.record.detail)));
            };
            if let Some(why) = &state.guest.why {
                return Some(Err(why.clone()));
            }
            let whole = state.record.small.is_nothing() && !is_pending(&state.record);
            (whole && state.guest.agent).then_some(Ok(()))
        };
        let (changed, over) = (self.inventory.changed(), Some(running.over));
        match changed.wait_for(Some(running.until), over, look) {
            Waited::Come(come) => come?,
            Waited::Cancelled | Waited::TimedOut => {
                return Err("its guest did not answer in time".into());
            }
        }
        self.pool
            .bring_planned(&part.basis, name, running.over)
            .map_err(|error| error.to_string())?;
        let names: Vec<&str> = running.prepared.names.iter().map(String::as_str).collect();
        let chore = chores::names::HOSTS;
        let told = self
            .agents
            .chore::<Hosts>(&entry, chore, &names, NAMES_LIMIT);
        told.map_err(|error| format!("it could not be told the names of the others: {error}"))?;
        running.times.lock()[machine].answers = Some(millis(running.began.elapsed()));
        Ok(Event::Answers(machine))
    }

    /// Runs a machine's hooks, and waits for the sign that it is ready.
    fn join(&self, running: &Running<'_>, machine: Index) -> Result<Event, String> {
        let (part, planned) = running.of(machine);
        let entry = self
            .inventory
            .get(planned.name.as_str())
            .map_err(|error| error.to_string())?;
        let limit = HOOK_LIMIT * (HOOKS_MAX as u32 + 1);
        let chore = chores::names::HOOKS;
        let hooks: Hooks = self
            .agents
            .chore_unless(&entry, chore, &["joined"], limit, running.over)
            .map_err(|error| format!("its hooks: {error}"))?;
        for hook in hooks.ran.into_iter().take(HOOKS_MAX) {
            if let Some(why) = hook.why {
                return Err(format!("its hook {} failed: {why}", hook.name));
            }
        }
        loop {
            let Err(why) = self.shows(&entry, planned, &part.member.ready, running.over) else {
                return Ok(Event::Ready(machine));
            };
            if entry.vm().is_err() {
                return Err("it has ended".into());
            }
            let late = Instant::now() >= running.until;
            if late || !running.over.sleep(ASK_AGAIN) {
                return Err(format!("it did not become ready in time: {why}"));
            }
        }
    }

    /// Whether a machine shows the sign; returns why not.
    fn shows(
        &self,
        entry: &Entry,
        planned: &Planned,
        sign: &Sign,
        over: &Cancel,
    ) -> Result<(), String> {
        match sign {
            Sign::Answer => Ok(()),
            Sign::Port(port) => self
                .networks
                .knock(&planned.place, *port)
                .map_err(|error| format!("port {port}: {error}")),
            Sign::Command(words) => self
                .agents
                .check_command(entry, words, COMMAND_LIMIT, over)
                .map_err(|why| format!("{}: {why}", words[0])),
        }
    }

    /// Ends and removes all machines that there are.
    fn take_back(&self, prepared: &Prepared) {
        for planned in prepared.parts.iter().flat_map(|part| &part.planned) {
            let name = planned.name.as_str();
            let look = || match self.machines.remove_machine(name, true) {
                Err(error) if error.code() == ErrorCode::Busy => None,
                removed => Some(removed),
            };
            let until = Some(Instant::now() + BUSY_LIMIT);
            match self.inventory.changed().wait_for(until, None, look) {
                Waited::Come(Err(error)) if error.code() != ErrorCode::NotFound => {
                    tracing::warn!(machine = name, %error, "was not taken back");
                }
                Waited::Come(_) => {}
                Waited::Cancelled | Waited::TimedOut => {
                    tracing::warn!(machine = name, "is busy, and was not taken back");
                }
            }
        }
    }

    /// Gives back the places of machines that are not there. With the last one the network goes.
    fn leave_vacant(&self, prepared: &Prepared) {
        for planned in prepared.parts.iter().flat_map(|part| &part.planned) {
            let name = planned.name.as_str();
            if !self.inventory.knows(name) {
                self.networks.leave(&planned.place.network, name);
            }
        }
    }

    fn report(
        &self,
        described: &Described,
        running: &Running<'_>,
        course: &Course,
        taken_back: bool,
    ) -> EnsembleReport {
        let times = running.times.lock();
        let machine = |index: Index| {
            let (part, planned) = running.of(index);
            let times = times[index];
            let entry = self.inventory.get(planned.name.as_str());
            let state = course.state(index);
            EnsembleMachine {
                name: planned.name.to_string(),
                member: part.member.name.clone(),
                host: planned.ensemble.host.clone(),
                address: Networks::address_of(planned.place.number).to_string(),
                substrate: part.member.substrate.clone(),
                forwards: planned.forwards.clone(),
                runs: entry.is_ok_and(|entry| entry.vm().is_ok()),
                first_ms: times.first,
                answers_ms: times.answers,
                ready_ms: times.ready.filter(|_| *state == State::Ready),
                failed: match state {
                    State::Ready => None,
                    State::Failed(why) => {
                        let fix = format!("floe ps {0}, floe logs {0}", planned.name);
                        Some(failed(why.clone(), fix).to_api())
                    }
                    _ => Some(failed("another machine of the ensemble was not ready", "").to_api()),
                },
            }
        };
        EnsembleReport {
            name: described.name.to_string(),
            taken_back,
            machines: (0..running.part_of.len()).map(machine).collect(),
        }
    }
}

impl Running<'_> {
    fn of(&self, machine: Index) -> (&Part, &Planned) {
        let part = &self.prepared.parts[self.part_of[machine]];
        (part, &part.planned[machine - part.first])
    }

    /// Returns the course of these machines: each comes after all machines of the members that it names.
    fn course(&self, all_or_nothing: bool) -> Course {
        let parts = &self.prepared.parts;
        let of_part = |part: &Part| part.first..part.first + part.planned.len();
        let after = |machine: Index| {
            let (part, _) = self.of(machine);
            let before = part.member.after.iter();
            before.flat_map(|index| of_part(&parts[*index])).collect()
        };
        let all = 0..self.part_of.len();
        let names = all.clone().map(|at| self.of(at).1.name.to_string());
        Course::new(names.collect(), all.map(after).collect(), all_or_nothing)
    }
}

/// Throws a switch when it is dropped.
struct Ending<'a>(&'a Cancel);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Returns the same work, with its result sent as an event.
fn told_of<'a>(
    tell: mpsc::Sender<Event>,
    machine: Index,
    work: impl FnOnce() -> Result<Event, String> + Send + 'a,
) -> impl FnOnce() + Send + 'a {
    move || {
        let event = work().unwrap_or_else(|why| Event::Failed(machine, why));
        let _ = tell.send(event); // after the course is over nobody listens
    }
}

/// The names of a member's machines: `shop-db`, or `shop-app.1` and `shop-app.2`.
fn machines(ensemble: &MachineName, member: &Member) -> Vec<String> {
    let name = format!("{ensemble}-{}", member.name);
    match member.count {
        1 => vec![name],
        count => (1..=count).map(|n| format!("{name}.{n}")).collect(),
    }
}

/// Gives each machine its number in the network: that of its address if that is fixed, or the next free one.
fn numbers(members: &[Member]) -> Result<Vec<u32>, Wrong> {
    let mut taken: BTreeMap<u32, &str> = BTreeMap::new();
    for member in members {
        let Some(address) = member.address else {
            continue;
        };
        let wrong = |what: String| Wrong {
            line: member.address_line,
            what,
            fix: "choose another one, or leave it out".into(),
        };
        let (first, last) = (Networks::address_of(0), Ipv4Addr::new(10, 0, 2, 254));
        let number = Networks::number_of(address)
            .ok_or_else(|| wrong(format!("{address} is not in {first} to {last}")))?;
        if let Some(other) = taken.insert(number, &member.name) {
            return Err(wrong(format!("{address} is that of {other} too")));
        }
    }
    let mut free = (0..).filter(|number| !taken.contains_key(number));
    let mut numbers = Vec::new();
    for member in members {
        match member.address.and_then(Networks::number_of) {
            Some(number) => numbers.push(number),
            None => numbers.extend(free.by_ref().take(member.count as usize)),
        }
    }
    Ok(numbers)
}

fn in_file(wrong: Wrong) -> NodeError {
    usage(format!("line {}: {}", wrong.line, wrong.what), wrong.fix)
}

/// Adds to an error the member that it concerns, and its line in the file.
fn at_line(line: usize, member: &str, error: NodeError) -> NodeError {
    let error = error.to_api();
    NodeError::Api(ApiError {
        message: format!("line {line}, {member}: {}", error.message),
        ..error
    })
}
