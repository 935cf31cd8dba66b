//! Swarms of the recorded workloads: which of their runs are replayed, and what is learnt from the others.
use super::pieces::{Pieces, Recorded, profile};
use super::swarm::{Host, Link, Outcome, Setup, hosts, simulate};
use crate::traces::Workload;
use floe_swarm::policy::{Config, PieceId};

/// By what the recorded times are divided. The recordings were made under emulation on a busy host; divided so, the three workloads
/// of `swarm-sim` access 5 to 7 MB a second with everything in memory, like the paper's (whose `cs_d` at n = 100 takes 40 to 70
/// times as long, which is what 5 to 9 MB/s make of 100 Mbit/s).
pub const FASTER: f64 = 14.0;
/// Runs from which the profile is learnt, the first of each workload. They are not replayed.
pub const LEARNT: usize = 3;
/// All hosts start within this time, in microseconds: the same second.
pub const SAME_SECOND_US: u64 = 1_000_000;

/// The paper's testbeds (4.1 and 4.3.1): round trips, and what a host needs to answer.
pub const MBIT_100: Link = Link {
    bits_per_s: 100_000_000,
    rtt_us: 500,
    service_us: 500,
};
/// The faster one.
pub const GBIT_1: Link = Link {
    bits_per_s: 1_000_000_000,
    rtt_us: 50,
    service_us: 500,
};

/// The policies that are compared, with their names in figures; ours is the first.
pub fn policies() -> [(&'static str, Config); 5] {
    [
        ("ours", Config::ours()),
        ("p2p_p", Config::p2p_p()),
        ("p2p_d", Config::p2p_d()),
        ("cs_p", Config::cs_p()),
        ("cs_d", Config::cs_d()),
    ]
}

/// A workload as a swarm sees it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Number of pieces that any run touches.
    pub pieces: u32,
    /// The runs that are replayed.
    pub runs: Vec<Recorded>,
    /// What was learnt from the others.
    pub profile: Vec<PieceId>,
}

impl Case {
    /// Prepares a workload, which must have more than [`LEARNT`] runs.
    pub fn new(workload: &Workload) -> Case {
        let mut pieces = Pieces::new(&workload.image);
        let traces = workload.traces.iter();
        let all: Vec<Recorded> = traces
            .map(|trace| pieces.recorded(&workload.image, trace, FASTER))
            .collect();
        let (learnt, runs) = all.split_at(LEARNT.min(all.len().saturating_sub(1)));
        Case {
            name: workload.meta.workload.clone(),
            pieces: pieces.len(),
            profile: profile(&learnt.iter().collect::<Vec<_>>()),
            runs: runs.to_vec(),
        }
    }

    /// Simulates so many hosts that start within `spread_us`.
    pub fn run(&self, count: usize, config: Config, link: Link, spread_us: u64) -> Outcome {
        simulate(&Setup {
            config,
            hosts: self.hosts(count, spread_us),
            pieces: self.pieces,
            link,
            chance: count as u64,
        })
    }

    /// Returns the first of so many hosts; there is at least one.
    pub fn first_host(&self, count: usize, spread_us: u64) -> Host<'_> {
        self.hosts(count.max(1), spread_us)[0]
    }

    fn hosts(&self, count: usize, spread_us: u64) -> Vec<Host<'_>> {
        let runs: Vec<&Recorded> = self.runs.iter().collect();
        hosts(count, &runs, &self.profile, spread_us, count as u64)
    }
}
