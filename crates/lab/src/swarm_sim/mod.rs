//! A swarm in virtual time: the live policy ([`floe_swarm::policy`]) drives up to a thousand hosts, each of which replays a recorded
//! run.
//!
//! - [`pieces`]: recorded runs as accesses to pieces of packs, and the profile that was learnt from other runs.
//! - [`net`]: uplinks and downlinks, shared fairly block by block, demand first.
//! - [`swarm`]: the hosts; [`simulate`] runs one swarm to its end.
//! - [`sweep`]: which policies, links and runs are simulated.
//!
//! Time passes from event to event, and the number of events does not depend on how long things take: a piece is some eight events,
//! whatever the link. Nothing in it is random but what a seed decides.
//!
//! Not modelled: packet loss, TCP's or QUIC's start, the switch (any two hosts have their links' full speed between
//! them), CPU time of hashing. A host's link is as fast in both directions.
pub mod net;
pub mod pieces;
pub mod swarm;
pub mod sweep;

pub use pieces::{PIECE_BYTES, Pieces, Recorded};
pub use swarm::{Host, Link, Outcome, Setup, simulate};
