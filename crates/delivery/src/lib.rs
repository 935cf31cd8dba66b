//! Experiments about how an image comes to the hosts that run it: streamed over slow links, from each other, and page by page.
//!
//! - Streaming: [`stream_sim`] in virtual time ([`stream_runs`], [`stream_plots`]), [`stream_real`], [`two_streams`], [`resume_wan`];
//!   [`train`]: what is learnt for it; [`optimize`]: packs laid out for it, from a [`static_server`].
//! - Swarms: [`swarm_sim`] in virtual time, [`swarm_real`], [`swarm_cost`], [`swarm_storm`].
//! - A page of memory: [`touch`], and from another host [`fault`].
//! - [`independent`]: all of an image, while its machine runs.
//!
//! Forks and machines that move are in floe-lab: there a machine comes, not an image.
#![allow(
    clippy::disallowed_methods,
    reason = "an experiment may ask whether a file is there"
)]

pub mod fault;
pub mod independent;
pub mod optimize;
pub mod resume_wan;
pub mod static_server;
pub mod stream_plots;
pub mod stream_real;
pub mod stream_runs;
pub mod stream_sim;
pub mod swarm_cost;
pub mod swarm_real;
pub mod swarm_sim;
pub mod swarm_storm;
pub mod touch;
pub mod train;
pub mod two_streams;
