//! The experiments, one file each. Every one drives the real crates and measures its alternative in the same run.
pub mod emulator;
pub mod import;
pub mod local;
pub mod touch;

use crate::harness::{Context, Report};

/// One thing to measure.
pub struct Experiment {
    /// What it is called on the command line and in its report.
    pub name: &'static str,
    /// In one line.
    pub about: &'static str,
    /// Measures it.
    pub run: fn(&Context) -> anyhow::Result<Report>,
}

/// All of them, the cheap ones first.
pub const ALL: &[Experiment] = &[
    Experiment {
        name: "emulator",
        about: "does the emulated link keep its promised rate and delay?",
        run: emulator::run,
    },
    Experiment {
        name: "import",
        about: "import, hash, compress and store a sparse disk, against zstd -3 -T0",
        run: import::run,
    },
    Experiment {
        name: "touch",
        about: "first touch of a page of RAM, against userfaultfd and mmap",
        run: touch::run,
    },
];
