//! Decides which request is processed next: a state machine without threads and clocks.
//!
//! Processing takes slots, of which there are a few more than processors. Waiting parties take turns: the party whose
//! requests have used least time goes first, however many requests or connections it has; within a party the oldest
//! request goes first. No party has more than half of the slots while another waits.
//!
//! Users go before strangers. While users are active, strangers have one slot in eight and a bounded part of the time:
//! otherwise a flood of requests, each of them cheap, would keep the processors busy all the time, and a user's request
//! would wait for the scheduler instead of for a slot. While no user is active, strangers get all slots except those that
//! a first user needs.

use super::Party;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Identifies a request that waits or is being processed.
pub type Ticket = u64;

/// How long users count as active after their last request.
const USERS_ABOUT: Duration = Duration::from_secs(2);
/// Most processing time that strangers can accumulate.
const CREDIT_MAX: Duration = Duration::from_millis(20);
/// Most processing time that they can owe, so that one long request does not lock them out for minutes.
const DEBT_MAX: Duration = Duration::from_secs(1);
/// Least cost of a request besides its slot: its head, its answer, the kernel's part.
const COST_MIN: Duration = Duration::from_micros(200);
/// Most parties that are remembered although none of their requests waits or is being processed.
const REMEMBERED_MAX: usize = 4096;

/// The capacity to be shared.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Number of requests that are processed at the same time.
    pub slots: usize,
    /// Processor seconds per second that strangers may use while users are active.
    pub strangers_share: f64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Process this request.
    Go(Ticket),
    /// Nothing, until this much time has passed or a request ends.
    In(Duration),
    /// Nothing, until a request ends or arrives.
    Nobody,
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Ticket>,
    running: usize,
    /// Time that its requests took: the party with least goes first.
    used: Duration,
}

/// The queue of requests: see the module's documentation. `now` is always the time since any fixed moment.
pub struct Turns {
    room: Room,
    lines: HashMap<Party, Line>,
    /// Parties with a waiting request, ordered by time used: strangers, then users.
    ready: [BTreeSet<(Duration, Party)>; 2],
    /// Time used by the party that went last. A new party begins there, so that nobody accumulates turns by staying away.
    floor: [Duration; 2],
    running: [usize; 2],
    tickets: Ticket,
    users_seen: Option<Duration>,
    credit_s: f64,
    credit_at: Duration,
}

impl Turns {
    /// Makes a queue with all slots free.
    pub fn new(room: Room) -> Turns {
        Turns {
            room,
            lines: HashMap::new(),
            ready: Default::default(),
            floor: [Duration::ZERO; 2],
            running: [0; 2],
            tickets: 0,
            users_seen: None,
            credit_s: CREDIT_MAX.as_secs_f64(),
            credit_at: Duration::ZERO,
        }
    }

    /// Adds a request. Call [`next`](Self::next) afterwards.
    pub fn ask(&mut self, now: Duration, party: &Party) -> Ticket {
        let class = usize::from(party.is_user());
        if party.is_user() {
            self.users_seen = Some(now);
        }
        self.tickets += 1;
        let ticket = self.tickets;
        let floor = self.floor[class];
        let line = self.lines.entry(party.clone()).or_default();
        if line.waiting.is_empty() && line.running == 0 {
            line.used = line.used.max(floor);
        }
        line.waiting.push_back(ticket);
        self.enter(party);
        ticket
    }

    /// Removes a waiting request that is no longer wanted.
    pub fn cancel(&mut self, party: &Party, ticket: Ticket) {
        if let Some(line) = self.lines.get_mut(party) {
            line.waiting.retain(|other| *other != ticket);
            self.enter(party);
        }
        self.forget();
    }

    /// Records that a request is done and how long it took. Call [`next`](Self::next) afterwards.
    pub fn done(&mut self, now: Duration, party: &Party, took: Duration) {
        let class = usize::from(party.is_user());
        let cost = took.max(COST_MIN);
        self.running[class] -= 1;
        if class == 1 {
            self.users_seen = Some(now);
        } else {
            self.earn(now);
            self.credit_s = (self.credit_s - cost.as_secs_f64()).max(-DEBT_MAX.as_secs_f64());
        }
        if let Some(line) = self.lines.get_mut(party) {
            self.ready[class].remove(&(line.used, party.clone()));
            line.running -= 1;
            line.used += cost;
            self.enter(party);
        }
        self.forget();
    }

    /// Gives a slot to the next request, if possible. Call it again until it returns no more requests.
    pub fn next(&mut self, now: Duration) -> Next {
        let running = self.running[0] + self.running[1];
        if running >= self.room.slots {
            return Next::Nobody;
        }
        if let Some(ticket) = self.go(1) {
            return Next::Go(ticket);
        }
        if self.ready[0].is_empty() {
            return Next::Nobody;
        }
        let about = self.users_seen.map(|seen| seen + USERS_ABOUT);
        let Some(until) = about.filter(|until| *until > now) else {
            let left_for_users = (self.room.slots / 4).min(self.room.slots - 1);
            return match running + left_for_users < self.room.slots {
                true => self.go(0).map_or(Next::Nobody, Next::Go),
                false => Next::Nobody,
            };
        };
        if self.running[0] >= (self.room.slots / 8).max(1) {
            return Next::Nobody;
        }
        self.earn(now);
        if self.credit_s > 0.0 {
            return self.go(0).map_or(Next::Nobody, Next::Go);
        }
        let debt = Duration::from_secs_f64(-self.credit_s / self.room.strangers_share);
        Next::In((debt + Duration::from_millis(1)).min(until - now))
    }

    fn earn(&mut self, now: Duration) {
        let since = now.saturating_sub(self.credit_at).as_secs_f64();
        self.credit_at = now;
        self.credit_s =
            (self.credit_s + since * self.room.strangers_share).min(CREDIT_MAX.as_secs_f64());
    }

    /// Gives a slot to the first party of a class that may have one.
    fn go(&mut self, class: usize) -> Option<Ticket> {
        let half = (self.room.slots / 2).max(1);
        let alone = self.ready[0].len() + self.ready[1].len() <= 1;
        let party = self.ready[class]
            .iter()
            .map(|(_, party)| party)
            .find(|party| alone || self.lines.get(*party).is_some_and(|l| l.running < half))?
            .clone();
        let line = self.lines.get_mut(&party)?;
        let ticket = line.waiting.pop_front()?;
        line.running += 1;
        self.running[class] += 1;
        self.floor[class] = self.floor[class].max(line.used);
        self.enter(&party);
        Some(ticket)
    }

    /// Adds a party to the ready ones if it has a waiting request, otherwise removes it.
    fn enter(&mut self, party: &Party) {
        if let Some(line) = self.lines.get(party) {
            let ready = &mut self.ready[usize::from(party.is_user())];
            let place = (line.used, party.clone());
            if line.waiting.is_empty() {
                ready.remove(&place);
            } else {
                ready.insert(place);
            }
        }
    }

    /// Forgets parties without requests once there are many.
    fn forget(&mut self) {
        if self.lines.len() > REMEMBERED_MAX {
            self.lines
                .retain(|_, line| !line.waiting.is_empty() || line.running > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: Room = Room {
        slots: 8,
        strangers_share: 0.25,
    };

    fn party(n: u8) -> Party {
        match n {
            0..3 => Party::User(n.to_string().into()),
            n => Party::at([10, 0, 0, n].into()),
        }
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_user_goes_before_any_number_of_strangers() {
        let mut turns = Turns::new(ROOM);
        let mut now = Duration::ZERO;
        for _ in 0..500 {
            turns.ask(now, &party(9));
        }
        let mut strangers = 0;
        while let Next::Go(_) = turns.next(now) {
            strangers += 1;
        }
        // some slots are reserved for the first user
        assert_eq!(strangers, 6);
        let ann = turns.ask(now, &party(0));
        assert_eq!(turns.next(now), Next::Go(ann));
        for _ in 0..strangers {
            turns.done(now, &party(9), 10 * MS);
        }
        turns.done(now, &party(0), MS);
        // from now on strangers wait until they have paid for what they used
        let Next::In(wait) = turns.next(now) else {
            panic!("strangers owe some time");
        };
        now += wait;
        assert!(wait > 100 * MS && wait <= USERS_ABOUT, "{wait:?}");
        assert!(matches!(turns.next(now), Next::Go(_)));
        assert_eq!(turns.next(now), Next::Nobody, "one at a time");
    }

    #[test]
    fn who_asks_for_much_waits_for_who_asks_for_little() {
        let mut turns = Turns::new(Room { slots: 1, ..ROOM });
        let mut count = [0; 2];
        let mut running: Vec<(Ticket, u8)> = Vec::new();
        let mut owner = HashMap::new();
        for _ in 0..200 {
            owner.insert(turns.ask(Duration::ZERO, &party(0)), 0u8);
            owner.insert(turns.ask(Duration::ZERO, &party(1)), 1u8);
        }
        for _ in 0..110 {
            if let Some((_, who)) = running.pop() {
                // the second party's requests take ten times as long
                let took = if who == 0 { MS } else { 10 * MS };
                turns.done(Duration::ZERO, &party(who), took);
            }
            let Next::Go(ticket) = turns.next(Duration::ZERO) else {
                panic!("one always waits");
            };
            let who = owner[&ticket];
            count[usize::from(who)] += 1;
            running.push((ticket, who));
        }
        assert!(count[0] >= 95 && count[1] >= 9, "{count:?}");
    }

    proptest! {
        #[test]
        fn slots_are_bounded_shared_and_never_lost(
            events in proptest::collection::vec((0u8..4, 0u8..8, 0u64..50), 1..600)
        ) {
            let mut turns = Turns::new(ROOM);
            let mut now = Duration::ZERO;
            let mut waiting: HashMap<Ticket, u8> = HashMap::new();
            let mut running: Vec<u8> = Vec::new();
            for (what, who, ms) in events {
                now += Duration::from_millis(ms);
                match what {
                    0 | 1 => {
                        waiting.insert(turns.ask(now, &party(who)), who);
                    }
                    2 if !running.is_empty() => {
                        let who = running.remove(usize::from(who) % running.len());
                        turns.done(now, &party(who), Duration::from_millis(ms));
                    }
                    _ => {
                        if let Some((&ticket, &who)) = waiting.iter().min() {
                            turns.cancel(&party(who), ticket);
                            waiting.remove(&ticket);
                        }
                    }
                }
                while let Next::Go(ticket) = turns.next(now) {
                    let who = waiting.remove(&ticket);
                    prop_assert!(who.is_some(), "a ticket goes once, and not when it was cancelled");
                    running.extend(who);
                }
                prop_assert!(running.len() <= ROOM.slots);
                // a user waits only for slots that are taken, or because it has its half
                for who in waiting.values().filter(|who| **who < 3) {
                    let own = running.iter().filter(|other| *other == who).count();
                    prop_assert!(running.len() == ROOM.slots || own >= ROOM.slots / 2);
                }
            }
            // and when all requests end, all waiting ones go
            for _ in 0..waiting.len() + running.len() + 1 {
                for who in running.drain(..) {
                    turns.done(now, &party(who), MS);
                }
                now += 10 * USERS_ABOUT;
                while let Next::Go(ticket) = turns.next(now) {
                    running.extend(waiting.remove(&ticket));
                }
            }
            prop_assert!(waiting.is_empty());
        }
    }
}
