//! Which swarms are simulated, in parts that can be simulated by themselves.
use floe_simulator::swarm_sim::sweep::{Case, FASTER, GBIT_1, LEARNT, MBIT_100, Row, Rule, Scene};
use floe_simulator::swarm_sim::{Link, Outcome, Seed};
use floe_testbed::traces::{self, Workload};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The three workloads of the figures: a boot from the disk, a task that only computes, and a user at a screen.
pub const WORKLOADS: [&str; 3] = ["boot", "document", "desktop"];
/// The number of all of them side by side.
pub const MIXED: usize = WORKLOADS.len();
/// Sizes of the swarm; 100 is the paper's largest.
const HOSTS: [usize; 11] = [2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1024];
/// Sizes of a short run.
const HOSTS_QUICK: [usize; 3] = [2, 8, 16];
/// The paper's largest swarm, and the one of the promises.
const PAPER: usize = 100;
/// The largest swarm.
const MOST: usize = 1024;
/// Peers that fetch little ahead take thirty times as long in larger ones, and as much more work to simulate.
const SLOW_MOST: usize = 256;
/// Windows of VMTorrent's policy that are tried, in pieces.
const WINDOWS: [u32; 5] = [32, 75, 150, 300, 600];
/// Machines compute so many times as fast as recorded, besides [`FASTER`].
const OTHER_SPEEDS: [u32; 2] = [4, 1];
/// Hosts that start one after the other do so within this time, in seconds.
const STAGGERED_S: u32 = 60;

/// VMTorrent's policy by both readings of its text.
pub const QUIET: Row = Row::of(Rule::P2pPQuiet);
/// See [`QUIET`].
pub const FIRST: Row = Row::of(Rule::P2pPFirst);
/// Ours.
pub const OURS: Row = Row::of(Rule::Ours);
/// The other policies.
pub const P2P_D: Row = Row::of(Rule::P2pD);
/// See [`P2P_D`].
pub const CS_P: Row = Row::of(Rule::CsP);
/// See [`P2P_D`].
pub const CS_D: Row = Row::of(Rule::CsD);
/// One host that fetches the profile in its order.
pub const IN_ORDER: Row = Row::of(Rule::InOrder);

/// A part of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Part {
    /// Pieces of 64 KiB, all sizes
    K64,
    /// Pieces of 16 KiB, all sizes
    K16,
    /// Machines 1 and 4 times as fast as recorded
    Speeds,
    /// Windows of VMTorrent's policy
    Windows,
    /// Links of 1 Gbit/s
    Gigabit,
    /// One host; the paper's seed; profiles of one run; staggered starts; workloads side by side
    Others,
}

/// All parts.
pub const PARTS: [Part; 6] = [
    Part::K64,
    Part::K16,
    Part::Speeds,
    Part::Windows,
    Part::Gigabit,
    Part::Others,
];

/// What is the same for all policies of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Setting {
    /// By what recorded times are divided.
    pub faster: u32,
    /// Size of a piece, in KiB.
    pub piece_kib: u32,
    /// Whether links have 1 Gbit/s, not 100 Mbit/s.
    pub gigabit: bool,
    /// What has all pieces.
    pub seed: Seed,
    /// From how many runs the profile is learnt.
    pub learnt: usize,
    /// Within how many seconds all start.
    pub spread_s: u32,
}

/// That of the promises, for pieces of 64 KiB.
pub const MAIN: Setting = Setting {
    faster: FASTER,
    piece_kib: 64,
    gigabit: false,
    seed: Seed::Server,
    learnt: LEARNT,
    spread_s: 1,
};
/// The same for pieces of 16 KiB.
pub const SMALL: Setting = Setting {
    piece_kib: 16,
    ..MAIN
};

impl Setting {
    /// Returns with what the names of its figures begin.
    pub fn prefix(&self) -> String {
        let mut prefix = String::new();
        let parts = [
            (self.faster != FASTER, format!("s{}.", self.faster)),
            (self.gigabit, "g1.".into()),
            (self.seed == Seed::Host, "paper.".into()),
            (self.learnt != LEARNT, format!("run{}.", self.learnt)),
            (self.spread_s != 1, format!("over{}s.", self.spread_s)),
            (
                self.piece_kib != MAIN.piece_kib,
                format!("k{}.", self.piece_kib),
            ),
        ];
        for (differs, name) in parts {
            if differs {
                prefix += &name;
            }
        }
        prefix
    }

    /// Returns the bytes of a piece.
    pub fn piece_bytes(&self) -> u64 {
        u64::from(self.piece_kib) << 10
    }

    /// Returns the links of all hosts.
    pub fn link(&self) -> Link {
        match self.gigabit {
            true => GBIT_1,
            false => MBIT_100,
        }
    }

    /// Returns within which time all start, in microseconds.
    pub fn spread_us(&self) -> u64 {
        u64::from(self.spread_s) * 1_000_000
    }
}

/// A swarm that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// What is the same for all policies.
    pub setting: Setting,
    /// Number of hosts.
    pub hosts: usize,
    /// The policy.
    pub row: Row,
    /// The number of the workload in [`WORKLOADS`], or [`MIXED`].
    pub workload: usize,
}

impl Key {
    /// Returns about how much work it is, in no unit.
    pub fn work(&self) -> f64 {
        let pieces = if self.setting.piece_kib < 64 {
            3.5
        } else {
            1.0
        };
        let talks = match self.row.rule {
            Rule::CsD | Rule::CsP | Rule::InOrder => 0.4,
            Rule::P2pD => 1.5,
            Rule::Ours | Rule::P2pPQuiet | Rule::P2pPFirst => 1.0,
        };
        // ticks take as long as the run
        let ticks = 0.2 * f64::from(FASTER) / f64::from(self.setting.faster.max(1));
        self.hosts as f64 * talks * (pieces + ticks)
    }
}

/// Sizes that a full or a short run has.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Whether it is a short run.
    pub quick: bool,
}

impl Sizes {
    /// All sizes of the swarm.
    pub fn all(self) -> Vec<usize> {
        match self.quick {
            true => HOSTS_QUICK.to_vec(),
            false => HOSTS.to_vec(),
        }
    }

    fn up_to(self, most: usize) -> Vec<usize> {
        self.all().into_iter().filter(|n| *n <= most).collect()
    }

    /// The size of the promises.
    pub fn paper(self) -> usize {
        if self.quick { HOSTS_QUICK[2] } else { PAPER }
    }

    /// The largest size.
    pub fn most(self) -> usize {
        if self.quick { HOSTS_QUICK[2] } else { MOST }
    }

    /// A small size, and that of the promises.
    fn two(self) -> Vec<usize> {
        match self.quick {
            true => vec![HOSTS_QUICK[0]],
            false => vec![16, PAPER],
        }
    }
}

/// Returns the swarms of a part.
pub fn swarms(part: Part, sizes: Sizes) -> BTreeSet<Key> {
    let mut all = BTreeSet::new();
    let mut add = |setting: Setting, hosts: &[usize], rows: &[Row]| {
        for (row, hosts) in rows
            .iter()
            .flat_map(|row| hosts.iter().map(move |n| (*row, *n)))
        {
            all.extend((0..WORKLOADS.len()).map(|workload| Key {
                setting,
                hosts,
                row,
                workload,
            }));
        }
    };
    let to_paper = sizes.up_to(PAPER);
    let paper = [sizes.paper()];
    let profiled = [OURS, QUIET, FIRST];
    let unprofiled = [P2P_D, CS_P, CS_D];
    match part {
        Part::K64 => {
            add(MAIN, &sizes.all(), &[OURS, QUIET, FIRST, CS_P, CS_D]);
            // as many pieces as the paper's, which are four times as many bytes
            let [quiet, first] = [QUIET, FIRST].map(|row| Row::with(row.rule, 300));
            add(MAIN, &sizes.all(), &[first]);
            add(MAIN, &sizes.up_to(SLOW_MOST), &[quiet, P2P_D]);
        }
        Part::K16 => {
            add(SMALL, &sizes.all(), &profiled);
            add(SMALL, &to_paper, &unprofiled);
        }
        Part::Speeds => {
            for faster in OTHER_SPEEDS {
                let of = |setting| Setting { faster, ..setting };
                let mut hosts = sizes.two();
                add(of(SMALL), &hosts, &profiled);
                hosts.push(2);
                add(of(MAIN), &hosts, &profiled);
                add(of(MAIN), &hosts, &unprofiled);
            }
        }
        Part::Windows => {
            for row in [QUIET, FIRST] {
                let rows = WINDOWS.map(|k| Row::with(row.rule, k));
                add(MAIN, &sizes.two(), &rows);
                add(SMALL, &sizes.two(), &rows);
            }
            // a swarm that large may want more diversity than the paper's
            add(MAIN, &[sizes.most()], &[Row::with(FIRST.rule, 150)]);
            add(SMALL, &[sizes.most()], &[Row::with(FIRST.rule, 600)]);
        }
        Part::Gigabit => {
            let fast = Setting {
                gigabit: true,
                ..MAIN
            };
            add(fast, &to_paper, &profiled);
            add(fast, &to_paper, &unprofiled);
            add(fast, &[sizes.most()], &profiled);
        }
        Part::Others => {
            for setting in [MAIN, SMALL] {
                for gigabit in [false, true] {
                    let one = Setting { gigabit, ..setting };
                    add(one, &[1], &[CS_D, IN_ORDER]);
                }
            }
            let seed = Seed::Host;
            let of_paper = Setting { seed, ..SMALL };
            add(of_paper, &sizes.two(), &profiled);
            add(of_paper, &[2], &profiled);
            let few = Setting { learnt: 1, ..MAIN };
            add(few, &sizes.two(), &profiled);
            let staggered = Setting {
                spread_s: STAGGERED_S,
                ..MAIN
            };
            add(staggered, &paper, &profiled);
            all.extend(profiled.map(|row| Key {
                setting: MAIN,
                hosts: paper[0],
                row,
                workload: MIXED,
            }));
        }
    }
    all
}

/// The workloads as the swarms of a plan see them.
pub struct Cases(BTreeMap<(usize, u32, u32, usize), Case>);

impl Cases {
    fn place(key: &Key) -> (usize, u32, u32, usize) {
        let Setting {
            faster,
            piece_kib,
            learnt,
            ..
        } = key.setting;
        (key.workload, piece_kib, faster, learnt)
    }

    /// Reads the recorded runs of a folder and prepares what the swarms need.
    pub fn read<'a>(
        folder: &Path,
        keys: impl IntoIterator<Item = &'a Key>,
    ) -> anyhow::Result<Cases> {
        let mut workloads: Vec<Workload> = Vec::new();
        for name in WORKLOADS {
            let workload = traces::read(&folder.join(name))?;
            anyhow::ensure!(workload.traces.len() > LEARNT, "{name} has too few runs");
            workloads.push(workload);
        }
        let mut all = BTreeMap::new();
        for key in keys {
            let setting = &key.setting;
            let of = |workload: &Workload| {
                let faster = f64::from(setting.faster);
                Case::new(workload, setting.piece_bytes(), faster, setting.learnt)
            };
            all.entry(Cases::place(key))
                .or_insert_with(|| match workloads.get(key.workload) {
                    Some(workload) => of(workload),
                    None => {
                        let cases: Vec<Case> = workloads.iter().map(of).collect();
                        Case::mixed(&cases.iter().collect::<Vec<_>>())
                    }
                });
        }
        Ok(Cases(all))
    }

    /// Returns the workload of a swarm.
    pub fn of(&self, key: &Key) -> Option<&Case> {
        self.0.get(&Cases::place(key))
    }

    /// Simulates a swarm, whose workload was prepared.
    pub fn simulate(&self, key: &Key) -> Option<Outcome> {
        let setting = &key.setting;
        let scene = Scene {
            hosts: key.hosts,
            config: key.row.config(setting.piece_bytes()),
            link: setting.link(),
            spread_us: setting.spread_us(),
            seed: setting.seed,
        };
        Some(self.of(key)?.run(&scene))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_told_apart_by_the_names_of_their_figures() {
        let sizes = Sizes { quick: false };
        let all: BTreeSet<Key> = PARTS.iter().flat_map(|part| swarms(*part, sizes)).collect();
        let settings: BTreeSet<Setting> = all.iter().map(|key| key.setting).collect();
        let names: BTreeSet<String> = settings.iter().map(Setting::prefix).collect();
        assert_eq!(names.len(), settings.len());
        assert_eq!(
            (MAIN.prefix(), SMALL.prefix()),
            (String::new(), "k16.".into())
        );
        // speed-ups of 1, 4 and 14
        let speeds: BTreeSet<u32> = settings.iter().map(|setting| setting.faster).collect();
        assert_eq!(speeds, [1, 4, 14].into());
        // both readings are there wherever ours is
        for key in all.iter().filter(|key| key.row == OURS) {
            for row in [QUIET, FIRST] {
                assert!(all.contains(&Key { row, ..*key }), "{key:?}");
            }
        }
    }
}
