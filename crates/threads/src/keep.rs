//! Threads that look after something for as long as their service lives.
//!
//! Each waits for its interval to pass, to be woken, or for a message, and notices at once when the program ends. If its work
//! panics, that is logged and reported, and the thread goes on after a moment, since nobody else does its work.

use crate::task::{AFTER_PANIC, guarded};
use crate::{Cancel, Pulse, StartError, spawn};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Called with the name of a thread whose work has panicked.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// The threads of a program's services.
pub struct Threads {
    over: Cancel,
    report: Report,
}

/// Wakes one thread started by [`Threads::keep_waking`].
#[derive(Clone, Debug, Default)]
pub struct Waker(Arc<Pulse>);

impl Waker {
    /// Makes the thread look again: now, or right after the look that is under way.
    pub fn wake(&self) {
        self.0.beat();
    }
}

impl Threads {
    /// Returns an empty set of threads. `report` is called with the name of a thread whose work has panicked.
    pub fn new(report: Report) -> Threads {
        Threads {
            over: Cancel::default(),
            report,
        }
    }

    /// Returns the switch that is thrown when all threads are to end, for what they wait on.
    pub fn over(&self) -> &Cancel {
        &self.over
    }

    /// Starts a thread that calls `look` at once and then at the interval `every` (`Duration::MAX`: only when it is over),
    /// until the service is dropped or the threads are to end.
    pub fn keep<S: Send + Sync + 'static>(
        &self,
        name: &'static str,
        service: &Arc<S>,
        every: Duration,
        look: impl FnMut(&Arc<S>) + Send + 'static,
    ) -> Result<(), StartError> {
        self.keep_waking(name, &Waker::default(), service, every, look)
    }

    /// Does the same as [`Threads::keep`] for a thread that `waker` can wake before its interval is over.
    pub fn keep_waking<S: Send + Sync + 'static>(
        &self,
        name: &'static str,
        waker: &Waker,
        service: &Arc<S>,
        every: Duration,
        mut look: impl FnMut(&Arc<S>) + Send + 'static,
    ) -> Result<(), StartError> {
        let (service, report) = (Arc::downgrade(service), self.report.clone());
        let (woken, over) = (waker.0.clone(), self.over.clone());
        let keep = move || {
            let beats = woken.clone();
            let _hook = over.on_cancel(move || beats.beat());
            loop {
                let seen = woken.seen();
                if over.is_cancelled() {
                    return;
                }
                let Some(service) = service.upgrade() else {
                    return;
                };
                let done = reported(name, &report, || look(&service));
                drop(service);
                if !done && !over.sleep(AFTER_PANIC) {
                    return;
                }
                woken.wait(seen, Instant::now().checked_add(every));
            }
        };
        spawn(name, keep).map(drop)
    }

    /// Starts a thread that passes each message from `inbox` to `take`, and `None` when none came for `idle`. It ends when
    /// the service or all senders are gone.
    pub fn follow<S: Send + Sync + 'static, T: Send + 'static>(
        &self,
        name: &'static str,
        service: &Arc<S>,
        inbox: mpsc::Receiver<T>,
        idle: Duration,
        mut take: impl FnMut(&Arc<S>, Option<T>) + Send + 'static,
    ) -> Result<(), StartError> {
        let (service, report) = (Arc::downgrade(service), self.report.clone());
        let over = self.over.clone();
        let follow = move || {
            loop {
                let come = match inbox.recv_timeout(idle) {
                    Ok(come) => Some(come),
                    Err(mpsc::RecvTimeoutError::Timeout) => None,
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                };
                let Some(service) = service.upgrade() else {
                    return;
                };
                if !reported(name, &report, || take(&service, come)) {
                    drop(service);
                    over.sleep(AFTER_PANIC);
                }
            }
        };
        spawn(name, follow).map(drop)
    }

    /// Starts a thread that does `work`, and does it again if it panics, until it returns or the threads are to end.
    pub fn keep_running(
        &self,
        name: &'static str,
        mut work: impl FnMut() + Send + 'static,
    ) -> Result<(), StartError> {
        let (report, over) = (self.report.clone(), self.over.clone());
        let run = move || while !reported(name, &report, &mut work) && over.sleep(AFTER_PANIC) {};
        spawn(name, run).map(drop)
    }

    /// Starts a thread for one piece of work of a service, whose result nobody waits for. A panic is reported.
    pub fn start(
        &self,
        name: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        let report = self.report.clone();
        let run = move || {
            reported(name, &report, work);
        };
        spawn(name, run).map(drop)
    }

    /// Asks all threads that look after something to end: each is woken and does not look again.
    pub fn end(&self) {
        self.over.cancel();
    }
}

/// Does `work` and returns whether it ended without a panic; a panic is logged and reported.
fn reported(name: &str, report: &Report, work: impl FnOnce()) -> bool {
    // the services' locks are parking_lot's, which a panic releases and does not poison
    let done = guarded(name, AssertUnwindSafe(work)).is_ok();
    if !done {
        report(name);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// Longer than any test runs.
    const LONG: Duration = Duration::from_secs(600);

    fn threads() -> (Threads, mpsc::Receiver<String>) {
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        let report = move |name: &str| drop(tell.lock().send(name.to_owned()));
        (Threads::new(Arc::new(report)), told)
    }

    #[test]
    fn a_thread_looks_when_it_is_woken_and_ends_with_the_program_however_long_it_would_wait() {
        for every in [LONG, Duration::MAX] {
            let (threads, _told) = threads();
            let (tell, looked) = mpsc::channel();
            let (service, waker) = (Arc::new(()), Waker::default());
            let look = move |_: &Arc<()>| tell.send(()).unwrap();
            threads
                .keep_waking("test", &waker, &service, every, look)
                .unwrap();
            looked.recv().unwrap();
            waker.wake();
            looked.recv().unwrap();
            threads.end();
            // the thread has dropped its sender
            assert_eq!(looked.recv(), Err(mpsc::RecvError));
        }
    }

    #[test]
    fn a_thread_ends_when_its_service_has_gone() {
        let (threads, _told) = threads();
        let (tell, looked) = mpsc::channel();
        let service = Arc::new(());
        let look = move |_: &Arc<()>| tell.send(()).unwrap();
        let every = Duration::from_millis(1);
        threads.keep("test", &service, every, look).unwrap();
        looked.recv().unwrap();
        drop(service);
        while looked.recv().is_ok() {}
    }

    #[test]
    fn a_panic_is_reported_and_the_thread_goes_on() {
        let (threads, told) = threads();
        let (tell, taken) = mpsc::channel();
        let (send, inbox) = mpsc::channel();
        let (service, times) = (Arc::new(()), AtomicU32::new(0));
        let take = move |_: &Arc<()>, come: Option<u32>| {
            assert!(times.fetch_add(1, SeqCst) > 0, "the first time goes wrong");
            tell.send(come).unwrap();
        };
        threads.follow("test", &service, inbox, LONG, take).unwrap();
        send.send(1).unwrap();
        assert_eq!(told.recv().unwrap(), "test");
        send.send(2).unwrap();
        assert_eq!(taken.recv().unwrap(), Some(2));
        drop(send);
        assert_eq!(taken.recv(), Err(mpsc::RecvError));
    }

    #[test]
    fn one_piece_of_work_that_panics_is_reported() {
        let (threads, told) = threads();
        threads.start("once", || panic!("wrong")).unwrap();
        assert_eq!(told.recv().unwrap(), "once");
    }
}
