//! A part of `fork`: how long until each of several clones answers a web request from outside, and a command. Compared with QEMU's own way
//! run for real: the guest is stopped, its state written to a file, and so many QEMUs load that at once, until their web servers answer.
//! Once of a light guest, once of one of 8 GB in whose memory a database is, which each clone then asks something too. The database is filled
//! after the machine's start, so that a fork has to take it: what a machine has of its image costs a fork nothing.
use super::dock::{self, Kind};
use super::exec::Floe;
use super::forking::{end, start, told};
use anyhow::{Context as _, ensure};
use floe_api::{CloneState, ForkRequest, ForwardRequest, PortForward, WaitFor, WaitQuery};
use floe_image::CHUNK_SIZE;
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::{Node, at_once};
use floe_testbed::plain::{Hardware, PlainQemu};
use floe_testbed::web::until_it_answers;
use std::path::Path;
use std::time::{Duration, Instant};

/// Clones at once.
const CLONES: usize = 25;
/// Memory of the light guest, bytes.
const LIGHT_BYTES: u64 = 128 << 20;
/// Memory of the other, bytes.
const HEAVY_BYTES: u64 = 8 << 30;
/// Longest time for a guest to fill its database, and for a clone to answer, emulated.
const PATIENCE: Duration = Duration::from_secs(900);
/// Time between two attempts to lead a port to a clone.
const AGAIN: Duration = Duration::from_millis(20);
/// Time between two forks: the host is quiet again.
const BETWEEN: Duration = Duration::from_secs(2);
/// A database whose table is in its memory, since it has just been written and read.
const DATABASE: Kind = Kind {
    name: "database",
    disk: Some("database"),
    works: &[],
};
/// Fills it.
const WARM: &str = "systemctl start postgresql; until su postgres -c 'psql -c \"select 1\"' >/dev/null 2>&1; do busybox sleep 1; done; \
     su postgres -c 'psql -q -c \"create table warm as select g, md5(g::text) from generate_series(1,400000) g; select count(*) from warm\"'";

/// Has it count its rows, and reads all of them for that.
const QUERY: &str =
    "[ \"$(su postgres -c 'psql -Atc \"select count(md5) from warm\"')\" = 400000 ]";

/// What is forked.
struct Parent<'a> {
    /// The machine that was booted.
    booted: &'a str,
    hardware: Hardware<'a>,
    /// What its shell does before it is forked.
    work: &'a str,
    /// What a clone's shell is asked once it has answered a web request, and must do well.
    query: Option<&'a str>,
    /// How the figures' names end.
    suffix: &'a str,
    /// The name of the comparison.
    ratio: &'a str,
    /// Forks that are measured, and how often QEMU's own way is.
    rounds: (usize, usize),
}

/// Adds the figures to those of `fork`. A quick run has two clones of the light guest.
pub(super) fn add(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let light = Guest::tiny()?;
    let node = Node::start(None, &context.scratch.join("answers"), false)?;
    node.import(&light, "guest", LIGHT_BYTES)?;
    node.boot("guest", "origin")?;
    let parent = Parent {
        booted: "origin",
        hardware: Hardware::new(&light, LIGHT_BYTES, 2),
        work: "true",
        query: None,
        suffix: "",
        ratio: "qemu_over_ours_n25_light",
        rounds: context.pick((5, 2), (1, 1)),
    };
    compare(context, report, node, &parent)?;
    if !context.quick {
        let dir = context.scratch.join("heavy");
        let guest = with_database(&dir)?;
        let node = Node::start(None, &context.scratch.join("answers-8gb"), false)?;
        dock::boot(&node, &DATABASE, HEAVY_BYTES)?;
        let parent = Parent {
            booted: DATABASE.name,
            hardware: Hardware::new(&guest, HEAVY_BYTES, 1).with_balloon(),
            work: WARM,
            query: Some(QUERY),
            suffix: "_8gb",
            ratio: "qemu_over_ours_n25",
            rounds: (3, 2),
        };
        compare(context, report, node, &parent)?;
    }
    report.note(format!(
        "answer_ms, exec_ms: {CLONES} clones at once (2 in a quick run) of a guest that runs, from the call until each of them has answered a \
         web request through a port of the host that is led to it then, or has run a command; quantiles are over all clones of all rounds; \
         _8gb: one CPU, 8 GB, a database of 400,000 rows in its memory; QEMU's own way: from its stop until each copy has answered such a \
         request, each with a disk on top of the guest's; of 8 GB, with a balloon through which the guest gives back what is free, as ours has; \
         query_ms: until each has then counted the rows, by its shell; the ratios are of the rounds' 95th percentiles; ours and QEMU's own way are \
         run one after the other, since both do not fit the memory; state_mb: how much of its memory the guest that is forked does not have \
         free; written_mb: how much it has written since its start, which a fork has to take"
    ));
    Ok(())
}

/// The guest with a database as QEMU alone boots it: the kernel of the others, and its own disk.
fn with_database(dir: &Path) -> anyhow::Result<Guest> {
    std::fs::create_dir_all(dir)?;
    let debian = Guest::debian()?;
    let disk = Guest::family()?.join("database.raw");
    for (from, name) in [
        (debian.kernel(), "vmlinuz"),
        (debian.initrd(), "initrd"),
        (disk, "disk.raw"),
    ] {
        std::os::unix::fs::symlink(from, dir.join(name))?;
    }
    std::fs::write(dir.join("cmdline"), debian.cmdline()?)?;
    Guest::at(dir)
}

/// Times of several rounds, in ms.
#[derive(Default)]
struct Rounds {
    /// Of all of them.
    all: Samples,
    /// What 95 of 100 clones did not exceed, round by round.
    p95: Samples,
}

impl Rounds {
    fn push(&mut self, times: &[f64]) {
        let round: Samples = times.iter().copied().collect();
        self.p95.push(round.quantile(0.95));
        times.iter().for_each(|ms| self.all.push(*ms));
    }

    /// Returns how much longer this took than another, by what 95 of 100 clones did not exceed, for as many rounds as both have.
    fn over(&self, other: &Rounds) -> Samples {
        let rounds = self.p95.values().iter().zip(other.p95.values());
        rounds.map(|(this, other)| this / other).collect()
    }
}

/// Measures clones of a machine, and QEMU's own way to as many.
fn compare(
    context: &Context,
    report: &mut Report,
    node: Node,
    parent: &Parent,
) -> anyhow::Result<()> {
    let count = context.pick(CLONES, 2);
    node.capture(parent.booted, "ready", true, 0)?;
    node.remove(parent.booted).ok();
    start(&node, "ready", "web")?;
    node.tell("web", parent.work, PATIENCE)?;
    let floe = Floe::new(&node)?;
    let answer = |clone: &str, began: Instant| {
        get(&node, clone)?;
        let answered = ms_since(began);
        if let Some(query) = parent.query {
            node.tell(clone, query, PATIENCE)?;
        }
        anyhow::Ok((answered, ms_since(began)))
    };
    let execute = |clone: &str, began: Instant| {
        run_in(&node, &floe, clone)?;
        anyhow::Ok(ms_since(began))
    };
    // what is created only once is created by the first
    let (_, written_mb) = fork_until(&node, 1, answer)?;
    let state_mb = held_mb(&floe, "web")?;
    let (mut answered, mut executed) = (Rounds::default(), Rounds::default());
    let mut asked = Rounds::default();
    for _ in 0..parent.rounds.0 {
        let times = fork_until(&node, count, answer)?.0;
        let (first, then): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
        answered.push(&first);
        asked.push(&then);
        executed.push(&fork_until(&node, count, execute)?.0);
    }
    drop(node); // its guests would run beside QEMU's
    let (they_answered, they_asked) = plain(context, parent, count)?;
    let suffix = parent.suffix;
    quantiles(
        report,
        ("answer_ms", suffix),
        &answered,
        Some(&they_answered),
    );
    quantiles(report, ("exec_ms", suffix), &executed, None);
    report.add(parent.ratio, "x", &they_answered.over(&answered));
    if parent.query.is_some() {
        quantiles(report, ("query_ms", suffix), &asked, Some(&they_asked));
        let key = format!("{}_query", parent.ratio);
        report.add(&key, "x", &they_asked.over(&asked));
    }
    report.add_value(&format!("state_mb_n25{suffix}"), "MB", state_mb);
    report.add_value(&format!("written_mb_n25{suffix}"), "MB", written_mb);
    Ok(())
}

/// Adds how long half of the clones took, and 95 of 100, beside the copies of QEMU's own way where those did the same.
fn quantiles(
    report: &mut Report,
    (name, suffix): (&str, &str),
    ours: &Rounds,
    theirs: Option<&Rounds>,
) {
    let alternative = "QEMU's stop, migration to a file, and as many that load it at once";
    for (quantile, q) in [("p50", 0.5), ("p95", 0.95)] {
        let key = format!("{name}_{quantile}_n25{suffix}");
        let figure = report.add_quantile(&key, "ms", &ours.all, q);
        if let Some(theirs) = theirs {
            figure.against(alternative, "ms", theirs.all.quantile(q));
        }
    }
}

/// Returns how much of its memory a machine's guest does not have free, in MB.
fn held_mb(floe: &Floe, machine: &str) -> anyhow::Result<f64> {
    let line = "while read name kib unit; do case $name in MemTotal:) all=$kib;; MemFree:) free=$kib;; esac; done < /proc/meminfo; \
                echo $((all - free))";
    let (code, said) = floe.line(&[], machine, line)?;
    ensure!(
        code == Some(0),
        "{machine} does not say how much memory is free"
    );
    let kib: f64 = said.trim().parse()?;
    Ok(kib * 1024.0 / 1e6)
}

/// Measures QEMU's own way: when each copy had answered, and had then done what it was asked, in ms since the guest was stopped.
fn plain(context: &Context, parent: &Parent, count: usize) -> anyhow::Result<(Rounds, Rounds)> {
    let suffix = parent.suffix;
    let dir = context.scratch.join(format!("plain-answers{suffix}"));
    let mut qemu = PlainQemu::boot(&dir, parent.hardware)?;
    qemu.tell(parent.work, PATIENCE)?;
    let (mut answered, mut asked) = (Rounds::default(), Rounds::default());
    for round in 0..parent.rounds.1 {
        let dir = context.scratch.join(format!("copies{round}{suffix}"));
        let same = |_: usize, state: &Path| Ok(state.to_owned());
        let copies = qemu.copies_of(&dir, parent.hardware, count, parent.query, same)?;
        answered.push(copies.answered.values());
        if parent.query.is_some() {
            asked.push(copies.asked.values());
        }
    }
    Ok((answered, asked))
}

fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

/// Forks the machine `web`, and asks all clones something at once, which is told when the call was. Returns what came of it, and the MB of
/// memory that the parent had written since its own start.
fn fork_until<T: Send>(
    node: &Node,
    count: usize,
    ask: impl Fn(&str, Instant) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<(Vec<T>, f64)> {
    std::thread::sleep(BETWEEN);
    let began = Instant::now();
    let request = ForkRequest {
        clones: count as u32,
        // what they share counts once, but the host promises each of them all of its memory
        overcommit: true,
        ..ForkRequest::default()
    };
    let outcome = node.client.fork("web", &request)?.finish(|_| {})?;
    let told = told(&outcome)?;
    for clone in &told.clones {
        ensure!(
            clone.state == CloneState::Running,
            "{} does not run: {}",
            clone.name,
            clone.detail
        );
    }
    let answers = at_once(told.clones.len(), |number| {
        ask(&told.clones[number].name, began)
    })?;
    end(node, "web")?;
    let written = told.dirty_chunks * CHUNK_SIZE as u64;
    Ok((answers, written as f64 / 1e6))
}

/// Leads a port of this host to a clone's web server, and asks that for a page until it answers.
fn get(node: &Node, clone: &str) -> anyhow::Result<()> {
    until_it_answers(lead_to(node, clone)?)
}

/// Leads a port of a node's host to a clone's web server, and returns it.
pub(super) fn lead_to(node: &Node, clone: &str) -> anyhow::Result<u16> {
    let request = ForwardRequest {
        forward: PortForward {
            protocol: Default::default(),
            host_address: "127.0.0.1".into(),
            host_port: 0,
            guest_port: 80,
        },
        remove: false,
    };
    let until = Instant::now() + PATIENCE;
    loop {
        // for a moment something else may be done with the clone, or another one may have taken the port that was free
        match node.client.forward(clone, &request) {
            Ok(forward) => return Ok(forward.host_port),
            Err(_) if Instant::now() < until => std::thread::sleep(AGAIN),
            Err(error) => return Err(error).context("no port leads to a clone"),
        }
    }
}

/// Runs a command in a clone's guest, once its agent answers.
fn run_in(node: &Node, floe: &Floe, clone: &str) -> anyhow::Result<()> {
    let answers = WaitQuery {
        what: WaitFor::Answers,
        timeout_s: Some(PATIENCE.as_secs()),
    };
    node.client.wait(clone, &answers)?;
    floe.timed(&["exec", clone, "--", "/bin/true"]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_the_slowest_clones_of_each_round_and_of_rounds_that_both_have() {
        let mut ours = Rounds::default();
        let mut theirs = Rounds::default();
        for slowest in [100.0, 200.0, 9000.0] {
            ours.push(&[[10.0; 10], [slowest; 10]].concat());
        }
        for slowest in [1000.0, 1000.0] {
            theirs.push(&[slowest; 20]);
        }
        assert_eq!(ours.all.len(), 60);
        assert_eq!(ours.p95.values(), [100.0, 200.0, 9000.0]);
        assert_eq!(theirs.over(&ours).values(), [10.0, 5.0]);
    }

    #[test]
    fn what_qemus_way_did_not_do_stands_alone() {
        let mut report = Report::new("fork", true);
        let mut rounds = Rounds::default();
        rounds.push(&[1.0, 2.0, 3.0]);
        quantiles(&mut report, ("exec_ms", "_8gb"), &rounds, None);
        quantiles(&mut report, ("query_ms", ""), &rounds, Some(&rounds));
        assert_eq!(report.figures["exec_ms_p50_n25_8gb"].value, 2.0);
        assert!(report.figures["exec_ms_p95_n25_8gb"].against.is_none());
        let against = report.figures["query_ms_p50_n25"].against.as_ref();
        assert_eq!(against.unwrap().value, 2.0);
    }
}
