//! A switch that asks for an end, and wakes whoever waits.

use crate::Waited;
use crate::pulse::Pulse;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A switch that is thrown once and asks those who hold a clone of it to end. Costs two allocations; a descriptor only when
/// somebody waits for it beside other descriptors.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Inner>);

type OnCancel = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Inner {
    thrown: AtomicBool,
    hooks: Mutex<Hooks>,
    /// Beats once, when the switch is thrown.
    pulse: Pulse,
    /// An eventfd that can be read once the switch is thrown. Made and written with `hooks` locked.
    descriptor: OnceLock<OwnedFd>,
}

#[derive(Default)]
struct Hooks {
    next: u64,
    waiting: BTreeMap<u64, OnCancel>,
}

/// Something that is called when a [`Cancel`] is thrown, for as long as this value lives.
#[must_use = "the hook is taken away when this is dropped"]
pub struct Hook {
    inner: Arc<Inner>,
    number: u64,
}

impl Drop for Hook {
    fn drop(&mut self) {
        // what the hook holds may have a hook here itself, so the lock is released before it is dropped
        let hook = {
            let mut hooks = self.inner.hooks.lock();
            hooks.waiting.remove(&self.number)
        };
        drop(hook);
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}

impl Cancel {
    /// Throws the switch: all who wait are woken, and all hooks are called on this thread. Later calls do nothing.
    pub fn cancel(&self) {
        let hooks = {
            let mut hooks = self.0.hooks.lock();
            if self.0.thrown.swap(true, Ordering::AcqRel) {
                return;
            }
            if let Some(descriptor) = self.0.descriptor.get() {
                throw(descriptor);
            }
            std::mem::take(&mut hooks.waiting)
        };
        self.0.pulse.beat();
        hooks.into_values().for_each(|hook| hook());
    }

    /// Returns whether the switch was thrown.
    pub fn is_cancelled(&self) -> bool {
        self.0.thrown.load(Ordering::Acquire)
    }

    /// Calls `hook` when the switch is thrown, at once if it has been, unless the returned value is dropped before. A hook that
    /// is being called may still run shortly after the drop. It must not wait.
    pub fn on_cancel(&self, hook: impl Fn() + Send + Sync + 'static) -> Hook {
        let hook: OnCancel = Arc::new(hook);
        let mut hooks = self.0.hooks.lock();
        let number = hooks.next;
        hooks.next += 1;
        let handle = Hook {
            inner: self.0.clone(),
            number,
        };
        if self.is_cancelled() {
            drop(hooks);
            hook();
        } else {
            hooks.waiting.insert(number, hook);
        }
        handle
    }

    /// Returns a switch that is thrown together with this one, and can be thrown alone. `Hook` keeps the two together.
    pub fn child(&self) -> (Cancel, Hook) {
        let child = Cancel::default();
        let thrown = child.clone();
        (child, self.on_cancel(move || thrown.cancel()))
    }

    /// Waits for the time to pass. Returns false as soon as the switch is thrown.
    pub fn sleep(&self, time: Duration) -> bool {
        !self.wait(Instant::now().checked_add(time))
    }

    /// Waits until the switch is thrown, at most until `until`. Returns whether it is thrown.
    pub fn wait(&self, until: Option<Instant>) -> bool {
        let seen = self.0.pulse.seen();
        self.is_cancelled() || self.0.pulse.wait(seen, until) || self.is_cancelled()
    }

    /// Returns a descriptor that can be read once the switch is thrown, for a wait beside others; it stays readable.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        let _one_at_a_time = self.0.hooks.lock();
        if self.0.descriptor.get().is_none() {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            if self.is_cancelled() {
                throw(&made);
            }
            let _ = self.0.descriptor.set(made); // nobody else has, the lock is held
        }
        let made = self.0.descriptor.get();
        made.map(AsFd::as_fd)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Makes an eventfd readable.
fn throw(descriptor: &OwnedFd) {
    // fails only if the counter is full, and then it is readable
    let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
}

impl Pulse {
    /// Calls `look` now and after each beat of this pulse until it returns something, at most until `until` and until `cancel`
    /// is thrown. `look` is called with no lock held.
    pub fn wait_for<T>(
        self: &Arc<Self>,
        until: Option<Instant>,
        cancel: Option<&Cancel>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Waited<T> {
        let pulse = self.clone();
        let _hook = cancel.map(|cancel| cancel.on_cancel(move || pulse.beat()));
        loop {
            let seen = self.seen();
            if let Some(come) = look() {
                return Waited::Come(come);
            }
            if cancel.is_some_and(Cancel::is_cancelled) {
                return Waited::Cancelled;
            }
            if !self.wait(seen, until) {
                return Waited::TimedOut;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ready, ready, spawn};
    use std::sync::atomic::AtomicU32;

    /// Longer than any test runs.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_cancel_wakes_a_sleep_a_pulse_and_a_wait_for_descriptors() {
        let cancel = Cancel::default();
        let of = |name, work: fn(&Cancel) -> bool| {
            let cancel = cancel.clone();
            spawn(name, move || work(&cancel)).unwrap()
        };
        let sleeps = of("sleeps", |cancel| cancel.sleep(LONG));
        let looks = of("looks", |cancel| {
            let never: Waited<()> = Arc::new(Pulse::new()).wait_for(None, Some(cancel), || None);
            never == Waited::Cancelled
        });
        let polls = of("polls", |cancel| {
            let (reader, _writer) = io::pipe().unwrap();
            let until = Instant::now().checked_add(LONG);
            ready(&[reader.as_fd()], until, Some(cancel)).unwrap() == Ready::Cancelled
        });
        cancel.cancel();
        assert!(!sleeps.wait().unwrap(), "the sleep was cut short");
        assert!(looks.wait().unwrap());
        assert!(polls.wait().unwrap());
        // and what begins to wait afterwards returns at once
        assert!(!cancel.sleep(LONG));
        assert_eq!(
            ready(&[], None, Some(&cancel)).unwrap(),
            Ready::Cancelled,
            "a descriptor that is made afterwards is readable"
        );
    }

    #[test]
    fn a_hook_is_called_once_and_not_after_it_was_taken_away() {
        let calls = Arc::new(AtomicU32::new(0));
        let count = || {
            let calls = calls.clone();
            move || {
                calls.fetch_add(1, Ordering::SeqCst);
            }
        };
        let cancel = Cancel::default();
        let _kept = cancel.on_cancel(count());
        drop(cancel.on_cancel(count()));
        cancel.cancel();
        cancel.cancel();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let _late = cancel.on_cancel(count());
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_child_follows_its_parent_and_not_the_other_way_round() {
        let parent = Cancel::default();
        let (one, _one) = parent.child();
        let (two, _two) = parent.child();
        one.cancel();
        assert!(!parent.is_cancelled() && !two.is_cancelled());
        parent.cancel();
        assert!(two.is_cancelled());
    }

    #[test]
    fn a_pulse_that_beats_makes_a_waiting_thread_look() {
        let (pulse, there) = (Arc::new(Pulse::new()), Arc::new(AtomicBool::new(false)));
        let (beats, look) = (pulse.clone(), there.clone());
        let waits = spawn("waits", move || {
            beats.wait_for(None, None, || look.load(Ordering::SeqCst).then_some(7))
        });
        pulse.beat();
        there.store(true, Ordering::SeqCst);
        pulse.beat();
        assert_eq!(waits.unwrap().wait().unwrap(), Waited::Come(7));
        let soon = Instant::now().checked_add(Duration::from_millis(1));
        let never: Waited<()> = pulse.wait_for(soon, None, || None);
        assert_eq!(never, Waited::TimedOut);
    }
}
