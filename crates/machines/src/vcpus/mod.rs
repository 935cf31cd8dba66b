//! Where the vCPUs of machines run: those of one machine apart and abreast, by affinities and nice values (`docs/cpu-scheduling-user.md`).
//!
//! `floe_sched::cpu::user` decides, without I/O. Here is what it sees and does: `threads` reads what the kernel tells of QEMU's threads and
//! changes them, `kept` is a file with what is to be undone, written before anything is done. So vCPUs are as before when the node ends;
//! after one that was killed the next node sees to that, whatever it was told to do itself. Control groups are left alone: quotas are
//! theirs.
//!
//! Where the host can have floe's scheduler in its kernel (`kernel`), that keeps them apart and abreast, and nothing is changed from here.
//!
//! Without `--cpu-sched` no thread runs, and nothing is looked at but when somebody asks for figures.
//!
//! Locks: which threads machines have, held while QEMUs are asked and threads are looked at; then what was decided, held while that is
//! carried out; then the scheduler in the kernel.

mod kept;
mod kernel;
mod threads;

pub use threads::run_and_wait_ns;

use floe_api::{CpuSched, SchedActing, SchedMachine, SchedReport};
use floe_ground::{error::NodeError, news::News};
use floe_inventory::{
    core::Core,
    inventory::{Entry, Inventory},
};
use floe_machine::Machine;
use floe_sched::cpu::user::{
    Acting, MachineSample, MachineStatus, Mode, Notice, Outcome, Sample, Standing, Step,
    ThreadSample, User,
};
use floe_scx::{Fares, ScxError};
use kept::Kept;
use kernel::Kernel;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

/// How often a QEMU is asked for its threads though nothing has changed, or though it did not answer the last time.
const ASK_EVERY: Duration = Duration::from_secs(60);

/// How often the scheduler in the kernel is told who is a vCPU, at least.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The service that looks after vCPUs.
pub struct Vcpus {
    core: Arc<Core>,
    inventory: Arc<Inventory>,
    began: Instant,
    known: Mutex<Known>,
    state: Mutex<State>,
    /// The scheduler in the kernel, while it is in force.
    kernel: Mutex<Option<Kernel>>,
}

/// Which threads machines have.
#[derive(Default)]
struct Known {
    machines: Vec<Its>,
    next_key: u64,
}

/// A machine's threads, as its QEMU has said.
struct Its {
    key: u64,
    vm: Weak<Machine>,
    tids: Vec<u32>,
    /// How many vCPUs it had then.
    cpus: u32,
    asked: Instant,
    /// Whether it did not answer then. Asking one that hangs takes long, and meanwhile nobody else's vCPUs are looked at.
    silent: bool,
}

/// What was decided.
struct State {
    user: User,
    kept: Kept,
    /// The machines' names by their keys, as of the last look.
    names: BTreeMap<u64, String>,
    /// What was last said, while it holds.
    why: String,
    /// Processor time that looking has cost so far.
    own: Duration,
    /// Whether the node ends: nothing is done any more.
    over: bool,
}

fn mode(asked: CpuSched) -> Mode {
    match asked {
        CpuSched::Off => Mode::Off,
        CpuSched::Balance => Mode::Balance,
        CpuSched::Sbco => Mode::Sbco,
    }
}

/// Processor time that this thread has used.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Vcpus {
    /// Creates the service. What a node that was killed has changed is undone.
    pub fn open(core: Arc<Core>, inventory: Arc<Inventory>) -> Result<Arc<Vcpus>, NodeError> {
        let kept = Kept::open(core.home.run().join("vcpus.json"))?;
        let user = User::new(mode(core.options.cpu_sched));
        Ok(Arc::new(Vcpus {
            core,
            inventory,
            began: Instant::now(),
            known: Mutex::default(),
            state: Mutex::new(State {
                user,
                kept,
                names: BTreeMap::new(),
                why: String::new(),
                own: Duration::ZERO,
                over: false,
            }),
            kernel: Mutex::new(None),
        }))
    }

    /// Starts the thread that looks after vCPUs, if it is to do anything.
    pub fn start_looking_after(self: &Arc<Self>) -> Result<(), NodeError> {
        if self.core.options.cpu_sched == CpuSched::Off {
            return Ok(());
        }
        if self.load() {
            let (here, over) = (Arc::downgrade(self), self.core.threads.over().clone());
            let work = move || {
                // until the node ends, or the scheduler has
                while let Some(here) = here.upgrade() {
                    let Some(next) = here.kernel.lock().as_ref().map(Kernel::unpark) else {
                        return;
                    };
                    drop(here);
                    if !over.sleep(next) {
                        return;
                    }
                }
            };
            self.core.threads.keep_running("quotas", work)?;
        }
        let (here, over) = (Arc::downgrade(self), self.core.threads.over().clone());
        let work = move || {
            loop {
                let Some(here) = here.upgrade() else {
                    return;
                };
                let next = here.look();
                drop(here);
                if !over.sleep(next) {
                    return;
                }
            }
        };
        Ok(self.core.threads.keep_running("vcpus", work)?)
    }

    /// Puts the scheduler in the kernel in force if the host can have it. Returns whether it is; if not, vCPUs are looked after from here.
    fn load(&self) -> bool {
        let loaded = Kernel::load(self.core.options.cpu_sched);
        let mut state = self.state.lock();
        match loaded {
            Ok(kernel) => {
                // from here nothing is done but looking
                state.user = User::new(Mode::Off);
                self.say(
                    &mut state,
                    "floe's scheduler is in the kernel (sched_ext)".into(),
                );
                *self.kernel.lock() = Some(kernel);
                true
            }
            // most kernels: floe doctor says so
            Err(ScxError::Absent) => false,
            Err(error) => {
                self.say(
                    &mut state,
                    format!("by affinities and nice values: {error}"),
                );
                false
            }
        }
    }

    fn say(&self, state: &mut State, text: String) {
        state.why.clone_from(&text);
        self.core.tell("cpu-sched", &News::Vcpus(text));
    }

    /// Tells the scheduler in the kernel whose threads are vCPUs. If it has ended, vCPUs are looked after from here. Returns whether it is in
    /// force.
    fn tell_kernel(&self, state: &mut State, threads: &BTreeMap<u64, Vec<u32>>) -> bool {
        let mut kernel = self.kernel.lock();
        let Some(told) = kernel.as_mut().map(|kernel| kernel.tell(threads)) else {
            return false;
        };
        let Err(error) = told else {
            return true;
        };
        *kernel = None;
        state.user = User::new(mode(self.core.options.cpu_sched));
        self.say(state, format!("by affinities and nice values: {error}"));
        false
    }

    /// Undoes everything, for good: the node ends.
    pub fn end(&self) {
        *self.kernel.lock() = None;
        let mut state = self.state.lock();
        state.over = true;
        let actions = state.user.undo();
        let step = Step {
            actions,
            ..Step::default()
        };
        self.carry_out(&mut state, step);
    }

    /// Looks at all vCPUs once and does what follows. Returns when to look again.
    fn look(&self) -> Duration {
        let before = used();
        let mut known = self.known.lock();
        let (machines, unseen, names) = known.look(&self.inventory);
        let its = known.machines.iter();
        let threads = its.map(|its| (its.key, its.tids.clone())).collect();
        let mut state = self.state.lock();
        drop(known);
        if state.over {
            return Duration::MAX;
        }
        let sample = Sample {
            now_us: self.began.elapsed().as_micros() as u64,
            own_us: state.own.as_micros() as u64,
            machines,
            unseen,
        };
        state.names = names;
        let in_kernel = self.tell_kernel(&mut state, &threads);
        let step = state.user.sample(&sample);
        let next = Duration::from_micros(step.next_us);
        self.carry_out(&mut state, step);
        state.own += used().saturating_sub(before);
        match in_kernel {
            true => next.min(TELL_EVERY),
            false => next,
        }
    }

    /// Does what was decided, once it is written down how that is undone.
    fn carry_out(&self, state: &mut State, step: Step) {
        let mut notices = step.notices;
        let held = state.user.held();
        let kept = state.kept.write(held);
        if let Err(error) = &kept {
            tracing::warn!(%error, "vCPUs stay where they are: it can't be written down how they were before");
        }
        for action in &step.actions {
            let (steps, outcome) = match kept {
                Ok(()) => threads::carry_out(action),
                Err(_) => (0, Outcome::Later),
            };
            notices.extend(state.user.done(action, steps, outcome));
        }
        // what was undone need not be known any more; if that can't be written, it is undone once more by the next node
        if kept.is_ok()
            && !step.actions.is_empty()
            && let Err(error) = state.kept.write(state.user.held())
        {
            tracing::warn!(%error, "what was changed about vCPUs is not written down anew");
        }
        for notice in notices {
            self.tell(state, notice);
        }
    }

    fn tell(&self, state: &mut State, notice: Notice) {
        let text = notice.to_string();
        match notice {
            Notice::LeftAlone(key) => {
                if let Some(name) = state.names.get(&key) {
                    self.core.tell(name, &News::VcpusLeft(text));
                }
            }
            _ => {
                state.why = match notice {
                    Notice::Resumed => String::new(),
                    _ => text.clone(),
                };
                self.core.tell("cpu-sched", &News::Vcpus(text));
            }
        }
    }

    /// Returns how the vCPUs of all machines fare. A node that does not look after them looks now: rates are since the last call.
    pub fn report(&self) -> SchedReport {
        if self.core.options.cpu_sched == CpuSched::Off {
            self.look();
        }
        let state = self.state.lock();
        let status = state.user.status();
        let kernel = self.kernel.lock();
        let ledger = kernel.as_ref().map(Kernel::ledger);
        let machines = status.machines.iter();
        let machines = machines.filter_map(|(key, one)| {
            let fares = kernel.as_ref().and_then(|kernel| kernel.fares(*key));
            Some(machine(state.names.get(key)?.clone(), one, fares))
        });
        let mut machines: Vec<SchedMachine> = machines.collect();
        machines.sort_by(|one, other| one.name.cmp(&other.name));
        SchedReport {
            order: self.core.options.cpu_sched,
            acting: match status.acting {
                _ if ledger.is_some() => SchedActing::Acts,
                Acting::Off => SchedActing::Off,
                Acting::Acts => SchedActing::Acts,
                Acting::Tries => SchedActing::Tries,
                Acting::DoesNotHelp => SchedActing::DoesNotHelp,
                Acting::Costly => SchedActing::Costly,
                Acting::Refused => SchedActing::Refused,
            },
            why: state.why.clone(),
            lends: status.lends || ledger.is_some(),
            moves: ledger.map_or(status.moves, |ledger| ledger.moved),
            loans: ledger.map_or(status.loans, |ledger| ledger.loans),
            own_cpu_pct: status.own_cpu_pct,
            machines,
        }
    }
}

fn machine(name: String, status: &MachineStatus, fares: Option<Fares>) -> SchedMachine {
    let percent = |part: f64| 100.0 * part;
    let why = match status.standing {
        Standing::Kept => "",
        Standing::Single => "one thread runs all of its vCPUs",
        Standing::OneCore => "it may use one core only",
        Standing::Foreign => "somebody else has set affinities or nice values of its vCPUs",
        Standing::Failed => "its affinities could not be set, see the node's log",
    };
    SchedMachine {
        name,
        vcpus: status.vcpus,
        apart: status.apart || fares.is_some(),
        stacking_pct: match fares {
            Some(fares) => fares.stacking_pct(),
            None => status.stacking.map(percent),
        },
        // nobody outside of the kernel sees run queues
        distance: fares.and_then(|fares| fares.distance()),
        lag_ms: status.lag_us.map(|us| us as f64 / 1e3),
        steal_pct: status.steal.map(percent),
        borrowing: status.loans,
        why: why.into(),
    }
}

impl Known {
    /// Looks at the vCPUs of all machines. Returns what was seen, which machines could not be looked at, and the names of all.
    fn look(
        &mut self,
        inventory: &Inventory,
    ) -> (Vec<MachineSample>, Vec<u64>, BTreeMap<u64, String>) {
        let (mut samples, mut unseen) = (Vec::new(), Vec::new());
        let (mut names, mut still) = (BTreeMap::new(), Vec::new());
        for entry in inventory.all() {
            let Some(vm) = entry.state().vm.clone() else {
                continue;
            };
            let its = |known: &Its| std::ptr::eq(known.vm.as_ptr(), Arc::as_ptr(&vm));
            let earlier = self.machines.iter().position(its);
            let mut known = match earlier {
                Some(at) => self.machines.swap_remove(at),
                None => Its::new(&mut self.next_key, &vm),
            };
            known.asks(&entry, &vm, earlier.is_none());
            names.insert(known.key, entry.name.as_str().to_owned());
            let key = known.key;
            match known.threads() {
                Ok(threads) => samples.push(MachineSample { key, threads }),
                Err(error) => {
                    tracing::debug!(machine = %entry.name, %error, "its vCPUs can't be looked at");
                    unseen.push(key);
                }
            }
            still.push(known);
        }
        self.machines = still;
        (samples, unseen, names)
    }
}

impl Its {
    fn new(next_key: &mut u64, vm: &Arc<Machine>) -> Its {
        *next_key += 1;
        Its {
            key: *next_key,
            vm: Arc::downgrade(vm),
            tids: Vec::new(),
            cpus: 0,
            asked: Instant::now(),
            silent: false,
        }
    }

    /// Asks QEMU for its threads if they may be others than before. If it does not answer, they are taken to be the same.
    fn asks(&mut self, entry: &Entry, vm: &Machine, is_new: bool) {
        let cpus = vm.config().cpus_now().unwrap_or_default();
        let due = is_new || self.tids.is_empty() || cpus != self.cpus;
        if (!due || self.silent) && self.asked.elapsed() < ASK_EVERY {
            return;
        }
        let answer = vm.vcpu_threads();
        (self.asked, self.silent) = (Instant::now(), answer.is_err());
        match answer {
            Ok(mut tids) => {
                // with emulation one thread may run several
                tids.sort_unstable();
                tids.dedup();
                (self.tids, self.cpus) = (tids, cpus);
            }
            Err(error) => {
                tracing::debug!(machine = %entry.name, %error, "its QEMU does not tell its threads");
            }
        }
    }

    /// Looks at its threads. Those that have ended are asked for again at the next look, as are all if one can't be looked at: it may
    /// still be there, and be held.
    fn threads(&mut self) -> io::Result<Vec<ThreadSample>> {
        let looks: Vec<io::Result<Option<ThreadSample>>> =
            self.tids.iter().map(|tid| threads::look(*tid)).collect();
        if looks.iter().any(|look| !matches!(look, Ok(Some(_)))) {
            // a number of vCPUs that no machine has
            self.cpus = u32::MAX;
        }
        let seen: io::Result<Vec<Option<ThreadSample>>> = looks.into_iter().collect();
        Ok(seen?.into_iter().flatten().collect())
    }
}
