//! How long answers take, and whether there are any.

use std::time::Duration;

/// Shortest time after which something is asked for again. It is longer than the server's lockstep window; otherwise a request
/// after a loss would be taken for another receiver's.
pub const ASK_AGAIN_MIN: Duration = Duration::from_millis(40);
/// Longest such time.
pub const ASK_AGAIN_MAX: Duration = Duration::from_millis(500);
/// How long an answer is expected to take before there was one.
const ANSWER_UNKNOWN: Duration = Duration::from_millis(10);

/// After this many reads in a row without a datagram of the server, multicast counts as not arriving.
const SILENT_MAX: u32 = 3;
/// Reads that end within this time count once: they waited for the same silence.
const SILENCE_MIN: Duration = Duration::from_millis(20);
/// How long to wait before multicast is tried again; the time doubles.
const TRY_AGAIN_FIRST: Duration = Duration::from_secs(10);
/// Longest such time.
const TRY_AGAIN_MAX: Duration = Duration::from_secs(300);

/// How long answers take, smoothed as TCP does (RFC 6298).
#[derive(Clone, Debug, Default)]
pub struct AnswerTime {
    smooth: Option<(Duration, Duration)>,
}

impl AnswerTime {
    /// Learns from an answer, which came this long after the first request for it and after the last one. If it came sooner
    /// after the last request than answers usually do, it answered the first one.
    pub fn learn(&mut self, after_first: Duration, after_last: Duration) {
        let took = match self.smooth {
            Some((mean, _)) if after_last >= mean => after_last,
            _ => after_first,
        };
        self.smooth = Some(match self.smooth {
            None => (took, took / 2),
            Some((mean, deviation)) => {
                let off = took.abs_diff(mean);
                ((mean * 7 + took) / 8, (deviation * 3 + off) / 4)
            }
        });
    }

    /// Returns the time within which most answers arrive.
    fn usual(&self) -> Duration {
        let (mean, deviation) = self.smooth.unwrap_or((ANSWER_UNKNOWN, ANSWER_UNKNOWN / 2));
        mean + deviation * 4
    }

    /// Returns when to ask again for something that was asked for `tries` times.
    pub fn ask_again(&self, tries: u32) -> Duration {
        let first = self.usual().clamp(ASK_AGAIN_MIN, ASK_AGAIN_MAX);
        first
            .saturating_mul(1 << tries.saturating_sub(1).min(4))
            .min(ASK_AGAIN_MAX)
    }

    /// Returns how long to wait for a guest's page before it is asked for by unicast too.
    pub fn hedge(&self, least: Duration, most: Duration) -> Duration {
        self.usual().clamp(least, most)
    }
}

/// Whether multicast arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// It does, as far as is known: how many reads in a row got no answer, and when the last of them ended.
    Open(u32, Duration),
    /// It doesn't: when it is tried again, and how long the pause after that is.
    Closed(Duration, Duration),
}

/// What is known of the path between server and receiver.
#[derive(Clone, Debug)]
pub struct Passage {
    path: Path,
    /// Whether the server was heard, and every read since had an answer.
    sure: bool,
}

impl Default for Passage {
    fn default() -> Passage {
        Passage {
            path: Path::Open(0, Duration::ZERO),
            sure: false,
        }
    }
}

impl Passage {
    /// Returns whether reads should wait for answers.
    pub fn is_open(&self) -> bool {
        matches!(self.path, Path::Open(..))
    }

    /// Returns whether answers are known to arrive. Until then little is asked for, as it might be sent to nobody, again and
    /// again.
    pub fn is_sure(&self) -> bool {
        self.sure
    }

    /// Notes that the server was heard.
    pub fn heard(&mut self) {
        self.path = Path::Open(0, Duration::ZERO);
        self.sure = true;
    }

    /// Notes that a read ended without a datagram of the server; returns whether multicast is given up because of it.
    pub fn unanswered(&mut self, now: Duration) -> bool {
        self.sure = false;
        let Path::Open(silent, last) = &mut self.path else {
            return false;
        };
        if *silent > 0 && now < *last + SILENCE_MIN {
            return false;
        }
        (*silent, *last) = (*silent + 1, now);
        let closed = *silent >= SILENT_MAX;
        if closed {
            self.path = Path::Closed(now + TRY_AGAIN_FIRST, TRY_AGAIN_FIRST * 2);
        }
        closed
    }

    /// Returns whether it is time for a trial: something should be asked for, and nobody should wait for it.
    pub fn try_now(&mut self, now: Duration) -> bool {
        match self.path {
            Path::Closed(at, pause) if now >= at => {
                self.path = Path::Closed(now + pause, (pause * 2).min(TRY_AGAIN_MAX));
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_path_that_does_not_pass_is_left_and_tried_ever_more_rarely() {
        let mut passage = Passage::default();
        assert!(!passage.unanswered(s(1)) && !passage.unanswered(s(2)));
        passage.heard();
        assert!(!passage.unanswered(s(3)) && !passage.unanswered(s(4)));
        assert!(passage.is_open() && !passage.try_now(s(4)));
        // Many at the same time count as one.
        assert!((0..9).all(|_| !passage.unanswered(s(4))));
        assert!(passage.unanswered(s(5)) && !passage.is_open());
        let tries: Vec<u64> = (5..1200).filter(|n| passage.try_now(s(*n))).collect();
        assert_eq!(tries, [15, 35, 75, 155, 315, 615, 915]);
        passage.heard();
        assert!(passage.is_open());
    }

    #[test]
    fn something_is_asked_for_again_after_what_answers_usually_take() {
        let mut time = AnswerTime::default();
        assert_eq!(time.ask_again(1), ASK_AGAIN_MIN);
        for _ in 0..50 {
            let took = Duration::from_millis(100);
            time.learn(took, took);
        }
        let again = time.ask_again(1);
        assert!((100..110).contains(&again.as_millis()), "{again:?}");
        assert_eq!(time.ask_again(2), again * 2);
        assert_eq!(time.ask_again(u32::MAX), ASK_AGAIN_MAX);
        let hedge = time.hedge(Duration::from_millis(5), Duration::from_millis(80));
        assert_eq!(hedge.as_millis(), 80);
    }
}
