//! `io-who`: of which requests is it known rightly that a person waits for them? A real guest, through a node, lives through a scripted day:
//! programs that are started and used on inputs, and daemons that read by timers. Each reads files of its own, so that the place of a
//! request on the disk tells the truth about it.

use super::live::Node;
use crate::guest::Guest;
use crate::harness::{Context, Report};
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

#[path = "../../../sched/tests/days/mod.rs"]
mod days;

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

/// Whose each block of the disk is: whether it is waited for by a person.
type Truth = BTreeMap<u64, bool>;

/// How many requests were taken for waited for rightly and wrongly, and how many that were waited for were not.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    right: u64,
    wrong: u64,
    missed: u64,
    all: u64,
}

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
    let guest = Guest::tiny()?;
    let text = |path: &Path| path.display().to_string();
    let request = ImportRequest {
        disks: vec![text(&disk)],
        kernel: Some(text(&guest.kernel())),
        initrd: Some(text(&initrd)),
        cmdline: Some(guest.cmdline()?),
        name: Some("day".into()),
        memory_bytes: Some(MEMORY),
        cpus: Some(1),
        ..ImportRequest::default()
    };
    node.client.import(&request)?.finish(|_| {})?;
    for (view, agent) in [("agent", true), ("file", false)] {
        eprintln!("io-who: a day seen by {view}");
        let score = day(&node, &trace, view, agent, long, &truth)?;
        tell(&mut report, view, score);
        node.remove(view)?;
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
    }
    let learned = days::scores(View::Agent, &days::learned());
    report.add_value("simulated.learned.precision", "ratio", learned.precision());
    report.add_value("simulated.learned.recall", "ratio", learned.recall());
    report.note(
        "`agent` and `file` are of a real guest; reads that were answered from the host's memory are not in them, since nobody queues for those, \
         nor are reads of no file's blocks. `file` is the same day without the agent. QEMU tells no address space with a request, so `space` is of simulated \
         days, as is all that is called simulated",
    );
    Ok(report)
}

fn tell(report: &mut Report, view: &str, score: Score) {
    let ratio = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    report.add_value(
        &format!("{view}.precision"),
        "ratio",
        ratio(score.right, score.right + score.wrong),
    );
    report.add_value(
        &format!("{view}.recall"),
        "ratio",
        ratio(score.right, score.right + score.missed),
    );
    report.add_value(&format!("{view}.requests"), "count", score.all as f64);
}

/// Lives through a day in a new machine, and compares what was decided with the truth.
fn day(
    node: &Node,
    trace: &Path,
    machine: &str,
    agent: bool,
    long: Duration,
    truth: &Truth,
) -> anyhow::Result<Score> {
    node.boot("day", machine)?;
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
    let (mut started, mut random) = ([false; PROGRAMS.len()], 7u64);
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
        let line = match std::mem::replace(&mut started[which], true) && below(4) > 0 {
            true => format!("{name} read use {USED} {}", below(USE_FILES - USED)),
            false => format!("{name} read launch {LAUNCH_FILES}"),
        };
        node.client.has_input(machine)?;
        node.tell(machine, &line, PATIENCE)?;
        if below(4) == 0 {
            // by itself, once the user has turned to something else
            let own = format!("(sleep 6; {name} read own 3 {}) &", below(OWN_FILES - 3));
            node.tell(machine, &own, PATIENCE)?;
        }
    }
    node.client.io()?;
    score(&last_record(trace)?, from_us, truth)
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

fn score(rows: &str, from_us: u64, truth: &Truth) -> anyhow::Result<Score> {
    let mut score = Score::default();
    for row in rows.lines().skip(1) {
        let columns: Vec<&str> = row.split(',').collect();
        let [us, "read", _, offset, _, class, ..] = columns[..] else {
            continue;
        };
        let (us, offset): (u64, u64) = (us.parse()?, offset.parse()?);
        let Some(is_waited_for) = truth.get(&(offset / BLOCK)).filter(|_| us >= from_us) else {
            continue;
        };
        score.all += 1;
        match (class == "interactive", is_waited_for) {
            (true, true) => score.right += 1,
            (true, false) => score.wrong += 1,
            (false, true) => score.missed += 1,
            (false, false) => {}
        }
    }
    ensure!(score.all > 0, "no request of a known file was recorded");
    Ok(score)
}

/// Makes a disk with an ext4 of all programs' files. Returns it, where the files are, and the truth.
fn make_disk(scratch: &Path) -> anyhow::Result<(PathBuf, String, Truth)> {
    let (tree, disk) = (scratch.join("tree"), scratch.join("day.raw"));
    let mut files = Vec::new();
    for name in PROGRAMS {
        for (part, number, waited) in [
            ("launch", LAUNCH_FILES, true),
            ("use", USE_FILES, true),
            ("own", OWN_FILES, false),
        ] {
            files.extend((0..number).map(|n| (format!("{name}/{part}"), n, waited)));
        }
    }
    for (name, _, _) in DAEMONS {
        files.extend((0..DAEMON_FILES).map(|n| (format!("{name}/files"), n, false)));
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
    for ((dir, file, waited), answer) in files
        .iter()
        .zip(answers.filter(|line| !line.trim().is_empty()))
    {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for block in answer.split_whitespace() {
            let block: u64 = block
                .parse()
                .with_context(|| format!("debugfs said {answer:?}"))?;
            truth.insert(block, *waited);
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
    let mut rustc = Command::new("rustc");
    rustc.args([
        "--edition",
        "2024",
        "-O",
        "-C",
        "target-feature=+crt-static",
    ]);
    rustc.args(["-C", "strip=symbols", "-C", "panic=abort", "-o"]);
    output_of(rustc.arg(root.join("bin/who-program")).arg(&source))?;
    for name in PROGRAMS.into_iter().chain(DAEMONS.map(|(name, _, _)| name)) {
        symlink("who-program", root.join("bin").join(name))?;
    }
    std::fs::set_permissions(
        root.join("bin/who-program"),
        std::fs::Permissions::from_mode(0o755),
    )?;
    std::fs::write(root.join("layout"), layout)?;
    super::io::add_to_initrd(guest, &root, &scratch.join("who.initrd"))
}
