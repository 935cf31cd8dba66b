//! Makes machines small, and gives them back what was taken from them (Wang, 3.3.2 and 3.4.1).
//!
//! ```text
//! dock --convert -> shrink -> (captured, and gone)         any failure: everything is given back
//! machine that was killed half-way, activated, woken -> its record says that it is small -> expand
//! ```
//! What is taken from a machine is in its record before it is taken ([`Small`](floe_inventory::inventory::small::Small)), and in a label of
//! an image that is captured meanwhile. Whatever machine says so in its record, and has no operation under way, is given all of
//! it back: under the node that has shrunk it or the next one, or from its image on another host. `decide` says what comes next.
//!
//! The service has no state and no lock of its own.

mod decide;
#[cfg(test)]
mod tests;

use crate::agents::{Agents, ChoreError};
use decide::{Expand, Heard, Memory, Shrink, Step};
use floe_ground::{
    error::{NodeError, failed, refused},
    report::Report,
};
use floe_guest::chores::{self, Account, Cpus, HOOK_LIMIT, HOOKS_MAX, Hooks, Settled};
use floe_inventory::{
    core::Core,
    inventory::{Entry, Inventory, Operation, is_pending, lifecycle::Task},
};
use floe_machine::{Machine, Status};
use floe_threads::Waker;
use floe_transfer::Cancel;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a guest may take to tell of its memory.
const ACCOUNT_LIMIT: Duration = Duration::from_secs(30);
/// How long it may take to write to its disks what it holds back.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
/// How long it may take to bring CPUs online, or offline.
const CPUS_LIMIT: Duration = Duration::from_secs(60);
/// How often the balloon is looked at while it moves.
const BALLOON_LOOK: Duration = Duration::from_millis(100);
/// How often it is looked at which machines are to be given something back.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long until that is tried again for a machine whose guest did not take everything.
const AGAIN: Duration = Duration::from_secs(30);

/// The service that makes machines small, and gives them back what was taken from them.
pub struct Shrinks {
    /// What all services share.
    pub core: Arc<Core>,
    /// The machines of this node.
    pub inventory: Arc<Inventory>,
    /// What the agents in guests do.
    pub agents: Arc<Agents>,
    /// Wakes the thread that gives machines back what was taken from them.
    pub waker: Waker,
}

/// A machine that is small. Dropping this gives it back what was taken from it.
pub struct MadeSmall<'a> {
    shrinks: &'a Shrinks,
    operation: &'a Operation,
    shrink: Shrink,
    is_gone: bool,
}

impl MadeSmall<'_> {
    /// Notes that the machine is gone: what it was made small for is done.
    pub fn gone(mut self) {
        self.is_gone = true;
    }
}

impl Drop for MadeSmall<'_> {
    fn drop(&mut self) {
        if self.is_gone {
            return;
        }
        self.shrink.give_up("it was not docked".into());
        self.shrinks.give_back(self.operation, &mut self.shrink);
        for note in self.shrink.notes() {
            tracing::warn!(machine = %self.operation.name, note, "is brought back");
        }
    }
}

impl Shrinks {
    /// Makes a machine small. If that fails, or nobody wants it any more, it is as it was.
    pub fn shrink<'a>(
        &'a self,
        operation: &'a Operation,
        report: &mut Report,
    ) -> Result<MadeSmall<'a>, NodeError> {
        let name = operation.name.to_string();
        let vm = operation.vm()?;
        operation.stop_buffering()?;
        if vm.status()? != Status::Running {
            return Err(refused(
                format!("{name} stands still: its guest can't prepare itself"),
                format!("floe resume {name}, or dock it live, without --convert"),
            ));
        }
        let record = operation.record();
        let (config, room) = (vm.config(), vm.room());
        let cpus = record.given.of(&config).cpus;
        let cables = vm.has_network() && !is_pending(&record);
        let given = vm.memory_given()?;
        let owed = record.small.clone();
        let mut shrink = Shrink::new(room.memory_bytes, given, cpus, cables, owed.clone());
        let began = Instant::now();
        let cancel = report.cancel();
        let mut no_agent = None;
        while shrink.why().is_none() {
            let Some(step) = shrink.step() else { break };
            let heard = match operation.becomes_small(shrink.small()) {
                _ if cancel.is_cancelled() => Heard::Failed("nobody waits for it any more".into()),
                Err(error) => Heard::Failed(error.to_string()),
                Ok(()) => self.carry_out(operation, &vm, step, &cancel, &mut no_agent),
            };
            if let Step::Look = step
                && let Heard::Balloon(actual) = heard
            {
                let taken = given.saturating_sub(actual);
                report.progress("shrink", taken, given, "bytes");
            }
            shrink.heard(began.elapsed().as_millis() as u64, heard);
        }
        let Some(why) = shrink.why().map(str::to_owned) else {
            shrink.notes().for_each(|note| report.note(note));
            report.stage("shrink")?;
            return Ok(MadeSmall {
                shrinks: self,
                operation,
                shrink,
                is_gone: false,
            });
        };
        let nothing_done = *shrink.small() == owed;
        self.give_back(operation, &mut shrink);
        shrink.notes().for_each(|note| report.note(note));
        if cancel.is_cancelled() {
            return Err(NodeError::Cancelled);
        }
        let live = format!("floe dock {name} without --convert docks it live");
        Err(match no_agent.filter(|_| nothing_done) {
            Some(error) => {
                let error = error.to_api();
                refused(
                    format!("{name} can't be made small: {}", error.message),
                    format!("{}; {live}", error.fix),
                )
            }
            None => failed(
                format!("{name} was not made small, and is as it was: {why}"),
                live,
            ),
        })
    }

    /// Gives a machine back all that was taken from it, as far as its guest takes it. Nothing happens to a machine of its own size.
    pub fn expand(&self, operation: &Operation) -> Result<(), NodeError> {
        let small = operation.record().small.clone();
        if small.is_nothing() {
            return Ok(());
        }
        let vm = operation.vm()?;
        let mut back = Expand::new(small);
        let (began, over, mut no_agent) = (Instant::now(), self.core.threads.over(), None);
        while let Some(step) = back.step() {
            if over.is_cancelled() {
                return Ok(()); // the next node goes on
            }
            let heard = self.carry_out(operation, &vm, step, over, &mut no_agent);
            back.heard(began.elapsed().as_millis() as u64, heard);
        }
        for note in &back.notes {
            tracing::warn!(machine = %operation.name, note, "is brought to its size");
        }
        operation.becomes_small(back.small())
    }

    /// Starts the thread that gives machines back what was taken from them by an earlier node, or before their images were captured.
    pub fn start_giving_back(self: &Arc<Self>) -> Result<(), NodeError> {
        let mut due = HashMap::new();
        let threads = &self.core.threads;
        let look = move |shrinks: &Arc<Shrinks>| shrinks.look_after(&mut due);
        Ok(threads.keep_waking("expand", &self.waker, self, LOOK_EVERY, look)?)
    }

    /// Looks at once for machines that are to be given something back: some have just begun to run.
    pub fn look_now(&self) {
        self.waker.wake();
    }

    /// `due` has the machines whose guests did not take everything, and when they are asked again.
    fn look_after(self: &Arc<Self>, due: &mut HashMap<String, Instant>) {
        let now = Instant::now();
        due.retain(|_, at| *at > now);
        for entry in self.inventory.all() {
            let here = {
                let state = entry.state();
                state.vm.is_some() && !state.record.small.is_nothing()
            };
            let alone = || entry.task().is_none() && entry.reasons().is_empty();
            if !here || due.contains_key(entry.name.as_str()) || !alone() {
                continue;
            }
            let Ok(operation) = entry.begin(Task::Expand) else {
                continue;
            };
            due.insert(entry.name.to_string(), now + AGAIN);
            let shrinks = self.clone();
            let work = move || {
                if let Err(error) = shrinks.expand(&operation) {
                    tracing::warn!(machine = %operation.name, %error, "is still small");
                }
            };
            if let Err(error) = self.core.threads.start("expand", work) {
                tracing::warn!(machine = %entry.name, %error, "is still small");
            }
        }
    }

    /// The way back of a machine that was to be made small.
    fn give_back(&self, operation: &Operation, shrink: &mut Shrink) {
        let (began, over, mut no_agent) = (Instant::now(), self.core.threads.over(), None);
        // if its QEMU has ended, there is nothing to be given back
        while let (Ok(vm), Some(step)) = (operation.vm(), shrink.step()) {
            if over.is_cancelled() {
                break; // it is written down, and the next node goes on
            }
            let heard = self.carry_out(operation, &vm, step, over, &mut no_agent);
            shrink.heard(began.elapsed().as_millis() as u64, heard);
        }
        if let Err(error) = operation.becomes_small(shrink.small()) {
            tracing::warn!(machine = %operation.name, %error, "its record still says that it is small");
        }
    }

    /// Does one step. `no_agent` gets the error if there is no agent that can do it. Only what may go on in the guest beside the next
    /// step is left to itself if nobody waits for it any more.
    fn carry_out(
        &self,
        entry: &Entry,
        vm: &Machine,
        step: Step,
        cancel: &Cancel,
        no_agent: &mut Option<NodeError>,
    ) -> Heard {
        let done = match step {
            Step::Account => self.account(entry, cancel),
            Step::Hooks { stop } => self.hooks(entry, stop),
            Step::Settle => {
                let (chore, limit) = (chores::names::SETTLE, SETTLE_LIMIT);
                let settled = self.agents.chore_unless(entry, chore, &[], limit, cancel);
                settled.map(|settled: Settled| {
                    if let Some(why) = settled.kept {
                        tracing::info!(machine = %entry.name, why, "its guest keeps its caches");
                    }
                    Heard::Done
                })
            }
            Step::Cpus(count) => {
                let (chore, count) = (chores::names::CPUS, count.to_string());
                let cpus = self.agents.chore(entry, chore, &[&count], CPUS_LIMIT);
                cpus.map(|cpus: Cpus| match cpus.refused.first() {
                    None => Heard::Done,
                    Some(refused) => {
                        let (cpu, why) = (&refused.what, &refused.why);
                        Heard::Failed(format!("its guest's kernel keeps {cpu} as it is: {why}"))
                    }
                })
            }
            Step::Balloon { bytes } => return heard(vm.ask_for_memory(bytes)),
            // who it is, is not in place yet: then it gets its network
            Step::Cables { up: true } if is_pending(&entry.record()) => return Heard::Done,
            Step::Cables { up } => return heard(vm.set_network(up)),
            Step::Look => {
                cancel.sleep(BALLOON_LOOK);
                return match vm.memory_given() {
                    Ok(bytes) => Heard::Balloon(bytes),
                    Err(error) => Heard::Failed(error.to_string()),
                };
            }
        };
        done.unwrap_or_else(|error| {
            let why = error.to_string();
            if let ChoreError::Agent(error) = error {
                *no_agent = Some(error);
            }
            Heard::Failed(why)
        })
    }

    fn account(&self, entry: &Entry, cancel: &Cancel) -> Result<Heard, ChoreError> {
        let (chore, limit) = (chores::names::ACCOUNT, ACCOUNT_LIMIT);
        let said: Account = self.agents.chore_unless(entry, chore, &[], limit, cancel)?;
        tracing::debug!(machine = %entry.name, ?said, "its guest's memory");
        Ok(Heard::Memory(Memory {
            total: said.total,
            available: said.available,
            kills: said.kills,
        }))
    }

    fn hooks(&self, entry: &Entry, stop: bool) -> Result<Heard, ChoreError> {
        let word = if stop { "stop" } else { "start" };
        let limit = HOOK_LIMIT * (HOOKS_MAX as u32 + 1);
        let hooks: Hooks = self
            .agents
            .chore(entry, chores::names::HOOKS, &[word], limit)?;
        let mut failed = Vec::new();
        for hook in hooks.ran.into_iter().take(HOOKS_MAX) {
            tracing::info!(machine = %entry.name, hook = hook.name, word, failed = ?hook.why, "hook");
            if let Some(why) = hook.why {
                failed.push(format!("the hook {} failed to {word}: {why}", hook.name));
            }
        }
        Ok(Heard::Hooks(failed))
    }
}

fn heard<E: std::fmt::Display>(done: Result<(), E>) -> Heard {
    match done {
        Ok(()) => Heard::Done,
        Err(error) => Heard::Failed(error.to_string()),
    }
}
