//! The agent: one process, one thread, one loop over the port and the programs that are connected.

pub mod core;
mod identity;
mod port;
mod serve;
mod sys;

pub use serve::{Options, serve};

/// The port in the guest, by the name that its node gives it.
pub const PORT_NAME: &str = "org.floe.0";
/// Where udev puts it.
pub const PORT_PATH: &str = "/dev/virtio-ports/org.floe.0";
/// Where programs find the agent.
pub const SOCKET_PATH: &str = "/run/floe.sock";
/// Where scripts find which machine this is: a `key=value` a line, there once the identity is in place.
pub const IDENTITY_PATH: &str = "/run/floe.identity";
