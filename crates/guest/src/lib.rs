//! What runs inside of a guest, so that a program there can clone its whole machine (SnowFlock, section 4.1).
//!
//! ```text
//! program -- libfloe --> /run/floe.sock   floe-guest   virtio port org.floe.0 <--> node
//! ```
//! [`mod@line`] is how a message looks, [`message`] what there is to say; the node uses these two as well. [`agent`] is the
//! program `floe-guest`: [`agent::core`] decides, without I/O, and the rest of it carries out. [`client`] calls the agent.
//! [`mpi`] is the command `floe-mpirun`: MPI programs on clones.
//!
//! Nothing here trusts the other side: a guest may write anything to its port, and the node's words are bounded too. This
//! crate knows nothing of images, nodes or QEMU.

pub mod agent;
pub mod client;
pub mod line;
pub mod message;
pub mod mpi;
