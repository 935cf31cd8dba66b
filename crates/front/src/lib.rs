//! The front of every port that floe listens on (the hub's, the node's page, the port for members of a cluster): limits how
//! much of it each client can use.
//!
//! Clients share five things. Each is bounded as a whole and for every [`Party`] (a user who has proved to be one, by a token
//! or a certificate, otherwise an address):
//!
//! | shared | decided by | when it runs short |
//! | --- | --- | --- |
//! | connections | [`seats`] | the party that holds most loses the connection that has said nothing, or been idle, longest |
//! | the processor and the disk | [`turns`] | parties take turns, users before strangers |
//! | memory of bodies and answers | [`memory`] | a party that exceeds its share gets 503 |
//! | time of one request's bytes | [`pace`] | a client that moves fewer bytes than the slowest honest link is disconnected |
//! | time of a request's head | `stream` | a head must be complete some seconds after its first byte |
//!
//! The first four are decided by state machines without sockets and clocks. A `connection` is one client's, `stream` watches its
//! bytes, `listener` accepts and serves connections, [`Gate`] makes requests wait for their turn. Ports that do not speak HTTP
//! (swarms', and those that lead to guests) have a [`Table`] of seats of their own.
//!
//! At a port that is for users alone, [`Strangers`] have seats of their own for a limited time: they take none of the users',
//! and whoever comes can say who it is.
//!
//! Only HTTP/1.1 is spoken: a connection has one request at a time, so bounding connections bounds requests. HTTP/2 would
//! allow many streams per connection, whose windows a client can leave closed at no cost. floe's own clients never used
//! it.

mod connection;
mod gate;
mod interface;
mod listener;
pub mod memory;
pub mod pace;
pub mod page;
pub mod seats;
mod stream;
mod table;
pub mod telemetry;
pub mod turns;

pub use connection::Peer;
pub use gate::Gate;
pub use listener::{raise_descriptors, run};
pub use memory::{Held, Memory};
pub use stream::TooSlow;
pub use table::{Seat, Table};

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// Clients that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Party {
    /// A user who has shown a token, or a node that has shown its certificate, from any address.
    User(Arc<str>),
    /// All clients at one address that have shown nothing.
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

    /// Returns whether the party is a user who has proved to be one.
    pub fn is_user(&self) -> bool {
        matches!(self, Party::User(_))
    }
}

/// Limits for clients that have not proved who they are, at a port that is for users.
#[derive(Clone, Copy, Debug)]
pub struct Strangers {
    /// Most of their connections in all.
    pub connections_max: usize,
    /// Most of their connections from one address.
    pub connections_each_max: usize,
    /// How long a connection may last, handshake included, before its client has proved to be a user.
    pub life: Duration,
}

/// Limits of a port's connections.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Most connections in all; with [`Bounds::strangers`], of users.
    pub connections_max: usize,
    /// Most connections of one party.
    pub connections_each_max: usize,
    /// If the port is for users: what strangers have of it beside that. `None` if it serves everybody.
    pub strangers: Option<Strangers>,
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
