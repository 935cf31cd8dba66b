//! What hosts say to each other.
//!
//! A connection carries the pieces of one content between two hosts. Whoever dials opens one stream in both directions, on which each
//! says [`Message`]s, in frames of at most 16 KiB, a [`Message::Hello`] first. Each piece goes over a stream of its own,
//! so that a demand can overtake prefetch: the piece's number, then its proven form (`tree`), whose length both know.
pub mod budget;
pub mod message;

pub use budget::Budget;
pub use message::{Frames, Hello, Message, Run, frames_of, number, put_number};

/// What both ends of a connection must speak.
pub const PROTOCOL: &[u8] = b"floe/pieces/1";
