//! Tests with loom every order in which beats of a pulse and a wait for them can meet. The code under test is `pulse.rs` itself,
//! compiled with loom's locks.

/// Where `pulse.rs` takes its locks from.
mod sync {
    pub(super) use loom::sync::{Condvar, Mutex};
}

#[path = "pulse.rs"]
#[allow(clippy::duplicate_mod, reason = "the same code with other locks")]
mod pulse;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use pulse::Pulse;

/// As in `Pulse::wait_for`, whose cancel is a beat as well.
fn wait_until(pulse: &Pulse, look: impl Fn() -> bool) {
    loop {
        let seen = pulse.seen();
        if look() {
            return;
        }
        assert!(pulse.wait(seen, None));
    }
}

#[test]
fn no_beat_is_lost_between_a_look_and_a_wait() {
    loom::model(|| {
        let (pulse, done) = (Arc::new(Pulse::default()), Arc::new(AtomicUsize::new(0)));
        let (beats, beats_done) = (pulse.clone(), done.clone());
        let works = thread::spawn(move || {
            for _ in 0..2 {
                beats_done.fetch_add(1, Ordering::Relaxed);
                beats.beat();
            }
        });
        // if a beat were lost, the model would find this thread waiting with nobody left to wake it
        wait_until(&pulse, || done.load(Ordering::Relaxed) == 2);
        works.join().unwrap();
    });
}

#[test]
fn a_beat_wakes_all_who_wait() {
    let mut model = loom::model::Builder::new();
    // all orders of three threads are too many
    model.preemption_bound = Some(2);
    model.check(|| {
        let (pulse, done) = (Arc::new(Pulse::default()), Arc::new(AtomicUsize::new(0)));
        let (other, other_done) = (pulse.clone(), done.clone());
        let waits = thread::spawn(move || {
            wait_until(&other, || other_done.load(Ordering::Relaxed) == 1);
        });
        let (beats, beats_done) = (pulse.clone(), done.clone());
        let beater = thread::spawn(move || {
            beats_done.store(1, Ordering::Relaxed);
            beats.beat();
        });
        wait_until(&pulse, || done.load(Ordering::Relaxed) == 1);
        waits.join().unwrap();
        beater.join().unwrap();
    });
}
