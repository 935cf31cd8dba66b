//! Decides which connections may stay: a state machine without sockets.
//!
//! If all seats are taken, a new connection is still accepted if its party holds fewer than the largest party. The
//! largest party then loses a connection: the oldest that has never said anything, or else the one that has waited longest
//! for a request, or if none waits, the one that has been busy longest. The largest party itself gets another connection for
//! one of its own that waits. So an address that opens every available connection keeps nobody out, not even who shares it,
//! and idle connections go first.
//!
//! A connection counts for its address until its client has proved to be a user; from then on it counts for the user, so
//! that strangers at the same address cannot displace it. At a port that is for users, strangers have seats of their own
//! ([`Strangers`]), and take no others.

use super::{Party, Strangers};
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

/// What a connection does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing has come from its client.
    Silent,
    /// It waits for a request.
    Waits,
    /// Its request is being answered.
    Busy,
}

struct Seat {
    party: Party,
    /// When its state last changed, as a count of events.
    since: u64,
    state: State,
}

/// A party's connections, by state. Those longest in their state are first.
#[derive(Default)]
struct Holding {
    by_state: [BTreeMap<u64, Id>; 3],
}

impl Holding {
    fn len(&self) -> usize {
        self.by_state.iter().map(BTreeMap::len).sum()
    }

    /// How many are not busy.
    fn idle(&self) -> usize {
        self.len() - self.by_state[State::Busy as usize].len()
    }

    fn of(&mut self, state: State) -> &mut BTreeMap<u64, Id> {
        &mut self.by_state[state as usize]
    }

    /// The first to go of those that are not busy.
    fn idlest(&self) -> Option<Id> {
        self.first_to_go().filter(|_| self.idle() > 0)
    }

    fn first_to_go(&self) -> Option<Id> {
        self.by_state
            .iter()
            .flat_map(BTreeMap::values)
            .next()
            .copied()
    }
}

/// Seats for one kind of parties, or for all.
#[derive(Clone, Copy)]
struct Room {
    max: usize,
    each_max: usize,
}

/// The party may have no further connection.
struct Full;

/// The seats and who holds them: see the module's documentation.
pub struct Seats {
    room: Room,
    /// Seats of strangers, if those have their own.
    strangers: Option<Room>,
    seats: HashMap<Id, Seat>,
    parties: HashMap<Party, Holding>,
    /// How many seats strangers hold, and users.
    held: [usize; 2],
    events: u64,
}

impl Seats {
    /// Makes seats for `max` connections, at most `each_max` for one party.
    pub fn new(max: usize, each_max: usize) -> Seats {
        Seats {
            room: room(max, each_max),
            strangers: None,
            seats: HashMap::new(),
            parties: HashMap::new(),
            held: [0; 2],
            events: 0,
        }
    }

    /// Gives strangers seats of their own, beside the others, which are for users alone from now on.
    pub fn with_strangers(mut self, strangers: &Strangers) -> Seats {
        let (max, each_max) = (
            strangers.connections_max,
            strangers
                .connections_each_max
                .min(strangers.connections_max),
        );
        self.strangers = Some(room(max, each_max));
        self
    }

    /// Returns how many seats are taken.
    pub fn taken(&self) -> usize {
        self.seats.len()
    }

    /// Decides about a new connection.
    pub fn arrive(&mut self, party: Party) -> Arrival {
        let Ok(goes) = self.who_goes(&party) else {
            return Arrival::Refused;
        };
        if let Some(goes) = goes {
            self.leave(goes);
        }
        let id = self.seat(party);
        goes.map_or(Arrival::Seated(id), |goes| Arrival::Instead(id, goes))
    }

    /// Returns the connection that must be closed for one more of `party`, if one must.
    fn who_goes(&self, party: &Party) -> Result<Option<Id>, Full> {
        let (room, taken) = match self.strangers {
            None => (self.room, self.held.iter().sum()),
            Some(strangers) if !party.is_user() => (strangers, self.held[0]),
            Some(_) => (self.room, self.held[1]),
        };
        let holding = self.parties.get(party);
        let own = holding.map_or(0, Holding::len);
        if own >= room.each_max {
            return Ok(holding.and_then(Holding::first_to_go));
        }
        if taken < room.max {
            return Ok(None);
        }
        let same_room = |other: &&Party| self.strangers.is_none() || class(other) == class(party);
        let others = self.parties.iter().filter(|(other, _)| same_room(other));
        let largest = others
            .map(|(_, holding)| holding)
            .max_by_key(|holding| (holding.len(), holding.idle()));
        let goes = match largest {
            Some(largest) if largest.len() > own => largest.first_to_go(),
            _ => holding.and_then(Holding::idlest),
        };
        goes.map(Some).ok_or(Full)
    }

    fn seat(&mut self, party: Party) -> Id {
        self.events += 1;
        let id = self.events;
        self.held[class(&party)] += 1;
        self.parties
            .entry(party.clone())
            .or_default()
            .of(State::Silent)
            .insert(id, id);
        self.seats.insert(
            id,
            Seat {
                party,
                since: id,
                state: State::Silent,
            },
        );
        id
    }

    /// Records that something has come from a connection's client, and that its request is awaited.
    pub fn speaks(&mut self, id: Id) {
        self.becomes(id, State::Waits);
    }

    /// Records that a request arrived on a connection (`busy`), or that it was answered.
    pub fn turns(&mut self, id: Id, busy: bool) {
        self.becomes(id, if busy { State::Busy } else { State::Waits });
    }

    fn becomes(&mut self, id: Id, state: State) {
        let Some(seat) = self.seats.get_mut(&id).filter(|seat| seat.state != state) else {
            return;
        };
        self.events += 1;
        if let Some(holding) = self.parties.get_mut(&seat.party) {
            holding.of(seat.state).remove(&seat.since);
            holding.of(state).insert(self.events, id);
        }
        (seat.state, seat.since) = (state, self.events);
    }

    /// Counts a connection for `party` from now on. Returns a connection of that party which must be closed in exchange,
    /// if any.
    pub fn known(&mut self, id: Id, party: &Party) -> Option<Id> {
        let seat = self
            .seats
            .get_mut(&id)
            .filter(|seat| seat.party != *party)?;
        let (state, since) = (seat.state, seat.since);
        let old = std::mem::replace(&mut seat.party, party.clone());
        self.take_from(&old, state, since);
        // if all of its party's connections are at work and there is no room for more, it is this one that goes
        let goes = self.who_goes(party).unwrap_or(Some(id));
        self.held[class(party)] += 1;
        let holding = self.parties.entry(party.clone()).or_default();
        holding.of(state).insert(since, id);
        if let Some(goes) = goes {
            self.leave(goes);
        }
        goes
    }

    /// Removes a connection that is closed or must be closed.
    pub fn leave(&mut self, id: Id) {
        if let Some(seat) = self.seats.remove(&id) {
            self.take_from(&seat.party, seat.state, seat.since);
        }
    }

    fn take_from(&mut self, party: &Party, state: State, since: u64) {
        self.held[class(party)] -= 1;
        if let Some(holding) = self.parties.get_mut(party) {
            holding.of(state).remove(&since);
            if holding.len() == 0 {
                self.parties.remove(party);
            }
        }
    }
}

fn room(max: usize, each_max: usize) -> Room {
    Room {
        max: max.max(1),
        each_max: each_max.max(1),
    }
}

/// Returns the place of a party's kind in [`Seats::held`].
fn class(party: &Party) -> usize {
    usize::from(party.is_user())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

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
        // now they hold one and two: the larger one gets another for one of its own that waits, and none if all are busy
        let Arrival::Instead(newest, goes) = seats.arrive(address(2)) else {
            panic!("one of its own waits");
        };
        assert_ne!(goes, ids[0]);
        for id in [newest, newest - 1] {
            seats.turns(id, true);
        }
        assert_eq!(seats.arrive(address(2)), Arrival::Refused);
        assert!(matches!(seats.arrive(address(1)), Arrival::Instead(..)));
    }

    #[test]
    fn who_has_begun_to_speak_outlasts_any_number_of_silent_ones_behind_its_address() {
        let mut seats = Seats::new(10, 4);
        let Arrival::Seated(speaker) = seats.arrive(address(1)) else {
            panic!("room");
        };
        seats.speaks(speaker);
        for _ in 0..100 {
            match seats.arrive(address(1)) {
                Arrival::Instead(_, goes) => assert_ne!(goes, speaker),
                Arrival::Seated(_) => {}
                Arrival::Refused => panic!("an address makes room for itself"),
            }
        }
    }

    /// Seats for users, and two for each stranger's address, three in all.
    fn for_users(max: usize, each_max: usize) -> Seats {
        Seats::new(max, each_max).with_strangers(&Strangers {
            connections_max: 3,
            connections_each_max: 2,
            life: Duration::MAX,
        })
    }

    #[test]
    fn at_a_port_for_users_strangers_take_no_users_seat_and_a_newcomer_always_gets_in() {
        let mut seats = for_users(2, 2);
        let user = |name: &str| Party::User(name.into());
        let enter = |seats: &mut Seats, name: &str| {
            let id = match seats.arrive(address(1)) {
                Arrival::Seated(id) | Arrival::Instead(id, _) => id,
                Arrival::Refused => panic!("whoever comes may say who it is"),
            };
            (id, seats.known(id, &user(name)))
        };
        let (first, none) = enter(&mut seats, "ann");
        assert_eq!(none, None);
        let (second, none) = enter(&mut seats, "ann");
        assert_eq!(none, None);
        for n in 0..100 {
            match seats.arrive(address(n % 7)) {
                Arrival::Instead(_, goes) => assert!(goes != first && goes != second),
                Arrival::Seated(_) => {}
                Arrival::Refused => panic!("strangers that only wait make room"),
            }
            assert_eq!(seats.held[1], 2);
            assert!(seats.held[0] <= 3);
        }
        // users share theirs as ever: the one with most makes room for another
        let (_, goes) = enter(&mut seats, "bob");
        assert_eq!(goes, Some(first));
        // who has as many as anybody, all of them at work, gets no more
        seats.turns(second, true);
        let (more, goes) = enter(&mut seats, "ann");
        assert_eq!(goes, Some(more));
        assert_eq!(seats.held[1], 2);
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
            events in proptest::collection::vec((0u8..4, 0u8..6, any::<proptest::sample::Index>()), 1..400),
            apart: bool,
        ) {
            let (max, each) = (12, 8);
            let mut seats = match apart {
                true => for_users(max, each),
                false => Seats::new(max, each),
            };
            let mut open: Vec<Id> = Vec::new();
            for (what, who, which) in events {
                let some = (!open.is_empty()).then(|| open[which.index(open.len().max(1))]);
                match (what, some) {
                    (1, Some(id)) if who == 5 => seats.speaks(id),
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
                        let rivals = seats.parties.iter().filter(|(party, _)| !apart || !party.is_user());
                        let largest = rivals.map(|(_, holding)| holding.len()).max().unwrap_or(0);
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
                let [strangers, users] = seats.held;
                match apart {
                    true => prop_assert!(strangers <= 3 && users <= max),
                    false => prop_assert!(open.len() <= max),
                }
                prop_assert!(seats.parties.values().all(|holding| holding.len() <= each));
                prop_assert_eq!(strangers + users, open.len());
                let held: usize = seats.parties.values().map(Holding::len).sum();
                prop_assert_eq!((held, seats.seats.len()), (open.len(), open.len()));
            }
        }
    }
}
