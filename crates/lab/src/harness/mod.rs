//! How a figure is made: interleaved runs of floe and of its alternative, medians, spread, and the machine it ran on.
//!
//! - [`Samples`]: measured values, their median and spread.
//! - [`interleave`]: floe and its alternatives in turn, so that a slow minute of the machine hits all of them.
//! - [`Figure`] and [`Report`]: what `--json` writes and the table shows.
mod machine;
mod report;
mod samples;

pub use machine::MachineInfo;
pub use report::{Against, Figure, Report};
pub use samples::{Samples, interleave};

/// What an experiment is told.
pub struct Context {
    /// Fewer runs and less data: a check that everything works, not a figure to publish.
    pub quick: bool,
    /// Where data may be written: an empty directory on a real disk, removed afterwards.
    pub scratch: std::path::PathBuf,
}

impl Context {
    /// `full` runs, or `quick` ones.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}
