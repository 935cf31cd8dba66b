//! `io-who`: of which requests is it known rightly that a person waits for them? A real guest, through a node, lives through a scripted day:
//! programs that are started and used on inputs, and daemons that read by timers. Each reads files of its own, so that the place of a
//! request on the disk tells the truth about it.
//!
//! Three days are lived through in each view: with the guest's agent; without it, when files are all that is known; and on the same disk without a file
//! system that anybody knows, when inputs are. What is read between a program's first launch and the second time that somebody uses it is told apart,
//! since nothing can be known of a program before.

use super::live::Node;
use crate::guest::{Guest, compile};
use crate::harness::{Context, Report, Samples};
use crate::slow_disk::output_of;
use anyhow::{Context as _, ensure};
use days::View;
use floe_api::ImportRequest;
use floe_sched::classify::List;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[allow(
    dead_code,
    reason = "the tests see days in ways that are not measured here"
)]
#[path = "../../../sched/tests/days/mod.rs"]
mod days;
mod paper;

/// The program in the guest.
const PROGRAM: &str = include_str!("../../guests/who.rs");
const MEMORY: u64 = 128 << 20;
const BLOCK: u64 = 4096;
const DISK_BYTES: u64 = 256 << 20;
/// Programs that a user starts; each has files that it reads when it starts, when it is used, and by itself.
const PROGRAMS: [&str; 5] = ["editor", "mail", "browser", "paint", "sheets"];
const LAUNCH_FILES: u64 = 60;
const USE_FILES: u64 = 120;
const OWN_FILES: u64 = 30;
/// How many files a use reads.
const USED: u64 = 12;
/// Daemons: what they are called, how often they read in ms, and how many files each time.
const DAEMONS: [(&str, u64, u64); 3] = [
    ("indexd", 400, 1),
    ("backupd", 15_000, 60),
    ("updated", 7_000, 10),
];
const DAEMON_FILES: u64 = 300;
/// Longest time for anything that a guest is told to do.
const PATIENCE: Duration = Duration::from_secs(120);

/// Days of each view.
const DAYS: u64 = 3;
/// How many bytes of a disk are zeros where it has no file system.
const BLANK_BYTES: usize = 1 << 20;

/// Whose a block of the disk is, and whether a person waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    /// The number of the program; daemons come after [`PROGRAMS`].
    who: usize,
    is_waited_for: bool,
}

/// The truth about each block.
type Truth = BTreeMap<u64, Block>;

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
    let (disk, layout, truth) = make_disk(&context.scratch)?;
    let initrd = make_initrd(&Guest::tiny()?, &context.scratch, &layout)?;
    let trace = context.scratch.join("verdicts");
    let flags = [
        "--io-trace",
        trace.to_str().context("a path of this program's own")?,
    ];
    let node = Node::start_with(None, &context.scratch.join("home"), &flags)?;
    let blank = context.scratch.join("blank.raw");
    without_file_system(&disk, &blank)?;
    for (name, disk) in [("day", &disk), ("blank", &blank)] {
        import(&node, name, disk, &initrd)?;
    }
    let mut told: BTreeMap<String, Samples> = BTreeMap::new();
    for number in 0..context.pick(DAYS, 1) {
        for seeing in SEEINGS {
            eprintln!("io-who: day {number} seen by {}", seeing.name);
            let day = day(&node, &trace, seeing, number, long, &truth)?;
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
        "`agent`, `file` and `input_only` are of real guests; reads of no file's blocks are not in them. `file` is the same days without the agent, `input_only` \
         without the agent and without a file system. `paper` is the paper's own rule over the days with the agent, told of each request whose it is. What is read between a program's first launch and its second use is in `first` alone. All that is called \
         simulated is of days that are made up",
    );
    Ok(report)
}

fn import(node: &Node, name: &str, disk: &Path, initrd: &Path) -> anyhow::Result<()> {
    let guest = Guest::tiny()?;
    let text = |path: &Path| path.display().to_string();
    let request = ImportRequest {
        disks: vec![text(disk)],
        kernel: Some(text(&guest.kernel())),
        initrd: Some(text(initrd)),
        cmdline: Some(guest.cmdline()?),
        name: Some(name.into()),
        memory_bytes: Some(MEMORY),
        cpus: Some(1),
        ..ImportRequest::default()
    };
    node.client.import(&request)?.finish(|_| {})?;
    Ok(())
}

/// Copies a disk, but for what tells where its files are: programs of this experiment read blocks, and never miss it.
fn without_file_system(disk: &Path, blank: &Path) -> anyhow::Result<()> {
    use std::io::Write as _;
    std::fs::copy(disk, blank)?;
    let mut file = std::fs::File::options().write(true).open(blank)?;
    file.write_all(&vec![0; BLANK_BYTES])?;
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
    truth: &Truth,
) -> anyhow::Result<Day> {
    let (machine, agent) = (seeing.machine, seeing.agent);
    node.boot(seeing.image, machine)?;
    // brings all of it from the repository into the cache, once
    node.tell(machine, "cat /dev/vda > /dev/null", PATIENCE)?;
    if !agent {
        node.tell(machine, "kill $(pidof floe-guest)", PATIENCE)?;
    }
    for (name, ms, files) in DAEMONS {
        node.tell(
            machine,
            &format!("{name} every {ms} files {files} &"),
            PATIENCE,
        )?;
    }
    let from_us = unix_us();
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
        let name = PROGRAMS[which];
        let is_known = std::mem::replace(&mut started[which], true);
        if is_known && seconds[which].is_none() {
            seconds[which] = Some(unix_us());
        }
        let line = match is_known && below(4) > 0 {
            true => format!("{name} read use {USED} {}", below(USE_FILES - USED)),
            false => format!("{name} read launch {LAUNCH_FILES}"),
        };
        inputs_us.push(unix_us());
        node.client.has_input(machine)?;
        node.tell(machine, &line, PATIENCE)?;
        if below(4) == 0 {
            // by itself, once the user has turned to something else
            let own = format!("(sleep 6; {name} read own 3 {}) &", below(OWN_FILES - 3));
            node.tell(machine, &own, PATIENCE)?;
        }
    }
    node.client.io()?;
    let rows = judged(&last_record(trace)?, from_us, truth)?;
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

/// Returns the reads that were recorded from then on and of which the truth is known.
fn judged(record: &str, from_us: u64, truth: &Truth) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for row in record.lines().skip(1) {
        let columns: Vec<&str> = row.split(',').collect();
        let [us, "read", _, offset, _, class, ..] = columns[..] else {
            continue;
        };
        let (us, offset): (u64, u64) = (us.parse()?, offset.parse()?);
        let Some(block) = truth.get(&(offset / BLOCK)).filter(|_| us >= from_us) else {
            continue;
        };
        rows.push(Row {
            us,
            block: *block,
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
        "no request of a known file was recorded"
    );
    Ok(scores)
}

/// Makes a disk with an ext4 of all programs' files. Returns it, where the files are, and the truth.
fn make_disk(scratch: &Path) -> anyhow::Result<(PathBuf, String, Truth)> {
    let (tree, disk) = (scratch.join("tree"), scratch.join("day.raw"));
    let mut files = Vec::new();
    for (who, name) in PROGRAMS.into_iter().enumerate() {
        for (part, number, is_waited_for) in [
            ("launch", LAUNCH_FILES, true),
            ("use", USE_FILES, true),
            ("own", OWN_FILES, false),
        ] {
            let block = Block { who, is_waited_for };
            files.extend((0..number).map(|n| (format!("{name}/{part}"), n, block)));
        }
    }
    for (number, (name, _, _)) in DAEMONS.into_iter().enumerate() {
        let block = Block {
            who: PROGRAMS.len() + number,
            is_waited_for: false,
        };
        files.extend((0..DAEMON_FILES).map(|n| (format!("{name}/files"), n, block)));
    }
    let noise = crate::workload::noise(64 << 10, 3);
    for (number, (dir, file, _)) in files.iter().enumerate() {
        std::fs::create_dir_all(tree.join(dir))?;
        // no two alike, or they would be one chunk of the store
        let mut bytes = noise[..(4 + number * 7 % 12) << 12].to_vec();
        for block in bytes.chunks_mut(BLOCK as usize) {
            block[..8].copy_from_slice(&(number as u64).to_le_bytes());
        }
        std::fs::write(tree.join(dir).join(file.to_string()), bytes)?;
    }
    std::fs::File::create(&disk)?.set_len(DISK_BYTES)?;
    output_of(
        Command::new("mkfs.ext4")
            .args(["-q", "-b", "4096", "-d"])
            .arg(&tree)
            .arg(&disk),
    )?;
    std::fs::remove_dir_all(&tree)?;
    let asked = scratch.join("asked");
    let questions: String = files
        .iter()
        .map(|(dir, file, _)| format!("blocks /{dir}/{file}\n"))
        .collect();
    std::fs::write(&asked, questions)?;
    let answers = output_of(Command::new("debugfs").arg("-f").arg(&asked).arg(&disk))?;
    let (mut layout, mut truth) = (String::new(), Truth::new());
    let answers = answers.lines().filter(|line| !line.starts_with("debugfs"));
    let mut known = 0;
    for ((dir, file, of), answer) in files
        .iter()
        .zip(answers.filter(|line| !line.trim().is_empty()))
    {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for block in answer.split_whitespace() {
            let block: u64 = block
                .parse()
                .with_context(|| format!("debugfs said {answer:?}"))?;
            truth.insert(block, *of);
            match runs.last_mut() {
                Some((first, number)) if *first + *number == block => *number += 1,
                _ => runs.push((block, 1)),
            }
        }
        for (first, number) in runs {
            writeln!(layout, "{dir} {file} {} {}", first * BLOCK, number * BLOCK)?;
        }
        known += 1;
    }
    ensure!(
        known == files.len(),
        "debugfs told of {known} files, not {}",
        files.len()
    );
    Ok((disk, layout, truth))
}

/// Adds the programs and the layout to the tiny guest's initial RAM disk.
fn make_initrd(guest: &Guest, scratch: &Path, layout: &str) -> anyhow::Result<PathBuf> {
    let (source, root) = (scratch.join("who.rs"), scratch.join("who"));
    std::fs::create_dir_all(root.join("bin"))?;
    std::fs::write(&source, PROGRAM)?;
    compile(&source, &root.join("bin/who-program"))?;
    for name in PROGRAMS.into_iter().chain(DAEMONS.map(|(name, _, _)| name)) {
        symlink("who-program", root.join("bin").join(name))?;
    }
    std::fs::set_permissions(
        root.join("bin/who-program"),
        std::fs::Permissions::from_mode(0o755),
    )?;
    std::fs::write(root.join("layout"), layout)?;
    guest.add_to_initrd(&root, &scratch.join("who.initrd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth() -> Truth {
        let block = |who, is_waited_for| Block { who, is_waited_for };
        let daemon = PROGRAMS.len();
        [
            (1, block(0, true)),
            (2, block(0, false)),
            (3, block(1, true)),
            (9, block(daemon, false)),
        ]
        .into()
    }

    fn rows(of: &[(u64, u64, &str)]) -> String {
        let row = |(us, block, class): &(u64, u64, &str)| {
            format!(
                "{us},read,0,{},4096,{class},agent,a rule,x\n",
                block * BLOCK
            )
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
            (220, 2, "normal"),
            (230, 9, "interactive"),
            (240, 7, "interactive"),
            // never used twice
            (250, 3, "interactive"),
        ]);
        let rows = judged(&rows, 100, &truth()).unwrap();
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
        let none = judged(&rows(&[(5, 1, "normal")]), 100, &truth()).unwrap();
        assert!(none.is_empty() && score(&none, &Seconds::default()).is_err());
    }
}
