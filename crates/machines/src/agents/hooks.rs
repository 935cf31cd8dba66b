//! Hooks in guests: programs of a machine's owner that are called before the machine is captured, forked or parked, and once it goes on
//! ([`floe_guest::chores::HOOKS_DIR`]).
//!
//! ```text
//! freeze -> (the machine stands still, its state is taken) -> thaw, whatever came of it
//! its agent says that a thaw is owed, in a copy or after a node was killed -> thaw
//! ```
//! Agents say beforehand whether there are any, so that a machine without hooks waits for nothing in its guest.

use super::{Agents, ChoreError, is_of};
use floe_api::{HOOKS_S_DEFAULT, HOOKS_S_MAX};
use floe_ground::{
    error::{NodeError, busy, refused, usage},
    report::Report,
};
use floe_guest::chores::{HOOKS_DIR, HOOKS_MAX, Hooks, Ran, names};
use floe_inventory::inventory::Entry;
use floe_machine::Machine;
use floe_threads::from_now;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};

/// How long a guest may take, beside its hooks, for the program that calls them.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a thread that is to thaw hooks waits while another thread has them. Whoever has them for longer has frozen them, and thaws them
/// itself.
const TAKEN_WAIT: Duration = Duration::from_secs(30);
/// How many characters of what a guest says of one hook are told.
const TOLD_CHARS_MAX: usize = 300;

/// What is known of a guest's hooks.
pub(super) struct Hooked {
    /// The QEMU in whose guest they are.
    of: Weak<Machine>,
    /// Whether there are any.
    any: bool,
    /// Whether somebody has them: they are being called, or were frozen and will be thawed by whoever froze them.
    taken: bool,
    /// Whether a thread waits for them to thaw them.
    awaited: bool,
}

/// The hooks of a machine that is about to stand still. Dropping this thaws them if they were frozen.
pub struct Frozen {
    agents: Arc<Agents>,
    entry: Arc<Entry>,
    /// The QEMU in whose guest they were taken.
    of: Weak<Machine>,
    what: &'static str,
    limit: Duration,
    /// Whether they are to be thawed.
    owed: bool,
}

impl Frozen {
    /// Thaws the hooks of a machine that goes on; what fails is only told.
    pub fn thaw(mut self, report: &Report) {
        self.tell().into_iter().for_each(|why| report.note(why));
    }

    /// The machine is gone, and its hooks with it.
    pub fn gone(mut self) {
        self.owed = false;
    }

    /// Returns what failed.
    fn tell(&mut self) -> Vec<String> {
        match std::mem::take(&mut self.owed) {
            true => self.agents.thaw(&self.entry, self.what, self.limit),
            false => Vec::new(),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for why in self.tell() {
            tracing::warn!(machine = %self.entry.name, why, "not all of its hooks are thawed");
        }
        if let Some(vm) = self.of.upgrade() {
            self.agents.give_hooks_back(&vm);
        }
    }
}

impl Agents {
    /// Notes whether a guest has hooks, as its agent says.
    pub fn has_hooks(&self, vm: &Arc<Machine>, any: bool) {
        let mut known = self.hooked.lock();
        known.retain(|hooked| hooked.of.strong_count() > 0);
        match known.iter_mut().find(|hooked| is_of(&hooked.of, vm)) {
            Some(hooked) => hooked.any = any,
            None => known.push(Hooked {
                of: Arc::downgrade(vm),
                any,
                taken: false,
                awaited: false,
            }),
        }
    }

    /// Calls the hooks in a machine's guest with `freeze`, before the machine stands still for `what`. `hooks_s`: how many seconds they may
    /// take, 0 for no hooks. If one fails, those before it are thawed, and the error says which. Nothing is done in a guest without hooks,
    /// or without an agent that knows them.
    pub fn freeze(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        what: &'static str,
        hooks_s: Option<u32>,
        report: &Report,
    ) -> Result<Frozen, NodeError> {
        let limit_s = hooks_s.unwrap_or(HOOKS_S_DEFAULT);
        if limit_s > HOOKS_S_MAX {
            let message = format!("hooks may take at most {HOOKS_S_MAX} s");
            return Err(usage(
                message,
                format!("they have {HOOKS_S_DEFAULT} s by default"),
            ));
        }
        let mut frozen = Frozen {
            agents: self.clone(),
            entry: entry.clone(),
            of: Weak::new(),
            what,
            limit: Duration::from_secs(limit_s.into()),
            owed: false,
        };
        let vm = entry.vm()?;
        if limit_s == 0 || !self.any_hooks(entry, &vm) {
            return Ok(frozen);
        }
        let name = &entry.name;
        entry.stop_buffering()?;
        if !entry.reasons().is_empty() {
            report.note(format!(
                "{name} stands still: its hooks are not run before the {what}"
            ));
            return Ok(frozen);
        }
        if !self.take_hooks(&vm, frozen.limit) {
            return Err(busy(
                format!("the hooks of {name} are still told that it goes on"),
                format!("try again once they have ended, or leave them out: floe {what} --hooks 0"),
            ));
        }
        frozen.of = Arc::downgrade(&vm);
        drop(vm);
        // those that were called before one fails are thawed by the guest itself, which may take as long again
        let called = self.call_hooks(entry, "freeze", what, frozen.limit, 2 * frozen.limit);
        let hooks = called.map_err(|error| {
            // they may have been called
            frozen.owed = matches!(error, ChoreError::Unfinished(_));
            refused(
                format!("the hooks of {name} were not run before the {what}: {error}"),
                format!(
                    "look at {HOOKS_DIR} in the guest, or leave them out: floe {what} --hooks 0"
                ),
            )
        })?;
        frozen.owed = hooks.ran.iter().all(|ran| ran.why.is_none());
        if frozen.owed {
            return Ok(frozen);
        }
        for why in failures(entry, "thaw", hooks.undone) {
            report.note(why);
        }
        let why = failures(entry, "freeze", hooks.ran).join("; ");
        Err(refused(
            format!("no {what} of {name}: {why}"),
            format!(
                "look at {HOOKS_DIR} in the guest, or leave its hooks out: floe {what} --hooks 0"
            ),
        ))
    }

    /// Thaws hooks whose thaw is owed, unless another thread is about to. Returns what failed.
    pub fn thaw_owed(&self, entry: &Entry, vm: &Arc<Machine>, what: &str) -> Vec<String> {
        // a guest may say so as often as it likes
        if !self.hooks_are_awaited(vm, true) {
            return Vec::new();
        }
        let taken = self.take_hooks(vm, TAKEN_WAIT);
        self.hooks_are_awaited(vm, false);
        if !taken {
            return Vec::new();
        }
        let limit = Duration::from_secs(HOOKS_S_DEFAULT.into());
        let failed = self.thaw(entry, what, limit);
        self.give_hooks_back(vm);
        failed
    }

    fn thaw(&self, entry: &Entry, what: &str, limit: Duration) -> Vec<String> {
        match self.call_hooks(entry, "thaw", what, limit, limit) {
            Ok(hooks) => failures(entry, "thaw", hooks.ran),
            Err(error) => {
                let name = &entry.name;
                vec![format!(
                    "the hooks of {name} were not told that it goes on: {error}"
                )]
            }
        }
    }

    /// Calls a guest's hooks, which may take `limit` together; the guest may take longer with what follows them.
    fn call_hooks(
        &self,
        entry: &Entry,
        word: &str,
        what: &str,
        limit: Duration,
        with_all: Duration,
    ) -> Result<Hooks, ChoreError> {
        let limit_ms = limit.as_millis().to_string();
        let words = [word, what, &limit_ms];
        self.chore(entry, names::HOOKS, &words, with_all + START_LIMIT)
    }

    /// Whether a guest has hooks. An agent that has opened its port and was not heard yet, as after a node's start, is waited for a moment
    /// if it can answer.
    fn any_hooks(&self, entry: &Entry, vm: &Arc<Machine>) -> bool {
        let known = || {
            let hooked = self.hooked.lock();
            let its = hooked.iter().find(|hooked| is_of(&hooked.of, vm));
            its.map(|hooked| hooked.any)
        };
        let may_answer = || vm.floe_port_is_open() == Some(true) && entry.reasons().is_empty();
        if known().is_none() && may_answer() {
            let _ = self.check(entry); // an agent that does not answer has told of no hooks
        }
        known().unwrap_or_default()
    }

    /// Takes a guest's hooks, so that nobody else calls them. Waits at most `wait` while somebody else has them; returns false if that was
    /// not long enough, or if the guest has none.
    fn take_hooks(&self, vm: &Arc<Machine>, wait: Duration) -> bool {
        let until = from_now(wait);
        let mut known = self.hooked.lock();
        loop {
            match known.iter_mut().find(|hooked| is_of(&hooked.of, vm)) {
                None => return false,
                Some(hooked) if !hooked.taken => {
                    hooked.taken = true;
                    return true;
                }
                Some(_) => {}
            }
            if self
                .hooks_given_back
                .wait_until(&mut known, until)
                .timed_out()
            {
                return false;
            }
        }
    }

    /// Notes whether a thread waits for a guest's hooks to thaw them. Returns whether that is new.
    fn hooks_are_awaited(&self, vm: &Arc<Machine>, awaited: bool) -> bool {
        let mut known = self.hooked.lock();
        let its = known.iter_mut().find(|hooked| is_of(&hooked.of, vm));
        its.is_some_and(|hooked| std::mem::replace(&mut hooked.awaited, awaited) != awaited)
    }

    fn give_hooks_back(&self, vm: &Arc<Machine>) {
        let mut known = self.hooked.lock();
        if let Some(hooked) = known.iter_mut().find(|hooked| is_of(&hooked.of, vm)) {
            hooked.taken = false;
        }
        drop(known);
        self.hooks_given_back.notify_all();
    }
}

/// Returns in words which hooks failed and why.
fn failures(entry: &Entry, word: &str, ran: Vec<Ran>) -> Vec<String> {
    let told = |text: String| text.chars().take(TOLD_CHARS_MAX).collect::<String>();
    let failed = ran.into_iter().take(HOOKS_MAX).filter_map(|ran| {
        let (hook, why) = (told(ran.name), told(ran.why?));
        tracing::info!(machine = %entry.name, hook, word, why, "a hook failed");
        Some(format!("its hook {hook} failed to {word}: {why}"))
    });
    failed.collect()
}
