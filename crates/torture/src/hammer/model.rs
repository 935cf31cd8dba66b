//! What each guest has acknowledged, and what it found wrong: the model against which its disk is verified. No I/O, no clock.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One line of a guest, as described in `guests/hammer.rs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// The guest has started and asks what must be on its disk.
    Hello,
    /// The guest's progress.
    Progress(Progress),
    /// Something is wrong.
    Bad(String),
}

/// A guest's progress and the errors that it has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The last write that is durable; all before it are as well.
    pub acked: u64,
    /// How often it has read its whole disk since it started.
    pub passes: u64,
    /// How often it has read its whole memory.
    pub ram_passes: u64,
    /// Sectors with older content than they must have.
    pub lost: u64,
    /// Bytes of the disk that no write has put there.
    pub wrong_disk: u64,
    /// Bytes of memory that are not what was put there.
    pub wrong_ram: u64,
    /// Reads, writes and flushes that failed.
    pub errors: u64,
}

impl Line {
    /// Parses a line. Returns `None` for incomplete lines and for messages of the kernel.
    pub fn parse(line: &str) -> Option<Line> {
        let (text, sum) = line.trim().strip_prefix('@')?.rsplit_once(" *")?;
        if u32::from_str_radix(sum, 16).ok()? != checksum(text) {
            return None;
        }
        let mut words = text.split(' ');
        match words.next()? {
            "H" => Some(Line::Hello),
            "B" => Some(Line::Bad(text[2..].to_owned())),
            "A" => {
                let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
                let [
                    acked,
                    passes,
                    ram_passes,
                    lost,
                    wrong_disk,
                    wrong_ram,
                    errors,
                ] = numbers?[..]
                else {
                    return None;
                };
                Some(Line::Progress(Progress {
                    acked,
                    passes,
                    ram_passes,
                    lost,
                    wrong_disk,
                    wrong_ram,
                    errors,
                }))
            }
            _ => None,
        }
    }
}

fn checksum(text: &str) -> u32 {
    let sum = |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, sum) as u32
}

/// What the host knows about a guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Guest {
    /// Identifies its disk's content.
    pub disk: u64,
    /// Its last report.
    pub now: Progress,
    /// Errors that it found before it was last started.
    pub before: Progress,
    /// Every write up to this one is durable.
    pub acked: u64,
    /// When it last made progress, or since when progress is expected. `None` while it is down on purpose.
    since: Option<Duration>,
    /// Whether its QEMU was ended and the next one has not said hello yet: what is heard meanwhile was said before.
    ended: bool,
    /// Longest time without progress.
    pub stall_max: Duration,
    /// Number of times that it made progress.
    pub steps: u64,
    /// Number of times that its QEMU was ended on purpose.
    pub lives: u64,
    /// Errors that it has reported since they were last taken.
    bad: Vec<String>,
}

impl Guest {
    /// Makes a guest that has not started.
    pub fn new(disk: u64) -> Guest {
        Guest {
            disk,
            ..Guest::default()
        }
    }

    /// Processes a line. Returns the answer, if there is one.
    pub fn hear(&mut self, now: Duration, line: &str) -> Option<String> {
        match Line::parse(line)? {
            Line::Hello => {
                self.ended = false;
                return Some(format!("F {} {}\n", self.acked, self.disk));
            }
            Line::Bad(what) => self.bad.push(what),
            // what it acknowledged is durable, but this is no progress
            Line::Progress(progress) if self.ended => self.acked = self.acked.max(progress.acked),
            Line::Progress(progress) if progress.acked > self.acked => {
                if let Some(since) = self.since {
                    self.stall_max = self.stall_max.max(now.saturating_sub(since));
                }
                self.since = Some(now);
                self.steps += 1;
                self.acked = progress.acked;
                self.now = progress;
            }
            Line::Progress(_) => {}
        }
        None
    }

    /// Records that its QEMU was ended on purpose: no time counts until it makes progress again.
    pub fn ends(&mut self) {
        self.since = None;
        self.ended = true;
        self.lives += 1;
        for (before, now) in [
            (&mut self.before.lost, self.now.lost),
            (&mut self.before.wrong_disk, self.now.wrong_disk),
            (&mut self.before.wrong_ram, self.now.wrong_ram),
            (&mut self.before.errors, self.now.errors),
        ] {
            *before += now;
        }
        self.now = Progress {
            acked: self.acked,
            ..Progress::default()
        };
    }

    /// Returns whether it has made progress since it was started: before that it boots, and a copy of it would boot as
    /// well.
    pub fn is_up(&self) -> bool {
        self.since.is_some()
    }

    /// It stalled for a reason that is now over: time counts from here.
    pub fn excused(&mut self, now: Duration) {
        self.since = self.since.map(|since| since.max(now));
    }

    /// Returns how long it has made no progress; `None` while it is down on purpose.
    pub fn stalled(&self, now: Duration) -> Option<Duration> {
        Some(now.saturating_sub(self.since?))
    }

    /// Returns the number of lost writes that it found, in all of its lives.
    pub fn lost_writes(&self) -> u64 {
        self.before.lost + self.now.lost
    }

    /// The same for wrong bytes of disk and memory.
    pub fn wrong_bytes(&self) -> u64 {
        self.before.wrong_disk + self.now.wrong_disk + self.before.wrong_ram + self.now.wrong_ram
    }

    /// The same for failed requests.
    pub fn errors(&self) -> u64 {
        self.before.errors + self.now.errors
    }

    /// Returns the errors that it has reported since the last call.
    pub fn take_bad(&mut self) -> Vec<String> {
        std::mem::take(&mut self.bad)
    }
}

/// Returns a line as a guest writes it.
#[cfg(test)]
pub(super) fn line(text: &str) -> String {
    format!("@{text} *{:08x}", checksum(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn progress(acked: u64) -> String {
        line(&format!("A {acked} 2 1 0 0 0 0"))
    }

    #[test]
    fn a_cut_or_mixed_line_is_nothing() {
        let whole = progress(160);
        assert!(
            matches!(Line::parse(&whole), Some(Line::Progress(p)) if p.acked == 160 && p.passes == 2)
        );
        assert_eq!(Line::parse(&line("H")), Some(Line::Hello));
        assert_eq!(
            Line::parse(&line("B sector 1 is bad")),
            Some(Line::Bad("sector 1 is bad".into()))
        );
        for cut in 0..whole.len() {
            assert_eq!(Line::parse(&whole[..cut]), None, "{}", &whole[..cut]);
        }
        assert_eq!(Line::parse(&whole.replace("160", "1600")), None);
        assert_eq!(Line::parse("[    1.2] virtio_blk virtio1: [vda]"), None);
    }

    #[test]
    fn a_started_guest_is_told_what_was_acknowledged_before_its_qemu_was_killed() {
        let mut guest = Guest::new(7);
        assert_eq!(guest.hear(s(1), &line("H")).unwrap(), "F 0 7\n");
        guest.hear(s(2), &progress(32));
        guest.hear(s(3), &progress(16)); // a buffered line: what is durable stays durable
        guest.ends();
        assert_eq!(guest.hear(s(9), &line("H")).unwrap(), "F 32 7\n");
    }

    #[test]
    fn a_stall_is_the_time_between_steps_but_not_while_it_was_down_on_purpose() {
        let mut guest = Guest::new(1);
        assert_eq!(guest.stalled(s(5)), None);
        for (at, acked) in [(10, 16), (11, 32), (15, 48)] {
            guest.hear(s(at), &progress(acked));
        }
        assert_eq!((guest.stall_max, guest.stalled(s(17))), (s(4), Some(s(2))));
        guest.ends();
        // a line that was on its way when it was killed
        guest.hear(s(16), &progress(64));
        assert!(guest.stalled(s(30)).is_none() && !guest.is_up());
        assert_eq!(guest.hear(s(38), &line("H")).unwrap(), "F 64 1\n");
        guest.hear(s(40), &progress(72));
        guest.excused(s(48));
        guest.hear(s(50), &progress(80));
        assert_eq!(guest.stall_max, s(4));
    }

    #[test]
    fn what_was_wrong_in_an_earlier_life_still_counts() {
        let mut guest = Guest::new(1);
        guest.hear(s(1), &line("A 16 0 0 2 512 8 1"));
        guest.ends();
        guest.hear(s(2), &line("H"));
        guest.hear(s(2), &line("A 32 0 0 1 0 0 0"));
        assert_eq!(
            (guest.lost_writes(), guest.wrong_bytes(), guest.errors()),
            (3, 520, 1)
        );
    }
}
