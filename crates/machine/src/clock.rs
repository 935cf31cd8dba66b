//! The guest's clocks after a restore, and after a pause: in a pause, all of those below stand still but the one on the mainboard.
//!
//! A restored guest continues with the time that it had at the capture, which may be weeks ago; certificates then seem to
//! come from the future and TLS fails. What happens to each of its clocks:
//!
//! - *Monotonic clocks* (TSC, HPET, ACPI timer, kvm-clock) continue from where they were: QEMU restores their counters
//!   with the device state. That is right: a guest must not see hours pass between two instructions.
//! - *The clock on the mainboard* (RTC) follows the host (`-rtc base=utc,clock=host`): its state holds the moment of its
//!   last update in host time, so that it is right at the first read after a restore.
//! - *The wall clock* is kept by the guest's kernel as an offset to its monotonic clock. No device can move it: Linux
//!   reads the RTC, or kvm-clock's wall clock, only at boot and after its own suspend. A program in the guest has to set
//!   it.
//!
//! That program is the guest agent, which is asked over the virtio serial port: by its command `guest-set-time`, or, in a guest without the
//! program `hwclock` that this command needs, to run `date`. If no agent answers, the wall clock is wrong until the guest's own NTP client
//! notices, or a program in it runs `hwclock --hctosys`, which sets the right time at once. The caller gets [`ClockSync::Stale`] and
//! informs the user.
//!
//! A guest can know without an agent that it was restored: the state of the device `vmgenid` only says where in memory the id is, and each
//! QEMU that loads the state (`guid=auto`) writes a new id there and raises the interrupt (`vmgenid_post_load` in QEMU's
//! `hw/acpi/vmgenid.c`). QEMU 7.2 has no VMClock, and images fit only the devices that they were captured with.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::qga::{Agent, QgaError};

/// Longest wait for the agent after a restore. It either was running at the capture or will not answer, but its pages may
/// first have to cross a slow link.
pub const AGENT_WAIT_MAX: Duration = Duration::from_secs(60);

/// What sets a clock that nobody has set. Not every guest has `hwclock`, every one has `date`.
const BY_HAND: &str =
    "set the guest's clock with hwclock --hctosys, or with date -s TIME where that is missing";

/// Whether the guest's clock was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClockSync {
    /// The agent has set it.
    Set {
        /// From the guest's first instruction to the agent's answer.
        took: Duration,
    },
    /// It was not set: the wall clock shows the time of the capture. The guest's RTC is right.
    Stale {
        /// Why, and what to do.
        reason: String,
    },
}

/// An attempt to set a guest's clock that continues in the background.
#[derive(Clone)]
pub struct PendingClock {
    shared: Arc<(Mutex<Option<ClockSync>>, Condvar)>,
}

impl PendingClock {
    /// Starts the attempt, at the socket of the QEMU with this process id. The guest must be running.
    pub(crate) fn begin(socket: PathBuf, pid: u32, has_agent_port: bool) -> PendingClock {
        let shared = Arc::new((Mutex::new(None), Condvar::new()));
        let pending = PendingClock {
            shared: shared.clone(),
        };
        let started = Instant::now();
        let finish = move |result: ClockSync| {
            *shared.0.lock() = Some(result);
            shared.1.notify_all();
        };
        if !has_agent_port {
            finish(ClockSync::Stale {
                reason: format!("the machine has no port for a guest agent; {BY_HAND}"),
            });
            return pending;
        }
        let fallback = finish.clone();
        let thread = floe_threads::spawn("guest-clock", move || {
            finish(match set(&socket, pid) {
                Ok(()) => ClockSync::Set {
                    took: started.elapsed(),
                },
                Err(e) => ClockSync::Stale {
                    reason: format!("{e}, or {BY_HAND}"),
                },
            });
        });
        if let Err(e) = thread {
            fallback(ClockSync::Stale {
                reason: e.to_string(),
            });
        }
        pending
    }

    /// Waits up to `limit` for the result.
    pub fn wait(&self, limit: Duration) -> Option<ClockSync> {
        let (result, changed) = &*self.shared;
        let mut result = result.lock();
        changed.wait_while_for(&mut result, |r| r.is_none(), limit);
        result.clone()
    }
}

fn set(socket: &Path, pid: u32) -> Result<(), QgaError> {
    let mut agent = Agent::connect(socket, pid, AGENT_WAIT_MAX)?;
    agent.set_time()
}
