//! An item on its way: who wants it, where it stands, and what is called when it has come.

use std::time::Instant;

use floe_image::{Hash, Kind};
use floe_sched::Who;

use super::{Done, Each};
use crate::SourceError;

/// An item that somebody wants.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub who: Who,
    /// The image that it belongs to.
    pub image: Hash,
    pub kind: Kind,
    pub hash: Hash,
}

/// Items that a thread is to read from one image.
pub(super) struct Batch {
    /// Tells this read's items from those that were asked for again meanwhile.
    pub flight: u64,
    /// Who asked for the first of them.
    pub who: Who,
    pub image: Hash,
    pub wants: Vec<(Kind, Hash)>,
}

/// What a thread should do now.
pub(super) enum Next {
    Read(Batch),
    /// Nothing before this time, or before something is added.
    Wait(Option<Instant>),
}

/// Calls to make once the lock is released: that somebody's item came or did not.
#[derive(Default)]
pub(super) struct Calls {
    pub done: Vec<(Done, SourceError)>,
    pub each: Vec<(Each, Kind, Hash, SourceError)>,
}

impl Calls {
    pub fn is_empty(&self) -> bool {
        self.done.is_empty() && self.each.is_empty()
    }

    pub fn make(self) {
        for (done, error) in self.done {
            done(Err(error));
        }
        for (each, kind, hash, error) in self.each {
            each(kind, &hash, Err(&error));
        }
    }
}

/// Those who get an item that has come.
#[derive(Default)]
pub(super) struct Landed {
    pub done: Vec<Done>,
    pub each: Vec<Each>,
    /// Whether it had been asked for at all.
    pub wanted: bool,
}

/// Somebody's demand.
pub(super) struct Waiter {
    pub image: Hash,
    pub until: Option<Instant>,
    pub done: Done,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Handed to the policy.
    Demand,
    /// Demand that is to be tried again at a time of its own.
    Later(Instant),
    Prefetch,
    /// In the batch of this number.
    Flying(u64),
}

pub(super) struct Item {
    pub kind: Kind,
    /// Who asked first, of those with the purpose for which it is queued.
    pub who: Who,
    /// The image through which it is read next.
    pub image: Hash,
    pub state: State,
    pub waiters: Vec<Waiter>,
    pub listeners: Vec<(Hash, Each)>,
    pub failures: u32,
    pub last_error: Option<SourceError>,
    /// Its share of the prefetch bytes in flight.
    pub charge: u64,
}

impl Item {
    pub fn new(wanted: &Wanted, state: State) -> Item {
        Item {
            kind: wanted.kind,
            who: wanted.who,
            image: wanted.image,
            state,
            waiters: Vec::new(),
            listeners: Vec::new(),
            failures: 0,
            last_error: None,
            charge: 0,
        }
    }
}

/// How much prefetch may be under way, in raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// In one request.
    pub batch: u64,
    /// In all requests together.
    pub in_flight: u64,
}

/// How many items there are in the states that are asked about often.
#[derive(Default)]
pub(super) struct Counts {
    /// With the policy.
    pub ready: usize,
    /// Queued for prefetch.
    pub prefetch: u64,
}

impl Counts {
    /// Moves an item to another state.
    pub fn change(&mut self, item: &mut Item, state: State) {
        self.leave(item.state);
        item.state = state;
        self.enter(state);
    }

    pub fn enter(&mut self, state: State) {
        match state {
            State::Demand => self.ready += 1,
            State::Prefetch => self.prefetch += 1,
            State::Later(_) | State::Flying(_) => {}
        }
    }

    pub fn leave(&mut self, state: State) {
        match state {
            State::Demand => self.ready -= 1,
            State::Prefetch => self.prefetch -= 1,
            State::Later(_) | State::Flying(_) => {}
        }
    }
}
