//! The sockets and threads of a group's server and its receivers.

mod group;
mod server;
mod socket;
mod source;

use std::net::SocketAddrV4;

use floe_image::datagram::GroupKey;

pub use group::Group;
pub use server::{MulticastServer, ServerOptions};
pub use source::Multicast;

/// What a host needs to join a group.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// The address that requests are sent to.
    pub server: SocketAddrV4,
    /// The address that answers come to.
    pub group: SocketAddrV4,
    /// The key that seals both.
    pub key: GroupKey,
}
