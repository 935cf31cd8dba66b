//! Streaming in virtual time: recorded runs replayed over any link with any policy, through the very planner code.
//!
//! - [`wire`]: the bottleneck, fixed or recorded; [`download`]: demand and prefetch that share it.
//! - [`replay`](replay()): one machine's run; [`Run`]: what it amounts to, in the paper's metrics.
//! - [`image`]: what exists and what it weighs; [`synthetic`]: made-up workloads with a seed.
//!
//! Left out of the model: packet loss and the growth of TCP's window, the time that the node's own work takes (microseconds
//! a chunk), chunks of equal content (fetched once live, once for each place here).
pub mod download;
pub mod figures;
pub mod image;
pub mod replay;
pub mod sweep;
pub mod synthetic;
pub mod wire;

pub use figures::{FIGURES, Means, Run, Stall, StallKind};
pub use image::{ImageShape, RegionShape};
pub use replay::{ReplayError, Setup, replay};
pub use wire::LinkSpec;
