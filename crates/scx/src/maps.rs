//! The maps of `bpf/floe.bpf.c`: what it keeps, and what it is told. The structures there are repeated here.

use crate::sys::{Map, Shape};
use std::io;

/// Kinds of maps.
const HASH: u32 = 1;
const ARRAY: u32 = 2;
/// Memory for an entry is taken when it is made.
const NO_PREALLOC: u32 = 1;
/// Most cores of a host.
pub const CORES: usize = 256;
/// Most machines whose vCPUs are kept apart.
pub const GANGS: u32 = 256;
const fn array(entries: u32) -> Shape {
    Shape {
        kind: ARRAY,
        key: 4,
        value: 0,
        entries,
        flags: 0,
        of_kernel: 0,
    }
}

const fn hash(key: u32, entries: u32) -> Shape {
    Shape {
        kind: HASH,
        key,
        value: 0,
        entries,
        flags: NO_PREALLOC,
        of_kernel: 0,
    }
}

/// All maps, by name. How many bytes an entry has is known to the object.
pub const SHAPES: [(&str, Shape); 7] = [
    ("settings", array(1)),
    ("state", array(1)),
    ("cores", array(CORES as u32)),
    ("gangs", array(GANGS)),
    ("vcpus", hash(4, 65_536)),
    ("tasks", hash(4, 262_144)),
    ("groups", hash(8, 65_536)),
];

/// What lending has come to since the scheduler was loaded, in nanoseconds of service: what was lent is what was borrowed,
/// given back, written off, and still under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Taken from lenders.
    pub lent_ns: u64,
    /// Used by borrowers.
    pub borrowed_ns: u64,
    /// Given back to lenders, since the borrower could not use it.
    pub returned_ns: u64,
    /// Not given back, since the lender had ended.
    pub written_off_ns: u64,
    /// How many loans were made.
    pub loans: u64,
    /// How often a task was set aside, because its control group had used up its quota.
    pub parked: u64,
    /// How often a core took a task from another's queue.
    pub moved: u64,
}

/// How a machine's vCPUs have fared since the scheduler was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fares {
    /// How often one of them was given a core.
    pub runs: u64,
    /// How often, then, another one ran or waited at the same core.
    pub stacked: u64,
    /// How often it was measured how far apart they are.
    pub distances: u64,
    /// How many places the farthest was behind, all measurements together.
    pub distance: u64,
    /// How often one lent to another.
    pub lent: u64,
    /// How long they have run, in nanoseconds.
    pub ran_ns: u64,
    /// How long they have waited for a core, in nanoseconds.
    pub waited_ns: u64,
    /// How often one was taken by another core.
    pub moved: u64,
}

impl Fares {
    /// In how many of the times that a vCPU got a core another one was there, in percent; `None` if none did.
    pub fn stacking_pct(&self) -> Option<f64> {
        (self.runs > 0).then(|| 100.0 * self.stacked as f64 / self.runs as f64)
    }

    /// How many places the farthest is behind, on average; `None` if that was never measured.
    pub fn distance(&self) -> Option<f64> {
        (self.distances > 0).then(|| self.distance as f64 / self.distances as f64)
    }

    /// How much of the time that they wanted to run they waited, in percent; `None` if they wanted nothing.
    pub fn steal_pct(&self) -> Option<f64> {
        let wanted = self.ran_ns + self.waited_ns;
        (wanted > 0).then(|| 100.0 * self.waited_ns as f64 / wanted as f64)
    }

    /// What has come since `earlier`.
    pub fn since(&self, earlier: &Fares) -> Fares {
        let less = |now: u64, before: u64| now.saturating_sub(before);
        Fares {
            runs: less(self.runs, earlier.runs),
            stacked: less(self.stacked, earlier.stacked),
            distances: less(self.distances, earlier.distances),
            distance: less(self.distance, earlier.distance),
            lent: less(self.lent, earlier.lent),
            ran_ns: less(self.ran_ns, earlier.ran_ns),
            waited_ns: less(self.waited_ns, earlier.waited_ns),
            moved: less(self.moved, earlier.moved),
        }
    }
}

/// The number at a place of a map's value.
fn number(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes
        .get(at..at + 8)
        .and_then(|eight| eight.try_into().ok());
    u64::from_le_bytes(eight.unwrap_or_default())
}

/// Reads what lending has come to.
pub fn ledger(state: &Map) -> io::Result<Ledger> {
    let bytes = state.get(&[0; 4])?;
    let [
        lent_ns,
        borrowed_ns,
        returned_ns,
        written_off_ns,
        loans,
        parked,
        moved,
    ] = std::array::from_fn(|place| number(&bytes, 8 + place * 8));
    Ok(Ledger {
        lent_ns,
        borrowed_ns,
        returned_ns,
        written_off_ns,
        loans,
        parked,
        moved,
    })
}

/// Reads how the vCPUs of the machine at this place fare.
pub fn fares(gangs: &Map, place: u32) -> io::Result<Fares> {
    let bytes = gangs.get(&place.to_le_bytes())?;
    let [
        runs,
        stacked,
        distances,
        distance,
        lent,
        ran_ns,
        waited_ns,
        moved,
    ] = std::array::from_fn(|place| number(&bytes, CORES * 4 + place * 8));
    Ok(Fares {
        runs,
        stacked,
        distances,
        distance,
        lent,
        ran_ns,
        waited_ns,
        moved,
    })
}
