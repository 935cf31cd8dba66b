//! What the mount's threads share about an image that streams by a model: its progress, and whether its machines should be
//! paused.

use crate::Buffering;
use crossbeam_channel::{Sender, unbounded};
use floe_planner::Progress;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(crate) struct Streaming {
    /// Whether there is a model: then every first touch is reported to the planner.
    active: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    progress: Progress,
    /// What was reported last.
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

    /// Calls `listen` with every report from now on, and at once if the machines should be paused now. It runs on a thread of
    /// its own, because it may block (QEMU takes time to stop) and the planner must not wait for it. The thread ends when the
    /// image is gone or another listener takes its place.
    pub(crate) fn listen(&self, listen: impl Fn(Buffering) + Send + Sync + 'static) {
        let (tell, told) = unbounded();
        let run = move || told.into_iter().for_each(listen);
        if let Err(error) = floe_threads::spawn("floe-buffering", run) {
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
