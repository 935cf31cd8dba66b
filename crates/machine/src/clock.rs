//! The guest's clock after a restore.
//!
//! A restored guest goes on with the time that it had at the capture, which may be weeks ago; certificates then look as if
//! they came from the future and TLS fails. What each of its clocks does:
//!
//! - *Monotonic clocks* (TSC, HPET, ACPI timer, kvm-clock) go on from where they were: QEMU restores their counters with
//!   the device state. That is right: a guest must not see hours pass between two instructions.
//! - *The clock on the mainboard* (RTC) is told to follow the host (`-rtc base=utc,clock=host`): its state holds the moment of
//!   its last update in host time, so that it is right at the first read after a restore.
//! - *The wall clock* is kept by the guest's kernel as an offset to its monotonic clock. No device can move it: Linux reads the
//!   RTC, or kvm-clock's wall clock, only at boot and after its own suspend. Somebody inside has to set it.
//!
//! That somebody is the guest agent: `guest-set-time` over the virtio serial port. Where none answers, the guest is stale
//! until its own NTP client notices, or something in it runs `hwclock --hctosys`, which gives the right time at once; the
//! caller is told ([`ClockSync::Stale`]) and tells the user.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::qga::{Agent, QgaError};

/// How long the agent is waited for after a restore: it was running at the capture or it will not come, but its pages may
/// have to cross a slow link first.
pub const AGENT_WAIT_MAX: Duration = Duration::from_secs(60);

/// What became of the guest's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClockSync {
    /// The agent set it.
    Set {
        /// From the guest's first instruction to the agent's answer.
        took: Duration,
    },
    /// Nobody did: the wall clock shows the time of the capture. Its RTC is right.
    Stale {
        /// Why, with the way out.
        reason: String,
    },
}

/// The setting of a guest's clock, going on in the background.
#[derive(Clone)]
pub struct PendingClock {
    shared: Arc<(Mutex<Option<ClockSync>>, Condvar)>,
}

impl PendingClock {
    /// Begin now; the guest runs.
    pub(crate) fn begin(socket: PathBuf, has_agent_port: bool) -> PendingClock {
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
                reason:
                    "the machine has no port for a guest agent; run hwclock --hctosys in the guest"
                        .into(),
            });
            return pending;
        }
        let fallback = finish.clone();
        let thread = std::thread::Builder::new()
            .name("guest-clock".into())
            .spawn(move || {
                finish(match set(&socket) {
                    Ok(()) => ClockSync::Set {
                        took: started.elapsed(),
                    },
                    Err(e) => ClockSync::Stale {
                        reason: format!("{e}, or run hwclock --hctosys in the guest"),
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

    /// The result, if there is one within `limit`.
    pub fn wait(&self, limit: Duration) -> Option<ClockSync> {
        let (result, changed) = &*self.shared;
        let mut result = result.lock();
        changed.wait_while_for(&mut result, |r| r.is_none(), limit);
        result.clone()
    }
}

fn set(socket: &Path) -> Result<(), QgaError> {
    let mut agent = Agent::connect(socket, AGENT_WAIT_MAX)?;
    agent.set_time()
}
