//! Drives a run: carries out what the storm decides, and records the results.
mod errors;
mod machines;

use super::Options;
use super::console::Shared;
use super::faults::Faults;
use super::leaks::{self, Count};
use super::loan::Ways;
use super::model::Guest;
use super::promised::Promised;
use super::schedule::{Blow, Moment, Schedule, Victim};
use super::storm::{Action, Event, Limits, Storm};
use super::work::{Done, Places, Worker, remove_images};
use super::world::{Program, UPLOAD_EXPIRY, World, make_initrd};
use anyhow::{Context as _, bail, ensure};
use floe_api::KillRequest;
use floe_api::client::Client;
use floe_testbed::guest::Guest as Files;
use floe_testbed::harness::Context;
use floe_testbed::live::floe;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The two machines.
const MACHINES: [&str; 2] = ["one", "two"];
/// How often the storm gets a tick.
const TICK: Duration = Duration::from_millis(20);
/// Longest time from a guest's start to its first step, and for its final verification of everything.
const STEP_MAX: Duration = Duration::from_secs(300);
/// How long a machine whose QEMU was killed may refuse to start because another operation is running.
const START_MAX: Duration = Duration::from_secs(120);
/// Longest time for a copy to verify everything beside three other emulated guests, unless five times the hang limit is
/// longer.
const VERIFY_MAX: Duration = Duration::from_secs(120);
/// How often awaited conditions are checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A blow and its effect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fallen {
    /// The victims.
    pub victims: Vec<Victim>,
    /// The moment at which it fell.
    pub moment: Moment,
    /// Longest time in seconds without progress of a guest after the blow; guests whose QEMU was killed are not counted.
    pub stall_s: f64,
    /// Whether a guest hung.
    pub hung: bool,
}

/// The results of a storm, or of several.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Record {
    /// From which its blows followed.
    pub seeds: Vec<u64>,
    /// Number of processes, links and disks that were hit.
    pub kills: u64,
    /// All blows.
    pub blows: Vec<Fallen>,
    /// The machines.
    pub guests: Vec<Guest>,
    /// Errors that the guests reported.
    pub bad: Vec<String>,
    /// Guests that hung.
    pub hung: Vec<String>,
    /// What did not start again as it should.
    pub not_up: Vec<String>,
    /// Starts in which an access failed.
    pub injected: u64,
    /// Those of them that ended with an error.
    pub refused: u64,
    /// Kinds of access of both programs that are known.
    pub kinds: u64,
    /// Starts with an error that ended without naming what failed, or after which something was missing.
    pub bad_starts: Vec<String>,
    /// What was left behind.
    pub leaks: Vec<(String, u64)>,
    /// The results of captures, forks and transfers.
    pub done: Done,
    /// The results of the ways to another host and back.
    #[serde(default)]
    pub ways: Ways,
}

impl Record {
    /// Adds the results of a later storm.
    pub fn add(&mut self, later: Record) {
        self.seeds.extend(later.seeds);
        self.kills += later.kills;
        self.blows.extend(later.blows);
        self.guests.extend(later.guests);
        self.injected += later.injected;
        self.refused += later.refused;
        // each storm gets to know the same ones
        self.kinds = self.kinds.max(later.kinds);
        for (list, more) in [
            (&mut self.bad, later.bad),
            (&mut self.hung, later.hung),
            (&mut self.not_up, later.not_up),
            (&mut self.bad_starts, later.bad_starts),
        ] {
            list.extend(more);
        }
        self.leaks.extend(later.leaks);
        self.done.add(later.done);
        self.ways.add(later.ways);
    }
}

/// A run.
pub struct Driver {
    world: World,
    options: Options,
    seed: u64,
    shared: Arc<Shared>,
    events: Receiver<Event>,
    /// Process ids of the two QEMUs, as last seen.
    pids: [Option<u32>; 2],
    before: Count,
    record: Record,
    done: Arc<Mutex<Done>>,
    promised: Arc<Mutex<Promised>>,
    /// What fails in the starts of node and hub.
    faults: [(Program, Faults); 2],
    threads: Vec<std::thread::JoinHandle<()>>,
    /// A guest that was given up once.
    given_up: Option<usize>,
}

/// Returns what the threads of a QEMU wait for in the kernel, except for other threads and for events. A request that
/// nobody answers shows as `request_wait_answer`, with the system call's number and arguments (17 is pread64: descriptor,
/// memory, bytes, offset).
fn waits_of(pid: u32) -> Vec<String> {
    let mut waits = Vec::new();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let place = read("wchan");
        if !place.contains("futex") && !place.contains("poll") {
            waits.push(format!(
                "{} {place} {}",
                read("comm").trim(),
                read("syscall").trim()
            ));
        }
    }
    waits
}

impl Driver {
    /// Starts everything, and does every kind of work once, so that everything that is created only once exists.
    pub fn start(context: &Context, options: &Options, seed: u64) -> anyhow::Result<Driver> {
        let guest = Files::tiny()?;
        let initrd = make_initrd(&guest, &context.scratch)?;
        let world = World::start(&context.scratch)?;
        let (sender, events) = channel();
        let shared = Shared {
            start: Instant::now(),
            guests: Mutex::new(vec![Guest::new(1), Guest::new(2)]),
            events: Mutex::new(sender),
            over: AtomicBool::new(false),
            blows: AtomicU64::new(0),
            busy: Default::default(),
        };
        let mut driver = Driver {
            world,
            options: options.clone(),
            seed,
            shared: Arc::new(shared),
            events,
            pids: [None; 2],
            before: Count::new(),
            record: Record {
                seeds: vec![seed],
                ..Record::default()
            },
            done: Arc::default(),
            promised: Arc::default(),
            faults: [Program::Node, Program::Hub].map(|program| (program, Faults::new(seed))),
            threads: Vec::new(),
            given_up: None,
        };
        driver.import(&guest, &initrd)?;
        driver.boot_all()?;
        driver.work_once()?;
        driver.tear_down(false)?;
        driver.before = leaks::count(&driver.world);
        driver.world.start_all()?;
        driver.import(&guest, &initrd)?;
        Ok(driver)
    }

    /// Runs the storm to its end.
    pub fn run(&mut self) -> anyhow::Result<Record> {
        *self.shared.guests.lock() = vec![Guest::new(1), Guest::new(2)];
        self.boot_all()?;
        let worker = self.worker()?;
        self.world.near.run(|| worker.keep())??;
        self.start_working()?;
        let schedule = Schedule::new(self.seed, self.options.victims());
        let now = self.shared.now();
        let limits = Limits {
            until: now + Duration::from_secs_f64(self.options.minutes * 60.0),
            kills: self.options.kills,
            hung_after: Duration::from_secs(self.options.hung_s),
        };
        let mut storm = Storm::new(schedule, limits, MACHINES.len(), now);
        let rage = self.rage(&mut storm);
        self.record.kills = storm.kills;
        self.shared.over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.record.done = self.done.lock().clone();
        self.record.kinds = self.faults.iter().map(|(_, of)| of.kinds() as u64).sum();
        rage?;
        self.last_look()?;
        self.record.done = self.done.lock().clone();
        self.record.guests = std::mem::take(&mut *self.shared.guests.lock());
        self.tear_down(true)?;
        let after = leaks::count(&self.world);
        self.record.leaks = leaks::compare(&self.before, &after);
        Ok(std::mem::take(&mut self.record))
    }

    /// Strikes blow after blow, until there were enough.
    fn rage(&mut self, storm: &mut Storm) -> anyhow::Result<()> {
        loop {
            let event = match self.events.recv_timeout(TICK) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => Event::Tick,
                Err(RecvTimeoutError::Disconnected) => bail!("nobody reads the consoles any more"),
            };
            self.hear_bad();
            let mut actions = storm.handle(self.shared.now(), event);
            while let Some(action) = actions.pop() {
                match action {
                    Action::Finish => return Ok(()),
                    Action::Strike(blow) => {
                        let kills = self.strike(&blow, storm)?;
                        actions.extend(storm.handle(self.shared.now(), Event::Up { kills }));
                    }
                    Action::Hung(guest) => self.hung(guest, storm),
                    Action::GiveUp(guest) => self.give_up(guest, storm)?,
                }
            }
            self.note_stall();
        }
    }

    // ------------------------------------------------------------------------------------------------- blows

    /// Strikes, and starts everything again at once. Returns the number of kills.
    fn strike(&mut self, blow: &Blow, storm: &mut Storm) -> anyhow::Result<u64> {
        self.shared.blows.fetch_add(1, Relaxed);
        let (kills, seconds) = (storm.kills, self.shared.now().as_secs());
        eprintln!(
            "{seconds:>5} s, {kills:>4} kills: blow {}: {blow}",
            blow.number
        );
        self.record.blows.push(Fallen {
            victims: blow.victims.clone(),
            moment: blow.moment,
            stall_s: 0.0,
            hung: false,
        });
        let hit = |victim| blow.victims.contains(&victim);
        let victim = blow.choice % MACHINES.len();
        let mut kills = blow.victims.len() as u64;
        if hit(Victim::Disk) {
            self.world.fill()?;
        }
        if hit(Victim::Network) {
            self.world.cut()?;
        }
        let at = Instant::now();
        let killed = (hit(Victim::Qemu) && self.kill_qemu(victim)).then_some(victim);
        if hit(Victim::Supervisor) && !self.world.kill_supervisor() {
            self.record
                .not_up
                .push(format!("blow {}: there is no supervisor", blow.number));
        }
        if hit(Victim::Hub) {
            self.world.kill_hub();
        }
        if hit(Victim::Node) {
            self.world.kill_node();
            if blow.moment == Moment::Start {
                self.world.spawn_node()?;
                std::thread::sleep(blow.delay);
                self.world.kill_node();
                kills += 1;
            }
        }
        let tried = self.start_with_errors(blow, killed)?;
        let ended = self.ended_guests();
        self.raise(blow, at)?;
        if hit(Victim::Qemu) {
            self.start_from_disk(victim)?;
            storm.handle(self.shared.now(), Event::Booting(victim));
        }
        for guest in ended {
            self.start_from_disk(guest)?;
            storm.handle(self.shared.now(), Event::Booting(guest));
        }
        if tried {
            self.look_for_all(blow)?;
        }
        if tried || hit(Victim::Disk) {
            let now = self.shared.now();
            self.shared
                .guests
                .lock()
                .iter_mut()
                .for_each(|guest| guest.excused(now));
        }
        self.find_pids();
        // events from before everything was up again say nothing about the current state
        while self.events.try_recv().is_ok() {}
        self.shared.blows.fetch_add(1, Relaxed);
        Ok(kills)
    }

    /// Starts what was killed, and ends the other disturbances once they have lasted long enough.
    fn raise(&mut self, blow: &Blow, at: Instant) -> anyhow::Result<()> {
        let hit = |victim| blow.victims.contains(&victim);
        self.world.spawn_node()?;
        self.world.spawn_hub()?;
        let first = self.world.node_ready();
        std::thread::sleep(blow.hold.saturating_sub(
            match hit(Victim::Network) || hit(Victim::Disk) {
                true => at.elapsed(),
                false => blow.hold,
            },
        ));
        if hit(Victim::Network) {
            self.world.mend()?;
        }
        if hit(Victim::Disk) {
            self.world.free()?;
        }
        if let Err(error) = first {
            self.record
                .not_up
                .push(format!("blow {} ({blow}): {error:#}", blow.number));
            self.world.spawn_node()?;
            self.world.node_ready()?;
        }
        if self.world.hub_ready().is_err() {
            // a hub may refuse to start if its own disk is full, but only the node's disk is filled
            self.world.spawn_hub()?;
            self.world.hub_ready()?;
        }
        Ok(())
    }

    /// Records a guest that makes no progress, and tries whether `floe start` helps.
    fn hung(&mut self, guest: usize, storm: &mut Storm) {
        let name = MACHINES[guest];
        let seen = match self.machine(name) {
            Ok(info) => format!("{:?}, {:?}", info.status, info.detail),
            Err(error) => format!("nothing is known of it: {error:#}"),
        };
        let waits = self.pids[guest].map(waits_of).unwrap_or_default();
        let blow = self.record.blows.len();
        if let Some(last) = self.record.blows.last_mut() {
            last.hung = true;
        }
        let started = match self.start_machine(name) {
            Ok(()) => "floe start was accepted".to_owned(),
            Err(error) => format!("floe start: {error:#}"),
        };
        let last = self
            .record
            .blows
            .last()
            .map(|blow| format!("{:?} {}", blow.victims, blow.moment));
        let text = format!(
            "{name} after blow {blow} ({}): {seen}; its QEMU waits: {waits:?}; {started}",
            last.unwrap_or_default()
        );
        eprintln!("  hung: {text}");
        self.record.hung.push(text);
        // if it boots now, its hello is answered, and it gets more time
        if self
            .machine(name)
            .is_ok_and(|info| !info.restored && info.pid != self.pids[guest])
        {
            self.shared.guests.lock()[guest].ends();
            storm.handle(self.shared.now(), Event::Booting(guest));
        }
        self.find_pids();
    }

    /// The guest still makes no progress: kills its QEMU and starts it from its disk.
    fn give_up(&mut self, guest: usize, storm: &mut Storm) -> anyhow::Result<()> {
        let name = MACHINES[guest];
        ensure!(
            self.given_up.replace(guest) != Some(guest),
            "{name} does not get on, whatever is done; the node's log ends with:\n{}",
            self.world.log_tail("node.log", 40)
        );
        self.find_pids();
        self.kill_qemu(guest);
        self.start_from_disk(guest)?;
        storm.handle(self.shared.now(), Event::Booting(guest));
        Ok(())
    }

    /// Records the longest stall since the last blow.
    fn note_stall(&mut self) {
        let stalled = self.stalled();
        if let Some(last) = self.record.blows.last_mut() {
            let now = stalled
                .iter()
                .flatten()
                .map(Duration::as_secs_f64)
                .fold(0.0, f64::max);
            last.stall_s = last.stall_s.max(now);
        }
    }

    fn stalled(&self) -> Vec<Option<Duration>> {
        let now = self.shared.now();
        self.shared
            .guests
            .lock()
            .iter()
            .map(|guest| guest.stalled(now))
            .collect()
    }

    fn hear_bad(&mut self) {
        let blow = self.record.blows.len();
        for (name, guest) in MACHINES.iter().zip(self.shared.guests.lock().iter_mut()) {
            for bad in guest.take_bad() {
                eprintln!("  {name}: {bad}");
                self.record
                    .bad
                    .push(format!("{name} after blow {blow}: {bad}"));
            }
        }
    }

    // ----------------------------------------------------------------------------------------------- around it

    fn worker(&self) -> anyhow::Result<Worker> {
        Ok(Worker {
            shared: self.shared.clone(),
            places: Places {
                node: self.world.home.join("node.sock"),
                far: self.world.far_home.join("node.sock"),
                hub: self.world.hub_url(),
                hub_dir: self.world.hub_dir.clone(),
                floe: floe()?,
                token: self.world.token.clone(),
                machines: MACHINES.map(String::from).to_vec(),
                verify_max: VERIFY_MAX.max(5 * Duration::from_secs(self.options.hung_s)),
            },
            done: self.done.clone(),
            promised: self.promised.clone(),
        })
    }

    fn start_working(&mut self) -> anyhow::Result<()> {
        let works: [fn(&Worker); 4] = [
            Worker::capture_without_end,
            Worker::fork_without_end,
            Worker::look_at_kept_without_end,
            Worker::command_without_end,
        ];
        for work in works {
            let (worker, near) = (self.worker()?, self.world.near.clone());
            let run = move || {
                let _ = near.run(|| work(&worker));
            };
            self.threads.push(std::thread::spawn(run));
        }
        Ok(())
    }

    /// Does every kind of work once, without blows; all of it must succeed.
    fn work_once(&mut self) -> anyhow::Result<()> {
        let worker = self.worker()?;
        self.world.near.run(|| worker.once())??;
        let done = std::mem::take(&mut *self.done.lock());
        for wrong in [
            &done.wrong,
            &done.lost_clones,
            &done.lost_pushes,
            &done.lost_tokens,
        ] {
            ensure!(wrong.is_empty(), "before the first blow: {wrong:?}");
        }
        Ok(())
    }

    /// Removes all machines, captures and everything on the hub, and ends all processes.
    fn tear_down(&mut self, after_blows: bool) -> anyhow::Result<()> {
        self.shared.over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let worker = self.worker()?;
        for name in MACHINES {
            let client = self.client()?;
            let _ = client.kill(name, &KillRequest { all: true });
        }
        for machine in self.client()?.machines()?.machines {
            let removed = self.client()?.remove_machine(&machine.name, true);
            removed.with_context(|| format!("{} cannot be removed", machine.name))?;
        }
        for substrate in self.client()?.substrates()?.substrates {
            self.client()?.remove_substrate(&substrate.name)?;
        }
        self.world.near.run(|| {
            worker.tidy()?;
            worker.clear_hub()
        })??;
        if after_blows {
            // a hub looks for abandoned uploads at intervals as long as their expiry time
            std::thread::sleep(2 * UPLOAD_EXPIRY + Duration::from_secs(5));
        }
        // removing the image that the machines are started from also removes its traces
        remove_images(&self.client()?, true)?;
        self.client()?.cache_gc()?;
        Client::connect(self.world.far_home.join("node.sock"))?.cache_gc()?;
        self.world.end_all();
        self.shared.over.store(false, Relaxed);
        Ok(())
    }

    /// Copies the logs to the directory that the user has named.
    pub fn keep_logs(&self) {
        let Some(dir) = &self.options.keep else {
            return;
        };
        let _ = std::fs::create_dir_all(dir);
        for entry in std::fs::read_dir(self.world.logs())
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = std::fs::copy(entry.path(), dir.join(entry.file_name()));
        }
    }
}
