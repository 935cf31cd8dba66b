//! What runs inside a guest so that a program there can clone its whole machine (SnowFlock, section 4.1).
//!
//! ```text
//! program -- libfloe --> /run/floe.sock   floe-guest   virtio port org.floe.0 <--> node
//! ```
//! [`mod@line`] defines the form of a message, [`message`] the messages; the node uses these two as well. [`agent`] is
//! the program `floe-guest`: [`agent::core`] decides without I/O, and the other modules carry out. [`client`] calls the
//! agent. [`mpi`] is the command `floe-mpirun`: MPI programs on clones.
//!
//! Neither side trusts the other: a guest may write anything to its port, and the node's messages are bounded too. This
//! crate knows nothing about images, nodes or QEMU.

pub mod agent;
pub mod client;
pub mod line;
pub mod message;
pub mod mpi;
