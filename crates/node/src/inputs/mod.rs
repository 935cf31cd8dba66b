//! What users do at a machine, kept until its guest has got it: wherever the machine goes meanwhile, in order and each once (AMPhone,
//! section 5.4).
//!
//! ```text
//! typed -> file of the machine -> here: the guest's agent         `agents`
//!                                 there: the node that has it     `wire`
//! ```
//! An input is answered once it is on the disk. A thread for each machine with inputs that wait says them, the next ones when those before
//! are taken; what is said, when and again is decided without I/O in [`decide`]. A machine that stands still, is parked or travels gets them
//! when it goes on. One that was moved to another node gets them through that: it gives them to its agent and passes the answer on, and
//! keeps nothing, so that what waits is in one place, with the node that its user speaks to.
//!
//! A guest whose agent takes no inputs, or that has none, gets them through QEMU's own devices: each at most once, since QEMU doesn't say
//! what has become of them. They are noted as taken before.
//!
//! The files hold what users type, passwords too: only the node's user can read them, and what a guest has got is gone from them a moment
//! after nothing waits for it any more.
//!
//! Locks: the list of machines, for an instant; then one machine's inputs, also while its file is written.

mod decide;
mod file;
mod plain;
mod request;
mod wire;

pub(crate) use wire::{Fate, ForMachine};

use crate::{
    agents::{Agents, Given},
    caller::FromMember,
    cluster::Cluster,
    core::Core,
    error::{NodeError, at, busy, refused, usage},
    files::{load_one, make_private_dir, replace_file},
    inventory::{Entry, Inventory, turn::Peer},
    machines::Machines,
};
use decide::{Next, Unkept, Waiting};
use floe_api::{ErrorCode, TypeReport, TypeRequest};
use floe_guest::input::Inputs as Batch;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
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
/// When a file is written anew, in bytes, though something waits.
const FILE_BYTES_LONG: u64 = 8 << 20;
/// Of how many machines something is kept: inputs that wait, or where they are.
const MACHINES_MAX: usize = 1024;
/// How long nothing is said to a machine that stands still, or that nobody knows the way to, until it is tried again. Nothing tells of all
/// that may end that.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The same for a guest that has not taken the last ones yet.
const FULL_AGAIN: Duration = Duration::from_millis(20);
/// The same for one that can't be given them.
const STUCK_AGAIN: Duration = Duration::from_secs(2);
/// How often files are looked at that say what is over: not with each key that a guest has got, which would take as long as to keep it.
const TIDY_EVERY: Duration = Duration::from_secs(2);
/// How long an agent may be silent while its guest runs until it is taken for one that is not there.
const AGENT_WAIT: Duration = Duration::from_secs(20);

/// The service that keeps inputs.
pub(crate) struct Inputs {
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

/// What is kept of one machine.
#[derive(Default)]
struct Mailbox {
    /// When the machine was made, by which it is known: its name may be another's later.
    machine: u64,
    /// Where it is if it was moved from here.
    node: Option<Peer>,
    waiting: Waiting,
    /// Whether a thread looks after it.
    is_served: bool,
    /// How long its file is; `None` if there is none that could be written on.
    length: Option<u64>,
    /// Whether its file says what is over.
    stale: bool,
    /// Since when its agent has been silent while it ran.
    silent: Option<Instant>,
    /// Whether its agent takes inputs; `None` if that is not known.
    by_agent: Option<bool>,
    /// What its pointer's buttons were when QEMU was told last.
    buttons: u8,
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
        Ok(Arc::new(Inputs {
            core,
            cluster,
            inventory,
            agents,
            machines,
            runtime,
            dir,
            boxes: Mutex::new(boxes),
        }))
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
                    inputs.tidy(&name, &mut mailbox);
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
        let typed = request::kept_of(request)?;
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
            self.write(name, &mut kept, &lines, true)?;
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
            self.write_anew(name, &mut mailbox)
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
        if !entry.turn().is_some_and(|turn| turn.is_here()) || entry.stands_still() {
            return Ok(Fate::Waits);
        }
        let Ok(vm) = entry.vm() else {
            return Ok(Fate::Waits);
        };
        entry.has_input();
        Ok(match self.agents.give(&vm, &inputs) {
            Given::Taken(number, why) => Fate::Taken { number, why },
            Given::Unheard => Fate::Unheard,
            Given::Silent => Fate::Waits,
            Given::Old => Fate::Taken {
                number: 0,
                why: Some("its agent takes no inputs".into()),
            },
        })
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
        let mailbox = Arc::new(Mutex::new(Mailbox {
            machine: machine.unwrap_or_default(),
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
            self.tidy(&oldest, &mut mailbox);
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

    /// Writes lines at the end of a machine's file, to the disk if they are to survive the host as well as the node.
    fn write(
        &self,
        name: &str,
        mailbox: &mut Mailbox,
        lines: &str,
        durable: bool,
    ) -> Result<(), NodeError> {
        if mailbox.length.is_none_or(|length| length > FILE_BYTES_LONG) {
            self.write_anew(name, mailbox)?;
        }
        let path = self.path(name);
        let length = mailbox.length.take();
        mailbox.stale = true;
        let append = || {
            let mut file = OpenOptions::new().append(true).open(&path)?;
            file.write_all(lines.as_bytes())?;
            if durable { file.sync_data() } else { Ok(()) }
        };
        append().map_err(at(format!("cannot write {}", path.display())))?;
        // if it could not be written, half a line may be there: it is written anew the next time
        mailbox.length = length.map(|length| length + lines.len() as u64);
        Ok(())
    }

    /// Replaces a machine's file by one that says what is the case now.
    fn write_anew(&self, name: &str, mailbox: &mut Mailbox) -> Result<(), NodeError> {
        let path = self.path(name);
        mailbox.length = None;
        let waiting = &mailbox.waiting;
        let (node, said) = (mailbox.node.as_ref(), waiting.said());
        let text = file::text(mailbox.machine, node, said, waiting.all());
        replace_file(&path, text.as_bytes())?;
        mailbox.length = Some(text.len() as u64);
        mailbox.stale = false;
        Ok(())
    }

    /// Forgets what was taken, now that nothing waits.
    fn tidy(&self, name: &str, mailbox: &mut Mailbox) {
        let path = self.path(name);
        let done = match (&mailbox.node, mailbox.stale) {
            (_, false) => Ok(()),
            (Some(_), true) => self.write_anew(name, mailbox),
            (None, true) => {
                (mailbox.length, mailbox.stale) = (None, false);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                    done => done.map_err(at(format!("cannot remove {}", path.display()))),
                }
            }
        };
        if let Err(error) = done {
            tracing::warn!(machine = name, %error, "what its users did stays on the disk");
        }
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
        let done = match way {
            Way::Waits => {
                // a silence counts only while it runs
                mailbox.lock().silent = None;
                return Some(LOOK_AGAIN);
            }
            Way::Nowhere => {
                self.drop_all(name, mailbox);
                return Some(Duration::ZERO);
            }
            Way::Here(entry) => self.say_here(name, &entry, mailbox, &batch),
            Way::There(to) => self.say_there(name, &to, mailbox, &batch),
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
                // it may be this node's only in name, and forgotten in a moment
                let is_here = entry.turn().is_none_or(|turn| turn.is_here());
                match is_here && !entry.stands_still() && entry.vm().is_ok() {
                    true => Way::Here(entry),
                    false => Way::Waits,
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

    fn say_here(
        &self,
        name: &str,
        entry: &Arc<Entry>,
        mailbox: &Arc<Mutex<Mailbox>>,
        batch: &Batch,
    ) -> Result<Duration, NodeError> {
        let Ok(vm) = entry.vm() else {
            return Ok(LOOK_AGAIN);
        };
        let takes = self.agents.takes_inputs(&vm);
        if takes == Some(true) {
            self.note_said(name, &mut mailbox.lock(), batch)?;
            let given = self.agents.give(&vm, batch);
            let mut now = mailbox.lock();
            match given {
                Given::Taken(number, why) => {
                    (now.silent, now.by_agent) = (None, Some(true));
                    return Ok(self.taken(name, &mut now, batch, number, why));
                }
                Given::Unheard => now.silent = None,
                Given::Silent | Given::Old => now.waiting.was_not_said(),
            }
            return Ok(LOOK_AGAIN);
        }
        let mut now = mailbox.lock();
        let since = *now.silent.get_or_insert_with(Instant::now);
        let is_there = takes.is_none() && vm.has_floe_port() && since.elapsed() < AGENT_WAIT;
        // what an agent may have given does not come a second time by another way
        if is_there || now.waiting.may_be_there(batch) || entry.stands_still() {
            return Ok(LOOK_AGAIN);
        }
        now.by_agent = Some(false);
        let last = batch.last();
        self.write(
            name,
            &mut now,
            &file::line("taken", batch.from, last),
            false,
        )?;
        now.waiting.taken(self.now_ms(), batch.from, last);
        let mut buttons = now.buttons;
        drop(now);
        let done = plain::give(
            &self.machines,
            &self.runtime,
            &vm,
            name,
            batch,
            &mut buttons,
        );
        mailbox.lock().buttons = buttons;
        if let Err(error) = done {
            tracing::warn!(machine = name, %error, "an input did not reach its guest");
        }
        Ok(Duration::ZERO)
    }

    fn say_there(
        &self,
        name: &str,
        to: &Peer,
        mailbox: &Arc<Mutex<Mailbox>>,
        batch: &Batch,
    ) -> Result<Duration, NodeError> {
        let machine = {
            let mut mailbox = mailbox.lock();
            mailbox.waiting.was_said(batch);
            mailbox.machine
        };
        let said = ForMachine::of(name, machine, batch);
        let fate = wire::say(&self.cluster, to, &said);
        let mut now = mailbox.lock();
        Ok(match fate {
            Ok(Fate::Taken { number, why }) => {
                now.by_agent = Some(true);
                self.taken(name, &mut now, batch, number, why)
            }
            Ok(Fate::Waits) => {
                now.waiting.was_not_said();
                LOOK_AGAIN
            }
            Ok(Fate::Unheard) => LOOK_AGAIN,
            Ok(Fate::Moved { to }) => {
                now.node = Some(to);
                self.write_anew(name, &mut now)?;
                LOOK_AGAIN
            }
            Ok(Fate::Gone) => {
                drop(now);
                self.drop_all(name, mailbox);
                Duration::ZERO
            }
            Err(why) => {
                tracing::debug!(machine = name, node = to.name, why, "its inputs wait");
                STUCK_AGAIN
            }
        })
    }

    /// Notes on the disk that the guest may get these inputs: a node that is killed now is followed by one that does not know it otherwise.
    fn note_said(&self, name: &str, mailbox: &mut Mailbox, batch: &Batch) -> Result<(), NodeError> {
        if mailbox.waiting.was_said(batch) {
            // the host's memory is enough: without it the guest is gone, too
            let line = file::line("said", batch.from, batch.last());
            self.write(name, mailbox, &line, false)?;
        }
        Ok(())
    }

    /// Forgets what a guest has got. Returns how long to wait until it is told of the next ones.
    fn taken(
        &self,
        name: &str,
        mailbox: &mut Mailbox,
        batch: &Batch,
        number: u64,
        why: Option<String>,
    ) -> Duration {
        let number = number.min(batch.last());
        let count = mailbox.waiting.taken(self.now_ms(), batch.from, number);
        if count > 0 {
            let line = file::line("taken", batch.from, number);
            // what is said again because this is not on the disk, the agent knows
            if let Err(error) = self.write(name, mailbox, &line, false) {
                tracing::warn!(machine = name, %error, "inputs that were taken may be said again");
            }
        }
        if let Some(why) = why {
            tracing::warn!(machine = name, why, "its guest can't be given an input");
            return STUCK_AGAIN;
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
        self.tidy(name, &mut now);
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

impl Mailbox {
    fn of(found: file::Found) -> Mailbox {
        let mut waiting = Waiting::default();
        waiting.keep(found.waiting);
        waiting.were_said(found.said);
        Mailbox {
            machine: found.machine,
            node: found.node,
            waiting,
            stale: true,
            ..Mailbox::default()
        }
    }
}
