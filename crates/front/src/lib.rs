//! The front of every TCP port that floe listens on (the hub's, the node's page): who may take how much of it.
//!
//! A stranger costs a hub what the hub lets a stranger cost. Five things are shared, and each is bounded as a whole and for
//! every [`Party`] (a user who showed a token, else an address):
//!
//! | shared | decided by | when it runs short |
//! | --- | --- | --- |
//! | connections | [`seats`] | whoever holds most loses the one that has waited longest |
//! | the processor and the disk | [`turns`] | parties take turns, users before strangers |
//! | memory of bodies and answers | [`memory`] | a party beyond its share is answered 503 |
//! | time of one request's bytes | [`pace`] | whoever moves fewer bytes than the slowest honest link is cut off |
//! | time of a request's head | `stream` | a head must be whole some seconds after its first byte |
//!
//! The four decisions are state machines without sockets and clocks. `stream` wraps a connection, `listener` accepts
//! and serves them, [`Gate`] makes requests wait for their turn.
//!
//! HTTP/1.1 alone is spoken: one connection has one request at a time, so that bounding connections bounds requests. HTTP/2
//! would multiply each of them by its streams, whose windows a client may leave shut at no cost. floe's own clients never
//! used it.

mod gate;
mod listener;
pub mod memory;
pub mod pace;
pub mod page;
pub mod seats;
mod stream;
pub mod telemetry;
pub mod turns;

pub use gate::Gate;
pub use listener::{Peer, run};
pub use memory::{Held, Memory};
pub use stream::TooSlow;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// Who is counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Party {
    /// Somebody who has shown a token, from wherever.
    User(Arc<str>),
    /// All others behind one address.
    Address(IpAddr),
}

impl Party {
    /// Strangers at an address. One IPv6 customer has a whole /64, so that counts as one.
    pub fn at(address: IpAddr) -> Party {
        Party::Address(match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) & !u128::from(u64::MAX);
                Ipv6Addr::from(network).into()
            }
            v4 => v4,
        })
    }

    /// Whether it has shown a token.
    pub fn is_user(&self) -> bool {
        matches!(self, Party::User(_))
    }
}

/// What a port's connections may take.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Connections in all.
    pub connections_max: usize,
    /// Connections of one party.
    pub connections_each_max: usize,
    /// Time for a TLS handshake.
    pub handshake: Duration,
    /// Time from the first byte of a request's head to its last.
    pub head: Duration,
    /// How long a connection is kept for its next request.
    pub idle: Duration,
    /// How slow a peer may be.
    pub pace: pace::Pace,
    /// How long requests in flight may go on after the end was asked for.
    pub drain: Duration,
}
