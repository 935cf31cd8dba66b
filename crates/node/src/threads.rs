//! Background threads of services: each runs for as long as its service lives.
//!
//! Each waits for its interval to pass, to be woken, or for a message, and notices at once when the node ends. If its work
//! panics, that is logged and reported as an event, and the thread goes on after a moment, since nobody else does its work.

use crate::error::{NodeError, at};
use parking_lot::{Condvar, Mutex};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How long a thread rests after its work has panicked, so that a panic that repeats at once does not fill the log.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Called with the name of a thread whose work has panicked.
pub(crate) type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// All background threads.
pub(crate) struct Threads {
    bells: Mutex<Vec<Weak<Bell>>>,
    report: Report,
}

/// What one thread waits on, and what wakes it.
#[derive(Default)]
struct Bell {
    rung: Mutex<Rung>,
    told: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Rung {
    /// The thread is to look now.
    now: bool,
    /// The thread is to end.
    over: bool,
}

impl Bell {
    fn ring(&self, over: bool) {
        let mut rung = self.rung.lock();
        rung.now = true;
        rung.over |= over;
        self.told.notify_all();
    }

    /// Waits until the bell is rung, at most for `long`. Returns whether the thread is to end.
    fn wait(&self, long: Duration) -> bool {
        let until = Instant::now() + long;
        let mut rung = self.rung.lock();
        while !rung.now && !rung.over {
            if self.told.wait_until(&mut rung, until).timed_out() {
                break;
            }
        }
        rung.now = false;
        rung.over
    }
}

/// Wakes one thread started by [`Threads::keep_waking`].
#[derive(Clone, Default)]
pub(crate) struct Waker(Arc<Bell>);

impl Waker {
    /// Makes the thread look again: now, or right after the look that is under way.
    pub fn wake(&self) {
        self.0.ring(false);
    }
}

impl Threads {
    /// Returns an empty set of threads. `report` is called with the name of a thread whose work has panicked.
    pub fn new(report: Report) -> Threads {
        Threads {
            bells: Mutex::default(),
            report,
        }
    }

    /// Starts a thread that calls `look` at once and then at the interval `every`, until the service is dropped or the node
    /// ends.
    pub fn keep<S: Send + Sync + 'static>(
        &self,
        name: &'static str,
        service: &Arc<S>,
        every: Duration,
        look: impl FnMut(&Arc<S>) + Send + 'static,
    ) -> Result<(), NodeError> {
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
    ) -> Result<(), NodeError> {
        let bell = waker.0.clone();
        let mut bells = self.bells.lock();
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(&bell));
        drop(bells);
        let (service, report) = (Arc::downgrade(service), self.report.clone());
        start(name, move || {
            loop {
                let Some(service) = service.upgrade() else {
                    return;
                };
                let done = guarded(name, &report, || look(&service));
                drop(service);
                let rest = if done { every } else { every.max(AFTER_PANIC) };
                if bell.wait(rest) {
                    return;
                }
            }
        })
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
    ) -> Result<(), NodeError> {
        let (service, report) = (Arc::downgrade(service), self.report.clone());
        start(name, move || {
            loop {
                let come = match inbox.recv_timeout(idle) {
                    Ok(come) => Some(come),
                    Err(mpsc::RecvTimeoutError::Timeout) => None,
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                };
                let Some(service) = service.upgrade() else {
                    return;
                };
                if !guarded(name, &report, || take(&service, come)) {
                    drop(service);
                    thread::sleep(AFTER_PANIC);
                }
            }
        })
    }

    /// Ends all threads that wait for a bell: each is woken and does not look again.
    pub fn end(&self) {
        for bell in self.bells.lock().drain(..) {
            if let Some(bell) = bell.upgrade() {
                bell.ring(true);
            }
        }
    }
}

fn start(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), NodeError> {
    let thread = thread::Builder::new().name(name.into());
    let started = thread.spawn(work);
    started
        .map(drop)
        .map_err(at(format!("cannot start the thread {name}")))
}

/// Runs `work` and returns whether it ended without a panic; a panic is reported.
fn guarded(name: &str, report: &Report, work: impl FnOnce()) -> bool {
    // its locks are parking_lot's, which a panic releases and does not poison
    let done = catch_unwind(AssertUnwindSafe(work)).is_ok();
    if !done {
        report(name);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn a_thread_looks_when_it_is_woken_and_ends_with_the_node_however_long_it_would_wait() {
        let (threads, _told) = threads();
        let (tell, looked) = mpsc::channel();
        let (service, waker) = (Arc::new(()), Waker::default());
        let look = move |_: &Arc<()>| tell.send(()).unwrap();
        threads
            .keep_waking("test", &waker, &service, LONG, look)
            .unwrap();
        looked.recv().unwrap();
        waker.wake();
        looked.recv().unwrap();
        threads.end();
        // the thread has dropped its sender
        assert_eq!(looked.recv(), Err(mpsc::RecvError));
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
}
