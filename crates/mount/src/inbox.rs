//! What waits for the planner's thread. Three kinds of senders share its order, and each has a bound of its own:
//!
//! - Touches come from threads that serve the kernel, which never wait: beyond [`TOUCHES_QUEUED_MAX`] they are dropped, and the
//!   planner knows a little less. The fault itself doesn't come this way: it goes to the fetcher as a demand.
//! - Answers to what the planner asked for are never dropped, or it would wait for them for ever. There are no more of them than
//!   it may have under way: `in_flight_chunks_max` for each link, and its tables and looks.
//! - Calls of the node (images, machines, models) wait for room once there are [`CALLS_QUEUED_MAX`].

use floe_planner::{Event, RegionId};
use floe_sched::Who;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Instant;

/// How many touches may wait: what four threads report in some 10 ms.
pub(crate) const TOUCHES_QUEUED_MAX: usize = 8192;
/// How many calls of the node may wait.
pub(crate) const CALLS_QUEUED_MAX: usize = 256;

/// A message to the planner's thread.
pub(crate) enum Message {
    /// An event for the planner.
    Event(Event),
    /// A chunk was touched and isn't here. The planner's thread looks its neighbours up.
    Miss {
        region: RegionId,
        chunk: u64,
        who: Who,
    },
    /// A machine's stream begins or ends.
    Machine(Stir),
}

/// What happens to a machine's stream.
pub(crate) enum Stir {
    /// It begins. `running`: the machine runs already.
    Starts {
        machine: std::sync::Arc<crate::machine::Machine>,
        running: bool,
    },
    /// The machine is gone.
    Gone(floe_sched::MachineId),
}

/// What [`Inbox::next`] found.
pub(crate) enum Next {
    Message(Message),
    /// Nothing came until then.
    Nothing,
    /// Nobody will send anything any more.
    Closed,
}

#[derive(Clone, Copy, PartialEq)]
enum From {
    Touch,
    Answer,
    Call,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(From, Message)>,
    touches: usize,
    calls: usize,
    dropped: u64,
    closed: bool,
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    added: Condvar,
    room: Condvar,
}

impl Inbox {
    /// Reports a touch; never blocks. Without room it is dropped, and counted.
    pub(crate) fn touch(&self, message: Message) {
        let mut state = self.state.lock();
        if state.touches >= TOUCHES_QUEUED_MAX || state.closed {
            state.dropped += 1;
            return;
        }
        state.touches += 1;
        self.add(&mut state, From::Touch, message);
    }

    /// Reports the outcome of what the planner asked for; never blocks, and nothing is dropped.
    pub(crate) fn answer(&self, event: Event) {
        let mut state = self.state.lock();
        self.add(&mut state, From::Answer, Message::Event(event));
    }

    /// Sends a call of the node; waits for room. Not for threads that serve the kernel, nor for the planner's.
    pub(crate) fn call(&self, message: Message) {
        let mut state = self.state.lock();
        while state.calls >= CALLS_QUEUED_MAX && !state.closed {
            self.room.wait(&mut state);
        }
        state.calls += 1;
        self.add(&mut state, From::Call, message);
    }

    fn add(&self, state: &mut State, from: From, message: Message) {
        if !state.closed {
            state.queue.push_back((from, message));
            self.added.notify_one();
        }
    }

    /// Waits for the next message, until `until` at most.
    pub(crate) fn next(&self, until: Instant) -> Next {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Next::Closed;
            }
            if let Some((from, message)) = state.queue.pop_front() {
                match from {
                    From::Touch => state.touches -= 1,
                    From::Answer => {}
                    From::Call => {
                        state.calls -= 1;
                        self.room.notify_one();
                    }
                }
                return Next::Message(message);
            }
            if self.added.wait_until(&mut state, until).timed_out() {
                return Next::Nothing;
            }
        }
    }

    /// Returns how many touches were dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.state.lock().dropped
    }

    /// Ends all waiting; what is queued is dropped.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.queue.clear();
        self.added.notify_all();
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::Duration;

    fn touch(chunk: u64) -> Message {
        let who = Who::default();
        Message::Event(Event::Hit {
            region: 0,
            chunk,
            who,
        })
    }

    fn now(inbox: &Inbox) -> Option<Event> {
        match inbox.next(Instant::now()) {
            Next::Message(Message::Event(event)) => Some(event),
            _ => None,
        }
    }

    #[test]
    fn touches_are_dropped_beyond_their_bound_and_answers_never() {
        let inbox = Inbox::default();
        for chunk in 0..TOUCHES_QUEUED_MAX as u64 + 10 {
            inbox.touch(touch(chunk));
        }
        for _ in 0..TOUCHES_QUEUED_MAX * 2 {
            inbox.answer(Event::Tick);
        }
        assert_eq!(inbox.dropped(), 10);
        let all: Vec<Event> = std::iter::from_fn(|| now(&inbox)).collect();
        let ticks = all.iter().filter(|event| **event == Event::Tick).count();
        assert_eq!(ticks, TOUCHES_QUEUED_MAX * 2);
        assert_eq!(all.len() - ticks, TOUCHES_QUEUED_MAX);
        inbox.touch(touch(0));
        assert!(now(&inbox).is_some(), "there is room again");
    }

    #[test]
    fn a_call_waits_for_room_and_hinders_nobody_else() {
        let inbox = Arc::new(Inbox::default());
        for _ in 0..CALLS_QUEUED_MAX {
            inbox.call(Message::Event(Event::Tick));
        }
        let (tell, told) = mpsc::channel();
        let caller = inbox.clone();
        let waits = std::thread::spawn(move || {
            caller.call(touch(7));
            let _ = tell.send(());
        });
        inbox.touch(touch(1));
        inbox.answer(Event::Tick);
        assert!(told.try_recv().is_err(), "there is no room for it yet");
        assert!(now(&inbox).is_some());
        told.recv_timeout(Duration::from_secs(60)).unwrap();
        waits.join().unwrap();
        let left = std::iter::from_fn(|| now(&inbox)).count();
        assert_eq!(left, CALLS_QUEUED_MAX + 2);
    }

    #[test]
    fn closing_it_ends_all_waiting() {
        let inbox = Arc::new(Inbox::default());
        for _ in 0..CALLS_QUEUED_MAX {
            inbox.call(Message::Event(Event::Tick));
        }
        let caller = inbox.clone();
        let waits = std::thread::spawn(move || caller.call(touch(7)));
        inbox.close();
        waits.join().unwrap();
        let far = Instant::now() + Duration::from_secs(3600);
        assert!(matches!(inbox.next(far), Next::Closed));
    }
}
