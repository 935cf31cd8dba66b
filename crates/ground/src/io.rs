//! Whose disk requests go first: what users set, in the mount's terms.

use crate::error::{NodeError, usage};
use crate::options::NodeOptions;
use floe_api::{
    IO_TIMEOUT_S_MAX, IO_WEIGHT_DEFAULT, IO_WEIGHT_MAX, IO_WEIGHT_MIN, IoOrder, Limits,
};
use floe_mount::IoScheduling;
use floe_sched::Limit;
use floe_source::{FetchOptions, FetchOrder};
use std::time::Duration;

/// How long a chunk is asked for that a source, or what stands between, says is not there or forbidden. A guest stands still meanwhile.
/// After that its request fails, if its machine has a limit ([`waits_max`]), or goes on waiting.
pub const BELIEVED_AFTER: Duration = Duration::from_secs(90);

/// Returns the mount's name of an order.
pub fn scheduling(order: IoOrder) -> IoScheduling {
    match order {
        IoOrder::Vsip => IoScheduling::Vsip,
        IoOrder::Fifo => IoScheduling::Fifo,
        IoOrder::Off => IoScheduling::Off,
    }
}

/// Returns how guests' requests for chunks that aren't here are ordered, and how long they wait.
pub fn fetching(options: &NodeOptions) -> FetchOptions {
    FetchOptions {
        demand_deadline: options.io_timeout,
        believed_after: BELIEVED_AFTER,
        order: match options.io {
            IoOrder::Vsip => FetchOrder::Vsip,
            IoOrder::Fifo | IoOrder::Off => FetchOrder::Fifo,
        },
        ..FetchOptions::default()
    }
}

/// Returns what a machine with these limits may have of the disk.
pub fn limit(limits: &Limits) -> Limit {
    Limit {
        weight: limits.io_weight.unwrap_or(IO_WEIGHT_DEFAULT),
        cap_percent: limits.io_cap_percent.unwrap_or(100),
        ..Limit::DEFAULT
    }
}

/// Returns how long requests of a machine with these limits wait for chunks; `None` is as long as the node's options say.
pub fn waits_max(limits: &Limits) -> Option<Duration> {
    let seconds = limits.io_timeout_s.map(u64::from);
    seconds.map(Duration::from_secs)
}

/// Refuses limits of the disk that mean nothing.
pub fn check(limits: &Limits) -> Result<(), NodeError> {
    let weights = IO_WEIGHT_MIN..=IO_WEIGHT_MAX;
    if let Some(weight) = limits.io_weight.filter(|weight| !weights.contains(weight)) {
        return Err(usage(
            format!("a weight of {weight} for disk requests"),
            format!("use {} to {}", weights.start(), weights.end()),
        ));
    }
    let seconds = 1..=IO_TIMEOUT_S_MAX;
    if let Some(most) = limits.io_timeout_s.filter(|most| !seconds.contains(most)) {
        return Err(usage(
            format!("a limit of {most} s for what no source gives"),
            format!("use {} to {} s", seconds.start(), seconds.end()),
        ));
    }
    let percents = 1..=100;
    if let Some(cap) = limits.io_cap_percent.filter(|cap| !percents.contains(cap)) {
        return Err(usage(
            format!("a cap of {cap} percent of the disk"),
            "use 1 to 100",
        ));
    }
    Ok(())
}
