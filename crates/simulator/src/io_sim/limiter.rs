//! The paper's own limiter in the simulator, to the letter (vSIP, section 3.2.1): three priorities, and for each machine and period so many requests of
//! the first one and so many in all. floe's credit of half a minute stands in its place.

use floe_sched::{Class, Full, MachineId, Op, Policy, Who};
use std::collections::{BTreeMap, VecDeque};

/// How long a period is, in microseconds. The paper doesn't say; a second is what its figures fit.
const PERIOD_US: u64 = 1_000_000;
/// Table 1 of the paper: every machine has these.
const WEIGHT: f64 = 5.0;
const CAP: f64 = 10.0;

/// What a machine has sent in a period.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    first: u64,
    all: u64,
}

/// See the module's description. Nothing is carried over from one period to the next.
#[derive(Debug)]
pub struct Limiter<T> {
    /// High, common and low priority.
    queues: [VecDeque<(Who, T)>; 3],
    sent: BTreeMap<MachineId, Sent>,
    ends_us: u64,
    served: u64,
    /// Requests that the disk will serve in this period, as in the last one, and between how many machines; `None` in the first.
    predicted: Option<(f64, usize)>,
}

impl<T> Default for Limiter<T> {
    fn default() -> Limiter<T> {
        Limiter {
            queues: Default::default(),
            sent: BTreeMap::new(),
            ends_us: PERIOD_US,
            served: 0,
            predicted: None,
        }
    }
}

impl<T> Limiter<T> {
    /// Makes one without requests.
    pub fn new() -> Limiter<T> {
        Limiter::default()
    }

    fn turn(&mut self, now_us: u64) {
        if now_us < self.ends_us {
            return;
        }
        let at_work = self.sent.len();
        self.predicted = (self.served > 0 && at_work > 0).then_some((self.served as f64, at_work));
        self.ends_us = (now_us / PERIOD_US + 1) * PERIOD_US;
        self.served = 0;
        self.sent.clear();
    }

    /// Returns how many requests of a machine may be first and how many there may be, `W` and `C` of the paper.
    fn most(&self) -> (f64, f64) {
        let Some((served, at_work)) = self.predicted else {
            return (f64::INFINITY, f64::INFINITY);
        };
        let caps = CAP * at_work as f64;
        (WEIGHT / caps * served, CAP / caps * served)
    }
}

impl<T: Send> Policy<T> for Limiter<T> {
    fn submit(&mut self, now_us: u64, who: Who, _: Op, _: u64, request: T) -> Result<(), Full<T>> {
        self.turn(now_us);
        let (first_most, all_most) = self.most();
        let sent = self.sent.entry(who.machine).or_default();
        let queue = if sent.all as f64 >= all_most {
            2
        } else if who.class == Class::Interactive && (sent.first as f64) < first_most {
            sent.first += 1;
            0
        } else {
            1
        };
        sent.all += 1;
        self.queues[queue].push_back((who, request));
        Ok(())
    }

    fn next(&mut self, _: u64, ready: &mut dyn FnMut(&Who, &T) -> bool) -> Option<(Who, T)> {
        let queue = self.queues.iter_mut().find(|queue| {
            let first = queue.front();
            first.is_some_and(|(who, request)| ready(who, request))
        })?;
        queue.pop_front()
    }

    fn served(&mut self, now_us: u64, _: Who, _: Op, _: u64) {
        self.turn(now_us);
        self.served += 1;
    }

    fn retain(&mut self, keep: &mut dyn FnMut(&T) -> bool) {
        for queue in &mut self.queues {
            queue.retain(|(_, request)| keep(request));
        }
    }

    fn len(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(machine: u32, class: Class) -> Who {
        Who {
            class,
            ..Who::demand(MachineId(machine))
        }
    }

    #[test]
    fn half_of_a_share_goes_first_the_rest_is_common_and_what_is_beyond_it_is_low() {
        let mut limiter = Limiter::new();
        // two machines, a hundred requests in the first second: 50 for each, 25 of them first
        for number in 0..100 {
            let machine = who(1 + number % 2, Class::Normal);
            limiter.submit(10, machine, Op::Read, 4096, number).unwrap();
            limiter.next(10, &mut |_, _| true).unwrap();
            limiter.served(10, machine, Op::Read, 4096);
        }
        let now_us = PERIOD_US;
        for number in 0..60 {
            let machine = who(1, Class::Interactive);
            limiter
                .submit(now_us, machine, Op::Read, 4096, number)
                .unwrap();
        }
        assert_eq!(limiter.queues.each_ref().map(VecDeque::len), [25, 25, 10]);
        limiter
            .submit(now_us, who(2, Class::Normal), Op::Read, 4096, 99)
            .unwrap();
        let order: Vec<u32> = std::iter::from_fn(|| limiter.next(now_us, &mut |_, _| true))
            .map(|(_, number)| number)
            .collect();
        assert_eq!((order[0], order[24], order[50], order[60]), (0, 24, 99, 59));
        assert_eq!(limiter.len(), 0);
    }

    #[test]
    fn nothing_is_carried_over_and_an_idle_period_says_nothing() {
        let mut limiter = Limiter::new();
        limiter
            .submit(0, who(1, Class::Normal), Op::Read, 1, 0)
            .unwrap();
        limiter.served(0, who(1, Class::Normal), Op::Read, 1);
        limiter.turn(PERIOD_US);
        assert_eq!(limiter.most(), (0.5, 1.0));
        limiter.turn(5 * PERIOD_US);
        assert_eq!(limiter.most(), (f64::INFINITY, f64::INFINITY));
    }
}
