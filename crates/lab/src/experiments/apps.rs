//! `apps`: the cost of a job on clones that are made for it and end with it, compared with machines that already run and
//! have everything in memory: SnowFlock's zero-cost fork (section 5.1). The programs are Debian's own.
use super::activate::{host_name, join};
use super::live::Node;
use crate::guest::Guest;
use crate::harness::{Context, Report, Samples, interleave};
use crate::link::Segment;
use anyhow::Context as _;
use floe_api::{HostAccess, Limits, NetworkRequest, RunRequest};
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
const JOB_MAX: Duration = Duration::from_secs(900);
/// How long a part should take on machines that already run: SnowFlock's jobs took from 25 s to some 70 s. Clones lose
/// the same seconds whatever the job is, so a longer job would show less.
const PART: Duration = Duration::from_secs(60);
/// Longest time until clones are stored where they run.
const SETTLE_MAX: Duration = Duration::from_secs(300);
/// How often conditions are checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The guest's address for this host.
const HOST: &str = "10.0.2.2";
/// The machine that makes the clones.
const PARENT: &str = "web";
/// The machine that has compiling clones all the time; the next one makes them when they are needed.
const TEAM: &str = "team";
const ALONE: &str = "alone";

/// A job that is done in parts.
struct Job {
    name: &'static str,
    /// What one unit of its work is.
    unit: &'static str,
    /// Units that each machine does to measure how long they take: some seconds.
    probe: usize,
}

const JOBS: [Job; 4] = [
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
/// How often the project (Lua) is compiled. The clones get preprocessed files from their parent, which links.
const COMPILED: usize = 1;

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
    let rounds = context.pick(5, 1);
    let count = std::thread::available_parallelism()?.get();
    let results = Results::listen()?;
    let node = Node::start(None, &context.scratch.join("node"), false)?;
    node.import_with(&Guest::apps()?, "apps", MEMORY_BYTES, 1)?;
    node.boot("apps", "origin")?;
    // load the programs and their input into the parent's memory, where those of a service would be
    let work_alone = |name: &str| {
        for job in &JOBS {
            node.tell(name, &format!("apps part {} 0 1 1", job.name), JOB_MAX)?;
        }
        node.tell(name, "apps compile 1", JOB_MAX)
    };
    work_alone("origin")?;
    node.capture("origin", "warm", true, 0)?;
    node.remove("origin").ok();
    let run = |name: &str, network: bool| {
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
                clones: Some(count as u32),
                ..Limits::default()
            },
            ..RunRequest::default()
        };
        node.run(&request, |_| {})?;
        node.ask(name, JOB_MAX)
    };
    let standing: Vec<String> = (0..count).map(|n| format!("standing{n}")).collect();
    for name in &standing {
        run(name, false)?;
    }
    run(PARENT, false)?;

    // the parent of the clones that exist already, and the one that makes them each time
    for parent in [TEAM, ALONE] {
        run(parent, true)?;
    }
    // make the parents' own emulators use that memory too: the host may drop pages that nobody has mapped
    for parent in [PARENT, ALONE] {
        work_alone(parent)?;
    }
    node.tell(TEAM, &format!("apps helpers {count}"), JOB_MAX)?;
    stored(&node)?;
    let lab = Lab {
        node,
        results,
        machines: standing.len() + 1 + 2 + count,
        standing,
        rounds,
    };
    add(&mut report, "distcc", lab.distcc(count)?)?;
    for job in &JOBS {
        let units = if context.quick {
            count
        } else {
            lab.units(job)?
        };
        add(&mut report, job.name, lab.parts(job.name, units)?)?;
        report.note(format!("{}: {units} units, each {}", job.name, job.unit));
    }
    drop(lab); // its machines would run beside those of the other hosts
    if !context.quick {
        let elsewhere = elsewhere(context, count, rounds)?;
        let here = report.figures["distcc.clones_s"].value;
        report.add("distcc.elsewhere_s", "s", &elsewhere).against(
            "on clones beside their parent",
            "s",
            here,
        );
    }
    report.note(format!(
        "{count} clones of one CPU and 1 GB on {count} cores, made by the program's own call; from the command in the parent until all \
         of them have ended and it is told so. The alternative: {count} machines of the same image that have done the same work \
         before, from the command until the last is done; speedup: over one such machine that does all of it. Results are compared by \
         checksum. Machines \
         that take no part stand still meanwhile, but for those in a family's network. An emulator of a machine that has done the \
         work before has its code translated, that of a new clone has not"
    ));
    Ok(report)
}

/// Adds what a job took on machines that already run, on clones, and on one machine alone (figure 5 of the paper).
fn add(report: &mut Report, name: &str, samples: Vec<Samples>) -> anyhow::Result<()> {
    let samples: [Samples; 3] = samples
        .try_into()
        .map_err(|_| anyhow::anyhow!("three candidates"))?;
    let [zero_cost, clones, alone] = samples;
    eprintln!(
        "{name}: {:.1} s on machines that run, {:.1} s on clones, {:.1} s on one machine",
        zero_cost.median(),
        clones.median(),
        alone.median()
    );
    report
        .add(&format!("{name}.speedup"), "x", &alone.over(&clones))
        .against(
            "machines that already run",
            "x",
            alone.over(&zero_cost).median(),
        );
    report.add(
        &format!("{name}.over_zero_cost"),
        "ratio",
        &clones.over(&zero_cost),
    );
    report
        .add(&format!("{name}.clones_s"), "s", &clones)
        .against("machines that already run", "s", zero_cost.median());
    Ok(())
}

/// Measures the compilation with its clones on another host than their parent's, whose processors are the same here: both are network
/// namespaces, with a gigabit link between them.
fn elsewhere(context: &Context, helpers: usize, rounds: usize) -> anyhow::Result<Samples> {
    let segment = Segment::new(2).context("hosts of our own need root")?;
    let mut nodes = Vec::new();
    for (number, hosts) in [host_name(1), "here".into()].into_iter().enumerate() {
        segment.as_gigabit(number)?;
        let home = context.scratch.join(format!("apps-host{number}"));
        let flags = ["--guest-hosts", &hosts];
        nodes.push(Node::start_with(Some(segment.host(number)), &home, &flags)?);
    }
    join(&segment, &nodes)?;
    let node = &nodes[0];
    node.import_with(&Guest::apps()?, "apps", MEMORY_BYTES, 1)?;
    node.boot("apps", "origin")?;
    node.tell("origin", "apps compile 1", JOB_MAX)?;
    node.capture("origin", "warm", true, 0)?;
    node.remove("origin").ok();
    let request = RunRequest {
        image: "warm".into(),
        name: Some(ALONE.into()),
        network: Some(NetworkRequest::default()),
        limits: Limits {
            clones: Some(helpers as u32),
            ..Limits::default()
        },
        ..RunRequest::default()
    };
    node.run(&request, |_| {})?;
    node.tell(ALONE, "apps compile 1", JOB_MAX)?;
    let mut seconds = Samples::default();
    for _ in 0..rounds {
        let command = format!("apps compile-clones {helpers} {COMPILED}");
        seconds.push(node.tell(ALONE, &command, JOB_MAX)?.as_secs_f64());
        let until = Instant::now() + SETTLE_MAX;
        while !nodes[1].client.machines()?.machines.is_empty() {
            anyhow::ensure!(
                Instant::now() < until,
                "clones on the other host do not end"
            );
            std::thread::sleep(LOOK_EVERY);
        }
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
        anyhow::ensure!(Instant::now() < until, "clones are not stored");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Machines that are stopped so that a job has the cores for itself: an idle guest takes 3 % of a core. They continue
/// when this is dropped.
struct Still(Vec<Pid>);

impl Still {
    /// Stops all machines of a node except those that take part and those in a family's network.
    fn but(node: &Node, taking_part: &[String]) -> anyhow::Result<Still> {
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
        let each = job.probe as f64 * PART.as_secs_f64() / seconds;
        Ok(each.round().max(1.0) as usize * self.standing.len())
    }

    /// Measures a job of independent parts: on machines that already run, on clones, and on one machine that does all parts.
    fn parts(&self, job: &str, units: usize) -> anyhow::Result<Vec<Samples>> {
        let expected = OnceCell::new();
        let same = |sums: BTreeSet<String>| {
            let first = expected.get_or_init(|| sums.clone());
            anyhow::ensure!(*first == sums, "{job}: {sums:?} is not {first:?}");
            anyhow::Ok(())
        };
        let mut on_standing = || {
            let (seconds, sums) = self.on_standing(job, units)?;
            same(sums)?;
            Ok(seconds)
        };
        let mut on_clones = || {
            let (seconds, sums) = self.on_clones(job, units)?;
            same(sums)?;
            self.quiet(PARENT)?;
            Ok(seconds)
        };
        let mut on_one = || self.on_one(&format!("apps part {job} 0 1 {units}"));
        // do everything once: afterwards nothing has to be fetched, and no page copied on write
        on_standing()?;
        interleave(
            self.rounds,
            &mut [&mut on_standing, &mut on_clones, &mut on_one],
        )
    }

    /// Runs a command on the first of the machines that already run. Returns the seconds that it took.
    fn on_one(&self, command: &str) -> anyhow::Result<f64> {
        let one = &self.standing[..1];
        let _still = Still::but(&self.node, one)?;
        Ok(self.node.tell(&one[0], command, JOB_MAX)?.as_secs_f64())
    }

    /// Measures a job that a parent distributes in small pieces.
    fn distcc(&self, helpers: usize) -> anyhow::Result<Vec<Samples>> {
        let mut on_team = || {
            let _still = Still::but(&self.node, &[TEAM.to_owned()])?;
            let command = format!("apps compile {COMPILED} $(cat /tmp/helpers)");
            Ok(self.node.tell(TEAM, &command, JOB_MAX)?.as_secs_f64())
        };
        let mut on_clones = || {
            let command = format!("apps compile-clones {helpers} {COMPILED}");
            let still = Still::but(&self.node, &[ALONE.to_owned()])?;
            let took = self.node.tell(ALONE, &command, JOB_MAX)?;
            drop(still);
            self.quiet(ALONE)?;
            Ok(took.as_secs_f64())
        };
        let mut on_one = || self.on_one(&format!("apps compile {COMPILED}"));
        on_team()?;
        interleave(
            self.rounds,
            &mut [&mut on_team, &mut on_clones, &mut on_one],
        )
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

    /// Waits until no clones of a job are left, and the parent answers.
    fn quiet(&self, parent: &str) -> anyhow::Result<()> {
        let until = Instant::now() + SETTLE_MAX;
        loop {
            let left = self.node.client.machines()?.machines.len();
            if left == self.machines {
                break;
            }
            anyhow::ensure!(
                Instant::now() < until,
                "{left} machines, not {}",
                self.machines
            );
            std::thread::sleep(LOOK_EVERY);
        }
        self.node.ask(parent, JOB_MAX).map(drop)
    }
}
