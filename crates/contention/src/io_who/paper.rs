//! The paper's own rule (section 3.1.2), with the parameters of its table 1, over a recorded day. It knows what the paper's hypervisor
//! knows and no mount does: which program made each request, and all of the day. So this tells what the rule can do at best.

use super::{Block, DAEMONS, PROGRAMS, Row, Score};
use floe_testbed::harness::Samples;
use std::collections::BTreeMap;

/// The periods before and after an input, and the shares of requests after inputs above which a program is interactive, that are tried.
const PERIODS_S: [u64; 4] = [1, 2, 4, 8];
const THRESHOLDS_PERCENT: [u64; 4] = [55, 60, 70, 80];
/// The paper's period, for which the rate of each program is told (its figure 8).
const PAPER_PERIOD_S: u64 = 4;

/// How many requests of a program came within a period after inputs, and how many within one before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    post: u64,
    pre: u64,
}

impl Counts {
    /// Returns the paper's potential interactive request rate, in percent; `None` if nothing was counted.
    fn rate_pct(self) -> Option<f64> {
        let all = self.post + self.pre;
        (all > 0).then(|| self.post as f64 / all as f64 * 100.0)
    }

    fn is_interactive(self, threshold_percent: u64) -> bool {
        self.post * 100 > (self.post + self.pre) * threshold_percent
    }
}

type Each = [Counts; PROGRAMS.len() + DAEMONS.len()];

/// Counts the requests of each program and daemon. Where inputs follow each other faster, what lies between them is divided in the middle: the
/// paper does not say what a request counts that is both before one and after one.
fn counts(rows: &[Row], inputs_us: &[u64], period_us: u64) -> Each {
    let mut each = Each::default();
    for Row { us, block, .. } in rows {
        let at = inputs_us.partition_point(|input| input <= us);
        let before = at.checked_sub(1).map(|at| inputs_us[at]);
        let next = inputs_us.get(at);
        let period_us = match (before, next) {
            (Some(before), Some(next)) => period_us.min((next - before) / 2),
            _ => period_us,
        };
        let of = &mut each[block.who];
        of.post += u64::from(before.is_some_and(|before| us - before < period_us));
        of.pre += u64::from(next.is_some_and(|next| next - us <= period_us));
    }
    each
}

/// Adds what the rule makes of a day, and the rate of each program.
pub(super) fn tell(told: &mut BTreeMap<String, Samples>, rows: &[Row], inputs_us: &[u64]) {
    let mut add = |name: String, value: Option<f64>| {
        if let Some(value) = value {
            told.entry(name).or_default().push(value);
        }
    };
    for period_s in PERIODS_S {
        let each = counts(rows, inputs_us, period_s * 1_000_000);
        if period_s == PAPER_PERIOD_S {
            let names = PROGRAMS.into_iter().chain(DAEMONS.map(|(name, ..)| name));
            for (name, counts) in names.zip(each) {
                add(format!("paper.{name}.rate_pct"), counts.rate_pct());
            }
        }
        for percent in THRESHOLDS_PERCENT {
            let is_taken = |block: &Block| each[block.who].is_interactive(percent);
            let mut score = Score::default();
            for Row { block, .. } in rows {
                score.add(is_taken(block), block.is_waited_for);
            }
            let of = format!("paper.{period_s}s.{percent}pct");
            add(format!("{of}.precision"), score.precision());
            add(format!("{of}.recall"), score.recall());
            add(format!("{of}.programs_right"), right(&each, percent));
        }
    }
}

/// Returns the share of programs and daemons that are taken for what they are.
fn right(each: &Each, percent: u64) -> Option<f64> {
    let known = each.iter().enumerate();
    let known = known.filter(|(_, counts)| counts.rate_pct().is_some());
    let is_right = |(who, counts): &(usize, &Counts)| {
        let is_program = *who < PROGRAMS.len();
        counts.is_interactive(percent) == is_program
    };
    let number = known.clone().count();
    (number > 0).then(|| known.filter(is_right).count() as f64 / number as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn row(ms: u64, who: usize) -> Row {
        Row {
            us: ms * 1000,
            block: Block {
                who,
                is_waited_for: who < PROGRAMS.len(),
            },
            is_taken: false,
        }
    }

    #[test]
    fn a_request_counts_by_the_nearer_input_within_the_period() {
        let inputs = [10 * SECOND, 30 * SECOND, 32 * SECOND];
        let rows = [
            row(5_900, 0),  // more than four seconds before the first
            row(6_000, 0),  // before it
            row(10_000, 0), // after it
            row(13_999, 0),
            row(14_000, 0), // too late
            row(30_900, 0), // after the second, and not before the third
            row(31_500, 0), // the other way round
            row(33_000, 1), // after the last
            row(90_000, 2), // long after it
        ];
        let each = counts(&rows, &inputs, 4 * SECOND);
        assert_eq!(each[0], Counts { post: 3, pre: 2 });
        assert_eq!(each[1], Counts { post: 1, pre: 0 });
        assert_eq!(each[2].rate_pct(), None);
        assert_eq!(each[0].rate_pct(), Some(60.0));
        // more than the threshold, not as much
        assert!(!each[0].is_interactive(60) && each[0].is_interactive(55));
    }

    #[test]
    fn a_day_is_told_for_each_period_and_threshold() {
        let inputs = [10 * SECOND, 40 * SECOND];
        let daemon = PROGRAMS.len();
        let mut rows = vec![row(10_100, 0), row(10_200, 0), row(40_100, 0)];
        rows.extend((0..500).map(|number| row(number * 100, daemon)));
        let mut told = BTreeMap::new();
        tell(&mut told, &rows, &inputs);
        let value = |name: &str| told[name].median();
        assert_eq!(value("paper.python3.rate_pct"), 100.0);
        assert!((value("paper.indexd.rate_pct") - 50.0).abs() < 1.0);
        assert_eq!(value("paper.4s.60pct.precision"), 1.0);
        assert_eq!(value("paper.8s.80pct.recall"), 1.0);
        assert_eq!(value("paper.1s.55pct.programs_right"), 1.0);
        let of_each = PERIODS_S.len() * THRESHOLDS_PERCENT.len() * 3;
        assert_eq!(told.len(), of_each + 2);
    }
}
