//! `hammer`: kills, cuts and fills node, hub, supervisor, QEMU, network and disk again and again, and starts node and hub with
//! errors, while two machines write and verify without end, and are captured and forked, pushed and pulled, and other
//! processes run commands. Is an acknowledged write or push lost, is a byte wrong, does a guest hang, does anything stay behind?
//!
//! - [`schedule`]: decides from a seed which blow comes next; [`storm`]: decides when it falls, and whether everything
//!   has recovered. Both do no I/O.
//! - [`model`]: what each guest has acknowledged. `guests/hammer.rs`, which this module compiles, defines what guests
//!   write.
//! - [`faults`]: decides which access fails in the start of node and hub that follows a kill. [`watch`] sees and stops a
//!   process's accesses.
//! - [`world`]: the processes, the link, the disk. [`work`]: captures, forks, transfers. [`console`]: the guests' output.
//! - [`kept`]: a parked machine and a substrate. [`beside`]: commands of other processes. [`promised`]: what the hub has
//!   acknowledged to both.
//! - [`leaks`]: compares what exists before and after. [`driver`]: connects all of it.
//!
//! A second storm ([`loan`]) hits two other nodes and their link, while a machine is lent from one to the other and comes back.
pub mod beside;
pub mod console;
pub mod driver;
pub mod faults;
pub mod kept;
pub mod leaks;
pub mod loan;
pub mod model;
pub mod promised;
pub mod schedule;
pub mod storm;
pub mod watch;
pub mod work;
pub mod world;

use driver::{Driver, Record};
use floe_testbed::harness::{Context, Kept, Report, Samples};
use schedule::{Moment, VICTIMS, Victim};
use std::collections::BTreeMap;
use std::time::Duration;

/// Options of the experiment.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Each of the two storms ends after this many minutes
    #[arg(long, value_name = "M", default_value_t = 90.0)]
    minutes: f64,
    /// Or the first after this many kills (0: there is none)
    #[arg(long, value_name = "N", default_value_t = 1000)]
    kills: u64,
    /// And the second, on the ways of a machine to another host and back, after this many (0: there is none)
    #[arg(long, value_name = "N", default_value_t = 200)]
    offload_kills: u64,
    /// Repeats the blows of the run that printed this seed (default: a new one each time)
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Hits only these, in the first storm alone
    #[arg(long, value_name = "VICTIM,...", value_delimiter = ',')]
    only: Vec<Victim>,
    /// A guest without progress for this many seconds, with everything up, is hung
    #[arg(long, value_name = "S", default_value_t = 10)]
    hung_s: u64,
    /// Keep the results of each storm in FILE, and tell those of all that this very code has seen on this machine: a run in sittings, with
    /// --minutes, until there were enough kills in all
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "only", "hung_s"])]
    kept: Option<std::path::PathBuf>,
    /// Keep logs and the remaining state here
    #[arg(long, value_name = "DIR")]
    keep: Option<std::path::PathBuf>,
}

impl Options {
    fn victims(&self) -> &[Victim] {
        match self.only.is_empty() {
            true => &VICTIMS,
            false => &self.only,
        }
    }
}

/// Runs the experiment.
pub fn run(context: &Context, options: &Options) -> anyhow::Result<Report> {
    let mut options = options.clone();
    if context.quick {
        options.minutes = options.minutes.min(3.0);
    }
    let path = options.kept.clone();
    let mut kept: Kept<usize, Record> = Kept::open(path.as_deref(), "hammer", context.quick)?;
    let goals = [
        options.kills,
        match options.only.is_empty() {
            true => options.offload_kills,
            false => 0,
        },
    ];
    let before = kills_of(kept.told.values());
    options.kills = goals[0].saturating_sub(before[0]);
    options.offload_kills = goals[1].saturating_sub(before[1]);
    let storms: [(u64, Storms); 2] = [(options.kills, storm), (options.offload_kills, on_the_ways)];
    let due = storms.into_iter().filter(|(kills, _)| *kills > 0);
    // a sitting is one storm
    for (_, storm) in due.take(if path.is_some() { 1 } else { 2 }) {
        let number = kept.told.len();
        let record = storm(context, &options)?;
        kept.put(&number, &record)?;
        kept.told.insert(number, record);
    }
    let done = kills_of(kept.told.values());
    let mut all = Record::default();
    for record in kept.told.into_values() {
        all.add(record);
    }
    let mut report = tell(context, &options, &all);
    if path.is_some() {
        let kinds = ["kills", "kills on the ways"];
        for ((goal, done), what) in goals.into_iter().zip(done).zip(kinds) {
            report.lacks(goal.saturating_sub(done) as usize, goal as usize, what);
        }
    }
    Ok(report)
}

/// One of the two storms, from its start to its end.
type Storms = fn(&Context, &Options) -> anyhow::Result<Record>;

/// Returns the kills of both storms.
fn kills_of<'a>(records: impl Iterator<Item = &'a Record>) -> [u64; 2] {
    records.fold([0; 2], |[kills, on_ways], record| {
        [kills + record.kills, on_ways + record.ways.kills]
    })
}

/// Lets the storm rage that hits a machine on its ways between two hosts.
fn on_the_ways(context: &Context, options: &Options) -> anyhow::Result<Record> {
    let seed = seed_of(options);
    let until = Duration::from_secs_f64(options.minutes * 60.0);
    let scratch = context.scratch.join("loan");
    let ways = loan::storm(&scratch, seed, until, options.offload_kills);
    let record = ways.map(|ways| Record {
        seeds: vec![seed],
        ways,
        ..Record::default()
    });
    ended(options, seed, record)
}

/// Starts everything, lets one storm rage, and ends everything.
fn storm(context: &Context, options: &Options) -> anyhow::Result<Record> {
    let seed = seed_of(options);
    let mut driver = Driver::start(context, options, seed)?;
    let outcome = driver.run();
    driver.keep_logs();
    ended(options, seed, outcome)
}

fn seed_of(options: &Options) -> u64 {
    let seed = options.seed.unwrap_or_else(rand::random);
    eprintln!("hammer: seed {seed}");
    seed
}

/// Returns the results of a storm that has ended, in whichever way.
fn ended(options: &Options, seed: u64, outcome: anyhow::Result<Record>) -> anyhow::Result<Record> {
    match outcome {
        // those of other sittings must not hide it
        Err(error) if options.kept.is_some() => Ok(Record {
            seeds: vec![seed],
            not_up: vec![format!("seed {seed}: {error:#}")],
            ..Record::default()
        }),
        outcome => outcome.map_err(|error| error.context(format!("seed {seed}"))),
    }
}

/// Makes the report: figures, violations, and the table of what was hit.
fn tell(context: &Context, options: &Options, record: &Record) -> Report {
    let mut report = Report::new("hammer", context.quick);
    let done = &record.done;
    report.add_value("kills", "count", record.kills as f64);
    let lost: u64 = record.guests.iter().map(model::Guest::lost_writes).sum();
    let wrong: u64 = record.guests.iter().map(model::Guest::wrong_bytes).sum();
    let errors: u64 = record.guests.iter().map(model::Guest::errors).sum();
    let ways = &record.ways;
    report.add_value("lost_writes", "count", (lost + ways.lost_writes) as f64);
    // a copy reports what it found in lines, each of which stands for at least one byte
    report.add_value(
        "wrong_bytes",
        "B",
        (wrong + ways.wrong_bytes + done.wrong.len() as u64) as f64,
    );
    report.add_value("lost_pushes", "count", done.lost_pushes.len() as f64);
    report.add_value("lost_tokens", "count", done.lost_tokens.len() as f64);
    report.add_value("injected", "count", record.injected as f64);
    report.add_value("refused", "count", record.refused as f64);
    report.add_value("bad_starts", "count", record.bad_starts.len() as f64);
    report.add_value("hung_guests", "count", record.hung.len() as f64);
    let leaks: u64 = record.leaks.iter().map(|(_, more)| more).sum();
    report.add_value("leaks", "count", leaks as f64);
    report.add_value("io_errors", "count", (errors + ways.io_errors) as f64);
    report.add_value("lost_clones", "count", done.lost_clones.len() as f64);
    report.add_value("errors", "count", done.errors.len() as f64);
    let stall = record
        .guests
        .iter()
        .map(|guest| guest.stall_max.as_secs_f64());
    report.add_value("stall_s_max", "s", stall.fold(0.0, f64::max));
    let stalls: Samples = record.blows.iter().map(|blow| blow.stall_s).collect();
    if !stalls.is_empty() {
        report.add("stall_s_p50", "s", &stalls);
        report.add_quantile("stall_s_p99", "s", &stalls, 0.99);
    }
    report.add_value(
        "acknowledged_writes",
        "count",
        record.guests.iter().map(|guest| guest.acked as f64).sum(),
    );
    report.add_value("copies_verified", "count", done.verified as f64);
    violations(&mut report, record);
    for error in done.errors.iter().take(NOTES_MAX) {
        report.note(format!("failed although nothing was hit: {error}"));
    }
    let seeds: Vec<String> = record.seeds.iter().map(u64::to_string).collect();
    let seeds = seeds.join(", ");
    report.note(format!(
        "seed {seeds}; {} captures, {} forks, {} pushes, {} pulls, {} commands, {} copies verified; {} jobs failed because something was hit",
        done.captures, done.forks, done.pushes, done.pulls, done.commands, done.verified, done.disturbed
    ));
    report.note(format!(
        "{} kinds of access in the starts of node and hub",
        record.kinds
    ));
    if !record.blows.is_empty() {
        report.note(format!(
            "hit: {}",
            options
                .victims()
                .iter()
                .map(Victim::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ));
        for line in table(record) {
            report.note(line);
        }
    }
    ways.tell(&mut report);
    report
}

/// Most remarks of one kind.
const NOTES_MAX: usize = 30;

fn violations(report: &mut Report, record: &Record) {
    let lists: [(&str, &[String]); 9] = [
        ("a guest found", &record.bad),
        ("a copy found", &record.done.wrong),
        ("a guest stood still", &record.hung),
        ("a clone was lost", &record.done.lost_clones),
        ("a push was lost", &record.done.lost_pushes),
        ("a token was lost", &record.done.lost_tokens),
        ("a start with an error", &record.bad_starts),
        ("it did not come back by itself", &record.not_up),
        ("a machine on its way", &record.ways.wrong),
    ];
    for (what, list) in lists {
        for one in list.iter().take(NOTES_MAX) {
            report.fail(format!("{what}: {one}"));
        }
        if list.len() > NOTES_MAX {
            report.fail(format!("{what}: and {} more", list.len() - NOTES_MAX));
        }
    }
    for (what, more) in &record.leaks {
        report.fail(format!("left behind: {more} {what}"));
    }
}

/// Returns the table of what was hit at which moment, how often, and the longest stall of a guest after it.
fn table(record: &Record) -> Vec<String> {
    let mut rows = BTreeMap::<(String, Moment), (u64, f64, u64)>::new();
    for blow in &record.blows {
        let victims: Vec<String> = blow.victims.iter().map(Victim::to_string).collect();
        let row = rows.entry((victims.join(" + "), blow.moment)).or_default();
        row.0 += 1;
        row.1 = row.1.max(blow.stall_s);
        row.2 += u64::from(blow.hung);
    }
    let head = format!(
        "{:<24} {:<12} {:>6} {:>12} {:>5}",
        "hit", "moment", "times", "stall max, s", "hung"
    );
    let lines = rows
        .into_iter()
        .map(|((victims, moment), (times, stall, hung))| {
            format!("{victims:<24} {moment:<12} {times:>6} {stall:>12.1} {hung:>5}")
        });
    std::iter::once(head).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hammer::driver::Fallen;

    /// What a storm of 60 kills brings that followed from this seed.
    fn record(seed: u64, wrong: &str) -> Record {
        let mut guest = model::Guest::new(1);
        guest.acked = 500;
        let mut record = Record {
            seeds: vec![seed],
            kills: 60,
            injected: 30,
            guests: vec![guest],
            blows: vec![Fallen {
                victims: vec![Victim::Hub],
                moment: Moment::Push,
                stall_s: 0.5,
                hung: false,
            }],
            leaks: vec![("processes".into(), 2)],
            ..Record::default()
        };
        record.done.wrong.push(wrong.into());
        record.done.lost_pushes.push(wrong.into());
        record
    }

    #[test]
    fn storms_of_several_sittings_are_told_together() {
        let line = serde_json::to_string(&record(1, "a")).unwrap();
        let mut all: Record = serde_json::from_str(&line).unwrap();
        all.add(record(2, "b"));
        let context = Context {
            quick: true,
            scratch: "nothing is written there".into(),
        };
        let options = Options {
            minutes: 1.0,
            kills: 120,
            offload_kills: 0,
            seed: None,
            only: Vec::new(),
            hung_s: 10,
            kept: None,
            keep: None,
        };
        let report = tell(&context, &options, &all);
        for (name, value) in [
            ("kills", 120.0),
            ("injected", 60.0),
            ("wrong_bytes", 2.0),
            ("lost_pushes", 2.0),
            ("leaks", 4.0),
            ("acknowledged_writes", 1000.0),
        ] {
            assert_eq!(report.figures[name].value, value, "{name}");
        }
        assert_eq!(report.figures["stall_s_p50"].n, 2);
        // two copies, two pushes and what was left behind in each
        assert_eq!(report.violations.len(), 6);
        assert!(
            report
                .notes
                .iter()
                .any(|note| note.starts_with("seed 1, 2;"))
        );
    }
}
