//! `cpu-scx`: floe's scheduler for sched_ext, in a guest whose kernel has that: threads that are named as QEMU names its vCPUs stand for
//! machines, under the kernel's own scheduler and under floe's in turn (`crates/scx/examples/scx_guest/` is the program).
//!
//! The guest's cores are threads that the host deschedules unseen: figures are ratios within one boot, and say more about placement than about time.
//! The guest is booted for each round, and again for one in which its kernel broke, as the emulation of a QEMU older than 8.1 now and then breaks it
//! while a scheduler comes or goes (`docs/decisions/sched-ext.md`).
use super::cpu_sim::worst;
use anyhow::{Context as _, bail, ensure};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the guest's first machine runs.
const PROGRAMS: [&str; 4] = ["lock", "barrier", "pipeline", "compute"];
/// The kernel's own scheduler, floe's that keeps siblings apart, and with lending.
const MODES: [&str; 3] = ["off", "balance", "sbco"];
const ROUNDS: u32 = 10;
/// How long a program runs, in seconds of the guest's time.
const RUN_S: u32 = 4;
/// Cores of the guest.
const CORES: u32 = 4;
/// A guest that takes longer for a round hangs, in seconds.
const PATIENCE_S: u32 = 900;
/// How many guests may be lost in all. Each loads a scheduler three times, and about one load in 25 broke its kernel.
const LOST_MAX: usize = 10;

/// A run: pieces of work in a second, switches of all vCPUs, and looks at which siblings were at one core, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    rate: f64,
    switches: f64,
    stacking_pct: f64,
    /// How many places the farthest sibling was behind, and how often one lent; known of floe's scheduler alone.
    inside: Option<(f64, f64)>,
}

/// Where the guest has the compiled scheduler.
pub const OBJECT: &str = "/floe.bpf.o";

/// What the guests have told.
#[derive(Clone, Debug, Default)]
struct Told {
    runs: BTreeMap<(u32, String, String), Run>,
    exit_ms: Samples,
    quota_error_pct: Samples,
    /// Whether the last guest has come to its end.
    done: bool,
    /// What its kernel said first if it broke.
    broke: Option<String>,
}

impl Told {
    /// Takes a line that the guest has printed.
    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        let broke = ["Oops: ", "Kernel panic"];
        if let Some(at) = broke.into_iter().find_map(|word| line.find(word)) {
            self.broke.get_or_insert_with(|| line[at..].to_owned());
            return Ok(());
        }
        let Some((_, said)) = line.split_once('@') else {
            return Ok(());
        };
        let words: Vec<&str> = said.split_whitespace().collect();
        match words[..] {
            [
                "run",
                round,
                mode,
                program,
                rate,
                _,
                switches,
                stacking,
                _,
                _,
                distance,
                _,
                loans,
            ] => {
                let inside = distance.parse().ok().zip(loans.parse().ok());
                let run = Run {
                    rate: rate.parse()?,
                    switches: switches.parse()?,
                    stacking_pct: stacking.parse()?,
                    inside,
                };
                let key = (round.parse()?, mode.to_owned(), program.to_owned());
                self.runs.insert(key, run);
            }
            ["exit", ms] => self.exit_ms.push(ms.parse()?),
            ["quota", _, error] => self.quota_error_pct.push(f64::abs(error.parse()?)),
            ["done"] => self.done = true,
            ["error", ..] => bail!("in the guest: {said}"),
            _ => {}
        }
        Ok(())
    }

    /// Why what the last guest told of a round counts for nothing, if it does.
    fn lost(&self, round: u32) -> Option<String> {
        let runs = self.runs.keys().filter(|(its, ..)| *its == round).count();
        let all = MODES.len() * PROGRAMS.len();
        match &self.broke {
            Some(broke) => Some(broke.clone()),
            None if self.done && runs == all => None,
            None => Some(format!("{runs} of {all} runs, and then silence")),
        }
    }

    /// What came of a program under a scheduler, round by round.
    fn samples(&self, mode: &str, program: &str, value: impl Fn(&Run) -> f64) -> Samples {
        let runs = self.runs.iter();
        runs.filter(|((_, its, what), _)| its == mode && what == program)
            .map(|(_, run)| value(run))
            .collect()
    }
}

/// Has `boot` do each round, again as long as its guest is lost. Returns what was told, and of each lost guest why it was.
fn in_rounds(
    rounds: u32,
    mut boot: impl FnMut(u32, &mut Told) -> anyhow::Result<()>,
) -> anyhow::Result<(Told, Vec<String>)> {
    let (mut told, mut lost) = (Told::default(), Vec::new());
    for round in 0..rounds {
        loop {
            let mut more = told.clone();
            more.done = false;
            boot(round, &mut more)?;
            let Some(why) = more.lost(round) else {
                told = more;
                break;
            };
            lost.push(why);
            ensure!(
                lost.len() <= LOST_MAX,
                "{} guests are lost in {} rounds: {}",
                lost.len(),
                round + 1,
                lost.join("; ")
            );
        }
    }
    Ok((told, lost))
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("cpu-scx", context.quick);
    let (rounds, seconds) = context.pick((ROUNDS, RUN_S), (1, 2));
    let initrd = prepare(&context.scratch)?;
    let (told, lost) = in_rounds(rounds, |round, told| {
        let order = format!("measure,{OBJECT},{round},{seconds}");
        boot(&initrd, &order, PATIENCE_S, |line| told.line(line))
    })?;
    tell(&told, &mut report);
    tell_lost(&lost, &mut report);
    Ok(report)
}

/// Makes what the guest runs, the scheduler and the program that loads and measures it, in `scratch`, where a second time finds it compiled. Returns
/// the path of an initial RAM disk with both.
pub fn prepare(scratch: &Path) -> anyhow::Result<PathBuf> {
    let guest = Guest::scx()?;
    let root = scratch.join("root");
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::create_dir_all(root.join("bin"))?;
    let target = "x86_64-unknown-linux-gnu";
    let built = scratch.join("target");
    let mut scheduler = Command::new("make");
    scheduler
        .args(["-s", "scx"])
        .arg(format!("SCX={}", root.join("floe.bpf.o").display()));
    let mut program = Command::new("cargo");
    program
        .args([
            "build",
            "--quiet",
            "--release",
            "--locked",
            "-p",
            "floe-scx",
        ])
        .args(["--example", "scx_guest", "--target", target])
        .arg("--target-dir")
        .arg(&built)
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    for mut command in [scheduler, program] {
        let status = command.current_dir(&tree).status();
        let status = status.with_context(|| format!("cannot run {command:?}"))?;
        ensure!(status.success(), "{command:?} has failed");
    }
    let example: PathBuf = [target, "release", "examples", "scx_guest"]
        .iter()
        .collect();
    std::fs::copy(built.join(example), root.join("bin/scx_guest"))?;
    guest.add_to_initrd(&root, &scratch.join("initrd"))
}

/// Boots the guest, with what [`prepare`] has made, to do what `order` says, a command line of `scx_guest` with commas for blanks. Hands on each line
/// that it prints until it ends, for so many seconds at most.
pub fn boot(
    initrd: &Path,
    order: &str,
    patience_s: u32,
    mut heard: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let guest = Guest::scx()?;
    // a /dev/kvm that is there and runs no ordinary guest does not make QEMU take the next one
    let accelerator = match floe_testbed::guest::accelerator().as_str() {
        "kvm" => "kvm",
        _ => "tcg,thread=multi",
    };
    // a kernel that breaks ends at once
    let order = format!("{} oops=panic panic=-1 scx={order}", guest.cmdline()?);
    let mut qemu = Command::new("timeout")
        .arg(patience_s.to_string())
        .args(["qemu-system-x86_64", "-M", "q35", "-m", "1024"])
        .args(["-accel", accelerator, "-cpu", "max"])
        .args(["-smp", &CORES.to_string(), "-nographic", "-no-reboot"])
        .args(["-net", "none", "-append", &order, "-kernel"])
        .arg(guest.kernel())
        .arg("-initrd")
        .arg(initrd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run qemu-system-x86_64")?;
    let out = qemu.stdout.take().context("no serial line")?;
    let mut all_heard = Ok(());
    for line in BufReader::new(out).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if line.contains('@') || line.contains("Oops") || line.contains("panic") {
            eprintln!("cpu-scx: {}", line.trim());
        }
        all_heard = all_heard.and_then(|()| heard(line.trim()));
    }
    qemu.wait()?;
    all_heard
}

/// Adds how many guests are lost, and why. What the emulation does not explain is a fault.
fn tell_lost(lost: &[String], report: &mut Report) {
    report.add_value("boots_lost", "count", lost.len() as f64);
    if !lost.is_empty() {
        report.note(format!(
            "rounds were done again whose guest was lost: {}",
            lost.join("; ")
        ));
    }
    for why in lost.iter().filter(|why| !why.contains("int3")) {
        report.fail(format!(
            "a guest was lost, and not by what QEMU's emulation does to changed code: {why}"
        ));
    }
}

/// Adds what can be told.
fn tell(told: &Told, report: &mut Report) {
    for mode in MODES {
        let prefix = match mode {
            "sbco" => String::new(),
            mode => format!("{mode}."),
        };
        let stacking: Samples = PROGRAMS
            .iter()
            .flat_map(|program| {
                let samples = told.samples(mode, program, |run| run.stacking_pct);
                samples.values().to_vec()
            })
            .collect();
        report.add(&format!("{prefix}stacking_pct"), "%", &stacking);
        if mode == "off" {
            continue;
        }
        let (mut all, mut switches) = (Vec::new(), Vec::new());
        for program in PROGRAMS {
            let default = told.samples("off", program, |run| 1.0 / run.rate);
            let over = told
                .samples(mode, program, |run| 1.0 / run.rate)
                .over(&default);
            report.add(&format!("{prefix}{program}_over_default"), "x", &over);
            all.push(over);
            let default = told.samples("off", program, |run| run.switches);
            switches.push(
                told.samples(mode, program, |run| run.switches)
                    .over(&default),
            );
        }
        report.add(&format!("{prefix}worst_over_default"), "x", &worst(all));
        report.add(
            &format!("{prefix}switches_over_default"),
            "x",
            &worst(switches),
        );
    }
    let inside: Vec<(f64, f64)> = told.runs.values().filter_map(|run| run.inside).collect();
    let distances: Samples = inside.iter().map(|(distance, _)| *distance).collect();
    let loans: Samples = inside.iter().map(|(_, loans)| *loans).collect();
    report.add("distance", "places", &distances);
    report.add("loans", "count", &loans);
    report.add("exit_ms", "ms", &told.exit_ms);
    report.add("quota_error_pct", "%", &told.quota_error_pct);
    report.note(format!(
        "a guest of {CORES} cores with Linux 6.18, {}, booted for each round; four groups of {CORES} threads with the names of vCPUs, of which the \
         first runs the program and the others compute; *_over_default: time for a piece of work over the kernel's in the same round",
        floe_testbed::guest::accelerator()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    const OOPS: &str = "[   66.697741] Oops: int3: 0000 [#1] SMP NOPTI";

    /// What a guest prints whose round comes to its end.
    fn a_round(round: u32) -> Vec<String> {
        let mut lines = Vec::new();
        for (mode, rate) in [("off", 100.0), ("balance", 110.0), ("sbco", 200.0)] {
            let inside = if mode == "off" {
                "- - - -"
            } else {
                "0.0 2.5 70.0 12"
            };
            lines.extend(PROGRAMS.map(|program| {
                format!("@run {round} {mode} {program} {rate} 5.0 40 12.5 99 {inside}")
            }));
        }
        let more = [
            "@quota 0 3.0",
            "@quota 8 -3.0",
            "[    1.0] @ whatever",
            "@exit 12.5",
            "@done",
        ];
        lines.extend(more.map(String::from));
        lines
    }

    fn hear(told: &mut Told, lines: &[String]) -> anyhow::Result<()> {
        lines.iter().try_for_each(|line| told.line(line))
    }

    #[test]
    fn ratios_are_of_the_same_round_and_an_error_in_the_guest_is_one() {
        let (mut told, lost) = in_rounds(3, |round, told| hear(told, &a_round(round))).unwrap();
        assert!(told.line("@error it has ended").is_err());
        let mut report = Report::new("cpu-scx", false);
        tell(&told, &mut report);
        tell_lost(&lost, &mut report);
        let value = |name: &str| report.figures[name].value;
        assert!((value("lock_over_default") - 0.5).abs() < 1e-9);
        assert!((value("switches_over_default") - 1.0).abs() < 1e-9);
        assert!((value("quota_error_pct") - 3.0).abs() < 1e-9);
        assert!((value("distance") - 2.5).abs() < 1e-9);
        assert_eq!(value("boots_lost"), 0.0);
        assert_eq!(report.figures["exit_ms"].n, 3);
    }

    #[test]
    fn a_round_whose_guest_broke_is_done_again_and_told() {
        let mut boots = Vec::new();
        let (told, lost) = in_rounds(2, |round, told| {
            boots.push(round);
            let mut lines = a_round(round);
            match boots.len() {
                1 => lines.insert(3, OOPS.to_owned()),
                3 => lines.truncate(5),
                _ => {}
            }
            hear(told, &lines)
        })
        .unwrap();
        assert_eq!(boots, [0, 0, 1, 1]);
        // nothing of a lost guest counts
        assert_eq!((told.runs.len(), told.exit_ms.len()), (24, 2));
        let mut report = Report::new("cpu-scx", false);
        tell_lost(&lost, &mut report);
        assert_eq!(report.figures["boots_lost"].value, 2.0);
        assert!(report.notes[0].contains("Oops: int3"), "{:?}", report.notes);
        // what is no fault of QEMU's is one of ours until somebody has looked
        assert_eq!(report.violations.len(), 1, "{:?}", report.violations);
        assert!(report.violations[0].contains("5 of 12 runs"));
    }

    #[test]
    fn guests_are_not_lost_without_end() {
        let mut boots = 0;
        let ended = in_rounds(1, |_, told| {
            boots += 1;
            told.line(OOPS)
        });
        assert!(ended.is_err());
        assert_eq!(boots, LOST_MAX + 1);
    }
}
