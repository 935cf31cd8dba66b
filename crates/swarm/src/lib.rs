//! Many hosts that start one image bring it to each other, so that the uplink of its server does not matter (VMTorrent, CoNEXT
//! 2012; sections named in this crate are that paper's).
//!
//! - [`policy`]: which peer is asked for which piece, and whom this host serves. A state machine: events and the time in,
//!   actions out. The live engine and the lab's simulator drive the same code.
//! - [`roster`]: who can be reached, and who is to be dialled when; [`seed`]: how many pieces the seed is asked for at a time. Both are
//!   state machines too.
//! - [`model`]: what a run may be expected to take, by the paper's equations 2 to 15.
//!
//! A *piece* is a range of a pack's bytes, known by its number. The *seed* has all of them: a hub, or any web server. A *peer* is a
//! host that runs the image too, has some pieces, and can be asked for them.
//!
//! Not here: connections, bytes and their verification, who the peers are, and what a machine will need next (the planner's
//! prediction comes in as a list).

pub mod model;
pub mod policy;
pub mod roster;
pub mod seed;
