//! Who belongs to the swarm, who can be reached, and who is to be dialled when. Decided without I/O and clock.
//!
//! A member counts as present until it can't be reached. One without a connection is responsible for pieces like all others (it is their
//! *warden*, see [`crate::policy`]), and is dialled when there is something to ask of it. Each host keeps connections to [`NEAR`] others
//! and is chosen by about as many, so that it has some twice as many neighbours, who tell each other what they have. A member that can't be
//! reached counts as gone for a time that grows with each failure.
use crate::policy::{Fault, PEERS_MAX, PeerId};
use std::collections::{BTreeMap, HashSet};

/// Members that a host keeps connections to by itself. As many choose this host, so that some fifty are told what it has.
pub const NEAR: usize = 24;
/// Most connections of a swarm, some 8 MB of memory. Members beyond are turned away and try again.
pub const CONNECTIONS_MAX: usize = 128;
/// Neighbours that are told what comes here, each of which has a map of that.
pub const TOLD_MAX: usize = 64;
/// How often they are told, in microseconds: not for each piece, or a host would read a hundred messages for each piece that it gets.
pub const TELL_EVERY_US: u64 = 150_000;
/// A connection that was made to ask something ends when it is not used for so long, in microseconds.
pub const REST_US: u64 = 30_000_000;
/// Dials under way: each is a handshake, which costs a millisecond of a processor.
const DIALS_MAX: usize = 16;
/// How long a member is left alone after a first failure, in microseconds. Often it only has not heard of this host yet.
const AWAY_US: u64 = 500_000;
/// How long at most.
const AWAY_US_MAX: u64 = 30_000_000;

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no connection, and might be.
    Apart,
    Dialling,
    Connected,
    /// It could not be reached, or has left.
    Away {
        until_us: u64,
    },
    /// It is not spoken to any more.
    Banned,
}

#[derive(Clone, Debug)]
struct Entry<M> {
    member: M,
    state: State,
    near: bool,
    /// Whether the policy counts it as a host of the swarm.
    present: bool,
    failures: u32,
}

/// What a host has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Tell the policy that a host takes part.
    Joined(PeerId),
    /// Tell the policy that a host is gone.
    Left(PeerId),
    /// Connect to a host, then report [`Roster::connected`] or [`Roster::failed`].
    Dial(PeerId),
    /// End the connection to a host that is no member any more.
    Close(PeerId),
}

/// The members of a swarm as one of them sees them. `M` is what the caller needs to reach a member.
#[derive(Clone, Debug)]
pub struct Roster<M> {
    me: PeerId,
    entries: BTreeMap<PeerId, Entry<M>>,
    /// Hosts that were banned and may be members again and again.
    banned: HashSet<PeerId>,
}

impl<M> Roster<M> {
    /// Makes the roster of host `me`, which knows nobody.
    pub fn new(me: PeerId) -> Roster<M> {
        Roster {
            me,
            entries: BTreeMap::new(),
            banned: HashSet::new(),
        }
    }

    /// Replaces the list of members.
    pub fn set(&mut self, members: impl IntoIterator<Item = (PeerId, M)>, out: &mut Vec<Move>) {
        let mut members: BTreeMap<PeerId, M> = members
            .into_iter()
            .filter(|(id, _)| *id != self.me)
            .take(PEERS_MAX - 1)
            .collect();
        self.entries.retain(|id, entry| {
            let stays = members.contains_key(id);
            if !stays && entry.present {
                out.push(Move::Left(*id));
            }
            if !stays && entry.state == State::Connected {
                out.push(Move::Close(*id));
            }
            stays
        });
        for (id, entry) in &mut self.entries {
            if let Some(member) = members.remove(id) {
                entry.member = member;
            }
        }
        for (id, member) in members {
            let banned = self.banned.contains(&id);
            if !banned {
                out.push(Move::Joined(id));
            }
            let entry = Entry {
                member,
                state: if banned { State::Banned } else { State::Apart },
                near: false,
                present: !banned,
                failures: 0,
            };
            self.entries.insert(id, entry);
        }
        self.choose_near();
    }

    /// Chooses the neighbours to keep: those whose hash together with this host's is smallest, so that a change of the list changes few
    /// choices.
    fn choose_near(&mut self) {
        let me = self.me.0;
        let mut order: Vec<(u64, PeerId)> = self
            .entries
            .keys()
            .map(|id| ((id.0 ^ me).wrapping_mul(0x9E37_79B9_7F4A_7C15), *id))
            .collect();
        order.sort_unstable();
        for (rank, (_, id)) in order.into_iter().enumerate() {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.near = rank < NEAR;
            }
        }
    }

    /// Whether a host may connect.
    pub fn may_enter(&self, id: PeerId) -> bool {
        let entry = self.entries.get(&id);
        entry.is_some_and(|entry| entry.state != State::Banned)
    }

    /// Returns how a member is reached.
    pub fn member(&self, id: PeerId) -> Option<&M> {
        self.entries.get(&id).map(|entry| &entry.member)
    }

    /// Returns all members but this host.
    pub fn members(&self) -> impl Iterator<Item = (PeerId, &M)> {
        let members = self.entries.iter();
        members.map(|(id, entry)| (*id, &entry.member))
    }

    /// Whether a connection to a member is kept although nothing is asked over it.
    pub fn is_near(&self, id: PeerId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.near)
    }

    /// Notes that there is something to ask a host. Returns whether it is connected, or will be dialled.
    pub fn wanted(&mut self, id: PeerId, out: &mut Vec<Move>) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else {
            return false;
        };
        if entry.state == State::Apart {
            entry.state = State::Dialling;
            out.push(Move::Dial(id));
        }
        matches!(entry.state, State::Dialling | State::Connected)
    }

    /// There is a connection to a host.
    pub fn connected(&mut self, id: PeerId, out: &mut Vec<Move>) {
        let entry = self.entries.get_mut(&id);
        if let Some(entry) = entry.filter(|entry| entry.state != State::Banned) {
            entry.state = State::Connected;
            entry.failures = 0;
            if !std::mem::replace(&mut entry.present, true) {
                out.push(Move::Joined(id));
            }
        }
    }

    /// Notes that a dial was in vain. Changes nothing for a host that has connected meanwhile.
    pub fn failed(&mut self, now_us: u64, id: PeerId, out: &mut Vec<Move>) {
        let dialling = |entry: &Entry<M>| entry.state == State::Dialling;
        if self.entries.get(&id).is_some_and(dialling) {
            self.lost(now_us, id, out);
        }
    }

    /// A connection has ended, and it was not this host who wanted that.
    pub fn lost(&mut self, now_us: u64, id: PeerId, out: &mut Vec<Move>) {
        let failures = self.entries.get(&id).map_or(0, |entry| entry.failures);
        let away_us = (AWAY_US << failures.min(16)).min(AWAY_US_MAX);
        self.away(now_us + away_us, id, out);
    }

    /// A host has said that it leaves; its list of members may tell of that later.
    pub fn left(&mut self, now_us: u64, id: PeerId, out: &mut Vec<Move>) {
        self.away(now_us + AWAY_US_MAX, id, out);
    }

    fn away(&mut self, until_us: u64, id: PeerId, out: &mut Vec<Move>) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if entry.state == State::Banned {
            return;
        }
        entry.state = State::Away { until_us };
        entry.failures += 1;
        if std::mem::replace(&mut entry.present, false) {
            out.push(Move::Left(id));
        }
    }

    /// A connection that nobody needs has ended.
    pub fn rested(&mut self, id: PeerId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.state = State::Apart;
        }
    }

    /// The policy has dropped a host: for a while if it only was slow, and for good otherwise.
    pub fn dropped(&mut self, now_us: u64, id: PeerId, fault: Fault) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.present = false;
        if fault == Fault::Stalled {
            entry.failures += 1;
            entry.state = State::Away {
                until_us: now_us + AWAY_US_MAX,
            };
        } else {
            entry.state = State::Banned;
            self.banned.insert(id);
        }
    }

    /// Dials neighbours and takes those back into account who were away for long enough.
    pub fn tick(&mut self, now_us: u64, out: &mut Vec<Move>) {
        let (mut dials, mut apart) = (0, Vec::new());
        for (id, entry) in &mut self.entries {
            if let State::Away { until_us } = entry.state
                && until_us <= now_us
            {
                entry.state = State::Apart;
                // a neighbour shows soon whether it is there
                if !entry.near {
                    entry.present = true;
                    out.push(Move::Joined(*id));
                }
            }
            match entry.state {
                State::Dialling => dials += 1,
                State::Apart if entry.near => apart.push(*id),
                _ => {}
            }
        }
        for id in apart.into_iter().take(DIALS_MAX.saturating_sub(dials)) {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.state = State::Dialling;
                out.push(Move::Dial(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(n: u8) -> PeerId {
        PeerId(u64::from(n) * 0x0123_4567_89AB_CDEF)
    }

    fn member(n: u8) -> (PeerId, u8) {
        (id(n), n)
    }

    #[test]
    fn a_host_that_cant_be_reached_is_tried_ever_more_seldom() {
        let mut roster = Roster::new(id(0));
        let mut out = Vec::new();
        roster.set(vec![member(0), member(1)], &mut out);
        assert_eq!(out, [Move::Joined(id(1))]);
        let (mut now_us, mut waits) = (0, Vec::new());
        for _ in 0..8 {
            out.clear();
            let since_us = now_us;
            while out.is_empty() {
                now_us += 50_000;
                roster.tick(now_us, &mut out);
            }
            assert_eq!(out, [Move::Dial(id(1))]);
            waits.push(now_us - since_us);
            roster.failed(now_us, id(1), &mut out);
        }
        assert!(waits.is_sorted() && waits[7] == AWAY_US_MAX, "{waits:?}");
        out.clear();
        roster.connected(id(1), &mut out);
        assert_eq!(out, [Move::Joined(id(1))]);
        // what a dial says that was overtaken is of no interest
        out.clear();
        roster.failed(now_us, id(1), &mut out);
        assert!(out.is_empty() && roster.wanted(id(1), &mut out) && out.is_empty());
    }

    #[test]
    fn a_banned_host_stays_away_whatever_the_list_says() {
        let mut roster = Roster::new(id(0));
        let mut out = Vec::new();
        roster.set(vec![member(1), member(2)], &mut out);
        roster.dropped(0, id(1), Fault::WrongBytes);
        roster.dropped(0, id(2), Fault::Stalled);
        assert!(!roster.may_enter(id(1)) && roster.may_enter(id(2)));
        roster.set(Vec::new(), &mut out);
        out.clear();
        roster.set(vec![member(1), member(2)], &mut out);
        assert_eq!(out, [Move::Joined(id(2))]);
        assert!(!roster.may_enter(id(1)) && !roster.wanted(id(1), &mut out));
        assert!(!roster.may_enter(id(3)));
    }

    proptest! {
        #[test]
        fn the_policy_hears_of_each_coming_and_going_once(
            steps in prop::collection::vec((0u8..8, 0u8..6, any::<u8>()), 1..200),
        ) {
            let mut roster = Roster::new(id(0));
            let mut present = HashSet::new();
            let mut now_us = 0;
            for (what, who, list) in steps {
                let mut out = Vec::new();
                now_us += 200_000;
                match what {
                    0 => roster.set((0..6).filter(|n| list >> n & 1 == 1).map(member), &mut out),
                    1 => roster.connected(id(who), &mut out),
                    2 => roster.failed(now_us, id(who), &mut out),
                    3 => roster.lost(now_us, id(who), &mut out),
                    4 => roster.left(now_us, id(who), &mut out),
                    5 => {
                        roster.wanted(id(who), &mut out);
                    }
                    6 => {
                        roster.dropped(now_us, id(who), Fault::Stalled);
                        present.remove(&id(who));
                    }
                    _ => roster.tick(now_us, &mut out),
                }
                for step in out {
                    match step {
                        Move::Joined(id) => prop_assert!(present.insert(id)),
                        Move::Left(id) => prop_assert!(present.remove(&id)),
                        Move::Dial(id) => prop_assert!(roster.may_enter(id)),
                        Move::Close(_) => {}
                    }
                }
                prop_assert!(!present.contains(&id(0)));
            }
        }
    }
}
