//! The frames of a process that its user has not taken yet.
//!
//! A guest has credit for bytes, and decides how many of them a frame has: one byte a frame would take the node a hundred times the
//! memory that it gave credit for. So bytes join the frame before them, and once many frames wait, the last one of their channel,
//! though something of another channel came between.

use floe_guest::exec::frame::{Channel, DATA_BYTES_MAX, Frame};
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::Notify;

/// How many frames may wait before what came between two pieces of a channel keeps them apart no longer.
const FRAMES_KEPT_APART: usize = 256;

/// A queue between the port's reader and a process's user.
#[derive(Default)]
pub(super) struct Queue {
    frames: Mutex<VecDeque<Frame>>,
    come: Notify,
}

impl Queue {
    /// Appends a frame.
    pub fn push(&self, frame: Frame) {
        let mut frames = self.frames.lock();
        if !joined(&mut frames, &frame) {
            frames.push_back(frame);
        }
        drop(frames);
        self.come.notify_one();
    }

    /// Takes the first frame, if there is one.
    pub fn pop(&self) -> Option<Frame> {
        self.frames.lock().pop_front()
    }

    /// Waits for the first frame, and takes it.
    pub async fn next(&self) -> Frame {
        loop {
            if let Some(frame) = self.pop() {
                return frame;
            }
            self.come.notified().await;
        }
    }
}

/// Appends a frame's bytes to one that waits; returns whether there is one for them.
fn joined(frames: &mut VecDeque<Frame>, frame: &Frame) -> bool {
    let Frame::Data { channel, bytes, .. } = frame else {
        return false;
    };
    let reach = match frames.len() >= FRAMES_KEPT_APART {
        true => frames.len(),
        false => 1,
    };
    let mut latest = frames.iter_mut().rev().take(reach);
    let found = latest.find_map(|frame| piece_of(frame, *channel));
    match found.filter(|waiting| waiting.len() + bytes.len() <= DATA_BYTES_MAX) {
        Some(waiting) => {
            waiting.extend(bytes);
            true
        }
        None => false,
    }
}

/// Returns the bytes of a frame if they are of this channel.
fn piece_of(frame: &mut Frame, of: Channel) -> Option<&mut Vec<u8>> {
    match frame {
        Frame::Data { channel, bytes, .. } if *channel == of => Some(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_guest::exec::mux::WINDOW_BYTES;

    fn data(channel: Channel, bytes: &[u8]) -> Frame {
        Frame::Data {
            stream: 1,
            channel,
            bytes: bytes.into(),
        }
    }

    #[test]
    fn a_guest_that_sends_single_bytes_takes_no_more_memory_than_it_has_credit_for() {
        let queue = Queue::default();
        for n in 0..WINDOW_BYTES {
            for channel in [Channel::Output, Channel::Errors] {
                queue.push(data(channel, &[n as u8]));
            }
        }
        let full = 2 * WINDOW_BYTES as usize / DATA_BYTES_MAX;
        let waiting = queue.frames.lock().len();
        assert!(waiting <= FRAMES_KEPT_APART + full + 2, "{waiting} frames");
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        while let Some(Frame::Data { channel, bytes, .. }) = queue.pop() {
            match channel {
                Channel::Output => output.extend(bytes),
                _ => errors.extend(bytes),
            }
        }
        let sent: Vec<u8> = (0..WINDOW_BYTES).map(|n| n as u8).collect();
        assert!(output == sent && errors == sent);
    }

    #[test]
    fn what_a_process_says_on_two_channels_stays_in_order_while_few_frames_wait() {
        let queue = Queue::default();
        for (channel, bytes) in [
            (Channel::Output, &b"a"[..]),
            (Channel::Output, b"b"),
            (Channel::Errors, b"c"),
            (Channel::Output, b"d"),
            (Channel::Output, &[0; DATA_BYTES_MAX]),
        ] {
            queue.push(data(channel, bytes));
        }
        let end = Frame::End {
            stream: 1,
            channel: Channel::Output,
        };
        queue.push(end.clone());
        assert_eq!(queue.pop(), Some(data(Channel::Output, b"ab")));
        assert_eq!(queue.pop(), Some(data(Channel::Errors, b"c")));
        assert_eq!(queue.pop(), Some(data(Channel::Output, b"d")));
        let whole = data(Channel::Output, &[0; DATA_BYTES_MAX]);
        assert_eq!(queue.pop(), Some(whole));
        assert_eq!(queue.pop(), Some(end));
        assert_eq!(queue.pop(), None);
    }
}
