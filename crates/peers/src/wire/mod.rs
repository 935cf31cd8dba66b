//! What hosts say to each other.
//!
//! A connection carries the pieces of one image between two hosts. Whoever dials opens one stream in both directions, on which each
//! says [`Message`]s, in frames of at most 16 KiB, a [`Message::Hello`] first. Each piece goes over a stream of its own,
//! so that a demand can overtake prefetch: the piece's number, then its proven form (`tree`), whose length both know.
//!
//! An image may have been laid out anew, so that two hosts know other packs of it, or in another order. Then each names its packs first
//! ([`Message::Packs`]), and a piece has the number of the host that says what it has or wants: an answer to a question, which may overtake
//! all else, calls the piece as the question did ([`Numbers`]).
pub mod budget;
pub mod message;
pub mod numbers;

pub use budget::Budget;
pub use message::{
    Frames, Hello, Malformed, Message, PackName, Run, frames_of, number, put_number,
};
pub use numbers::{Numbers, PACKS_MAX};

/// What both ends of a connection must speak.
pub const PROTOCOL: &[u8] = b"floe/pieces/3";
