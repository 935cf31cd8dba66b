//! What runs inside a guest so that a program there can clone its whole machine (SnowFlock, section 4.1), and so that users of
//! its node can run commands in it.
//!
//! ```text
//! program -- libfloe --> /run/floe.sock   floe-guest   virtio port org.floe.0 <--> node
//! ```
//! [`mod@line`] defines the form of a message, [`message`] the messages; the node uses these two as well. [`agent`] is
//! the program `floe-guest`: [`agent::core`] decides without I/O, and the other modules carry out. [`client`] calls the
//! agent. [`mpi`] is the command `floe-mpirun`: MPI programs on clones.
//!
//! Users of the node start processes here, whose streams share the port with the lines: [`mod@exec`] has their frames and who goes
//! first, [`copy`] files on their way in and out, [`tools`] what the agent's program does for that, [`chores`] what it does for
//! the node itself.
//!
//! [`mod@input`] is how what users do comes into a guest in order and once, wherever its machine is.
//!
//! Neither side trusts the other: a guest may write anything to its port, and the node's messages are bounded too. This
//! crate knows nothing about images, nodes or QEMU.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

pub mod agent;
pub mod asked;
pub mod chores;
pub mod client;
pub mod copy;
pub mod exec;
mod files;
pub mod input;
pub mod line;
pub mod message;
pub mod mpi;
pub mod tools;

/// Returns the unit with which systemd starts the agent, whose program is in `bin` below this directory.
pub fn unit(prefix: &str) -> String {
    include_str!("../floe-guest.service.in").replace("@PREFIX@", prefix)
}
