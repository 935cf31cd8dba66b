//! Which programs on a base disk are interactive: said by hand, or learned from its machines.

use super::limits::{
    CREDIBLE_MACHINES, CREDIBLE_PERCENT, CREDIBLE_SEEN, HAND_MAX, INCREDIBLE_PERCENT, LEARNED_MAX,
    LIST_BYTES_MAX, SEEN_MAX,
};
use super::program::Name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of a list's file.
const LIST_VERSION: u32 = 1;

/// How often machines found a program interactive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many machines have seen it.
    pub machines: u32,
    /// How often it was judged: once for each pause between inputs in which it asked for enough.
    pub seen: u32,
    /// How often it was interactive then.
    pub interactive: u32,
}

impl Tally {
    /// Returns what is believed of the program in a machine that hasn't judged it itself: that it is interactive, that it is not, or
    /// nothing yet. The paper's two measures decide: how many identifications there are, and how many of them say interactive.
    pub fn belief(&self) -> Option<bool> {
        let (yes, all) = (u64::from(self.interactive) * 100, u64::from(self.seen));
        if self.machines < CREDIBLE_MACHINES || self.seen < CREDIBLE_SEEN {
            None
        } else if yes >= all * CREDIBLE_PERCENT {
            Some(true)
        } else {
            (yes <= all * INCREDIBLE_PERCENT).then_some(false)
        }
    }
}

/// What a user says of a program by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hand {
    Allowed,
    Forbidden,
}

/// What users have set by hand for the programs of a base disk or of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said(BTreeMap<Name, Hand>);

impl Said {
    /// Says this of a program, instead of what was said before.
    pub fn say(&mut self, name: Name, hand: Hand) -> Result<(), ListError> {
        if self.0.len() >= HAND_MAX && !self.0.contains_key(&name) {
            return Err(ListError::TooMany {
                what: "names by hand",
                number: self.0.len() + 1,
                most: HAND_MAX,
            });
        }
        self.0.insert(name, hand);
        Ok(())
    }

    /// Returns what was said of a program.
    pub fn of(&self, name: &Name) -> Option<Hand> {
        self.0.get(name).copied()
    }

    /// Forgets what was said of a program, and returns whether anything was.
    pub fn forget(&mut self, name: &Name) -> bool {
        self.0.remove(name).is_some()
    }

    fn with(&self, hand: Hand) -> impl Iterator<Item = &Name> {
        let found = self.0.iter().filter(move |(_, said)| **said == hand);
        found.map(|(name, _)| name)
    }
}

/// The list of the interactive programs on a base disk. It belongs to one user, because it tells what was done in the machines. Whoever has
/// the classifier stores it beside the images' models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct List {
    pub(super) said: Said,
    learned: BTreeMap<Name, Tally>,
}

impl List {
    /// Decodes a file's content.
    pub fn parse(bytes: &[u8]) -> Result<List, ListError> {
        /// What every version has.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        if bytes.len() > LIST_BYTES_MAX {
            return Err(ListError::TooLong { bytes: bytes.len() });
        }
        let wrong = |error: serde_json::Error| ListError::Syntax(error.to_string());
        let versioned: Versioned = serde_json::from_slice(bytes).map_err(wrong)?;
        if versioned.version != LIST_VERSION {
            return Err(ListError::Version(versioned.version));
        }
        let stored: Stored = serde_json::from_slice(bytes).map_err(wrong)?;
        List::try_from(stored)
    }

    /// Returns a file's content, which [`List::parse`] accepts.
    pub fn encode(&self) -> String {
        let stored = Stored::from(self.clone());
        // a value of strings, numbers and lists can be encoded
        let mut text = serde_json::to_string(&stored).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Returns the names that are interactive because somebody said so, in alphabetic order.
    pub fn allowed(&self) -> impl Iterator<Item = &Name> {
        self.said.with(Hand::Allowed)
    }

    /// Returns the names that are never interactive because somebody said so, in alphabetic order.
    pub fn forbidden(&self) -> impl Iterator<Item = &Name> {
        self.said.with(Hand::Forbidden)
    }

    /// Returns what was learned, believed or not.
    pub fn learned(&self) -> impl Iterator<Item = (&Name, &Tally)> {
        self.learned.iter()
    }

    /// Returns what machines have shown of this program.
    pub(super) fn belief(&self, name: &Name) -> Option<bool> {
        self.learned.get(name).and_then(Tally::belief)
    }

    /// Learns from a machine that has judged a program. `is_first` if this machine has not taught it before.
    pub(super) fn learn(&mut self, name: Name, is_first: bool, is_interactive: bool) {
        if self.learned.len() >= LEARNED_MAX && !self.learned.contains_key(&name) {
            self.forget_least();
        }
        let tally = self.learned.entry(name).or_default();
        tally.machines = tally.machines.saturating_add(u32::from(is_first)).max(1);
        tally.seen += 1;
        tally.interactive += u32::from(is_interactive);
        if tally.seen > SEEN_MAX {
            tally.seen /= 2;
            tally.interactive /= 2;
            tally.machines = tally.machines.min(tally.seen);
        }
    }

    /// Forgets all that is said or was learned of a program.
    pub(super) fn forget(&mut self, name: &Name) {
        self.said.forget(name);
        self.learned.remove(name);
    }

    /// Takes over what another list says: what this one doesn't know, and what the other one knows from more machines. Doing so
    /// twice changes nothing more. What doesn't fit is left out.
    pub(super) fn merge(&mut self, other: List) {
        for (name, hand) in other.said.0 {
            if self.said.of(&name).is_none() && self.said.0.len() < HAND_MAX {
                self.said.0.insert(name, hand);
            }
        }
        for (name, theirs) in other.learned {
            let is_full = self.learned.len() >= LEARNED_MAX;
            match self.learned.get_mut(&name) {
                Some(ours) if ours.seen < theirs.seen => *ours = theirs,
                None if !is_full => {
                    self.learned.insert(name, theirs);
                }
                _ => {}
            }
        }
    }

    /// Makes room by forgetting an eighth of what was learned: what fewest machines have taught.
    fn forget_least(&mut self) {
        let mut worth: Vec<_> = self
            .learned
            .iter()
            .map(|(name, tally)| (tally.machines, tally.seen, *name))
            .collect();
        worth.sort_unstable();
        for (_, _, name) in worth.iter().take(LEARNED_MAX / 8) {
            self.learned.remove(name);
        }
    }
}

/// Why a list can't be read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// There is too much of it.
    #[error("the list has {bytes} bytes, at most {LIST_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It isn't a list's JSON; says what is wrong in which line and column.
    #[error("the list can't be read: {0}")]
    Syntax(String),
    /// Another version of floe has written it.
    #[error("the list has version {0}, this floe knows version {LIST_VERSION}")]
    Version(u32),
    /// It has too many entries.
    #[error(
        "{number} {what} are too many, {most} are allowed; remove some that are no longer needed"
    )]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        number: usize,
        /// How many are allowed.
        most: usize,
    },
    /// An entry contradicts itself or another one.
    #[error("{part}[{index}] of the list {what}")]
    Entry {
        /// The array with the entry.
        part: &'static str,
        /// Its index there, from 0.
        index: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Something was to be said of a machine that hasn't begun, or is gone.
    #[error("no such machine runs; say it of its image instead")]
    NoMachine,
}

/// A list in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    #[serde(default)]
    allowed: Vec<Name>,
    #[serde(default)]
    forbidden: Vec<Name>,
    #[serde(default)]
    learned: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: Name,
    machines: u32,
    seen: u32,
    interactive: u32,
}

impl Row {
    fn tally(&self) -> Result<Tally, &'static str> {
        if self.interactive > self.seen {
            return Err("was interactive more often than it was seen");
        }
        if self.machines == 0 || self.machines > self.seen || self.seen > SEEN_MAX {
            return Err(
                "wants 1 machine at least, no more machines than times it was seen, and 1024 times at most",
            );
        }
        Ok(Tally {
            machines: self.machines,
            seen: self.seen,
            interactive: self.interactive,
        })
    }
}

impl TryFrom<Stored> for List {
    type Error = ListError;

    fn try_from(stored: Stored) -> Result<List, ListError> {
        if stored.version != LIST_VERSION {
            return Err(ListError::Version(stored.version));
        }
        if stored.learned.len() > LEARNED_MAX {
            return Err(ListError::TooMany {
                what: "learned programs",
                number: stored.learned.len(),
                most: LEARNED_MAX,
            });
        }
        let mut list = List::default();
        let by_hand = [
            ("allowed", stored.allowed, Hand::Allowed),
            ("forbidden", stored.forbidden, Hand::Forbidden),
        ];
        for (part, names, hand) in by_hand {
            for (index, name) in names.into_iter().enumerate() {
                if list.said.of(&name).is_some() {
                    let what = "has been named before";
                    return Err(ListError::Entry { part, index, what });
                }
                list.said.say(name, hand)?;
            }
        }
        for (index, row) in stored.learned.iter().enumerate() {
            let part = "learned";
            let wrong = |what| ListError::Entry { part, index, what };
            let tally = row.tally().map_err(wrong)?;
            if list.learned.insert(row.name, tally).is_some() {
                return Err(wrong("has been named before"));
            }
        }
        Ok(list)
    }
}

impl From<List> for Stored {
    fn from(list: List) -> Stored {
        let rows = list.learned.iter().map(|(name, tally)| Row {
            name: *name,
            machines: tally.machines,
            seen: tally.seen,
            interactive: tally.interactive,
        });
        Stored {
            version: LIST_VERSION,
            allowed: list.allowed().copied().collect(),
            forbidden: list.forbidden().copied().collect(),
            learned: rows.collect(),
        }
    }
}
