//! The agent: one process with one thread and one loop over the port and the connected programs.

pub mod core;
mod exec;
mod generation;
mod hooks;
mod identity;
mod port;
mod serve;
mod shield;
mod spawn;
mod sys;
mod typing;
mod watch;

pub use serve::{Options, serve};

/// The name of the port in the guest, which the node has set.
pub const PORT_NAME: &str = "org.floe.0";
/// The path that udev gives to the port.
pub const PORT_PATH: &str = "/dev/virtio-ports/org.floe.0";
/// The socket on which programs reach the agent.
pub const SOCKET_PATH: &str = "/run/floe.sock";
/// The file that tells programs which generation of itself this machine is: `number=` and `id=`, replaced when a state was loaded.
pub const GENERATION_PATH: &str = "/run/floe.generation";
