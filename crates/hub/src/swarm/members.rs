//! Who takes part in which swarm. Decided without I/O and clock.
//!
//! Bounded are the members of a swarm, those of one user or address, those of all strangers, and all together; a swarm has at least
//! one member, so that there are no more swarms than members.

use floe_api::SWARM_MEMBERS_MAX;
use floe_front::Party;
use floe_image::Hash;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

/// A member's public key.
pub(crate) type Key = [u8; 32];
/// Name of packs in their order.
pub(crate) type Content = [u8; 32];

/// How long a member stays on the list without a word.
const LIFE: Duration = Duration::from_secs(45);
/// When members ask again while others come and go.
const SOON: Duration = Duration::from_secs(1);
/// When they ask again otherwise.
const SELDOM: Duration = Duration::from_secs(10);
/// How long a change of the list is news.
const NEWS: Duration = Duration::from_secs(15);
/// The least time between two answers that the members of one swarm are told to ask for, counted over all of them. An answer names all
/// members: if each asked at a fixed interval, the cost would grow with the square of their number.
const EACH: Duration = Duration::from_millis(10);
/// Members of all swarms, 30 MB of memory.
const ALL_MAX: usize = 1 << 16;
/// Members of one user, in all swarms.
const USER_MAX: usize = ALL_MAX / 4;
/// Members at one address that have shown no token, in all swarms.
const ADDRESS_MAX: usize = 512;

#[derive(Clone, Debug)]
struct Member {
    party: Party,
    /// Whether other users may be told of it.
    open: bool,
    addresses: Vec<SocketAddr>,
    /// The layout by which it reads the image.
    layout: Content,
    expires: Duration,
}

#[derive(Debug, Default)]
struct Swarm {
    members: BTreeMap<Key, Member>,
    strangers: usize,
    changed: Duration,
    /// No member's time is over before this.
    first_expires: Duration,
}

/// Somebody who takes part, or wants to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who<'a> {
    pub key: Key,
    pub party: &'a Party,
    /// Whether it meets other users' members that are open, too.
    pub open: bool,
    /// The layout by which it reads the image.
    pub layout: Content,
}

/// Why somebody is not taken onto a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Somebody else has registered this key.
    Taken,
    /// The swarm has as many members as there may be, or as many strangers.
    Full,
    /// This user or address, or all strangers, or all together have as many members as they may.
    TooMany,
}

/// A list as it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub members: Vec<(Key, Vec<SocketAddr>)>,
    pub ask_again: Duration,
    pub expires_after: Duration,
}

/// All swarms' members.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// By image: whoever runs it is a member, whatever layout it knows.
    swarms: BTreeMap<Hash, Swarm>,
    parties: HashMap<Party, usize>,
    all: usize,
    strangers: usize,
    swept: Duration,
}

impl Members {
    /// Takes a member onto the list of an image's swarm, or keeps it there.
    pub fn join(
        &mut self,
        now: Duration,
        image: Hash,
        Who {
            key,
            party,
            open,
            layout,
        }: Who<'_>,
        addresses: Vec<SocketAddr>,
    ) -> Result<(), Refused> {
        self.sweep(now, image);
        let known = |swarm: &Swarm| swarm.members.get(&key).map(|m| m.party == *party);
        match self.swarms.get(&image).and_then(known) {
            Some(false) => return Err(Refused::Taken),
            None => self.has_room(image, party)?,
            Some(true) => {}
        }
        let swarm = self.swarms.entry(image).or_default();
        let member = Member {
            party: party.clone(),
            open,
            addresses,
            layout,
            expires: now + life(swarm.members.len()),
        };
        let addresses = member.addresses.clone();
        swarm.first_expires = swarm.first_expires.min(member.expires);
        let before = swarm.members.insert(key, member);
        let same = |before: &Member| before.addresses == addresses && before.open == open;
        if !before.as_ref().is_some_and(same) {
            swarm.changed = now;
        }
        if before.is_none() {
            let strange = usize::from(!party.is_user());
            swarm.strangers += strange;
            self.strangers += strange;
            self.all += 1;
            *self.parties.entry(party.clone()).or_default() += 1;
        }
        Ok(())
    }

    /// Returns the layouts by which members of an image's swarm read it.
    pub fn named(&self, now: Duration, image: Hash) -> HashSet<Content> {
        let swarm = self.swarms.get(&image).into_iter();
        let members = swarm.flat_map(|swarm| swarm.members.values());
        let here = members.filter(|member| member.expires > now);
        here.map(|member| member.layout).collect()
    }

    fn has_room(&self, image: Hash, party: &Party) -> Result<(), Refused> {
        let strange = !party.is_user();
        if let Some(swarm) = self.swarms.get(&image) {
            let many = swarm.members.len() >= SWARM_MEMBERS_MAX;
            if many || strange && swarm.strangers >= SWARM_MEMBERS_MAX / 2 {
                return Err(Refused::Full);
            }
        }
        let own = self.parties.get(party).copied().unwrap_or(0);
        let own_max = if strange { ADDRESS_MAX } else { USER_MAX };
        let many = own >= own_max || self.all >= ALL_MAX;
        match many || strange && self.strangers >= ALL_MAX / 2 {
            true => Err(Refused::TooMany),
            false => Ok(()),
        }
    }

    /// Takes a member off the list of an image. Refused if somebody else has registered it.
    pub fn leave(
        &mut self,
        now: Duration,
        image: Hash,
        key: Key,
        party: &Party,
    ) -> Result<(), Refused> {
        self.sweep(now, image);
        let mut foreign = false;
        self.remove(image, now, |of, member| {
            foreign |= *of == key && member.party != *party;
            *of == key && member.party == *party
        });
        match foreign {
            true => Err(Refused::Taken),
            false => Ok(()),
        }
    }

    /// Returns the list of a swarm as a party is told it, with other users' members only if it is `open` too: those members that it may
    /// meet, and whose party `may` be on it.
    pub fn list<'a>(
        &'a self,
        now: Duration,
        image: Hash,
        (party, open): (&Party, bool),
        may: impl Fn(&Party) -> bool,
    ) -> List {
        let swarm = self.swarms.get(&image);
        let mut known: HashMap<&'a Party, bool> = HashMap::new();
        let mut may = |party: &'a Party| *known.entry(party).or_insert_with(|| may(party));
        let members = swarm.into_iter().flat_map(|swarm| &swarm.members);
        let members: Vec<(Key, Vec<SocketAddr>)> = members
            .filter(|(_, member)| member.expires > now && meets(party, open, member))
            .filter(|(_, member)| may(&member.party))
            .map(|(key, member)| (*key, member.addresses.clone()))
            .collect();
        let news = swarm.is_some_and(|swarm| now < swarm.changed + NEWS);
        let each = EACH * members.len() as u32;
        List {
            ask_again: each.max(if news { SOON } else { SELDOM }),
            expires_after: life(members.len()),
            members,
        }
    }

    /// Forgets who has not said anything for too long: in the swarm of an image, and now and then in all.
    fn sweep(&mut self, now: Duration, image: Hash) {
        let all = now >= self.swept + SELDOM;
        let places: Vec<Hash> = match all {
            true => self.swarms.keys().copied().collect(),
            false => vec![image],
        };
        if all {
            self.swept = now;
        }
        for place in places {
            let due = |swarm: &Swarm| swarm.first_expires <= now;
            if !self.swarms.get(&place).is_some_and(due) {
                continue;
            }
            self.remove(place, now, |_, member| member.expires <= now);
            if let Some(swarm) = self.swarms.get_mut(&place) {
                let left = swarm.members.values().map(|member| member.expires);
                swarm.first_expires = left.min().unwrap_or_default();
            }
        }
    }

    fn remove(&mut self, place: Hash, now: Duration, mut goes: impl FnMut(&Key, &Member) -> bool) {
        let Some(swarm) = self.swarms.get_mut(&place) else {
            return;
        };
        let gone: Vec<Key> = swarm
            .members
            .iter()
            .filter(|(key, member)| goes(key, member))
            .map(|(key, _)| *key)
            .collect();
        for key in gone {
            let Some(member) = swarm.members.remove(&key) else {
                continue;
            };
            swarm.changed = now;
            self.all -= 1;
            if !member.party.is_user() {
                swarm.strangers -= 1;
                self.strangers -= 1;
            }
            if let Some(own) = self.parties.get_mut(&member.party) {
                *own -= 1;
                if *own == 0 {
                    self.parties.remove(&member.party);
                }
            }
        }
        if swarm.members.is_empty() {
            self.swarms.remove(&place);
        }
    }
}

/// Whether somebody is told of a member. A user's hosts know each other. Others learn that a host runs an image, and at which address, only
/// if its user allows that.
fn meets(party: &Party, open: bool, member: &Member) -> bool {
    let own = *party == member.party && party.is_user();
    own || open && member.open
}

/// Returns how long a member of a swarm of so many stays on the list without a word: it may miss three times to ask.
fn life(members: usize) -> Duration {
    LIFE.max(EACH * members as u32 * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: Hash = Hash([1; 32]);
    const LAYOUT: Content = [2; 32];

    fn user(name: &str) -> Party {
        Party::User(name.into())
    }

    fn stranger(n: u32) -> Party {
        Party::at(std::net::Ipv4Addr::from(0x0A00_0000 + n).into())
    }

    fn key(n: u32) -> Key {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&n.to_be_bytes());
        key
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn at(port: u16) -> Vec<SocketAddr> {
        vec![([10, 0, 0, 1], port).into()]
    }

    fn who(n: u32, party: &Party) -> Who<'_> {
        Who {
            key: key(n),
            party,
            open: true,
            layout: LAYOUT,
        }
    }

    impl Members {
        fn enter(&mut self, now: Duration, n: u32, party: &Party) -> Result<(), Refused> {
            self.join(now, IMAGE, who(n, party), at(7))
        }

        /// The list that everybody is told who is open.
        fn open_list(&self, now: Duration) -> List {
            self.list(now, IMAGE, (&stranger(99), true), |_| true)
        }

        fn keys(&self, now: Duration) -> Vec<Key> {
            let members = self.open_list(now).members;
            members.into_iter().map(|(key, _)| key).collect()
        }

        fn assert_counted(&self) {
            let all = self
                .swarms
                .values()
                .flat_map(|swarm| swarm.members.values());
            let strangers = all.clone().filter(|member| !member.party.is_user()).count();
            assert_eq!((self.all, self.strangers), (all.count(), strangers));
            assert_eq!(self.parties.values().sum::<usize>(), self.all);
            assert!(self.swarms.values().all(|swarm| !swarm.members.is_empty()));
        }
    }

    #[test]
    fn who_says_nothing_is_off_the_list_and_who_repeats_it_stays() {
        let (mut members, ann) = (Members::default(), user("ann"));
        members.enter(s(0), 1, &ann).unwrap();
        members.enter(s(0), 2, &user("bob")).unwrap();
        members.enter(s(30), 1, &ann).unwrap();
        assert_eq!(members.keys(s(44)), [key(1), key(2)]);
        assert_eq!(members.keys(s(45)), [key(1)]);
        // the key of who is gone is free
        members.enter(s(46), 2, &ann).unwrap();
        assert_eq!(members.keys(s(46)), [key(1), key(2)]);
        // with nobody left there is no swarm
        members
            .join(s(200), Hash([9; 32]), who(9, &ann), at(1))
            .unwrap();
        assert_eq!(members.swarms.len(), 1);
        members.assert_counted();
    }

    #[test]
    fn members_ask_soon_while_others_come_and_go_and_seldom_otherwise() {
        let mut members = Members::default();
        let ask = |members: &Members, now| members.open_list(s(now)).ask_again;
        members.enter(s(0), 1, &user("ann")).unwrap();
        assert_eq!(ask(&members, 14), SOON);
        members.enter(s(20), 1, &user("ann")).unwrap();
        assert_eq!(ask(&members, 20), SELDOM);
        // another address is news, and so is who comes and who goes
        let moved = members.join(s(30), IMAGE, who(1, &user("ann")), at(8));
        assert_eq!(
            (moved, ask(&members, 30), ask(&members, 45)),
            (Ok(()), SOON, SELDOM)
        );
        members.enter(s(50), 2, &user("bob")).unwrap();
        assert_eq!((ask(&members, 50), ask(&members, 65)), (SOON, SELDOM));
        members.leave(s(66), IMAGE, key(2), &user("bob")).unwrap();
        assert_eq!(
            (ask(&members, 66), members.keys(s(66))),
            (SOON, vec![key(1)])
        );
        // a large swarm costs no more than many small ones
        for n in 0..1000 {
            members.enter(s(70), n, &user("ann")).unwrap();
        }
        let list = members.open_list(s(70));
        assert!(list.ask_again >= s(10) && list.expires_after > 3 * list.ask_again);
    }

    #[test]
    fn in_the_largest_swarm_too_all_hear_within_a_minute_who_may_read_no_longer() {
        let (mut members, ann, bob) = (Members::default(), user("ann"), user("bob"));
        let last = SWARM_MEMBERS_MAX as u32 - 1;
        members.enter(s(0), last, &bob).unwrap();
        // twice: once all are there, each stays on the list for longer
        for n in (0..last).chain(0..last) {
            members.enter(s(0), n, &ann).unwrap();
        }
        members.enter(s(0), last, &bob).unwrap();
        // while others come, and once nobody does
        for now in [s(0), NEWS] {
            let before = members.open_list(now);
            assert_eq!(before.members.len(), SWARM_MEMBERS_MAX);
            // bob's right ends right after this answer: whoever had it asks again once it is time
            assert!(before.ask_again <= s(60), "{:?}", before.ask_again);
            let again = now + before.ask_again;
            let after = members.list(again, IMAGE, (&ann, true), |party| *party == ann);
            assert_eq!(after.members.len(), SWARM_MEMBERS_MAX - 1);
            assert!(after.members.iter().all(|(other, _)| *other != key(last)));
        }
    }

    #[test]
    fn a_key_is_its_users_until_it_expires() {
        let (mut members, ann, bob) = (Members::default(), user("ann"), user("bob"));
        members.enter(s(0), 1, &ann).unwrap();
        assert_eq!(members.enter(s(40), 1, &bob), Err(Refused::Taken));
        assert_eq!(
            members.leave(s(40), IMAGE, key(1), &bob),
            Err(Refused::Taken)
        );
        assert_eq!(members.keys(s(40)), [key(1)]);
        assert_eq!(members.enter(s(45), 1, &bob), Ok(()));
        // who is not there has left
        assert_eq!(members.leave(s(45), IMAGE, key(7), &ann), Ok(()));
        assert_eq!(members.leave(s(45), IMAGE, key(1), &bob), Ok(()));
        assert!(members.swarms.is_empty());
        members.assert_counted();
    }

    #[test]
    fn members_of_one_image_are_one_swarm_whatever_layout_they_name_and_for_as_long_as_they_do() {
        let (mut members, ann) = (Members::default(), user("ann"));
        let by = |n, layout: u8| Who {
            layout: [layout; 32],
            ..who(n, &ann)
        };
        let named = |members: &Members, now| {
            let named = members.named(s(now), IMAGE);
            let mut named: Vec<u8> = named.iter().map(|name| name[0]).collect();
            named.sort_unstable();
            named
        };
        for (n, layout) in [(1, 7), (2, 7), (3, 8)] {
            members.join(s(0), IMAGE, by(n, layout), at(7)).unwrap();
        }
        assert_eq!(members.keys(s(0)), [key(1), key(2), key(3)]);
        assert_eq!(named(&members, 0), [7, 8]);
        assert!(members.named(s(0), Hash([9; 32])).is_empty());
        // another layout is no news to the others
        members.join(s(20), IMAGE, by(1, 8), at(7)).unwrap();
        assert_eq!(members.open_list(s(20)).ask_again, SELDOM);
        assert_eq!(
            (named(&members, 44), named(&members, 45)),
            (vec![7, 8], vec![8])
        );
        members.leave(s(46), IMAGE, key(1), &ann).unwrap();
        assert!(members.named(s(46), IMAGE).is_empty());
        members.assert_counted();
    }

    #[test]
    fn only_those_who_may_are_named() {
        let mut members = Members::default();
        for (n, name) in ["ann", "bob", "ann"].iter().enumerate() {
            members.enter(s(0), n as u32, &user(name)).unwrap();
        }
        let (ann, may) = (user("ann"), |party: &Party| *party == user("ann"));
        let list = members.list(s(0), IMAGE, (&ann, true), may);
        let keys: Vec<Key> = list.members.into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [key(0), key(2)]);
    }

    #[test]
    fn users_meet_their_own_and_others_only_if_both_are_open() {
        let mut members = Members::default();
        let (ann, bob, nobody) = (user("ann"), user("bob"), stranger(1));
        let closed = |n, party| Who {
            open: false,
            ..who(n, party)
        };
        let all = [
            who(0, &ann),
            closed(1, &ann),
            who(2, &bob),
            closed(3, &bob),
            who(4, &nobody),
            closed(5, &nobody),
        ];
        for one in all {
            members.join(s(0), IMAGE, one, at(7)).unwrap();
        }
        let met = all.map(|one| {
            let list = members.list(s(0), IMAGE, (one.party, one.open), |_| true);
            let of = |n: &u32| list.members.iter().any(|(of, _)| *of == key(*n));
            (0..6).filter(of).collect::<Vec<u32>>()
        });
        let none: &[u32] = &[];
        // those at one address that show no token are not known to be of one user
        let told: [&[u32]; 6] = [
            &[0, 1, 2, 4],
            &[0, 1],
            &[0, 2, 3, 4],
            &[2, 3],
            &[0, 2, 4],
            none,
        ];
        assert_eq!(met.each_ref().map(|met| &met[..]), told);
        // who becomes open is news
        let opens = members.join(s(100), IMAGE, closed(1, &ann), at(7));
        assert_eq!(
            (opens, members.open_list(s(120)).ask_again),
            (Ok(()), SELDOM)
        );
        members.join(s(120), IMAGE, who(1, &ann), at(7)).unwrap();
        assert_eq!(members.open_list(s(120)).ask_again, SOON);
    }

    #[test]
    fn strangers_take_no_more_than_their_part() {
        let mut members = Members::default();
        let (mut taken, mut n) = (0, 0);
        for host in 0..10 {
            for _ in 0..=ADDRESS_MAX {
                n += 1;
                taken += usize::from(members.enter(s(0), n, &stranger(host)).is_ok());
            }
        }
        assert_eq!(taken, SWARM_MEMBERS_MAX / 2);
        assert_eq!(
            members.enter(s(0), n + 1, &stranger(99)),
            Err(Refused::Full)
        );
        assert_eq!(members.enter(s(0), n + 1, &stranger(0)), Err(Refused::Full));
        let elsewhere = |members: &mut Members, party: &Party| {
            members.join(s(0), Hash([5; 32]), who(0, party), at(7))
        };
        assert_eq!(elsewhere(&mut members, &stranger(0)), Err(Refused::TooMany));
        assert_eq!(elsewhere(&mut members, &stranger(99)), Ok(()));
        for n in 0..SWARM_MEMBERS_MAX as u32 / 2 {
            members.enter(s(0), 1_000_000 + n, &user("ann")).unwrap();
        }
        assert_eq!(members.enter(s(0), 0, &user("ann")), Err(Refused::Full));
        members.assert_counted();
    }

    #[test]
    fn one_user_leaves_room_for_others_and_there_is_an_end_to_all() {
        let mut members = Members::default();
        let mut fill = |name: &str| {
            let mut taken = 0;
            for image in 0..=16 {
                for n in 0..SWARM_MEMBERS_MAX as u32 / 4 {
                    let n = n + 10_000 * name.len() as u32;
                    let user = user(name);
                    let who = who(n, &user);
                    let joined = members.join(s(0), Hash([image; 32]), who, at(7));
                    taken += usize::from(joined.is_ok());
                }
            }
            taken
        };
        let counts = ["a", "bb", "ccc", "dddd", "eeeee"].map(&mut fill);
        assert_eq!(counts, [USER_MAX, USER_MAX, USER_MAX, USER_MAX, 0]);
        members.assert_counted();
    }
}
