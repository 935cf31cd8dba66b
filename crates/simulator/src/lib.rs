//! Virtual time: the live policies drive links, disks, cores and hosts that are computed instead of waited for.
//!
//! - [`sim`]: streaming: replays recorded runs ([`floe_testbed::traces`]) through the live planner.
//! - [`swarm_sim`]: swarms: up to 1024 hosts replay such runs, driven by the live policy. [`predict`]: what the paper's model says of one.
//! - [`io_sim`]: machines that share a disk, with a policy of floe-sched or mClock before it.
//! - [`cpu_sim`]: machines that share a host's cores, with a policy of floe-sched or a peer.
//!
//! No real node, guest or network is in here; which runs are simulated and what is told of them is up to the experiments.
pub mod cpu_sim;
pub mod io_sim;
pub mod predict;
pub mod sim;
pub mod swarm_sim;
