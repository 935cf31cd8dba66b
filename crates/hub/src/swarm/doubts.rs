//! Decides whether the hub checks a pack because somebody says that it is damaged. It reads the whole pack for that, so a user or address
//! may cause it only now and then. No I/O, no clock.

use floe_front::Party;
use std::collections::HashMap;
use std::time::Duration;

/// The shortest time between two checks for one user or address.
const EACH: Duration = Duration::from_secs(60);
/// The most users and addresses for whom it checks in that time.
const PARTIES_MAX: usize = 256;

/// Who has doubted something of late, and when.
#[derive(Debug, Default)]
pub(crate) struct Doubts(HashMap<Party, Duration>);

impl Doubts {
    /// Returns whether the hub checks now; a yes counts.
    pub fn take(&mut self, now: Duration, party: &Party) -> bool {
        self.0.retain(|_, looked| now < *looked + EACH);
        let may = !self.0.contains_key(party) && self.0.len() < PARTIES_MAX;
        if may {
            self.0.insert(party.clone(), now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_doubts_again_and_again_is_heard_once_a_minute_and_all_together_a_bounded_number() {
        let mut doubts = Doubts::default();
        let party = |n: u32| Party::at(std::net::Ipv4Addr::from(0x0A00_0000 + n).into());
        let s = Duration::from_secs;
        assert!(doubts.take(s(0), &party(1)) && doubts.take(s(1), &party(2)));
        assert!(!doubts.take(s(59), &party(1)) && doubts.take(s(60), &party(1)));
        let heard = (100..1000)
            .filter(|n| doubts.take(s(60), &party(*n)))
            .count();
        assert_eq!(heard, PARTIES_MAX - 2);
        assert!(doubts.take(s(61), &party(2)));
    }
}
