//! A guest that is booted until it answers, and machines that are activated until they do: what the parts of `activate` measure.
use anyhow::{Context as _, ensure};
use floe_api::{ActivateReport, ActivateRequest, Event, RunRequest, Wait};
use floe_testbed::live::Node;
use std::collections::BTreeMap;

/// Longest time until a guest answers, in seconds.
const ANSWER_S_MAX: u64 = 300;

/// What an activation has told.
pub(super) struct Activated {
    pub report: ActivateReport,
    pub stages: BTreeMap<String, f64>,
}

/// Boots a guest until its agent answers. Returns how long that took, in milliseconds.
pub(super) fn boot(node: &Node, image: &str, name: &str) -> anyhow::Result<f64> {
    let request = RunRequest {
        image: image.into(),
        name: Some(name.into()),
        cold: true,
        wait: Wait::Agent,
        wait_timeout_s: Some(ANSWER_S_MAX),
        ..RunRequest::default()
    };
    Ok(node.run(&request, |_| {})?.total_ms)
}

/// Activates a substrate and waits for its guests.
pub(super) fn activate(
    node: &Node,
    substrate: &str,
    request: ActivateRequest,
) -> anyhow::Result<Activated> {
    let wanted = request.machines.max(1) as usize;
    let request = ActivateRequest {
        answer_s: Some(ANSWER_S_MAX),
        ..request
    };
    let mut stages: BTreeMap<String, f64> = BTreeMap::new();
    let outcome = node.client.activate(substrate, &request)?.finish(|event| {
        if let Event::Stage { name, ms } = event {
            *stages.entry(name.clone()).or_default() += ms;
        }
    })?;
    let report = outcome.activated.context("an activation is told")?;
    let running = report.machines.len();
    ensure!(
        running == wanted,
        "{running} of {wanted} run: {:?}",
        report.failed
    );
    Ok(Activated { report, stages })
}
