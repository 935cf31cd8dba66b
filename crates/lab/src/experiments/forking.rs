//! How the parts of `fork`, and other experiments with forks, start a parent, fork it, and end its clones.
use anyhow::Context as _;
use floe_api::{CloneState, ForkReport, ForkRequest, KillRequest, Outcome, RunRequest};
use floe_testbed::live::Node;
use std::time::{Duration, Instant};

/// How long a guest may take to fill memory, emulated.
pub(super) const FILL_MAX: Duration = Duration::from_secs(600);
/// Longest time for a fork to be stored and forgotten.
pub(super) const FORGET_MAX: Duration = Duration::from_secs(120);
/// Time between two forks: a fork without clones is dropped within a second, and the host is quiet again.
pub(super) const BETWEEN: Duration = Duration::from_secs(2);

/// Resumes an image and waits until its shell answers.
pub(super) fn start(node: &Node, image: &str, name: &str) -> anyhow::Result<()> {
    let request = RunRequest {
        image: image.into(),
        name: Some(name.into()),
        ..RunRequest::default()
    };
    node.run(&request, |_| {})?;
    node.ask(name, FILL_MAX)?;
    Ok(())
}

/// Forks a machine to these hosts, and fails unless all clones run.
pub(super) fn fork_to(
    node: &Node,
    parent: &str,
    clones: u32,
    hosts: Vec<String>,
) -> anyhow::Result<Outcome> {
    let request = ForkRequest {
        clones,
        // only the experiment's hosts are on their network
        insecure: !hosts.is_empty(),
        hosts,
        ..ForkRequest::default()
    };
    let outcome = node.client.fork(parent, &request)?.finish(|_| {})?;
    let report = told(&outcome)?;
    let failed = report
        .clones
        .iter()
        .find(|clone| clone.state != CloneState::Running);
    match failed {
        None => Ok(outcome),
        Some(clone) => anyhow::bail!("{} does not run: {}", clone.name, clone.detail),
    }
}

/// Returns what a fork has told of its clones.
pub(super) fn told(outcome: &Outcome) -> anyhow::Result<&ForkReport> {
    outcome.fork.as_ref().context("a fork tells its clones")
}

/// Ends all clones and waits until the fork is stored or forgotten.
pub(super) fn end(node: &Node, parent: &str) -> anyhow::Result<()> {
    let killed = node.client.kill(parent, &KillRequest { all: true })?;
    anyhow::ensure!(killed.failed.is_empty(), "{:?}", killed.failed);
    let until = Instant::now() + FORGET_MAX;
    // the parent's disks may be based on the last fork's image: at most that one is left
    let forks = || -> anyhow::Result<usize> {
        let images = node.client.images()?.images;
        let fork = |image: &&floe_api::ImageSummary| image.labels.contains_key("floe.fork");
        Ok(images.iter().filter(fork).count())
    };
    std::thread::sleep(BETWEEN);
    while forks()? > 1 {
        anyhow::ensure!(Instant::now() < until, "forks are not forgotten");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
