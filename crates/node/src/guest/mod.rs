//! Answers what programs in guests ask for, and gives clones their identity (SnowFlock, sections 4.1 and 4.6).
//!
//! ```text
//! started -> session: hello, ready, place, placed        one thread for each machine with a port
//!              '-> calls: ticket, clone, join, kill, exit, offload, recall on a thread each, counted
//!                    '-> ledger: what each ticket allows
//! ```
//! Processes go the other way (`agents`): the node starts them in the guest, and their streams share the port.
//!
//! A clone whose parent had an agent begins without a network: its cable is unplugged before its first instruction, and
//! plugged in once its guest reports that clock, random numbers, names and addresses are its own. A clone whose agent stays
//! silent never gets a network: two machines with one identity on a network are worse than one machine that is missing.

mod asked;
mod calls;
mod clock;
mod ledger;
mod meter;
mod session;
mod size;
mod thaw;

use floe_fork::{Forks, Reserved};
use floe_ground::{error::NodeError, news::News};
use floe_guest::chores::{self, Forgotten};
use floe_guest::message::{Identity, Me, Place};
use floe_image::Hash;
use floe_inventory::{
    core::Core,
    inventory::{Entry, Inventory, is_pending, record::Record},
    network::Networks,
};
use floe_library::images::Images;
use floe_machine::{Machine, MachineError, qmp::QmpError};
use floe_machines::{
    agents::Agents,
    capture::{Captures, fresh_place},
    machines::Machines,
};
use floe_moves::Moves;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, mpsc},
    time::Duration,
};

/// How long a guest may take to forget whom it was captured from: an emulated one takes its time to make a key.
const FORGET_LIMIT: Duration = Duration::from_secs(300);

/// How often room that was reserved for tickets is checked for whether it can be given back, and the clocks of guests that have no port.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The service that talks to guests. Locks: `reserved` before `ledger`.
pub(crate) struct Guests {
    core: Arc<Core>,
    images: Arc<Images>,
    networks: Arc<Networks>,
    inventory: Arc<Inventory>,
    machines: Arc<Machines>,
    forks: Arc<Forks>,
    ledger: Mutex<ledger::Ledger>,
    /// What plug-ins have reserved for tickets that are not used yet, by ticket.
    reserved: Mutex<BTreeMap<String, Reserved>>,
    agents: Arc<Agents>,
    moves: Arc<Moves>,
}

impl Guests {
    /// Creates the service, over what captures need too; it listens to no guest yet.
    pub fn new(
        captures: &Captures,
        networks: Arc<Networks>,
        forks: Arc<Forks>,
        moves: Arc<Moves>,
    ) -> Arc<Guests> {
        Arc::new(Guests {
            core: captures.core.clone(),
            images: captures.images.clone(),
            networks,
            inventory: captures.inventory.clone(),
            machines: captures.machines.clone(),
            forks,
            ledger: Mutex::default(),
            reserved: Mutex::default(),
            agents: captures.agents.clone(),
            moves,
        })
    }

    /// Starts the thread that begins a conversation with the guest of each QEMU that starts, and looks after those with which there is
    /// none.
    pub(crate) fn start_listening(
        self: &Arc<Self>,
        arrived: mpsc::Receiver<Arc<Entry>>,
    ) -> Result<(), NodeError> {
        let threads = &self.core.threads;
        Ok(threads.follow(
            "guests",
            self,
            arrived,
            LOOK_EVERY,
            |guests, entry| match entry {
                Some(entry) => guests.listen_to(entry),
                None => {
                    guests.drop_unclaimed();
                    guests.look_at_clocks();
                }
            },
        )?)
    }

    fn listen_to(self: &Arc<Self>, entry: Arc<Entry>) {
        let Some(vm) = entry.state().vm.clone() else {
            return;
        };
        let name = entry.name.to_string();
        let guests: Weak<Guests> = Arc::downgrade(self);
        let talk = move || {
            session::run(&guests, &entry, &vm);
            if let Some(guests) = guests.upgrade() {
                guests.agents.forget_streams(&vm);
            }
        };
        let spawned = self.core.threads.keep_running("guest", talk);
        if let Err(error) = spawned {
            tracing::error!(machine = name, %error, "no thread for its guest: it can't clone itself");
        }
    }

    /// Gives back what was reserved for tickets that can no longer be used.
    pub(crate) fn drop_unclaimed(&self) {
        let now_s = self.core.started.elapsed().as_secs();
        let mut reserved = self.reserved.lock();
        if !reserved.is_empty() {
            let mut ledger = self.ledger.lock();
            reserved.retain(|ticket, _| ledger.is_unused(now_s, ticket));
        }
    }

    /// Returns what a guest is sent at the beginning of each conversation. Fails if its QEMU does not answer.
    fn place_of(&self, entry: &Entry, vm: &Machine) -> Result<Place, MachineError> {
        let generation = match vm.generation_id() {
            Err(MachineError::Qmp(QmpError::Closed { .. })) => None, // it has ended
            asked => asked?,
        };
        let record = entry.record();
        Ok(Place {
            node: self.moves.own_name(),
            ..fresh_place(generation, self.identity_of(entry, &record))
        })
    }

    /// Returns a clone's identity; `None` for other machines. Address and gateway are its family network's, if it has one.
    fn identity_of(&self, entry: &Entry, record: &Record) -> Option<Identity> {
        let me = me_of(record).or_else(|| fresh_me(record))?;
        let parents = self.images.manifest_of(&entry.dir, &record.image).ok();
        let mac = record.config.nic_mac.clone();
        // always the same for this clone, and different for every other
        let seed = format!("floe machine-id {} {} {mac:?}", me.ticket, me.machine);
        let mut machine_id = Hash::of(seed.as_bytes()).to_string();
        machine_id.truncate(32);
        if let Some(fresh) = &record.fresh {
            machine_id = fresh.machine_id.clone();
        }
        let place = record.network.as_ref();
        let network = place.map(|place| self.networks.info(place));
        Some(Identity {
            hostname: match &record.ensemble {
                Some(ensemble) => ensemble.host.clone(),
                None => hostname(&record.name),
            },
            machine_id,
            mac,
            mac_was: parents.and_then(|manifest| manifest.config.nic_mac),
            address: network.as_ref().map(|place| place.address.clone()),
            gateway: network.map(|place| place.gateway),
            me,
        })
    }

    /// Notes that the guest has what it was sent. Plugs the cable in once that is its identity, and it has forgotten whom its machine was
    /// captured from if it is to.
    fn identity_placed(self: &Arc<Self>, entry: &Arc<Entry>, vm: &Arc<Machine>) {
        // an agent sets it before all else but the random numbers
        entry.clock_is_set();
        let record = entry.record();
        let missing = |identity: floe_api::Identity| identity != floe_api::Identity::Placed;
        let (fresh, family) = (record.fresh.as_ref(), record.family.as_ref());
        let fresh = fresh.is_some_and(|fresh| missing(fresh.identity));
        if fresh && !entry.forgetting(true) {
            let (guests, entry_, vm) = (self.clone(), entry.clone(), vm.clone());
            // what the agent answers comes through the thread that this is called on
            let forget = move || {
                let done = guests.forget(&entry_);
                entry_.forgetting(false);
                match done {
                    Ok(()) => guests.is_itself(&entry_, &vm),
                    Err(why) => guests.identity_failed(&entry_, &why),
                }
            };
            if let Err(error) = self.core.threads.start("forget", forget) {
                entry.forgetting(false);
                self.identity_failed(entry, &error.to_string());
            }
        } else if !fresh && family.is_some_and(|family| missing(family.identity)) {
            self.is_itself(entry, vm);
        }
    }

    /// Has a machine's agent make it forget what it has from the machine that it was captured from.
    fn forget(&self, entry: &Entry) -> Result<(), String> {
        let (chore, limit) = (chores::names::FORGET, FORGET_LIMIT);
        let done: Result<Forgotten, _> = self.agents.chore(entry, chore, &[], limit);
        let done = done.map_err(|error| error.to_string())?;
        let machine = &entry.name;
        tracing::info!(%machine, files = done.files, "it has forgotten the machine that it was captured from");
        Ok(())
    }

    /// Gives a machine that is itself the network.
    fn is_itself(&self, entry: &Entry, vm: &Machine) {
        let done = vm.set_network(true).map_err(NodeError::from);
        match done.and_then(|()| entry.identity_is_placed()) {
            Ok(()) => {
                entry.identity_is_missing(None);
                self.core.tell(entry.name.as_str(), &News::Identified);
            }
            Err(error) => self.identity_failed(entry, &error.to_string()),
        }
    }

    /// Notes why a machine has no identity yet, and reports it once: its guest can say so again and again, with other reasons.
    fn identity_failed(&self, entry: &Entry, why: &str) {
        if !is_pending(&entry.record()) {
            return;
        }
        let why: String = why.chars().take(200).collect();
        if entry.identity_is_missing(Some(why.clone())) {
            self.core
                .tell(entry.name.as_str(), &News::NotIdentified(why));
        }
    }

    /// Reports once if a clone's guest does not answer in time.
    fn look_at_identity(&self, entry: &Entry) {
        if !is_pending(&entry.record()) {
            return;
        }
        if entry.becomes_late() {
            let why = entry.identity_detail().unwrap_or_default();
            self.core
                .tell(entry.name.as_str(), &News::IdentityLate(why));
        }
    }
}

/// Returns what a clone is told about itself; `None` for other machines.
fn me_of(record: &Record) -> Option<Me> {
    let family = record.family.as_ref()?;
    Some(Me {
        id: family.number,
        machine: record.name.clone(),
        parent: family.parent.clone(),
        ticket: family.fork.clone(),
    })
}

/// Returns what a machine is told about itself that has not yet forgotten whom it was captured from; `None` for other machines.
fn fresh_me(record: &Record) -> Option<Me> {
    let fresh = record.fresh.as_ref();
    fresh.filter(|fresh| fresh.identity == floe_api::Identity::Pending)?;
    Some(Me {
        id: 0,
        machine: record.name.clone(),
        parent: record.image_name.clone(),
        ticket: String::new(),
    })
}

/// Returns a machine's name as a host name. Dots are replaced, so that `web.3` is not a machine of a domain `3`.
fn hostname(machine: &str) -> String {
    const BYTES_MAX: usize = 63;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = machine.chars().map(plain).collect();
    // clones' names differ at the end, so that part is kept
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
