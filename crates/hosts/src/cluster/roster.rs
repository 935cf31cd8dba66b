//! The list of a cluster's members, and which one is believed if there are several. No I/O.
//!
//! Only the authority changes the list, and each one that it makes has a greater number. But an authority that was restored from a
//! backup goes on from an old list, with those who were removed since, and gives numbers that were given already. Therefore
//!
//! - a list says who is gone. Ids are never reused, so that whoever is gone stays gone, whichever list is added to which;
//! - a node takes a list only if that is newer and knows everybody of its own, as a member or as gone ([`Roster::gives_way_to`]);
//! - otherwise it shows its own to the authority, which knows it again by its seal, and adds it to what it has
//!   ([`Roster::recall`]). So a member can return what the authority has forgotten, and can't make up anything.

use floe_image::Hash;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Most members of a cluster.
pub const MEMBERS_MAX: usize = 512;
/// How many removed members a list remembers; a list with all of them still fits into a message.
const GONE_MAX: usize = 4096;
/// Longest name of a member in bytes: that of a host.
const NAME_MAX: usize = 63;
/// Digits of the id of a cluster or member.
const ID_DIGITS: usize = 16;

/// Returns an error unless the text is the id of a member or cluster.
pub(crate) fn check_id(id: &str) -> Result<(), String> {
    match id.len() == ID_DIGITS && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        true => Ok(()),
        false => Err(format!("{id:?} is no id of {ID_DIGITS} hex digits")),
    }
}

/// Returns an error unless the text can be a member's name.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-');
    match (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(plain) && name != "here" {
        true => Ok(()),
        false => Err(format!(
            "{name:?} is no name for a node: use up to {NAME_MAX} of a to z, 0 to 9 and -, and not `here`"
        )),
    }
}

/// A node that belongs to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its id: 16 hex digits, random, assigned when it joined and never reused. Its certificates are for the name `ID.floe`.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// The address at which the others reach it.
    pub address: SocketAddr,
}

/// The members of a cluster, as its authority lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roster {
    /// Increases with every change.
    pub number: u64,
    /// All members; the first one is the authority.
    pub members: Vec<Member>,
    /// The ids of those who were removed, each with the number of the first list without it; in the order of these numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<(String, u64)>,
    /// Those who were removed with this number or before may be missing in `gone`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forgotten: u64,
    /// A hash of this list and the CA's key, which nobody but the authority can make or check. Lists of an older floe have none, and do
    /// not say who is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Hash>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Roster {
    /// Decodes what the authority sent or a file holds, or returns why that is impossible.
    pub fn parse(bytes: &[u8]) -> Result<Roster, String> {
        let roster: Roster = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        roster.check()?;
        Ok(roster)
    }

    /// Returns an error for one that floe would not have made.
    pub fn check(&self) -> Result<(), String> {
        if self.members.len() > MEMBERS_MAX {
            return Err(format!("it has {} members", self.members.len()));
        }
        if self.gone.len() > GONE_MAX {
            return Err(format!("{} members are gone", self.gone.len()));
        }
        for member in &self.members {
            check_id(&member.id)?;
            check_name(&member.name)?;
        }
        self.gone.iter().try_for_each(|(id, _)| check_id(id))
    }

    /// Returns the member with this name.
    pub fn named(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// Returns the member with this id.
    pub fn of_id(&self, id: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Returns the member at this address.
    pub fn at(&self, address: SocketAddr) -> Option<&Member> {
        self.members.iter().find(|member| member.address == address)
    }

    fn is_gone(&self, id: &str) -> bool {
        self.gone.iter().any(|(gone, _)| gone == id)
    }

    /// Adds a member.
    pub fn admit(&mut self, newcomer: Member) {
        self.members.push(newcomer);
        self.number += 1;
    }

    /// Removes a member, but never the authority itself; returns whether there was one to remove.
    pub fn remove(&mut self, id: &str) -> bool {
        let found = self.members.iter().position(|member| member.id == id);
        let Some(place) = found.filter(|place| *place > 0) else {
            return false;
        };
        self.members.remove(place);
        self.number += 1;
        self.gone.push((id.to_owned(), self.number));
        self.forget_the_oldest();
        true
    }

    fn forget_the_oldest(&mut self) {
        let more = self.gone.len().saturating_sub(GONE_MAX);
        if let Some((_, number)) = self.gone.drain(..more).next_back() {
            self.forgotten = self.forgotten.max(number);
        }
    }

    /// Whether a node that has this list takes another one from its authority.
    pub fn gives_way_to(&self, other: &Roster) -> bool {
        let knows_everybody = || {
            let mut ids = self.members.iter().map(|member| &member.id);
            let known = |id: &String| other.of_id(id).is_some() || other.is_gone(id);
            // of so long ago it is not known any more who was a member
            self.number < other.forgotten || ids.all(known) && other.knows_who_is_gone_in(self)
        };
        other.number > self.number && (self.seal.is_none() || knows_everybody())
    }

    /// Whether all who are gone by another list are so by this one.
    pub fn knows_who_is_gone_in(&self, other: &Roster) -> bool {
        let known = |(id, number): &(String, u64)| *number <= self.forgotten || self.is_gone(id);
        other.gone.iter().all(known)
    }

    /// Takes in, as the authority, a list that a member shows, if it is one of this authority's and this one does not know all of it: this
    /// one then comes from a backup. Returns whether that was so; it is to be [sealed](Self::seal) then.
    pub fn recall(&mut self, shown: &Roster, ca_key: &str) -> bool {
        // of what is as old it is not known any more who is gone
        if shown.seal != Some(shown.sealed_by(ca_key)) || shown.number < self.forgotten {
            return false;
        }
        let mut gone = self.gone.clone();
        let news = shown.gone.iter().filter(|(id, _)| !self.is_gone(id));
        gone.extend(news.cloned());
        gone.sort_by_key(|(_, number)| *number);
        let mut members = self.members.clone();
        let news = shown.members.iter().filter(|m| self.of_id(&m.id).is_none());
        members.extend(news.cloned());
        let own = self.members.first().map(|first| first.id.clone());
        let is_gone = |id: &String| gone.iter().any(|(gone, _)| gone == id);
        members.retain(|member| own.as_ref() == Some(&member.id) || !is_gone(&member.id));
        members.truncate(MEMBERS_MAX);
        let learns = (&gone, &members) != (&self.gone, &self.members);
        let is_same = (&shown.gone, &shown.members) == (&self.gone, &self.members);
        if !learns && (shown.number < self.number || shown.number == self.number && is_same) {
            return false;
        }
        self.number = self.number.max(shown.number) + 1;
        (self.gone, self.members) = (gone, members);
        self.forgotten = self.forgotten.max(shown.forgotten);
        self.forget_the_oldest();
        true
    }

    /// Seals the list, so that its authority knows it again. One that an older floe has left unsealed gets a new number, so that all take
    /// it.
    pub fn seal(&mut self, ca_key: &str) {
        self.number += u64::from(self.seal.is_none());
        self.seal = Some(self.sealed_by(ca_key));
    }

    fn sealed_by(&self, ca_key: &str) -> Hash {
        let open = Roster {
            seal: None,
            ..self.clone()
        };
        let text = serde_json::to_string(&open).expect("strings and numbers");
        Hash::of(format!("{ca_key}\nfloe list of members\n{text}").as_bytes())
    }
}

/// What is left of a list that is lost: from whom it came, and how new it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heard {
    /// The authority.
    pub authority: Member,
    /// The number of the list.
    pub number: u64,
}

impl Heard {
    /// Returns what is to be remembered of a list; `None` of an empty one.
    pub fn of(roster: &Roster) -> Option<Heard> {
        Some(Heard {
            authority: roster.members.first()?.clone(),
            number: roster.number,
        })
    }

    /// Returns the list with which a node begins that has lost its own: the authority alone is a member, and is asked for a list that is
    /// not older than the lost one.
    pub fn list(&self) -> Roster {
        Roster {
            number: self.number.saturating_sub(1),
            members: vec![self.authority.clone()],
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const KEY: &str = "the authority's key";

    fn member(n: u64) -> Member {
        Member {
            id: format!("{n:016x}"),
            name: format!("host-{n}"),
            address: SocketAddr::from(([10, 0, 0, 1], n as u16)),
        }
    }

    fn sealed() -> Roster {
        let mut roster = Roster {
            members: vec![member(1)],
            ..Default::default()
        };
        roster.seal(KEY);
        roster
    }

    #[test]
    fn who_is_removed_is_no_member_and_the_authority_stays() {
        let mut roster = sealed();
        roster.admit(member(2));
        assert!(!roster.remove(&member(1).id) && !roster.remove(&member(3).id));
        let before = roster.clone();
        assert!(roster.remove(&member(2).id));
        assert!(roster.of_id(&member(2).id).is_none());
        assert_eq!((before.number, roster.number), (2, 3));
        assert!(before.gives_way_to(&roster) && !roster.gives_way_to(&before));
    }

    #[test]
    fn a_node_that_lost_its_list_knows_whom_to_ask_and_takes_none_that_is_older() {
        let numbered = |number| Roster { number, ..sealed() };
        let begins_with = Heard::of(&numbered(7)).unwrap().list();
        assert_eq!(begins_with.members, [member(1)]);
        let takes = |number| begins_with.gives_way_to(&numbered(number));
        assert!(!takes(6) && takes(7) && takes(8));
        // the authority does not take that for one of its own
        assert!(!sealed().recall(&begins_with, KEY));
        assert_eq!(Heard::of(&Roster::default()), None);
    }

    #[test]
    fn lists_of_an_older_floe_go_by_their_numbers() {
        let old = |number, members: &[u64]| Roster {
            number,
            members: members.iter().map(|n| member(*n)).collect(),
            ..Default::default()
        };
        let text = r#"{"number":3,"members":[]}"#;
        assert_eq!(Roster::parse(text.as_bytes()), Ok(old(3, &[])));
        assert!(old(3, &[1, 2]).gives_way_to(&old(4, &[1])));
        let mut updated = old(4, &[1]);
        updated.seal(KEY);
        assert_eq!(updated.number, 5);
        assert!(old(3, &[1, 2]).gives_way_to(&updated));
        assert!(old(4, &[1]).gives_way_to(&updated));
    }

    #[test]
    fn an_authority_takes_in_only_what_it_has_sealed_itself() {
        let mut ahead = sealed();
        ahead.admit(member(2));
        ahead.seal(KEY);
        let mut restored = ahead.clone();
        ahead.remove(&member(2).id);
        ahead.seal(KEY);
        let forge = |change: &dyn Fn(&mut Roster)| {
            let mut forged = ahead.clone();
            change(&mut forged);
            forged
        };
        for forged in [
            forge(&|list| list.seal = None),
            forge(&|list| list.number = u64::MAX),
            forge(&|list| list.members.push(member(9))),
            forge(&|list| list.gone.clear()),
            forge(&|list| list.seal("another key")),
        ] {
            assert!(!restored.recall(&forged, KEY));
        }
        assert!(restored.recall(&ahead, KEY));
        restored.seal(KEY);
        assert_eq!(restored.members, [member(1)]);
        // nothing of what it knows by now is news
        let (now, before) = (restored.clone(), ahead.clone());
        assert!(!restored.recall(&now, KEY) && !restored.recall(&before, KEY));
        assert!(ahead.gives_way_to(&restored));
    }

    #[test]
    fn of_very_many_who_are_gone_the_oldest_are_forgotten_and_the_list_still_fits() {
        let mut roster = sealed();
        let first = roster.clone();
        for n in 0..GONE_MAX as u64 + 100 {
            let id = format!("{:016x}", 1000 + n);
            roster.admit(Member {
                id: id.clone(),
                ..member(2)
            });
            roster.remove(&id);
        }
        roster.seal(KEY);
        assert_eq!(roster.gone.len(), GONE_MAX);
        assert!(first.gives_way_to(&roster));
        let text = serde_json::to_vec(&roster).unwrap();
        assert!(text.len() < 160 << 10, "{} bytes", text.len());
        assert_eq!(Roster::parse(&text).as_ref(), Ok(&roster));
        // what is older than what it remembers brings nobody back
        let mut old = first;
        old.admit(member(5));
        old.seal(KEY);
        assert!(!roster.recall(&old, KEY));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Admit,
        Remove(prop::sample::Index),
        BackUp,
        Restore(prop::sample::Index),
        /// The authority and one of the members that are watched hear of each other.
        Meet(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::Admit),
            3 => any::<prop::sample::Index>().prop_map(Step::Remove),
            1 => Just(Step::BackUp),
            1 => any::<prop::sample::Index>().prop_map(Step::Restore),
            4 => (0..3usize).prop_map(Step::Meet),
        ];
        prop::collection::vec(step, 1..80)
    }

    /// As nodes do it (`upkeep`): the member hears the authority's list, shows its own if that was not taken, and hears again.
    fn meet(authority: &mut Roster, member: &mut Roster) {
        for _ in 0..2 {
            if member.gives_way_to(authority) {
                *member = authority.clone();
            }
            if authority.recall(member, KEY) {
                authority.seal(KEY);
            }
        }
    }

    proptest! {
        /// Whatever backups the authority comes from: a member that has seen somebody removed never takes that one for a member again, nor
        /// does the authority once both have met; nobody else is lost by that; and all agree once all have met.
        #[test]
        fn nobody_who_was_removed_comes_back_with_a_backup(steps in steps()) {
            let mut authority = sealed();
            let mut backups = vec![authority.clone()];
            let mut watched = vec![authority.clone(); 3];
            let mut seen_gone = vec![BTreeSet::new(); 3];
            let mut admitted = 1;
            for step in steps {
                match step {
                    Step::Admit => {
                        admitted += 1;
                        authority.admit(member(admitted));
                        authority.seal(KEY);
                    }
                    Step::Remove(which) => {
                        let id = which.get(&authority.members).id.clone();
                        authority.remove(&id);
                        authority.seal(KEY);
                    }
                    Step::BackUp => backups.push(authority.clone()),
                    Step::Restore(which) => authority = which.get(&backups).clone(),
                    Step::Meet(which) => {
                        let before = watched[which].clone();
                        meet(&mut authority, &mut watched[which]);
                        let now = &watched[which];
                        prop_assert_eq!(now, &authority);
                        prop_assert!(now.number >= before.number);
                        seen_gone[which].extend(now.gone.iter().map(|(id, _)| id.clone()));
                        let mut gone = seen_gone[which].iter();
                        prop_assert!(gone.all(|id| now.of_id(id).is_none()));
                        let mut members = before.members.iter();
                        prop_assert!(members.all(|m| now.is_gone(&m.id) || now.of_id(&m.id).is_some()));
                    }
                }
                prop_assert_eq!(&authority.members[0], &member(1));
            }
            for _ in 0..2 {
                watched.iter_mut().for_each(|one| meet(&mut authority, one));
            }
            for (one, gone) in watched.iter().zip(&seen_gone) {
                prop_assert_eq!(one, &authority);
                prop_assert!(gone.iter().all(|id| one.of_id(id).is_none()));
            }
        }
    }
}
