//! The user at a machine's screen or console, for the code that passes on what the user does: it asks whether that can go to QEMU now,
//! and passes it on or has it kept.

use crate::{
    error::NodeError,
    vnc::{Done, Stand, Step},
};
use floe_guest::input::{Input, TEXT_INPUT_BYTES_MAX};
use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::Mutex,
    task::spawn_blocking,
    time::{Interval, MissedTickBehavior, interval},
};

/// How often a machine that stands still is looked at while something is held for it, and the time between two messages when it goes on:
/// a PC's keyboard buffers eight keys.
const HELD_EVERY: Duration = Duration::from_millis(20);

/// A user at one machine. Dropping it ends nothing.
pub trait Typist: Send + Sync {
    /// Connects to the machine's screen, for a VNC client: that of its QEMU, or of the node that has borrowed it. May block.
    fn screen(&self) -> Result<UnixStream, NodeError>;
    /// How his inputs fare just now. Waits for nothing.
    fn stand(&self) -> Stand;
    /// Notes that he has done something, before that is passed on to QEMU.
    fn has_done(&self);
    /// Held while something is being kept, so that what he does next comes after it, also if nobody waits for that any more.
    fn order(&self) -> &Arc<Mutex<()>>;
    /// Keeps what he has done until the guest has got it. Returns once that is on the disk, and so may block.
    fn keep(&self, done: Vec<Done>) -> Result<(), NodeError>;
}

/// Returns what says when what is held is looked at again.
pub fn held_every() -> Interval {
    let mut every = interval(HELD_EVERY);
    // what was not looked at in time is not made up for: that is also the shortest time between two messages
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    every
}

/// Has what a user has done kept. What he does next waits meanwhile, and goes together then.
pub async fn keep(typist: &Arc<dyn Typist>, done: Vec<Done>) {
    if done.is_empty() {
        return;
    }
    let typist = typist.clone();
    let order = typist.order().clone().lock_owned().await;
    let kept = move || {
        let _order = order;
        typist.keep(done)
    };
    match spawn_blocking(kept).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "what a user has done is lost"),
        Err(error) => tracing::error!(%error, "what a user has done is lost"),
    }
}

/// Returns typed bytes as inputs.
pub fn texts(bytes: &[u8]) -> Vec<Done> {
    let pieces = bytes.chunks(TEXT_INPUT_BYTES_MAX);
    let input = |piece: &[u8]| Done::Input(Input::Text(piece.to_vec()));
    pieces.map(input).collect()
}

/// Does what is to be done with a VNC client's bytes. Returns whether QEMU took what was for it.
pub async fn carry_out(
    step: Step,
    to_qemu: &mut (impl AsyncWrite + Unpin),
    typist: &Arc<dyn Typist>,
) -> bool {
    // first, so that what follows from it is already known to
    if step.pressed {
        typist.has_done();
    }
    keep(typist, step.keep).await;
    step.pass.is_empty() || to_qemu.write_all(&step.pass).await.is_ok()
}

/// A user whose inputs fare as a test says.
#[doc(hidden)]
#[derive(Default)]
pub struct Tried {
    /// How they fare.
    pub stand: parking_lot::Mutex<Stand>,
    /// How often something was done.
    pub done: parking_lot::Mutex<u32>,
    /// What was kept.
    pub kept: parking_lot::Mutex<Vec<Done>>,
    /// Wakes who waits for that.
    pub has_kept: tokio::sync::Notify,
    order: Arc<Mutex<()>>,
}

impl Typist for Tried {
    fn screen(&self) -> Result<UnixStream, NodeError> {
        Err(crate::error::failed("a test has its own", ""))
    }

    fn stand(&self) -> Stand {
        *self.stand.lock()
    }

    fn has_done(&self) {
        *self.done.lock() += 1;
    }

    fn order(&self) -> &Arc<Mutex<()>> {
        &self.order
    }

    fn keep(&self, done: Vec<Done>) -> Result<(), NodeError> {
        self.kept.lock().extend(done);
        self.has_kept.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_cut_into_inputs_that_a_guest_takes() {
        assert!(texts(b"").is_empty());
        let long = vec![b'a'; 2 * TEXT_INPUT_BYTES_MAX + 1];
        let cut = texts(&long);
        assert_eq!(cut.len(), 3);
        let is_good = |done: &Done| matches!(done, Done::Input(input) if input.check().is_ok());
        assert!(cut.iter().all(is_good));
    }
}
