//! `distcc`: a compilation that its parent hands out in small pieces, on clones that are made for it and end with it, beside the parent and
//! on another host; compared with clones that are there all the time, and with one machine that does all of it (SnowFlock, section 5.1).
use super::apps::{
    JOB_MAX, LOOK_EVERY, ROUNDS, SETTLE_MAX, Still, Took, add_took, capture_warm, on_one, only,
    quiet, run_warm,
};
use anyhow::{Context as _, ensure};
use floe_testbed::cluster::{host_name, join};
use floe_testbed::harness::{Context, Report, Samples, interleave};
use floe_testbed::link::Segment;
use floe_testbed::live::Node;
use std::time::Instant;

/// The machine that has compiling clones all the time; the next one makes them when they are needed, and the last one has none.
const TEAM: &str = "team";
const PARENT: &str = "web";
const ALONE: &str = "alone";
/// Compiles the project (Lua) once. Clones get preprocessed files from their parent, which links.
const COMPILE: &str = "apps compile 1";

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("distcc", context.quick);
    let rounds = context.pick(ROUNDS, 1);
    let count = std::thread::available_parallelism()?.get();
    let took = here(context, count, rounds)?;
    add_took(&mut report, "", &took);
    if !context.quick {
        let elsewhere = elsewhere(context, count, rounds)?;
        report.add("elsewhere_s", "s", &elsewhere).against(
            "on clones beside their parent",
            "s",
            took.clones.median(),
        );
    }
    report.note(format!(
        "{count} clones of one CPU and 1 GB on {count} cores, which compile for their parent and are made by its own call; from the command in \
         the parent until they have ended. The alternative: clones that have compiled the same before; speedup: over one machine without \
         clones, which has, too, once. What was compiled must do what it did when the guest compiled it alone. elsewhere: the clones on another \
         host, a network namespace behind a gigabit link, with the same processors"
    ));
    Ok(report)
}

/// Measures clones on their parent's host.
fn here(context: &Context, count: usize, rounds: usize) -> anyhow::Result<Took> {
    let node = Node::start(None, &context.scratch.join("node"), false)?;
    capture_warm(&node, &[COMPILE.to_owned()])?;
    run_warm(&node, ALONE, false, count)?;
    for parent in [TEAM, PARENT] {
        run_warm(&node, parent, true, count)?;
    }
    // what is measured was done once before by each of them, so that nothing has to be fetched, and no page is copied on write
    node.tell(ALONE, COMPILE, JOB_MAX)?;
    node.tell(PARENT, COMPILE, JOB_MAX)?;
    node.tell(TEAM, &format!("apps helpers {count}"), JOB_MAX)?;
    stored(&node)?;
    let mut on_team = || {
        let _still = Still::but(&node, &[TEAM.to_owned()])?;
        let command = format!("{COMPILE} $(cat /tmp/helpers)");
        Ok(node.tell(TEAM, &command, JOB_MAX)?.as_secs_f64())
    };
    let mut on_clones = || {
        let still = Still::but(&node, &[PARENT.to_owned()])?;
        let took = node.tell(PARENT, &on_clones_of(count), JOB_MAX)?;
        drop(still);
        // the three machines, and the team's clones
        quiet(&node, PARENT, 3 + count)?;
        Ok(took.as_secs_f64())
    };
    on_team()?;
    let both = interleave(rounds, &mut [&mut on_team, &mut on_clones])?;
    Ok(Took {
        zero_cost: both[0].clone(),
        clones: both[1].clone(),
        alone: on_one(&node, ALONE, COMPILE)?,
    })
}

/// The command that compiles on so many clones, which it makes.
fn on_clones_of(count: usize) -> String {
    format!("apps compile-clones {count} 1")
}

/// Measures clones on another host than their parent's: both are network namespaces, with a gigabit link between them.
fn elsewhere(context: &Context, count: usize, rounds: usize) -> anyhow::Result<Samples> {
    let segment = Segment::new(2).context("hosts of our own need root")?;
    let mut nodes = Vec::new();
    for (number, hosts) in [host_name(1), "here".into()].into_iter().enumerate() {
        segment.as_gigabit(number)?;
        let home = context.scratch.join(format!("host{number}"));
        let flags = ["--guest-hosts", &hosts];
        nodes.push(Node::start_with(Some(segment.host(number)), &home, &flags)?);
    }
    join(&segment, &nodes)?;
    let node = &nodes[0];
    capture_warm(node, &[])?;
    run_warm(node, PARENT, true, count)?;
    node.tell(PARENT, COMPILE, JOB_MAX)?;
    let mut seconds = Samples::default();
    for _ in 0..rounds {
        let took = node.tell(PARENT, &on_clones_of(count), JOB_MAX)?;
        seconds.push(took.as_secs_f64());
        only(&nodes[1], 0)?;
    }
    Ok(seconds)
}

/// Waits until clones that stay are stored, so that storing them disturbs no measurement.
fn stored(node: &Node) -> anyhow::Result<()> {
    let until = Instant::now() + SETTLE_MAX;
    loop {
        let machines = node.client.machines()?.machines;
        let mut clones = machines
            .iter()
            .filter_map(|machine| machine.cloned.as_ref());
        if clones.all(|cloned| cloned.settled) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "clones are not stored");
        std::thread::sleep(LOOK_EVERY);
    }
}
