//! What a machine's guest has said on the consoles of both hosts, and what follows: whether it ran on both, lost what it had acknowledged,
//! or found something wrong. No I/O, no clock.
//!
//! Each step of the guest has a number, which it keeps in its memory and which grows by what it has written (`guests/hammer.rs`). Memory
//! travels with the machine, so wherever it goes on, it goes on counting. Two machines that go on from the same state say the same number,
//! and so does one that goes on from what it was before: a number that is heard twice, on whichever host, was executed twice.

use crate::hammer::console::WRITES_PER_STEP;
use crate::hammer::model::{Line, Progress};
use std::collections::BTreeSet;
use std::time::Duration;

/// What a line was, as far as somebody has to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The guest asks what must be on its disk.
    Hello,
    /// It has made a step.
    Step,
}

/// What was heard so far.
#[derive(Default)]
pub struct Heard {
    steps: BTreeSet<u64>,
    /// How many steps were heard of each host.
    on: [u64; 2],
    /// The largest number of a step.
    most: u64,
    /// What the guest has found to be wrong: the most that it has said.
    found: Progress,
    /// From which host a step is awaited, and the largest number by then.
    awaited: Option<(usize, u64)>,
    /// When the last step was heard.
    last: Option<Duration>,
    /// Whether it has started anew, which is counted once for each time.
    anew: bool,
    /// Steps that were executed more than once.
    pub ran_twice: u64,
    /// Acknowledged writes from before which the guest went on.
    gone_back: u64,
    /// Longest time between two steps since it was last taken.
    stood_max: Duration,
    /// What was wrong since it was last taken.
    wrong: Vec<String>,
}

impl Heard {
    /// Processes a line from a host's console.
    pub fn hear(&mut self, now: Duration, host: usize, line: &str) -> Option<Said> {
        match Line::parse(line)? {
            Line::Hello => {
                if self.most > 0 && !self.anew {
                    self.anew = true;
                    self.wrong.push(format!(
                        "its guest has started anew on host {host}, after write {}",
                        self.most
                    ));
                }
                Some(Said::Hello)
            }
            Line::Bad(what) => {
                self.wrong.push(what);
                None
            }
            Line::Progress(progress) => {
                self.step(now, host, &progress);
                Some(Said::Step)
            }
        }
    }

    fn step(&mut self, now: Duration, host: usize, progress: &Progress) {
        let number = progress.acked;
        self.anew = false;
        if let Some((_, most)) = self.awaited.take_if(|(expected, _)| *expected == host)
            && number <= most
        {
            let lost = most + WRITES_PER_STEP - number;
            self.gone_back += lost;
            self.wrong.push(format!(
                "on host {host} it went on before write {number}, after {most} was acknowledged"
            ));
        }
        if !self.steps.insert(number) {
            self.ran_twice += 1;
            self.wrong.push(format!(
                "the step that ends with write {number} ran twice, the second time on host {host}"
            ));
        }
        if let Some(last) = self.last {
            self.stood_max = self.stood_max.max(now.saturating_sub(last));
        }
        self.last = Some(now);
        self.on[host] += 1;
        self.most = self.most.max(number);
        for (most, found) in [
            (&mut self.found.lost, progress.lost),
            (&mut self.found.wrong_disk, progress.wrong_disk),
            (&mut self.found.wrong_ram, progress.wrong_ram),
            (&mut self.found.errors, progress.errors),
        ] {
            *most = found.max(*most);
        }
    }

    /// A machine that settled runs on this host: its next step must come after all that were heard.
    pub fn runs_on(&mut self, host: usize) {
        self.awaited = Some((host, self.most));
    }

    /// Returns how many steps were heard of a host.
    pub fn steps_on(&self, host: usize) -> u64 {
        self.on[host]
    }

    /// Returns the largest number of a write that the guest has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.most
    }

    /// Returns the acknowledged writes that were lost, as the guest found and as it went on.
    pub fn lost_writes(&self) -> u64 {
        self.found.lost + self.gone_back
    }

    /// Returns the bytes of disk and memory that the guest found wrong.
    pub fn wrong_bytes(&self) -> u64 {
        self.found.wrong_disk + self.found.wrong_ram
    }

    /// Returns the reads, writes and flushes that failed in the guest.
    pub fn errors(&self) -> u64 {
        self.found.errors
    }

    /// Returns the longest time between two steps since the last call.
    pub fn take_stood(&mut self) -> Duration {
        std::mem::take(&mut self.stood_max)
    }

    /// Returns what was wrong since the last call.
    pub fn take_wrong(&mut self) -> Vec<String> {
        std::mem::take(&mut self.wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hammer::model::line;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn step(number: u64) -> String {
        line(&format!("A {number} 0 0 0 0 0 0"))
    }

    #[test]
    fn a_machine_that_goes_there_and_back_runs_once_and_loses_nothing() {
        let mut heard = Heard::default();
        assert_eq!(heard.hear(s(1), 0, &line("H")), Some(Said::Hello));
        for (at, host, number) in [(2, 0, 16), (3, 0, 32), (7, 1, 48), (8, 1, 64), (9, 0, 80)] {
            if number == 48 {
                heard.runs_on(1);
            }
            assert_eq!(heard.hear(s(at), host, &step(number)), Some(Said::Step));
        }
        assert_eq!(heard.hear(s(9), 0, "@A 96 0"), None);
        assert_eq!((heard.ran_twice, heard.lost_writes()), (0, 0));
        assert_eq!((heard.steps_on(0), heard.steps_on(1)), (3, 2));
        assert_eq!((heard.acknowledged(), heard.take_stood()), (80, s(4)));
        assert_eq!(heard.take_wrong(), Vec::<String>::new());
    }

    #[test]
    fn two_that_go_on_from_one_state_are_heard_whatever_comes_first() {
        let mut heard = Heard::default();
        for (host, number) in [(0, 16), (1, 32), (1, 48), (0, 32), (0, 48), (1, 64)] {
            heard.hear(s(1), host, &step(number));
        }
        assert_eq!(heard.ran_twice, 2);
        assert_eq!(heard.take_wrong().len(), 2);
    }

    #[test]
    fn one_that_goes_on_from_what_it_was_before_has_lost_what_it_acknowledged() {
        let mut heard = Heard::default();
        for number in [16, 32, 48, 64] {
            heard.hear(s(1), 0, &step(number));
        }
        heard.runs_on(1);
        // what the other host said late does not count for this one
        heard.hear(s(2), 0, &step(80));
        heard.hear(s(2), 1, &step(48));
        assert_eq!((heard.lost_writes(), heard.ran_twice), (32, 1));
        assert_eq!(heard.take_wrong().len(), 2);
    }

    #[test]
    fn what_the_guest_finds_wrong_and_a_guest_that_starts_anew_are_told() {
        let mut heard = Heard::default();
        heard.hear(s(1), 0, &line("A 16 0 0 2 512 8 1"));
        heard.hear(s(1), 1, &line("B sector 1 is bad"));
        for _ in 0..3 {
            heard.hear(s(2), 1, &line("H"));
        }
        let found = (heard.lost_writes(), heard.wrong_bytes(), heard.errors());
        assert_eq!(found, (2, 520, 1));
        let wrong = heard.take_wrong();
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[1].contains("started anew"), "{wrong:?}");
    }
}
