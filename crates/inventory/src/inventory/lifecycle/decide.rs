//! Decides a machine's life. No I/O and no clock: events go in, and [`Life::next`] returns the next action until disk, QEMU
//! and life agree and everything is published.
//!
//! Reasons to stand still are a set: the machine goes on when the last one is over, whatever their order. These rules hold at
//! every moment, so that a killed node leaves nothing that the next node does not know:
//!
//! - a reason is on the disk before QEMU is told to stop for it;
//! - it is removed from the disk after QEMU was told to go on (telling a guest that runs to go on changes nothing);
//! - an event is published after what it tells of is on the disk and in QEMU.
//! - a machine is parked on the disk once its state is stored, before its QEMU ends (if it goes back to an image, that is its state); it
//!   runs on the disk before the guest of the QEMU that loaded that state executes. So it is found as one of them, never as both,
//!   whenever a node is killed.

use super::state::{Phase, Task, ends_with_its_node, is_qemus_own};
use crate::inventory::record::Wanted;
use floe_api::PauseReason;
use floe_ground::news::{Gone, News};
use std::collections::{BTreeSet, VecDeque};

/// The life of one machine.
#[derive(Clone, Debug)]
pub struct Life {
    phase: Phase,
    /// The operation under way.
    task: Option<Task>,
    reasons: BTreeSet<PauseReason>,
    /// Reasons that stop the CPUs and let them go on by themselves, as a capture does.
    itself: BTreeSet<PauseReason>,
    /// What the disk says.
    recorded: OnDisk,
    cpus: Cpus,
    /// Whether QEMU is known not to answer for now, so that it is not told to stop.
    deaf: bool,
    /// Whether QEMU waits for a page and does not answer before that has come. It is told to stop all the same, and later to go on, but
    /// nobody waits until it has: it stops the guest's clock and the other CPUs as soon as it is told, and does everything in order.
    hangs: bool,
    /// Whether the user let the machine go on: it does not buffer again until the planner's episode is over.
    spared: bool,
    /// Why it needs a node that does not answer, in words.
    orphaned: Option<String>,
    /// Why it can never go on, in words.
    lost: Option<String>,
    /// Why it has no QEMU any more, if this node saw it go.
    gone: Option<Gone>,
    /// What is to be published.
    news: VecDeque<News>,
}

/// What QEMU's CPUs do, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cpus {
    /// They were told to run, or never to stop.
    Run,
    /// QEMU did not answer when it was told to stop or to go on: it may still do so, or not.
    Unknown,
    /// They were stopped.
    Stand,
}

/// What a machine's record says of its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// What a node that starts is to do with it.
    pub wanted: Wanted,
    /// Why it stands still.
    pub pauses: BTreeSet<PauseReason>,
}

/// What can happen to a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A QEMU is about to be started from its disks.
    Starts,
    /// Its QEMU runs now. The text says from what it was started.
    Runs(String),
    /// Its guest was reset: its QEMU has ended and another is about to be started from its disks.
    Resets,
    /// Its QEMU is about to be ended.
    Stops,
    /// Its QEMU has ended or could not be started, and its disks are off the mount.
    Gone(Gone),
    /// Its state is stored: its QEMU is about to be ended.
    Parks,
    /// That QEMU has ended, and its disks are off the mount.
    Parked,
    /// It goes back to an image that was captured from it: what is stored is its state from now on, and its QEMU, if it has one, is about
    /// to be ended with what that knows.
    RollsBack,
    /// That QEMU has ended, and its former disks are off the mount. The text says to what it went back.
    RolledBack(String),
    /// A QEMU is about to be started that loads its stored state.
    Loads,
    /// That QEMU has loaded the state and is about to let the guest go on. From then on the stored state is not to be used any more.
    Woken,
    /// That QEMU could not load it, for this reason, and its disks are off the mount. Its guest has not executed.
    NotWoken(String),
    /// It is about to be removed.
    Removes,
    /// It was removed.
    Removed,
    /// This node took it over. `still` is whether its CPUs stand still.
    Adopted {
        /// As told by QEMU.
        still: bool,
    },
    /// A part of its memory is lost, for this reason: it can never go on.
    Loses(String),
    /// A reason to stand still begins.
    Begins(PauseReason),
    /// A reason begins that stops the CPUs by itself, as a capture does.
    BeginsItself(PauseReason),
    /// It needs a node that does not answer, for this reason. `deaf` is whether its QEMU may not answer either.
    Orphaned {
        /// The reason in words.
        why: String,
        /// Whether QEMU may wait for a page and not answer.
        deaf: bool,
    },
    /// A page of its memory has not come for longer than a guest is to wait; the text says since when, and why.
    Waits(String),
    /// All that it waited for has come, as the text says for users.
    Served(String),
    /// QEMU has stopped the CPUs by itself because of a disk; the text says which, and what to do.
    StoppedAtDisk(String),
    /// A reason is over. If its work has stopped the CPUs by itself, it has also let them go on.
    Ends(PauseReason),
    /// A reason that stopped the CPUs by itself is over, and has left them stopped.
    EndsStill(PauseReason),
    /// A reason is over; if the machine goes on therefore, users are told this.
    Over(PauseReason, String),
    /// The user lets the machine go on, whatever the reasons. `still` is whether its CPUs stand still.
    UserContinues {
        /// As told by QEMU.
        still: bool,
    },
    /// It is to go on, whatever the reasons, so that its guest can power down.
    Wakes,
    /// The planner's wish to buffer is over.
    EpisodeEnds,
}

impl Event {
    /// Whether the event is only a wish of this node, which is taken back if it could not be carried out.
    pub fn is_wish(&self) -> bool {
        matches!(
            self,
            Event::Starts
                | Event::Stops
                | Event::Parks
                | Event::RollsBack
                | Event::Loads
                | Event::Woken
                | Event::Removes
                | Event::Begins(_)
                | Event::BeginsItself(_)
                | Event::Waits(_)
        )
    }
}

/// What the caller is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write this to the disk.
    Record(OnDisk),
    /// Tell QEMU to stop the CPUs.
    Stop,
    /// Tell it to let them go on.
    Continue,
    /// Tell everybody who listens.
    Publish(News),
}

impl Life {
    /// Returns the life of a machine whose record says this.
    pub fn recorded(recorded: OnDisk) -> Life {
        let mut reasons = recorded.pauses.clone();
        reasons.retain(|_| recorded.wanted == Wanted::Running);
        Life {
            phase: Phase::found(recorded.wanted),
            task: None,
            reasons,
            itself: BTreeSet::new(),
            recorded,
            cpus: Cpus::Run,
            deaf: false,
            hangs: false,
            spared: false,
            orphaned: None,
            lost: None,
            gone: None,
            news: VecDeque::new(),
        }
    }

    /// Returns where it is in its life.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the operation under way, if any.
    pub fn task(&self) -> Option<Task> {
        self.task
    }

    /// Begins an operation, or returns the one under way.
    pub fn begin(&mut self, task: Task) -> Result<(), Task> {
        match self.task {
            Some(other) => Err(other),
            None => {
                self.task = Some(task);
                Ok(())
            }
        }
    }

    /// Notes that the operation has ended.
    pub fn finish(&mut self) {
        self.task = None;
    }

    /// Whether this is one of the machine's reasons to stand still.
    pub fn is(&self, reason: PauseReason) -> bool {
        self.reasons.contains(&reason)
    }

    /// Returns why it stands still.
    pub fn reasons(&self) -> Vec<PauseReason> {
        self.reasons.iter().copied().collect()
    }

    /// Returns in words which node it needs and does not reach, or what of it is lost.
    pub fn orphaned(&self) -> Option<&str> {
        self.lost.as_deref().or(self.orphaned.as_deref())
    }

    /// Whether it still has to be told to stop, because its QEMU did not answer.
    pub fn is_deaf(&self) -> bool {
        self.deaf
    }

    /// Whether its QEMU waits for a page, and answers nobody before that has come.
    pub fn hangs(&self) -> bool {
        self.hangs
    }

    /// Whether something is still to be done that could not be done when it was due. An operation that is under way may be doing it. A
    /// machine that needs another node does not count, since its QEMU may not answer until that is back.
    pub fn is_behind(&self) -> bool {
        self.task.is_none() && self.orphaned().is_none() && self.next().is_some()
    }

    /// Returns how it went, if it has no QEMU any more and this node saw that.
    pub fn gone(&self) -> Option<&Gone> {
        self.gone.as_ref()
    }

    /// Takes an event in; [`Life::next`] then returns what is to be done. Returns false, and changes nothing, if the event does
    /// not fit.
    // Long: one table of events, each with what it changes.
    pub fn handle(&mut self, event: Event) -> bool {
        match event {
            Event::Starts
            | Event::Runs(_)
            | Event::Resets
            | Event::Stops
            | Event::Gone(_)
            | Event::Parks
            | Event::Parked
            | Event::RollsBack
            | Event::RolledBack(_)
            | Event::Loads
            | Event::Woken
            | Event::NotWoken(_)
            | Event::Removes
            | Event::Removed
            | Event::Adopted { .. } => return self.moves(event),
            Event::Loses(why) => {
                self.news.push_back(News::Orphaned(why.clone()));
                self.lost = Some(why);
            }
            Event::Begins(reason) => {
                if self.phase != Phase::Running || !self.may_begin(reason) {
                    return false;
                }
                if reason == PauseReason::User && !self.is(reason) {
                    self.news.push_back(News::Paused);
                }
                self.reasons.insert(reason);
                self.itself.remove(&reason);
            }
            Event::BeginsItself(reason) => {
                if self.phase != Phase::Running {
                    return false;
                }
                self.reasons.insert(reason);
                self.itself.insert(reason);
            }
            Event::Orphaned { why, deaf } => {
                if self.phase != Phase::Running {
                    return false;
                }
                if self.reasons.insert(PauseReason::Orphaned) {
                    self.news.push_back(News::Orphaned(why.clone()));
                }
                self.orphaned = Some(why);
                self.deaf = deaf;
            }
            Event::Waits(why) => {
                if self.phase != Phase::Running || !self.may_begin(PauseReason::Source) {
                    return false;
                }
                self.reasons.insert(PauseReason::Source);
                self.hangs = true;
                self.news.push_back(News::Waits(why));
            }
            Event::Served(why) => {
                if self.phase != Phase::Running || !self.hangs {
                    return false;
                }
                let is_new = self.is(PauseReason::Source);
                self.ends(PauseReason::Source);
                // one that is to go on is told so first: until then it may still be at stopping
                self.hangs = self.reasons.is_empty() && self.cpus != Cpus::Run;
                if self.hangs && is_new {
                    self.news.push_back(News::Continued(why));
                }
            }
            Event::StoppedAtDisk(why) => {
                if self.phase != Phase::Running || self.is(PauseReason::Disk) {
                    return false;
                }
                self.reasons.insert(PauseReason::Disk);
                self.itself.insert(PauseReason::Disk);
                self.cpus = Cpus::Stand;
                self.news.push_back(News::StoppedAtDisk(why));
            }
            Event::Ends(reason) => self.ends(reason),
            Event::EndsStill(reason) => {
                if self.phase == Phase::Running {
                    self.cpus = Cpus::Stand;
                }
                self.ends(reason);
            }
            Event::Over(reason, why) => {
                if !self.is(reason) {
                    return false;
                }
                self.ends(reason);
                if self.reasons.is_empty() {
                    self.news.push_back(News::Continued(why));
                }
            }
            Event::UserContinues { .. } | Event::Wakes if self.phase != Phase::Running => {
                return false;
            }
            Event::UserContinues { still } => {
                if still {
                    self.cpus = Cpus::Stand;
                }
                if self.wakes() && self.cpus != Cpus::Run {
                    let why = "its user let it go on".to_owned();
                    self.news.push_back(News::Continued(why));
                }
            }
            Event::Wakes => drop(self.wakes()),
            Event::EpisodeEnds => {
                self.spared = false;
                self.ends(PauseReason::Buffering);
            }
        }
        true
    }

    /// Takes in an event that changes the phase.
    fn moves(&mut self, event: Event) -> bool {
        use Phase::*;
        let (phase, news) = match (event, self.phase) {
            (Event::Starts, Stopped | Left) => (Starting, None),
            (Event::Runs(from), Creating | Starting) => (Running, Some(News::Started(from))),
            (Event::Runs(_), Resetting) => (Running, Some(News::Reset)),
            (Event::Resets, Running) => (Resetting, None),
            (Event::Runs(_), Woken) => (Running, Some(News::Woken)),
            (Event::Parks, Running) => (Parking, None),
            (Event::Parked, Parking) => (Parked, Some(News::Parked)),
            (Event::RollsBack, Running | Stopped | Parked) => (Parking, None),
            (Event::RolledBack(to), Parking) => (Parked, Some(News::RolledBack(to))),
            (Event::Loads, Parked) => (Waking, None),
            (Event::Woken, Waking) => (Woken, None),
            (Event::NotWoken(why), Waking) => (Parked, Some(News::NotWoken(why))),
            (Event::Stops, Running | Left | Stopping | Parked) => (Stopping, None),
            (Event::Gone(gone), Running | Stopping | Starting | Left | Resetting | Woken) => {
                self.gone = Some(gone.clone());
                (Stopped, Some(News::Gone(gone)))
            }
            (Event::Removes, Stopped | Left | Running | Stopping | Parked) => (Removing, None),
            (Event::Removed, Removing) => (Removing, Some(News::Removed)),
            (Event::Adopted { still }, Left) => {
                self.phase = Running;
                self.adopted(still);
                self.news.push_back(News::Adopted);
                return true;
            }
            _ => return false,
        };
        self.phase = phase;
        // whatever the reasons were, they were those of a QEMU that is gone, or goes
        self.reasons.clear();
        self.itself.clear();
        self.orphaned = None;
        (self.deaf, self.spared) = (false, false);
        // one that is about to be ended is as it was, in case that is taken back; and if it hangs, nobody should ask it
        if !matches!(phase, Stopping | Removing | Parking) {
            self.cpus = Cpus::Run;
            self.hangs = false;
        }
        if matches!(phase, Running | Parked) {
            self.gone = None;
        }
        self.news.extend(news);
        true
    }

    /// Drops the reasons of an earlier node that ended with it, and keeps the others.
    fn adopted(&mut self, still: bool) {
        let before = self.reasons();
        self.reasons.retain(|reason| !ends_with_its_node(*reason));
        self.cpus = match still {
            true => Cpus::Stand,
            false => Cpus::Run,
        };
        if self.lost.is_some() {
            self.reasons.insert(PauseReason::Orphaned);
        }
        if still && !before.is_empty() && self.reasons.is_empty() {
            self.news.push_back(News::ContinuedAfter(before));
        }
    }

    /// Whether a reason may begin now. The machine begins to buffer only while it runs, not again in an episode in which the
    /// user has let it go on, and not during operations that it would disturb. One that waits for its source is left alone while it
    /// stands still anyway, and during any operation, for which its QEMU may have to answer.
    fn may_begin(&self, reason: PauseReason) -> bool {
        let calm = self.task.is_none_or(Task::allows_buffering);
        match reason {
            PauseReason::Buffering => self.reasons.is_empty() && !self.spared && calm,
            PauseReason::Source => self.reasons.is_empty() && self.task.is_none(),
            _ => true,
        }
    }

    /// Whether the machine is not to be paused for buffering in this episode, or is already.
    pub fn needs_no_buffering(&self) -> bool {
        self.spared || self.is(PauseReason::Buffering)
    }

    /// Removes all reasons. Returns whether the machine has none now.
    fn wakes(&mut self) -> bool {
        self.spared |= self.is(PauseReason::Buffering);
        for reason in self.reasons() {
            self.ends(reason);
        }
        self.reasons.is_empty()
    }

    fn ends(&mut self, reason: PauseReason) {
        if reason == PauseReason::Orphaned {
            if self.lost.is_some() {
                return; // nothing brings it back
            }
            self.orphaned = None;
            self.deaf = false;
        }
        self.reasons.remove(&reason);
        self.itself.remove(&reason);
    }

    /// What the record should say.
    fn on_disk(&self) -> OnDisk {
        let kept = self.reasons.iter().filter(|reason| !is_qemus_own(**reason));
        OnDisk {
            wanted: self.phase.wanted(),
            pauses: kept.copied().collect(),
        }
    }

    /// Returns the next action, or `None` if disk, QEMU and life agree and everything is published.
    pub fn next(&self) -> Option<Action> {
        let on_disk = self.on_disk();
        let differs = self.recorded != on_disk;
        let runs = self.phase == Phase::Running;
        let stop = self.reasons.iter().any(|r| !self.itself.contains(r));
        if runs && self.cpus != Cpus::Run && self.reasons.is_empty() {
            return Some(Action::Continue);
        }
        if differs {
            return Some(Action::Record(on_disk));
        }
        if runs && stop && self.cpus != Cpus::Stand && !self.deaf {
            return Some(Action::Stop);
        }
        self.news.front().cloned().map(Action::Publish)
    }

    /// Notes that the action was carried out.
    pub fn done(&mut self, action: &Action) {
        match action {
            Action::Record(on_disk) => self.recorded = on_disk.clone(),
            Action::Stop => self.cpus = Cpus::Stand,
            Action::Continue => {
                self.cpus = Cpus::Run;
                self.hangs = false;
            }
            Action::Publish(_) => drop(self.news.pop_front()),
        }
    }

    /// Notes that an action was not carried out, as far as is known.
    pub fn failed(&mut self, action: &Action) {
        if matches!(action, Action::Stop | Action::Continue) {
            self.cpus = Cpus::Unknown;
        }
    }

    /// Takes back a wish that could not be carried out. `before` is the life before it; what was done since stays true.
    pub fn withdraw(&mut self, before: Life) {
        *self = Life {
            task: self.task,
            recorded: self.recorded.clone(),
            cpus: self.cpus,
            ..before
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries out what is due; returns that, but for what is written.
    fn settle(life: &mut Life) -> Vec<Action> {
        let mut done = Vec::new();
        while let Some(action) = life.next() {
            life.done(&action);
            done.push(action);
        }
        done.retain(|action| !matches!(action, Action::Record(_)));
        done
    }

    #[test]
    fn a_machine_waits_for_its_source_once_and_stays_paused_for_its_user() {
        let mut life = Life::recorded(OnDisk {
            wanted: Wanted::Starting,
            pauses: BTreeSet::new(),
        });
        let waits = || Event::Waits("no answer".into());
        let begins = || Action::Publish(News::Waits("no answer".into()));
        let goes_on = |why: &str| {
            let why = why.to_owned();
            [Action::Continue, Action::Publish(News::Continued(why))]
        };
        assert!(life.handle(Event::Runs("test".into())));
        settle(&mut life);
        assert!(life.handle(waits()));
        assert_eq!(settle(&mut life), [Action::Stop, begins()]);
        assert!(life.hangs() && !life.handle(waits()), "it is told once");
        assert!(life.handle(Event::Begins(PauseReason::User)));
        assert_eq!(settle(&mut life), [Action::Publish(News::Paused)]);
        assert!(life.handle(Event::Served("it came".into())));
        assert!(settle(&mut life).is_empty());
        assert!(!life.hangs() && life.is(PauseReason::User));
        assert!(life.handle(Event::Over(PauseReason::User, "resumed".into())));
        assert_eq!(settle(&mut life), goes_on("resumed"));

        // QEMU may have to answer for an operation
        life.begin(Task::Capture).unwrap();
        assert!(!life.handle(waits()));
        life.finish();
        assert!(life.handle(waits()));
        assert_eq!(settle(&mut life), [Action::Stop, begins()]);
        assert!(life.handle(Event::Served("it came".into())));
        assert!(life.hangs(), "until it was told to go on");
        assert_eq!(settle(&mut life), goes_on("it came"));
        assert!(!life.hangs() && !life.handle(Event::Served("again".into())));

        // nobody asks it while it is being ended, either
        assert!(life.handle(waits()));
        settle(&mut life);
        assert!(life.handle(Event::RollsBack));
        assert!(life.hangs() && !life.handle(Event::Served("it came".into())));
        assert!(life.handle(Event::RolledBack("web-clean".into())));
        assert!(!life.hangs());
    }
}
