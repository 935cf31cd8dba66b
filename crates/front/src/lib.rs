//! The front of every TCP port that floe listens on (the hub's, the node's page): limits how much of it each client can
//! use.
//!
//! Clients share five things. Each is bounded as a whole and for every [`Party`] (a user who has shown a token, otherwise
//! an address):
//!
//! | shared | decided by | when it runs short |
//! | --- | --- | --- |
//! | connections | [`seats`] | the party that holds most loses the connection that has been idle longest |
//! | the processor and the disk | [`turns`] | parties take turns, users before strangers |
//! | memory of bodies and answers | [`memory`] | a party that exceeds its share gets 503 |
//! | time of one request's bytes | [`pace`] | a client that moves fewer bytes than the slowest honest link is disconnected |
//! | time of a request's head | `stream` | a head must be complete some seconds after its first byte |
//!
//! The first four are decided by state machines without sockets and clocks. `stream` wraps a connection, `listener`
//! accepts and serves connections, [`Gate`] makes requests wait for their turn.
//!
//! Only HTTP/1.1 is spoken: a connection has one request at a time, so bounding connections bounds requests. HTTP/2 would
//! allow many streams per connection, whose windows a client can leave closed at no cost. floe's own clients never used
//! it.

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

/// Clients that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Party {
    /// A user who has shown a token, from any address.
    User(Arc<str>),
    /// All clients at one address that have shown no token.
    Address(IpAddr),
}

impl Party {
    /// Returns the party of the strangers at an address. An IPv6 customer has a whole /64, so that counts as one address.
    pub fn at(address: IpAddr) -> Party {
        Party::Address(match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) & !u128::from(u64::MAX);
                Ipv6Addr::from(network).into()
            }
            v4 => v4,
        })
    }

    /// Returns whether the party is a user who has shown a token.
    pub fn is_user(&self) -> bool {
        matches!(self, Party::User(_))
    }
}

/// Limits of a port's connections.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Most connections in all.
    pub connections_max: usize,
    /// Most connections of one party.
    pub connections_each_max: usize,
    /// Longest time for a TLS handshake.
    pub handshake: Duration,
    /// Longest time from the first to the last byte of a request's head.
    pub head: Duration,
    /// How long an idle connection is kept open for its next request.
    pub idle: Duration,
    /// How slow a client may be.
    pub pace: pace::Pace,
    /// How long requests that are being answered may continue when the port is to be closed.
    pub drain: Duration,
}
