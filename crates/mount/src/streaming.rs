//! What the mount's threads share about an image that streams by a model: whether it does, and which of its machines should be
//! paused.

use crate::Buffering;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(crate) struct Streaming {
    /// Whether there is a model: then every first touch is reported to the planner.
    active: AtomicBool,
    desk: Arc<Desk>,
}

/// Where reports wait for the listener: for each machine only the last one.
#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The last report about each machine that is paused, or that the listener believes to be.
    said: BTreeMap<String, Buffering>,
    /// Machines that the listener believes to be paused.
    heard: BTreeSet<String>,
    /// The number of the listener; the threads of earlier ones end.
    listener: u64,
    closed: bool,
}

impl State {
    /// Returns a report that the listener doesn't know yet. A pause that ended before it was told isn't told any more.
    fn news(&mut self) -> Option<(String, Buffering)> {
        let heard = &self.heard;
        self.said
            .retain(|machine, said| said.pause || heard.contains(machine));
        let new = |(machine, said): &(&String, &Buffering)| said.pause != heard.contains(*machine);
        let (machine, said) = self.said.iter().find(new)?;
        let (machine, said) = (machine.clone(), *said);
        match said.pause {
            true => self.heard.insert(machine.clone()),
            false => self.heard.remove(&machine),
        };
        Some((machine, said))
    }
}

impl Streaming {
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    pub(crate) fn activate(&self) {
        self.active.store(true, Ordering::Relaxed);
    }

    /// Reports that a machine should pause or go on. Never blocks.
    pub(crate) fn say(&self, machine: &str, buffering: Buffering) {
        let mut state = self.desk.state.lock();
        state.said.insert(machine.to_owned(), buffering);
        self.desk.changed.notify_all();
    }

    /// Calls `listen` with a machine's name and every report about it from now on, and at once for those that should be paused
    /// now. It runs on a thread of its own, because it may block (QEMU takes time to stop) and the planner must not wait for
    /// it. The thread ends when the image is gone or another listener takes its place.
    pub(crate) fn listen(&self, listen: impl Fn(&str, Buffering) + Send + Sync + 'static) {
        let desk = self.desk.clone();
        let mut state = desk.state.lock();
        state.listener += 1;
        state.heard.clear();
        let number = state.listener;
        drop(state);
        let run = move || {
            let mut state = desk.state.lock();
            while !state.closed && state.listener == number {
                match state.news() {
                    Some((machine, said)) => {
                        parking_lot::MutexGuard::unlocked(&mut state, || listen(&machine, said));
                    }
                    None => desk.changed.wait(&mut state),
                }
            }
        };
        self.desk.changed.notify_all();
        if let Err(error) = floe_threads::spawn("floe-buffering", run) {
            tracing::error!(%error, "machines can't be paused for buffering");
        }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.desk.state.lock().closed = true;
        self.desk.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const PAUSE: Buffering = Buffering {
        pause: true,
        missing_bytes: 5,
        eta_us: 6,
    };
    const GO_ON: Buffering = Buffering {
        pause: false,
        ..PAUSE
    };

    fn told(machine: &str, said: Buffering) -> Result<(String, Buffering), mpsc::RecvError> {
        Ok((machine.to_owned(), said))
    }

    #[test]
    fn whoever_listens_late_hears_which_machines_are_paused() {
        let streaming = Streaming::default();
        streaming.say("a", PAUSE);
        streaming.say("b", PAUSE);
        streaming.say("a", GO_ON);
        let (tell, heard) = mpsc::channel();
        streaming.listen(move |machine, said| {
            let _ = tell.send((machine.to_owned(), said));
        });
        assert_eq!(heard.recv(), told("b", PAUSE));
        streaming.say("b", GO_ON);
        assert_eq!(heard.recv(), told("b", GO_ON));
        streaming.say("a", PAUSE);
        assert_eq!(heard.recv(), told("a", PAUSE));
        drop(streaming);
        assert!(heard.recv().is_err(), "its thread has ended");
    }

    #[test]
    fn a_listener_that_takes_its_time_hears_the_last_word_and_no_backlog() {
        let streaming = Streaming::default();
        let (tell, heard) = mpsc::channel();
        let (go_on, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        streaming.listen(move |machine, said| {
            let _ = tell.send((machine.to_owned(), said));
            let _ = held.lock().recv();
        });
        streaming.say("a", PAUSE);
        assert_eq!(heard.recv(), told("a", PAUSE));
        for _ in 0..1000 {
            streaming.say("b", PAUSE);
            streaming.say("b", GO_ON);
        }
        streaming.say("a", GO_ON);
        assert!(streaming.desk.state.lock().said.len() <= 2);
        drop(go_on);
        assert_eq!(heard.recv(), told("a", GO_ON));
        drop(streaming);
        assert!(
            heard.recv().is_err(),
            "of b's pauses nothing was left to tell"
        );
    }
}
