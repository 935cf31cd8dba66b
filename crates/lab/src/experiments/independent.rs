//! `independent`: a machine of a hub is made independent while its guest writes and reads its disk: how fast that is before and
//! meanwhile, and what the machine still needs from elsewhere afterwards.
use super::live::{self, Hub, Node};
use crate::guest::Guest;
use crate::harness::{Context, Report, Samples};
use anyhow::{Context as _, bail};
use floe_api::{Independence, IndependenceState, IndependentRequest, RunRequest};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Memory of the guest in bytes.
const MEMORY_BYTES: u64 = 768 << 20;
/// Size of its disk in bytes.
const DISK_BYTES: u64 = 256 << 20;
/// What it writes and then reads at a time, in MiB.
const PIECE_MIB: u64 = 16;
/// Longest time for a guest to answer, and for an image to come.
const PATIENCE: Duration = Duration::from_secs(600);
/// Port of the hub.
const PORT: u16 = 18_790;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("independent", context.quick);
    let guest = Guest::tiny()?;
    let hub_dir = context.scratch.join("hub");
    let hub = Hub::start(None, &hub_dir, Ipv4Addr::LOCALHOST, PORT)?;
    let random_mb = context.pick(384, 96);
    publish(context, &guest, &hub, random_mb)?;

    let node = Node::start(None, &context.scratch.join("node"), false)?;
    let request = RunRequest {
        image: hub.address("live"),
        name: Some("web".into()),
        no_trace: true,
        ..RunRequest::default()
    };
    node.run(&request, |_| {})?;
    // what is measured is touched once before
    work(&node)?;
    let (mut before, mut during, mut after) =
        (Samples::default(), Samples::default(), Samples::default());
    let rounds = context.pick(12, 4);
    for _ in 0..rounds {
        before.push(work(&node)?);
    }
    let ask = |wait: bool| -> anyhow::Result<()> {
        let request = IndependentRequest {
            wait,
            ..Default::default()
        };
        node.client.independent("web", &request)?.finish(|_| {})?;
        Ok(())
    };
    let began = Instant::now();
    ask(false)?;
    loop {
        let speed = work(&node)?;
        // a piece that began or ended after the last byte came is not one that was disturbed throughout
        if stands(&node)?.state == IndependenceState::Whole {
            break;
        }
        during.push(speed);
        if began.elapsed() > PATIENCE {
            bail!("the image did not come within {PATIENCE:?}");
        }
    }
    ask(true)?;
    let took_s = began.elapsed().as_secs_f64();
    for _ in 0..rounds {
        after.push(work(&node)?);
    }
    let left = stands(&node)?.left_bytes;
    // the hub goes: whatever the guest reads now is here
    drop(hub);
    let all = "echo 3 > /proc/sys/vm/drop_caches; cat /dev/vda /dev/shm/random > /dev/null";
    if let Err(error) = node.tell("web", all, PATIENCE) {
        report.fail(format!("the guest cannot read all of its state: {error:#}"));
    }
    if during.is_empty() {
        bail!("the image came before the guest had written and read a piece");
    }
    report
        .add_value("during_ratio", "", during.median() / before.median())
        .against("MB/s before", "MB/s", before.median());
    report.add_value("left_bytes", "B", left as f64);
    report.add("during_mb_s", "MB/s", &during);
    report.add("before_mb_s", "MB/s", &before);
    report.add("after_mb_s", "MB/s", &after);
    report.add_value("copied_s", "s", took_s);
    report.note(format!(
        "the tiny guest, one emulated CPU, hub and node on one host; {random_mb} MB of random bytes in its memory; {PIECE_MIB} MiB of its disk \
         written with fsync, then read, again and again; the rate is the default"
    ));
    Ok(report)
}

/// Publishes a captured guest with so many MB of random bytes in its memory.
fn publish(context: &Context, guest: &Guest, hub: &Hub, random_mb: u64) -> anyhow::Result<()> {
    let home = context.scratch.join("origin");
    let origin = Node::start(None, &home, false)?;
    let disk = home.join("disk.raw");
    std::fs::File::create(&disk)?.set_len(DISK_BYTES)?;
    let request = floe_api::ImportRequest {
        disks: vec![disk.display().to_string()],
        kernel: Some(guest.kernel().display().to_string()),
        initrd: Some(guest.initrd().display().to_string()),
        cmdline: Some(guest.cmdline()?),
        name: Some("guest".into()),
        memory_bytes: Some(MEMORY_BYTES),
        cpus: Some(1),
        ..Default::default()
    };
    origin.client.import(&request)?.finish(|_| {})?;
    origin.boot("guest", "one")?;
    let fill = live::write_distinct(random_mb, "/dev/shm/random");
    origin.tell("one", &fill, PATIENCE)?;
    origin.capture("one", "live", true, 0)?;
    origin.publish("live", hub)
}

/// Has the guest write a piece of its disk and read it. Returns MB/s.
fn work(node: &Node) -> anyhow::Result<f64> {
    let line = format!(
        "dd if=/dev/zero of=/dev/vda bs=64k count={count} conv=fsync 2>/dev/null && echo 3 > /proc/sys/vm/drop_caches && \
         dd if=/dev/vda of=/dev/null bs=64k count={count} 2>/dev/null",
        count = PIECE_MIB * 16
    );
    let time = node.tell("web", &line, PATIENCE)?;
    Ok(2.0 * (PIECE_MIB << 20) as f64 / 1e6 / time.as_secs_f64())
}

fn stands(node: &Node) -> anyhow::Result<Independence> {
    node.machine("web")?
        .independence
        .context("it was asked for")
}
