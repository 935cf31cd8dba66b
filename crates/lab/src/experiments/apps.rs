//! `apps`: the cost of a job on clones that are made for it and end with it, compared with machines that already run and
//! have everything in memory: SnowFlock's zero-cost fork (section 5.1). The programs are Debian's own. The same on two
//! hosts is `apps-hosts`; a compilation, which its parent hands out in small pieces, is `distcc`.
use anyhow::Context as _;
use floe_api::{HostAccess, Limits, NetworkRequest, RunRequest};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples, interleave};
use floe_testbed::live::Node;
use rustix::process::{Pid, Signal, kill_process};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Memory of a guest.
const MEMORY_BYTES: u64 = 1 << 30;
/// How long a part of a job may take in an emulated guest on a busy machine.
pub(super) const JOB_MAX: Duration = Duration::from_secs(900);
/// How long a part should take on machines that already run: SnowFlock's jobs took from 25 s to some 70 s. Clones lose
/// the same seconds whatever the job is, so a longer job would show less.
const PART: Duration = Duration::from_secs(45);
/// How often each job is done on machines that run, and on clones.
pub(super) const ROUNDS: usize = 4;
/// Longest time until clones have ended, or are stored where they run.
pub(super) const SETTLE_MAX: Duration = Duration::from_secs(300);
/// How often conditions are checked.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The guest's address for this host.
const HOST: &str = "10.0.2.2";
/// The machine that makes the clones.
pub(super) const PARENT: &str = "web";

/// A job that is done in parts.
pub(super) struct Job {
    pub name: &'static str,
    /// What one unit of its work is.
    pub unit: &'static str,
    /// Units that each machine does to measure how long they take: some seconds.
    pub probe: usize,
}

pub(super) const JOBS: [Job; 4] = [
    Job {
        name: "blast",
        unit: "8 queries of 1000 bases in a genome of 8 million",
        probe: 8,
    },
    Job {
        name: "clustalw",
        unit: "an alignment of 10 proteins of 240 residues",
        probe: 16,
    },
    Job {
        name: "povray",
        unit: "a frame of 160x120",
        probe: 2,
    },
    Job {
        name: "sort",
        unit: "400 MB of lines in memory that is allocated after the fork",
        probe: 1,
    },
];

impl Job {
    /// Returns how many units of it make a part of this length for each of so many machines, if its probe took so many seconds on them.
    pub fn units(&self, machines: usize, probe_seconds: f64, part: Duration) -> usize {
        let each = self.probe as f64 * part.as_secs_f64() / probe_seconds;
        each.round().max(1.0) as usize * machines
    }
}

/// The lines that parts send when they have done their work.
struct Results {
    port: u16,
    lines: Receiver<String>,
}

impl Results {
    fn listen() -> anyhow::Result<Results> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let (tell, lines) = channel();
        // the thread ends with the process, like the listener
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if tell.send(line).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Results { port, lines })
    }

    /// Waits for the lines of all parts.
    fn of(&self, parts: usize) -> anyhow::Result<BTreeSet<String>> {
        (0..parts)
            .map(|_| {
                let line = self.lines.recv_timeout(JOB_MAX);
                line.context("a part of the job has not said what came of it")
            })
            .collect()
    }
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("apps", context.quick);
    let rounds = context.pick(ROUNDS, 1);
    let count = std::thread::available_parallelism()?.get();
    let results = Results::listen()?;
    let node = Node::start(None, &context.scratch.join("node"), false)?;
    let work = |job: &Job| format!("apps part {} 0 1 1", job.name);
    let works: Vec<String> = JOBS.iter().map(work).collect();
    capture_warm(&node, &works)?;
    let standing: Vec<String> = (0..count).map(|n| format!("standing{n}")).collect();
    for name in &standing {
        run_warm(&node, name, false, count)?;
    }
    run_warm(&node, PARENT, false, count)?;
    // make the parent's own emulator use that memory too: the host may drop pages that nobody has mapped
    for work in &works {
        node.tell(PARENT, work, JOB_MAX)?;
    }
    let lab = Lab {
        node,
        results,
        machines: standing.len() + 1,
        standing,
        rounds,
    };
    for job in &JOBS {
        let units = if context.quick {
            count
        } else {
            lab.units(job)?
        };
        let prefix = format!("{}.", job.name);
        add_took(&mut report, &prefix, &lab.parts(job.name, units)?);
        report.note(format!("{}: {units} units, each {}", job.name, job.unit));
    }
    report.note(format!(
        "{count} clones of one CPU and 1 GB on {count} cores, made by the program's own call; from the command in the parent until all \
         of them have ended and it is told so. The alternative: {count} machines of the same image that have done the same work \
         before, from the command until the last is done; speedup: over one such machine that does all of it, once. Results are \
         compared by checksum. Machines that take no part stand still meanwhile. An emulator of a machine that has done the \
         work before has its code translated, that of a new clone has not"
    ));
    Ok(report)
}

/// Boots the guest, has it do some work, so that programs and their input are in its memory, where those of a service would be, and
/// captures it as the image `warm`.
pub(super) fn capture_warm(node: &Node, works: &[String]) -> anyhow::Result<()> {
    node.import_with(&Guest::apps()?, "apps", MEMORY_BYTES, 1)?;
    node.boot("apps", "origin")?;
    for work in works {
        node.tell("origin", work, JOB_MAX)?;
    }
    node.capture("origin", "warm", true, 0)?;
    node.remove("origin").ok();
    Ok(())
}

/// Runs a machine of an image in this folder, which may be another node's, without a network of its own and without clones.
pub(super) fn run_image(node: &Node, image: &str, name: &str) -> anyhow::Result<()> {
    let request = RunRequest {
        image: image.into(),
        name: Some(name.into()),
        ..RunRequest::default()
    };
    node.run(&request, |_| {})?;
    node.ask(name, JOB_MAX).map(drop)
}

/// Runs a machine of that image, in a network of its own or not, whose programs may make so many clones.
pub(super) fn run_warm(
    node: &Node,
    name: &str,
    network: bool,
    clones: usize,
) -> anyhow::Result<()> {
    let request = RunRequest {
        image: "warm".into(),
        name: Some(name.into()),
        network: network.then(NetworkRequest::default),
        // on the user network, the machine reports to this host
        allow_host: match network {
            true => HostAccess::None,
            false => HostAccess::All,
        },
        // a program in it makes the clones for its job
        limits: Limits {
            clones: Some(clones as u32),
            ..Limits::default()
        },
        ..RunRequest::default()
    };
    node.run(&request, |_| {})?;
    node.ask(name, JOB_MAX).map(drop)
}

/// What a job took, in seconds.
pub(super) struct Took {
    /// On machines that already run, and on clones; the same rounds.
    pub zero_cost: Samples,
    pub clones: Samples,
    /// On one machine that runs, which does all of it.
    pub alone: f64,
}

/// Adds what a job took (the speedups are figure 5 of the paper).
pub(super) fn add_took(report: &mut Report, prefix: &str, took: &Took) {
    let (zero_cost, clones) = (&took.zero_cost, &took.clones);
    eprintln!(
        "{} {prefix} {:.1} s on machines that run, {:.1} s on clones, {:.1} s on one machine",
        report.experiment,
        zero_cost.median(),
        clones.median(),
        took.alone
    );
    let speedup = took.alone / clones.median();
    report
        .add_value(&format!("{prefix}speedup"), "x", speedup)
        .against(
            "machines that already run",
            "x",
            took.alone / zero_cost.median(),
        );
    report.add(
        &format!("{prefix}over_zero_cost"),
        "ratio",
        &clones.over(zero_cost),
    );
    report
        .add(&format!("{prefix}clones_s"), "s", clones)
        .against("machines that already run", "s", zero_cost.median());
}

/// Machines that are stopped so that a job has the cores for itself: an idle guest takes 3 % of a core. They continue
/// when this is dropped.
pub(super) struct Still(Vec<Pid>);

impl Still {
    /// Stops all machines of a node except those that take part and those in a family's network.
    pub(super) fn but(node: &Node, taking_part: &[String]) -> anyhow::Result<Still> {
        // wait until those that were stopped before have caught up with the time
        for name in taking_part {
            node.ask(name, JOB_MAX)?;
        }
        let mut still = Still(Vec::new());
        for machine in node.client.machines()?.machines {
            // if the network service of a guest misses its watchdog's deadline, the guest loses its address, and in a
            // family's network nobody gives it another
            if taking_part.contains(&machine.name) || machine.network.is_some() {
                continue;
            }
            let pid = machine.pid.and_then(|pid| Pid::from_raw(pid as i32));
            let pid = pid.with_context(|| format!("{} has no QEMU", machine.name))?;
            kill_process(pid, Signal::STOP)?;
            still.0.push(pid);
        }
        Ok(still)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill_process(*pid, Signal::CONT); // fails if it has ended, which is fine
        }
    }
}

/// The setup in which the jobs run.
struct Lab {
    node: Node,
    results: Results,
    /// Machines that run all the time, each for one part.
    standing: Vec<String>,
    /// Number of machines that exist while no job runs.
    machines: usize,
    rounds: usize,
}

impl Lab {
    /// Returns how many units of a job make parts of the intended length.
    fn units(&self, job: &Job) -> anyhow::Result<usize> {
        let probe = job.probe * self.standing.len();
        // the first time, machines have to translate all code and copy pages on write
        self.on_standing(job.name, probe)?;
        let (seconds, _) = self.on_standing(job.name, probe)?;
        Ok(job.units(self.standing.len(), seconds, PART))
    }

    /// Measures a job of independent parts: on machines that already run, on clones, and on one machine that does all parts.
    fn parts(&self, job: &str, units: usize) -> anyhow::Result<Took> {
        let expected = OnceCell::new();
        let mut on_standing = || {
            let (seconds, sums) = self.on_standing(job, units)?;
            same(job, &expected, sums)?;
            Ok(seconds)
        };
        let mut on_clones = || {
            let (seconds, sums) = self.on_clones(job, units)?;
            same(job, &expected, sums)?;
            quiet(&self.node, PARENT, self.machines)?;
            Ok(seconds)
        };
        // do everything once: afterwards nothing has to be fetched, and no page copied on write
        on_standing()?;
        let both = interleave(self.rounds, &mut [&mut on_standing, &mut on_clones])?;
        let alone = on_one(
            &self.node,
            &self.standing[0],
            &format!("apps part {job} 0 1 {units}"),
        )?;
        Ok(Took {
            zero_cost: both[0].clone(),
            clones: both[1].clone(),
            alone,
        })
    }

    /// Runs all parts at once on machines that already run. Returns the seconds that it took, and the results.
    fn on_standing(&self, job: &str, units: usize) -> anyhow::Result<(f64, BTreeSet<String>)> {
        let (node, standing) = (&self.node, &self.standing);
        let _still = Still::but(node, standing)?;
        let start = Instant::now();
        let (of, port) = (standing.len(), self.results.port);
        std::thread::scope(|scope| {
            let parts: Vec<_> = (0..of)
                .map(|part| {
                    let command =
                        format!("apps part {job} {part} {of} {units} | apps send {HOST} {port}");
                    scope.spawn(move || node.tell(&standing[part], &command, JOB_MAX))
                })
                .collect();
            for part in parts {
                part.join()
                    .map_err(|_| anyhow::anyhow!("a part's thread died"))??;
            }
            anyhow::Ok(())
        })?;
        let seconds = start.elapsed().as_secs_f64();
        Ok((seconds, self.results.of(of)?))
    }

    /// The same on clones that the parent makes for the job, until it has joined them.
    fn on_clones(&self, job: &str, units: usize) -> anyhow::Result<(f64, BTreeSet<String>)> {
        let (of, port) = (self.standing.len(), self.results.port);
        let command = format!("apps clones {job} {of} {units} {HOST} {port}");
        let _still = Still::but(&self.node, &[PARENT.to_owned()])?;
        let start = Instant::now();
        self.node.tell(PARENT, &command, JOB_MAX)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok((seconds, self.results.of(of)?))
    }
}

/// Fails if these results of a job are not those of its first time, which are kept.
pub(super) fn same(
    job: &str,
    expected: &OnceCell<BTreeSet<String>>,
    sums: BTreeSet<String>,
) -> anyhow::Result<()> {
    let first = expected.get_or_init(|| sums.clone());
    anyhow::ensure!(*first == sums, "{job}: {sums:?} is not {first:?}");
    Ok(())
}

/// Runs a command on one of the machines that already run. Returns the seconds that it took.
pub(super) fn on_one(node: &Node, machine: &str, command: &str) -> anyhow::Result<f64> {
    let _still = Still::but(node, &[machine.to_owned()])?;
    Ok(node.tell(machine, command, JOB_MAX)?.as_secs_f64())
}

/// Waits until no clones of a job are left, so that the node has so many machines, and the parent answers.
pub(super) fn quiet(node: &Node, parent: &str, machines: usize) -> anyhow::Result<()> {
    only(node, machines)?;
    node.ask(parent, JOB_MAX).map(drop)
}

/// Waits until a node has only so many machines.
pub(super) fn only(node: &Node, machines: usize) -> anyhow::Result<()> {
    let until = Instant::now() + SETTLE_MAX;
    loop {
        let left = node.client.machines()?.machines.len();
        if left == machines {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < until, "{left} machines, not {machines}");
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_has_the_same_units_and_at_least_one() {
        let [blast, ..] = &JOBS;
        assert_eq!(blast.probe, 8);
        assert_eq!(blast.units(2, 4.0, Duration::from_secs(45)), 180);
        assert_eq!(blast.units(3, 4000.0, Duration::from_secs(45)), 3);
    }

    #[test]
    fn results_that_differ_from_those_of_the_first_time_are_a_fault() {
        let sums = |of: &[&str]| of.iter().map(ToString::to_string).collect();
        let expected = OnceCell::new();
        same("sort", &expected, sums(&["sort 0 aa", "sort 1 bb"])).unwrap();
        same("sort", &expected, sums(&["sort 1 bb", "sort 0 aa"])).unwrap();
        let other = same("sort", &expected, sums(&["sort 0 aa", "sort 1 cc"]));
        assert!(other.unwrap_err().to_string().contains("sort 1 cc"));
        same("sort", &expected, sums(&["sort 0 aa"])).unwrap_err();
    }
}
