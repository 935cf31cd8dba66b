//! When a machine was paused for buffering: shown to its user, and left out of its trace.

use super::{
    Entry,
    lifecycle::{Event, Gone, Task},
    record::Record,
};
use floe_api::{Buffering, PauseReason};
use floe_ground::error::{NodeError, busy};
use floe_machine::Status;
use std::time::{SystemTime, UNIX_EPOCH};

/// How many pauses are kept for a machine, to be left out of its trace.
const PAUSES_MAX: usize = 4096;

/// The pauses for buffering of one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pauses {
    /// When the pause under way began, in microseconds of Unix time; `None` if the machine is not paused.
    pub since_us: Option<u64>,
    /// What it waits for, as the planner last said.
    pub buffering: Buffering,
    /// Begin and end of pauses that are over, the newest `PAUSES_MAX` of them, in microseconds of Unix time.
    pub over: Vec<(u64, u64)>,
}

/// Returns the Unix time in microseconds.
pub fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

impl Pauses {
    /// Returns the pauses of a machine whose earlier ones are known.
    pub fn after(over: Vec<(u64, u64)>) -> Pauses {
        Pauses {
            over,
            ..Default::default()
        }
    }

    /// Returns what it waits for, if it is paused.
    pub fn buffering(&self) -> Option<Buffering> {
        self.since_us.map(|_| self.buffering)
    }

    /// Returns how many pauses there were and how many seconds they took together, including the one under way.
    pub fn sum(&self, now_us: u64) -> (u64, f64) {
        let over: u64 = self
            .over
            .iter()
            .map(|(from, to)| to.saturating_sub(*from))
            .sum();
        let now = self.since_us.map(|since| now_us.saturating_sub(since));
        let count = self.over.len() + usize::from(now.is_some());
        (count as u64, (over + now.unwrap_or(0)) as f64 / 1e6)
    }

    /// Returns begin and end of all pauses; the one under way ends at `now_us`.
    pub fn all(&self, now_us: u64) -> Vec<(u64, u64)> {
        let now = self.since_us.map(|since| (since, now_us.max(since)));
        self.over.iter().copied().chain(now).collect()
    }

    /// Notes that the pause under way, if any, ends at this time.
    pub fn end(&mut self, now_us: u64) {
        if let Some(since) = self.since_us.take() {
            if self.over.len() >= PAUSES_MAX {
                self.over.remove(0);
            }
            self.over.push((since, now_us.max(since)));
        }
    }
}

impl Entry {
    /// Returns when it was paused for buffering: begin and end of each pause, in microseconds of Unix time.
    pub fn pauses(&self) -> Vec<(u64, u64)> {
        self.pauses.lock().all(now_us())
    }

    /// Returns what it waits for, if it is paused for buffering.
    pub fn buffering(&self) -> Option<Buffering> {
        self.pauses.lock().buffering()
    }

    /// Returns how often it was paused for buffering, and for how many seconds together.
    pub fn paused_for_buffering(&self) -> (u64, f64) {
        self.pauses.lock().sum(now_us())
    }

    /// Whether it is paused to buffer or because its source is silent, or a pause to buffer is just beginning or ending.
    pub fn stands_still(&self) -> bool {
        let pauses = self.pauses.try_lock();
        pauses.is_none_or(|pauses| pauses.since_us.is_some()) || self.hangs()
    }

    /// Whether its QEMU waits for a page, and answers nobody before that has come.
    pub fn hangs(&self) -> bool {
        self.life.lock().hangs()
    }

    /// Returns an error if another node has the machine, or if an operation that has begun needs a QEMU that answers and this one hangs. It
    /// does not begin to do so while the operation lasts.
    pub(super) fn can_do(&self, what: Task) -> Result<(), NodeError> {
        if !what.is_for_any_side() {
            self.is_here()?;
        }
        match what.needs_answers() {
            true => self.answers(),
            false => Ok(()),
        }
    }

    /// Returns an error if its QEMU hangs, instead of waiting for what it is asked.
    pub fn answers(&self) -> Result<(), NodeError> {
        if !self.hangs() {
            return Ok(());
        }
        let name = &self.name;
        Err(busy(
            format!(
                "machine {name} waits for its source, and its QEMU does not answer until that has sent what is missing"
            ),
            format!("floe ps {name} says why; floe wait {name} --for running, then try again"),
        ))
    }

    /// Reads when it was paused under earlier nodes.
    pub fn load_pauses(&self) {
        *self.pauses.lock() = Pauses::load(&self.dir);
    }

    /// Does what the planner of its image wishes: pauses it until what `buffering` tells of has arrived, or lets it go on.
    /// Returns false if that must be tried again.
    pub fn follow_planner(&self, pause: bool, buffering: Buffering) -> Result<bool, NodeError> {
        let mut pauses = self.pauses.lock();
        pauses.buffering = buffering;
        if !pause {
            return self
                .end_buffering(&mut pauses, Event::EpisodeEnds)
                .map(|()| true);
        }
        if self.life.lock().needs_no_buffering() {
            return Ok(true);
        }
        if self.hangs() {
            return Ok(false); // it can't be asked
        }
        let Some(vm) = self.state().vm.clone() else {
            return Ok(false);
        };
        if vm.status()? != Status::Running || !self.drive(Event::Begins(PauseReason::Buffering))? {
            return Ok(false);
        }
        pauses.since_us = Some(now_us());
        Ok(true)
    }

    /// Ends the pause for buffering, if there is one.
    fn end_buffering(&self, pauses: &mut Pauses, event: Event) -> Result<(), NodeError> {
        self.drive(event)?;
        if pauses.since_us.is_none() {
            return Ok(());
        }
        pauses.end(now_us());
        pauses.save(&self.dir)
    }

    /// Ends the pause for buffering because an operation follows; the machine may buffer again after that.
    pub fn stop_buffering(&self) -> Result<(), NodeError> {
        let mut pauses = self.pauses.lock();
        self.end_buffering(&mut pauses, Event::Ends(PauseReason::Buffering))
    }

    /// Lets the machine go on because its user wants that, whatever it was waiting for. `still` is whether QEMU says that it
    /// stands.
    pub fn go_on_at_once(&self, still: bool) -> Result<(), NodeError> {
        let mut pauses = self.pauses.lock();
        self.end_buffering(&mut pauses, Event::UserContinues { still })
    }

    /// Lets the machine go on because its guest is about to be asked to power down.
    pub fn wake(&self) -> Result<(), NodeError> {
        let mut pauses = self.pauses.lock();
        self.end_buffering(&mut pauses, Event::Wakes)
    }

    /// Notes that the machine has no QEMU any more, with a remark for its user.
    pub fn gone(&self, gone: Gone, remark: &str) -> Result<(), NodeError> {
        self.pauses.lock().end(now_us());
        let detail = gone.detail();
        let since = self
            .state()
            .guest
            .since
            .filter(|_| gone != Gone::NotStarted);
        let ran = since.map(|since| since.elapsed()).unwrap_or_default();
        let ended = gone.clone();
        let change = |record: &mut Record| {
            record.afterwards = record.afterwards.ended(&ended, ran);
            record.forget_memory();
            if let Some(detail) = detail {
                record.detail = detail + remark;
            }
        };
        self.drive_with(Event::Gone(gone), change).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_summed_up_and_the_one_under_way_counts() {
        let mut pauses = Pauses::after(vec![(1_000_000, 1_500_000)]);
        assert_eq!(pauses.sum(9_000_000), (1, 0.5));
        assert_eq!(pauses.buffering(), None);
        pauses.since_us = Some(8_000_000);
        assert_eq!(pauses.sum(9_000_000), (2, 1.5));
        assert_eq!(
            pauses.all(9_000_000),
            [(1_000_000, 1_500_000), (8_000_000, 9_000_000)]
        );
        pauses.end(8_250_000);
        assert_eq!(pauses.sum(9_000_000), (2, 0.75));
        // the clock was set back
        pauses.since_us = Some(20);
        pauses.end(10);
        assert_eq!(pauses.over.last(), Some(&(20, 20)));
        for at in 0..PAUSES_MAX as u64 {
            pauses.since_us = Some(at);
            pauses.end(at + 1);
        }
        assert_eq!((pauses.over.len(), pauses.over[0]), (PAUSES_MAX, (0, 1)));
    }
}
