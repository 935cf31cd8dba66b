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

/// What a host has to know to join a group.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// Where requests go.
    pub server: SocketAddrV4,
    /// Where answers come.
    pub group: SocketAddrV4,
    /// What encrypts both.
    pub key: GroupKey,
}
