//! `io-who`: of which requests is it known rightly that a person waits for them? A real guest, through a node, lives through a scripted day:
//! programs that are started and used on inputs, and daemons that read by timers. They are programs of a Debian (`programs`), with libraries and files
//! that several of them read, so that only the guest's kernel knows whose a request is (`truth`).
//!
//! Three days are lived through in each view: with the guest's agent; without it, when files are all that is known; and on the same disk without a file
//! system that anybody knows, when inputs are. What is read between a program's first launch and the second time that somebody uses it is told apart,
//! since nothing can be known of a program before.

use anyhow::{Context as _, ensure};
use days::View;
use floe_api::{ImportFormat, ImportRequest};
use floe_sched::classify::List;
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::Node;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

#[allow(
    dead_code,
    reason = "the tests see days in ways that are not measured here"
)]
#[path = "../../sched/tests/days/mod.rs"]
mod days;
mod paper;
mod programs;
mod truth;

const MEMORY: u64 = 256 << 20;
/// Programs that a user starts. How they read, and what, is in `programs`.
const PROGRAMS: [&str; 5] = ["python3", "perl", "openssl", "curl", "awk"];
/// How many files a program reads when it is started, when it is used, and by itself.
const LAUNCHED: u64 = 24;
const USED: u64 = 12;
const OWN: u64 = 3;
/// Daemons: what they are called, how often they read in ms, and how many files each time.
const DAEMONS: [(&str, u64, u64); 3] = [
    ("indexd", 3_000, 1),
    ("backupd", 15_000, 60),
    ("updated", 7_000, 10),
];
/// Longest time for anything that a guest is told to do.
const PATIENCE: Duration = Duration::from_secs(120);
/// The same for all of its disk, and for all that its kernel has traced.
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(1200);

/// Days of each view.
const DAYS: u64 = 3;
/// How many bytes of a disk are zeros where it has no file system: its first superblock's block.
const BLANK_BYTES: usize = 4096;

/// Who asks, and whether a person waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    /// The number of the program; daemons come after [`PROGRAMS`].
    who: usize,
    is_waited_for: bool,
}

/// When each program was used for the second time, in microseconds since 1970.
type Seconds = [Option<u64>; PROGRAMS.len()];

/// A read whose truth is known: when it came, in microseconds since 1970, and whether it was taken for waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    us: u64,
    block: Block,
    is_taken: bool,
}

/// A day that was lived through.
struct Day {
    scores: Scores,
    rows: Vec<Row>,
    /// When somebody touched a key, in microseconds since 1970.
    inputs_us: Vec<u64>,
}

/// How many requests were taken for waited for rightly and wrongly, and how many that were waited for were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Score {
    right: u64,
    wrong: u64,
    missed: u64,
    all: u64,
}

impl Score {
    fn add(&mut self, is_taken: bool, is_waited_for: bool) {
        self.all += 1;
        match (is_taken, is_waited_for) {
            (true, true) => self.right += 1,
            (true, false) => self.wrong += 1,
            (false, true) => self.missed += 1,
            (false, false) => {}
        }
    }

    /// Returns which part of what was taken for waited for was; `None` if nothing was taken for it.
    fn precision(&self) -> Option<f64> {
        let taken = self.right + self.wrong;
        (taken > 0).then(|| self.right as f64 / taken as f64)
    }

    /// Returns which part of what was waited for was taken for it.
    fn recall(&self) -> Option<f64> {
        let waited = self.right + self.missed;
        (waited > 0).then(|| self.right as f64 / waited as f64)
    }
}

/// What came of a day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Scores {
    /// Of what was read by programs that nobody had used before.
    first: Score,
    /// Of everything else.
    later: Score,
    /// Of each program and daemon, as much of that as is its.
    each: [Score; PROGRAMS.len() + DAEMONS.len()],
}

impl Scores {
    /// Returns the share of programs and daemons of which most requests were taken for what they were.
    fn programs_right(&self) -> Option<f64> {
        let seen = self.each.iter().filter(|score| score.all > 0);
        let is_right = |score: &&Score| 2 * (score.wrong + score.missed) < score.all;
        let number = seen.clone().count();
        (number > 0).then(|| seen.filter(is_right).count() as f64 / number as f64)
    }
}

/// How a day is seen.
#[derive(Clone, Copy)]
struct Seeing {
    /// What its figures' names begin with.
    name: &'static str,
    machine: &'static str,
    image: &'static str,
    agent: bool,
}

const SEEINGS: [Seeing; 3] = [
    Seeing {
        name: "agent",
        machine: "agent",
        image: "day",
        agent: true,
    },
    Seeing {
        name: "file",
        machine: "file",
        image: "day",
        agent: false,
    },
    Seeing {
        name: "input_only",
        machine: "input-only",
        image: "blank",
        agent: false,
    },
];

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("io-who", context.quick);
    let long = Duration::from_secs(context.pick(110, 25));
    let (tiny, debian) = (Guest::tiny()?, Guest::debian()?);
    let initrd = programs::make_initrd(&tiny, &debian, &context.scratch)?;
    let trace = context.scratch.join("verdicts");
    let flags = [
        "--io-trace",
        trace.to_str().context("a path of this program's own")?,
    ];
    let node = Node::start_with(None, &context.scratch.join("home"), &flags)?;
    let blank = context.scratch.join("blank.raw");
    programs::without_file_system(&debian.disk(), &blank)?;
    for (name, disk) in [("day", debian.disk()), ("blank", blank)] {
        import(&node, name, &disk, &initrd)?;
    }
    let mut told: BTreeMap<String, Samples> = BTreeMap::new();
    for number in 0..context.pick(DAYS, 1) {
        for seeing in SEEINGS {
            eprintln!("io-who: day {number} seen by {}", seeing.name);
            let day = day(&node, &trace, seeing, number, long)?;
            node.remove(seeing.machine)?;
            tell(&mut told, seeing.name, &day.scores);
            if seeing.agent {
                paper::tell(&mut told, &day.rows, &day.inputs_us);
            }
        }
    }
    for (name, samples) in &told {
        let unit = match () {
            () if name.ends_with("requests") => "count",
            () if name.ends_with("rate_pct") => "%",
            () => "ratio",
        };
        report.add(name, unit, samples);
    }
    for (view, name) in [
        (View::Agent, "simulated.agent"),
        (View::Told, "simulated.told"),
        (View::File, "simulated.file"),
        (View::Nothing, "simulated.nothing"),
    ] {
        let score = days::scores(view, &List::default());
        report.add_value(&format!("{name}.precision"), "ratio", score.precision());
        report.add_value(&format!("{name}.recall"), "ratio", score.recall());
        let of_player = score.player_recall();
        report.add_value(&format!("{name}.player_recall"), "ratio", of_player);
    }
    let learned = days::scores(View::Agent, &days::learned());
    report.add_value("simulated.learned.precision", "ratio", learned.precision());
    report.add_value("simulated.learned.recall", "ratio", learned.recall());
    report.note(
        "`agent`, `file` and `input_only` are of real guests; what the guest reads for itself is not in them. `file` is the same days without the agent, `input_only` \
         without the agent and without a file system. `paper` is the paper's own rule over the days with the agent, told of each request whose it is. What is read between a program's first launch and its second use is in `first` alone. All that is called \
         simulated is of days that are made up",
    );
    Ok(report)
}

fn import(node: &Node, name: &str, disk: &Path, initrd: &Path) -> anyhow::Result<()> {
    let (tiny, debian) = (Guest::tiny()?, Guest::debian()?);
    let text = |path: &Path| path.display().to_string();
    let request = ImportRequest {
        disks: vec![text(disk)],
        // one has nothing that tells what it is
        format: Some(ImportFormat::Raw),
        kernel: Some(text(&debian.kernel())),
        initrd: Some(text(initrd)),
        cmdline: Some(tiny.cmdline()?),
        name: Some(name.into()),
        memory_bytes: Some(MEMORY),
        cpus: Some(1),
        ..ImportRequest::default()
    };
    node.client.import(&request)?.finish(|_| {})?;
    Ok(())
}

fn tell(told: &mut BTreeMap<String, Samples>, view: &str, scores: &Scores) {
    let mut add = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            let samples = told.entry(format!("{view}.{name}")).or_default();
            samples.push(value);
        }
    };
    add("precision", scores.later.precision());
    add("recall", scores.later.recall());
    add("requests", Some(scores.later.all as f64));
    add("first.precision", scores.first.precision());
    add("first.recall", scores.first.recall());
    add("first.requests", Some(scores.first.all as f64));
    add("programs_right", scores.programs_right());
}

/// Lives through a day in a new machine, and compares what was decided with the truth.
fn day(
    node: &Node,
    trace: &Path,
    seeing: Seeing,
    number: u64,
    long: Duration,
) -> anyhow::Result<Day> {
    let (machine, agent) = (seeing.machine, seeing.agent);
    node.boot(seeing.image, machine)?;
    // brings all of it from the repository into the cache, once
    let all = "dd if=/dev/vda of=/dev/null bs=1M";
    node.tell(machine, all, PATIENCE_FOR_ALL)?;
    if !agent {
        node.tell(machine, "kill $(pidof floe-guest)", PATIENCE)?;
    }
    // from here on it is traced who asks
    node.tell(machine, "prepare", PATIENCE)?;
    let from_us = unix_us();
    for number in 0..DAEMONS.len() {
        node.tell(machine, &programs::daemon(number), PATIENCE)?;
    }
    let start = Instant::now();
    let (mut started, mut random) = ([false; PROGRAMS.len()], 7 + number);
    let (mut seconds, mut inputs_us) = (Seconds::default(), Vec::new());
    let mut below = |n: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % n
    };
    while start.elapsed() < long {
        rest(node, Duration::from_millis(2_000 + below(4_000)));
        let which = below(PROGRAMS.len() as u64) as usize;
        let is_known = std::mem::replace(&mut started[which], true);
        if is_known && seconds[which].is_none() {
            seconds[which] = Some(unix_us());
        }
        let (first, count) = match is_known && below(4) > 0 {
            true => (1 + below(programs::FILES - USED), USED),
            false => (1, LAUNCHED),
        };
        let line = programs::line("user", which, &first.to_string(), count);
        inputs_us.push(unix_us());
        node.client.has_input(machine)?;
        node.tell(machine, &line, PATIENCE)?;
        if below(4) == 0 {
            // by itself, once the user has turned to something else
            let first = 1 + below(programs::FILES - OWN);
            let line = programs::line("own", which, &first.to_string(), OWN);
            node.tell(machine, &format!("(sleep 6; {line}) &"), PATIENCE)?;
        }
    }
    let truth = programs::TRUTH;
    let all = format!("echo 0 > {truth}/tracing_on; cat {truth}/trace");
    let traced = node.said(machine, &all, PATIENCE_FOR_ALL)?;
    node.client.io()?;
    let rows = judged(&last_record(trace)?, from_us, truth::asked(&traced))?;
    Ok(Day {
        scores: score(&rows, &seconds)?,
        rows,
        inputs_us,
    })
}

/// Waits, while the host forgets what it has in memory, as if it had less of that.
fn rest(node: &Node, pause: Duration) {
    const EVERY: Duration = Duration::from_millis(500);
    let until = Instant::now() + pause;
    loop {
        forget(&node.home);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(EVERY.min(left));
    }
}

fn forget(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() && entry.file_name() != "mnt" {
            forget(&entry.path());
        } else if kind.is_file()
            && let Ok(file) = std::fs::File::open(entry.path())
        {
            // what isn't forgotten is missing in the figures' number of requests
            let _ = rustix::fs::fdatasync(&file);
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}

fn unix_us() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_micros() as u64
}

/// Returns what was recorded of the machine that came to the mount last.
fn last_record(trace: &Path) -> anyhow::Result<String> {
    let mut last = None;
    for entry in std::fs::read_dir(trace)? {
        let entry = entry?;
        let written = entry.metadata()?.modified()?;
        if last.as_ref().is_none_or(|(known, _)| *known < written) {
            last = Some((written, entry.path()));
        }
    }
    let (_, path) = last.context("no verdict was recorded")?;
    Ok(std::fs::read_to_string(path)?)
}

/// Returns the reads that were recorded from then on and of which the truth is known; `asked` is what the guest's kernel has traced since then.
fn judged(record: &str, from_us: u64, mut asked: Vec<truth::Asked>) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for row in record.lines().skip(1) {
        let columns: Vec<&str> = row.split(',').collect();
        let [us, "read", _, offset, bytes, class, ..] = columns[..] else {
            continue;
        };
        let (us, offset, bytes): (u64, u64, u64) = (us.parse()?, offset.parse()?, bytes.parse()?);
        if us < from_us {
            continue;
        }
        let Some(block) = truth::whose(&mut asked, offset, bytes) else {
            continue;
        };
        rows.push(Row {
            us,
            block,
            is_taken: class == "interactive",
        });
    }
    Ok(rows)
}

/// Compares what was decided with the truth.
fn score(rows: &[Row], seconds: &Seconds) -> anyhow::Result<Scores> {
    let mut scores = Scores::default();
    for row in rows {
        let Row {
            us,
            block,
            is_taken,
        } = *row;
        let is_first = match seconds.get(block.who) {
            Some(second_us) => second_us.is_none_or(|second_us| us < second_us),
            // daemons are never launched
            None => false,
        };
        match is_first {
            true => scores.first.add(is_taken, block.is_waited_for),
            false => {
                scores.later.add(is_taken, block.is_waited_for);
                scores.each[block.who].add(is_taken, block.is_waited_for);
            }
        }
    }
    ensure!(
        scores.later.all > 0,
        "no request of which the truth is known was recorded"
    );
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace of those who ask for these blocks, one after the other: by what role, which program, and where.
    fn asked(of: &[(&str, &str, u64)]) -> Vec<truth::Asked> {
        let one = |(role, name, block): &(&str, &str, u64)| {
            format!(
                "sh-9 [0] . 1: tracing_mark_write: floe {role} {name} 9\nx-9 [0] . 1: block_bio_queue: 254,0 R {} + 8 [x]\n",
                block * 8
            )
        };
        truth::asked(&of.iter().map(one).collect::<String>())
    }

    fn rows(of: &[(u64, u64, &str)]) -> String {
        let row = |(us, block, class): &(u64, u64, &str)| {
            format!("{us},read,0,{},4096,{class},agent,a rule,x\n", block * 4096)
        };
        let rows: String = of.iter().map(row).collect();
        format!(
            "unix_us,op,disk,offset,bytes,class,source,rule,program\n{rows}50,write,0,4096,4096,normal,none,a rule,\n"
        )
    }

    #[test]
    fn what_a_program_reads_before_its_second_use_is_told_apart() {
        let mut seconds = Seconds::default();
        seconds[0] = Some(200);
        let rows = rows(&[
            (99, 1, "interactive"),
            (100, 1, "normal"),
            (150, 1, "interactive"),
            (160, 2, "interactive"),
            (200, 1, "interactive"),
            (210, 1, "normal"),
            (220, 1, "normal"),
            (230, 9, "interactive"),
            (240, 7, "interactive"),
            // never used twice
            (250, 1, "interactive"),
        ]);
        // several read the same block, in turn
        let asked = asked(&[
            ("user", PROGRAMS[0], 1),
            ("user", PROGRAMS[0], 1),
            ("own", PROGRAMS[0], 2),
            ("user", PROGRAMS[0], 1),
            ("user", PROGRAMS[0], 1),
            ("own", PROGRAMS[0], 1),
            ("daemon", DAEMONS[0].0, 9),
            ("user", PROGRAMS[1], 1),
        ]);
        let rows = judged(&rows, 100, asked).unwrap();
        let scores = score(&rows, &seconds).unwrap();
        let of = |right, wrong, missed, all| Score {
            right,
            wrong,
            missed,
            all,
        };
        assert_eq!(scores.first, of(2, 1, 1, 4));
        assert_eq!(scores.later, of(1, 1, 1, 4));
        assert_eq!(scores.each[0], of(1, 0, 1, 3));
        assert_eq!(scores.each[PROGRAMS.len()], of(0, 1, 0, 1));
        assert_eq!(scores.later.precision(), Some(0.5));
        assert_eq!(scores.first.recall(), Some(2.0 / 3.0));
        // the first program is mostly right, the daemon is not, the others were not seen
        assert_eq!(scores.programs_right(), Some(0.5));
    }

    #[test]
    fn nothing_taken_has_no_precision_and_nothing_recorded_is_an_error() {
        assert_eq!(Score::default().precision(), None);
        assert_eq!(Score::default().recall(), None);
        let asked = asked(&[("user", PROGRAMS[0], 1)]);
        let none = judged(&rows(&[(5, 1, "normal")]), 100, asked).unwrap();
        assert!(none.is_empty() && score(&none, &Seconds::default()).is_err());
    }
}
