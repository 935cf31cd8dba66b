//! Limits how much memory each party holds for bodies being received and answers that wait for their reader.

use super::Party;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Counts the bytes that are held: a state machine that owns no memory itself.
///
/// One party may hold at most a quarter, and all strangers together at most half, so that some is always left for users.
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
            return true; // nothing to count
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

/// [`Shares`] for several threads.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mutex<Shares>>);

impl Memory {
    /// Allows at most `max` bytes.
    pub fn new(max: u64) -> Memory {
        Memory(Arc::new(Mutex::new(Shares::new(max))))
    }

    /// Returns a count for `party`, which is 0 at first.
    pub fn hold(&self, party: &Party) -> Held {
        Held {
            memory: self.clone(),
            party: party.clone(),
            bytes: 0,
        }
    }
}

/// Bytes that a party holds until this is dropped.
#[derive(Debug)]
pub struct Held {
    memory: Memory,
    party: Party,
    bytes: u64,
}

impl Held {
    /// Counts more bytes. Returns `false`, and counts nothing, if the party's share would be exceeded.
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
            // a user still gets a share, however much strangers hold
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
