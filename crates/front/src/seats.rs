//! Decides which connections may stay: a state machine without sockets.
//!
//! If all seats are taken, a new connection is still accepted if its party holds fewer than the largest party. The
//! largest party then loses a connection: the one that has waited longest for a request, or if none waits, the one that
//! has been busy longest. So an address that opens every available connection keeps nobody out, and idle connections go
//! first.
//!
//! A connection counts for its address until a request on it has a valid token; from then on it counts for the user, so
//! that strangers at the same address cannot displace it.

use super::Party;
use std::collections::{BTreeMap, HashMap};

/// Identifies a connection.
pub type Id = u64;

/// What to do with a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Accept it.
    Seated(Id),
    /// Accept the first, and close the second.
    Instead(Id, Id),
    /// Close it.
    Refused,
}

struct Seat {
    party: Party,
    /// When its state last changed, as a count of events.
    since: u64,
    busy: bool,
}

/// A party's connections. Those longest in their state are first.
#[derive(Default)]
struct Holding {
    waiting: BTreeMap<u64, Id>,
    busy: BTreeMap<u64, Id>,
}

impl Holding {
    fn len(&self) -> usize {
        self.waiting.len() + self.busy.len()
    }

    fn of(&mut self, busy: bool) -> &mut BTreeMap<u64, Id> {
        if busy {
            &mut self.busy
        } else {
            &mut self.waiting
        }
    }

    fn first_to_go(&self) -> Option<Id> {
        let oldest = self.waiting.values().next();
        oldest.or_else(|| self.busy.values().next()).copied()
    }
}

/// The seats and who holds them: see the module's documentation.
pub struct Seats {
    max: usize,
    each_max: usize,
    seats: HashMap<Id, Seat>,
    parties: HashMap<Party, Holding>,
    events: u64,
}

impl Seats {
    /// Makes seats for `max` connections, at most `each_max` for one party.
    pub fn new(max: usize, each_max: usize) -> Seats {
        Seats {
            max: max.max(1),
            each_max: each_max.max(1),
            seats: HashMap::new(),
            parties: HashMap::new(),
            events: 0,
        }
    }

    /// Decides about a new connection.
    pub fn arrive(&mut self, party: Party) -> Arrival {
        let own = self.parties.get(&party).map_or(0, Holding::len);
        let goes = if own >= self.each_max {
            self.parties.get(&party).and_then(Holding::first_to_go)
        } else if self.seats.len() >= self.max {
            let largest = self
                .parties
                .values()
                .max_by_key(|holding| (holding.len(), holding.waiting.len()));
            match largest {
                Some(largest) if largest.len() > own => largest.first_to_go(),
                _ => return Arrival::Refused,
            }
        } else {
            None
        };
        if let Some(goes) = goes {
            self.leave(goes);
        }
        let id = self.seat(party);
        goes.map_or(Arrival::Seated(id), |goes| Arrival::Instead(id, goes))
    }

    fn seat(&mut self, party: Party) -> Id {
        self.events += 1;
        let id = self.events;
        self.parties
            .entry(party.clone())
            .or_default()
            .waiting
            .insert(id, id);
        self.seats.insert(
            id,
            Seat {
                party,
                since: id,
                busy: false,
            },
        );
        id
    }

    /// Records that a request arrived on a connection (`busy`), or that it was answered.
    pub fn turns(&mut self, id: Id, busy: bool) {
        let Some(seat) = self.seats.get_mut(&id).filter(|seat| seat.busy != busy) else {
            return;
        };
        self.events += 1;
        if let Some(holding) = self.parties.get_mut(&seat.party) {
            holding.of(seat.busy).remove(&seat.since);
            holding.of(busy).insert(self.events, id);
        }
        (seat.busy, seat.since) = (busy, self.events);
    }

    /// Counts a connection for `party` from now on. Returns a connection of that party which must be closed in exchange,
    /// if any.
    pub fn known(&mut self, id: Id, party: &Party) -> Option<Id> {
        let seat = self
            .seats
            .get_mut(&id)
            .filter(|seat| seat.party != *party)?;
        let (busy, since) = (seat.busy, seat.since);
        let old = std::mem::replace(&mut seat.party, party.clone());
        self.take_from(&old, busy, since);
        let holding = self.parties.entry(party.clone()).or_default();
        let goes = (holding.len() >= self.each_max)
            .then(|| holding.first_to_go())
            .flatten();
        holding.of(busy).insert(since, id);
        if let Some(goes) = goes {
            self.leave(goes);
        }
        goes
    }

    /// Removes a connection that is closed or must be closed.
    pub fn leave(&mut self, id: Id) {
        if let Some(seat) = self.seats.remove(&id) {
            self.take_from(&seat.party, seat.busy, seat.since);
        }
    }

    fn take_from(&mut self, party: &Party, busy: bool, since: u64) {
        if let Some(holding) = self.parties.get_mut(party) {
            holding.of(busy).remove(&since);
            if holding.len() == 0 {
                self.parties.remove(party);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(n: u8) -> Party {
        Party::at([127, 0, 0, n].into())
    }

    #[test]
    fn an_address_that_holds_all_loses_its_idlest_to_a_newcomer() {
        let mut seats = Seats::new(3, 3);
        let ids: Vec<Id> = (0..3)
            .map(|_| match seats.arrive(address(1)) {
                Arrival::Seated(id) => id,
                other => panic!("{other:?}"),
            })
            .collect();
        seats.turns(ids[0], true);
        // the first is busy, so the second has waited longest
        assert!(matches!(seats.arrive(address(2)), Arrival::Instead(_, goes) if goes == ids[1]));
        assert!(matches!(seats.arrive(address(2)), Arrival::Instead(_, goes) if goes == ids[2]));
        // now they hold one and two: the smaller one gets another, the larger one does not
        assert_eq!(seats.arrive(address(2)), Arrival::Refused);
        assert!(matches!(seats.arrive(address(1)), Arrival::Instead(..)));
    }

    #[test]
    fn who_has_shown_a_token_is_not_pushed_out_by_strangers_behind_the_same_address() {
        let mut seats = Seats::new(10, 4);
        let Arrival::Seated(ann) = seats.arrive(address(1)) else {
            panic!("room");
        };
        assert_eq!(seats.known(ann, &Party::User("ann".into())), None);
        for _ in 0..100 {
            match seats.arrive(address(1)) {
                Arrival::Instead(_, goes) => assert_ne!(goes, ann),
                Arrival::Seated(_) => {}
                Arrival::Refused => panic!("an address makes room for itself"),
            }
        }
        assert!(seats.seats.contains_key(&ann));
    }

    #[test]
    fn a_v6_customer_is_one_party_and_mapped_v4_is_v4() {
        let v6 = |text: &str| Party::at(text.parse().unwrap());
        assert_eq!(v6("2001:db8::1"), v6("2001:db8::ffff:1"));
        assert_ne!(v6("2001:db8::1"), v6("2001:db8:0:1::1"));
        assert_eq!(v6("::ffff:127.0.0.1"), address(1));
    }

    proptest! {
        #[test]
        fn bounds_hold_and_nobody_small_is_kept_out(
            events in proptest::collection::vec((0u8..4, 0u8..6, any::<proptest::sample::Index>()), 1..400)
        ) {
            let (max, each) = (12, 8);
            let mut seats = Seats::new(max, each);
            let mut open: Vec<Id> = Vec::new();
            for (what, who, which) in events {
                let some = (!open.is_empty()).then(|| open[which.index(open.len().max(1))]);
                match (what, some) {
                    (1, Some(id)) => seats.turns(id, who % 2 == 0),
                    (2, Some(id)) => {
                        if let Some(goes) = seats.known(id, &Party::User(format!("u{}", who % 2).into())) {
                            open.retain(|other| *other != goes);
                        }
                    }
                    (3, Some(id)) => {
                        seats.leave(id);
                        open.retain(|other| *other != id);
                    }
                    _ => {
                        let own = seats.parties.get(&address(who)).map_or(0, Holding::len);
                        let largest = seats.parties.values().map(Holding::len).max().unwrap_or(0);
                        match seats.arrive(address(who)) {
                            Arrival::Seated(id) => open.push(id),
                            Arrival::Instead(id, goes) => {
                                open.retain(|other| *other != goes);
                                open.push(id);
                            }
                            // only a party that holds as much as any other is refused
                            Arrival::Refused => prop_assert!(own >= largest),
                        }
                    }
                }
                prop_assert!(open.len() <= max);
                prop_assert!(seats.parties.values().all(|holding| holding.len() <= each));
                let held: usize = seats.parties.values().map(Holding::len).sum();
                prop_assert_eq!((held, seats.seats.len()), (open.len(), open.len()));
            }
        }
    }
}
