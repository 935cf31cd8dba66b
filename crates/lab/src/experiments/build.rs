//! `build`: what `make build` costs, from nothing and after a change of one service; against the same in another tree of this
//! repository's history, if one is named. What is compared is the CPU time of the compilation, which other work on the host hardly
//! changes.
use anyhow::{Context as _, bail, ensure};
use floe_testbed::harness::{Context, Report, Run, Samples, cpu_times, interleave};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Services of the node. One of them is changed before each incremental build.
const CHANGED: [&str; 5] = ["network", "fork", "guest", "cluster", "placement"];

/// Options of the experiment.
#[derive(clap::Args)]
pub struct Options {
    /// The tree to compare with; without one, only this tree is measured
    #[arg(long, value_name = "COMMIT", env = "FLOE_LAB_BEFORE")]
    before: Option<String>,
}

/// Runs the experiment.
pub fn run(context: &Context, options: &Options) -> anyhow::Result<Report> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let mut report = Report::new("build", context.quick);
    let locked = locked_packages(&repository)?;
    report.add_value("locked_packages", "packages", locked as f64);
    let before = options.before.as_deref();
    let before = before.map(|commit| Tree::check_out(&repository, commit, "before", context));
    let before = before.transpose()?;
    let now = Tree::check_out(&repository, "HEAD", "now", context)?;
    if context.quick {
        report.note("the build from nothing is measured in full runs only");
    } else {
        let mut theirs = before
            .as_ref()
            .map(|before| move || before.build_from_nothing());
        let theirs = theirs.as_mut().map(|theirs| theirs as Run<'_>);
        // once: a build from nothing takes a quarter of an hour of a processor, and differs by half a percent from the next one
        let (clean, theirs) = in_turns(1, &mut || now.build_from_nothing(), theirs)?;
        report.add("clean_now_cpu_s", "s", &clean);
        if let Some(theirs) = theirs {
            report
                .add("clean_ratio", "x", &clean.over(&theirs))
                .against("the tree before: from nothing", "CPU s", theirs.median());
        }
    }
    // whatever a clean build left, both start from a tree that is built
    now.build()?;
    if let Some(before) = &before {
        before.build()?;
    }
    let mut theirs = before
        .as_ref()
        .map(|before| move || before.build_after_change());
    let theirs = theirs.as_mut().map(|theirs| theirs as Run<'_>);
    let rounds = context.pick(CHANGED.len(), 1);
    let (changed, theirs) = in_turns(rounds, &mut || now.build_after_change(), theirs)?;
    report.add("incremental_cpu_s", "s", &changed);
    if let Some(theirs) = theirs {
        report
            .add("after_change_ratio", "x", &changed.over(&theirs))
            .against("the tree before: after a change", "CPU s", theirs.median());
    }
    Ok(report)
}

/// Measures this tree, and in turns with it the one before if there is one.
fn in_turns<'a>(
    rounds: usize,
    now: Run<'a>,
    before: Option<Run<'a>>,
) -> anyhow::Result<(Samples, Option<Samples>)> {
    let mut both = vec![now];
    both.extend(before);
    let mut times = interleave(rounds, &mut both)?.into_iter();
    let now = times.next().context("no tree was built")?;
    Ok((now, times.next()))
}

/// Returns how many packages the lock file names: all that any target and feature could need.
fn locked_packages(repository: &Path) -> anyhow::Result<usize> {
    let path = repository.join("Cargo.lock");
    let lock =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(lock.lines().filter(|line| *line == "[[package]]").count())
}

/// One tree, checked out beside the repository's own, with a target directory of its own. Dropping it removes it from the
/// repository's list of work trees.
struct Tree {
    repository: PathBuf,
    root: PathBuf,
    target: PathBuf,
    /// How many changes were made.
    changes: Cell<usize>,
}

impl Tree {
    fn check_out(
        repository: &Path,
        commit: &str,
        name: &str,
        context: &Context,
    ) -> anyhow::Result<Tree> {
        let root = context.scratch.join(name);
        let tree = Tree {
            repository: repository.to_path_buf(),
            target: context.scratch.join(format!("{name}.target")),
            root,
            changes: Cell::new(0),
        };
        finish(
            Command::new("git")
                .arg("-C")
                .args([repository, Path::new("worktree")])
                .args(["add", "--quiet", "--detach"])
                .args([&tree.root, Path::new(commit)]),
        )
        .context("the experiment needs the repository's history")?;
        // the page is embedded, and built by another compiler
        let page = repository.join("web/dist");
        ensure!(
            page.is_dir(),
            "{} is missing; run 'make web'",
            page.display()
        );
        finish(
            Command::new("cp")
                .arg("-a")
                .args([page, tree.root.join("web/")]),
        )?;
        finish(tree.cargo().arg("fetch"))?;
        Ok(tree)
    }

    fn cargo(&self) -> Command {
        let mut cargo = Command::new("cargo");
        cargo
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .env_remove("CARGO_INCREMENTAL")
            .env_remove("RUSTFLAGS");
        cargo
    }

    /// Builds the command and returns the seconds of CPU time that it took.
    fn build(&self) -> anyhow::Result<f64> {
        let me = std::process::id();
        let before = cpu_times(me)?.children_ms;
        finish(self.cargo().args([
            "build",
            "--release",
            "--locked",
            "--offline",
            "--quiet",
            "-p",
            "floe",
        ]))?;
        Ok((cpu_times(me)?.children_ms - before) / 1e3)
    }

    fn build_from_nothing(&self) -> anyhow::Result<f64> {
        if self.target.exists() {
            fs::remove_dir_all(&self.target)?;
        }
        self.build()
    }

    /// Changes the next of [`CHANGED`] and builds.
    fn build_after_change(&self) -> anyhow::Result<f64> {
        let number = self.changes.get() + 1;
        let service = CHANGED[self.changes.replace(number) % CHANGED.len()];
        let path = file_of(&self.root, service)?;
        let source =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let changed = change(&source, number)
            .with_context(|| format!("{} has no function to change", path.display()))?;
        fs::write(&path, changed)?;
        self.build()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = Command::new("git")
            .arg("-C")
            .args([&self.repository, Path::new("worktree")])
            .args(["remove", "--force"])
            .arg(&self.root)
            .stderr(Stdio::null())
            .status();
    }
}

/// Returns the first file of a service: of its folder in whichever crate the tree keeps it, else of the crate of its name.
fn file_of(root: &Path, service: &str) -> anyhow::Result<PathBuf> {
    let crates = root.join("crates");
    let mut found = Vec::new();
    for one in fs::read_dir(&crates)? {
        found.push(one?.path().join("src").join(service).join("mod.rs"));
    }
    found.retain(|path| path.is_file());
    if found.is_empty() {
        found.push(crates.join(service).join("src/lib.rs"));
    }
    ensure!(
        found.len() == 1,
        "{} crates of {} have a service {service}",
        found.len(),
        root.display()
    );
    Ok(found.remove(0))
}

/// Returns `source` with one more statement in the body of its first method that has a `self`.
fn change(source: &str, number: usize) -> Option<String> {
    let at = source.lines().position(|line| {
        line.contains("fn ")
            && line.contains("self")
            && !line.contains("const fn")
            && line.ends_with('{')
    })?;
    let mut lines: Vec<String> = source.lines().map(str::to_owned).collect();
    lines.insert(at + 1, format!("        std::hint::black_box({number});"));
    lines.push(String::new());
    Some(lines.join("\n"))
}

fn finish(command: &mut Command) -> anyhow::Result<()> {
    let done = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !done.status.success() {
        bail!(
            "{:?}: {}\n{}",
            command.get_program(),
            done.status,
            String::from_utf8_lossy(&done.stderr).trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_goes_into_the_first_method() {
        let source = "fn free() {\n}\nimpl A {\n    fn a(&self) {\n    }\n}\n";
        let changed = change(source, 7).unwrap();
        assert!(changed.contains("fn a(&self) {\n        std::hint::black_box(7);\n    }"));
        assert_eq!(change("fn free() {\n}\n", 1), None);
    }

    #[test]
    fn each_service_that_is_changed_is_in_this_tree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for service in CHANGED {
            let path = file_of(&root, service).unwrap();
            let source = fs::read_to_string(&path).unwrap();
            assert!(change(&source, 1).is_some(), "{}", path.display());
        }
    }
}
