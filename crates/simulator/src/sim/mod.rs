//! Streaming in virtual time: replays recorded runs over any link with any policy, through the live planner code.
//!
//! - [`wire`]: the bottleneck, fixed or recorded; [`download`]: demand and prefetch that share it.
//! - [`replay`](replay()): one machine's run; [`Run`]: its figures, the paper's metrics.
//! - [`synthetic`]: generated workloads with a seed.
//!
//! Not modelled: packet loss and the growth of TCP's window, the time for the node's own work (microseconds per chunk),
//! chunks of equal content (fetched once in reality, once for each place here), and requests that a machine has under way at
//! once (a trace doesn't tell which of them waited for which: here they are served one after the other).
pub mod download;
pub mod figures;
pub mod replay;
pub mod sweep;
pub mod synthetic;
pub mod wire;

pub use figures::{FIGURES, Means, Run, Stall, StallKind};
pub use replay::{ReplayError, Setup, replay};
pub use wire::LinkSpec;
