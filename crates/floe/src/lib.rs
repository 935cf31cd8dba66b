//! The `floe` command: its command line, and [`up`], which is hub and node in one process. It decides nothing: the node
//! and the hub decide, and the command asks and shows.

pub mod cli;
pub mod up;
