//! The program in the guests of `floe-lab cpu-user`: two threads that need each other, as a kernel's or a database's do.
//!
//! ```text
//! floe-spin lock SECONDS       -> @lock COUNT MICROSECONDS      a lock that is waited for by spinning, taken again and again
//! floe-spin barrier SECONDS    -> @barrier COUNT MICROSECONDS   a barrier that is waited at by spinning, after equal work
//! floe-spin compute SECONDS    -> @compute COUNT MICROSECONDS   equal work, and nobody waits for anybody
//! ```
//!
//! All spinning is done in user space, where no kernel sees who waits for whom. It needs no crate: `floe-lab cpu-user` compiles it with
//! `rustc -C target-feature=+crt-static`.
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 2;
/// Rounds of arithmetic while the lock is held, and between two locks.
const HELD: u64 = 400;
const BETWEEN: u64 = 400;
/// The same between two barriers, and in one piece of what is only computed.
const PIECE: u64 = 20_000;

/// Work that no compiler leaves out.
fn work(rounds: u64) {
    let mut value = rounds;
    for round in 0..rounds {
        value = black_box(value.wrapping_mul(6364136223846793005).wrapping_add(round));
    }
}

/// What the threads share.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    locked: AtomicBool,
    /// How many threads have come to the barrier, in all.
    come: AtomicU64,
    count: AtomicU64,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn lock(&self) {
        while self.locked.swap(true, Ordering::Acquire) {
            while self.locked.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
    }

    /// Takes the lock once.
    fn lock_once(&self) {
        self.lock();
        work(HELD);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.locked.store(false, Ordering::Release);
        work(BETWEEN);
    }

    /// Waits until all have come as often. One that has ended its time is not waited for.
    fn barrier_once(&self) {
        work(PIECE);
        let mine = self.come.fetch_add(1, Ordering::AcqRel);
        let all = (mine / THREADS + 1) * THREADS;
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

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (Some(program), Some(seconds)) = (words.get(1), words.get(2).and_then(|s| s.parse().ok()))
    else {
        println!("@error floe-spin lock|barrier|compute SECONDS");
        return;
    };
    let once: fn(&Shared) = match program.as_str() {
        "lock" => Shared::lock_once,
        "barrier" => Shared::barrier_once,
        "compute" => Shared::compute_once,
        other => {
            println!("@error no program {other}");
            return;
        }
    };
    let shared = Shared::default();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !shared.is_over() {
                    once(&shared);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(seconds));
        shared.over.store(true, Ordering::Relaxed);
    });
    let took_us = start.elapsed().as_micros();
    println!("@{program} {} {took_us}", shared.count.load(Ordering::Relaxed));
}
