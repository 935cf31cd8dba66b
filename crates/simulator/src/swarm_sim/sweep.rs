//! Swarms of the recorded workloads: which of their runs are replayed, what is learnt from the others, and by which policies.
use super::pieces::{Pieces, Profile, Recorded, profile};
use super::swarm::{Host, Link, Outcome, Seed, Setup, simulate_at};
use floe_swarm::policy::Config;
use floe_testbed::traces::Workload;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

/// By what the recorded times are divided unless something else is said. The recordings were made under emulation on a busy host; divided
/// so, the three workloads of `swarm-sim` access 5 to 7 MB a second with everything in memory, like the paper's (whose `cs_d` at n = 100
/// takes 40 to 70 times as long, which is what 5 to 9 MB/s make of 100 Mbit/s).
pub const FASTER: u32 = 14;
/// Runs from which the profile is learnt, the first of each workload. They are not replayed.
pub const LEARNT: usize = 3;

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

/// The policies that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Rule {
    /// Ours.
    Ours,
    /// VMTorrent's, which asks nothing ahead while the machine catches up (4.4.1).
    P2pPQuiet,
    /// VMTorrent's, in which prefetch goes on and whoever is asked serves demands first (4.5).
    P2pPFirst,
    /// Peers without a profile.
    P2pD,
    /// A server and a profile.
    CsP,
    /// A server alone.
    CsD,
    /// A server and a profile, whose pieces are fetched in its order (4.3).
    InOrder,
}

/// A policy, and the window of those that have a fixed one, in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Row {
    /// The policy.
    pub rule: Rule,
    /// The window; `None` for that of the paper, in bytes.
    pub k: Option<u32>,
}

impl Row {
    /// A policy as it is.
    pub const fn of(rule: Rule) -> Row {
        Row { rule, k: None }
    }

    /// A policy with another window than it has.
    pub const fn with(rule: Rule, k: u32) -> Row {
        Row { rule, k: Some(k) }
    }

    /// Its name in figures.
    pub fn name(self) -> String {
        let rule = match self.rule {
            Rule::Ours => "ours",
            Rule::P2pPQuiet => "p2p_p_quiet",
            Rule::P2pPFirst => "p2p_p_first",
            Rule::P2pD => "p2p_d",
            Rule::CsP => "cs_p",
            Rule::CsD => "cs_d",
            Rule::InOrder => "in_order",
        };
        match self.k {
            Some(k) => format!("{rule}_k{k}"),
            None => rule.into(),
        }
    }

    /// Its settings for pieces of so many bytes.
    pub fn config(self, piece_bytes: u64) -> Config {
        let config = match self.rule {
            Rule::Ours => Config::ours(),
            Rule::P2pPQuiet => Config::p2p_p(),
            Rule::P2pPFirst => Config::p2p_p_first(),
            Rule::P2pD => Config::p2p_d(),
            Rule::CsP | Rule::InOrder => Config::cs_p(),
            Rule::CsD => Config::cs_d(),
        };
        let config = config.of_pieces(piece_bytes);
        let window_max = match (self.rule, self.k) {
            (Rule::InOrder, _) => 1,
            (_, Some(k)) => k as usize,
            (_, None) => config.window_max,
        };
        Config {
            window_max,
            ..config
        }
    }
}

/// A workload as a swarm sees it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Number of pieces that any run touches.
    pub pieces: u32,
    /// Bytes of a piece.
    pub piece_bytes: u64,
    /// The runs that are replayed, and which profile is that of each.
    pub runs: Vec<(Recorded, usize)>,
    /// What was learnt from the others: of each workload.
    pub profiles: Vec<Profile>,
}

/// What is simulated of a case.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Number of hosts.
    pub hosts: usize,
    /// The policy of each.
    pub config: Config,
    /// Their links.
    pub link: Link,
    /// They start within this time, in microseconds.
    pub spread_us: u64,
    /// What has all pieces.
    pub seed: Seed,
}

impl Case {
    /// Prepares a workload, whose machines compute `faster` times as fast as the recorded ones. The profile is learnt from the first
    /// `learnt` runs, and the first [`LEARNT`] are not replayed; there must be more than that.
    pub fn new(workload: &Workload, piece_bytes: u64, faster: f64, learnt: usize) -> Case {
        let mut pieces = Pieces::new(&workload.image, piece_bytes);
        let traces = workload.traces.iter();
        let all: Vec<Recorded> = traces
            .map(|trace| pieces.recorded(&workload.image, trace, faster))
            .collect();
        let (first, runs) = all.split_at(LEARNT.min(all.len().saturating_sub(1)));
        let learnt: Vec<&Recorded> = first.iter().take(learnt).collect();
        Case {
            name: workload.meta.workload.clone(),
            pieces: pieces.len(),
            piece_bytes,
            runs: runs.iter().map(|run| (run.clone(), 0)).collect(),
            profiles: vec![profile(&learnt)],
        }
    }

    /// Puts workloads side by side, as if all were of one image: pieces of one are no other's, and each has its own profile. Hosts run
    /// them in turn.
    pub fn mixed(cases: &[&Case]) -> Case {
        let (mut base, mut profiles, mut turns) = (0, Vec::new(), Vec::new());
        for (number, case) in cases.iter().enumerate() {
            let mut profile = case.profiles[0].clone();
            profile.pieces.iter_mut().for_each(|piece| *piece += base);
            profiles.push(profile);
            for (turn, (run, _)) in case.runs.iter().enumerate() {
                let mut run = run.clone();
                run.accesses.iter_mut().for_each(|access| access.1 += base);
                turns.push((turn, number, run));
            }
            base += case.pieces;
        }
        turns.sort_by_key(|(turn, number, _)| (*turn, *number));
        Case {
            name: "mixed".into(),
            pieces: base,
            piece_bytes: cases.first().map_or(0, |case| case.piece_bytes),
            runs: turns.into_iter().map(|(_, of, run)| (run, of)).collect(),
            profiles,
        }
    }

    /// Returns the bytes that a run accesses.
    pub fn bytes(&self, run: &Recorded) -> f64 {
        (run.accesses.len() as u64 * self.piece_bytes) as f64
    }

    /// Returns the bytes of the profile.
    pub fn profile_bytes(&self) -> f64 {
        let pieces = self.profiles.iter().map(|profile| profile.pieces.len());
        let pieces: usize = pieces.sum();
        (pieces as u64 * self.piece_bytes) as f64
    }

    /// Simulates hosts that start together.
    pub fn run(&self, scene: &Scene) -> Outcome {
        let setup = Setup {
            config: scene.config,
            hosts: self.hosts(scene.hosts, scene.spread_us),
            pieces: self.pieces,
            link: scene.link,
            chance: scene.hosts as u64,
        };
        simulate_at(&setup, scene.seed)
    }

    /// Returns the first of so many hosts; there is at least one.
    pub fn first_host(&self, count: usize, spread_us: u64) -> Host<'_> {
        self.hosts(count.max(1), spread_us)[0]
    }

    /// Hosts that each have one of the runs in turn and compute a little faster or slower than recorded.
    fn hosts(&self, count: usize, spread_us: u64) -> Vec<Host<'_>> {
        let mut random = StdRng::seed_from_u64(count as u64);
        let host = |n: usize| {
            let (run, profile) = &self.runs[n % self.runs.len()];
            Host {
                run,
                profile: &self.profiles[*profile],
                start_us: random.random_range(0..=spread_us),
                slowness: random.random_range(0.9..1.1),
                link_slowness: 1,
            }
        };
        (0..count).map(host).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::pieces::{PAPER_PIECE_BYTES, PIECE_BYTES};
    use super::*;
    use floe_swarm::policy::PieceId;

    #[test]
    fn the_papers_window_is_as_many_bytes_in_pieces_of_any_size() {
        let k = |row: Row, bytes| row.config(bytes).window_max;
        let paper = Row::of(Rule::P2pPQuiet);
        assert_eq!(
            (k(paper, PAPER_PIECE_BYTES), k(paper, PIECE_BYTES)),
            (300, 75)
        );
        assert_eq!(k(Row::with(Rule::P2pPFirst, 300), PIECE_BYTES), 300);
        let ours = Row::of(Rule::Ours);
        assert_eq!(k(ours, PIECE_BYTES), Config::ours().window_max);
        assert_eq!(ours.config(PIECE_BYTES), Config::ours());
        assert_eq!(Row::with(Rule::CsP, 32).name(), "cs_p_k32");
    }

    #[test]
    fn workloads_side_by_side_share_no_piece() {
        let case = |name: &str| Case {
            name: name.into(),
            pieces: 2,
            piece_bytes: PIECE_BYTES,
            runs: vec![
                (
                    Recorded {
                        accesses: vec![(1, 0), (2, 1)],
                        end_us: 3,
                    },
                    0,
                );
                2
            ],
            profiles: vec![Profile {
                pieces: vec![1, 0],
                ..Profile::default()
            }],
        };
        let both = Case::mixed(&[&case("a"), &case("b")]);
        let runs = both.runs.iter().map(|run| (run.1, run.0.accesses[0].1));
        let runs: Vec<(usize, PieceId)> = runs.collect();
        assert_eq!(runs, [(0, 0), (1, 2), (0, 0), (1, 2)]);
        let profiles = both.profiles.into_iter().map(|profile| profile.pieces);
        let profiles: Vec<Vec<PieceId>> = profiles.collect();
        assert_eq!((both.pieces, profiles), (4, vec![vec![1, 0], vec![3, 2]]));
    }
}
