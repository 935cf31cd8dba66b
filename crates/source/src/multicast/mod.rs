//! Chunks by IP multicast: one reply serves all clones of a fork (SnowFlock's mcdist, section 4.5).
//!
//! Receivers ask the server of their group for chunks, by hash, by unicast UDP; the server sends its answers to everybody in
//! the group. A receiver keeps what others asked for, so that a page that one clone has touched is already at the other clones'
//! hosts when they touch it, and the parent's node sends it only once.
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
//! The network needn't be trusted: an item counts only if its bytes have the hash that was asked for. Datagrams are sealed with
//! a key that only the fork's hosts have, their sequence numbers are used once, and buffers are bounded: a stranger on the
//! segment can neither make the server send nor slow it down, and what a stranger sends is dropped.
//!
//! Receivers make it reliable: what does not arrive is asked for again, and read from the other source before a guest notices.
//! If multicast doesn't arrive at all, three reads find that out; it is tried again later without making a guest wait. Only
//! IPv4 is supported; hosts that are reached by IPv6 don't use multicast.

mod drive;
mod protocol;

pub use drive::{Group, Invitation, Multicast, MulticastServer, ServerOptions};
pub use protocol::{RATE_MAX, RATE_MIN, ReceiverStats, ServerStats};
