//! `churn`: four parents fork four clones each, which do a job and end, again and again, all at once. Does anything fail, does anything
//! stay behind, and does a round take as long as the one before?
use anyhow::Context as _;
use floe_api::{ForkReport, ForkRequest, KillRequest, MachineStatus, NetworkRequest, RunRequest};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples, own_memory};
use floe_testbed::live::Node;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Parents that fork at the same time.
const PARENTS: usize = 4;
/// Clones of each parent.
const CLONES: u32 = 4;
/// Memory of a guest.
const MEMORY_BYTES: u64 = 128 << 20;
/// Longest time for a guest to answer or to switch itself off while twenty are emulated.
const GUEST_MAX: Duration = Duration::from_secs(300);
/// Longest time for background work to end.
const QUIET_MAX: Duration = Duration::from_secs(120);
/// How often conditions are checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How many times in a row nothing has changed when all is quiet.
const SAME: usize = 50;
/// Time in which threads that have answered requests end: the runtime keeps them for ten seconds, as many as there were requests at once.
const THREADS_END: Duration = Duration::from_secs(15);
/// Rounds before those that count: what is created only once is there then, and what grows to its size has it.
const WARM_ROUNDS: usize = 8;
/// What a clone does with memory of its own.
const JOB: &str = "seq 1 20000 | sort -r | gzip -c | tee /dev/shm/job | gunzip -c | md5sum";
/// Where a parent keeps what comes of it, which each clone compares its own with.
const SUM: &str = "/dev/shm/sum";

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("churn", context.quick);
    let (warm_rounds, rounds) = context.pick((WARM_ROUNDS, 64), (1, 2));
    let home = context.scratch.join("node");
    let node = Node::start(None, &home, false)?;
    node.import_with(&Guest::tiny()?, "guest", MEMORY_BYTES, 1)?;
    node.boot("guest", "origin")?;
    node.capture("origin", "booted", true, 0)?;
    node.remove("origin").ok();
    let parents: Vec<String> = (0..PARENTS).map(|n| format!("parent{n}")).collect();
    for parent in &parents {
        let request = RunRequest {
            image: "booted".into(),
            name: Some(parent.clone()),
            network: Some(NetworkRequest::default()),
            ..RunRequest::default()
        };
        node.run(&request, |_| {})?;
        node.tell(parent, &format!("{JOB} > {SUM}"), GUEST_MAX)?;
    }
    let warm = at_once(&node, &parents, warm_rounds);
    let before = quiet(&node, &home)?;
    let held_before = held(&node, &home)?;
    let counted = at_once(&node, &parents, rounds);
    let after = quiet(&node, &home)?;
    let more = held(&node, &home)?.since(&held_before);

    let errors: Vec<&String> = warm
        .iter()
        .chain(&counted)
        .flat_map(|p| &p.errors)
        .collect();
    for error in &errors {
        report.note(format!("error: {error}"));
    }
    report.add_value("errors", "count", errors.len() as f64);
    let mut leaks = 0.0;
    for (what, now) in &after {
        let more = now - before.get(what).copied().unwrap_or(0.0);
        if more > 0.0 {
            report.note(format!("leak: {more} {what}"));
            leaks += more;
        }
    }
    report.add_value("left_behind", "count", leaks);
    report.add_value("leaked_fds", "count", more.descriptors);
    report.add_value("leaked_threads", "count", more.threads);
    report.add_value("leaked_kb", "kB", more.kb).against(
        "memory of the node's own processes before",
        "kB",
        held_before.kb,
    );
    let mut each = Samples::default();
    for round in 0..rounds {
        let times = counted
            .iter()
            .filter_map(|parent| parent.seconds.get(round));
        let times: Vec<f64> = times.copied().collect();
        if !times.is_empty() {
            each.push(times.iter().sum::<f64>() / times.len() as f64);
        }
    }
    report.add("round_s", "s", &each);
    let all = each.values();
    let (slowest, fastest) = (
        all.iter().copied().fold(f64::MIN, f64::max),
        all.iter().copied().fold(f64::MAX, f64::min),
    );
    report.add_value(
        "round_spread",
        "ratio",
        (slowest - fastest) / each.median().max(f64::MIN_POSITIVE),
    );
    report.note(format!(
        "{PARENTS} parents of 128 MB, each in a network of its own, fork {CLONES} clones each at the same time; each sorts, packs and unpacks \
         20,000 lines, compares the sum with its parent's, switches itself off and is removed; {warm_rounds} rounds before, then {rounds} \
         that count; a round's time is the parents' mean, the spread is that of the slowest and the fastest round over the median; \
         descriptors, threads and memory are those of all processes of the node but QEMUs, the least within a second in which it has \
         nothing to do"
    ));
    Ok(report)
}

/// The measurements of one parent.
#[derive(Default)]
struct Parent {
    seconds: Vec<f64>,
    errors: Vec<String>,
}

/// Runs this many rounds on all parents; each round begins on all of them at the same moment.
fn at_once(node: &Node, parents: &[String], rounds: usize) -> Vec<Parent> {
    let barrier = Barrier::new(parents.len());
    let one = |name: &String| {
        let mut parent = Parent::default();
        for _ in 0..rounds {
            barrier.wait();
            let start = Instant::now();
            match round(node, name) {
                Ok(()) => parent.seconds.push(start.elapsed().as_secs_f64()),
                Err(error) => parent.errors.push(format!("{name}: {error:#}")),
            }
        }
        parent
    };
    let one = &one;
    std::thread::scope(|scope| {
        let threads: Vec<_> = parents
            .iter()
            .map(|name| scope.spawn(move || one(name)))
            .collect();
        let lost = |_| Parent {
            errors: vec!["a parent's thread died".into()],
            ..Parent::default()
        };
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(lost))
            .collect()
    })
}

/// Forks once and waits until none of the clones is left.
fn round(node: &Node, parent: &str) -> anyhow::Result<()> {
    let request = ForkRequest {
        clones: CLONES,
        ..ForkRequest::default()
    };
    let outcome = node.client.fork(parent, &request)?.finish(|_| {})?;
    let fork: ForkReport = outcome.fork.context("a fork tells its clones")?;
    let joined = join(node, &fork);
    // end them in any case, so that the next round starts in the same state
    let killed = node.client.kill(parent, &KillRequest { all: true })?;
    joined?;
    anyhow::ensure!(killed.failed.is_empty(), "{:?}", killed.failed);
    anyhow::ensure!(
        killed.ended.len() == CLONES as usize,
        "ended {:?}",
        killed.ended
    );
    Ok(())
}

/// Lets all clones do their job at the same time, then tells each to switch itself off, and waits until all have.
fn join(node: &Node, fork: &ForkReport) -> anyhow::Result<()> {
    anyhow::ensure!(
        fork.running == CLONES,
        "{} of {CLONES} run: {:?}",
        fork.running,
        fork.clones
    );
    let job = format!("[ \"$({JOB})\" = \"$(cat {SUM})\" ]");
    floe_testbed::live::at_once(fork.clones.len(), |number| {
        node.tell(&fork.clones[number].name, &job, GUEST_MAX)
    })?;
    for clone in &fork.clones {
        let mut console = node.client.attach(&clone.name)?;
        writeln!(console, "poweroff -f")?;
        let until = Instant::now() + GUEST_MAX;
        while node.machine(&clone.name)?.status != MachineStatus::Stopped {
            anyhow::ensure!(Instant::now() < until, "{} does not end", clone.name);
            std::thread::sleep(LOOK_EVERY);
        }
    }
    Ok(())
}

/// Counts everything that could stay behind, once the node has nothing more to do.
fn quiet(node: &Node, home: &Path) -> anyhow::Result<BTreeMap<&'static str, f64>> {
    let until = Instant::now() + QUIET_MAX;
    let mut last = count(node, home)?;
    let mut same = 0;
    // forks are stored and forgotten in the background: this is over when no count has changed for a second
    while same < SAME && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
        let now = count(node, home)?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    Ok(last)
}

fn count(node: &Node, home: &Path) -> anyhow::Result<BTreeMap<&'static str, f64>> {
    let entries = |dir: &Path| std::fs::read_dir(dir).map_or(0, |dir| dir.flatten().count());
    let home_text = home.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let mounts = mounts.lines().filter(|line| line.contains(&home_text));
    let cache = node.client.cache()?;
    // the guest's image, the booted one, and at most one image of a fork for each parent
    let images = node.client.images()?.images.len();
    Ok([
        ("QEMU processes", qemus(&home_text) as f64),
        ("mounts", mounts.count() as f64),
        (
            "network namespaces",
            entries(Path::new("/run/netns")) as f64,
        ),
        ("machines", node.client.machines()?.machines.len() as f64),
        (
            "directories of machines",
            entries(&home.join("machines")) as f64,
        ),
        ("images", images.saturating_sub(2 + PARENTS) as f64),
        ("records of forks", entries(&home.join("forks")) as f64),
        (
            "bytes of cache beyond its budget",
            cache.used_bytes.saturating_sub(cache.budget_bytes) as f64,
        ),
    ]
    .into())
}

/// What the processes of a node hold while it has nothing to do.
struct Held {
    descriptors: f64,
    threads: f64,
    /// Memory that is no file's, in kB.
    kb: f64,
}

impl Held {
    /// Returns how much more that is than before, of each; what is less counts as nothing.
    fn since(&self, before: &Held) -> Held {
        Held {
            descriptors: (self.descriptors - before.descriptors).max(0.0),
            threads: (self.threads - before.threads).max(0.0),
            kb: (self.kb - before.kb).max(0.0),
        }
    }
}

/// Returns the least of each within a second: threads and connections come and go.
fn held(node: &Node, home: &Path) -> anyhow::Result<Held> {
    std::thread::sleep(THREADS_END);
    let home = home.display().to_string();
    let own = std::process::id();
    let mut pids = processes(|line| line.contains(&home) && !line.contains("qemu-system"));
    pids.retain(|pid| *pid != own);
    let pid = node.client.node()?.pid;
    anyhow::ensure!(pids.contains(&pid), "the node's process {pid} is not found");
    let mut least = Held {
        descriptors: f64::MAX,
        threads: f64::MAX,
        kb: f64::MAX,
    };
    for _ in 0..SAME {
        let (mut descriptors, mut threads, mut bytes) = (0, 0, 0);
        for pid in &pids {
            descriptors += std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
            threads += std::fs::read_dir(format!("/proc/{pid}/task"))?.count();
            bytes += own_memory(*pid)?;
        }
        least.descriptors = least.descriptors.min(descriptors as f64);
        least.threads = least.threads.min(threads as f64);
        least.kb = least.kb.min(bytes as f64 / 1e3);
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(least)
}

/// Counts the QEMUs whose command line names this home.
fn qemus(home: &str) -> usize {
    processes(|line| line.contains("qemu-system") && line.contains(home)).len()
}

/// Returns the processes whose command lines are such.
fn processes(is_one: impl Fn(&str) -> bool) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pid = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        is_one(&String::from_utf8_lossy(&line)).then_some(pid)
    };
    entries.filter_map(pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leak_is_what_is_more_than_before_and_never_less_than_nothing() {
        let held = |descriptors, threads, kb| Held {
            descriptors,
            threads,
            kb,
        };
        let more = held(12.0, 7.0, 900.0).since(&held(10.0, 7.0, 1000.0));
        assert_eq!((more.descriptors, more.threads, more.kb), (2.0, 0.0, 0.0));
    }
}
