//! What is known of a machine's guest, and whether a clone knows who it is (SnowFlock, section 4.6).

use super::{
    Entry,
    record::Record,
    small::{FORGETS_LABEL, Fresh, Small},
};
use floe_api::Identity;
use floe_ground::error::{NodeError, refused};
use floe_image::{Hash, MachineConfig};
use floe_threads::Waited;
use std::time::{Duration, Instant};

/// Label of an image whose guest had an agent at its capture: clones of it wait for their identity.
pub const AGENT_LABEL: &str = "floe.agent";
/// Label of a captured image: which machine it was captured from. It tells that machine's node and nobody else, not even its name.
const MACHINE_LABEL: &str = "floe.machine";
/// How long the agent may take before the clone is reported to stay without network: the agent's pages may have to cross a
/// slow link first.
const IDENTITY_LIMIT: Duration = Duration::from_secs(60);

/// What is known of a machine's guest.
#[derive(Default)]
pub struct GuestState {
    /// Whether an agent has answered since QEMU started.
    pub agent: bool,
    /// When this node got the machine's QEMU: when it started, or when it was taken over.
    pub since: Option<Instant>,
    /// Why the identity is not in place, if something went wrong.
    pub why: Option<String>,
    /// What is known of its clock.
    pub clock: super::clock::Clock,
    /// Whether it was already reported that the agent takes too long.
    pub told: bool,
    /// Whether it is being made to forget whom it was captured from.
    pub forgets: bool,
}

impl GuestState {
    /// Whether floe's agent has had so much time to answer.
    pub(super) fn had(&self, limit: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() > limit)
    }
}

impl Fresh {
    /// Returns a new identity for a machine of this image, if the image forgets; its card gets a new address then.
    pub fn of_image(config: &mut MachineConfig) -> Option<Fresh> {
        config.labels.remove(FORGETS_LABEL)?;
        floe_machine::renew_mac(config);
        let number: u128 = rand::random();
        Some(Fresh {
            machine_id: format!("{number:032x}"),
            identity: Identity::Pending,
        })
    }
}

impl Entry {
    /// Notes what was taken from it to make it small, before that is done.
    pub fn becomes_small(&self, small: &Small) -> Result<(), NodeError> {
        self.update(|record| record.small = small.clone())
    }

    /// Blocks until a machine that is to be copied has its own identity. Fails if that takes too long or went wrong.
    pub fn wait_for_identity(&self) -> Result<(), NodeError> {
        let look = || {
            let state = self.state();
            if !is_pending(&state.record) {
                return Some(Ok(()));
            }
            let late = || is_late(state.guest.since).then(|| "its guest says nothing".into());
            let why = state.guest.why.clone().or_else(late)?;
            Some(Err(refused(
                format!("the identity of {} is not in place: {why}", self.name),
                format!("floe kill {}, and clone its parent again", self.name),
            )))
        };
        loop {
            let since = self.state().guest.since.unwrap_or_else(Instant::now);
            let late = Some(since + IDENTITY_LIMIT);
            if let Waited::Come(done) = self.changed.wait_for(late, None, look) {
                return done;
            }
        }
    }

    /// Sets or removes the labels that say what is known of the guest in an image: whether clones have an agent that puts their identity
    /// in place, what it has of its hardware, what its disks are called, and what was taken from it to make it small.
    pub fn label_guest(&self, config: &mut MachineConfig) {
        match self.state().guest.agent {
            true => config.labels.insert(AGENT_LABEL.into(), "1".into()),
            false => config.labels.remove(AGENT_LABEL),
        };
        let state = self.state();
        state.record.given.label(config);
        state.record.label_disks(config);
        state.record.small.label(config);
        Fresh::unlabel(config);
    }

    /// Returns how often its guest has waited for something that was not on this host.
    pub fn waits(&self) -> u64 {
        let disks = self.state().disks.clone();
        disks.map_or(0, |disks| disks.stats().waits)
    }

    /// Says where what its guest needs still has to come from, if that may be why an agent in it is silent: the source gives nothing, or
    /// the restored guest waits for its own memory now or has waited for it since its count of waits was `before`.
    pub fn still_fetches(&self, before: u64) -> Option<String> {
        let (fetcher, restored, from) = {
            let state = self.state();
            let from = state.record.origin.urls.first().cloned();
            (state.fetcher.clone()?, state.record.restored, from?)
        };
        let trouble = fetcher.trouble();
        let trouble = trouble.map(|(lasts, why)| (lasts.as_secs(), why.to_string()));
        let waits = restored && (self.waits() > before || fetcher.stats().waiting > 0);
        fetches(&from, trouble, waits)
    }

    /// Sets the label that says that an image was captured from this machine.
    pub fn label_machine(&self, config: &mut MachineConfig) {
        config.labels.insert(MACHINE_LABEL.into(), self.mark());
    }

    /// Whether that label says so of an image.
    pub fn is_captured_in(&self, config: &MachineConfig) -> bool {
        config.labels.get(MACHINE_LABEL) == Some(&self.mark())
    }

    /// Returns what identifies the machine for ever: no other machine has had it or will have it, and a new name or another directory does
    /// not change it.
    fn mark(&self) -> String {
        let place = self.dir.file_name().unwrap_or_default().to_string_lossy();
        let created = self.state().record.created_unix_s;
        Hash::of(format!("{place} {created}").as_bytes()).short()
    }

    /// Notes that an agent in its guest has answered. Returns whether that is new for its QEMU.
    pub fn agent_answers(&self) -> bool {
        let new = !std::mem::replace(&mut self.state.write().guest.agent, true);
        self.changed.beat();
        new
    }

    /// Notes why its identity is not in place; `None` once it is. Returns whether nothing had gone wrong before.
    pub fn identity_is_missing(&self, why: Option<String>) -> bool {
        let before = std::mem::replace(&mut self.state.write().guest.why, why);
        self.changed.beat();
        before.is_none()
    }

    /// Whether its guest takes too long to take its identity; true only once for each QEMU.
    pub fn becomes_late(&self) -> bool {
        let guest = &mut self.state.write().guest;
        let late = is_late(guest.since) && !guest.told;
        guest.told |= late;
        late
    }

    /// Notes that its guest is being made to forget whom it was captured from, or that this is over. Returns what was noted before.
    pub fn forgetting(&self, begins: bool) -> bool {
        std::mem::replace(&mut self.state.write().guest.forgets, begins)
    }

    /// Notes that its guest has its identity.
    pub fn identity_is_placed(&self) -> Result<(), NodeError> {
        self.update(|record| {
            if let Some(family) = &mut record.family {
                family.identity = floe_api::Identity::Placed;
            }
            if let Some(fresh) = &mut record.fresh {
                fresh.identity = floe_api::Identity::Placed;
            }
        })
    }

    /// Returns what is shown about a clone whose identity is not in place; `None` for any other machine.
    pub fn identity_detail(&self) -> Option<String> {
        let state = self.state();
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

/// Says from where a guest's pages come. `trouble`: for how many seconds nothing has come that somebody waits for, and why. `waits`:
/// whether this guest waits.
fn fetches(from: &str, trouble: Option<(u64, String)>, waits: bool) -> Option<String> {
    match trouble {
        Some((seconds, why)) => Some(format!(
            "what its guest needs is still to come from {from}, which has given nothing for {seconds} s: {why}"
        )),
        None => waits.then(|| format!("its guest's memory is still being fetched from {from}")),
    }
}

/// Whether the machine may not use its network yet, because its identity is not in place.
pub fn is_pending(record: &Record) -> bool {
    let family = record.family.as_ref().map(|family| family.identity);
    let fresh = record.fresh.as_ref().map(|fresh| fresh.identity);
    [family, fresh].contains(&Some(floe_api::Identity::Pending))
}

/// Whether a clone whose QEMU started at `since` has waited too long for its guest's agent.
fn is_late(since: Option<Instant>) -> bool {
    since.is_some_and(|since| since.elapsed() >= IDENTITY_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::{inventory, reserve};

    #[test]
    fn an_image_says_which_machine_it_was_captured_from_and_names_nobody() {
        let machines = inventory();
        let web = reserve(&machines, Some("web")).unwrap();
        let other = reserve(&machines, Some("other")).unwrap();
        let mut config = MachineConfig::default();
        assert!(!web.is_captured_in(&config));
        web.label_machine(&mut config);
        assert!(web.is_captured_in(&config) && !other.is_captured_in(&config));
        assert!(!config.labels.values().any(|said| said.contains("web")));
        other.label_machine(&mut config);
        assert!(other.is_captured_in(&config) && !web.is_captured_in(&config));
    }

    #[test]
    fn two_machines_of_an_image_that_forgets_are_nobody_else() {
        let mut image = MachineConfig {
            nic_mac: Some("52:54:00:12:34:56".into()),
            ..Default::default()
        };
        assert_eq!(Fresh::of_image(&mut image.clone()), None);
        image.labels.extend([Fresh::label()]);
        let (mut first, mut second) = (image.clone(), image.clone());
        let (one, other) = (
            Fresh::of_image(&mut first).unwrap(),
            Fresh::of_image(&mut second).unwrap(),
        );
        assert_ne!(one.machine_id, other.machine_id);
        assert!(first.nic_mac != image.nic_mac && first.nic_mac != second.nic_mac);
        assert_eq!(
            (one.machine_id.len(), one.identity),
            (32, Identity::Pending)
        );
        assert!(first.labels.is_empty());
    }

    #[test]
    fn a_guest_whose_pages_are_still_to_come_is_told_apart_from_one_that_has_them() {
        let hub = "https://hub.example/web";
        assert_eq!(fetches(hub, None, false), None);
        let slow = fetches(hub, None, true).unwrap();
        let from = "still being fetched from https://hub.example/web";
        assert!(slow.contains(from), "{slow}");
        let why = "connection refused".to_owned();
        let silent = fetches(hub, Some((40, why)), false).unwrap();
        for part in [hub, "nothing for 40 s", "connection refused"] {
            assert!(silent.contains(part), "{silent}");
        }
    }
}
