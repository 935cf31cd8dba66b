//! An item that is wanted: who wants it, what state it is in, and what is called when it has arrived.

use std::time::Instant;

use floe_image::{Hash, Kind};
use floe_sched::Who;

use super::{Done, Each};
use crate::SourceError;

/// An item that somebody asks for, and who does.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub who: Who,
    /// The image that it belongs to.
    pub image: Hash,
    pub kind: Kind,
    pub hash: Hash,
}

/// Items of one image that a thread is to read in one request.
pub(super) struct Batch {
    /// Its number, by which an item of this read is told from one that was queued again meanwhile.
    pub flight: u64,
    /// Who asked for the first of the items.
    pub who: Who,
    pub image: Hash,
    pub wants: Vec<(Kind, Hash)>,
    /// What the policy is to be told once it was read: who asked for how many bytes. Of demands one for each of the items.
    pub taken: Vec<(Who, u64)>,
}

/// What a thread has to do now.
pub(super) enum Next {
    Read(Batch),
    /// Wait until this time, or until something is added.
    Wait(Option<Instant>),
}

/// Callbacks to call once the lock is released, because items failed or were given up.
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

/// The callbacks that wait for an item that has arrived.
#[derive(Default)]
pub(super) struct Landed {
    pub done: Vec<Done>,
    pub each: Vec<Each>,
    /// Whether anybody had asked for it.
    pub wanted: bool,
}

/// A demand that waits for an item.
pub(super) struct Waiter {
    pub image: Hash,
    pub until: Option<Instant>,
    pub done: Done,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Queued with the policy.
    Demand,
    /// A demand that is to be tried again at this time.
    Later(Instant),
    Prefetch,
    /// Being read in the batch of this number.
    Flying(u64),
}

/// Most wishes of an item that are queued with the policy. Later ones wait for the item without a say in when it comes.
const WISHES_MAX: usize = 8;

pub(super) struct Item {
    pub kind: Kind,
    /// Who asked first, among those with the purpose that it is queued for.
    pub who: Who,
    /// Those who demand it, each once. Each is queued with the policy, and whose turn is the first decides.
    pub wishes: Vec<Who>,
    /// Whether it is in a second lane of the prefetch.
    pub ahead_twice: bool,
    /// The image in whose name it is read next.
    pub image: Hash,
    pub state: State,
    pub waiters: Vec<Waiter>,
    pub listeners: Vec<(Hash, Each)>,
    pub failures: u32,
    /// Since when it is said to be missing, denied or impossible to give.
    pub refused_since: Option<Instant>,
    pub last_error: Option<SourceError>,
    /// Raw bytes that it adds to the prefetch in flight.
    pub charge: u64,
}

impl Item {
    pub fn new(wanted: &Wanted, state: State) -> Item {
        Item {
            kind: wanted.kind,
            who: wanted.who,
            wishes: Vec::new(),
            ahead_twice: false,
            image: wanted.image,
            state,
            waiters: Vec::new(),
            listeners: Vec::new(),
            failures: 0,
            refused_since: None,
            last_error: None,
            charge: 0,
        }
    }
}

impl Item {
    /// Returns whether this would be one more wish that has a say.
    pub fn may_wish(&self, who: &Who) -> bool {
        self.wishes.len() < WISHES_MAX && !self.wishes.contains(who)
    }

    /// Adds a wish, if it may have a say.
    pub fn wish(&mut self, who: Who) {
        if self.may_wish(&who) {
            self.wishes.push(who);
        }
    }

    /// Returns whether it is wanted as a part of this image.
    pub fn is_of(&self, image: &Hash) -> bool {
        self.image == *image || self.listeners.iter().any(|(of, _)| of == image)
    }
}

/// How much prefetch may be under way, in raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most bytes in one request.
    pub batch: u64,
    /// Most bytes in all requests together.
    pub in_flight: u64,
}

/// How many items are in the states whose counts are needed often.
#[derive(Default)]
pub(super) struct Counts {
    /// Demands queued with the policy.
    pub ready: usize,
    /// Items queued for prefetch.
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
