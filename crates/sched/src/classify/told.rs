//! Finds who in a guest asks, from its agent's later reports of which program has read which blocks.
//!
//! A report comes some milliseconds after the request that it is about, too late for putting that request in order. But it helps with the
//! next ones: requests for the same file, and for places nearby, are taken for the same program's. A directory in which one program alone
//! has read, at several times, is taken for that program's. And a program that has just begun to read at a new place is taken for the one
//! that reads at the next new place. A report can only name requests of the agent's own machine; everything else in it is dropped.

use super::limits::{
    FOLDER_PAUSE_US, FOLDER_RUNS_MIN, FOLDER_US, NEWEST_US, OWNERS_MAX, RECENT_MAX, RECENT_US,
    SOLE_PERCENT, SPOT_BYTES, SPOT_US, TOLD_BYTES_MAX,
};
use super::pace::Step;
use super::{Name, Program};
use crate::Op;
use std::collections::{BTreeMap, VecDeque};

/// What a guest's agent tells: a program has read so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The program's name.
    pub name: Name,
    /// The first byte, on whichever disk; `None` if the agent only knows how much it was.
    pub from: Option<u64>,
    /// How many bytes from there on.
    pub bytes: u64,
}

/// Whose something is, and when that was told last.
#[derive(Clone, Copy, Debug)]
struct Owner {
    name: Name,
    us: u64,
}

/// Who reads a file.
#[derive(Clone, Copy, Debug)]
struct File {
    /// The program that was told of last,
    owner: Owner,
    /// and another one before it.
    other: Option<Owner>,
    /// When one was told of that was neither of the two before.
    shared_us: Option<u64>,
}

impl File {
    fn new(owner: Owner) -> File {
        File {
            owner,
            other: None,
            shared_us: None,
        }
    }

    fn told(&mut self, owner: Owner) {
        if self.owner.name == owner.name {
            self.owner = owner;
            return;
        }
        let third = self.other.filter(|other| {
            other.name != owner.name && owner.us.saturating_sub(other.us) <= FOLDER_US
        });
        if third.is_some() {
            self.shared_us = Some(owner.us);
        }
        self.other = Some(std::mem::replace(&mut self.owner, owner));
    }

    /// Returns which program reads it, unless it is read by three or more.
    fn of(&self, now_us: u64) -> Option<Name> {
        let within = |us: u64, most_us: u64| now_us.saturating_sub(us) <= most_us;
        let is_shared = self.shared_us.is_some_and(|us| within(us, FOLDER_US));
        (!is_shared && within(self.owner.us, SPOT_US)).then_some(self.owner.name)
    }
}

/// Who reads the files of a directory.
#[derive(Clone, Copy, Debug)]
struct Folder {
    /// The first program that was told of, and when that was told last.
    owner: Owner,
    /// How often it has read there, with pauses in between.
    runs: u32,
    /// When another program was told of last.
    shared_us: Option<u64>,
}

impl Folder {
    fn told(&mut self, owner: Owner) {
        if self.owner.name == owner.name {
            let pause_us = owner.us.saturating_sub(self.owner.us);
            self.runs = self
                .runs
                .saturating_add(u32::from(pause_us > FOLDER_PAUSE_US));
            self.owner = owner;
        } else if owner.us.saturating_sub(self.owner.us) > FOLDER_US {
            *self = Folder::new(owner);
        } else {
            self.shared_us = Some(owner.us);
        }
    }

    fn new(owner: Owner) -> Folder {
        Folder {
            owner,
            runs: 1,
            shared_us: None,
        }
    }

    /// Returns which program reads there, if it is one alone: it has done so at several times, or does so right now.
    fn of(&self, now_us: u64) -> Option<Name> {
        let within = |us: u64, most_us: u64| now_us.saturating_sub(us) <= most_us;
        let is_shared = self.shared_us.is_some_and(|us| within(us, FOLDER_US));
        let is_its_own = self.runs >= FOLDER_RUNS_MIN && within(self.owner.us, FOLDER_US);
        let is_used = within(self.owner.us, NEWEST_US);
        (!is_shared && (is_its_own || is_used)).then_some(self.owner.name)
    }
}

/// A request that the agent may still tell something of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub step: Step,
    pub op: Op,
    pub offset: u64,
    /// The file and its directory, if they are known.
    pub file: Option<Program>,
    pub folder: Option<Program>,
}

/// What a machine's agent has told.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    /// Each with whether the agent has told of it.
    recent: VecDeque<(Asked, bool)>,
    files: BTreeMap<Program, File>,
    folders: BTreeMap<Program, Folder>,
    /// By the number of the part of a disk. Which disk isn't asked: places of several seldom collide.
    spots: BTreeMap<u64, Owner>,
    /// Who read last where nobody was known to read.
    newest: Option<Owner>,
    words: u64,
}

impl Heard {
    /// Returns how often the agent has told something.
    pub fn words(&self) -> u64 {
        self.words
    }

    /// Returns who asks, and notes the request. Nothing was told yet of most machines, which costs nothing.
    pub fn who(&mut self, asked: Asked) -> Option<Name> {
        let now_us = asked.step.now_us;
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((asked, false));
        if self.words == 0 {
            return None;
        }
        let fresh = |owner: &&Owner, us: u64| now_us.saturating_sub(owner.us) <= us;
        let file = asked.file.and_then(|file| self.files.get(&file));
        if let Some(name) = file.and_then(|file| file.of(now_us)) {
            return Some(name);
        }
        let folder = asked.folder.and_then(|folder| self.folders.get(&folder));
        if let Some(name) = folder.and_then(|folder| folder.of(now_us)) {
            return Some(name);
        }
        // the file says more than what lies beside it
        if asked.file.is_none() {
            let spot = asked.offset / SPOT_BYTES;
            let near = [Some(spot), spot.checked_sub(1)].into_iter().flatten();
            let mut near = near.filter_map(|spot| self.spots.get(&spot));
            if let Some(owner) = near.find(|owner| fresh(owner, SPOT_US)) {
                return Some(owner.name);
            }
        }
        let newest = self.newest.as_ref();
        newest
            .filter(|owner| fresh(owner, NEWEST_US))
            .map(|owner| owner.name)
    }

    /// Takes what the agent tells at once. Returns the requests whose programs it tells for the first time, in the order of time.
    pub fn told(&mut self, now_us: u64, told: &[Told]) -> Vec<(Name, Asked)> {
        self.words = self.words.saturating_add(1);
        let mut found = Vec::new();
        for word in told {
            if let Some(from) = word.from {
                let bytes = word.bytes.min(TOLD_BYTES_MAX);
                self.of_range(now_us, word.name, from, bytes, &mut found);
            }
        }
        self.of_amounts(now_us, told, &mut found);
        found.sort_by_key(|(_, asked)| asked.step.now_us);
        found
    }

    fn of_range(
        &mut self,
        now_us: u64,
        name: Name,
        from: u64,
        bytes: u64,
        found: &mut Vec<(Name, Asked)>,
    ) {
        let owner = Owner { name, us: now_us };
        let end = from.saturating_add(bytes.max(1));
        let mut is_new = false;
        for spot in from / SPOT_BYTES..=(end - 1) / SPOT_BYTES {
            is_new |= insert(&mut self.spots, spot, owner);
        }
        let meant = |asked: &Asked| {
            asked.offset < end && from < asked.offset.saturating_add(asked.step.bytes)
        };
        self.of_recent(owner, meant, found);
        if is_new {
            self.newest = Some(owner);
        }
    }

    /// Without places: if nearly all was read by one program, what was asked for lately is its.
    fn of_amounts(&mut self, now_us: u64, told: &[Told], found: &mut Vec<(Name, Asked)>) {
        let amounts = told.iter().filter(|word| word.from.is_none());
        let all = amounts
            .clone()
            .fold(0u64, |all, word| all.saturating_add(word.bytes));
        let Some(most) = amounts.max_by_key(|word| word.bytes) else {
            return;
        };
        if most.bytes == 0
            || u128::from(most.bytes) * 100 < u128::from(all) * u128::from(SOLE_PERCENT)
        {
            return;
        }
        let owner = Owner {
            name: most.name,
            us: now_us,
        };
        for asked in self.of_recent(owner, |_| true, found) {
            insert(&mut self.spots, asked.offset / SPOT_BYTES, owner);
        }
        self.newest = Some(owner);
    }

    /// Notes whose the recent requests are that are meant, and returns them.
    fn of_recent(
        &mut self,
        owner: Owner,
        is_meant: impl Fn(&Asked) -> bool,
        found: &mut Vec<(Name, Asked)>,
    ) -> Vec<Asked> {
        let mut meant = Vec::new();
        for (asked, is_told) in &mut self.recent {
            let is_recent = owner.us.saturating_sub(asked.step.now_us) <= RECENT_US;
            if is_recent && is_meant(asked) {
                if !std::mem::replace(is_told, true) {
                    found.push((owner.name, *asked));
                }
                meant.push(*asked);
            }
        }
        for asked in &meant {
            self.of_asked(*asked, owner);
        }
        meant
    }

    /// Notes whose a request was.
    fn of_asked(&mut self, asked: Asked, owner: Owner) {
        if let Some(file) = asked.file {
            if let Some(known) = self.files.get_mut(&file) {
                known.told(owner);
            } else {
                make_room(&mut self.files, |known| known.owner.us);
                self.files.insert(file, File::new(owner));
            }
        }
        let Some(folder) = asked.folder else { return };
        if let Some(known) = self.folders.get_mut(&folder) {
            known.told(owner);
            return;
        }
        make_room(&mut self.folders, |known| known.owner.us);
        self.folders.insert(folder, Folder::new(owner));
    }
}

/// Enters an owner; what was told longest ago makes room. Returns whether it is new, or was forgotten long ago.
fn insert<K: Ord + Copy>(owners: &mut BTreeMap<K, Owner>, key: K, owner: Owner) -> bool {
    if let Some(known) = owners.get_mut(&key) {
        let is_new = owner.us.saturating_sub(known.us) > SPOT_US;
        *known = owner;
        return is_new;
    }
    make_room(owners, |known| known.us);
    owners.insert(key, owner);
    true
}

/// Forgets an eighth, what was told longest ago, where there is no room for one more.
fn make_room<K: Ord + Copy, V>(known: &mut BTreeMap<K, V>, told_us: impl Fn(&V) -> u64) {
    if known.len() >= OWNERS_MAX {
        let mut ages: Vec<(u64, K)> = known
            .iter()
            .map(|(key, known)| (told_us(known), *key))
            .collect();
        ages.sort_unstable();
        for (_, key) in ages.iter().take(OWNERS_MAX / 8) {
            known.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ImageId;
    use super::*;

    const MS: u64 = 1000;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn asked(us: u64, offset: u64, file: Option<Program>) -> Asked {
        Asked {
            step: Step {
                now_us: us,
                bytes: 4096,
                is_sequential: false,
                soon: Default::default(),
            },
            op: Op::Read,
            offset,
            file,
            folder: None,
        }
    }

    fn file(inode: u64) -> Option<Program> {
        let image = ImageId::default();
        Some(Program::File { image, inode })
    }

    fn word(text: &str, from: u64, bytes: u64) -> Told {
        Told {
            name: name(text),
            from: Some(from),
            bytes,
        }
    }

    #[test]
    fn what_follows_in_the_same_file_or_place_is_asked_for_by_who_was_told() {
        let mut heard = Heard::default();
        assert_eq!(heard.who(asked(0, 100 << 20, file(7))), None);
        heard.told(5 * MS, &[word("editor", 100 << 20, 4096)]);
        // far away, but of the same file; near, but of no file; and at a new place a moment later
        let far = heard.who(asked(600 * MS, 900 << 20, file(7)));
        assert_eq!(far, Some(name("editor")));
        let near = heard.who(asked(600 * MS, (100 << 20) + 65536, None));
        assert_eq!(near, Some(name("editor")));
        assert_eq!(heard.who(asked(600 * MS, 500 << 20, file(8))), None);
        assert_eq!(
            heard.who(asked(100 * MS, 500 << 20, file(8))),
            Some(name("editor"))
        );
    }

    #[test]
    fn who_reads_on_at_its_own_place_is_not_taken_for_who_reads_at_new_ones() {
        let mut heard = Heard::default();
        heard.told(0, &[word("copy", 0, 4096)]);
        heard.told(MS, &[word("editor", 300 << 20, 4096)]);
        for step in 0..50 {
            heard.told((2 + step) * MS, &[word("copy", step * 4096, 4096)]);
        }
        let new = heard.who(asked(60 * MS, 700 << 20, None));
        assert_eq!(new, Some(name("editor")));
        assert_eq!(heard.who(asked(60 * MS, 8192, None)), Some(name("copy")));
    }

    #[test]
    fn a_directory_is_the_one_programs_that_has_read_in_it_at_several_times() {
        let mut heard = Heard::default();
        let image = ImageId::default();
        let mut number = 0;
        // each file is another one, far from all others
        let mut reads = |heard: &mut Heard, us: u64, told: Option<&str>| {
            number += 1;
            let asked = Asked {
                folder: Some(Program::Folder { image, inode: 1 }),
                ..asked(us, number << 30, file(number))
            };
            let taken_for = heard.who(asked);
            if let Some(told) = told {
                heard.told(us + MS, &[word(told, asked.offset, 4096)]);
            }
            taken_for
        };
        let minute = 60_000 * MS;
        assert_eq!(reads(&mut heard, minute, Some("backup")), None);
        assert_eq!(reads(&mut heard, 2 * minute, Some("backup")), None);
        assert_eq!(reads(&mut heard, 3 * minute, None), Some(name("backup")));
        assert_eq!(
            reads(&mut heard, 4 * minute, Some("find")),
            Some(name("backup"))
        );
        assert_eq!(reads(&mut heard, 5 * minute, Some("backup")), None);
        // not shared any more
        assert_eq!(reads(&mut heard, 15 * minute, None), Some(name("backup")));
    }

    #[test]
    fn a_file_that_three_programs_read_is_nobodys() {
        let mut heard = Heard::default();
        let minute = 60_000 * MS;
        let mut reads = |us: u64, program: &str| {
            // at a time at which nobody has just read at a new place
            let taken_for = heard.who(asked(us, 100 << 20, file(1)));
            heard.told(us + MS, &[word(program, 100 << 20, 4096)]);
            taken_for
        };
        assert_eq!(reads(minute, "editor"), None);
        assert_eq!(reads(minute + 5_000 * MS, "viewer"), Some(name("editor")));
        assert_eq!(reads(minute + 10_000 * MS, "editor"), Some(name("viewer")));
        assert_eq!(reads(minute + 15_000 * MS, "backup"), Some(name("editor")));
        assert_eq!(reads(minute + 20_000 * MS, "backup"), None);
        // once the others have not read it for long it is the third one's
        assert_eq!(reads(12 * minute, "backup"), None);
        assert_eq!(
            reads(12 * minute + 5_000 * MS, "backup"),
            Some(name("backup"))
        );
    }

    #[test]
    fn an_agent_that_falls_silent_is_forgotten() {
        let mut heard = Heard::default();
        heard.who(asked(0, 0, file(1)));
        heard.told(0, &[word("editor", 0, 4096)]);
        let late = SPOT_US + 1;
        assert_eq!(heard.who(asked(late, 0, file(1))), None);
    }

    #[test]
    fn amounts_tell_who_it_was_only_if_it_was_nearly_one_alone() {
        let mut heard = Heard::default();
        heard.who(asked(0, 0, file(1)));
        let amount = |text, bytes| Told {
            name: name(text),
            from: None,
            bytes,
        };
        heard.told(MS, &[amount("a", 60), amount("b", 40)]);
        assert_eq!(heard.who(asked(2 * MS, 0, file(1))), None);
        heard.told(3 * MS, &[amount("a", 95), amount("b", 5)]);
        assert_eq!(heard.who(asked(4 * MS, 0, file(1))), Some(name("a")));
        heard.told(3 * MS, &[amount("a", 0), amount("b", u64::MAX)]);
        assert_eq!(heard.who(asked(4 * MS, 0, file(1))), Some(name("b")));
    }

    #[test]
    fn whatever_an_agent_tells_takes_bounded_room_and_time() {
        let mut heard = Heard::default();
        for n in 0..100_000u64 {
            let from = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let folder = file(n);
            heard.who(Asked {
                folder,
                ..asked(n, from, file(n))
            });
            heard.told(n, &[word("liar", from, u64::MAX)]);
        }
        assert!(heard.spots.len() <= OWNERS_MAX && heard.files.len() <= OWNERS_MAX);
        assert!(heard.folders.len() <= OWNERS_MAX);
        assert!(heard.recent.len() <= RECENT_MAX);
    }
}
