//! `independent`: a machine of a hub is made independent while its guest writes and reads its disk: how fast that is before and
//! meanwhile, what the machine still needs from elsewhere afterwards, and how much of its disk still lies over its image once what it had
//! written is merged. Then how fast it is while what it has written is merged again.
use anyhow::{Context as _, bail};
use floe_api::{Independence, IndependenceState, IndependentRequest, RunRequest};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::{self, Hub, Node};
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Memory of the guest in bytes.
const MEMORY_BYTES: u64 = 768 << 20;
/// Size of its disk in MiB. It is full of random bytes; the guest writes in its first half, and reads in both.
const DISK_MIB: u64 = 256;
/// What it writes and then reads at a time, in MiB.
const PIECE_MIB: u64 = 16;
/// Places for such a piece, one after the other, in each half of the disk.
const PLACES: usize = 4;
/// The checksum of the second half, as the guest has it.
const SUM: &str = "/dev/shm/sum";
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
    for turn in 0..PLACES {
        work(&node, turn)?;
    }
    let [mut before, mut during, mut after, mut merging]: [Samples; 4] = Default::default();
    let rounds = context.pick(12, 4);
    for turn in 0..rounds {
        before.push(work(&node, turn)?);
    }
    let began = Instant::now();
    ask(&node, false)?;
    loop {
        let speed = work(&node, during.len())?;
        // a piece that began or ended after the last byte came is not one that was disturbed throughout
        if stands(&node)?.state == IndependenceState::Whole {
            break;
        }
        during.push(speed);
        if began.elapsed() > PATIENCE {
            bail!("the image did not come within {PATIENCE:?}");
        }
    }
    let took_s = began.elapsed().as_secs_f64();
    // until what it has written is merged into an image of its own, on which its disk stands from then on
    ask(&node, true)?;
    let merged_s = began.elapsed().as_secs_f64() - took_s;
    let overlay = over_its_image(&node)?;
    for turn in 0..rounds {
        after.push(work(&node, turn)?);
    }
    let left = stands(&node)?.left_bytes;
    let written_since = over_its_image(&node)?;
    for _ in 0..rounds {
        while_merged(&node, &mut merging)?;
    }
    // the hub goes: whatever the guest reads now is here
    drop(hub);
    let all = format!(
        "echo 3 > /proc/sys/vm/drop_caches; cat /dev/vda /dev/shm/random > /dev/null && [ \"$({})\" = \"$(cat {SUM})\" ]",
        second_half()
    );
    if let Err(error) = node.tell("web", &all, PATIENCE) {
        report.fail(format!(
            "the guest cannot read all of its state as it was: {error:#}"
        ));
    }
    if during.is_empty() || merging.is_empty() {
        bail!("the image came, or all was merged, before the guest had written and read a piece");
    }
    report
        .add_value("during_ratio", "", during.median() / before.median())
        .against("MB/s before", "MB/s", before.median());
    report
        .add_value("merge_ratio", "", merging.median() / before.median())
        .against("MB/s before", "MB/s", before.median());
    report.add_value("left_bytes", "B", left as f64);
    report
        .add_value("overlay_bytes", "B", overlay as f64)
        .against("written since", "B", written_since as f64);
    report.add("during_mb_s", "MB/s", &during);
    report.add("before_mb_s", "MB/s", &before);
    report.add("after_mb_s", "MB/s", &after);
    report.add("merge_mb_s", "MB/s", &merging);
    report.add_value("copied_s", "s", took_s);
    report.add_value("merged_s", "s", merged_s);
    report.note(format!(
        "the tiny guest, one emulated CPU, hub and node on one host; {random_mb} MB of random bytes in its memory, {DISK_MIB} MiB of them on its \
         disk; {PIECE_MIB} MiB of that written with fsync, then read, and as much read that is the image's, again and again at {PLACES} places; \
         the rate is the default; merge_ratio: {rounds} merges of what was written at all places, each asked for anew"
    ));
    Ok(report)
}

/// Asks for the machine's independence; with `wait`, until all is here and what it had written is merged.
fn ask(node: &Node, wait: bool) -> anyhow::Result<()> {
    let request = IndependentRequest {
        wait,
        ..Default::default()
    };
    node.client.independent("web", &request)?.finish(|_| {})?;
    Ok(())
}

/// Has the guest write all of its places, and go on while that is merged. Adds how fast it was with each piece that ended before the merge
/// did.
fn while_merged(node: &Node, speeds: &mut Samples) -> anyhow::Result<()> {
    for turn in 0..PLACES {
        work(node, turn)?;
    }
    std::thread::scope(|scope| {
        let merge = scope.spawn(|| ask(node, true));
        for turn in 0.. {
            let speed = work(node, turn)?;
            if merge.is_finished() {
                break;
            }
            speeds.push(speed);
        }
        let merged = merge.join();
        merged.map_err(|_| anyhow::anyhow!("a thread panicked"))?
    })
}

/// Publishes a captured guest with so many MB of random bytes in its memory.
fn publish(context: &Context, guest: &Guest, hub: &Hub, random_mb: u64) -> anyhow::Result<()> {
    let home = context.scratch.join("origin");
    let origin = Node::start(None, &home, false)?;
    let disk = home.join("disk.raw");
    random_file(&disk)?;
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
    origin.tell("one", &format!("{} > {SUM}", second_half()), PATIENCE)?;
    origin.capture("one", "live", true, 0)?;
    origin.publish("live", hub)
}

/// Writes a disk of random bytes.
fn random_file(path: &Path) -> anyhow::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let mut piece = vec![0u8; 1 << 20];
    for _ in 0..DISK_MIB {
        rand::Rng::fill(&mut rand::rng(), &mut piece[..]);
        file.write_all(&piece)?;
    }
    Ok(())
}

/// Has a guest's shell print the checksum of the half of the disk that it does not write.
fn second_half() -> String {
    format!(
        "dd if=/dev/vda bs=1024k skip={} 2>/dev/null | md5sum",
        DISK_MIB / 2
    )
}

/// Has the guest write a piece of its disk, read it, and read one that is its image's; each turn at the next place. Returns MB/s.
fn work(node: &Node, turn: usize) -> anyhow::Result<f64> {
    let count = PIECE_MIB * 16;
    let own = (turn % PLACES) as u64 * count;
    let images = own + DISK_MIB / 2 * 16;
    let line = format!(
        "dd if=/dev/shm/random of=/dev/vda bs=64k count={count} seek={own} conv=fsync 2>/dev/null && \
         echo 3 > /proc/sys/vm/drop_caches && \
         dd if=/dev/vda of=/dev/null bs=64k count={count} skip={own} 2>/dev/null && \
         dd if=/dev/vda of=/dev/null bs=64k count={count} skip={images} 2>/dev/null"
    );
    let time = node.tell("web", &line, PATIENCE)?;
    Ok(3.0 * (PIECE_MIB << 20) as f64 / 1e6 / time.as_secs_f64())
}

/// How many bytes lie over the machine's image.
fn over_its_image(node: &Node) -> anyhow::Result<u64> {
    Ok(node.machine("web")?.stats.overlay_bytes)
}

fn stands(node: &Node) -> anyhow::Result<Independence> {
    node.machine("web")?
        .independence
        .context("it was asked for")
}
