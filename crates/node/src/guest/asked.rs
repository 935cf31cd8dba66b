//! Passes on which programs agents say are reading from their guests' disks. The scheduler of disk requests uses that for the machine that
//! said it, and for no other.

use super::meter::Meter;
use floe_guest::asked::{Asked, SECTOR_BYTES};
use floe_inventory::inventory::Entry;
use floe_sched::classify::{Name, Told};
use parking_lot::Mutex;

/// Messages that an agent may send at once, and in a second in the long run: four programs each time it looks. What is beyond is
/// dropped, and counts like everything else that a guest sends.
const BURST: u64 = 128;
const PER_SECOND: u64 = 128;

/// Takes what one guest's agent tells, within bounds.
pub(super) struct Ear(Mutex<Meter>);

impl Ear {
    pub fn new() -> Ear {
        Ear(Mutex::new(Meter::of(BURST, PER_SECOND)))
    }

    /// Returns whether a message is within the bound.
    pub fn takes(&self, now_ms: u64) -> bool {
        self.0.lock().take(now_ms, true)
    }

    /// Hands on what was told.
    pub fn told(&self, entry: &Entry, asked: &Asked) {
        let told = told(asked);
        if !told.is_empty()
            && let Some(disks) = &entry.state().disks
        {
            disks.told_who_asks(&told);
        }
    }
}

fn told(asked: &Asked) -> Vec<Told> {
    let Ok(name) = Name::new(&asked.by) else {
        return Vec::new();
    };
    let parts = asked.parts.iter().map(|(first, count)| Told {
        name,
        from: Some(first.saturating_mul(SECTOR_BYTES)),
        bytes: count.saturating_mul(SECTOR_BYTES),
    });
    let amount = asked.parts.is_empty().then_some(Told {
        name,
        from: None,
        bytes: asked.bytes,
    });
    parts.chain(amount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_in_bytes_and_amounts_where_there_are_none() {
        let name = Name::new("dd").unwrap();
        let mut asked = Asked {
            by: "dd".into(),
            parts: vec![(8, 2), (u64::MAX, u64::MAX)],
            bytes: 1024,
        };
        let known = told(&asked);
        assert_eq!((known[0].from, known[0].bytes), (Some(4096), 1024));
        assert_eq!(known[1].from, Some(u64::MAX));
        asked.parts.clear();
        let amount = Told {
            name,
            from: None,
            bytes: 1024,
        };
        assert_eq!(told(&asked), [amount]);
    }

    #[test]
    fn a_flood_is_dropped() {
        let ear = Ear::new();
        let taken = (0..10_000).filter(|_| ear.takes(0)).count() as u64;
        assert_eq!(taken, BURST);
        assert!(ear.takes(1000));
    }
}
