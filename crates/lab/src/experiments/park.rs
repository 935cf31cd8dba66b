//! `park`: what a parked machine takes of its host's memory, and how long a connection to it waits for its first byte. Compared with
//! the same machine while it runs, and started from its disks.
use anyhow::Context as _;
use floe_api::{RunRequest, StartRequest, StopRequest};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::{Node, drop_caches};
use floe_testbed::wan;
use floe_testbed::web::{first_byte, until_it_answers};
use std::time::Instant;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("park", context.quick);
    let node = Node::start(None, &context.scratch.join("node"), false)?;
    let tiny = Guest::tiny()?;
    node.import_with(&tiny, "tiny", 256 << 20, 1)?;
    memory(context, &node, &mut report)?;
    wakes(context, &node, "tiny", "", &mut report)?;
    if !context.quick {
        let (debian, memory) = wan::guest(context)?;
        node.import_with(&debian, "debian", memory, 1)?;
        wakes(context, &node, "debian", "debian_", &mut report)?;
    }
    report.note(
        "one emulated CPU each; the web server of busybox answers; parked_mb is memory of the node's own process; cold: the kernel holds \
         no file in memory",
    );
    Ok(report)
}

/// Parks several machines and counts what the node's process takes more.
fn memory(context: &Context, node: &Node, report: &mut Report) -> anyhow::Result<()> {
    let names: Vec<String> = (0..context.pick(8, 2)).map(|n| format!("m{n}")).collect();
    // what the node needs once for all of them is there after the first
    run_machine(node, "tiny", "first")?;
    node.client
        .park("first", &Default::default())?
        .finish(|_| ())?;
    node.client.remove_machine("first", true)?;
    let (mut runs, mut parked) = (Samples::default(), Samples::default());
    let mut before = node_mb(node)?;
    for name in &names {
        run_machine(node, "tiny", name)?;
        let usage = node.client.usage(&Default::default())?.machines;
        let own = usage.iter().find(|machine| machine.name == *name);
        let own = own.and_then(|machine| machine.own_bytes);
        runs.push(own.context("the kernel does not tell what QEMU uses")? as f64 / 1e6);
        node.client
            .park(name, &Default::default())?
            .finish(|_| ())?;
        if node.machine(name)?.pid.is_some() {
            report.fail(format!("{name} is parked and has a QEMU"));
        }
        let now = node_mb(node)?;
        parked.push(now - before);
        before = now;
    }
    for name in &names {
        node.client.remove_machine(name, true)?;
    }
    report
        .add("parked_mb", "MB", &parked)
        .against("its QEMU while it runs", "MB", runs.median());
    Ok(())
}

/// Parks a machine again and again, and connects to it.
fn wakes(
    context: &Context,
    node: &Node,
    image: &str,
    prefix: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let port = run_machine(node, image, image)?;
    let (mut wake, mut later, mut park) =
        (Samples::default(), Samples::default(), Samples::default());
    let mut cold = Samples::default();
    for _ in 0..context.pick(15, 3) {
        let began = Instant::now();
        node.client
            .park(image, &Default::default())?
            .finish(|_| ())?;
        park.push(ms(began));
        let began = Instant::now();
        first_byte(port)?.context("the connection was ended")?;
        wake.push(ms(began));
        let began = Instant::now();
        first_byte(port)?.context("the connection was ended")?;
        later.push(ms(began));
        node.client
            .park(image, &Default::default())?
            .finish(|_| ())?;
        drop_caches()?;
        let began = Instant::now();
        first_byte(port)?.context("the connection was ended")?;
        cold.push(ms(began));
    }
    let stop = StopRequest {
        now: true,
        ..StopRequest::default()
    };
    node.client.stop(image, &stop)?;
    let began = Instant::now();
    node.client
        .start(image, &StartRequest::default())?
        .finish(|_| ())?;
    until_it_answers(port)?;
    let boot = ms(began);
    report
        .add(&format!("{prefix}wake_ms_p50"), "ms", &wake)
        .against("started from its disks, until it answers", "ms", boot);
    report.add(&format!("{prefix}cold_wake_ms_p50"), "ms", &cold);
    report.add(&format!("{prefix}awake_ms_p50"), "ms", &later);
    report.add(&format!("{prefix}park_ms_p50"), "ms", &park);
    node.client.remove_machine(image, true)?;
    Ok(())
}

/// Boots a machine and waits until its web server answers. Returns the port of the host that leads there.
fn run_machine(node: &Node, image: &str, name: &str) -> anyhow::Result<u16> {
    let request = RunRequest {
        image: image.into(),
        name: Some(name.into()),
        forwards: vec!["0:80".parse().map_err(anyhow::Error::msg)?],
        ..RunRequest::default()
    };
    let outcome = node.run(&request, |_| {})?;
    let machine = outcome.machine.context("a run answers with its machine")?;
    let port = machine
        .forwards
        .first()
        .context("it has a forward")?
        .host_port;
    until_it_answers(port)?;
    Ok(port)
}

fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

/// Returns the memory of the node's process in MB, its share of what it has in common with others included.
fn node_mb(node: &Node) -> anyhow::Result<f64> {
    let pid = node.client.node()?.pid;
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: f64 = kib.context("smaps_rollup tells Pss")?.parse()?;
    Ok(kib * 1024.0 / 1e6)
}
