//! Decides how long a borrower lets a leased machine run, and from when on its lender may let it go on itself. No I/O and no clock.
//!
//! The borrower asks its lender again and again; each answer lets the machine run for so long from when the *question* was sent. The lender
//! counts from when it *answered*, which is later, and adds what two clocks may differ by in that time. So whatever is lost or late, and
//! whichever host sleeps, the borrower has stopped before the lender goes on: times are of a clock that goes on while a host sleeps.

/// The part of a lease after which it is asked for anew.
const RENEW_PART: u64 = 3;
/// Shortest time between two questions, in milliseconds.
const ASK_MS_MIN: u64 = 1_000;
/// How long before its end the machine is stopped, in milliseconds: it takes a moment.
pub(super) const STOPS_MS_BEFORE: u64 = 3_000;
/// What a clock may be wrong by, as a part of the time, and in milliseconds beside that.
const DRIFT_PART: u64 = 40;
const DRIFT_MS: u64 = 2_000;

/// What a borrower does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    Wait,
    /// It asks for the lease anew.
    Ask,
    /// It stops the machine, and asks on.
    Stop,
}

/// Returns what a borrower does. `until_ms`: when the lease ends; `asked_ms`: when it was asked for last; `runs`: whether the machine does.
pub(super) fn next(
    now_ms: u64,
    long_ms: u64,
    until_ms: Option<u64>,
    asked_ms: Option<u64>,
    runs: bool,
) -> Next {
    let left_ms = until_ms.unwrap_or_default().saturating_sub(now_ms);
    if runs && left_ms <= STOPS_MS_BEFORE {
        return Next::Stop;
    }
    let since_ms = asked_ms.map_or(u64::MAX, |asked| now_ms.saturating_sub(asked));
    match left_ms <= long_ms - long_ms / RENEW_PART && since_ms >= ASK_MS_MIN {
        true => Next::Ask,
        false => Next::Wait,
    }
}

/// Returns until when a machine may run whose lease was asked for at this time and granted.
pub(super) fn until(asked_ms: u64, long_ms: u64) -> u64 {
    asked_ms.saturating_add(long_ms)
}

/// Returns from when on a lender may let a machine go on whose lease it granted last at this time.
pub(super) fn free_at(granted_ms: u64, long_ms: u64) -> u64 {
    granted_ms
        .saturating_add(long_ms)
        .saturating_add(long_ms / DRIFT_PART)
        .saturating_add(DRIFT_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lease_is_renewed_early_and_the_machine_stopped_before_its_end() {
        let long = 60_000;
        assert_eq!(next(0, long, None, None, false), Next::Ask);
        let granted = until(0, long);
        assert_eq!(next(19_999, long, Some(granted), Some(0), true), Next::Wait);
        assert_eq!(next(20_000, long, Some(granted), Some(0), true), Next::Ask);
        assert_eq!(
            next(20_500, long, Some(granted), Some(20_000), true),
            Next::Wait
        );
        assert_eq!(
            next(57_000, long, Some(granted), Some(56_900), true),
            Next::Stop
        );
        // what stands still is asked for on
        assert_eq!(
            next(90_000, long, Some(granted), Some(80_000), false),
            Next::Ask
        );
    }

    proptest! {
        /// Two clocks that are each wrong by a hundredth, questions and answers that are late or lost: the borrower never runs when the lender
        /// may.
        #[test]
        fn the_borrower_has_stopped_before_the_lender_may_go_on(
            long_s in 30u64..600_000,
            fast in 0.99f64..1.01,
            slow in 0.99f64..1.01,
            trips in proptest::collection::vec((0.0f64..0.6, 0.0f64..0.6, any::<bool>()), 1..20),
        ) {
            let long = long_s * 1000;
            // real time in milliseconds; each host's clock runs at its own rate
            let (borrower, lender) = (|ms: f64| (ms * fast) as u64, |ms: f64| (ms * slow) as u64);
            let (mut now, mut may_run, mut granted) = (0.0, 0, None);
            for (pause, late, heard) in trips {
                now += pause * long as f64;
                let asked = borrower(now);
                // the lender answers later, and the borrower may not hear it, or hear it when the lease is over
                let answered = now + late * long as f64;
                granted = Some(lender(answered));
                if heard {
                    may_run = may_run.max(until(asked, long));
                }
                now = answered;
            }
            let free = free_at(granted.unwrap(), long);
            // the real time at which the lender's clock says that
            let real = free as f64 / slow;
            prop_assert!(borrower(real) > may_run, "{} {}", borrower(real), may_run);
        }
    }
}
