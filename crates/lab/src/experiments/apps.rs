//! `apps`: what a job costs on clones that are made for it and end with it, against machines that already run and have everything in
//! memory: SnowFlock's zero-cost fork (section 5.1). The programs are Debian's own.
use super::live::Node;
use crate::guest::Guest;
use crate::harness::{Context, Report, Samples, interleave};
use anyhow::Context as _;
use floe::api::RunRequest;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Memory of a guest.
const MEMORY_BYTES: u64 = 1 << 30;
/// How long a part of a job may take in an emulated guest on a busy machine.
const JOB_MAX: Duration = Duration::from_secs(900);
/// How long clones may take until they are stored where they run.
const SETTLE_MAX: Duration = Duration::from_secs(300);
/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How a guest sees this host's own address.
const HOST: &str = "10.0.2.2";

/// A program and how many units of work it gets: enough that a part takes about a minute in an emulated guest.
struct Job {
    name: &'static str,
    /// Units of work a clone.
    each: usize,
}

const JOBS: [Job; 4] = [
    // 8 queries of 1000 bases in a genome of 8 million
    Job {
        name: "blast",
        each: 16,
    },
    // an alignment of 10 proteins of 240 residues
    Job {
        name: "clustalw",
        each: 24,
    },
    // a frame of 160x120
    Job {
        name: "povray",
        each: 3,
    },
    // half a million lines, sorted in memory that is allocated after the fork
    Job {
        name: "sort",
        each: 3,
    },
];

/// What parts say when they have done their work, a line each.
struct Results {
    port: u16,
    lines: Receiver<String>,
}

impl Results {
    fn listen() -> anyhow::Result<Results> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let (tell, lines) = channel();
        // ends with the process: the listener is as long-lived
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

    /// The lines of all parts.
    fn of(&self, parts: usize) -> anyhow::Result<BTreeSet<String>> {
        (0..parts)
            .map(|_| {
                let line = self.lines.recv_timeout(JOB_MAX);
                line.context("a part of the job has not said what came of it")
            })
            .collect()
    }
}

/// Runs it.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("apps", context.quick);
    let rounds = context.pick(3, 1);
    let count = std::thread::available_parallelism()?.get();
    let results = Results::listen()?;
    let node = Node::start(None, &context.scratch.join("node"), false)?;
    node.import_with(&Guest::apps()?, "apps", MEMORY_BYTES, 1)?;
    node.boot("apps", "origin")?;
    // the programs and their input are in the parent's memory, as those of a service are
    for job in &JOBS {
        node.tell("origin", &format!("apps part {} 0 1 1", job.name), JOB_MAX)?;
    }
    node.capture("origin", "warm", true, 0)?;
    node.remove("origin").ok();
    let standing: Vec<String> = (0..count).map(|n| format!("standing{n}")).collect();
    for name in standing.iter().map(String::as_str).chain(["web"]) {
        let request = RunRequest {
            image: "warm".into(),
            name: Some(name.into()),
            ..RunRequest::default()
        };
        node.run(&request, |_| {})?;
        node.ask(name, JOB_MAX)?;
    }

    for job in &JOBS {
        let units = context.pick(job.each, 1) * count;
        let mut expected: Option<BTreeSet<String>> = None;
        let mut same = |sums: BTreeSet<String>| {
            let first = expected.get_or_insert_with(|| sums.clone());
            anyhow::ensure!(*first == sums, "{}: {sums:?} is not {first:?}", job.name);
            Ok(())
        };
        // the standing machines have done all of it once: nothing is left to fetch, no page to make their own
        same(on_standing(&node, &results, &standing, job, units)?.1)?;
        let same = std::cell::RefCell::new(same);
        let samples = interleave(
            rounds,
            &mut [
                &mut || {
                    let (seconds, sums) = on_standing(&node, &results, &standing, job, units)?;
                    same.borrow_mut()(sums)?;
                    eprintln!("{}: {seconds:.1} s on machines that run", job.name);
                    Ok(seconds)
                },
                &mut || {
                    let (seconds, sums) = on_clones(&node, &results, count, job, units)?;
                    same.borrow_mut()(sums)?;
                    quiet(&node, standing.len() + 1)?;
                    eprintln!("{}: {seconds:.1} s on clones", job.name);
                    Ok(seconds)
                },
            ],
        )?;
        let [zero_cost, clones]: [Samples; 2] = samples
            .try_into()
            .map_err(|_| anyhow::anyhow!("two candidates"))?;
        let name = job.name;
        report.add(
            &format!("{name}.over_zero_cost"),
            "ratio",
            &clones.over(&zero_cost),
        );
        report
            .add(&format!("{name}.clones_s"), "s", &clones)
            .against("machines that already run", "s", zero_cost.median());
    }
    report.note(format!(
        "{count} clones of one CPU and 1 GB on {count} cores, made by the program's own call; from the command in the parent until all \
         of them have ended and it is told so. The alternative: {count} machines of the same image that have done the same work \
         before, from the command until the last is done. Results are compared by checksum. An emulator of a machine that has done the \
         work before has its code translated, that of a new clone has not"
    ));
    Ok(report)
}

/// All parts at once on machines that run: how long, and what came of it.
fn on_standing(
    node: &Node,
    results: &Results,
    machines: &[String],
    job: &Job,
    units: usize,
) -> anyhow::Result<(f64, BTreeSet<String>)> {
    let start = Instant::now();
    let of = machines.len();
    std::thread::scope(|scope| {
        let parts: Vec<_> = machines
            .iter()
            .enumerate()
            .map(|(part, machine)| {
                let command = format!(
                    "apps part {} {part} {of} {units} | apps send {HOST} {}",
                    job.name, results.port
                );
                scope.spawn(move || node.tell(machine, &command, JOB_MAX))
            })
            .collect();
        for part in parts {
            part.join()
                .map_err(|_| anyhow::anyhow!("a part's thread died"))??;
        }
        anyhow::Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((seconds, results.of(of)?))
}

/// The same on clones that the parent makes for it, until it has joined them.
fn on_clones(
    node: &Node,
    results: &Results,
    count: usize,
    job: &Job,
    units: usize,
) -> anyhow::Result<(f64, BTreeSet<String>)> {
    let start = Instant::now();
    let command = format!(
        "apps clones {} {count} {units} {HOST} {}",
        job.name, results.port
    );
    node.tell("web", &command, JOB_MAX)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((seconds, results.of(count)?))
}

/// Waits until there are only so many machines, and the parent answers.
fn quiet(node: &Node, machines: usize) -> anyhow::Result<()> {
    let until = Instant::now() + SETTLE_MAX;
    loop {
        let left = node.client.machines()?.machines.len();
        if left == machines {
            break;
        }
        anyhow::ensure!(Instant::now() < until, "{left} machines, not {machines}");
        std::thread::sleep(LOOK_EVERY);
    }
    node.ask("web", JOB_MAX)?;
    Ok(())
}
