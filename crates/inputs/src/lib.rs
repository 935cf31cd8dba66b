//! What users do at a machine, kept until its guest has got it: wherever the machine goes meanwhile, in order and each once (AMPhone,
//! section 5.4).
//!
//! ```text
//! typed -> file of the machine -> here: the guest's agent         `agents`
//!                                 there: the node that has it     `wire`
//! ```
//! An input is answered once it is on the disk. A thread for each machine with inputs that wait says them, the next ones when those before
//! are taken; what is said, when and again is decided without I/O in `decide`. A machine that stands still, is parked or travels gets
//! them when it goes on. One that was moved to another node gets them through that: it gives them to its agent and passes the answer on,
//! and keeps nothing, so that what waits is in one place, with the node that its user speaks to.
//!
//! What is done on screens and consoles comes here only while QEMU would lose it (`user`). What a lent machine shows comes the other way
//! (`look`).
//!
//! A guest whose agent takes no inputs, or can't give one to it, or that has no agent, gets them through QEMU's own devices: each at most
//! once, since QEMU doesn't say what has become of them. They are noted as taken before. So is what an agent was told of last, if it has
//! ended without an answer and none has come after it.
//!
//! The files hold what users type, passwords too: only the node's user can read them, and what a guest has got is gone from them a moment
//! after nothing waits for it any more.
//!
//! Locks: the list of machines, for an instant; then one machine's inputs, also while its file is written.

mod decide;
mod file;
mod look;
mod mailbox;
mod plain;
mod request;
mod user;
mod wire;

pub use look::{Look, LookAsked, PROTOCOL as LOOK_PROTOCOL};
pub use wire::{Fate, ForMachine};

use decide::{Kept, Next, Unkept, Waiting, next_of};
use floe_api::{ErrorCode, TypeReport, TypeRequest};
use floe_ground::{
    caller::FromMember,
    error::{NodeError, at, busy, refused, usage},
    files::{load_one, make_private_dir},
};
use floe_guest::input::Inputs as Batch;
use floe_hosts::cluster::Cluster;
use floe_inventory::{
    core::Core,
    inventory::{
        Entry, Inventory,
        turn::{Peer, Side},
    },
};
use floe_machines::{
    agents::{Agents, Given},
    machines::Machines,
};
use mailbox::Mailbox;
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// The directory of the files, in that of the node's state.
const DIR: &str = "inputs";
/// How their names end.
const SUFFIX: &str = ".inputs";
/// Largest file that is read: all that may wait, with what is written of what was taken.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Of how many machines something is kept: inputs that wait, or where they are.
const MACHINES_MAX: usize = 1024;
/// How long nothing is said to a machine that stands still, or that nobody knows the way to, until it is tried again. Nothing tells of all
/// that may end that.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The same for a machine that another node has, which is asked over the network.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The same for a guest that has not taken the last ones yet.
const FULL_AGAIN: Duration = Duration::from_millis(20);
/// The same for a node that does not answer, or whose disk is full.
const STUCK_AGAIN: Duration = Duration::from_secs(2);
/// How often files are cleared of what is over. Doing it for each key would cost as much as keeping the key.
const TIDY_EVERY: Duration = Duration::from_secs(2);
/// How long an agent may be silent while its guest runs until it is taken for one that is not there.
const AGENT_WAIT: Duration = Duration::from_secs(20);

/// The service that keeps inputs.
pub struct Inputs {
    core: Arc<Core>,
    cluster: Arc<Cluster>,
    inventory: Arc<Inventory>,
    agents: Arc<Agents>,
    machines: Arc<Machines>,
    /// Where consoles are typed on.
    runtime: Handle,
    dir: PathBuf,
    boxes: Mutex<HashMap<String, Arc<Mutex<Mailbox>>>>,
}

/// Where inputs for a machine go.
enum Way {
    Here(Arc<Entry>),
    There(Peer),
    /// It stands still, or is between two nodes.
    Waits,
    /// There is no such machine any more.
    Nowhere,
}

impl Inputs {
    /// Returns the service, with what an earlier node has kept.
    pub fn open(
        core: Arc<Core>,
        cluster: Arc<Cluster>,
        inventory: Arc<Inventory>,
        agents: Arc<Agents>,
        machines: Arc<Machines>,
        runtime: Handle,
    ) -> Result<Arc<Inputs>, NodeError> {
        let dir = core.home.root().join(DIR);
        make_private_dir(&dir)?;
        let mut boxes = HashMap::new();
        let cannot = || at(format!("cannot list {}", dir.display()));
        for entry in fs::read_dir(&dir).map_err(cannot())? {
            let path = entry.map_err(cannot())?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(name) = name.and_then(|name| name.strip_suffix(SUFFIX)) else {
                continue;
            };
            let lost = "has inputs that did not reach their machine";
            if let Some(found) = load_one(&path, FILE_BYTES_MAX, file::parse, lost)? {
                let mailbox = Mailbox::of(found);
                boxes.insert(name.to_owned(), Arc::new(Mutex::new(mailbox)));
            }
        }
        let inputs = Arc::new(Inputs {
            core,
            cluster,
            inventory,
            agents,
            machines,
            runtime,
            dir,
            boxes: Mutex::new(boxes),
        });
        let of = Arc::downgrade(&inputs);
        let users = move |entry: &Arc<Entry>| Some(of.upgrade()?.user(entry));
        inputs.machines.screens_have(Box::new(users));
        Ok(inputs)
    }

    /// Says what an earlier node has kept, and starts the thread that tidies up what is over.
    pub fn start_giving(self: &Arc<Self>) -> Result<(), NodeError> {
        for (name, mailbox) in self.all() {
            self.serve(&name, &mailbox);
        }
        let threads = &self.core.threads;
        Ok(threads.keep("inputs-tidy", self, TIDY_EVERY, |inputs| {
            for (name, mailbox) in inputs.all() {
                let mut mailbox = mailbox.lock();
                if !mailbox.is_served && mailbox.waiting.is_empty() {
                    mailbox.tidy(&inputs.path(&name));
                }
            }
        })?)
    }

    fn all(&self) -> Vec<(String, Arc<Mutex<Mailbox>>)> {
        let boxes = self.boxes.lock();
        let all = boxes.iter();
        all.map(|(name, mailbox)| (name.clone(), mailbox.clone()))
            .collect()
    }

    /// Keeps a source's inputs for a machine, and has them given to its guest. Returns once they are on the disk.
    pub fn type_on(
        self: &Arc<Self>,
        name: &str,
        request: &TypeRequest,
    ) -> Result<TypeReport, NodeError> {
        self.keep(name, request::kept_of(request)?)
    }

    /// Does the same for inputs that are within their bounds.
    fn keep(self: &Arc<Self>, name: &str, typed: Vec<Kept>) -> Result<TypeReport, NodeError> {
        let entry = match self.inventory.get(name) {
            Ok(entry) => Some(entry),
            Err(error) if error.code() == ErrorCode::NotFound && self.was_moved(name) => None,
            Err(error) => return Err(error),
        };
        if let Some(entry) = &entry {
            entry.has_input();
        }
        let machine = entry.map(|entry| entry.record().created_unix_s);
        let mailbox = self.mailbox(name, machine)?;
        let mut kept = mailbox.lock();
        let last = typed.last().map_or(0, |last| last.number);
        let new = kept.waiting.sort(typed).map_err(|why| match why {
            Unkept::After(number) => usage(
                format!("the inputs before these are missing: number {number} was the last"),
                "send those that follow on it",
            ),
            Unkept::Full => busy(
                format!("{} inputs wait for {name} already", kept.waiting.len()),
                format!("floe ps {name} shows why it does not take them"),
            ),
        })?;
        if !new.is_empty() {
            let lines = file::kept(new.iter());
            kept.write(&self.path(name), &lines, true)?;
            kept.waiting.keep(new);
        }
        let report = TypeReport {
            kept: last,
            waiting: kept.waiting.len() as u64,
            once: kept.by_agent == Some(true),
        };
        drop(kept);
        self.serve(name, &mailbox);
        Ok(report)
    }

    /// Notes that a machine is on another node now, to which its inputs go.
    pub fn was_given(&self, name: &str, machine: u64, to: &Peer) {
        let noted = self.mailbox(name, Some(machine)).and_then(|mailbox| {
            let mut mailbox = mailbox.lock();
            mailbox.node = Some(to.clone());
            mailbox.by_agent = None;
            mailbox.write_anew(&self.path(name))
        });
        if let Err(error) = noted {
            tracing::warn!(machine = name, %error, "what its users do here does not follow it");
        }
    }

    /// Gives inputs to a machine that has come from the member that says them.
    pub fn receive(&self, said: &ForMachine, by: &FromMember) -> Result<Fate, NodeError> {
        let inputs = said.inputs()?;
        let found = self.inventory.get(&said.name).ok();
        let is_it = |entry: &Arc<Entry>| {
            let home = entry.turn().and_then(|turn| turn.home);
            let came = home.is_some_and(|home| home.address == by.address);
            came && entry.record().created_unix_s == said.machine
        };
        let Some(entry) = found.filter(is_it) else {
            // to the node that it comes from alone is it told where it is
            let known = self.boxes.lock().get(&said.name).cloned();
            let known = known.filter(|known| known.lock().machine == said.machine);
            let to = known.and_then(|known| known.lock().node.clone());
            return Ok(match to {
                Some(to) => Fate::Moved { to },
                None if self.inventory.any_left_alone() => Fate::Waits,
                None => Fate::Gone,
            });
        };
        if !entry.turn().is_some_and(|turn| turn.is_here()) {
            return Ok(Fate::Waits);
        }
        entry.has_input();
        let Some(mut buttons) = said.plainly else {
            return Ok(self.give(&entry, &inputs));
        };
        // who says this has noted before that the guest has got them
        let (vm, name) = (entry.vm()?, &said.name);
        plain::give(
            &self.machines,
            &self.runtime,
            &vm,
            name,
            &inputs,
            &mut buttons,
        )?;
        Ok(Fate::Taken {
            number: inputs.last(),
            why: None,
        })
    }

    /// Has the agent of a machine of this node give inputs to its guest.
    fn give(&self, entry: &Arc<Entry>, batch: &Batch) -> Fate {
        let vm = entry.vm().ok().filter(|_| !rests(entry));
        let Some(vm) = vm else {
            return Fate::Waits;
        };
        if vm.floe_port_is_open() == Some(false) {
            return Fate::Ended;
        }
        match self.agents.give(&vm, batch) {
            Given::Taken(number, why) => Fate::Taken { number, why },
            Given::Unheard => Fate::Unheard,
            Given::Silent if vm.has_floe_port() => Fate::Silent,
            Given::Silent | Given::Old => Fate::Old,
        }
    }

    /// Whether it is known where a machine is that was moved from here.
    fn was_moved(&self, name: &str) -> bool {
        let known = self.boxes.lock().get(name).cloned();
        known.is_some_and(|known| known.lock().node.is_some())
    }

    /// Returns what is kept of a machine. What was kept of an earlier one of its name is dropped.
    fn mailbox(&self, name: &str, machine: Option<u64>) -> Result<Arc<Mutex<Mailbox>>, NodeError> {
        let mut boxes = self.boxes.lock();
        let known = boxes.get(name).cloned();
        if let Some(known) = &known
            && machine.is_none_or(|machine| known.lock().machine == machine)
        {
            return Ok(known.clone());
        }
        if known.is_none() && boxes.len() >= MACHINES_MAX {
            self.drop_oldest(&mut boxes)?;
        }
        // the thread of the one before drops what it has, since nobody finds that any more
        if let Some(known) = &known {
            known.lock().is_over = true;
        }
        let mailbox = Arc::new(Mutex::new(Mailbox {
            machine: machine.unwrap_or_default(),
            stale: known.is_some(), // there may be its file
            ..Mailbox::default()
        }));
        boxes.insert(name.to_owned(), mailbox.clone());
        Ok(mailbox)
    }

    /// Forgets where the machine is that was made first of those for which nothing waits, and which nobody looks at just now.
    fn drop_oldest(
        &self,
        boxes: &mut HashMap<String, Arc<Mutex<Mailbox>>>,
    ) -> Result<(), NodeError> {
        let is_idle = |mailbox: &Arc<Mutex<Mailbox>>| {
            Arc::strong_count(mailbox) == 1 && mailbox.lock().waiting.is_empty()
        };
        let idle = boxes.iter().filter(|(_, mailbox)| is_idle(mailbox));
        let oldest = idle.min_by_key(|(_, mailbox)| mailbox.lock().machine);
        let oldest = oldest.map(|(name, _)| name.clone()).ok_or_else(|| {
            refused(
                format!("inputs of {MACHINES_MAX} machines wait here"),
                "let them go on, or remove those that are no longer needed",
            )
        })?;
        if let Some(mailbox) = boxes.remove(&oldest) {
            let mut mailbox = mailbox.lock();
            mailbox.node = None;
            // a file that no node has written on since is removed too
            mailbox.stale = true;
            mailbox.tidy(&self.path(&oldest));
            mailbox.is_over = true;
        }
        Ok(())
    }

    /// Whether this is still what is kept of the machine of this name.
    fn is_current(&self, name: &str, mailbox: &Arc<Mutex<Mailbox>>) -> bool {
        let boxes = self.boxes.lock();
        boxes
            .get(name)
            .is_some_and(|known| Arc::ptr_eq(known, mailbox))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}{SUFFIX}"))
    }

    /// Starts the thread that says a machine's inputs, unless there is one.
    fn serve(self: &Arc<Self>, name: &str, mailbox: &Arc<Mutex<Mailbox>>) {
        {
            let mut mailbox = mailbox.lock();
            if mailbox.is_served || mailbox.waiting.is_empty() {
                return;
            }
            mailbox.is_served = true;
        }
        let (inputs, name) = (self.clone(), name.to_owned());
        let served = mailbox.clone();
        let work = move || {
            let over = inputs.core.threads.over().clone();
            while let Some(wait) = inputs.step(&name, &served) {
                let goes_on = match wait.is_zero() {
                    true => !over.is_cancelled(),
                    false => over.sleep(wait),
                };
                if !goes_on {
                    return;
                }
            }
        };
        if let Err(error) = self.core.threads.start("inputs", work) {
            mailbox.lock().is_served = false;
            tracing::error!(%error, "no thread for inputs: they wait until something is typed again");
        }
    }

    /// Says what is due of a machine's inputs. Returns how long to wait until the next time; `None` once nothing waits.
    fn step(&self, name: &str, mailbox: &Arc<Mutex<Mailbox>>) -> Option<Duration> {
        let is_current = self.is_current(name, mailbox);
        let (batch, way) = {
            let mut mailbox = mailbox.lock();
            let now_ms = self.now_ms();
            match mailbox.waiting.next(now_ms) {
                Next::Say(batch) if is_current => (batch, self.way(name, &mailbox)),
                Next::At(due_ms) if is_current => {
                    return Some(Duration::from_millis(due_ms - now_ms));
                }
                _ => {
                    mailbox.is_served = false;
                    return None;
                }
            }
        };
        let done = match &way {
            Way::Waits => {
                // a silence counts only while it runs
                mailbox.lock().silent = None;
                return Some(LOOK_AGAIN);
            }
            Way::Nowhere => {
                self.drop_all(name, mailbox);
                return Some(Duration::ZERO);
            }
            Way::Here(_) | Way::There(_) => self.say(name, &way, mailbox, &batch),
        };
        match done {
            Ok(wait) => Some(wait),
            Err(error) => {
                tracing::warn!(machine = name, %error, "inputs wait");
                Some(STUCK_AGAIN)
            }
        }
    }

    /// Returns where a machine's inputs go now.
    fn way(&self, name: &str, mailbox: &Mailbox) -> Way {
        match self.inventory.get(name) {
            Ok(entry) if entry.record().created_unix_s == mailbox.machine => {
                match entry.turn().map(|turn| turn.side) {
                    // what is here is a copy
                    Some(Side::Away { to } | Side::Lent { to }) => Way::There(to),
                    Some(Side::Here { .. }) | None if !rests(&entry) && entry.vm().is_ok() => {
                        Way::Here(entry)
                    }
                    _ => Way::Waits,
                }
            }
            Err(error) if error.code() != ErrorCode::NotFound => Way::Waits,
            _ => match mailbox.node.clone() {
                Some(node) => Way::There(node),
                None if self.inventory.any_left_alone() => Way::Waits,
                None => Way::Nowhere,
            },
        }
    }

    /// Whether something is here of a machine that was made at this time.
    fn is_listed(&self, name: &str, machine: u64) -> bool {
        let found = self.inventory.get(name);
        found.is_ok_and(|entry| entry.record().created_unix_s == machine)
    }

    /// Says inputs where the machine is, and notes what has become of them. Returns how long to wait until the next time.
    fn say(
        &self,
        name: &str,
        way: &Way,
        mailbox: &Arc<Mutex<Mailbox>>,
        batch: &Batch,
    ) -> Result<Duration, NodeError> {
        let machine = self.note_said(name, way, &mut mailbox.lock(), batch)?;
        let fate = match way {
            Way::Here(entry) => Ok(self.give(entry, batch)),
            Way::There(to) => wire::say(&self.cluster, to, &ForMachine::of(name, machine, batch)),
            Way::Waits | Way::Nowhere => Ok(Fate::Waits),
        };
        let again = match way {
            Way::There(_) => ASK_AGAIN,
            _ => LOOK_AGAIN,
        };
        let mut now = mailbox.lock();
        let is_silent = matches!(fate, Ok(Fate::Silent | Fate::Ended));
        if is_silent || matches!(fate, Ok(Fate::Waits | Fate::Old)) {
            now.waiting.was_not_said();
        }
        if !is_silent {
            now.silent = None;
        }
        Ok(match fate {
            Ok(Fate::Taken { number, why }) => {
                now.by_agent = Some(true);
                let wait = self.taken(name, &mut now, batch, number);
                let left = why.as_ref().and_then(|_| next_of(batch, number));
                match left {
                    // it says that it has not given this one, and can't
                    Some(left) => {
                        tracing::debug!(machine = name, ?why, "an input goes through QEMU");
                        self.say_plainly(name, way, now, mailbox, &left)?
                    }
                    None => wait,
                }
            }
            Ok(Fate::Silent | Fate::Ended) => {
                let since = *now.silent.get_or_insert_with(Instant::now);
                // what an agent may have given does not come a second time by another way
                match (
                    since.elapsed() < AGENT_WAIT,
                    now.waiting.may_be_there(batch),
                ) {
                    (false, false) => self.say_plainly(name, way, now, mailbox, batch)?,
                    (false, true) if fate == Ok(Fate::Ended) => self.give_up(name, &mut now, batch),
                    _ => again,
                }
            }
            Ok(Fate::Old) if !now.waiting.may_be_there(batch) => {
                self.say_plainly(name, way, now, mailbox, batch)?
            }
            Ok(Fate::Waits | Fate::Unheard | Fate::Old) => again,
            Ok(Fate::Moved { to }) => {
                // a member of this node's cluster, whatever the other one says
                if let Some(member) = self.cluster.find(&to.address.to_string()) {
                    now.node = Some(Peer {
                        name: member.name,
                        address: member.address,
                    });
                    now.write_anew(&self.path(name))?;
                }
                LOOK_AGAIN
            }
            // what is here of it may still go on
            Ok(Fate::Gone) if self.is_listed(name, machine) => again,
            Ok(Fate::Gone) => {
                drop(now);
                self.drop_all(name, mailbox);
                Duration::ZERO
            }
            Err(why) => {
                tracing::debug!(machine = name, why, "its inputs wait for its node");
                STUCK_AGAIN
            }
        })
    }

    /// The agent that was told these inputs has ended: nobody will ever say whether its guest has got them. Gives them up, since what was
    /// typed after them would wait for ever.
    fn give_up(&self, name: &str, now: &mut Mailbox, batch: &Batch) -> Duration {
        let said = now.waiting.said();
        let number = said.map_or(batch.last(), |(_, last)| last.min(batch.last()));
        tracing::warn!(
            machine = name,
            number,
            "its agent has ended without a word on what was typed last, which may be lost"
        );
        self.taken(name, now, batch, number)
    }

    /// Gives inputs through QEMU, after they were noted as taken: so they come at most once.
    fn say_plainly(
        &self,
        name: &str,
        way: &Way,
        mut now: MutexGuard<'_, Mailbox>,
        mailbox: &Mutex<Mailbox>,
        batch: &Batch,
    ) -> Result<Duration, NodeError> {
        now.by_agent = Some(false);
        let last = batch.last();
        let line = file::line("taken", batch.from, last);
        // another host's guest outlives this one's power
        let elsewhere = matches!(way, Way::There(_));
        now.write(&self.path(name), &line, elsewhere)?;
        now.waiting.taken(self.now_ms(), batch.from, last);
        let (machine, mut buttons) = (now.machine, now.buttons);
        drop(now);
        let given = match way {
            Way::Here(entry) => entry.vm().and_then(|vm| {
                let (machines, runtime) = (&self.machines, &self.runtime);
                plain::give(machines, runtime, &vm, name, batch, &mut buttons)
            }),
            Way::There(to) => {
                let said = ForMachine {
                    plainly: Some(buttons),
                    ..ForMachine::of(name, machine, batch)
                };
                buttons = plain::buttons_after(buttons, batch);
                let fate = wire::say(&self.cluster, to, &said);
                fate.map(drop).map_err(|why| refused(why, ""))
            }
            Way::Waits | Way::Nowhere => Ok(()),
        };
        mailbox.lock().buttons = buttons;
        if let Err(error) = given {
            tracing::warn!(machine = name, %error, "an input did not reach its guest");
        }
        Ok(Duration::ZERO)
    }

    /// Notes that the guest may get these inputs now; returns which machine they are for. If that is by an agent here, a node that is
    /// killed now is followed by one that does not know it otherwise, so it is written down.
    fn note_said(
        &self,
        name: &str,
        way: &Way,
        mailbox: &mut Mailbox,
        batch: &Batch,
    ) -> Result<u64, NodeError> {
        let by_agent = match way {
            Way::Here(entry) => entry.vm().is_ok_and(|vm| {
                vm.floe_port_is_open() != Some(false) && self.agents.takes_inputs(&vm) == Some(true)
            }),
            _ => false,
        };
        if mailbox.waiting.was_said(batch) && by_agent {
            // the host's memory is enough: without it the guest is gone, too
            let line = file::line("said", batch.from, batch.last());
            mailbox.write(&self.path(name), &line, false)?;
        }
        Ok(mailbox.machine)
    }

    /// Forgets what a guest has got. Returns how long to wait until it is told of the next ones.
    fn taken(&self, name: &str, mailbox: &mut Mailbox, batch: &Batch, number: u64) -> Duration {
        let number = number.min(batch.last());
        let count = mailbox.waiting.taken(self.now_ms(), batch.from, number);
        if count > 0 {
            let line = file::line("taken", batch.from, number);
            // what is said again because this is not on the disk, the agent knows
            if let Err(error) = mailbox.write(&self.path(name), &line, false) {
                tracing::warn!(machine = name, %error, "inputs that were taken may be said again");
            }
        }
        match count {
            0 => FULL_AGAIN,
            _ => Duration::ZERO,
        }
    }

    /// Drops the inputs of a machine that is gone, and what was known of it.
    fn drop_all(&self, name: &str, mailbox: &Arc<Mutex<Mailbox>>) {
        let mut boxes = self.boxes.lock();
        let mut now = mailbox.lock();
        let count = now.waiting.len();
        tracing::warn!(
            machine = name,
            count,
            "its inputs are dropped: there is no such machine any more"
        );
        (now.waiting, now.node) = (Waiting::default(), None);
        now.stale = true;
        now.tidy(&self.path(name));
        now.is_over = true;
        drop(now);
        let is_it = |known: &Arc<Mutex<Mailbox>>| Arc::ptr_eq(known, mailbox);
        if boxes.get(name).is_some_and(is_it) {
            boxes.remove(name);
        }
    }

    fn now_ms(&self) -> u64 {
        self.core.started.elapsed().as_millis() as u64
    }
}

/// Whether a machine's CPUs stand still, for whatever reason.
fn rests(entry: &Entry) -> bool {
    entry.stands_still() || !entry.reasons().is_empty()
}
