//! `fuzz`: gives every parser of foreign bytes inputs that libFuzzer generates, guided by the code that they reach.
//!
//! The targets are those of `fuzz/`. They are built here with a stable compiler: `-C passes` enables LLVM's coverage
//! pass, and the crate `libfuzzer-sys` contains the engine. (`cargo fuzz` would need a nightly compiler, for its address
//! sanitizer. The parsers are safe Rust, in which only a panic can go wrong, and overflow and debug assertions are
//! checked.)
use anyhow::{Context as _, bail, ensure};
use floe_testbed::harness::{Context, Report};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Options that make the compiler count edges and comparisons for libFuzzer.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions --cfg fuzzing";
/// Most rounds over all targets to reach the requested number of executions.
const ROUNDS_MAX: usize = 50;
/// Number of crashes after which a target is given up for the round: usually they are all the same.
const CRASHES_MAX: u64 = 5;
/// Seconds after which an input counts as hanging.
const HANG_S: u32 = 10;
/// Memory limit of a target, in MiB: it exposes a parser that allocates whatever a length field says.
const MEMORY_MIB: u32 = 1024;
/// Most bytes of new inputs that are kept for each target.
const KEPT_BYTES_MAX: u64 = 4096;
/// Most new inputs that are kept for each target: `make test` damages and parses each of them thousands of times.
const KEPT_MAX: usize = 16;
/// Longest input that is kept, in bytes: the test that replays inputs damages short ones more often.
const KEPT_ENTRY_BYTES_MAX: u64 = 512;

/// Options of the experiment.
#[derive(clap::Args)]
pub struct Options {
    /// Seconds for each target in a round
    #[arg(long, default_value_t = 20, value_name = "S")]
    seconds: u64,
    /// Rounds continue until this many inputs were executed in all
    #[arg(long, default_value_t = 100_000_000, value_name = "N")]
    executions: u64,
    /// Targets at a time (default: one for each core)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Put small new inputs that reach more code into fuzz/corpus
    #[arg(long)]
    keep: bool,
}

/// The result of one target.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    executions: u64,
    crashes: u64,
    /// Number of edges and values that its inputs reached.
    features: u64,
    seconds: f64,
}

/// Runs the experiment.
pub fn run(context: &Context, options: &Options) -> anyhow::Result<Report> {
    let (seconds, goal) = match context.quick {
        true => (1, 0),
        false => (options.seconds.max(1), options.executions),
    };
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz")
        .canonicalize()
        .context("the targets stand in fuzz/, beside crates/")?;
    let binaries = build(&fuzz)?;
    let targets = targets(&fuzz)?;
    let mut all = vec![Outcome::default(); targets.len()];
    let jobs = options
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let sum = |all: &[Outcome]| all.iter().map(|one| one.executions).sum::<u64>();
    for round in 0..ROUNDS_MAX {
        if round > 0 && sum(&all) >= goal {
            break;
        }
        let one =
            |target: &String| Target::new(&fuzz, &binaries, &context.scratch, target).run(seconds);
        for (total, one) in all.iter_mut().zip(in_parallel(jobs, &targets, one)) {
            let one = one?;
            total.executions += one.executions;
            total.crashes += one.crashes;
            total.seconds += one.seconds;
            total.features = one.features;
        }
        eprintln!("round {}: {} executions in all", round + 1, sum(&all));
    }
    if options.keep {
        for target in &targets {
            Target::new(&fuzz, &binaries, &context.scratch, target).keep()?;
        }
    }
    Ok(tell(context, &targets, &all))
}

fn tell(context: &Context, targets: &[String], all: &[Outcome]) -> Report {
    let mut report = Report::new("fuzz", context.quick);
    // the targets are optimised, even if this program is not
    report.machine.optimised = true;
    let (mut executions, mut crashes) = (0, 0);
    for (target, one) in targets.iter().zip(all) {
        executions += one.executions;
        crashes += one.crashes;
        report.add_value(
            &format!("{target}.executions"),
            "count",
            one.executions as f64,
        );
        report.add_value(&format!("{target}.features"), "count", one.features as f64);
        if one.crashes > 0 {
            report.fail(format!(
                "{target}: {} crashes, in fuzz/artifacts/{target}/",
                one.crashes
            ));
        }
    }
    report.add_value("executions", "count", executions as f64);
    report.add_value("crashes", "count", crashes as f64);
    let seconds: f64 = all.iter().map(|one| one.seconds).sum();
    report.add_value("cpu_s", "s", seconds);
    report.note(format!(
        "{} targets, guided by coverage (libFuzzer), with overflow and debug assertions checked; inputs of more than {HANG_S} s or \
         {MEMORY_MIB} MiB count as crashes",
        targets.len()
    ));
    report
}

/// Calls `work` for each item, this many at a time, and returns the results in the order of `items`.
fn in_parallel<T: Sync, R: Send>(
    jobs: usize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    let Some(item) = items.get(index) else {
                        break;
                    };
                    let result = work(item);
                    done.lock()
                        .expect("nobody panics with it")
                        .push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("nobody panics with it");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Builds all targets. Returns the directory of their programs.
fn build(fuzz: &Path) -> anyhow::Result<PathBuf> {
    let version = Command::new("rustc").arg("-vV").output();
    let version = version.context("cannot run rustc; the targets are built where they run")?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc -vV tells no host")?;
    // If given a target, cargo builds what runs during the build without these flags.
    let status = Command::new("cargo")
        .args([
            "build",
            "--quiet",
            "--locked",
            "--release",
            "--bins",
            "--features=engine",
            "--target-dir=target", // those of the product are built without these flags
            "--target",
            host,
        ])
        .current_dir(fuzz)
        .env("RUSTFLAGS", COVERAGE)
        .status()
        .context("cannot run cargo")?;
    ensure!(
        status.success(),
        "the targets in {} were not built",
        fuzz.display()
    );
    Ok(fuzz.join("target").join(host).join("release"))
}

/// Returns the targets' names, those of the files in `fuzz_targets/`.
fn targets(fuzz: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(fuzz.join("fuzz_targets"))? {
        let path = entry?.path();
        if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "no targets in {}", fuzz.display());
    Ok(names)
}

/// One target and its directories.
struct Target<'a> {
    name: &'a str,
    program: PathBuf,
    /// The inputs that are kept in the source tree.
    corpus: PathBuf,
    /// The inputs that are found in this run.
    found: PathBuf,
    /// The inputs that make the target crash.
    artifacts: PathBuf,
}

impl<'a> Target<'a> {
    fn new(fuzz: &Path, binaries: &Path, scratch: &Path, name: &'a str) -> Self {
        Target {
            name,
            program: binaries.join(name),
            corpus: fuzz.join("corpus").join(name),
            found: scratch.join("found").join(name),
            artifacts: fuzz.join("artifacts").join(name),
        }
    }

    /// Runs the target for this long; after a crash it is started again.
    fn run(&self, seconds: u64) -> anyhow::Result<Outcome> {
        std::fs::create_dir_all(&self.found)?;
        std::fs::create_dir_all(&self.artifacts)?;
        let start = Instant::now();
        let until = start + Duration::from_secs(seconds);
        let mut outcome = Outcome::default();
        while outcome.crashes < CRASHES_MAX {
            let left = until.saturating_duration_since(Instant::now()).as_secs();
            if left == 0 && outcome.executions > 0 {
                break;
            }
            let output = Command::new(&self.program)
                .arg(format!("-max_total_time={}", left.max(1)))
                .arg(format!("-timeout={HANG_S}"))
                .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
                .arg(format!("-artifact_prefix={}/", self.artifacts.display()))
                .arg("-print_final_stats=1")
                .args([&self.found, &self.corpus])
                .output()
                .with_context(|| format!("cannot run {}", self.program.display()))?;
            let said = String::from_utf8_lossy(&output.stderr);
            let (executions, features) = parse(&said)
                .with_context(|| format!("{} tells no figures: {}", self.name, tail(&said)))?;
            outcome.executions += executions;
            outcome.features = outcome.features.max(features);
            if !output.status.success() {
                outcome.crashes += 1;
                eprintln!("{}: {}", self.name, tail(&said));
            }
        }
        outcome.seconds = start.elapsed().as_secs_f64();
        Ok(outcome)
    }

    /// Adds the shortest new inputs that reach code which the corpus does not, up to a few KB.
    fn keep(&self) -> anyhow::Result<()> {
        let short = self.found.with_extension("short");
        let more = self.found.with_extension("more");
        for dir in [&short, &more] {
            let _ = std::fs::remove_dir_all(dir);
            std::fs::create_dir_all(dir)?;
        }
        for (path, bytes) in files(&self.found)? {
            if bytes <= KEPT_ENTRY_BYTES_MAX {
                std::fs::copy(
                    &path,
                    short.join(path.file_name().context("a file has a name")?),
                )?;
            }
        }
        for (path, _) in files(&self.corpus)? {
            std::fs::copy(
                &path,
                more.join(path.file_name().context("a file has a name")?),
            )?;
        }
        let before = files(&more)?;
        let merged = Command::new(&self.program)
            .args(["-set_cover_merge=1", &format!("-timeout={HANG_S}")])
            .args([&more, &short])
            .output()?;
        if !merged.status.success() {
            bail!(
                "{}: {}",
                self.name,
                tail(&String::from_utf8_lossy(&merged.stderr))
            );
        }
        let mut new = files(&more)?;
        new.retain(|entry| !before.contains(entry));
        new.sort_by_key(|(_, bytes)| *bytes);
        // keep some of each length: the shortest reach least
        let step = new.len().div_ceil(KEPT_MAX).max(1);
        let mut kept = 0;
        for (path, bytes) in new.into_iter().step_by(step) {
            kept += bytes;
            if kept > KEPT_BYTES_MAX {
                break;
            }
            let name = path.file_name().context("a file has a name")?;
            std::fs::copy(&path, self.corpus.join(name))?;
        }
        Ok(())
    }
}

fn files(dir: &Path) -> anyhow::Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        files.push((entry.path(), entry.metadata()?.len()));
    }
    Ok(files)
}

/// Parses executions and features from libFuzzer's output: `#4096 NEW cov: 12 ft: 34 ...` and
/// `stat::number_of_executed_units: 99606`.
fn parse(said: &str) -> Option<(u64, u64)> {
    let executions = said
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    let features = said.lines().rev().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        words.find(|word| *word == "ft:")?;
        words.next()?.parse().ok()
    });
    Some((executions.trim().parse().ok()?, features.unwrap_or(0)))
}

fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_own_count_is_read() {
        let said = "INFO: Seed: 1\n#2\tINITED cov: 9 ft: 12 corp: 1/1b\n#90\tNEW    cov: 11 ft: 15 corp: 2/3b exec/s: 0\nDone 90 runs\n\
                    stat::number_of_executed_units: 90\nstat::average_exec_per_sec: 45\n";
        assert_eq!(parse(said), Some((90, 15)));
        assert_eq!(parse("error: no such program"), None);
    }

    #[test]
    fn results_come_in_the_order_of_what_was_asked() {
        let items: Vec<u64> = (0..50).collect();
        let squares = in_parallel(3, &items, |n| n * n);
        assert_eq!(squares, items.iter().map(|n| n * n).collect::<Vec<_>>());
    }
}
