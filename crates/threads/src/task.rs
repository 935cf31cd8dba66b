//! Threads for one piece of work.

use crate::{Cancel, Pulse, StartError, Waited};
use parking_lot::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The work of a thread has panicked. The panic's text is in the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread {name} failed: {message}")]
pub struct Panicked {
    /// The thread's name.
    pub name: String,
    /// The panic's message.
    pub message: String,
}

/// How long a thread rests after its work has panicked, so that a panic that repeats at once does not fill the log.
pub(crate) const AFTER_PANIC: Duration = Duration::from_secs(1);

/// A piece of work on a thread of its own. Dropping this lets the thread go on alone.
#[derive(Debug)]
pub struct Task<T> {
    result: Arc<Mutex<Option<Result<T, Panicked>>>>,
    done: Arc<Pulse>,
}

/// Starts a thread with this name (of which the kernel shows 15 bytes) that does `work` and ends. A panic is logged, and is what
/// [`Task::wait`] returns then.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Task<T>, StartError> {
    let name = name.into();
    let result = Arc::new(Mutex::new(None));
    let done = Arc::new(Pulse::new());
    let task = Task {
        result: result.clone(),
        done: done.clone(),
    };
    let of_thread = name.clone();
    let run = move || {
        // nothing of the work is seen afterwards but its result
        let come = guarded(&of_thread, AssertUnwindSafe(work));
        *result.lock() = Some(come);
        done.beat();
    };
    match thread::Builder::new().name(name.clone()).spawn(run) {
        Ok(_) => Ok(task),
        Err(source) => Err(StartError { name, source }),
    }
}

/// Starts a thread with this name that does `work`, and does it again after a moment if it panics, until it returns: for work
/// that nobody else would do. A panic is logged.
pub fn keep_running(
    name: impl Into<String>,
    mut work: impl FnMut() + Send + 'static,
) -> Result<Task<()>, StartError> {
    let name = name.into();
    let of_thread = name.clone();
    spawn(name, move || {
        while guarded(&of_thread, AssertUnwindSafe(&mut work)).is_err() {
            thread::sleep(AFTER_PANIC);
        }
    })
}

impl<T> Task<T> {
    /// Waits for the end of the work and returns its result.
    pub fn wait(self) -> Result<T, Panicked> {
        loop {
            if let Waited::Come(result) = self.wait_until(None, None) {
                return result;
            }
        }
    }

    /// Waits for the end of the work, at most until `until` and until `cancel` is thrown. The result comes once.
    pub fn wait_until(
        &self,
        until: Option<Instant>,
        cancel: Option<&Cancel>,
    ) -> Waited<Result<T, Panicked>> {
        let result = || self.result.lock().take();
        self.done.wait_for(until, cancel, result)
    }
}

/// Does `work`. A panic of it is logged and returned.
pub(crate) fn guarded<T>(
    name: &str,
    work: AssertUnwindSafe<impl FnOnce() -> T>,
) -> Result<T, Panicked> {
    catch_unwind(work).map_err(|panic| {
        let message = message(&*panic);
        tracing::error!(thread = name, message, "a thread's work has panicked");
        Panicked {
            name: name.into(),
            message,
        }
    })
}

/// Returns the text of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a text").to_owned()
}

/// Where [`scope`] starts its threads.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'scope, 'env: 'scope>(&'scope thread::Scope<'scope, 'env>);

/// Calls `work` with a [`Scope`] whose threads may borrow from the caller, and returns when all of them have ended. Panics if
/// one of them has panicked and nobody joined it.
pub fn scope<'env, T>(work: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> T) -> T {
    thread::scope(|scope| work(Scope(scope)))
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread with this name. A panic of its work is logged, and returned by the handle's `join`. Panics itself if the
    /// host has no thread to give.
    pub fn spawn<T: Send + 'scope>(
        self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        match self.try_spawn(name, work) {
            Ok(thread) => thread,
            Err(error) => panic!("{error}"),
        }
    }

    /// Does the same as [`Scope::spawn`], and returns an error if the host has no thread to give.
    pub fn try_spawn<T: Send + 'scope>(
        self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Result<ScopedJoinHandle<'scope, T>, StartError> {
        let of_thread = name.to_owned();
        let run = move || {
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
                let message = message(&*panic);
                tracing::error!(thread = of_thread, message, "a thread's work has panicked");
                resume_unwind(panic)
            })
        };
        let started = thread::Builder::new()
            .name(name.into())
            .spawn_scoped(self.0, run);
        started.map_err(|source| StartError {
            name: name.into(),
            source,
        })
    }

    /// Starts as many threads with this name as the host gives, at most `count`, that take parts of the same work until nothing
    /// is left of it. If it gives none, this thread does the work.
    pub fn spawn_some(self, name: &str, count: usize, work: impl Fn() + Clone + Send + 'scope) {
        for started in 0..count {
            if let Err(error) = self.try_spawn(name, work.clone()) {
                tracing::warn!(%error, started, count, "fewer threads than wished");
                if started == 0 {
                    work();
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn the_result_of_a_thread_comes_to_who_waits_and_so_does_its_panic() {
        let named = spawn("adds", || thread::current().name().map(str::to_owned)).unwrap();
        assert_eq!(named.wait().unwrap().as_deref(), Some("adds"));
        let wrong = spawn("fails", || panic!("number {}", 3)).unwrap();
        let error = wrong.wait().map(|(): ()| ()).unwrap_err();
        assert_eq!(error.to_string(), "the thread fails failed: number 3");
    }

    #[test]
    fn a_thread_that_is_kept_running_goes_on_after_a_panic_until_its_work_is_over() {
        let (times, counted) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (work_times, work_counted) = (times.clone(), counted.clone());
        let work = move || {
            let time = work_times.fetch_add(1, Ordering::SeqCst);
            assert!(time > 0, "the first time goes wrong");
            work_counted.fetch_add(1, Ordering::SeqCst);
        };
        keep_running("again", work).unwrap().wait().unwrap();
        let seen = [&times, &counted].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(seen, [2, 1]);
    }

    #[test]
    fn a_wait_for_a_thread_ends_in_time_and_when_it_is_cancelled() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let task = spawn("waits", move || wait.recv().is_err()).unwrap();
        let soon = Instant::now().checked_add(Duration::from_millis(1));
        assert_eq!(task.wait_until(soon, None), Waited::TimedOut);
        let cancel = Cancel::default();
        cancel.cancel();
        assert_eq!(task.wait_until(None, Some(&cancel)), Waited::Cancelled);
        drop(go);
        assert_eq!(task.wait(), Ok(true));
    }

    #[test]
    fn threads_of_a_scope_borrow_and_their_panics_reach_the_caller() {
        let count = AtomicU32::new(0);
        scope(|scope| {
            scope.spawn_some("counts", 3, || {
                count.fetch_add(1, Ordering::SeqCst);
            });
        });
        assert_eq!(count.load(Ordering::SeqCst), 3);
        let failed = scope(|scope| {
            let wrong = scope.spawn("fails", || panic!("wrong"));
            wrong.join().map(|(): ()| ()).is_err()
        });
        assert!(failed);
    }
}
