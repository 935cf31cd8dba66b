//! [`Turns`](super::turns::Turns) with a clock and tasks: requests wait here for their turn.

use super::Party;
use super::turns::{Next, Room, Ticket, Turns};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A request that has waited this long is refused.
const WAIT_MAX: Duration = Duration::from_secs(60);

struct State {
    turns: Turns,
    waiting: HashMap<Ticket, oneshot::Sender<()>>,
    /// Whether a task is already scheduled to dispatch again later.
    alarm: bool,
}

struct Inner {
    state: Mutex<State>,
    began: Instant,
}

/// Where requests wait for their turn. All clones share one queue.
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

/// A turn: the request may work until this is dropped.
pub struct Turn {
    gate: Gate,
    party: Party,
    since: Instant,
}

/// A waiting request. Dropping it gives up its place.
struct Waiting {
    gate: Gate,
    party: Party,
    ticket: Option<Ticket>,
}

impl Gate {
    /// Makes a gate that shares out `room`.
    pub fn new(room: Room) -> Gate {
        let state = State {
            turns: Turns::new(room),
            waiting: HashMap::new(),
            alarm: false,
        };
        Gate(Arc::new(Inner {
            state: Mutex::new(state),
            began: Instant::now(),
        }))
    }

    fn now(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// Waits for the next turn of `party`; returns `None` if it did not come within 60 s.
    pub async fn enter(&self, party: &Party) -> Option<Turn> {
        let mut place = Waiting {
            gate: self.clone(),
            party: party.clone(),
            ticket: None,
        };
        let comes = {
            let now = self.now();
            let mut state = self.0.state.lock();
            let ticket = state.turns.ask(now, party);
            let (go, comes) = oneshot::channel();
            state.waiting.insert(ticket, go);
            place.ticket = Some(ticket);
            let go_now = self.dispatch(&mut state, now, Some(ticket));
            (!go_now).then_some(comes)
        };
        if let Some(comes) = comes
            && !matches!(tokio::time::timeout(WAIT_MAX, comes).await, Ok(Ok(())))
        {
            return None;
        }
        place.ticket = None;
        Some(Turn {
            gate: self.clone(),
            party: party.clone(),
            since: Instant::now(),
        })
    }

    /// Gives turns to all requests that may go now. Returns whether `own` was among them.
    fn dispatch(&self, state: &mut State, now: Duration, own: Option<Ticket>) -> bool {
        let mut own_goes = false;
        loop {
            match state.turns.next(now) {
                Next::Go(ticket) => {
                    let go = state.waiting.remove(&ticket);
                    if Some(ticket) == own {
                        own_goes = true;
                    } else if let Some(go) = go {
                        // if the request has gone meanwhile, dropping its `Waiting` gives the turn back
                        let _ = go.send(());
                    }
                }
                Next::In(wait) => {
                    self.look_again(state, wait);
                    return own_goes;
                }
                Next::Nobody => return own_goes,
            }
        }
    }

    fn look_again(&self, state: &mut State, wait: Duration) {
        if std::mem::replace(&mut state.alarm, true) {
            return;
        }
        // The scheduled task must not keep the gate alive.
        let gate = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            if let Some(inner) = gate.upgrade() {
                let gate = Gate(inner);
                let now = gate.now();
                let mut state = gate.0.state.lock();
                state.alarm = false;
                gate.dispatch(&mut state, now, None);
            }
        });
    }

    fn ended(&self, party: &Party, took: Duration) {
        let now = self.now();
        let mut state = self.0.state.lock();
        state.turns.done(now, party, took);
        self.dispatch(&mut state, now, None);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let now = self.gate.now();
        let mut state = self.gate.0.state.lock();
        if state.waiting.remove(&ticket).is_some() {
            state.turns.cancel(&self.party, ticket);
        } else {
            // its turn came at the same moment
            state.turns.done(now, &self.party, Duration::ZERO);
        }
        self.gate.dispatch(&mut state, now, None);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.gate.ended(&self.party, self.since.elapsed());
    }
}
