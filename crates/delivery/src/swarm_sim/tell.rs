//! The figures that follow from all swarms.
use super::plan::{
    CS_D, CS_P, FIRST, IN_ORDER, Key, MAIN, MIXED, OURS, P2P_D, QUIET, SMALL, Setting, WORKLOADS,
};
use super::{DRAWN, Swarms, Told};
use floe_simulator::predict::{MODEL_NOTE, Modelled};
use floe_simulator::swarm_sim::Recorded;
use floe_simulator::swarm_sim::sweep::{Case, FASTER, LEARNT, Row, Rule};
use floe_testbed::harness::{Report, Samples};
use std::collections::BTreeSet;

impl Swarms {
    /// Returns the reading of VMTorrent's policy that is the faster one, with the paper's window.
    pub fn paper_row(&self, setting: Setting, hosts: usize) -> Option<Row> {
        let rows = [QUIET, FIRST].into_iter();
        let told = rows.filter_map(|row| Some((row, self.mean(setting, hosts, row)?)));
        let least = told.min_by(|a, b| a.1.total_cmp(&b.1));
        least.map(|(row, _)| row)
    }

    /// Returns the mean slowdown by VMTorrent's policy in the reading, and with the window of all that were tried, that is the fastest.
    fn strongest(&self, setting: Setting, hosts: usize) -> Option<f64> {
        // both readings, or who knows which is the stronger one
        self.mean(setting, hosts, QUIET)?;
        self.mean(setting, hosts, FIRST)?;
        let rows = self.rows(setting, hosts).into_iter();
        let rows = rows.filter(|row| matches!(row.rule, Rule::P2pPQuiet | Rule::P2pPFirst));
        rows.filter_map(|row| self.mean(setting, hosts, row))
            .min_by(f64::total_cmp)
    }

    fn rows(&self, setting: Setting, hosts: usize) -> BTreeSet<Row> {
        let keys = self.told.keys();
        let keys = keys.filter(|key| key.setting == setting && key.hosts == hosts);
        keys.map(|key| key.row).collect()
    }

    fn settings(&self) -> BTreeSet<Setting> {
        self.told.keys().map(|key| key.setting).collect()
    }
}

/// Returns the largest of a ratio over sizes of the swarm; `None` if some are missing.
fn worst(ratio: impl Fn(usize) -> Option<f64>, sizes: &[usize]) -> Option<f64> {
    let ratios: Option<Vec<f64>> = sizes.iter().map(|hosts| ratio(*hosts)).collect();
    ratios?.into_iter().max_by(f64::total_cmp)
}

/// Adds all figures that what was simulated allows.
pub fn tell(swarms: &Swarms, report: &mut Report) {
    let together = swarms.settings().into_iter();
    for setting in together.filter(|setting| setting.spread_s == MAIN.spread_s) {
        tell_setting(swarms, setting, report);
    }
    promises(swarms, report);
    workloads(swarms, report);
    others(swarms, report);
    model(swarms, report);
    let cpu_s: f64 = swarms.told.values().map(|told| told.cpu_s).sum();
    report.add_value("cpu_s", "s", cpu_s);
    let dropped: u64 = swarms.told.values().map(|told| told.dropped).sum();
    if dropped > 0 {
        report.fail(format!("{dropped} honest hosts were dropped"));
    }
    report.note(format!(
        "recorded times are divided by {FASTER} where a figure's name has no prefix for it, by 4 and by 1 where it has `s4.` and `s1.`; pieces \
         are of 64 KiB, but of 16 KiB where it has `k16.`; `p2p_p` is the faster of two readings of VMTorrent's text with its window of 4.9 MB"
    ));
}

fn samples(told: &[&Told]) -> Samples {
    told.iter().map(|told| told.mean).collect()
}

/// Adds the mean slowdowns of all sizes and policies of a setting.
fn tell_setting(swarms: &Swarms, setting: Setting, report: &mut Report) {
    let prefix = setting.prefix();
    for hosts in swarms.hosts(setting) {
        for row in swarms.rows(setting, hosts) {
            if let Some(told) = swarms.of(setting, hosts, row) {
                let name = format!("{prefix}n{hosts}.{}", row.name());
                report.add_mean(&name, "x", &samples(&told));
            }
        }
        let paper = swarms.paper_row(setting, hosts);
        if let Some(told) = paper.and_then(|row| swarms.of(setting, hosts, row)) {
            let name = format!("{prefix}n{hosts}.p2p_p");
            report.add_mean(&name, "x", &samples(&told));
        }
    }
}

/// Adds the figures that have a limit.
fn promises(swarms: &Swarms, report: &mut Report) {
    let all = swarms.sizes.all();
    let ours = [MAIN, SMALL].map(|setting| {
        let ratio = |hosts| {
            let theirs = swarms.strongest(setting, hosts)?;
            Some(swarms.mean(setting, hosts, OURS)? / theirs)
        };
        let worst = worst(ratio, &all)?;
        let name = format!("k{}.worst_ours_over_p2p_p", setting.piece_kib);
        report.add_value(&name, "x", worst);
        Some(worst)
    });
    if let [Some(large), Some(small)] = ours {
        report.add_value("worst_ours_over_p2p_p", "x", large.max(small));
    }
    let servers = |setting, sizes: &[usize]| {
        let ratio = |hosts| {
            let demand = swarms.mean(setting, hosts, CS_D)?;
            Some(swarms.mean(setting, hosts, CS_P)? / demand)
        };
        worst(ratio, sizes)
    };
    // servers alone are simulated with small pieces up to the paper's size
    let to_paper = all.iter().copied();
    let to_paper = to_paper.filter(|hosts| *hosts <= swarms.sizes.paper());
    let to_paper: Vec<usize> = to_paper.collect();
    if let (Some(large), Some(small)) = (servers(MAIN, &all), servers(SMALL, &to_paper)) {
        report.add_value("worst_cs_p_over_cs_d", "x", large.max(small));
    }
    let at = swarms.sizes.paper();
    if let Some(told) = swarms.of(MAIN, at, OURS) {
        let ratios = told.iter().map(|told| told.p99 / told.p50);
        let worst = ratios.fold(0.0, f64::max);
        report.add_value(&format!("p99_over_p50_n{at}"), "x", worst);
    }
    let ours = swarms.mean(MAIN, at, OURS);
    let paper = swarms.paper_row(MAIN, at);
    for (name, row) in [
        ("cs_d", Some(CS_D)),
        ("p2p_d", Some(P2P_D)),
        ("p2p_p", paper),
    ] {
        let theirs = row.and_then(|row| swarms.mean(MAIN, at, row));
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            let figure = report.add_value(&format!("{name}_over_ours_n{at}"), "x", theirs / ours);
            figure.against(&format!("{name} over memory"), "x", theirs);
        }
    }
}

/// Adds what each workload has of it, and what it consists of.
fn workloads(swarms: &Swarms, report: &mut Report) {
    let (setting, hosts) = (MAIN, swarms.sizes.paper());
    let rows = swarms.rows(setting, hosts);
    for workload in 0..WORKLOADS.len() {
        let key = |row| Key {
            setting,
            hosts,
            row,
            workload,
        };
        let Some(case) = swarms.cases.of(&key(OURS)) else {
            continue;
        };
        for row in &rows {
            let Some(told) = swarms.told(&key(*row)) else {
                continue;
            };
            let name = format!("{}.{}", case.name, row.name());
            report.add_value(&format!("{name}.slowdown_n{hosts}"), "x", told.mean);
            let ratio = told.seed_bytes as f64 / case.profile_bytes();
            report.add_value(&format!("{name}.seed_ratio_n{hosts}"), "x", ratio);
        }
        report.note(describe(case));
    }
}

/// Says what a workload consists of.
fn describe(case: &Case) -> String {
    let runs = case.runs.len() as f64;
    let mean = |of: &dyn Fn(&Recorded) -> f64| {
        let all = case.runs.iter().map(|(run, _)| of(run));
        all.sum::<f64>() / runs
    };
    let known = case.profiles.iter().flat_map(|profile| &profile.pieces);
    let known: BTreeSet<u32> = known.copied().collect();
    let missing = |run: &Recorded| {
        let unknown = run
            .accesses
            .iter()
            .filter(|access| !known.contains(&access.1));
        unknown.count() as f64 / run.accesses.len().max(1) as f64
    };
    format!(
        "{}: {} runs, {:.1} MB with the indices of packs, in {:.1} s with everything in memory, on the mean; the profile of {LEARNT} other runs \
         has {:.1} MB, and lacks {:.1} % of what a run accesses",
        case.name,
        case.runs.len(),
        mean(&|run| case.bytes(run) / 1e6),
        mean(&|run| run.end_us as f64 / 1e6),
        case.profile_bytes() / 1e6,
        mean(&missing) * 100.0
    )
}

/// Adds the figures of other swarms: the fast link, hosts that start one after the other, several workloads at once.
fn others(swarms: &Swarms, report: &mut Report) {
    let (at, most) = (swarms.sizes.paper(), swarms.sizes.most());
    let fast = Setting {
        gigabit: true,
        ..MAIN
    };
    let mut settings = swarms.settings().into_iter();
    let staggered = settings.find(|setting| setting.spread_s != MAIN.spread_s);
    let places = [(Some(fast), most, "_1g"), (staggered, at, "_staggered")];
    for (setting, hosts, name) in places {
        let Some(setting) = setting else { continue };
        let paper = swarms.paper_row(setting, hosts);
        for (policy, row) in [("ours", Some(OURS)), ("p2p_p", paper)] {
            if let Some(told) = row.and_then(|row| swarms.of(setting, hosts, row)) {
                report.add_mean(&format!("{policy}_n{hosts}{name}"), "x", &samples(&told));
            }
        }
    }
    let mixed = |row| {
        let key = Key {
            setting: MAIN,
            hosts: at,
            row,
            workload: MIXED,
        };
        swarms.told(&key).map(|told| told.mean)
    };
    let paper = match (mixed(QUIET), mixed(FIRST)) {
        (Some(quiet), Some(first)) => Some(quiet.min(first)),
        _ => None,
    };
    for (policy, mean) in [("ours", mixed(OURS)), ("p2p_p", paper)] {
        if let Some(mean) = mean {
            report.add_value(&format!("{policy}_n{at}_mixed"), "x", mean);
        }
    }
}

/// Adds what the paper's model says over what was simulated, for the policies that it knows.
fn model(swarms: &Swarms, report: &mut Report) {
    for hosts in swarms.hosts(MAIN) {
        for modelled in Modelled::ALL {
            let row = match modelled {
                Modelled::P2pP => swarms.paper_row(MAIN, hosts),
                Modelled::P2pD => Some(P2P_D),
                // alone, pieces are fetched in order (4.3)
                Modelled::CsP if hosts == 1 => Some(IN_ORDER),
                Modelled::CsP => Some(CS_P),
                Modelled::CsD => Some(CS_D),
            };
            let told = row.and_then(|row| swarms.of(MAIN, hosts, row));
            let (Some(row), Some(told)) = (row, told) else {
                continue;
            };
            let ratios = told.iter().enumerate().filter_map(|(workload, told)| {
                let key = Key {
                    setting: MAIN,
                    hosts,
                    row,
                    workload,
                };
                let case = swarms.cases.of(&key)?;
                let runs = case.runs.iter().map(|(run, _)| run);
                let model = modelled.slowdown(runs, MAIN.piece_bytes(), MAIN.link(), hosts);
                Some(model / told.mean)
            });
            let ratios: Samples = ratios.collect();
            let name = format!("model_over_sim_n{hosts}");
            report.add_mean(&format!("{name}.{}", modelled.name()), "x", &ratios);
            // that of the paper's own, at the sizes that are drawn
            if modelled == Modelled::P2pP && DRAWN.contains(&hosts) {
                report.add_mean(&name, "x", &ratios);
            }
        }
    }
    report.note(MODEL_NOTE);
}
