//! `test`: how long it takes until a change is known to hold, and whether that can be relied on: `.ci/run` from a clean clone, from
//! nothing and with what an earlier run left, against the same in another tree of this repository's history, if one is named; all
//! tests there are; and what `make test` runs, again and again beside a load.
//!
//! All steps together take half a day. Each leaves its outcome in the working directory, where a run that was cut goes on.
use anyhow::{Context as _, ensure};
use floe_testbed::harness::{Context, Report, code_here};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Options of the experiment.
#[derive(clap::Args)]
pub struct Options {
    /// Steps to take, in this order; of the others, what the working directory has is reported. With no step, only that
    #[arg(long, value_enum, num_args = 0.., value_delimiter = ',', value_name = "STEP", default_values_t = [Step::Cold, Step::Warm, Step::All, Step::Flaky])]
    steps: Vec<Step>,
    /// The tree of the step before, which is the last one if this is given
    #[arg(long, value_name = "COMMIT", env = "FLOE_LAB_BEFORE")]
    before: Option<String>,
    /// Where clones, what they build and the steps' outcomes are kept (default: a directory that is removed afterwards)
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Step {
    /// .ci/run with an empty cache
    Cold,
    /// .ci/run of another clone, with the cache that the run before left
    Warm,
    /// make test-all, with the same cache
    All,
    /// make flaky: ten rounds of the tests that can be disturbed, beside a load
    Flaky,
    /// .ci/run with an empty cache, of the tree before
    Before,
}

/// What came of a step.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Outcome {
    /// The commit that was run, and what it had of the code ([`code_here`]).
    commit: String,
    code: String,
    minutes: f64,
    passed: bool,
    /// Whether it was ended before it had come to its own end.
    #[serde(default)]
    ended: bool,
    /// How many packages were compiled, each time counted.
    compiled_packages: u64,
    /// Tests that needed more than one try, and tests that failed all of theirs.
    flaky: Vec<String>,
    failed: Vec<String>,
    rounds: u64,
    red_rounds: u64,
}

/// Runs the experiment.
///
/// # Errors
/// If a clone cannot be made, a step cannot be run, or its report cannot be read. A red step is a broken promise of the report.
pub fn run(context: &Context, options: &Options) -> anyhow::Result<Report> {
    ensure!(
        !context.quick,
        "there is no quick version of it: name steps with --steps"
    );
    let work = options.work.as_ref().unwrap_or(&context.scratch);
    fs::create_dir_all(work).with_context(|| format!("cannot make {}", work.display()))?;
    let work = work.canonicalize()?;
    let mut steps = options.steps.clone();
    ensure!(
        options.before.is_some() || !steps.contains(&Step::Before),
        "which tree is the one before? name its commit with --before"
    );
    if options.before.is_some() && !steps.contains(&Step::Before) {
        steps.push(Step::Before);
    }
    for step in &steps {
        eprintln!("{}", step.name());
        let before = options.before.as_deref().filter(|_| *step == Step::Before);
        let outcome = step.run(&work, before.unwrap_or("HEAD"))?;
        fs::write(
            step.file(&work),
            serde_json::to_string_pretty(&outcome)? + "\n",
        )?;
    }
    tell(&work)
}

fn tell(work: &Path) -> anyhow::Result<Report> {
    let mut report = Report::new("test", false);
    // what is measured are builds of their own
    report.machine.optimised = true;
    let mut recorded = |step: Step| -> anyhow::Result<Option<Outcome>> {
        let outcome = step.recorded(work)?;
        match &outcome {
            None => report.note(format!("{}: not run", step.name())),
            Some(outcome) => {
                if !outcome.passed && step != Step::Before {
                    report.fail(format!(
                        "{} is red: {}",
                        step.name(),
                        outcome.failed.join(", ")
                    ));
                }
                if outcome.code != report.code && step != Step::Before {
                    report.note(format!(
                        "{}: of {}, {}",
                        step.name(),
                        outcome.commit,
                        outcome.code
                    ));
                }
            }
        }
        Ok(outcome)
    };
    let [cold, warm, all, flaky, before] = [
        recorded(Step::Cold)?,
        recorded(Step::Warm)?,
        recorded(Step::All)?,
        recorded(Step::Flaky)?,
        recorded(Step::Before)?,
    ];
    if let Some(cold) = &cold {
        let locked = packages_in_lock()?;
        report.add_value("cold_min", "min", cold.minutes);
        report
            .add_value("compiled_packages", "count", cold.compiled_packages as f64)
            .against("in the lock file", "count", locked as f64);
    }
    if let (Some(cold), Some(before)) = (&cold, &before) {
        report
            .add_value("cold_over_before", "x", cold.minutes / before.minutes)
            .against("the tree before", "min", before.minutes);
        if before.ended {
            report.note(format!(
                "before, {}, was ended after {:.0} minutes: cold_over_before is at most that",
                before.commit, before.minutes
            ));
        } else if !before.passed {
            report.note(format!(
                "before, {}, was red, which the time does not show",
                before.commit
            ));
        }
    }
    if let Some(warm) = &warm {
        report.add_value("warm_min", "min", warm.minutes);
    }
    if let Some(all) = &all {
        report.add_value("all_min", "min", all.minutes);
        report.add_value("all_flaky_tests", "count", all.flaky.len() as f64);
    }
    if let Some(flaky) = &flaky {
        report.add_value("flaky_rounds", "count", flaky.rounds as f64);
        report.add_value("flaky_rounds_red", "count", flaky.red_rounds as f64);
        report.add_value("flaky_tests", "count", flaky.flaky.len() as f64);
        for test in &flaky.flaky {
            report.note(format!("beside a load, a second try: {test}"));
        }
    }
    Ok(report)
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Cold => "cold",
            Step::Warm => "warm",
            Step::All => "all",
            Step::Flaky => "flaky",
            Step::Before => "before",
        }
    }

    fn file(self, work: &Path) -> PathBuf {
        work.join(self.name()).with_extension("json")
    }

    fn recorded(self, work: &Path) -> anyhow::Result<Option<Outcome>> {
        let file = self.file(work);
        match fs::read(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => {
                let json = read.with_context(|| format!("cannot read {}", file.display()))?;
                let outcome = serde_json::from_slice(&json)
                    .with_context(|| format!("{} is no outcome of a step", file.display()))?;
                Ok(Some(outcome))
            }
        }
    }

    /// Runs the step in a clone of its own, of this commit.
    fn run(self, work: &Path, commit: &str) -> anyhow::Result<Outcome> {
        // of what is cloned: work may go on here meanwhile
        let code = code_here();
        let clone = clone(&work.join(self.name()), commit)?;
        let cache = work.join(if self == Step::Before {
            "cache-before"
        } else {
            "cache"
        });
        if matches!(self, Step::Cold | Step::Before) {
            remove(&cache)?;
        }
        let mut command = match self {
            Step::All => make("test-all", &cache),
            Step::Flaky => make("flaky", &cache),
            Step::Cold | Step::Warm | Step::Before => {
                let mut ci = Command::new("bash");
                ci.arg(".ci/run");
                ci
            }
        };
        // What this program was built with must not change what is built there.
        for name in [
            "RUSTC_WORKSPACE_WRAPPER",
            "CLIPPY_ARGS",
            "RUSTFLAGS",
            "CARGO_TARGET_DIR",
        ] {
            command.env_remove(name);
        }
        let log = fs::File::create(work.join(self.name()).with_extension("log"))?;
        let began = Instant::now();
        let status = command
            .current_dir(&clone)
            .env("CI", "true")
            .env("XDG_CACHE_HOME", &cache)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .status()
            .with_context(|| format!("cannot run {:?}", command.get_program()))?;
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        let commit = git(&clone, &["rev-parse", "HEAD"])?;
        let outcome = Outcome {
            commit,
            code,
            minutes,
            passed: status.success(),
            ended: status.signal().is_some(),
            ..Outcome::default()
        };
        match self {
            Step::Before => Ok(outcome),
            Step::Flaky => outcome.with_rounds(&clone.join("target")),
            Step::Cold | Step::Warm | Step::All => outcome.with_report(&clone.join("target")),
        }
    }
}

impl Outcome {
    /// Adds what the tests' report says.
    fn with_report(mut self, target: &Path) -> anyhow::Result<Outcome> {
        let report: TestReport = read(&target.join("test-report.json"))?;
        self.compiled_packages = report.compiled_packages;
        self.flaky = report.flaky.into_iter().map(|one| one.name).collect();
        self.failed = report.failed;
        Ok(self)
    }

    /// Adds what the report of each round beside a load says. A test counts once, however many rounds it was flaky in.
    fn with_rounds(mut self, target: &Path) -> anyhow::Result<Outcome> {
        let mut number = 1;
        loop {
            let file = target.join(format!("flaky-{number}.json"));
            if !file.try_exists()? {
                break;
            }
            let report: TestReport = read(&file)?;
            self.rounds += 1;
            self.red_rounds += u64::from(report.parts.values().any(|part| !part.passed));
            self.flaky
                .extend(report.flaky.into_iter().map(|one| one.name));
            self.failed.extend(report.failed);
            number += 1;
        }
        ensure!(self.rounds > 0, "no round was run; see the step's log");
        for tests in [&mut self.flaky, &mut self.failed] {
            tests.sort();
            tests.dedup();
        }
        Ok(self)
    }
}

/// What is read of `target/test-report.json`.
#[derive(Deserialize)]
struct TestReport {
    compiled_packages: u64,
    flaky: Vec<Flaky>,
    failed: Vec<String>,
    parts: std::collections::BTreeMap<String, Part>,
}

#[derive(Deserialize)]
struct Flaky {
    name: String,
}

#[derive(Deserialize)]
struct Part {
    passed: bool,
}

fn read(file: &Path) -> anyhow::Result<TestReport> {
    let json = fs::read(file).with_context(|| format!("the tests left no {}", file.display()))?;
    serde_json::from_slice(&json).with_context(|| format!("cannot read {}", file.display()))
}

/// `make`, with the shared cache of `.ci/run`.
fn make(target: &str, cache: &Path) -> Command {
    let mut make = Command::new("make");
    make.arg(target)
        .env("CARGO_BUILD_BUILD_DIR", cache.join("floe/build"))
        .env("FLOE_GUESTS", cache.join("floe/guests"))
        .env("CARGO_INCREMENTAL", "0");
    make
}

/// Clones this repository's `commit` to `directory/main`, in place of what is there, and puts the cases that tests look for beside it.
fn clone(directory: &Path, commit: &str) -> anyhow::Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    remove(directory)?;
    fs::create_dir_all(directory)?;
    let clone = directory.join("main");
    let (from, to) = (here.to_string_lossy(), clone.to_string_lossy());
    git(directory, &["clone", "--quiet", &from, &to])?;
    let commit = git(&here, &["rev-parse", commit])?;
    git(&clone, &["checkout", "--quiet", "--detach", &commit])?;
    let shared = here.join("../shared");
    if shared.is_dir() {
        std::os::unix::fs::symlink(shared.canonicalize()?, directory.join("shared"))?;
    }
    Ok(clone)
}

fn remove(directory: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

fn git(directory: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let done = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(arguments)
        .output()?;
    ensure!(
        done.status.success(),
        "git {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(String::from_utf8(done.stdout)?.trim().to_owned())
}

/// How many packages `Cargo.lock` names.
fn packages_in_lock() -> anyhow::Result<usize> {
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    Ok(fs::read_to_string(lock)?
        .lines()
        .filter(|line| *line == "[[package]]")
        .count())
}
