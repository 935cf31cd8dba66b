//! Makes figures: interleaved runs of floe and of its alternative, medians, spread, and a description of the machine.
//!
//! - [`Samples`]: measured values, their median and spread.
//! - [`interleave`]: floe and its alternatives in turn, so that a slow minute of the machine hits all of them.
//! - [`Figure`] and [`Report`]: what `--json` writes and the table shows.
//! - [`Kept`]: what a long experiment has done already, for one that goes on later.
mod code;
mod cpu;
mod kept;
mod machine;
mod report;
mod samples;

pub use code::code_here;
pub use cpu::{CpuTimes, HostTimes, cpu_times, own_memory};
pub use kept::Kept;
pub use machine::MachineInfo;
pub use report::{Against, Figure, Report, short};
pub use samples::{Run, Samples, interleave};

/// The settings of an experiment.
pub struct Context {
    /// Whether to use fewer runs and less data: a check that everything works, not for published figures.
    pub quick: bool,
    /// A directory for data: empty, on a real disk, and removed afterwards.
    pub scratch: std::path::PathBuf,
}

impl Context {
    /// Returns `full`, or `quick` if this is a quick run.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}
