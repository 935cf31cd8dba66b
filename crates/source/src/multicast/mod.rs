//! One reply for all clones of a fork: chunks by IP multicast (SnowFlock's mcdist, section 4.5).
//!
//! Receivers ask the server of their group by unicast UDP for chunks, by hash; what it answers goes to everybody in the
//! group. A receiver keeps what it overhears, so that a page which one clone has touched is at the others' hosts already
//! when they touch it, and the parent's node sends it once.
//!
//! ```text
//! Multicast::read -> Receiver::want -> ask ------------- UDP ---> Server::asked -> load -> pack
//!    sink  <- waits  Receiver::piece <- datagram <- UDP multicast <- Server::next (rate, order)
//!    else   -> the source that it is around              cache <- what nobody here waits for
//! ```
//!
//! - `protocol`: what both sides decide, without I/O or a clock.
//! - `drive`: their sockets and threads: [`MulticastServer`], [`Group`], and [`Multicast`], which is a [`crate::Source`].
//!
//! The carrier needs no trust: an item counts only if its bytes have the hash that was asked for. Datagrams are sealed with
//! a key that only the fork's hosts have, numbers in them are used once, and buffers are bounded, so that a stranger on the
//! segment can neither make the server send nor slow it down, and what it sends is dropped.
//!
//! Reliability is the receivers' affair: what does not come is asked for again, and from the other source before a guest
//! notices. Where multicast does not pass at all, three reads find out; it is tried again later, at no cost to a guest.
//! Only IPv4 is spoken; hosts that are reached by IPv6 do without.

mod drive;
mod protocol;

pub use drive::{Group, Invitation, Multicast, MulticastServer, ServerOptions};
pub use protocol::{RATE_MAX, RATE_MIN, ReceiverStats, ServerStats};
