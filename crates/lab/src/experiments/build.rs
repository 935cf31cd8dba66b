//! `build`: what `make build` costs, from nothing and after a change of one service, against the same in the tree before
//! the command was split into crates and the node into services. All trees are checked out of this repository's history. What is
//! compared is the CPU time of the compilation, which other work on the host hardly changes.
use crate::harness::{Context, Report, Samples, cpu_times, interleave};
use anyhow::{Context as _, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The last commit in which node, hub and command line were one crate.
const BEFORE: &str = "0689ef1e000f";
/// The commit that completed the split. Later trees do more, which takes time of its own.
const SPLIT: &str = "a36adb82f454";
/// Where that tree and this one keep the services of a node.
const SERVICES_BEFORE: &str = "crates/floe/src/node";
const SERVICES_NOW: &str = "crates/node/src";
/// Files of services that both trees have. One of them is changed before each incremental build.
const CHANGED: [&str; 5] = [
    "network/mod.rs",
    "fork/mod.rs",
    "guest/mod.rs",
    "cluster/mod.rs",
    "placement/mod.rs",
];

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let mut report = Report::new("build", context.quick);
    let locked = locked_packages(&repository)?;
    report.add_value("locked_packages", "packages", locked as f64);
    let before = Tree::check_out(&repository, BEFORE, SERVICES_BEFORE, context)?;
    let now = Tree::check_out(&repository, "HEAD", SERVICES_NOW, context)?;
    if !context.quick {
        let split = Tree::check_out(&repository, SPLIT, SERVICES_NOW, context)?;
        let times = interleave(
            2,
            &mut [&mut || split.build_from_nothing(), &mut || {
                before.build_from_nothing()
            }],
        )?;
        let [split, before] = pair(times)?;
        report
            .add("clean_ratio", "x", &split.over(&before))
            .against("one crate: from nothing", "CPU s", before.median());
        let clean: Samples = [now.build_from_nothing()?].into_iter().collect();
        report.add("clean_now_cpu_s", "s", &clean);
    }
    // whatever a clean build left, both start from a tree that is built
    now.build()?;
    before.build()?;
    let (mut now_round, mut before_round) = (0, 0);
    let times = interleave(
        context.pick(CHANGED.len(), 1),
        &mut [&mut || now.build_after_change(&mut now_round), &mut || {
            before.build_after_change(&mut before_round)
        }],
    )?;
    let [now, before] = pair(times)?;
    report
        .add("incremental_ratio", "x", &before.over(&now))
        .against("one crate: after a change", "CPU s", before.median());
    report.add("incremental_cpu_s", "s", &now);
    if context.quick {
        report.note("the build from nothing is measured in full runs only");
    }
    Ok(report)
}

/// Returns how many packages the lock file names: all that any target and feature could need.
fn locked_packages(repository: &Path) -> anyhow::Result<usize> {
    let path = repository.join("Cargo.lock");
    let lock =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(lock.lines().filter(|line| *line == "[[package]]").count())
}

fn pair(times: Vec<Samples>) -> anyhow::Result<[Samples; 2]> {
    times
        .try_into()
        .map_err(|_| anyhow::anyhow!("two trees were built"))
}

/// One tree, checked out beside the repository's own, with a target directory of its own. Dropping it removes it from the
/// repository's list of work trees.
struct Tree {
    repository: PathBuf,
    root: PathBuf,
    target: PathBuf,
    services: PathBuf,
}

impl Tree {
    fn check_out(
        repository: &Path,
        commit: &str,
        services: &str,
        context: &Context,
    ) -> anyhow::Result<Tree> {
        let root = context.scratch.join(commit);
        let tree = Tree {
            repository: repository.to_path_buf(),
            target: context.scratch.join(format!("{commit}.target")),
            services: root.join(services),
            root,
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

    /// Changes the next of [`CHANGED`] and builds. `round` counts the calls.
    fn build_after_change(&self, round: &mut usize) -> anyhow::Result<f64> {
        let path = self.services.join(CHANGED[*round % CHANGED.len()]);
        *round += 1;
        let source = fs::read_to_string(&path)
            .with_context(|| format!("{} is a service in both trees", path.display()))?;
        let changed = change(&source, *round)
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
}
