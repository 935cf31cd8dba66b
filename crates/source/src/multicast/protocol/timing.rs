//! How long an answer takes, and whether there are any.

use std::time::Duration;

/// Shortest time after which something is asked for again. It is longer than the server's lockstep window, or a request after
/// a loss would be taken for a sibling's.
pub const ASK_AGAIN_MIN: Duration = Duration::from_millis(40);
/// Longest such time.
pub const ASK_AGAIN_MAX: Duration = Duration::from_millis(500);
/// The time as long as there has been no answer.
const ANSWER_UNKNOWN: Duration = Duration::from_millis(10);

/// So many reads in a row without any sign of the server: multicast does not pass here.
const SILENT_MAX: u32 = 3;
/// Reads that end within this time are one sign: they waited for the same silence.
const SILENCE_MIN: Duration = Duration::from_millis(20);
/// When it is tried again for the first time; the time doubles.
const TRY_AGAIN_FIRST: Duration = Duration::from_secs(10);
/// And at most this.
const TRY_AGAIN_MAX: Duration = Duration::from_secs(300);

/// The time of answers, smoothed as TCP does (RFC 6298).
#[derive(Clone, Debug, Default)]
pub struct AnswerTime {
    smooth: Option<(Duration, Duration)>,
}

impl AnswerTime {
    /// An answer came so long after the first question for it, and after the last one. If it came sooner after that than
    /// answers do, it was the first one's.
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

    /// When most answers are there.
    fn usual(&self) -> Duration {
        let (mean, deviation) = self.smooth.unwrap_or((ANSWER_UNKNOWN, ANSWER_UNKNOWN / 2));
        mean + deviation * 4
    }

    /// When to ask again for something that was asked for so many times.
    pub fn ask_again(&self, tries: u32) -> Duration {
        let first = self.usual().clamp(ASK_AGAIN_MIN, ASK_AGAIN_MAX);
        first
            .saturating_mul(1 << tries.saturating_sub(1).min(4))
            .min(ASK_AGAIN_MAX)
    }

    /// How long a guest's page is waited for before it is asked for elsewhere, too.
    pub fn hedge(&self, least: Duration, most: Duration) -> Duration {
        self.usual().clamp(least, most)
    }
}

/// Whether multicast passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// As far as is known. So many reads have got no answer since the last sign of the server, the last one then.
    Open(u32, Duration),
    /// It does not, and is tried at that time; the pause after that.
    Closed(Duration, Duration),
}

/// What is believed of the path between server and receiver.
#[derive(Clone, Debug)]
pub struct Passage {
    path: Path,
    /// The server was heard, and no read was without an answer since.
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
    /// Whether answers may be waited for.
    pub fn is_open(&self) -> bool {
        matches!(self.path, Path::Open(..))
    }

    /// Whether there are answers. Until then little is asked for: it would be sent to nobody, and again and again.
    pub fn is_sure(&self) -> bool {
        self.sure
    }

    /// The server was heard.
    pub fn heard(&mut self) {
        self.path = Path::Open(0, Duration::ZERO);
        self.sure = true;
    }

    /// A read ended without anything from the server. Whether that was the last straw.
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

    /// Whether it is time to try: something is to be asked for, and nobody to wait for it.
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
        // many at the same time are one
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
