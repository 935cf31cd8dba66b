//! Hosts of one image carry its pieces to each other, over QUIC with keys as identities.
//!
//! - [`Host`]: one for each node. It listens, dials, and takes part in swarms.
//! - [`Swarm`]: a host's part in bringing one image, of which it knows a [`Content`]: packs, cut into pieces. Hosts may know different packs
//!   of it, as while it is laid out anew; they exchange those that both know. A machine [`need`](Swarm::need)s some pieces, a planner
//!   [`want`](Swarm::want)s or [`predict`](Swarm::predict)s others, and whoever keeps the image [`copies`](Swarm::copy) the rest.
//! - [`Shelf`]: the pieces that are on this host, on its disk.
//! - [`Seed`]: where all pieces can be had, the last to be asked.
//!
//! Who is asked for which piece, and who is served, decides [`floe_swarm::policy`]: one task for each swarm (`owner`) tells it what
//! happens and does what it says. Who can be reached and is to be dialled decides [`floe_swarm::roster`]; `endpoints` has the sockets, and
//! `tls` says how a host proves who it is. What travels is in `wire`, how it is proven in `tree`: no byte is seen by anybody before it was
//! verified up to its pack's root, and who sent wrong ones is dropped with the first piece. Hosts that are not on the list of members, which
//! comes from outside, are refused.
//!
//! Not here: which image is meant, who its members are and where its packs come from (the caller knows a hub), and what a machine will
//! need next.
mod cap;
mod closed;
mod connection;
mod content;
mod doors;
mod endpoints;
mod host;
mod members;
mod owner;
mod queue;
mod seed;
mod sharers;
mod shelf;
mod swarm;
mod tls;
mod tree;
mod wire;

pub use content::{Content, ContentError};
pub use floe_swarm::policy::{Config, Fault, PieceId, Speed};
pub use host::{Host, HostError};
pub use members::{Key, Member};
pub use seed::{Fetching, Seed};
pub use shelf::{Shelf, ShelfError};
pub use swarm::{Options, Peer, Status, Swarm, SwarmError, Traffic};
pub use tree::{PIECE_BYTES, Pack, Tree, WrongBytes};
