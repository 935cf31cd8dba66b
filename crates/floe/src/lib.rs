//! The `floe` command: its command line, and [`up`], which is hub and node in one process. It decides nothing: the node
//! and the hub decide, and the command asks and shows. [`debian`] makes a first image of Debian's packages, without either.

pub mod cli;
pub mod debian;
pub mod up;
