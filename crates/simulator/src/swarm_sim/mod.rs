//! A swarm in virtual time: the live policy ([`floe_swarm::policy`]), roster ([`floe_swarm::roster`]) and queue for the seed
//! ([`floe_swarm::seed`]) drive up to a thousand hosts, each of which replays a recorded run.
//!
//! - [`pieces`]: recorded runs as accesses to pieces of packs and of their indices, and the profile that was learnt from other runs.
//! - [`net`]: uplinks and downlinks, shared fairly block by block, demand first; bytes on the wire.
//! - [`swarm`]: the hosts; [`simulate`] runs one swarm to its end.
//! - [`sweep`]: which links and runs are simulated, at which speed-up of the recorded times.
//!
//! Time passes from event to event, and the number of events does not depend on how long things take, but for a tick every 50 ms: a
//! piece is some eight events, whatever the link. Nothing in it is random but what a seed decides.
//!
//! The seed is a server as the hub is: it knows no purposes, and each host has a few requests under way. A host joins by asking the
//! hub, which costs round trips and the bytes of the answer; it knows others from the hub's list alone, and dials them, which
//! costs round trips and processor time at both ends. For comparison [`swarm::Seed::Host`] is the paper's, a host that has all.
//!
//! Not modelled: packet loss, the growth of TCP's and QUIC's windows, the switch (any two hosts have their links' full speed between
//! them), the bytes of questions and of news, requests that are given up after half a minute, processor time of all but handshakes. A
//! host's link is as fast in both directions.
pub mod net;
pub mod pieces;
pub mod swarm;
pub mod sweep;

pub use pieces::{PIECE_BYTES, Pieces, Profile, Recorded};
pub use swarm::{Host, Link, Outcome, Seed, Setup, simulate, simulate_at};
