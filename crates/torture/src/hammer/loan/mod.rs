//! Blows on the ways of a machine that a device lends to a strong host and has back: is an acknowledged write lost, is a byte wrong, does
//! it ever run on both?
//!
//! - [`blows`]: decides from a seed what is hit on which part of a way. [`heard`]: judges what the guest says on both hosts' consoles. They
//!   do no I/O.
//! - [`site`]: the two hosts, their link, and the machine.
pub mod blows;
pub mod heard;
pub mod site;

use super::console::STEPS_FOR_ALL;
use super::world::{kill, mounts_under, processes_with};
use anyhow::Context as _;
use blows::{Blow, Blows, Hit};
use floe_testbed::harness::Report;
use serde::{Deserialize, Serialize};
use site::Site;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many steps the guest makes before the first way.
const STEPS_FIRST: u64 = 3;

/// A blow and its effect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Struck {
    /// What was hit.
    pub hits: Vec<Hit>,
    /// Whether the machine was on its way back to the device.
    pub back: bool,
    /// Longest time in seconds between two steps of the guest, from the way's begin until it had verified everything after it.
    pub stood_s: f64,
}

/// The results of a storm on the ways, or of several.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ways {
    /// Number of processes and links that were hit.
    pub kills: u64,
    /// All blows.
    pub struck: Vec<Struck>,
    /// Ways to the strong host and back that were made although something was hit, and those without a blow.
    pub made: [u64; 2],
    /// Ways that failed because something was hit.
    pub disturbed: u64,
    /// Syncs that failed although nothing was hit.
    pub errors: Vec<String>,
    /// Writes that the guest has acknowledged.
    pub acknowledged: u64,
    /// Acknowledged writes that were lost.
    pub lost_writes: u64,
    /// Bytes of disk and memory that nobody had put there.
    pub wrong_bytes: u64,
    /// Steps of the guest that were executed more than once.
    pub ran_twice: u64,
    /// Reads, writes and flushes that failed in the guest.
    pub io_errors: u64,
    /// What was found to be wrong, in words.
    pub wrong: Vec<String>,
}

impl Ways {
    /// Adds the results of a later storm.
    pub fn add(&mut self, later: Ways) {
        for (count, more) in [
            (&mut self.kills, later.kills),
            (&mut self.disturbed, later.disturbed),
            (&mut self.acknowledged, later.acknowledged),
            (&mut self.lost_writes, later.lost_writes),
            (&mut self.wrong_bytes, later.wrong_bytes),
            (&mut self.ran_twice, later.ran_twice),
            (&mut self.io_errors, later.io_errors),
        ] {
            *count += more;
        }
        for (made, more) in self.made.iter_mut().zip(later.made) {
            *made += more;
        }
        self.struck.extend(later.struck);
        self.errors.extend(later.errors);
        self.wrong.extend(later.wrong);
    }

    /// Says in a report what is of the ways alone; what is wrong is told with that of the other storm.
    pub fn tell(&self, report: &mut Report) {
        report.add_value("offload_kills", "count", self.kills as f64);
        report.add_value("ran_twice", "count", self.ran_twice as f64);
        if self.struck.is_empty() {
            return;
        }
        report.note(format!(
            "on its ways: {} to the strong host and {} back were made, {} failed because something was hit; {} writes acknowledged",
            self.made[0], self.made[1], self.disturbed, self.acknowledged
        ));
        for error in &self.errors {
            report.note(format!("failed although nothing was hit: {error}"));
        }
        for line in self.table() {
            report.note(line);
        }
    }

    /// Returns the table of what was hit on which way, how often, and for how long the guest stood still at most.
    fn table(&self) -> Vec<String> {
        let mut rows = BTreeMap::<(String, bool), (u64, f64)>::new();
        for blow in &self.struck {
            let hits: Vec<String> = blow.hits.iter().map(Hit::to_string).collect();
            let row = rows.entry((hits.join(" + "), blow.back)).or_default();
            row.0 += 1;
            row.1 = row.1.max(blow.stood_s);
        }
        let head = format!(
            "{:<32} {:<8} {:>6} {:>12}",
            "hit", "way", "times", "still max, s"
        );
        let lines = rows.into_iter().map(|((hits, back), (times, still))| {
            let way = if back { "back" } else { "there" };
            format!("{hits:<32} {way:<8} {times:>6} {still:>12.1}")
        });
        std::iter::once(head).chain(lines).collect()
    }
}

/// Lets one storm rage on the ways, until there were so many kills or it is late.
pub fn storm(scratch: &Path, seed: u64, until: Duration, kills: u64) -> anyhow::Result<Ways> {
    let outcome = Site::start(scratch).and_then(|site| {
        let mut storm = Storm {
            site,
            ways: Ways::default(),
            at: 0,
            way_s: [0.0; 2],
        };
        storm.rages(seed, until, kills)?;
        Ok(storm.ways)
    });
    // what a run that could not go on has left
    for (process, _) in processes_with(scratch) {
        kill(process);
    }
    for mount in mounts_under(scratch).into_iter().rev() {
        let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
    }
    outcome
}

struct Storm {
    site: Site,
    ways: Ways,
    /// The host on which the machine runs.
    at: usize,
    /// How long a way from each host takes without blows, in seconds.
    way_s: [f64; 2],
}

impl Storm {
    fn rages(&mut self, seed: u64, until: Duration, kills: u64) -> anyhow::Result<()> {
        let began = Instant::now();
        self.at = self.site.gets_on(STEPS_FIRST).context("it boots")?;
        let ways = Instant::now();
        for _ in 0..self.way_s.len() {
            self.goes_calmly()?;
        }
        let calm_s = ways.elapsed().as_secs_f64() / 2.0;
        eprintln!(
            "hammer: a way takes {:.1} s there and {:.1} s back; {kills} kills on them take some {:.0} minutes, and at most {:.0}",
            self.way_s[0],
            self.way_s[1],
            // a blow and what it disturbs take about as long as a way with its verification
            kills as f64 * 2.0 * calm_s / 60.0,
            until.as_secs_f64() / 60.0
        );
        let mut blows = Blows::new(seed);
        while self.ways.kills < kills && began.elapsed() < until {
            let blow = blows.next_blow();
            let struck = self
                .strikes(&blow)
                .with_context(|| format!("blow {}: {blow}", blow.number));
            self.takes_stock(blow.number);
            if let Err(error) = struck {
                // there is no machine any more that could be hit
                self.ways.wrong.push(format!("{error:#}"));
                return Ok(());
            }
        }
        // what the blows have left must not be in the way of anything
        for _ in 0..self.way_s.len() {
            if let Err(error) = self.goes_calmly() {
                self.ways
                    .wrong
                    .push(format!("after the last blow: {error:#}"));
                break;
            }
        }
        self.takes_stock(self.ways.struck.len() as u64);
        Ok(())
    }

    /// Has the machine go to the other host, and verify everything there. Nothing is hit.
    fn goes_calmly(&mut self) -> anyhow::Result<()> {
        let (from, began) = (self.at, Instant::now());
        let went = self.site.sets_out(from).join();
        went.map_err(|_| anyhow::anyhow!("the thread of a way died"))??;
        self.way_s[from] = began.elapsed().as_secs_f64();
        self.at = self.site.gets_on(STEPS_FOR_ALL)?;
        anyhow::ensure!(self.at != from, "it was said to go, and is where it was");
        self.ways.made[from] += 1;
        Ok(())
    }

    /// Has the machine set out for the other host, hits, and has it verify everything wherever it is then.
    fn strikes(&mut self, blow: &Blow) -> anyhow::Result<()> {
        let from = self.at;
        if blow.synced
            && let Err(error) = self.site.sync()
        {
            self.ways
                .errors
                .push(format!("a sync before blow {}: {error:#}", blow.number));
        }
        eprintln!(
            "{:>4} kills: blow {} on the way {}: {blow}",
            self.ways.kills,
            blow.number,
            if from == 0 { "there" } else { "back" }
        );
        self.site.heard(|heard| heard.take_stood());
        let way = self.site.sets_out(from);
        std::thread::sleep(Duration::from_secs_f64(self.way_s[from] * blow.at));
        let hits = self.site.hit(blow)?;
        self.ways.kills += hits.len() as u64;
        let went = way.join();
        match went.map_err(|_| anyhow::anyhow!("the thread of a way died"))? {
            Ok(()) => self.ways.made[from] += 1,
            Err(_) => self.ways.disturbed += 1,
        }
        self.at = self.site.gets_on(STEPS_FOR_ALL)?;
        let stood = self.site.heard(|heard| heard.take_stood());
        self.ways.struck.push(Struck {
            hits,
            back: from != 0,
            stood_s: stood.as_secs_f64(),
        });
        Ok(())
    }

    /// Takes over what was heard.
    fn takes_stock(&mut self, blow: u64) {
        let ways = &mut self.ways;
        self.site.heard(|heard| {
            ways.acknowledged = heard.acknowledged();
            ways.lost_writes = heard.lost_writes();
            ways.wrong_bytes = heard.wrong_bytes();
            ways.ran_twice = heard.ran_twice;
            ways.io_errors = heard.errors();
            let wrong = heard.take_wrong().into_iter();
            ways.wrong
                .extend(wrong.map(|what| format!("after blow {blow}: {what}")));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storms_of_several_sittings_are_told_together() {
        let one = Ways {
            kills: 30,
            struck: vec![Struck {
                hits: vec![Hit::Device, Hit::Link],
                back: true,
                stood_s: 2.5,
            }],
            made: [9, 8],
            ran_twice: 1,
            ..Ways::default()
        };
        let line = serde_json::to_string(&one).unwrap();
        let mut all: Ways = serde_json::from_str(&line).unwrap();
        all.add(one);
        let mut report = Report::new("hammer", true);
        all.tell(&mut report);
        assert_eq!(report.figures["offload_kills"].value, 60.0);
        assert_eq!(report.figures["ran_twice"].value, 2.0);
        let notes = report.notes.join("\n");
        assert!(
            notes.contains("18 to the strong host and 16 back"),
            "{notes}"
        );
        let row = report.notes.last().unwrap();
        assert!(
            row.starts_with("device + link") && row.contains("back"),
            "{row}"
        );
        assert!(row.trim_end().ends_with("2          2.5"), "{row}");
    }
}
