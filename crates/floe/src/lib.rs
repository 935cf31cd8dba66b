//! The `floe` command: its line, and [`up`], which is hub and node in one process. It decides nothing: what there is to decide is
//! decided by the node and the hub, and the rest is asking and showing.

pub mod cli;
pub mod up;
