//! Starts a fork's clones: `decide` says which one where and when, threads carry it out.

use super::{
    Asked, Forks, Planned,
    decide::{Action, CloneId, Event, Fault, Fork, State},
    record::ForkRecord,
};
use floe_api::{CloneInfo, CloneRequest, CloneState, Identity, Limits};
use floe_ground::{error::NodeError, report::Report, time::unix_now};
use floe_inventory::{
    inventory::record::{Attachment, Family},
    network::Networks,
};
use floe_machine::Continuing;
use floe_machines::machines::{making::Making, restore::Loaded};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
};

/// How many starts per core are under way at once: QEMU's start waits for the disk about as long as it computes.
const STARTS_PER_CORE: usize = 2;
/// How many more starts are under way at once if there are other hosts: each is a request that waits.
const STARTS_AWAY: usize = 32;

/// A clone that has loaded its state and stands still. Dropping it ends its QEMU first, then undoes the rest.
pub(super) type LoadedClone = (Loaded, Making);

/// What is needed to start a clone.
#[derive(Clone, Copy)]
pub(super) struct Start<'a> {
    pub asked: &'a Asked<'a>,
    pub record: &'a ForkRecord,
    /// The clones' places in their family's network, by number from 1; empty if there is none.
    pub places: &'a [Attachment],
    /// The clones of this host that are loaded and stand still.
    pub loaded: &'a Mutex<HashMap<CloneId, LoadedClone>>,
    /// If a guest asked for the fork: the part of the household's limits that each clone on another host gets, or why it can't have one.
    pub share: Option<&'a Result<Limits, String>>,
}

impl Start<'_> {
    /// Returns what a clone is to be, if another service has decided that.
    pub fn planned_of(&self, clone: CloneId) -> Option<&Planned> {
        let planned = self.asked.purpose.planned;
        planned.get((clone as usize).checked_sub(1)?)
    }

    /// Returns when the clones are removed, Unix time in seconds.
    pub fn ends_unix_s(&self) -> Option<u64> {
        let ttl_s = self.asked.request.ttl_s;
        ttl_s.map(|s| self.record.created_unix_s.saturating_add(s))
    }

    /// Returns a clone's place in its family's network.
    pub fn network_of(&self, clone: CloneId) -> Option<Attachment> {
        let index = (clone as usize).checked_sub(1)?;
        self.places.get(index).cloned()
    }

    /// Lets the guests run that may now, all of them before anything else is done for one, which would take the CPUs from the
    /// next. Returns the clones whose guests run; for the others a later step reports the error.
    fn release(&self, actions: &[Action]) -> impl Iterator<Item = CloneId> + use<> {
        let go = |action: &Action| match action {
            Action::Go(clone, _) => Some(*clone),
            _ => None,
        };
        let loaded = self.loaded.lock();
        let told = actions.iter().filter_map(go).filter_map(|clone| {
            let (loaded, _) = loaded.get(&clone)?;
            Some((clone, loaded.release().ok()?))
        });
        let told: Vec<(CloneId, Continuing)> = told.collect();
        told.into_iter()
            .filter_map(|(clone, going)| going.wait().ok().map(|()| clone))
    }

    /// Returns the request that another node gets for a clone.
    pub fn order(&self, clone: CloneId, name: &str, source: &str) -> CloneRequest {
        CloneRequest {
            name: name.to_owned(),
            fork: self.record.id.clone(),
            parent: self.record.parent.clone(),
            number: clone,
            image: self.asked.instant.found.id.to_string(),
            source: source.to_owned(),
            token: self.record.token.clone(),
            settle: self.asked.request.settle,
            multicast: self.record.multicast,
            network: None,
            limits: match self.share {
                Some(_) => self.record.share,
                None => self.limits(),
            },
            household: self.record.household.clone(),
            ttl_s: self
                .ends_unix_s()
                .map(|ends| ends.saturating_sub(unix_now()).max(1)),
        }
    }

    /// Returns the limits of the clones on this host: those of their parent, which they share if its guest asked for them.
    pub fn limits(&self) -> Limits {
        let parent = self.asked.instant.parent.as_ref();
        parent.map_or_else(Limits::default, |parent| parent.entry.record().limits)
    }
}

impl Forks {
    /// Starts clones until each one runs or has failed, and reports each as that happens.
    pub(super) fn start_clones(
        self: &Arc<Self>,
        fork: &mut Fork,
        start: &Start<'_>,
        report: &mut Report,
    ) -> Result<Vec<CloneInfo>, NodeError> {
        let (record, hosts) = (start.record, start.asked.hosts);
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
        // a caller that goes while its clones start wakes the thread that waits for them
        let gone = tell.clone();
        let _hook = report.cancel().on_cancel(move || {
            let _ = gone.send(Event::Cancelled); // after the scope nobody listens
        });
        floe_threads::scope(|scope| -> Result<(), NodeError> {
            for _ in 0..workers {
                let tell = tell.clone();
                let jobs = &jobs;
                scope.try_spawn("clone", move || self.carry_out(start, jobs, &tell))?;
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
                    let _ = give.send(action); // the receiver lives as long as this scope
                }
                let event = told.recv().expect("this function holds a sender");
                cancelled |= matches!(event, Event::Cancelled);
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
        // the fork is complete if its caller goes only when all clones run
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

    /// Carries out actions of a fork and says what came of them, until there are no more.
    fn carry_out(
        self: &Arc<Self>,
        start: &Start<'_>,
        jobs: &Mutex<mpsc::Receiver<Action>>,
        tell: &mpsc::Sender<Event>,
    ) {
        loop {
            let job = jobs.lock().recv();
            match job {
                Ok(Action::Start(clone, host)) => {
                    tell_of(clone, tell, || self.try_clone(start, clone, host));
                }
                Ok(Action::Go(clone, _)) => tell_of(clone, tell, || self.go(start, clone)),
                Ok(Action::End(clone, host)) => self.end_clone(start, clone, host),
                Ok(Action::Over) | Err(_) => return,
            }
        }
    }

    pub(super) fn family_of(record: &ForkRecord, clone: CloneId, settled: bool) -> Family {
        Family {
            fork: record.id.clone(),
            parent: record.parent.clone(),
            number: clone,
            settled,
            identity: Identity::default(),
            by: None,
            ends_unix_s: None,
        }
    }
}

/// Sends what came of a step of a clone's start; the fork waits for exactly one event per step.
fn tell_of(clone: CloneId, tell: &mpsc::Sender<Event>, step: impl FnOnce() -> Event) {
    let event = catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| {
        let why = "the node made a mistake, see its log";
        Event::NotStarted(clone, Fault::Unknown(why.into()))
    });
    let _ = tell.send(event);
}

/// Returns what is reported of a clone.
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
            on = start.asked.hosts[*host].url().map(str::to_owned);
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
        address: start
            .network_of(number)
            .filter(|_| state == CloneState::Running)
            .map(|place| Networks::address(&place)),
        running_ms: times.get(&number).copied(),
        ends_unix_s: start.ends_unix_s().filter(|_| state == CloneState::Running),
    }
}
