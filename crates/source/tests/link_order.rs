//! Tests whose demand goes first over a link: many machines, one source that takes one request at a time or is slow.

mod common;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::content;
use common::script::Script;
use floe_image::{Hash, Kind};
use floe_sched::Status;
use floe_source::{
    Class, FetchOptions, FetchOrder, Fetcher, Limit, MachineId, Purpose, SourceError, Who,
};
use floe_store::Cache;

const IMAGE: Hash = Hash([9; 32]);
const BUSY: MachineId = MachineId(1);
const USER: MachineId = MachineId(2);

struct Bench {
    script: Arc<Script>,
    fetcher: Fetcher,
    hashes: Vec<Hash>,
    told: mpsc::Receiver<usize>,
    tell: mpsc::Sender<usize>,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new(items: usize, order: FetchOrder, threads: usize) -> Bench {
        let all: Vec<(Hash, Vec<u8>)> = (0..items as u64)
            .map(|i| (Hash::of(&content(i)), content(i)))
            .collect();
        let dir = tempfile::tempdir().unwrap();
        let cache = Arc::new(Cache::open(dir.path(), 64 << 20).unwrap());
        let script = Script::new(&all);
        let options = FetchOptions {
            demand_threads: threads,
            prefetch_threads: 1,
            here_max: 0,
            order,
            ..FetchOptions::default()
        };
        let (tell, told) = mpsc::channel();
        Bench {
            fetcher: Fetcher::new(script.clone(), cache, options),
            script,
            hashes: all.iter().map(|(hash, _)| *hash).collect(),
            told,
            tell,
            _dir: dir,
        }
    }

    fn demand(&self, machine: MachineId, class: Class, item: usize) {
        let tell = self.tell.clone();
        let who = Who {
            class,
            ..Who::demand(machine)
        };
        let done = move |outcome: Result<&[u8], SourceError>| {
            outcome.unwrap();
            let _ = tell.send(item);
        };
        let hash = self.hashes[item];
        self.fetcher.demand(who, &IMAGE, Kind::Chunk, &hash, done);
    }

    /// Waits for the answers of so many demands.
    fn answers(&self, count: usize) {
        for _ in 0..count {
            let told = self.told.recv_timeout(Duration::from_secs(60));
            told.expect("a demand was never answered");
        }
    }

    /// Returns what is known once the last read has ended, which is a moment after its items were delivered.
    fn status_at_rest(&self) -> Status {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let status = self.fetcher.status().unwrap();
            if status.in_flight == 0 {
                return status;
            }
            assert!(Instant::now() < until, "{status:?}");
            std::thread::yield_now();
        }
    }

    /// Returns in which of the source's reads an item was.
    fn read_of(&self, item: usize) -> usize {
        let log = self.script.log.lock();
        let at = log
            .iter()
            .position(|(_, read)| read.contains(&self.hashes[item]));
        at.expect("it was never read")
    }

    /// Fills the link: a request of the busy machine is under way and doesn't end until the gate is opened, and so many more wait.
    fn fill(&self, waiting: usize) {
        self.script.close(&[Purpose::Demand]);
        self.demand(BUSY, Class::Normal, 0);
        self.script.await_waiting(1);
        for item in 1..=waiting {
            self.demand(BUSY, Class::Normal, item);
        }
    }
}

#[test]
fn what_a_person_waits_for_does_not_queue_behind_another_machines_misses() {
    let bench = Bench::new(600, FetchOrder::Vsip, 1);
    bench.fill(500);
    bench.demand(USER, Class::Interactive, 599);
    // The link has a place for one request more than it needs, for just this; but there is only one thread here.
    bench.script.close(&[]);
    bench.answers(502);
    assert_eq!(bench.read_of(599), 1, "right after the one under way");
    let log = bench.script.log.lock();
    assert_eq!(log[1].1.len(), 1, "and nobody else's with it");
}

#[test]
fn first_come_first_served_is_what_it_says() {
    let bench = Bench::new(600, FetchOrder::Fifo, 1);
    bench.fill(500);
    bench.demand(USER, Class::Interactive, 599);
    bench.script.close(&[]);
    bench.answers(502);
    assert_eq!(bench.read_of(599), bench.script.reads() - 1);
    assert!(bench.fetcher.status().is_none());
}

#[test]
fn a_machine_with_many_misses_takes_turns_with_one_that_has_few() {
    let bench = Bench::new(600, FetchOrder::Vsip, 1);
    bench.fill(500);
    for item in 520..530 {
        bench.demand(USER, Class::Normal, item);
    }
    bench.script.close(&[]);
    bench.answers(511);
    // Machines take turns within a request too, so all ten are among the first 64 of the 510 that waited.
    for item in 520..530 {
        assert_eq!(bench.read_of(item), 1);
    }
}

#[test]
fn a_weight_and_a_cap_hold_for_the_link_too() {
    let bench = Bench::new(1300, FetchOrder::Vsip, 1);
    let limit = |weight, cap_percent| Limit {
        weight,
        cap_percent,
        among: 1,
    };
    bench.fetcher.limit(BUSY, limit(5, 100));
    bench.fetcher.limit(USER, limit(15, 100));
    bench.fill(400);
    for item in 500..900 {
        bench.demand(USER, Class::Normal, item);
    }
    bench.script.close(&[]);
    bench.answers(801);
    // Three quarters of what was read while both had something.
    let log = bench.script.log.lock();
    let both: Vec<Hash> = log[1..].iter().flat_map(|(_, read)| read.clone()).collect();
    let users = both[..256]
        .iter()
        .filter(|hash| bench.hashes[500..900].contains(hash));
    let users = users.count();
    assert!((150..=240).contains(&users), "{users} of 256");
    let status = bench.status_at_rest();
    let of = |machine| status.machines.iter().find(|one| one.machine == machine);
    assert_eq!(of(USER).unwrap().limit.weight, 15);
    assert_eq!(of(USER).unwrap().classes[1].served, 400);
    assert!(status.capacity_per_s > 0.0);
}

#[test]
fn the_most_urgent_wish_for_an_item_counts() {
    let bench = Bench::new(600, FetchOrder::Vsip, 1);
    bench.fill(500);
    // The last one that the busy machine waits for is what a person is waiting for, too.
    bench.demand(USER, Class::Interactive, 500);
    bench.script.close(&[]);
    bench.answers(502);
    assert_eq!(bench.read_of(500), 1);
    let asked = bench.script.asked.lock();
    assert_eq!(
        (asked[1].machine, asked[1].class),
        (USER, Class::Interactive)
    );
    assert_eq!(bench.fetcher.stats().joined, 1);
    assert!(!bench.script.read_twice_at_once());
}

#[test]
fn a_hundred_machines_all_get_their_chunks_and_nothing_is_left_behind() {
    const MACHINES: usize = 100;
    const EACH: usize = 12;
    let bench = Bench::new(MACHINES * EACH, FetchOrder::Vsip, 8);
    for item in 0..MACHINES * EACH {
        // Most are bulk, some interactive; one of the machines asks for far more urgency than the others.
        let machine = item % MACHINES;
        let class = match (machine, item / MACHINES) {
            (0, _) | (_, 0) => Class::Interactive,
            (_, 1..4) => Class::Normal,
            _ => Class::Bulk,
        };
        bench.demand(MachineId(1 + machine as u32), class, item);
    }
    bench.answers(MACHINES * EACH);
    let status = bench.status_at_rest();
    assert_eq!(status.machines.len(), MACHINES);
    let left = status.machines.iter().map(|one| one.queued + one.in_flight);
    assert_eq!(left.sum::<usize>(), 0);
    assert_eq!(bench.fetcher.stats().waiting, 0);
    for machine in 1..=MACHINES as u32 {
        bench.fetcher.gone(MachineId(machine));
    }
    assert_eq!(bench.fetcher.status().unwrap().machines, []);
}

#[test]
fn prefetch_of_a_busy_machine_does_not_hold_up_another_ones_of_the_same_image() {
    let bench = Bench::new(1000, FetchOrder::Vsip, 1);
    let ahead = |machine| Who {
        machine,
        purpose: Purpose::Prefetch,
        class: Class::Normal,
    };
    let wants = |items: std::ops::Range<usize>| -> Vec<(Kind, Hash)> {
        let hashes = bench.hashes[items].iter();
        hashes.map(|hash| (Kind::Chunk, *hash)).collect()
    };
    bench.script.close(&[Purpose::Prefetch]);
    bench.fetcher.prefetch(ahead(BUSY), &IMAGE, wants(0..900));
    bench.script.await_waiting(1);
    let (tell, told) = mpsc::channel();
    let each: floe_source::Each = Arc::new(move |_, _, _| tell.send(()).unwrap());
    // Some of it is in the other machine's queue already.
    let own = wants(890..910);
    bench.fetcher.prefetch_with(ahead(USER), &IMAGE, own, each);
    bench.script.close(&[]);
    for _ in 0..20 {
        told.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    assert!(bench.read_of(895) <= 2, "in read {}", bench.read_of(895));
    assert!(bench.read_of(905) <= 2, "in read {}", bench.read_of(905));
}
