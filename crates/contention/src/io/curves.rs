//! Curves over the number of noisy machines (the paper's figures 2 to 4 and 10 to 12), and how long noisy machines take for what they have to do
//! while somebody launches programs (its section 4.5). Floe, and what stands in for the paper's default.

use super::figures::{self, Table};
use super::groups::WEIGHT;
use super::launches::Launches;
use super::noise::{Beside, NOISY};
use super::parts::{LOOK, Lab, Told, one};
use super::replay::{self, FRAME, FRAME_BYTES, replay};
use super::site::{Candidate, SETTLE, Stage};
use super::{VSIP, host};
use floe_testbed::harness::Report;
use floe_testbed::plot::{Axes, COLOURS, Scale, Svg};
use floe_testbed::slow_disk::Kind;
use std::time::{Duration, Instant};

const COMPARED: [Candidate; 2] = [VSIP, host("bfq", WEIGHT)];
/// What a curve is over one to seven machines of.
const NOISES: [&str; 2] = ["reader", "boot"];
/// Programs that are launched, and pages that are loaded, at each point; other ones in each round.
const PROGRAMS: usize = 2;
const PAGES: usize = 3;
/// How long a film is, in seconds.
const FILM_S: usize = 6;
/// A piece of work, in requests of all noisy machines: longer than the launches beside it take under anybody.
const WORK: usize = 900;
/// Launches beside a piece of work, each after a look at the last one.
const LAUNCHED: usize = 2;
/// What does the work.
const WORKERS: [&str; 2] = ["reader1", "boot1"];
/// How often it is looked whether the work is done, and the longest time for it.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(300);
/// The frames that the paper's CFQ drops beside five readers, in percent (section 1).
const PAPER_DROPS_READER5_PCT: f64 = 39.1;

/// A point of the curves.
struct Point {
    /// The geometric mean of warm launches, in seconds, and how long at least one of their requests was under way.
    warm_s: f64,
    waited_s: f64,
    /// The geometric mean of pages, in seconds.
    page_s: f64,
    dropped_pct: f64,
}

impl Lab<'_> {
    /// Warm launches, pages and films beside one to seven noisy machines, over the same alone.
    pub fn curves(&mut self, round: usize, told: &mut Told) -> anyhow::Result<()> {
        let most = self.context.pick(NOISY, 2);
        for candidate in self.in_turn(&COMPARED, round) {
            let who = candidate.prefix();
            let Some(alone) = self.point(candidate, None, round)? else {
                continue;
            };
            told.push((format!("{who}curve.warm_alone_s"), alone.warm_s));
            for noise in NOISES {
                for machines in 1..=most {
                    let noise = format!("{noise}{machines}");
                    let beside = self.launches.noise(&noise);
                    let Some(point) = self.point(candidate, Some(&beside), round)? else {
                        continue;
                    };
                    let (warm, page) = (point.warm_s / alone.warm_s, point.page_s / alone.page_s);
                    let dropped = point.dropped_pct;
                    eprintln!(
                        "io: round {round}, {who}curve, {noise}: launches {warm:.2} x alone, pages {page:.2}, {dropped:.1} % of the frames dropped"
                    );
                    let name = |what: &str| format!("{who}curve.{what}_{noise}");
                    told.push((name("warm"), warm));
                    told.push((name("warm") + "_wait_s", point.waited_s));
                    told.push((name("page"), page));
                    told.push((name("drops") + "_pct", dropped));
                }
            }
        }
        Ok(())
    }

    /// Measures one point; `None` if the host has nothing like this candidate. Each part has a cell of its own, before which the host
    /// forgets what it has read.
    fn point(
        &mut self,
        candidate: Candidate,
        beside: Option<&Beside>,
        round: usize,
    ) -> anyhow::Result<Option<Point>> {
        let (launches, kind) = (self.launches, Kind::HardDisk);
        let several = |stage: &Stage, of: &dyn Fn(usize) -> usize, is_page: bool, number: usize| {
            let (mut took, mut waited) = (Vec::new(), Vec::new());
            for each in 0..number {
                std::thread::sleep(LOOK);
                let launch = match is_page {
                    true => launches.page(of(each)),
                    false => launches.warm(of(each)),
                };
                let replayed = one(stage, launch)?;
                took.push(replayed.took_s);
                waited.push(replayed.waited_s);
            }
            anyhow::Ok((figures::geometric_mean(&took), waited))
        };
        let programs = |each: usize| round * PROGRAMS + each;
        let warm = self.site.beside(candidate, kind, beside, SETTLE, |stage| {
            several(stage, &programs, false, PROGRAMS)
        })?;
        let Some((warm_s, waited)) = warm else {
            return Ok(None);
        };
        let pages = |each: usize| round * PAGES + each;
        let page = self.site.beside(candidate, kind, beside, SETTLE, |stage| {
            several(stage, &pages, true, PAGES)
        })?;
        let frames = self.context.pick(FILM_S, 3) * 1000 / FRAME.as_millis() as usize;
        let from = self.site.film_at;
        let film = self.site.beside(candidate, kind, beside, SETTLE, |stage| {
            replay::film(stage.desk, stage.machine, from, FRAME_BYTES, frames)
        })?;
        let (Some((page_s, _)), Some(dropped_pct)) = (page, film) else {
            return Ok(None);
        };
        Ok(Some(Point {
            warm_s,
            waited_s: waited.iter().sum::<f64>() / waited.len() as f64,
            page_s,
            dropped_pct,
        }))
    }

    /// How long a noisy machine takes for a piece of work, with nobody at the desk, and while somebody launches programs there.
    pub fn work(&mut self, round: usize, told: &mut Told) -> anyhow::Result<()> {
        let requests = self.context.pick(WORK, 150);
        let launches = self.launches;
        for candidate in self.in_turn(&COMPARED, round) {
            let who = candidate.prefix();
            for noise in WORKERS {
                let beside = launches.noise(noise);
                for (launched, name) in [(0, "alone"), (LAUNCHED, "beside")] {
                    let launched = round * LAUNCHED..round * LAUNCHED + launched;
                    let took_s = self.site.beside(
                        candidate,
                        Kind::HardDisk,
                        Some(&beside),
                        SETTLE,
                        |stage| worked(stage, launches, launched, requests as f64),
                    )?;
                    let Some(took_s) = took_s else { break };
                    eprintln!("io: round {round}, {who}work of {noise} {name}: {took_s:.2} s");
                    told.push((format!("{who}work_{noise}_{name}_s"), took_s));
                }
            }
        }
        Ok(())
    }
}

/// Launches programs, and returns after how many seconds the noisy machines have had so many requests since the beginning.
fn worked(
    stage: &Stage,
    launches: &Launches,
    launched: std::ops::Range<usize>,
    requests: f64,
) -> anyhow::Result<f64> {
    let (before, start) = (stage.got(), Instant::now());
    let mut done_s = None;
    let mut look = || {
        let got = stage.since(&before);
        let all: f64 = got.iter().map(|got| got.requests).sum();
        if done_s.is_none() && all >= requests {
            done_s = Some(start.elapsed().as_secs_f64());
        }
        done_s
    };
    for number in launched {
        replay(
            stage.lanes,
            launches.program(number),
            stage.machine,
            &mut |_| {
                look();
                true
            },
        )?;
        let seen = Instant::now();
        while seen.elapsed() < LOOK {
            look();
            std::thread::sleep(LOOK_EVERY);
        }
    }
    loop {
        if let Some(done_s) = look() {
            return Ok(done_s);
        }
        anyhow::ensure!(
            start.elapsed() < PATIENCE,
            "noisy machines have not had {requests} requests within {} s",
            PATIENCE.as_secs()
        );
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Adds the figures of both, and draws the curves.
pub fn tell(report: &mut Report, table: &Table) {
    for candidate in COMPARED {
        let who = candidate.prefix();
        if let Some(alone) = table.get(&format!("{who}curve.warm_alone_s")) {
            report.add(&format!("{who}curve.warm_alone_s"), "s", alone);
        }
        for noise in NOISES {
            (1..=NOISY).for_each(|n| tell_point(report, table, candidate, &format!("{noise}{n}")));
        }
        WORKERS
            .iter()
            .for_each(|noise| tell_work(report, table, who, noise));
    }
    let [_, default] = COMPARED.map(Candidate::prefix);
    for noise in WORKERS {
        let (ours, theirs) = (
            format!("work_{noise}_beside_s"),
            format!("{default}work_{noise}_beside_s"),
        );
        if let (Some(ours), Some(theirs)) = (table.get(&ours), table.get(&theirs)) {
            report
                .add(
                    &format!("work_{noise}_over_default"),
                    "x",
                    &ours.over(theirs),
                )
                .against("BFQ", "s", theirs.median());
        }
    }
    for (what, unit, title) in [
        ("warm", "", "A warm launch beside noisy machines / alone"),
        ("page", "", "Loading a page beside noisy machines / alone"),
        (
            "drops",
            "_pct",
            "Frames of a film that are dropped beside noisy machines, %",
        ),
    ] {
        if let Some(plot) = drawn(table, what, unit, title) {
            report.plots.insert(format!("io-{what}"), plot);
        }
    }
}

fn tell_point(report: &mut Report, table: &Table, candidate: Candidate, noise: &str) {
    let who = candidate.prefix();
    for what in ["warm", "page"] {
        let name = format!("{who}curve.{what}_{noise}");
        if let Some(slower) = table.get(&name) {
            report
                .add(&name, "x", slower)
                .against("the same alone", "x", 1.0);
        }
    }
    let name = format!("{who}curve.warm_{noise}_wait_s");
    if let Some(waited) = table.get(&name) {
        report.add(&name, "s", waited);
    }
    let name = format!("{who}curve.drops_{noise}_pct");
    if let Some(dropped) = table.get(&name) {
        let figure = report.add(&name, "%", dropped);
        if candidate.is_peer() && noise == "reader5" {
            figure.against("CFQ in the paper", "%", PAPER_DROPS_READER5_PCT);
        }
    }
}

fn tell_work(report: &mut Report, table: &Table, who: &str, noise: &str) {
    let of = |name: &str| table.get(&format!("{who}work_{noise}_{name}_s"));
    if let (Some(alone), Some(beside)) = (of("alone"), of("beside")) {
        report.add(&format!("{who}work_{noise}_beside_s"), "s", beside);
        report
            .add(
                &format!("{who}work_{noise}_over_alone"),
                "x",
                &beside.over(alone),
            )
            .against("nobody at the desk", "s", alone.median());
    }
}

/// Draws a curve for each who is compared and each noise; `None` if nothing was measured.
fn drawn(table: &Table, what: &str, unit: &str, title: &str) -> Option<String> {
    const NAMES: [&str; 2] = ["floe", "BFQ"];
    let mut lines = Vec::new();
    for (candidate, name, colour) in [
        (COMPARED[0], NAMES[0], COLOURS[0]),
        (COMPARED[1], NAMES[1], COLOURS[1]),
    ] {
        for (noise, dash) in NOISES.into_iter().zip(["", "5 4"]) {
            let who = candidate.prefix();
            let at = |n: usize| table.get(&format!("{who}curve.{what}_{noise}{n}{unit}"));
            let points = (1..=NOISY).filter_map(|n| Some((n as f64, at(n)?.median())));
            let points: Vec<(f64, f64)> = points.collect();
            lines.push((points, format!("{name}, {noise}s"), colour, dash));
        }
    }
    let values = lines.iter().flat_map(|(points, ..)| points);
    let values: Vec<f64> = values.map(|(_, value)| *value).collect();
    if values.is_empty() {
        return None;
    }
    let about =
        "Medians of all rounds, over the number of noisy machines; dashed: machines that boot";
    let mut svg = Svg::new(760.0, 430.0, title, about);
    let axes = Axes {
        at: (64.0, 70.0, 670.0, 300.0),
        x: Scale::Linear(1.0, NOISY as f64),
        y: Scale::up_to(values),
    };
    axes.draw(
        &mut svg,
        "noisy machines",
        if unit.is_empty() { "x" } else { "%" },
    );
    let mut legend = Vec::new();
    for (points, name, colour, dash) in &lines {
        axes.line(&mut svg, points, colour, dash);
        legend.push((name.as_str(), *colour, *dash));
    }
    svg.legend(64.0, 52.0, &legend);
    Some(svg.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_testbed::harness::Samples;

    fn table(of: &[(&str, &[f64])]) -> Table {
        let samples = of.iter().map(|(name, values)| {
            let samples: Samples = values.iter().copied().collect();
            ((*name).to_owned(), samples)
        });
        samples.collect()
    }

    #[test]
    fn each_point_of_a_curve_is_a_figure_and_the_papers_stands_beside_it() {
        let mut report = Report::new("io", true);
        let table = table(&[
            ("curve.warm_alone_s", &[0.2, 0.3]),
            ("curve.warm_reader1", &[1.0, 1.2]),
            ("curve.warm_reader1_wait_s", &[0.1, 0.1]),
            ("curve.page_boot7", &[1.3]),
            ("curve.drops_reader5_pct", &[0.0]),
            ("bfq.curve.drops_reader5_pct", &[30.0, 40.0]),
        ]);
        tell(&mut report, &table);
        let figure = |name: &str| &report.figures[name];
        assert!((figure("curve.warm_reader1").value - 1.1).abs() < 1e-12);
        assert_eq!(figure("curve.page_boot7").value, 1.3);
        assert!(figure("curve.drops_reader5_pct").against.is_none());
        let paper = figure("bfq.curve.drops_reader5_pct").against.as_ref();
        assert!(paper.is_some_and(|paper| paper.value == 39.1));
        assert_eq!(report.figures.len(), table.len());
        let plots: Vec<&str> = report.plots.keys().map(String::as_str).collect();
        assert_eq!(plots, ["io-drops", "io-page", "io-warm"]);
        assert!(report.plots["io-drops"].contains("BFQ, readers"));
    }

    #[test]
    fn work_is_over_the_defaults_beside_the_same_user_and_over_what_it_takes_without_one() {
        let mut report = Report::new("io", true);
        let table = table(&[
            ("work_reader1_alone_s", &[8.0, 10.0]),
            ("work_reader1_beside_s", &[10.0, 11.0]),
            ("bfq.work_reader1_alone_s", &[8.0, 8.0]),
            ("bfq.work_reader1_beside_s", &[10.0, 10.0]),
            ("work_boot1_alone_s", &[9.0]),
        ]);
        tell(&mut report, &table);
        let value = |name: &str| report.figures[name].value;
        assert!((value("work_reader1_over_default") - 1.05).abs() < 1e-12);
        assert!((value("work_reader1_over_alone") - 1.175).abs() < 1e-12);
        assert_eq!(value("bfq.work_reader1_over_alone"), 1.25);
        assert!(!report.figures.contains_key("work_boot1_over_default"));
        assert!(report.plots.is_empty());
    }

    #[test]
    fn a_curve_has_a_noise_for_each_number_of_machines() {
        let launches = Launches::load(std::path::Path::new("")).unwrap();
        for noise in NOISES {
            for machines in 1..=NOISY {
                let beside = launches.noise(&format!("{noise}{machines}"));
                assert_eq!(beside.machines, machines);
            }
        }
    }
}
