//! Everything of `io` but launches: pages, a film, what the noisy machines lose and how they share it, and what a liar gains.

use super::site::{Beside, Candidate, Site};
use super::{NOISES, Table, VSIP, noise, push};
use crate::harness::{Context, Report};
use crate::slow_disk::Kind;
use std::time::Duration;

/// How many pages are loaded one after the other, with a look at each.
const PAGES: usize = 8;
const LOOK: Duration = Duration::from_millis(700);
/// How long the film is, in seconds.
const FILM_S: usize = 15;

/// Loads pages alone and beside seven noisy machines, and plays a film.
pub fn pages_and_film(
    site: &mut Site,
    candidate: Candidate,
    context: &Context,
    table: &mut Table,
) -> anyhow::Result<()> {
    let pages = context.pick(PAGES, 3);
    let lines: Vec<String> = (0..pages).map(|page| format!("page {page}")).collect();
    let prefix = candidate.prefix();
    let Some(alone) = site.measure(candidate, Kind::HardDisk, None, &lines, LOOK)? else {
        return Ok(());
    };
    let us = |cell: &super::site::Cell| cell.answers.iter().map(|answer| answer[0]).sum::<f64>();
    push(
        table,
        format!("{prefix}page_alone_s"),
        us(&alone) / pages as f64 / 1e6,
    );
    for name in ["reader7", "boot7"] {
        let beside = NOISES
            .iter()
            .find(|(noise, _)| *noise == name)
            .map(|(_, beside)| *beside);
        let Some(cell) = site.measure(candidate, Kind::HardDisk, beside, &lines, LOOK)? else {
            continue;
        };
        eprintln!(
            "io: {prefix}pages beside {name}: {:.2} x alone",
            us(&cell) / us(&alone)
        );
        push(
            table,
            format!("{prefix}page_{name}"),
            us(&cell) / us(&alone),
        );
    }
    let film = [format!("video {}", context.pick(FILM_S, 4))];
    let reader7 = NOISES
        .iter()
        .find(|(noise, _)| *noise == "reader7")
        .map(|(_, beside)| *beside);
    for (name, beside) in [("alone", None), ("reader7", reader7)] {
        let Some(cell) = site.measure(candidate, Kind::HardDisk, beside, &film, LOOK)? else {
            continue;
        };
        let percent = cell.answers[0][1] / cell.answers[0][0] * 100.0;
        eprintln!("io: {prefix}film beside {name}: {percent:.2} % of the frames dropped");
        push(table, format!("{prefix}drops_{name}_pct"), percent);
    }
    Ok(())
}

/// Measures what seven readers get beside a user who launches once, without one, and with a liar among them.
pub fn shares(
    site: &mut Site,
    candidate: Candidate,
    context: &Context,
    table: &mut Table,
) -> anyhow::Result<()> {
    let prefix = candidate.prefix();
    let seconds = Duration::from_secs(context.pick(60, 8));
    let beside = Beside {
        kind: noise::Kind::Reader,
        machines: super::NOISY,
        lies: false,
    };
    let mut rates = Vec::new();
    for lines in [vec![], vec!["launch 77".to_owned()]] {
        let pause = match lines.len() {
            0 => seconds,
            // the launch is within the time
            _ => seconds.saturating_sub(Duration::from_secs(1)),
        };
        let Some(cell) = site.measure(candidate, Kind::HardDisk, Some(beside), &lines, pause)?
        else {
            return Ok(());
        };
        let each: Vec<f64> = cell.got.iter().map(|got| got.requests).collect();
        let (sum, squares) = each
            .iter()
            .fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        rates.push(sum / cell.seconds);
        push(
            table,
            format!("{prefix}jain"),
            sum * sum / squares / each.len() as f64,
        );
    }
    push(
        table,
        format!("{prefix}throughput_ratio"),
        rates[1] / rates[0],
    );
    if candidate != VSIP {
        return Ok(());
    }
    let lies = Beside {
        lies: true,
        ..beside
    };
    let Some(cell) = site.measure(candidate, Kind::HardDisk, Some(lies), &[], seconds)? else {
        return Ok(());
    };
    let others = &cell.got[1..];
    let mean =
        |of: &dyn Fn(&noise::Got) -> f64| others.iter().map(of).sum::<f64>() / others.len() as f64;
    let more = cell.got[0].requests / mean(&|got| got.requests);
    let sooner = mean(&|got| got.mean_us()) / cell.got[0].mean_us();
    eprintln!("io: a liar gets {more:.3} x the others' requests, and waits {sooner:.3} x less");
    push(table, "liar_gain".into(), more.max(sooner));
    Ok(())
}

/// Launches beside a real guest that makes noise, over the same alone.
pub fn beside_guests(
    site: &mut Site,
    candidate: Candidate,
    round: usize,
    table: &mut Table,
) -> anyhow::Result<()> {
    let (line, prefix) = (format!("launch {round}"), candidate.prefix());
    let alone = site.measure(
        candidate,
        Kind::HardDisk,
        None,
        std::slice::from_ref(&line),
        LOOK,
    )?;
    let Some(alone) = alone else {
        return Ok(());
    };
    for (name, noise) in [("reader1", "reader"), ("boot1", "boot"), ("sync1", "sync")] {
        if let Some(answer) = site.beside_a_guest(candidate, Kind::HardDisk, noise, &line)? {
            let ratio = answer[0] / alone.answers[0][0];
            eprintln!("io: {prefix}launch beside a real guest, {name}: {ratio:.2} x alone");
            push(table, format!("{prefix}real.launch_{name}"), ratio);
        }
    }
    Ok(())
}

/// Adds what was measured here to the report.
pub fn tell(report: &mut Report, table: &Table) {
    for (name, samples) in table {
        let key = name.rsplit('.').next().unwrap_or(name);
        let (unit, what) = match key {
            key if key.ends_with("_s") => ("s", None),
            key if key.ends_with("_pct") => ("%", None),
            "throughput_ratio" => ("x", Some("the readers without a user")),
            "jain" => ("x", Some("all have the same")),
            "liar_gain" => ("x", Some("the mean of the other readers")),
            _ => ("x", Some("the same alone")),
        };
        let figure = report.add(name, unit, samples);
        if let Some(what) = what {
            figure.against(what, "x", 1.0);
        }
    }
}
