//! An image's streaming by a model, as the threads of the mount share it: the owner says, the node's callback hears.

use crate::Buffering;
use crossbeam_channel::{Sender, unbounded};
use floe_planner::Progress;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(crate) struct Streaming {
    /// Whether there is a model: then every first touch is told to the planner.
    active: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    progress: Progress,
    /// What was said last.
    said: Option<Buffering>,
    listener: Option<Sender<Buffering>>,
}

impl Streaming {
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    pub(crate) fn activate(&self) {
        self.active.store(true, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> Progress {
        self.state.lock().progress
    }

    pub(crate) fn set_progress(&self, progress: Progress) {
        self.state.lock().progress = progress;
    }

    pub(crate) fn say(&self, buffering: Buffering) {
        let mut state = self.state.lock();
        state.said = Some(buffering);
        if let Some(listener) = &state.listener {
            let _ = listener.send(buffering);
        }
    }

    /// Calls `listen` on a thread of its own for what is said from now on, and at once if the machines are paused now: it may
    /// take its time (QEMU does, when it is stopped), and the planner must not wait for it. The thread ends when the image is
    /// gone or somebody else listens.
    pub(crate) fn listen(&self, listen: impl Fn(Buffering) + Send + Sync + 'static) {
        let (tell, told) = unbounded();
        let thread = std::thread::Builder::new().name("floe-buffering".into());
        let run = move || told.into_iter().for_each(listen);
        if let Err(error) = thread.spawn(run) {
            tracing::error!(%error, "machines can't be paused for buffering");
            return;
        }
        let mut state = self.state.lock();
        if let Some(said) = state.said.filter(|s| s.pause) {
            let _ = tell.send(said);
        }
        state.listener = Some(tell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_listens_late_hears_that_the_machine_is_paused() {
        let streaming = Streaming::default();
        let pause = Buffering {
            pause: true,
            missing_bytes: 5,
            eta_us: 6,
        };
        streaming.say(pause);
        let (tell, told) = unbounded();
        streaming.listen(move |b| {
            let _ = tell.send(b);
        });
        assert_eq!(told.recv(), Ok(pause));
        let go_on = Buffering {
            pause: false,
            ..pause
        };
        streaming.say(go_on);
        assert_eq!(told.recv(), Ok(go_on));
    }
}
