//! The other nodes that a node knows: a [`cluster`], whose members know each other by certificates, with what one asks of another, and
//! [`placement`], the plug-ins that say on which hosts clones run.

pub mod cluster;
pub mod placement;
