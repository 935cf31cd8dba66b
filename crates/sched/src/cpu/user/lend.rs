//! Lending: of two siblings that both want to run, the one that is behind gets what the other is ahead.
//!
//! The paper lends virtual time, by positions (section 4.4.3). Here the distance is a time: how much less a vCPU has run than its siblings.
//! The threshold is the paper's, two thirds of a turn of the vCPU's run queue, but at least what a look can tell and mend.
//! What is lent is weight, by nice values, as much on both sides; it is taken back on both sides at once. Whoever has lent or
//! borrowed takes part in no second loan before that.

use super::machine::{Loan, Watched};
use super::{Action, ThreadId};

/// The part of a turn of the queue from which on a distance is too large (section 4.3.3).
const THRESHOLD: f64 = 2.0 / 3.0;
/// The smallest distance that is acted upon, in microseconds: what the paper allows as lag. It is also what one step of nice values makes
/// up for from one look to the next, so that no borrower overshoots and has to lend at the next look.
const BEHIND_MIN_US: f64 = 25_000.0;
/// The part of the threshold at which a loan ends: enough less that the next look does not begin it anew.
const PAID: f64 = 0.25;
/// How long a loan lasts at most, in microseconds: by then whatever keeps the borrower behind is not to be mended so.
const LOAN_MAX_US: u64 = 5_000_000;
/// What is lent: so many steps down for the borrower, up for the lender. Weights differ by 1.25 a step, so both together keep what they had
/// against others within four percent, and a guest that makes one of its vCPUs seem to be behind gains nothing by it.
const LITTLE: (i8, i8) = (1, 1);
const MUCH: (i8, i8) = (2, 3);
/// From how many times the threshold on much is lent.
const MUCH_FROM: f64 = 2.0;
/// The range of nice values.
const NICE: std::ops::RangeInclusive<i8> = -20..=19;

impl Watched {
    /// Ends loans that are paid or of no use, and begins those that are due. Returns how many were begun.
    pub fn lend(&mut self, key: u64, now_us: u64, actions: &mut Vec<Action>) -> u64 {
        let loans = std::mem::take(&mut self.loans);
        for loan in loans {
            match self.is_over(&loan, now_us) {
                true => self.settle(key, &loan, now_us, actions),
                false => self.loans.push(loan),
            }
        }
        self.put_right(key, actions);
        let mut begun = 0;
        while let Some((borrower, lender, (down, up))) = self.due(now_us) {
            let to = self.threads[borrower].nice_was - down;
            let from = self.threads[lender].nice_was + up;
            // first who needs a right for it: without that nothing is lent
            let steps = vec![
                self.threads[borrower].step(to),
                self.threads[lender].step(from),
            ];
            self.loans.push(Loan {
                lender: self.threads[lender].id,
                borrower: self.threads[borrower].id,
                much: (down, up) == MUCH,
                since_us: now_us,
            });
            actions.push(Action::Nice {
                machine: key,
                steps,
            });
            begun += 1;
        }
        begun
    }

    fn threshold_us(&self, number: usize) -> f64 {
        (THRESHOLD * self.threads[number].turn_us).max(BEHIND_MIN_US)
    }

    fn number_of(&self, id: ThreadId) -> Option<usize> {
        self.threads.iter().position(|thread| thread.id == id)
    }

    fn is_over(&self, loan: &Loan, now_us: u64) -> bool {
        let both = (self.number_of(loan.borrower), self.number_of(loan.lender));
        let (Some(borrower), Some(lender)) = both else {
            return true;
        };
        let want = |number: usize| self.threads[number].is_wanting();
        let times = self.threads[borrower].behind_us / self.threshold_us(borrower);
        // a little that does not do makes room for much
        let too_little = !loan.much && times >= MUCH_FROM;
        !want(borrower)
            || !want(lender)
            || times <= PAID
            || too_little
            || now_us.saturating_sub(loan.since_us) >= LOAN_MAX_US
    }

    fn settle(&mut self, key: u64, loan: &Loan, now_us: u64, actions: &mut Vec<Action>) {
        let mut steps = Vec::new();
        for id in [loan.lender, loan.borrower] {
            if let Some(number) = self.number_of(id) {
                let thread = &mut self.threads[number];
                thread.settled_us = Some(now_us);
                if thread.niced.is_some() {
                    steps.push(thread.step(thread.nice_was));
                }
            }
        }
        if !steps.is_empty() {
            actions.push(Action::Nice {
                machine: key,
                steps,
            });
        }
    }

    /// Ends all loans.
    pub fn settle_all(&mut self, key: u64, actions: &mut Vec<Action>) {
        self.loans.clear();
        self.put_right(key, actions);
    }

    /// Gives its own nice value back to whoever takes part in no loan: one half of a loan may have failed.
    fn put_right(&mut self, key: u64, actions: &mut Vec<Action>) {
        let loans = &self.loans;
        for thread in &mut self.threads {
            let in_loan = loans.iter().any(|loan| loan.is_of(thread.id));
            if thread.niced.is_some() && !thread.nicing && !in_loan {
                let steps = vec![thread.step(thread.nice_was)];
                actions.push(Action::Nice {
                    machine: key,
                    steps,
                });
            }
        }
    }

    /// Who should borrow from whom, and how many steps down and up.
    fn due(&self, now_us: u64) -> Option<(usize, usize, (i8, i8))> {
        let free = |number: &usize| {
            let thread = &self.threads[*number];
            let just_settled = thread.settled_us == Some(now_us);
            thread.is_wanting() && !thread.is_dirty() && !just_settled
        };
        let behind = |number: &usize| self.threads[*number].behind_us;
        let by_behind = |one: &usize, other: &usize| behind(one).total_cmp(&behind(other));
        let numbers: Vec<usize> = (0..self.threads.len()).filter(free).collect();
        let borrower = numbers.iter().copied().max_by(by_behind)?;
        let lender = numbers.iter().copied().min_by(by_behind)?;
        let times = behind(&borrower) / self.threshold_us(borrower);
        if times < 1.0 || behind(&lender) >= 0.0 {
            return None;
        }
        let (down, up) = if times < MUCH_FROM { LITTLE } else { MUCH };
        let in_range = NICE.contains(&(self.threads[borrower].nice_was - down))
            && NICE.contains(&(self.threads[lender].nice_was + up));
        in_range.then_some((borrower, lender, (down, up)))
    }
}
