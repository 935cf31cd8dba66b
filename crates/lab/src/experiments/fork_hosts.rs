//! A part of `fork`, after SnowFlock's figure 2: a Debian of 1 GB gets a clone on each of 1, 2 and 4 other hosts, until the last of them
//! has answered a web request. Compared with a guest that is stopped, written to a file, sent to each of them over the parent's link, and
//! loaded there by QEMU alone. The hosts are network namespaces behind gigabit links, and share this machine's processors.
use super::fork_answers::lead_to;
use super::forking::{end, start, told};
use anyhow::{Context as _, ensure};
use floe_api::{CloneState, ForkReport, ForkRequest, MulticastUse};
use floe_testbed::cluster::{host_name, join};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::Segment;
use floe_testbed::live::{Node, at_once};
use floe_testbed::plain::{Hardware, PlainQemu};
use floe_testbed::wan;
use floe_testbed::web::until_it_answers;
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How many other hosts at once.
const HOSTS: [usize; 3] = [1, 2, 4];
/// Time between two forks: the hosts are quiet again.
const BETWEEN: Duration = Duration::from_secs(2);

/// What was measured of so many hosts.
#[derive(Default)]
struct Measured {
    /// Until the last one answered, ms.
    answered: Samples,
    /// What the parent's host has sent until then, MB.
    sent: Samples,
}

/// Adds the figures to those of `fork`. A quick run has one other host.
pub(super) fn add(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let numbers = context.pick(&HOSTS[..], &HOSTS[..1]);
    let most = numbers[numbers.len() - 1];
    let segment = Segment::new(most + 1).context("hosts of our own need root")?;
    for number in 0..=most {
        segment.as_gigabit(number)?;
    }
    let ours = clones(context, &segment, numbers)?;
    let theirs = copies(context, &segment, numbers)?;
    for ((n, ours), theirs) in numbers.iter().zip(&ours).zip(&theirs) {
        let alternative = "QEMU's stop, and the state sent to each host and loaded there";
        report
            .add(&format!("hosts_answer_ms_n{n}"), "ms", &ours.answered)
            .against(alternative, "ms", theirs.answered.median());
        report
            .add(&format!("hosts_sent_mb_n{n}"), "MB", &ours.sent)
            .against(alternative, "MB", theirs.sent.median());
        let ratio = theirs.answered.median() / ours.answered.median();
        report.add_value(&format!("suspend_over_fork_n{n}"), "x", ratio);
    }
    report.note(
        "hosts_*: two CPUs; one clone on each of so many other hosts, network namespaces behind gigabit links that share the processors; \
         each host has forgotten what earlier clones have fetched; sent: all bytes that left the parent's host, headers included",
    );
    Ok(())
}

/// Measures clones on other hosts.
fn clones(
    context: &Context,
    segment: &Segment,
    numbers: &[usize],
) -> anyhow::Result<Vec<Measured>> {
    let (guest, memory) = wan::guest(context)?;
    let count = numbers[numbers.len() - 1] + 1;
    let nodes = nodes_of(context, segment, "fork-host", count)?;
    let first = &nodes[0];
    first.import(&guest, "guest", memory)?;
    first.boot("guest", "origin")?;
    first.capture("origin", "ready", true, 0)?;
    first.remove("origin").ok();
    start(first, "ready", "web")?;
    let mut all = Vec::new();
    for &n in numbers {
        let mut measured = Measured::default();
        for _ in 0..context.pick(4, 1) {
            for node in &nodes[1..] {
                node.client.cache_gc()?;
            }
            std::thread::sleep(BETWEEN);
            fork_once(segment, &nodes, n, &mut measured)?;
            end(first, "web")?;
        }
        all.push(measured);
    }
    Ok(all)
}

/// Starts a node on each of so many hosts of a segment, and puts them into one cluster. Their folders' names begin like this.
pub(super) fn nodes_of(
    context: &Context,
    segment: &Segment,
    name: &str,
    count: usize,
) -> anyhow::Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for number in 0..count {
        let home = context.scratch.join(format!("{name}{number}"));
        nodes.push(Node::start(Some(segment.host(number)), &home, false)?);
    }
    join(segment, &nodes)?;
    Ok(nodes)
}

/// Forks the machine `web` of the first node to so many of the others, one clone to each. Fails unless all of them run.
pub(super) fn fork_away(
    nodes: &[Node],
    n: usize,
    multicast: MulticastUse,
) -> anyhow::Result<ForkReport> {
    let request = ForkRequest {
        clones: n as u32,
        hosts: (1..=n).map(host_name).collect(),
        multicast,
        ..ForkRequest::default()
    };
    let outcome = nodes[0].client.fork("web", &request)?.finish(|_| {})?;
    let report = told(&outcome)?;
    for clone in &report.clones {
        ensure!(
            clone.state == CloneState::Running,
            "{} does not run: {}",
            clone.name,
            clone.detail
        );
    }
    Ok(report.clone())
}

/// Waits until a clone on one of the first `n` other hosts has answered a web request there. Returns the host's number.
pub(super) fn answers(
    segment: &Segment,
    nodes: &[Node],
    n: usize,
    clone: &str,
) -> anyhow::Result<usize> {
    let is_there = |host: &usize| nodes[*host].machine(clone).is_ok();
    let host = (1..=n).find(is_there);
    let host = host.with_context(|| format!("{clone} is on none of the hosts"))?;
    let port = lead_to(&nodes[host], clone)?;
    segment.host(host).run(|| until_it_answers(port))??;
    Ok(host)
}

/// Forks the machine `web` of the first node to so many of the others, and measures that.
fn fork_once(
    segment: &Segment,
    nodes: &[Node],
    n: usize,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let before = segment.sent_bytes(0)?;
    let began = Instant::now();
    let clones = fork_away(nodes, n, MulticastUse::Auto)?.clones;
    let times = at_once(clones.len(), |number| {
        answers(segment, nodes, n, &clones[number].name)?;
        Ok(began.elapsed().as_secs_f64() * 1000.0)
    })?;
    measured
        .answered
        .push(times.into_iter().fold(0.0, f64::max));
    measured
        .sent
        .push((segment.sent_bytes(0)? - before) as f64 / 1e6);
    Ok(())
}

/// Measures QEMU alone.
fn copies(
    context: &Context,
    segment: &Segment,
    numbers: &[usize],
) -> anyhow::Result<Vec<Measured>> {
    let (guest, memory) = wan::guest(context)?;
    let hardware = Hardware::new(&guest, memory, 2);
    let mut qemu = PlainQemu::boot(&context.scratch.join("plain-hosts"), hardware)?;
    let mut all = Vec::new();
    for &n in numbers {
        let mut measured = Measured::default();
        for round in 0..context.pick(2, 1) {
            let dir = context.scratch.join(format!("sent{n}-{round}"));
            let before = segment.sent_bytes(0)?;
            let copies = qemu.copies_of(&dir, hardware, n, None, |number, state| {
                let there = state.with_file_name(format!("state{number}"));
                send(segment, number + 1, state, &there)?;
                Ok(there)
            })?;
            measured.answered.push(copies.answered.quantile(1.0));
            measured
                .sent
                .push((segment.sent_bytes(0)? - before) as f64 / 1e6);
        }
        all.push(measured);
    }
    Ok(all)
}

/// Sends a file from the first host to another one.
fn send(segment: &Segment, to_host: usize, from: &Path, to: &Path) -> anyhow::Result<()> {
    let own = (segment.address(0), 0);
    let listener = segment.host(0).run(|| TcpListener::bind(own))??;
    let at = listener.local_addr()?;
    let mut there = segment.host(to_host).run(|| TcpStream::connect(at))??;
    let (mut here, _) = listener.accept()?;
    std::thread::scope(|scope| {
        let sends = scope.spawn(move || std::io::copy(&mut File::open(from)?, &mut here));
        std::io::copy(&mut there, &mut File::create(to)?)?;
        let sent = sends.join();
        sent.map_err(|_| anyhow::anyhow!("the thread that sends died"))??;
        Ok(())
    })
}
