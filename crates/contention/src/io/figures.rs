//! What the figures are of: arithmetic over what was measured, without a disk.

use super::noise::Got;
use floe_testbed::harness::{Report, Samples};
use std::collections::BTreeMap;

/// Samples by name. Those of one round stand at the same place in all of them, but for those of which a round has several.
pub type Table = BTreeMap<String, Samples>;

/// What a launch is measured beside: `reader` and `sync` are loops, `machine` and `writer` replay what was recorded, and are there if anything was.
pub const NOISES: [&str; 8] = [
    "reader1", "reader7", "boot1", "boot7", "sync7", "machine1", "machine7", "writer7",
];
/// Those of which promises are, the first, which are compared with the peers.
pub const COMPARED: usize = 4;
/// Linux' scheduler was CFQ when the paper was written; it is gone, and this one stands in for it.
const DEFAULT: &str = "bfq.";

/// Returns how fair shares are: 1 if all have the same, 1/n if one has all (Jain's index).
pub fn jain(each: &[f64]) -> f64 {
    let (sum, squares) = each
        .iter()
        .fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    sum * sum / squares / each.len() as f64
}

/// Returns what a liar gains: the greater of its throughput over the mean of the others', and of their mean wait over its own.
pub fn liar_gain(liar: Got, others: &[Got]) -> f64 {
    let mean = |of: fn(&Got) -> f64| others.iter().map(of).sum::<f64>() / others.len() as f64;
    let more = liar.requests / mean(|got| got.requests);
    let sooner = mean(|got| got.mean_us()) / liar.mean_us();
    more.max(sooner)
}

/// Returns the least of what other machines have, over the share of each, if all that want as much as they can get have the same.
/// `own` is what the mixed machine had.
pub fn others_over_share(own: f64, others: &[f64]) -> f64 {
    let all = own + others.iter().sum::<f64>();
    let share = all / (others.len() + 1) as f64;
    others.iter().copied().fold(f64::INFINITY, f64::min) / share
}

/// Returns the geometric mean, as the paper's of ten pages.
pub fn geometric_mean(values: &[f64]) -> f64 {
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (logs / values.len() as f64).exp()
}

/// Returns the requests of all in a second.
pub fn rate(got: &[Got], seconds: f64) -> f64 {
    got.iter().map(|got| got.requests).sum::<f64>() / seconds
}

/// Returns the mean wait of all their requests, in milliseconds.
pub fn mean_wait_ms(got: &[Got]) -> f64 {
    let waited: f64 = got.iter().map(|got| got.waited_us).sum();
    let requests: f64 = got.iter().map(|got| got.requests).sum();
    waited / requests.max(1.0) / 1e3
}

/// Returns the ratios of two series of the same rounds; `None` if one was not measured.
fn over(table: &Table, ours: &str, theirs: &str) -> Option<Samples> {
    Some(table.get(ours)?.over(table.get(theirs)?))
}

/// Adds all figures of what was measured by these candidates, whose prefixes these are; floe's is empty. `peers` are the ones without floe.
pub fn tell(report: &mut Report, table: &Table, candidates: &[&str], peers: &[&str]) {
    for who in candidates {
        launches(report, table, who);
        pages(report, table, who);
        commands(report, table, who);
        mixed(report, table, who);
    }
    against_peers(report, table, peers);
    shares(report, table, peers);
    live(report, table);
}

fn add(report: &mut Report, table: &Table, name: &str, unit: &str) {
    if let Some(samples) = table.get(name) {
        report.add(name, unit, samples);
    }
}

fn launches(report: &mut Report, table: &Table, who: &str) {
    for what in ["launch_alone_s", "launch_alone_wait_s"] {
        add(report, table, &format!("{who}{what}"), "s");
    }
    for noise in NOISES {
        let name = format!("{who}launch_{noise}");
        let beside = format!("{name}_s");
        if let Some(slower) = over(table, &beside, &format!("{who}launch_alone_s")) {
            report
                .add(&name, "x", &slower)
                .against("the same alone", "x", 1.0);
        }
        add(report, table, &format!("{name}_wait_s"), "s");
        add(report, table, &format!("{name}_others_ms"), "ms");
        add(report, table, &format!("{name}_taken_pct"), "%");
    }
}

fn pages(report: &mut Report, table: &Table, who: &str) {
    add(report, table, &format!("{who}page_alone_s"), "s");
    for noise in ["reader7", "boot7"] {
        if let Some(slower) = table.get(&format!("{who}page_{noise}")) {
            report
                .add(&format!("{who}page_{noise}"), "x", slower)
                .against("the same alone", "x", 1.0);
        }
    }
    for film in ["alone", "reader7", "boot7", "over_share"] {
        add(report, table, &format!("{who}drops_{film}_pct"), "%");
    }
}

fn commands(report: &mut Report, table: &Table, who: &str) {
    let of = |what: &str| table.get(&format!("{who}echo_{what}_ms"));
    if let (Some(alone), Some(beside)) = (of("alone"), of("sync7")) {
        let added = beside.quantile(0.99) - alone.quantile(0.99);
        let figure = report.add_value(&format!("{who}echo_added_ms"), "ms", added);
        figure.n = beside.len();
        figure.against("99 of 100 alone", "ms", alone.quantile(0.99));
    }
    for kind in ["", "ssd."] {
        let name = format!("{who}{kind}echo_sync7_over_alone");
        let Some(ratios) = table.get(&name) else {
            continue;
        };
        // the promise is of the SSD
        let name = match kind {
            "" => format!("{who}hard_disk.echo_sync7_over_alone"),
            _ => format!("{who}echo_sync7_over_alone"),
        };
        report
            .add(&name, "x", ratios)
            .against("the same alone", "x", 1.0);
    }
}

fn mixed(report: &mut Report, table: &Table, who: &str) {
    for (name, against) in [
        ("interactive_latency_over_alone", "the benchmark alone"),
        ("mixed_latency_over_alone", "the benchmark alone"),
        ("others_over_share", "an equal share"),
    ] {
        let name = format!("{who}{name}");
        if let Some(samples) = table.get(&name) {
            report.add(&name, "x", samples).against(against, "x", 1.0);
        }
    }
}

/// Adds how floe's launches are over those of the peers, in seconds and round by round.
fn against_peers(report: &mut Report, table: &Table, peers: &[&str]) {
    for noise in ["reader1", "boot1"] {
        let (ours, theirs) = (
            format!("launch_{noise}_s"),
            format!("{DEFAULT}launch_{noise}_s"),
        );
        if let Some(ratio) = over(table, &ours, &theirs) {
            let seconds = table[&theirs].median();
            report
                .add(&format!("launch_{noise}_over_default"), "x", &ratio)
                .against("BFQ", "s", seconds);
        }
    }
    let mut worst: Option<(Samples, &str, String)> = None;
    for noise in &NOISES[..COMPARED] {
        let ours = format!("launch_{noise}_s");
        let Some((best, seconds)) = best_peer(table, noise, peers) else {
            continue;
        };
        report
            .add(&format!("best_peer.launch_{noise}_s"), "s", seconds)
            .against(best.trim_end_matches('.'), "s", seconds.median());
        let Some(ratio) = over(table, &ours, &format!("{best}launch_{noise}_s")) else {
            continue;
        };
        let is_worse = worst
            .as_ref()
            .is_none_or(|(known, ..)| ratio.median() > known.median());
        if is_worse {
            worst = Some((ratio, noise, best.to_owned()));
        }
    }
    if let Some((ratio, noise, best)) = worst {
        let best = best.trim_end_matches('.');
        report.add("worst_over_best_peer", "x", &ratio).against(
            &format!("{best}, beside {noise}"),
            "x",
            1.0,
        );
    }
}

/// Returns the peer whose launches beside this noise take least, and how long they take.
fn best_peer<'a>(
    table: &'a Table,
    noise: &str,
    peers: &[&'a str],
) -> Option<(&'a str, &'a Samples)> {
    let of = |peer: &&'a str| Some((*peer, table.get(&format!("{peer}launch_{noise}_s"))?));
    let known = peers.iter().filter_map(of);
    known.min_by(|(_, a), (_, b)| a.median().total_cmp(&b.median()))
}

fn shares(report: &mut Report, table: &Table, peers: &[&str]) {
    if let Some(ratio) = over(table, "noisy_per_s", "fifo.noisy_per_s") {
        let fifo = table["fifo.noisy_per_s"].median();
        report.add("throughput_ratio", "x", &ratio).against(
            "first come, first served, with the same user",
            "requests/s",
            fifo,
        );
    }
    let all_of = |peer: &&str| {
        let per_s = format!("{peer}noisy_per_s");
        Some((peer.trim_end_matches('.').to_owned(), table.get(&per_s)?))
    };
    let most = peers.iter().filter_map(all_of);
    let most = most.max_by(|(_, a), (_, b)| a.median().total_cmp(&b.median()));
    if let (Some(ours), Some((peer, theirs))) = (table.get("noisy_per_s"), most) {
        report
            .add("throughput_over_best_peer", "x", &ours.over(theirs))
            .against(&peer, "requests/s", theirs.median());
    }
    if let Some(fair) = table.get("jain") {
        let fifo = table.get("fifo.jain").map_or(f64::NAN, Samples::median);
        let figure = report.add("jain", "x", fair);
        if fifo.is_finite() {
            figure.against("first come, first served", "x", fifo);
        }
    }
    let mut worst: Option<&Samples> = None;
    for (name, _) in super::noise::Lie::ALL {
        let name = format!("liar_gain_{name}");
        let Some(gain) = table.get(&name) else {
            continue;
        };
        report
            .add(&name, "x", gain)
            .against("the mean of the honest ones", "x", 1.0);
        if worst.is_none_or(|known| gain.median() > known.median()) {
            worst = Some(gain);
        }
    }
    if let Some(worst) = worst {
        report
            .add("liar_gain", "x", worst)
            .against("the mean of the honest ones", "x", 1.0);
    }
    for (name, against) in [
        ("two_total_over_device", "the bare device"),
        ("two_jain", "both have the same"),
        ("device_over_model", "the model"),
    ] {
        for kind in ["", "ssd."] {
            let name = format!("{kind}{name}");
            if let Some(samples) = table.get(&name) {
                report.add(&name, "x", samples).against(against, "x", 1.0);
            }
        }
    }
    for kind in ["", "ssd."] {
        add(report, table, &format!("{kind}device_cores"), "cores");
    }
}

fn live(report: &mut Report, table: &Table) {
    for what in ["alone", "reader1"] {
        let Some(ratio) = over(
            table,
            &format!("live_{what}_reads_s"),
            &format!("replay_{what}_reads_s"),
        ) else {
            continue;
        };
        let name = match what {
            "alone" => "live_over_replay_alone",
            _ => "live_over_replay",
        };
        let replayed = table[&format!("replay_{what}_reads_s")].median();
        report
            .add(name, "x", &ratio)
            .against("the replay's reads", "s", replayed);
        add(report, table, &format!("live_{what}_took_s"), "s");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(of: &[(&str, &[f64])]) -> Table {
        let samples = of.iter().map(|(name, values)| {
            let samples: Samples = values.iter().copied().collect();
            ((*name).to_owned(), samples)
        });
        samples.collect()
    }

    fn told(of: &[(&str, &[f64])]) -> BTreeMap<String, f64> {
        let mut report = Report::new("io", true);
        tell(
            &mut report,
            &table(of),
            &["", "bfq.", "fifo."],
            &["bfq.", "none."],
        );
        let figures = report.figures.into_iter();
        figures.map(|(name, figure)| (name, figure.value)).collect()
    }

    fn got(requests: f64, waited_us: f64) -> Got {
        Got {
            requests,
            waited_us,
        }
    }

    #[test]
    fn fairness_is_1_for_equals_and_less_for_others() {
        assert_eq!(jain(&[5.0; 7]), 1.0);
        assert_eq!(jain(&[4.0, 0.0, 0.0, 0.0]), 0.25);
        assert!((jain(&[3.0, 1.0]) - 0.8).abs() < 1e-12);
    }

    #[test]
    fn a_liar_gains_by_more_requests_or_by_sooner_ones() {
        let honest = [got(100.0, 1000.0), got(100.0, 3000.0)];
        assert_eq!(liar_gain(got(100.0, 2000.0), &honest), 1.0);
        assert_eq!(liar_gain(got(110.0, 2200.0), &honest), 1.1);
        assert_eq!(liar_gain(got(100.0, 1000.0), &honest), 2.0);
        assert_eq!(liar_gain(got(50.0, 2000.0), &honest), 0.5);
    }

    #[test]
    fn the_machine_that_has_least_decides_what_others_lose() {
        assert_eq!(others_over_share(10.0, &[10.0, 10.0]), 1.0);
        assert_eq!(others_over_share(18.0, &[6.0, 6.0]), 0.6);
        assert_eq!(others_over_share(0.0, &[9.0, 15.0, 12.0]), 1.0);
    }

    #[test]
    fn rates_and_waits_are_of_all_machines_together() {
        let two = [got(30.0, 60_000.0), got(10.0, 100_000.0)];
        assert_eq!(rate(&two, 4.0), 10.0);
        assert_eq!(mean_wait_ms(&two), 4.0);
        assert!((geometric_mean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_launch_is_over_the_same_rounds_launch_alone_and_over_the_peers_in_seconds() {
        let told = told(&[
            ("launch_alone_s", &[1.0, 2.0, 1.0]),
            ("launch_reader1_s", &[1.1, 2.2, 1.3]),
            ("launch_reader1_wait_s", &[0.5, 0.7, 0.6]),
            ("launch_boot1_s", &[1.0, 2.0, 1.0]),
            ("bfq.launch_alone_s", &[1.0, 1.0, 1.0]),
            ("bfq.launch_reader1_s", &[2.2, 4.4, 2.6]),
            ("bfq.launch_boot1_s", &[4.0, 4.0, 4.0]),
            ("none.launch_reader1_s", &[1.0, 2.0, 1.0]),
            ("none.launch_boot1_s", &[5.0, 5.0, 5.0]),
        ]);
        assert!((told["launch_reader1"] - 1.1).abs() < 1e-12);
        assert_eq!(told["launch_reader1_wait_s"], 0.6);
        assert!((told["launch_reader1_over_default"] - 0.5).abs() < 1e-12);
        assert_eq!(told["launch_boot1_over_default"], 0.25);
        assert_eq!(told["bfq.launch_reader1"], 2.6);
        assert_eq!(told["best_peer.launch_reader1_s"], 1.0);
        assert_eq!(told["best_peer.launch_boot1_s"], 4.0);
        // beside the reader, where `none` is the best peer
        assert!((told["worst_over_best_peer"] - 1.1).abs() < 1e-12);
        assert!(!told.contains_key("launch_reader7") && !told.contains_key("jain"));
    }

    #[test]
    fn a_commands_added_wait_is_between_the_slowest_of_a_hundred() {
        let alone: Vec<f64> = (1..=100).map(f64::from).collect();
        let beside: Vec<f64> = alone.iter().map(|ms| ms + 20.0).collect();
        let told = told(&[
            ("echo_alone_ms", &alone),
            ("echo_sync7_ms", &beside),
            ("echo_sync7_over_alone", &[3.0]),
            ("ssd.echo_sync7_over_alone", &[1.0, 1.5, 1.2]),
        ]);
        assert!((told["echo_added_ms"] - 20.0).abs() < 1e-9);
        assert_eq!(told["echo_sync7_over_alone"], 1.2);
        assert_eq!(told["hard_disk.echo_sync7_over_alone"], 3.0);
    }

    #[test]
    fn the_worst_liar_counts_and_throughput_is_over_fifo_with_the_same_user() {
        let told = told(&[
            ("noisy_per_s", &[99.0, 110.0]),
            ("fifo.noisy_per_s", &[100.0, 100.0]),
            ("bfq.noisy_per_s", &[110.0, 110.0]),
            ("none.noisy_per_s", &[90.0, 300.0]),
            ("jain", &[0.99]),
            ("fifo.jain", &[1.0]),
            ("liar_gain_click", &[1.0, 1.02]),
            ("liar_gain_rename", &[1.03, 1.01]),
            ("liar_gain_agent", &[0.99, 1.1, 0.9]),
        ]);
        assert!((told["throughput_ratio"] - 1.045).abs() < 1e-12);
        // `none`, round by round, which has most in the median
        assert!((told["throughput_over_best_peer"] - (1.1 + 110.0 / 300.0) / 2.0).abs() < 1e-12);
        assert!((told["liar_gain"] - 1.02).abs() < 1e-12);
        assert_eq!(told["liar_gain_agent"], 0.99);
        assert_eq!(told["jain"], 0.99);
    }

    #[test]
    fn the_live_guest_is_over_the_replay_of_the_same_round() {
        let told = told(&[
            ("live_reader1_reads_s", &[1.0, 1.2]),
            ("replay_reader1_reads_s", &[1.0, 1.0]),
            ("live_reader1_took_s", &[2.0, 2.0]),
            ("two_total_over_device", &[0.97]),
            ("ssd.two_jain", &[1.0]),
            ("device_over_model", &[0.99]),
            ("mixed_latency_over_alone", &[1.1]),
            ("fifo.others_over_share", &[0.8]),
            ("drops_reader7_pct", &[0.0, 0.2]),
            ("page_reader7", &[1.05]),
        ]);
        assert!((told["live_over_replay"] - 1.1).abs() < 1e-12);
        for name in [
            "live_reader1_took_s",
            "two_total_over_device",
            "ssd.two_jain",
            "device_over_model",
        ] {
            assert!(told.contains_key(name), "{name}");
        }
        for name in [
            "mixed_latency_over_alone",
            "fifo.others_over_share",
            "drops_reader7_pct",
            "page_reader7",
        ] {
            assert!(told.contains_key(name), "{name}");
        }
    }
}
