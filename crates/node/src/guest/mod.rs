//! What programs in guests ask for, and telling clones who they are (SnowFlock, sections 4.1 and 4.6).
//!
//! ```text
//! started -> session: hello, ready, place, placed        one thread for each machine with a port
//!              '-> calls: ticket, clone, join, kill, exit on a thread each, counted
//!                    '-> ledger: which ticket is good for what
//! ```
//! A clone whose parent had an agent begins without a network: its cable is pulled before its first instruction, and plugged
//! in once its guest has said that clock, random numbers, names and addresses are its own. One whose agent says nothing stays
//! without: two machines with one identity on a network are worse than one machine that is missing.

mod calls;
mod greet;
mod ledger;
mod meter;
mod session;

pub(crate) use greet::greet;

use crate::{
    MachineName, Node,
    error::{NodeError, at, refused},
    fork::Reserved,
    machines::Entry,
    record::Record,
};
use floe_api::Happened;
use floe_guest::message::{ENTROPY_BYTES, Identity, Me, Place};
use floe_image::{Hash, MachineConfig};
use floe_machine::Machine;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, mpsc},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Label of an image whose guest had an agent at its capture: clones of it wait for their identity.
pub(crate) const AGENT_LABEL: &str = "floe.agent";
/// How long an agent may take before its clone is said to stay without network: its pages may cross a slow link first.
pub(super) const IDENTITY_LIMIT: Duration = Duration::from_secs(60);
/// How long the agent may take before the clock is left to QEMU's.
const CLOCK_LIMIT: Duration = Duration::from_secs(20);
/// How often a fork or capture looks whether the machine's identity is in place.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What the node knows of all guests.
pub(crate) struct Guests {
    ledger: Mutex<ledger::Ledger>,
    /// What plug-ins hold for tickets that were not used yet.
    reserved: Mutex<BTreeMap<String, Reserved>>,
    arrivals: mpsc::Sender<MachineName>,
}

impl Guests {
    /// Nobody yet; the other end is for [`Node::start_listening_to_guests`].
    pub fn new() -> (Guests, mpsc::Receiver<MachineName>) {
        let (arrivals, arrived) = mpsc::channel();
        let guests = Guests {
            ledger: Mutex::default(),
            reserved: Mutex::default(),
            arrivals,
        };
        (guests, arrived)
    }

    /// A fork has its record: if it is of a ticket, its clones are counted there from now on.
    pub fn fork_begun(&self, fork: &str) {
        self.ledger.lock().begun(fork);
    }

    /// A machine has a new QEMU.
    pub fn attend(&self, name: &MachineName) {
        let _ = self.arrivals.send(name.clone()); // nobody listens while the node ends
    }
}

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

impl Node {
    /// Starts the thread that takes care of each machine that begins.
    pub(crate) fn start_listening_to_guests(
        self: &Arc<Self>,
        arrived: mpsc::Receiver<MachineName>,
    ) -> Result<(), NodeError> {
        let node = Arc::downgrade(self);
        std::thread::Builder::new()
            .name("guests".into())
            .spawn(move || {
                for name in arrived {
                    let Some(node) = node.upgrade() else { return };
                    node.listen_to(&name);
                }
            })
            .map_err(at("cannot start the thread that listens to guests"))?;
        Ok(())
    }

    fn listen_to(self: &Arc<Self>, name: &MachineName) {
        let Ok(entry) = self.machines.get(name.as_str()) else {
            return;
        };
        let Some(vm) = entry.state.read().vm.clone() else {
            return;
        };
        let node: Weak<Node> = Arc::downgrade(self);
        let spawned = std::thread::Builder::new()
            .name("guest".into())
            .spawn(move || session::run(&node, &entry, &vm));
        if let Err(error) = spawned {
            tracing::error!(machine = %name, %error, "no thread for its guest: it can't clone itself");
        }
    }

    /// Gives back what was reserved for tickets that nobody will use any more.
    pub(crate) fn drop_unclaimed(&self) {
        let now_s = self.started.elapsed().as_secs();
        let mut reserved = self.guests.reserved.lock();
        if !reserved.is_empty() {
            let mut ledger = self.guests.ledger.lock();
            reserved.retain(|ticket, _| ledger.is_unused(now_s, ticket));
        }
    }

    /// What a guest is told at the beginning of each conversation.
    fn place_of(&self, entry: &Entry) -> Place {
        let record = entry.record();
        fresh_place(self.identity_of(entry, &record))
    }

    /// Who a clone is. The address and the gateway are those of its family's network, if it has one.
    fn identity_of(&self, entry: &Entry, record: &Record) -> Option<Identity> {
        let me = me_of(record)?;
        let parents = self.manifest_of(entry, &record.image).ok();
        let mac = record.config.nic_mac.clone();
        // the same each time that it is asked for, and no other clone's
        let seed = format!("floe machine-id {} {} {mac:?}", me.ticket, me.machine);
        let mut machine_id = Hash::of(seed.as_bytes()).to_string();
        machine_id.truncate(32);
        let place = record.network.as_ref();
        let network = place.map(|place| self.networks.info(place));
        Some(Identity {
            hostname: hostname(&record.name),
            machine_id,
            mac,
            mac_was: parents.and_then(|manifest| manifest.config.nic_mac),
            address: network.as_ref().map(|place| place.address.clone()),
            gateway: network.map(|place| place.gateway),
            me,
        })
    }

    /// All is in place: the cable goes in.
    fn identity_placed(&self, entry: &Entry, vm: &Machine) {
        let pending = |record: &Record| {
            let family = record.family.as_ref();
            family.is_some_and(|family| family.identity != floe_api::Identity::Placed)
        };
        if !pending(&entry.record()) {
            return;
        }
        let done = vm
            .set_network(true)
            .map_err(NodeError::from)
            .and_then(|()| {
                entry.update(|record| {
                    if let Some(family) = &mut record.family {
                        family.identity = floe_api::Identity::Placed;
                    }
                })
            });
        match done {
            Ok(()) => {
                entry.state.write().guest.why = None;
                self.tell(Happened::MachineIdentity, entry.name.as_str(), "in place");
            }
            Err(error) => self.identity_failed(entry, &error.to_string()),
        }
    }

    fn identity_failed(&self, entry: &Entry, why: &str) {
        let why: String = why.chars().take(200).collect();
        entry.state.write().guest.why = Some(why.clone());
        self.tell(
            Happened::MachineIdentity,
            entry.name.as_str(),
            format!("not in place: {why}"),
        );
    }

    /// Tells once of a clone whose guest says nothing.
    fn look_at_identity(&self, entry: &Entry) {
        if !is_pending(&entry.record()) {
            return;
        }
        let late = {
            let mut state = entry.state.write();
            let late = session::is_late(state.guest.since) && !state.guest.told;
            state.guest.told |= late;
            late
        };
        if late {
            self.tell(
                Happened::MachineIdentity,
                entry.name.as_str(),
                entry.identity_detail().unwrap_or_default(),
            );
        }
    }

    /// Leaves the clock to QEMU's agent where floe's own, which is there by the image's word, says nothing.
    fn look_at_clock(self: &Arc<Self>, entry: &Arc<Entry>) {
        let waited = |guest: &GuestState| guest.since.is_some_and(|s| s.elapsed() > CLOCK_LIMIT);
        let late = {
            let guest = &mut entry.state.write().guest;
            let late = guest.clock_awaited && !guest.agent && waited(guest);
            guest.clock_awaited &= !late && !guest.agent;
            late
        };
        if late {
            self.set_clock(entry);
        }
    }

    /// Waits until a machine that is to be copied knows who it is itself.
    pub(crate) fn wait_for_identity(&self, entry: &Entry) -> Result<(), NodeError> {
        while is_pending(&entry.record()) {
            let (late, why) = {
                let guest = &entry.state.read().guest;
                (session::is_late(guest.since), guest.why.clone())
            };
            if late || why.is_some() {
                let why = why.unwrap_or_else(|| "its guest says nothing".into());
                return Err(refused(
                    format!("the identity of {} is not in place: {why}", entry.name),
                    format!("floe kill {}, and clone its parent again", entry.name),
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// The eldest machine of a family, as far as it is known here.
    fn eldest_of(&self, name: &str) -> String {
        let mut eldest = name.to_owned();
        // names get longer from parent to clone, so this ends
        loop {
            let parent = match self.machines.get(&eldest) {
                Ok(entry) => entry.record().family.map(|family| family.parent),
                // a clone that has ended is no family's beginning: its clones may go on
                Err(_) => MachineName::parent_of(&eldest).map(str::to_owned),
            };
            match parent {
                Some(parent) if parent.len() < eldest.len() => eldest = parent,
                _ => return eldest,
            }
        }
    }

    /// How many clones a family has on this node, or by forks of this node.
    fn clones_of_family(&self, eldest: &str) -> u32 {
        let forks = self.forks.all().into_iter();
        let of_family = forks.filter(|fork| self.eldest_of(&fork.parent) == eldest);
        of_family.map(|fork| fork.clones.len() as u32).sum()
    }

    /// Whether a fork is of this machine.
    fn is_fork_of(&self, name: &str, fork: &str) -> bool {
        self.forks
            .get(fork)
            .is_some_and(|record| record.parent == name)
    }
}

/// The time of this moment and random numbers that nobody else has.
fn fresh_place(identity: Option<Identity>) -> Place {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let entropy: [u8; ENTROPY_BYTES] = rand::random();
    Place {
        time_ns: now.unwrap_or_default().as_nanos() as u64,
        entropy: entropy.to_vec(),
        identity,
    }
}

impl Entry {
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
            None if session::is_late(state.guest.since) => format!(
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

/// Who a clone is.
fn me_of(record: &Record) -> Option<Me> {
    let family = record.family.as_ref()?;
    Some(Me {
        id: family.number,
        machine: record.name.clone(),
        parent: family.parent.clone(),
        ticket: family.fork.clone(),
    })
}

/// A machine's name as a host's: `web.3` is no machine of a domain `3`.
fn hostname(machine: &str) -> String {
    const BYTES_MAX: usize = 63;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = machine.chars().map(plain).collect();
    // the end is what tells clones from each other
    let from = name.len().saturating_sub(BYTES_MAX);
    name[from..].trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clones_host_name_is_one_label() {
        assert_eq!(hostname("web.3"), "web-3");
        assert_eq!(hostname("web.3.12"), "web-3-12");
        let long = format!("{}.12", "a".repeat(80));
        assert!(hostname(&long).ends_with("aa-12") && hostname(&long).len() <= 63);
    }
}
