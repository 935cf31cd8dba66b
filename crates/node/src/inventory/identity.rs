//! What is known of a machine's guest, and whether a clone knows who it is (SnowFlock, section 4.6).

use super::{Entry, record::Record};
use crate::error::{NodeError, refused};
use floe_image::MachineConfig;
use std::time::{Duration, Instant};

/// Label of an image whose guest had an agent at its capture: clones of it wait for their identity.
pub(crate) const AGENT_LABEL: &str = "floe.agent";
/// How long an agent may take before its clone is said to stay without network: its pages may cross a slow link first.
const IDENTITY_LIMIT: Duration = Duration::from_secs(60);
/// How often a fork or capture looks whether the machine's identity is in place.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What is known of a machine's guest.
#[derive(Default)]
pub(crate) struct GuestState {
    /// An agent has answered since QEMU began.
    pub agent: bool,
    /// When the machine's QEMU was entered.
    pub since: Option<Instant>,
    /// Why the identity is not in place.
    pub why: Option<String>,
    /// Whether the agent is to set the clock, and has not answered yet.
    pub clock_awaited: bool,
    /// That it takes too long was told.
    pub told: bool,
}

impl Entry {
    /// Waits until a machine that is to be copied knows who it is itself.
    pub(crate) fn wait_for_identity(&self) -> Result<(), NodeError> {
        while is_pending(&self.record()) {
            let (late, why) = {
                let guest = &self.state.read().guest;
                (is_late(guest.since), guest.why.clone())
            };
            if late || why.is_some() {
                let why = why.unwrap_or_else(|| "its guest says nothing".into());
                return Err(refused(
                    format!("the identity of {} is not in place: {why}", self.name),
                    format!("floe kill {}, and clone its parent again", self.name),
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Says in an image's configuration whether its clones have somebody who puts their identity in place.
    pub fn label_agent(&self, config: &mut MachineConfig) {
        match self.state.read().guest.agent {
            true => config.labels.insert(AGENT_LABEL.into(), "1".into()),
            false => config.labels.remove(AGENT_LABEL),
        };
    }

    /// What is to be said of a clone whose identity is not in place.
    pub fn identity_detail(&self) -> Option<String> {
        let state = self.state.read();
        if !is_pending(&state.record) || state.vm.is_none() {
            return None;
        }
        Some(match &state.guest.why {
            Some(why) => format!("its identity is not in place, so it has no network: {why}"),
            None if is_late(state.guest.since) => format!(
                "its guest did not take its identity within {} s, so it has no network; is floe-guest alive in it?",
                IDENTITY_LIMIT.as_secs()
            ),
            None => "it has no network until its identity is in place".into(),
        })
    }
}

/// Whether a machine may not use its network yet.
pub(crate) fn is_pending(record: &Record) -> bool {
    let family = record.family.as_ref();
    family.is_some_and(|family| family.identity == floe_api::Identity::Pending)
}

/// Whether a clone has waited long enough for its guest.
pub(crate) fn is_late(since: Option<Instant>) -> bool {
    since.is_some_and(|since| since.elapsed() > IDENTITY_LIMIT)
}
