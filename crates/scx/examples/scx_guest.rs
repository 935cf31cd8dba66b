//! What runs in the guest of `floe-lab cpu-scx`: groups of threads that stand for machines, under the kernel's scheduler and under floe's in turn.
//!
//! ```text
//! scx_guest measure OBJECT ROUNDS SECONDS   all of it; prints lines that begin with @
//! scx_guest hold OBJECT                     loads the scheduler and keeps it until it is killed
//! scx_guest machine PROGRAM THREADS SECONDS a group of threads with the names of vCPUs; prints @ready, waits for a line, prints @count
//! ```
//!
//! Threads are named as QEMU names its vCPUs' (as section 4.6.2 of the paper renames programs), and all spinning is done in user space, where no
//! kernel sees who waits for whom.
use floe_scx::{Host, Policy, SCHED_EXT, Scheduler};
use std::collections::BTreeMap;
use std::hint::{black_box, spin_loop};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

type Answer<T> = Result<T, Box<dyn std::error::Error>>;

/// Rounds of arithmetic while a lock is held and between two locks; between two barriers.
const HELD: u64 = 400;
const PIECE: u64 = 20_000;
/// Machines, the first of which runs what is measured; the others compute.
const MACHINES: u32 = 4;
/// What a group may use in the test of quotas, in percent of a core.
const QUOTA_PCT: u64 = 50;
const GROUP: &str = "/sys/fs/cgroup/quota";

fn work(rounds: u64) {
    let mut value = rounds;
    for round in 0..rounds {
        value = black_box(value.wrapping_mul(6364136223846793005).wrapping_add(round));
    }
}

#[derive(Default)]
struct Shared {
    begun: AtomicBool,
    over: AtomicBool,
    locked: AtomicBool,
    come: AtomicU64,
    count: AtomicU64,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn lock_once(&self) {
        while self.locked.swap(true, Ordering::Acquire) {
            while self.locked.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
        work(HELD);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.locked.store(false, Ordering::Release);
        work(HELD * 3);
    }

    fn barrier_once(&self, threads: u64) {
        work(PIECE);
        let mine = self.come.fetch_add(1, Ordering::AcqRel);
        let all = (mine / threads + 1) * threads;
        while self.come.load(Ordering::Acquire) < all && !self.is_over() {
            spin_loop();
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn compute_once(&self) {
        work(PIECE);
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Threads each of which passes pieces on to the next, through queues that block.
fn pipeline(shared: &Shared, threads: u64) {
    thread::scope(|scope| {
        let mut from = None;
        for stage in 0..threads {
            let (to, next) = sync_channel::<u64>(8);
            let source = from.replace(next);
            let is_last = stage + 1 == threads;
            named(scope, stage, move || {
                wait(shared);
                while !shared.is_over() {
                    if let Some(source) = &source
                        && source.recv().is_err()
                    {
                        return;
                    }
                    work(PIECE);
                    match is_last {
                        true => _ = shared.count.fetch_add(1, Ordering::Relaxed),
                        false if to.send(1).is_err() => return,
                        false => {}
                    }
                }
            });
        }
        drop(from);
    });
}

fn wait(shared: &Shared) {
    while !shared.begun.load(Ordering::Acquire) {
        thread::sleep(Duration::from_millis(1));
    }
}

fn named<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    number: u64,
    work: impl FnOnce() + Send + 'scope,
) {
    let name = format!("CPU {number}/TCG");
    let started = thread::Builder::new().name(name).spawn_scoped(scope, work);
    started.expect("a thread");
}

/// A group of threads that stands for a machine.
fn machine(program: &str, threads: u64, seconds: f64) -> Answer<()> {
    let shared = Shared::default();
    thread::scope(|scope| -> Answer<()> {
        match program {
            "pipeline" => {
                let shared = &shared;
                scope.spawn(move || pipeline(shared, threads));
            }
            _ => {
                for number in 0..threads {
                    let shared = &shared;
                    named(scope, number, move || {
                        wait(shared);
                        while !shared.is_over() {
                            match program {
                                "lock" => shared.lock_once(),
                                "barrier" => shared.barrier_once(threads),
                                _ => shared.compute_once(),
                            }
                        }
                    });
                }
            }
        }
        thread::sleep(Duration::from_millis(100));
        println!("@ready");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        shared.begun.store(true, Ordering::Release);
        let start = Instant::now();
        thread::sleep(Duration::from_secs_f64(seconds));
        shared.over.store(true, Ordering::Relaxed);
        let took = start.elapsed().as_secs_f64();
        println!(
            "@count {:.3}",
            shared.count.load(Ordering::Relaxed) as f64 / took
        );
        Ok(())
    })
}

struct Machine {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Machine {
    fn start(program: &str, threads: u64, seconds: f64) -> Answer<Machine> {
        let mut child = Command::new(env::current_exe()?)
            .args([
                "machine",
                program,
                &threads.to_string(),
                &seconds.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut machine = Machine { child, out };
        machine.line("@ready")?;
        Ok(machine)
    }

    fn line(&mut self, begin: &str) -> Answer<String> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        let rest = line.trim().strip_prefix(begin).ok_or(line.clone())?;
        Ok(rest.trim().to_owned())
    }

    fn go(&mut self) -> Answer<()> {
        let input = self.child.stdin.as_mut().ok_or("no input")?;
        Ok(input.write_all(b"go\n")?)
    }

    /// Its threads that have the names of vCPUs.
    fn vcpus(&self) -> Answer<Vec<u32>> {
        let mut tids = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let path = entry?.path();
            let name = fs::read_to_string(path.join("comm"))?;
            if name.starts_with("CPU ") {
                let tid = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .unwrap_or("");
                tids.push(tid.parse()?);
            }
        }
        Ok(tids)
    }

    fn end(&mut self) -> Answer<f64> {
        let count = self.line("@count")?.parse()?;
        self.child.wait()?;
        Ok(count)
    }
}

/// State and last core of a thread.
fn state(tid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    let rest = text.rsplit_once(") ")?.1;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(35)?.parse().ok()?))
}

fn switches(tid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let of = text.lines().filter(|line| line.contains("ctxt_switches"));
    of.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
        .sum()
}

/// How often, of the looks at which several vCPUs wanted to run, two were at one core.
#[derive(Default)]
struct Looks {
    all: u32,
    stacked: u32,
}

impl Looks {
    fn look(&mut self, tids: &[u32]) {
        let at: Vec<u32> = tids
            .iter()
            .filter_map(|tid| state(*tid))
            .filter(|(state, _)| *state == 'R')
            .map(|(_, core)| core)
            .collect();
        if at.len() < 2 {
            return;
        }
        let mut cores = at.clone();
        cores.sort_unstable();
        cores.dedup();
        self.all += 1;
        self.stacked += u32::from(cores.len() < at.len());
    }
}

struct Host4 {
    object: String,
    threads: u64,
    seconds: f64,
}

fn load(object: &str, mode: &str) -> Answer<Option<Scheduler>> {
    let policy = match mode {
        "balance" => Policy::Balance,
        "sbco" => Policy::Sbco,
        _ => return Ok(None),
    };
    Ok(Some(Scheduler::load(Path::new(object), policy)?))
}

impl Host4 {
    fn run(&self, round: u32, mode: &str, program: &str) -> Answer<()> {
        let mut scheduler = load(&self.object, mode)?;
        let mut machines = Vec::new();
        for number in 0..MACHINES {
            let program = if number == 0 { program } else { "compute" };
            machines.push(Machine::start(program, self.threads, self.seconds)?);
        }
        let mut vcpus = BTreeMap::new();
        let mut tids = Vec::new();
        for (number, machine) in machines.iter().enumerate() {
            let its = machine.vcpus()?;
            vcpus.extend(its.iter().map(|tid| (*tid, number as u32)));
            tids.push(its);
        }
        if let Some(scheduler) = &mut scheduler {
            scheduler.set_vcpus(&vcpus)?;
        }
        for machine in &mut machines {
            machine.go()?;
        }
        let begin = Instant::now();
        let mut looks = Looks::default();
        let mut switched = 0;
        while begin.elapsed().as_secs_f64() < self.seconds - 0.2 {
            thread::sleep(Duration::from_millis(40));
            looks.look(&tids[0]);
            switched = tids.iter().flatten().map(|tid| switches(*tid)).sum();
        }
        let counts: Answer<Vec<f64>> = machines.iter_mut().map(Machine::end).collect();
        let counts = counts?;
        let (mut inside, mut lent) = ("- - - -".to_owned(), String::from("-"));
        if let Some(scheduler) = &scheduler {
            if !scheduler.is_in_force() {
                return Err(format!("the scheduler has ended: {}", ended()).into());
            }
            let fares = scheduler.fares(0)?;
            let ledger = scheduler.ledger()?;
            let or = |figure: Option<f64>| figure.map_or("-".into(), |one| format!("{one:.3}"));
            inside = format!(
                "{} {} {} {}",
                or(fares.stacking_pct()),
                or(fares.distance()),
                or(fares.steal_pct()),
                ledger.loans
            );
            lent = format!("{ledger:?}");
        }
        let stacked = 100.0 * f64::from(looks.stacked) / f64::from(looks.all.max(1));
        let others: f64 = counts[1..].iter().sum();
        println!(
            "@run {round} {mode} {program} {:.3} {others:.3} {switched} {stacked:.2} {} {inside}",
            counts[0], looks.all
        );
        println!("# {lent}");
        Ok(())
    }
}

fn ended() -> String {
    fs::read_to_string(format!("{SCHED_EXT}/state")).unwrap_or_default()
}

/// How long after its loader was killed the scheduler is gone, in milliseconds.
fn exit(object: &str) -> Answer<f64> {
    let mut child = Command::new(env::current_exe()?)
        .args(["hold", object])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let out = child.stdout.take().ok_or("no output")?;
    BufReader::new(out).read_line(&mut line)?;
    if line.trim() != "@held" {
        return Err(line.into());
    }
    child.kill()?;
    let begin = Instant::now();
    while Host::at(Path::new(SCHED_EXT))? != Host::Free {
        thread::sleep(Duration::from_millis(1));
    }
    let took = begin.elapsed().as_secs_f64() * 1e3;
    child.wait()?;
    Ok(took)
}

/// How far a group's use is from its quota, in percent of that, with so many other threads that compute.
fn quota(object: &str, seconds: f64, others: u64) -> Answer<f64> {
    let scheduler = Scheduler::load(Path::new(object), Policy::Sbco)?;
    fs::create_dir_all(GROUP)?;
    fs::write(
        format!("{GROUP}/cpu.max"),
        format!("{} 100000", QUOTA_PCT * 1000),
    )?;
    let mut inside = Machine::start("compute", 4, seconds)?;
    fs::write(
        format!("{GROUP}/cgroup.procs"),
        inside.child.id().to_string(),
    )?;
    let mut outside = Machine::start("compute", others, seconds)?;
    let used = || -> Answer<u64> {
        let text = fs::read_to_string(format!("{GROUP}/cpu.stat"))?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        Ok(line.ok_or("no use")?.parse()?)
    };
    let before = used()?;
    let begin = Instant::now();
    inside.go()?;
    outside.go()?;
    while begin.elapsed().as_secs_f64() < seconds - 0.3 {
        scheduler.unpark()?;
        thread::sleep(Duration::from_millis(5));
    }
    let (took, took_us) = (begin.elapsed(), used()? - before);
    if !scheduler.is_in_force() {
        return Err("the scheduler has ended".into());
    }
    println!("# {:?}", scheduler.ledger()?);
    while inside.child.try_wait()?.is_none() {
        scheduler.unpark()?;
        thread::sleep(Duration::from_millis(5));
    }
    outside.child.wait()?;
    let may = took.as_micros() as f64 * QUOTA_PCT as f64 / 100.0;
    Ok(100.0 * (took_us as f64 - may) / may)
}

fn measure(object: &str, rounds: u32, seconds: f64) -> Answer<()> {
    println!("@exit {:.1}", exit(object)?);
    for others in [0, 8] {
        println!(
            "@quota {others} {:.2}",
            quota(object, seconds.max(2.0), others)?
        );
    }
    let threads = thread::available_parallelism()?.get() as u64;
    let host = Host4 {
        object: object.to_owned(),
        threads,
        seconds,
    };
    for round in 0..rounds {
        let mut modes = ["off", "balance", "sbco"];
        modes.rotate_left(round as usize % 3);
        for program in ["lock", "barrier", "pipeline", "compute"] {
            for mode in modes {
                host.run(round, mode, program)?;
            }
        }
        println!("@exit {:.1}", exit(object)?);
    }
    Ok(())
}

fn hold(object: &str) -> Answer<()> {
    let scheduler = Scheduler::load(Path::new(object), Policy::Sbco)?;
    println!("@held");
    loop {
        scheduler.unpark()?;
        thread::sleep(Duration::from_millis(5));
    }
}

fn main() {
    let words: Vec<String> = env::args().collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answer = match words[1..] {
        ["machine", program, threads, seconds] => match (threads.parse(), seconds.parse()) {
            (Ok(threads), Ok(seconds)) => machine(program, threads, seconds),
            _ => Err("how many threads, and for how long?".into()),
        },
        ["hold", object] => hold(object),
        ["measure", object, rounds, seconds] => match (rounds.parse(), seconds.parse()) {
            (Ok(rounds), Ok(seconds)) => measure(object, rounds, seconds),
            _ => Err("how many rounds, and for how long?".into()),
        },
        _ => Err("scx_guest measure|hold|machine".into()),
    };
    match answer {
        Ok(()) => println!("@done"),
        Err(error) => println!("@error {error}"),
    }
}
