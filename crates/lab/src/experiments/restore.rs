//! `restore`: the time from `run` to a running guest, with the image in the local store and the caches warm. Compared
//! with QEMU's own way, a migration stream from a file in the page cache.
use floe_api::{Event, RunRequest};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::Node;
use floe_testbed::plain::{Hardware, PlainQemu};
use floe_testbed::wan;
use std::collections::BTreeMap;
use std::time::Duration;

/// The stage of `run` in which QEMU starts, which is not floe's own time.
const QEMU_STAGE: &str = "qemu start";
/// Time for a standby QEMU to start between two runs.
const STANDBY_TIME: Duration = Duration::from_secs(3);
/// Longest time for a restored guest to answer.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("restore", context.quick);
    let (guest, memory) = wan::guest(context)?;
    let home = context.scratch.join("node");
    let rounds = context.pick(15, 3);

    let node = Node::start(None, &home, false)?;
    node.import(&guest, "guest", memory)?;
    node.boot("guest", "origin")?;
    node.capture("origin", "booted", true, 0)?;
    let hardware = Hardware::new(&guest, memory, 2);
    let mut plain = PlainQemu::boot(&context.scratch.join("plain"), hardware)?;
    let state = context.scratch.join("state");
    plain.save(&state)?;
    drop(plain);

    let mut cold = Restores::default();
    let mut qemus = Samples::default();
    for round in 0..=rounds {
        let run = restore(&node, round)?;
        let qemu = PlainQemu::load(&context.scratch.join("plain"), hardware, &state)?;
        // The first run loads everything into the cache.
        if round > 0 {
            cold.push(&run);
            qemus.push(qemu.started.as_secs_f64() * 1000.0);
        }
    }
    drop(node);
    let node = Node::start(None, &home, true)?;
    let mut standby = Restores::default();
    for round in 0..=rounds {
        let run = restore(&node, round)?;
        if round > 0 {
            standby.push(&run);
        }
        std::thread::sleep(STANDBY_TIME);
    }
    let alternative = "QEMU -incoming of a migration file, started to running";
    report
        .add("own_ms_p50", "ms", &cold.own)
        .against(alternative, "ms", qemus.median());
    report
        .add("total_ms_p50", "ms", &cold.total)
        .against(alternative, "ms", qemus.median());
    report
        .add("standby_ms_p50", "ms", &standby.total)
        .against(alternative, "ms", qemus.median());
    report.add("answer_ms_p50", "ms", &cold.answered);
    for (stage, times) in &cold.stages {
        report.add(
            &format!("stage_{}_ms", stage.replace(' ', "_")),
            "ms",
            times,
        );
    }
    report.note("own: the total less the stage in which QEMU starts; answer: from the command to the shell's answer");
    Ok(report)
}

/// Times of restores, in milliseconds.
#[derive(Default)]
struct Restores {
    own: Samples,
    total: Samples,
    answered: Samples,
    stages: BTreeMap<String, Samples>,
}

struct Restored {
    total_ms: f64,
    answered_ms: f64,
    stages: BTreeMap<String, f64>,
}

impl Restores {
    fn push(&mut self, run: &Restored) {
        self.total.push(run.total_ms);
        self.own
            .push(run.total_ms - run.stages.get(QEMU_STAGE).copied().unwrap_or(0.0));
        self.answered.push(run.answered_ms);
        for (stage, ms) in &run.stages {
            self.stages.entry(stage.clone()).or_default().push(*ms);
        }
    }
}

/// Runs the image once, checks that it is alive, and ends it.
fn restore(node: &Node, round: usize) -> anyhow::Result<Restored> {
    let name = format!("r{round}");
    let mut stages: BTreeMap<String, f64> = BTreeMap::new();
    let request = RunRequest {
        image: "booted".into(),
        name: Some(name.clone()),
        ..RunRequest::default()
    };
    let outcome = node.run(&request, |event| {
        if let Event::Stage { name, ms } = event {
            *stages.entry(name.clone()).or_default() += ms;
        }
    })?;
    let answered_ms = outcome.total_ms + node.ask(&name, ANSWER_MAX)?.as_secs_f64() * 1000.0;
    node.remove(&name)?;
    Ok(Restored {
        total_ms: outcome.total_ms,
        answered_ms,
        stages,
    })
}
