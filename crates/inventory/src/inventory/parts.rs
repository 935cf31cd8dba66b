//! What a machine is made of while it runs: its QEMU, its disks and images on the mount. `machines` puts it together and takes it
//! apart through these verbs.

use super::{
    Entry, GuestState,
    asleep::Asleep,
    record::{Household, Record},
    turn::Turn,
};
use floe_ground::{
    error::{NodeError, at, refused},
    guard::{self, LEASE_FILE, boot_ms},
};
use floe_image::Hash;
use floe_machine::Machine;
use floe_mount::{ImageHandle, MachineHandle};
use floe_source::Fetcher;
use std::{
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// A forwarded port of a machine without a QEMU.
pub struct HeldPort {
    /// Which it is.
    pub forward: floe_api::PortForward,
    /// The socket that is bound there.
    pub socket: OwnedFd,
}

/// Where a machine's files are, as which user its QEMU runs, and in which household's control group.
#[derive(Clone, Debug)]
pub struct Place {
    /// Directory of its QEMU and disks, relative to the state directory.
    pub directory: String,
    /// The name of its directory on the mount.
    pub mount_name: String,
    /// The user id of its QEMU.
    pub uid: Option<u32>,
    /// The household in whose control group its QEMU is.
    pub household: Household,
}

impl Place {
    /// Returns that of a machine as its record says.
    pub fn of(record: &Record) -> Place {
        Place {
            directory: record.place.clone(),
            mount_name: record.mount_name.clone(),
            uid: record.uid,
            household: record.household.clone(),
        }
    }
}

impl Entry {
    /// Returns where it stands between this node and another, if it moves or has moved.
    pub fn turn(&self) -> Option<Turn> {
        self.state().record.turn.clone()
    }

    /// Whether its guest may execute on this node, as far as other nodes are concerned.
    pub fn may_run(&self) -> bool {
        self.state().record.turn.as_ref().is_none_or(Turn::is_here)
    }

    /// Returns an error if another node has it, or may have it, with what can be done.
    pub fn is_here(&self) -> Result<(), NodeError> {
        let name = &self.name;
        let elsewhere = self.turn().and_then(|turn| turn.shown(name.as_str()));
        elsewhere.map_or(Ok(()), |why| {
            Err(refused(
                format!("machine {name} is not to run on this node: {why}"),
                format!("floe ps {name} shows how it stands"),
            ))
        })
    }

    /// Returns an error if it runs here by a lease that is over: its lender may have it go on.
    pub fn lease_lasts(&self) -> Result<(), NodeError> {
        let turn = self.turn().filter(|turn| turn.lease_ms().is_some());
        let Some(lender) = turn.and_then(|turn| turn.lender) else {
            return Ok(());
        };
        let file = self.dir.join(LEASE_FILE);
        let until = guard::read(&file).map_err(at(format!("cannot read {}", file.display())))?;
        match until.is_some_and(|until| until > boot_ms()) {
            true => Ok(()),
            false => Err(refused(
                format!("the lease of machine {} is over", self.name),
                format!(
                    "it can go on once {} answers, which has lent it",
                    lender.name
                ),
            )),
        }
    }

    /// Changes where the machine's files and its QEMU are, in memory only; it is written down with the next [`Entry::update`].
    pub fn moves_to(&self, to: Place) {
        let _writing = self.writing.lock();
        let mut state = self.state.write();
        let record = Arc::make_mut(&mut state.record);
        (record.place, record.mount_name) = (to.directory, to.mount_name);
        record.uid = to.uid;
        record.household.id = to.household.id;
    }

    /// Enters the sockets of its forwarded ports, which wait for connections in QEMU's place.
    pub fn holds_ports(&self, held: Vec<HeldPort>) {
        self.state.write().held = held;
    }

    /// Takes those sockets out, for whoever is to listen at them next.
    pub fn take_ports(&self) -> Vec<HeldPort> {
        std::mem::take(&mut self.state.write().held)
    }

    /// Notes why the machine can't be taken over yet; nothing if only its QEMU is waited for.
    pub fn waits_because(&self, why: String) {
        self.state.write().waits = why;
    }

    /// Notes that the machine could not be woken at this time of the node, and why.
    pub fn was_not_woken(&self, now: Duration, why: String) {
        self.state.write().asleep.failed(now, why);
    }

    /// Notes that the machine was woken.
    pub fn was_woken(&self) {
        self.state.write().asleep = Asleep::default();
    }

    /// Enters the machine's disks and images on the mount, the image that it starts from first.
    pub fn is_attached(
        &self,
        disks: MachineHandle,
        images: Vec<ImageHandle>,
        fetcher: Arc<Fetcher>,
    ) {
        let mut state = self.state.write();
        let record = &state.record;
        disks.limit_io(
            record.shares_disk_as(),
            floe_ground::io::limit(&record.limits),
        );
        disks.limit_waits(floe_ground::io::waits_max(&record.limits));
        state.disks = Some(disks);
        state.images = images;
        state.fetcher = Some(fetcher);
    }

    /// Notes that a user has sent it a key, a button or a touch.
    pub fn has_input(&self) {
        if let Some(disks) = &self.state.read().disks {
            disks.input();
        }
    }

    /// Returns how long ago a user has sent it a key, a button or a touch; `None` if nobody has since its disks came to this node.
    pub fn last_input(&self) -> Option<Duration> {
        let state = self.state.read();
        state.disks.as_ref().and_then(MachineHandle::last_input)
    }

    /// Forgets its QEMU, its images, its disks and the ports that were held for it. Returns whether it had disks on the mount.
    pub fn is_detached(&self) -> bool {
        let mut state = self.state.write();
        state.vm = None;
        state.fetcher = None;
        state.held.clear();
        state.images.clear();
        state.disks.take().is_some()
    }

    /// Enters a QEMU that now runs; what was known of the guest of an earlier one is forgotten.
    pub fn has_qemu(&self, machine: &Arc<Machine>) {
        let mut state = self.state.write();
        if let Some(disks) = &state.disks {
            disks.set_pid(machine.pid());
        }
        state.vm = Some(machine.clone());
        state.guest = GuestState {
            since: Some(Instant::now()),
            ..Default::default()
        };
    }

    /// Forgets its QEMU, which has ended; its disks stay on the mount.
    pub fn has_no_qemu(&self) {
        self.state.write().vm = None;
    }

    /// Notes how many bytes its sources had sent when it started.
    pub fn starts_at_wire(&self, bytes: u64) {
        self.state.write().wire_before = bytes;
    }

    /// Notes that its disks stand on this image too from now on.
    pub fn stands_on(&self, image: ImageHandle) {
        self.state.write().images.push(image);
    }

    /// Notes that its disks no longer stand on an image.
    pub fn left_image(&self, id: &Hash) {
        let images = &mut self.state.write().images;
        images.retain(|image| image.id() != *id);
    }

    /// Notes the length in bytes of its trace file when the trace was taken.
    pub fn trace_taken(&self, length: u64) {
        self.state.write().taken_bytes = length;
    }

    /// Notes how far its image is brought to this host.
    pub fn independence_stands(&self, now: floe_api::Independence) {
        self.state.write().independence = Some(now);
        self.changed.beat();
    }

    /// Returns how far its image is brought to this host, if that was asked for.
    pub fn independence(&self) -> Option<floe_api::Independence> {
        let state = self.state.read();
        let asked = state.record.independence?;
        let known = state.independence.clone().unwrap_or_default();
        Some(match asked.whole {
            true => floe_api::Independence {
                state: floe_api::IndependenceState::Whole,
                rate_bytes_s: asked.rate_bytes_s,
                why: known.why,
                ..Default::default()
            },
            false => floe_api::Independence {
                rate_bytes_s: asked.rate_bytes_s,
                ..known
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::sample_record as record;
    use crate::inventory::{
        lifecycle::Task,
        tests::{inventory, reserve},
        turn::{Peer, Side},
    };
    use floe_ground::names::MachineName;

    #[test]
    fn what_runs_here_by_a_lease_begins_only_while_that_lasts() {
        let (dir, machines) = (tempfile::tempdir().unwrap(), inventory());
        let make = |name: &MachineName, _: &str, uid: Option<u32>| {
            let record = Record {
                name: name.to_string(),
                uid,
                ..record()
            };
            (dir.path().to_owned(), record)
        };
        let name = Some("web".parse().unwrap());
        let web = machines.reserve(name, "tiny", make, Task::Run).unwrap();
        web.lease_lasts().unwrap();
        let lender = Peer {
            name: "alpha".into(),
            address: "10.0.0.1:7071".parse().unwrap(),
        };
        let mut turn = Turn::told_of("00112233445566aa".into());
        (turn.lender, turn.lease_s) = (Some(lender), Some(30));
        web.update(|record| record.turn = Some(turn)).unwrap();
        assert!(web.lease_lasts().is_err(), "it was never granted");
        guard::write(dir.path(), u64::MAX).unwrap();
        web.lease_lasts().unwrap();
        guard::write(dir.path(), 1).unwrap();
        let error = web.lease_lasts().unwrap_err().to_api();
        assert!(error.fix.contains("alpha"), "{error}");
    }

    #[test]
    fn what_needs_a_qemu_is_told_where_a_machine_that_is_lent_runs_and_what_brings_it_back() {
        let machines = inventory();
        let web = reserve(&machines, Some("web")).unwrap();
        let borrower = Peer {
            name: "cloud".into(),
            address: "10.0.0.2:7071".parse().unwrap(),
        };
        let mut turn = Turn::told_of("00112233445566aa".into());
        turn.side = Side::Lent { to: borrower };
        // its record is on no disk
        Arc::make_mut(&mut web.entry.state.write().record).turn = Some(turn);
        let error = web.vm().err().unwrap().to_api();
        let says = |text: &str| error.message.contains(text);
        assert!(says("cloud") && says("floe recall web"), "{error}");
    }
}
