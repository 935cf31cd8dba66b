//! The two schedulers of Linux on which every policy here stands: whose turn it is, for how long, and where a task begins again.

/// The weight of a task of ordinary priority.
pub const WEIGHT: u32 = 1024;

/// Nanoseconds of a millisecond.
pub const MS: i64 = 1_000_000;

/// The kernel's scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The completely fair scheduler, as in the paper's Linux 2.6.34.
    Cfs(Cfs),
    /// Earliest eligible virtual deadline first, as in Linux 6.18.
    Eevdf {
        /// What a task asks for at a time, in nanoseconds.
        slice_ns: i64,
    },
}

/// The settings of CFS, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cfs {
    /// `sched_latency`: in this time each task of a short queue runs once.
    pub latency_ns: i64,
    /// `sched_min_granularity`: the least slice; a longer queue has a longer period.
    pub granularity_ns: i64,
    /// `sched_wakeup_granularity`: by how much a task that wakes must be behind to stop the one that runs.
    pub wakeup_ns: i64,
}

/// The kernel multiplies its settings by 1 + log2 of the number of cores.
fn factor(cores: usize) -> i64 {
    1 + i64::from(cores.max(1).ilog2())
}

impl Base {
    /// CFS with the settings of the paper's kernel: 5 and 1 ms, which are 15 and 3 ms on four cores.
    pub fn cfs(cores: usize) -> Base {
        let factor = factor(cores);
        Base::Cfs(Cfs {
            latency_ns: 5 * MS * factor,
            granularity_ns: MS * factor,
            wakeup_ns: MS * factor,
        })
    }

    /// EEVDF with the settings of Linux 6.18: 0.7 ms, which are 2.1 ms on four cores.
    pub fn eevdf(cores: usize) -> Base {
        let slice_ns = 7 * MS / 10 * factor(cores);
        Base::Eevdf { slice_ns }
    }

    /// Returns for how long a task of this weight runs in a queue of `length` tasks, itself included, that weigh `load` together
    /// (section 4.3.3).
    pub fn slice_ns(&self, length: usize, weight: u32, load: u64) -> i64 {
        match *self {
            Base::Cfs(cfs) => {
                let period = cfs.latency_ns.max(cfs.granularity_ns * length as i64);
                period * i64::from(weight) / load.max(u64::from(weight)).max(1) as i64
            }
            Base::Eevdf { slice_ns } => slice_ns,
        }
    }

    /// Returns the least time for which a task runs once it is chosen, unless it sleeps.
    pub fn least_ns(&self) -> i64 {
        match *self {
            Base::Cfs(cfs) => cfs.granularity_ns,
            Base::Eevdf { slice_ns } => slice_ns,
        }
    }
}

/// Service in nanoseconds as virtual time of a task of this weight.
pub fn virtual_ns(service_ns: i64, weight: u32) -> i64 {
    match weight {
        WEIGHT => service_ns,
        _ => (i128::from(service_ns) * i128::from(WEIGHT) / i128::from(weight.max(1))) as i64,
    }
}

/// Virtual time of a task of this weight as service in nanoseconds.
pub fn service_ns(virtual_ns: i64, weight: u32) -> i64 {
    match weight {
        WEIGHT => virtual_ns,
        _ => (i128::from(virtual_ns) * i128::from(weight) / i128::from(WEIGHT)) as i64,
    }
}
