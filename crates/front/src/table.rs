//! [`Seats`] with the connections that sit there: whoever serves a port's connections says how one of them is closed.

use super::seats::{Arrival, Id, Seats};
use super::{Party, telemetry};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Closes a connection that must make room for another. Called once at most, soon, on any thread.
type Leave = Box<dyn FnOnce() + Send>;

struct State {
    seats: Seats,
    leave: HashMap<Id, Leave>,
}

/// The seats of a port. All clones are the same table.
#[derive(Clone)]
pub struct Table(Arc<Mutex<State>>);

/// A connection's seat, which is given back when this is dropped.
pub struct Seat {
    table: Table,
    id: Id,
    /// Whether another connection had to leave for this one.
    pub instead: bool,
}

impl Table {
    /// Makes a table with these seats.
    pub fn new(seats: Seats) -> Table {
        Table(Arc::new(Mutex::new(State {
            seats,
            leave: HashMap::new(),
        })))
    }

    /// Returns how many seats are taken.
    pub fn taken(&self) -> usize {
        self.0.lock().seats.taken()
    }

    /// Gives a new connection a seat, for which another connection may have to leave; `None` if it must be closed. `leave` is
    /// called if it has to make room itself later.
    pub fn sit(&self, party: Party, leave: impl FnOnce() + Send + 'static) -> Option<Seat> {
        let mut state = self.0.lock();
        let (id, goes) = match state.seats.arrive(party) {
            Arrival::Seated(id) => (id, None),
            Arrival::Instead(id, goes) => (id, state.leave.remove(&goes)),
            Arrival::Refused => {
                refused();
                return None;
            }
        };
        state.leave.insert(id, Box::new(leave));
        drop(state);
        let instead = goes.is_some();
        close(goes);
        Some(Seat {
            table: self.clone(),
            id,
            instead,
        })
    }
}

impl Seat {
    /// Records that something has come from the client.
    pub fn speaks(&self) {
        self.table.0.lock().seats.speaks(self.id);
    }

    /// Records that the connection is at work from now on, or waits for its client.
    pub fn turns(&self, busy: bool) {
        self.table.0.lock().seats.turns(self.id, busy);
    }

    /// Counts the connection for `party` from now on, because its client has proved to be that.
    pub fn known(&self, party: &Party) {
        let mut state = self.table.0.lock();
        let goes = state.seats.known(self.id, party);
        let goes = goes.and_then(|goes| state.leave.remove(&goes));
        drop(state);
        close(goes);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.table.0.lock();
        state.seats.leave(self.id);
        let leave = state.leave.remove(&self.id);
        drop(state);
        drop(leave); // whatever it holds
    }
}

/// Closes a connection that lost its seat, without the table's lock.
fn close(leave: Option<Leave>) {
    if let Some(leave) = leave {
        refused();
        leave();
    }
}

fn refused() {
    metrics::counter!(telemetry::HUB_REFUSED_CONNECTIONS).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn who_makes_room_is_told_once_and_an_empty_seat_is_free() {
        let table = Table::new(Seats::new(2, 2));
        let (told, tells) = mpsc::channel();
        let sit = |n: u8| {
            let told = told.clone();
            table.sit(Party::at([127, 0, 0, n].into()), move || {
                told.send(n).unwrap();
            })
        };
        let (first, second) = (sit(1).unwrap(), sit(1).unwrap());
        first.turns(true);
        let third = sit(2).unwrap();
        assert_eq!(tells.try_iter().collect::<Vec<_>>(), [1]);
        // the one that was told leaves in its own time, and takes nobody else's seat along
        drop(second);
        third.turns(true);
        assert!(sit(2).is_none(), "all are at work");
        drop(first);
        let fourth = sit(1);
        assert!(fourth.is_some());
        assert_eq!(tells.try_iter().count(), 0);
    }
}
