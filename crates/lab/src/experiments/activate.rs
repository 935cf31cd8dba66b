//! `activate`: from the call to the first instruction of a machine from the pool's memory, and to its guest's answer with the network in
//! place. Compared with a cold boot of the same guest until it answers.
use super::dock::dock;
use super::live::Node;
use super::wan;
use crate::harness::{Context, Report, Samples};
use anyhow::{Context as _, ensure};
use floe_api::{ActivateRequest, Event, RunRequest, Wait};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time for a waiting QEMU to start between two activations.
const STANDBY_TIME: Duration = Duration::from_secs(3);
/// Longest time until a guest answers, in seconds.
const ANSWER_S_MAX: u64 = 300;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("activate", context.quick);
    let (guest, memory) = wan::guest(context)?;
    let node = Node::start(None, &context.scratch.join("node"), true)?;
    node.import_with(&guest, "guest", memory, 1)?;
    let mut boots = Samples::default();
    for round in 0..context.pick(3, 1) {
        let name = format!("boot{round}");
        let request = RunRequest {
            image: "guest".into(),
            name: Some(name.clone()),
            cold: true,
            wait: Wait::Agent,
            wait_timeout_s: Some(ANSWER_S_MAX),
            ..RunRequest::default()
        };
        boots.push(node.run(&request, |_| {})?.total_ms);
        node.remove(&name)?;
    }
    node.boot("guest", "origin")?;
    dock(&node, "origin", "ready")?;
    node.remove("origin")?;
    let (mut first, mut ready) = (Samples::default(), Samples::default());
    let mut stages: BTreeMap<String, Samples> = BTreeMap::new();
    for round in 0..=context.pick(15, 3) {
        // what the last one has unpacked is not to be found on the disk: its chunks come from the pool's memory
        node.client.cache_gc()?;
        let name = format!("m{round}");
        let request = ActivateRequest {
            name: Some(name.clone()),
            answer_s: Some(ANSWER_S_MAX),
            ..ActivateRequest::default()
        };
        let mut parts: BTreeMap<String, f64> = BTreeMap::new();
        let outcome = node.client.activate("ready", &request)?.finish(|event| {
            if let Event::Stage { name, ms } = event {
                *parts.entry(name.clone()).or_default() += ms;
            }
        })?;
        let activated = outcome.activated.context("an activation is told")?;
        ensure!(activated.from_memory, "it came from the disk");
        let machine = activated.machines.first().context("a machine runs")?;
        let network_ms = machine.network_ms.context("its guest answers")?;
        // the first one has no QEMU that waits for it
        if round > 0 {
            first.push(machine.first_ms);
            ready.push(network_ms);
            for (stage, ms) in parts {
                stages.entry(stage).or_default().push(ms);
            }
        }
        node.remove(&name)?;
        std::thread::sleep(STANDBY_TIME);
    }
    let alternative = "a cold boot until its guest answers";
    report
        .add("first_ms_p50", "ms", &first)
        .against(alternative, "ms", boots.median());
    report
        .add("ready_ms_p50", "ms", &ready)
        .against(alternative, "ms", boots.median());
    report.add_value("boot_over_ready", "x", boots.median() / ready.median());
    for (stage, times) in &stages {
        report.add(
            &format!("stage_{}_ms", stage.replace(' ', "_")),
            "ms",
            times,
        );
    }
    super::cluster_ready::add(context, &mut report)?;
    report.note("one private machine from the pool's memory on this host; ready: its agent has answered, at the size that it was docked with");
    Ok(report)
}
