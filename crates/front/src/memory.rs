//! Who may hold how much memory, for bodies that come and answers that wait for their reader.

use super::Party;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes held now: a state machine without any memory.
///
/// One party has at most a quarter, all strangers together at most half: what they hold, users still find.
#[derive(Debug)]
pub struct Shares {
    max: u64,
    all: u64,
    strangers: u64,
    parties: HashMap<Party, u64>,
}

impl Shares {
    fn new(max: u64) -> Shares {
        Shares {
            max,
            all: 0,
            strangers: 0,
            parties: HashMap::new(),
        }
    }

    fn take(&mut self, party: &Party, bytes: u64) -> bool {
        if bytes == 0 {
            return true; // nothing to remember, and nothing that would be given back
        }
        let own = self.parties.get(party).copied().unwrap_or(0);
        let strange = !party.is_user();
        let fits = own + bytes <= self.max / 4
            && self.all + bytes <= self.max
            && (!strange || self.strangers + bytes <= self.max / 2);
        if fits {
            self.all += bytes;
            self.strangers += if strange { bytes } else { 0 };
            *self.parties.entry(party.clone()).or_default() += bytes;
        }
        fits
    }

    fn give_back(&mut self, party: &Party, bytes: u64) {
        self.all -= bytes;
        if !party.is_user() {
            self.strangers -= bytes;
        }
        if let Some(own) = self.parties.get_mut(party) {
            *own -= bytes;
            if *own == 0 {
                self.parties.remove(party);
            }
        }
    }
}

/// [`Shares`] for all threads.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mutex<Shares>>);

impl Memory {
    /// At most `max` bytes.
    pub fn new(max: u64) -> Memory {
        Memory(Arc::new(Mutex::new(Shares::new(max))))
    }

    /// Nothing yet, for `party`.
    pub fn hold(&self, party: &Party) -> Held {
        Held {
            memory: self.clone(),
            party: party.clone(),
            bytes: 0,
        }
    }
}

/// Bytes that a party holds, until it is dropped.
#[derive(Debug)]
pub struct Held {
    memory: Memory,
    party: Party,
    bytes: u64,
}

impl Held {
    /// Holds more; `false` if that is more than its share.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let grown = self.memory.0.lock().take(&self.party, bytes);
        self.bytes += if grown { bytes } else { 0 };
        grown
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.0.lock().give_back(&self.party, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_hold_and_all_comes_back(takes in proptest::collection::vec((0u8..8, 0u64..300, any::<bool>()), 0..200)) {
            let memory = Memory::new(1000);
            let party = |n: u8| match n {
                0..4 => Party::User(n.to_string().into()),
                n => Party::at([10, 0, 0, n].into()),
            };
            let mut held: Vec<Held> = Vec::new();
            for (who, bytes, give_back) in takes {
                if give_back && !held.is_empty() {
                    held.remove(0);
                }
                let mut more = memory.hold(&party(who));
                if more.grow(bytes) {
                    held.push(more);
                }
                let shares = memory.0.lock();
                prop_assert!(shares.all <= 1000 && shares.strangers <= 500);
                prop_assert!(shares.parties.values().all(|own| *own <= 250));
            }
            held.clear();
            // a user finds a share, whatever strangers hold
            let mut strangers: Vec<Held> = Vec::new();
            for n in 4..8 {
                let mut more = memory.hold(&party(n));
                more.grow(250);
                strangers.push(more);
            }
            prop_assert!(memory.hold(&party(0)).grow(250));
            drop(strangers);
            let shares = memory.0.lock();
            prop_assert_eq!((shares.all, shares.strangers, shares.parties.len()), (0, 0, 0));
        }
    }
}
