//! What runs in the guest of `floe-lab cpu-scx` and of the lab's test `scx`: groups of threads that stand for machines, under the kernel's scheduler
//! and under floe's.
//!
//! ```text
//! scx_guest measure OBJECT ROUND SECONDS    a round of both in turn; prints lines that begin with @
//! scx_guest check OBJECT                    what must hold of floe's; prints such lines, too
//! scx_guest quota OBJECT                    loads the scheduler, tells how it keeps quotas, prints @held, and keeps it until it is killed
//! scx_guest try OBJECT                      the same, but first does with it all that does not need another process
//! scx_guest machine PROGRAM THREADS SECONDS a group of threads with the names of vCPUs; prints @ready, waits for a line, prints @count
//! ```
//!
//! Threads are named as QEMU names its vCPUs' (as section 4.6.2 of the paper renames programs), and all spinning is done in user space, where no
//! kernel sees who waits for whom.
mod check;

use floe_scx::{Fares, Host, Policy, SCHED_EXT, Scheduler};
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
/// What a group may use in the test of quotas, in percent of a core, and how long that is watched, in seconds.
const QUOTA_PCT: u64 = 50;
const QUOTA_S: f64 = 4.0;
const GROUP: &str = "/sys/fs/cgroup/quota";
/// The group beside it, which has no quota.
const BESIDE: &str = "/sys/fs/cgroup/beside";

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

/// Starts this program with other arguments.
fn spawn(arguments: &[&str]) -> Answer<(Child, BufReader<ChildStdout>)> {
    let mut child = Command::new(env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let out = child.stdout.take().ok_or("no output")?;
    Ok((child, BufReader::new(out)))
}

struct Machine {
    threads: u64,
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Machine {
    fn start(program: &str, threads: u64, seconds: f64) -> Answer<Machine> {
        let (count, time) = (threads.to_string(), seconds.to_string());
        let (child, out) = spawn(&["machine", program, &count, &time])?;
        let mut machine = Machine {
            threads,
            child,
            out,
        };
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

    /// Its threads that have the names of vCPUs, once all of them have.
    fn vcpus(&self) -> Answer<Vec<u32>> {
        loop {
            let tids = self.named()?;
            if tids.len() as u64 == self.threads {
                return Ok(tids);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn named(&self) -> Answer<Vec<u32>> {
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

/// Machines of so many threads. The first runs a program, the others compute.
struct Machines {
    all: Vec<Machine>,
    /// The vCPUs of each.
    tids: Vec<Vec<u32>>,
}

impl Machines {
    fn start(program: &str, threads: u64, seconds: f64) -> Answer<Machines> {
        let (mut all, mut tids) = (Vec::new(), Vec::new());
        for number in 0..MACHINES {
            let program = if number == 0 { program } else { "compute" };
            all.push(Machine::start(program, threads, seconds)?);
        }
        for machine in &all {
            tids.push(machine.vcpus()?);
        }
        Ok(Machines { all, tids })
    }

    /// Of each vCPU the number of its machine.
    fn vcpus(&self) -> BTreeMap<u32, u32> {
        let numbered = (0u32..).zip(&self.tids);
        let each = numbered.flat_map(|(number, its)| its.iter().map(move |tid| (*tid, number)));
        each.collect()
    }

    fn go(&mut self) -> Answer<()> {
        self.all.iter_mut().try_for_each(Machine::go)
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

/// How often a thread has left its core. It was made to where `which` is "nonvoluntary", and all are counted where that is empty.
fn switches(tid: u32, which: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let name = format!("{which}_ctxt_switches");
    let name = name.trim_start_matches('_');
    let of = text.lines().filter(|line| line.contains(name));
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
    threads: u64,
    seconds: f64,
}

/// Loads the scheduler that keeps siblings apart, and lends.
fn sbco(object: &str) -> Answer<Scheduler> {
    Ok(Scheduler::load(Path::new(object), Policy::Sbco)?)
}

fn load(object: &str, mode: &str) -> Answer<Option<Scheduler>> {
    Ok(match mode {
        "balance" => Some(Scheduler::load(Path::new(object), Policy::Balance)?),
        "sbco" => Some(sbco(object)?),
        _ => None,
    })
}

impl Host4 {
    fn run(
        &self,
        round: u32,
        mode: &str,
        program: &str,
        mut scheduler: Option<&mut Scheduler>,
    ) -> Answer<()> {
        let mut machines = Machines::start(program, self.threads, self.seconds)?;
        let (mut before, mut loans) = (Fares::default(), 0);
        if let Some(scheduler) = &mut scheduler {
            before = scheduler.fares(0)?;
            loans = scheduler.ledger()?.loans;
            scheduler.set_vcpus(&machines.vcpus())?;
        }
        machines.go()?;
        let begin = Instant::now();
        let mut looks = Looks::default();
        let mut switched = 0;
        while begin.elapsed().as_secs_f64() < self.seconds - 0.2 {
            thread::sleep(Duration::from_millis(40));
            looks.look(&machines.tids[0]);
            let tids = machines.tids.iter().flatten();
            switched = tids.map(|tid| switches(*tid, "")).sum();
        }
        let counts: Answer<Vec<f64>> = machines.all.iter_mut().map(Machine::end).collect();
        let counts = counts?;
        let (mut inside, mut lent) = ("- - - -".to_owned(), String::from("-"));
        if let Some(scheduler) = scheduler {
            in_force(scheduler)?;
            let fares = scheduler.fares(0)?.since(&before);
            let ledger = scheduler.ledger()?;
            let or = |figure: Option<f64>| figure.map_or("-".into(), |one| format!("{one:.3}"));
            inside = format!(
                "{} {} {} {}",
                or(fares.stacking_pct()),
                or(fares.distance()),
                or(fares.steal_pct()),
                ledger.loans - loans
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

fn in_force(scheduler: &Scheduler) -> Answer<()> {
    match scheduler.is_in_force() {
        true => Ok(()),
        false => {
            let state = fs::read_to_string(format!("{SCHED_EXT}/state")).unwrap_or_default();
            Err(format!("the scheduler has ended: {state}").into())
        }
    }
}

/// Starts a process that loads the scheduler and keeps it (`quota`, `try`). What it prints before it only keeps it is handed on.
fn holder(what: &str, object: &str) -> Answer<Child> {
    let (child, out) = spawn(&[what, object])?;
    for line in out.lines() {
        let line = line?;
        if line == "@held" {
            return Ok(child);
        }
        println!("{line}");
    }
    Err("the process that was to keep the scheduler has ended".into())
}

/// Kills the process that has loaded the scheduler. Returns after how many milliseconds the kernel has its own again.
fn kill(mut child: Child) -> Answer<f64> {
    child.kill()?;
    let begin = Instant::now();
    while Host::at(Path::new(SCHED_EXT))? != Host::Free {
        thread::sleep(Duration::from_millis(1));
    }
    let took = begin.elapsed().as_secs_f64() * 1e3;
    child.wait()?;
    Ok(took)
}

/// What two groups have used within the same time, in microseconds, and that time.
struct Used {
    quota_us: u64,
    beside_us: u64,
    took: Duration,
}

fn used_us(group: &str) -> Answer<u64> {
    let text = fs::read_to_string(format!("{group}/cpu.stat"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "));
    Ok(line.ok_or("no use")?.parse()?)
}

/// Has four threads compute in a group with this `cpu.max`, beside so many in one that has no quota.
fn use_up(scheduler: &Scheduler, seconds: f64, max: &str, others: u64) -> Answer<Used> {
    let mut machines = Vec::new();
    for (group, max, threads) in [(GROUP, max, 4), (BESIDE, "max", others)] {
        fs::create_dir_all(group)?;
        fs::write(format!("{group}/cpu.max"), max)?;
        let machine = Machine::start("compute", threads, seconds)?;
        let id = machine.child.id().to_string();
        fs::write(format!("{group}/cgroup.procs"), id)?;
        machines.push(machine);
    }
    let before = [used_us(GROUP)?, used_us(BESIDE)?];
    let begin = Instant::now();
    machines.iter_mut().try_for_each(Machine::go)?;
    while begin.elapsed().as_secs_f64() < seconds - 0.3 {
        scheduler.unpark()?;
        thread::sleep(Duration::from_millis(5));
    }
    let used = Used {
        took: begin.elapsed(),
        quota_us: used_us(GROUP)? - before[0],
        beside_us: used_us(BESIDE)? - before[1],
    };
    in_force(scheduler)?;
    println!("# {:?}", scheduler.ledger()?);
    for machine in &mut machines {
        while machine.child.try_wait()?.is_none() {
            scheduler.unpark()?;
            thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(used)
}

/// The quota as `cpu.max` has it.
fn max() -> String {
    format!("{} 100000", QUOTA_PCT * 1000)
}

/// Loads the scheduler, and prints how far a group's use is from its quota, in percent of that, alone and beside threads that compute.
fn quotas(object: &str) -> Answer<Scheduler> {
    let scheduler = sbco(object)?;
    for others in [0, 8] {
        let used = use_up(&scheduler, QUOTA_S, &max(), others)?;
        let may = used.took.as_micros() as f64 * QUOTA_PCT as f64 / 100.0;
        let error_pct = 100.0 * (used.quota_us as f64 - may) / may;
        println!("@quota {others} {error_pct:.2}");
    }
    Ok(scheduler)
}

/// One round: all programs under each scheduler, every other round in reverse order, so that being first is no advantage. floe's is loaded once for
/// all programs, and a third time for the quotas, which come last since from the first one on all groups are looked at.
fn measure(object: &str, round: u32, seconds: f64) -> Answer<()> {
    let threads = thread::available_parallelism()?.get() as u64;
    let host = Host4 { threads, seconds };
    let mut modes = ["off", "balance", "sbco"];
    if round % 2 == 1 {
        modes.reverse();
    }
    for mode in modes {
        let mut scheduler = load(object, mode)?;
        for program in ["lock", "barrier", "pipeline", "compute"] {
            host.run(round, mode, program, scheduler.as_mut())?;
        }
    }
    println!("@exit {:.1}", kill(holder("quota", object)?)?);
    Ok(())
}

fn hold(scheduler: &Scheduler) -> Answer<()> {
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
        ["quota", object] => quotas(object).and_then(|scheduler| hold(&scheduler)),
        ["try", object] => check::attempt(object).and_then(|scheduler| hold(&scheduler)),
        ["check", object] => check::check(object),
        ["measure", object, round, seconds] => match (round.parse(), seconds.parse()) {
            (Ok(round), Ok(seconds)) => measure(object, round, seconds),
            _ => Err("which round, and for how long?".into()),
        },
        _ => Err("scx_guest measure|check|quota|try|machine".into()),
    };
    match answer {
        Ok(()) => println!("@done"),
        Err(error) => println!("@error {error}"),
    }
}
