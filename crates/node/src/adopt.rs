//! Takes over what an earlier node left: machines that run go on, and those that were being created are removed.
//!
//! This has two steps. First every machine gets its files on the mount back ([`Adoption::attach_machines`]), which waits for
//! neither a QEMU nor the network: from then on guests read and write. Then a thread for each machine takes over its QEMU
//! ([`Adoption::take_over_machines`]), so that one that does not answer delays no other. Until its thread is done a machine
//! has the operation `adopt`.

use crate::{
    MachineName,
    core::Core,
    error::{NodeError, failed},
    files::RECORD_FILE,
    fork::{Forks, Unstored},
    inventory::{
        Entry, Inventory, Operation,
        lifecycle::{Event, Gone, Task},
        record::{Record, Wanted},
    },
    machines::{self, Kin, Machines},
    park::Parks,
};
use floe_api::Happened;
use floe_machine::{Machine, Status};
use std::{
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

/// The message about a clone whose memory is lost.
const LOST: &str = "a part of its memory went with a node that ended before the fork was stored";
/// The message about a machine whose memory was lost with the mount.
const MOUNT_LOST: &str =
    "its memory was lost when this node and the mount's supervisor ended together";
/// How long until a QEMU that does not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a starting node waits for its machines before it begins to answer.
const BEFORE_ANSWERING: Duration = Duration::from_secs(1);

/// A machine that an earlier node left, with its operation begun.
pub(crate) struct Left {
    operation: Operation,
    wanted: Wanted,
    /// Whether it could be put onto the mount, if it should run.
    attached: Result<(), NodeError>,
    /// Whether its memory is neither in a file nor with a node or supervisor.
    lost: bool,
}

/// What came of asking a machine's QEMU.
enum Taken {
    /// It is this node's now.
    Over,
    /// It did not answer.
    AskAgain,
}

/// The service that takes over machines. It lives as long as machines are being taken over.
pub(crate) struct Adoption {
    pub core: Arc<Core>,
    pub inventory: Arc<Inventory>,
    pub machines: Arc<Machines>,
    pub forks: Arc<Forks>,
    pub parks: Arc<Parks>,
}

impl Adoption {
    /// Puts every machine that should run back onto the mount; returns all machines that were found.
    pub(crate) fn attach_machines(&self) -> Vec<Left> {
        let mut left = Vec::new();
        let dirs = std::fs::read_dir(self.core.home.machines());
        for dir in dirs.into_iter().flatten().flatten() {
            let name = dir.file_name();
            let parsed = name
                .to_str()
                .and_then(|name| name.parse::<MachineName>().ok());
            let Some(name) = parsed else {
                tracing::warn!(?name, "is no machine's directory");
                continue;
            };
            match Record::load(&dir.path()) {
                Ok(record) => left.extend(self.attach_left(&dir.path(), record)),
                // the node was killed before it wrote the record, so the directory holds nothing yet
                Err(_) if !dir.path().join(RECORD_FILE).exists() => {
                    let _ = std::fs::remove_dir_all(dir.path());
                }
                Err(error) => {
                    tracing::error!(machine = %name, %error, "the machine is left alone");
                    self.core
                        .tell(Happened::MachineLeftAlone, name.as_str(), error.to_string());
                }
            }
        }
        left
    }

    fn attach_left(&self, dir: &Path, record: Record) -> Option<Left> {
        let wanted = record.wanted;
        // not the directory's: a machine that was renamed keeps that
        let name: MachineName = record.name.parse().ok()?;
        let entry = self.inventory.insert(name, dir.to_owned(), record);
        let operation = entry.begin(Task::Adopt).ok()?;
        let mut left = Left {
            wanted,
            attached: Ok(()),
            lost: false,
            operation,
        };
        match wanted {
            Wanted::Running => {
                left.lost = self.look_for_parent(&left.operation);
                left.attached = self.machines.attach(&left.operation);
                self.machines.resources_found(&left.operation);
            }
            Wanted::Stopped | Wanted::Parked | Wanted::Starting | Wanted::Removing => {
                if let Some(qemu) = self.machines.qemu_of(&left.operation) {
                    qemu.kill();
                }
            }
        }
        Some(left)
    }

    /// Checks where a clone's memory is that was not stored. Returns whether it is lost; the guest then waits when it reads
    /// it.
    fn look_for_parent(&self, operation: &Operation) -> bool {
        let record = operation.record();
        if !record.rests_on_this_node() {
            return false;
        }
        let rests_on = self.forks.find_unstored(&record.image);
        if rests_on == Unstored::Kept {
            return false;
        }
        if rests_on == Unstored::Lost {
            let why = lost_for_good(operation).to_api().to_string();
            let _ = operation.drive(Event::Loses(why)); // nothing is written for it
            return true;
        }
        let settled = operation.update(|record| {
            if let Some(family) = &mut record.family {
                family.settled = true;
            }
        });
        if let Err(error) = settled {
            tracing::warn!(machine = %operation.name, %error, "its record says that it needs its parent");
        }
        false
    }

    /// Takes over the QEMUs, each on a thread of its own; waits a moment for those that answer.
    pub(crate) fn take_over_machines(self: &Arc<Self>, left: Vec<Left>) {
        let (tell, told) = mpsc::channel::<()>();
        for left in left {
            let (adoption, tell) = (self.clone(), tell.clone());
            let name = left.operation.name.clone();
            let work = move || {
                let _over = tell;
                adoption.take_over(left);
            };
            if let Err(error) = self.core.threads.start("adopt", work) {
                tracing::error!(machine = %name, %error, "no thread to take it over: restart the node");
            }
        }
        let adoption = Arc::downgrade(self);
        let pool = self.core.home.root().join(machines::STANDBY_DIR);
        let leftovers = move || {
            if let Some(adoption) = adoption.upgrade() {
                adoption.end_leftovers(&pool);
            }
        };
        let _ = self.core.threads.start("adopt", leftovers);
        drop(tell);
        // nothing is ever sent: the wait ends when the last thread drops its sender
        let _ = told.recv_timeout(BEFORE_ANSWERING);
    }

    fn take_over(self: Arc<Self>, left: Left) {
        let Left {
            mut operation,
            wanted,
            attached,
            lost,
        } = left;
        match wanted {
            Wanted::Stopped => {
                self.machines.end_qemu(&operation);
                let found = operation.update(|record| {
                    record.afterwards = record.afterwards.found_stopped();
                });
                if let Err(error) = found {
                    tracing::warn!(machine = %operation.name, %error, "it is not started again");
                }
                let record = operation.record();
                self.machines
                    .resources
                    .ended(&record.name, &record.mount_name);
            }
            // killed while it parked or woke: its guest stood still from when it was stored, and has not executed since
            Wanted::Parked => {
                self.machines.end_qemu(&operation);
                let record = operation.record();
                self.machines
                    .resources
                    .ended(&record.name, &record.mount_name);
                self.parks.hold_again(&operation.entry);
            }
            Wanted::Starting | Wanted::Removing => {
                self.machines.end_qemu(&operation);
                self.machines.discard(&operation);
                if let Err(error) = self.forks.removed(operation.name.as_str()) {
                    tracing::warn!(machine = %operation.name, %error, "it stays in its fork's record");
                }
            }
            Wanted::Running if attached.is_err() || !self.core.took_over => {
                let why = match attached {
                    _ if lost => lost_for_good(&operation),
                    Err(error) => error,
                    Ok(()) => self.why_not_taken(&operation),
                };
                self.machines.end_qemu(&operation);
                self.not_taken(&operation, &why.to_api().to_string());
            }
            Wanted::Running => {
                let (adoption, entry) = (Arc::downgrade(&self), operation.entry.clone());
                drop(self);
                while let Some(here) = adoption.upgrade() {
                    match here.take_over_qemu(&operation) {
                        Ok(Taken::Over) => return,
                        Ok(Taken::AskAgain) if lost => return,
                        Ok(Taken::AskAgain) => {}
                        Err(error) => {
                            here.machines.end_qemu(&operation);
                            return here.not_taken(&operation, &error.to_api().to_string());
                        }
                    }
                    // meanwhile a user may end the machine or start it anew
                    drop((here, operation));
                    operation = match begin_again(&entry) {
                        Some(operation) => operation,
                        None => return,
                    };
                }
            }
        }
    }

    /// Asks the QEMU of a machine that is on the mount.
    fn take_over_qemu(&self, operation: &Operation) -> Result<Taken, NodeError> {
        let taken = Machine::adopt(self.machines.vm_dir(&operation.record()));
        let machine = match taken {
            Ok(machine) => machine,
            // a QEMU that waits for memory or a disk does not answer
            Err(error) if self.machines.qemu_of(operation).is_some() => {
                tracing::warn!(machine = %operation.name, %error, "its QEMU does not answer");
                return Ok(Taken::AskAgain);
            }
            Err(error) => return Err(error.into()),
        };
        let machine = Arc::new(machine);
        operation.load_pauses();
        let still = machine.status()? == Status::Paused;
        let event = Event::Adopted { still };
        if let Err(error) = self.machines.started(operation, &machine, event, |_| ()) {
            // the disk is full, or a QEMU that waits for lost memory can't be told to stop: its guest stands still anyway
            tracing::warn!(machine = %operation.name, %error, "its record is as the earlier node left it");
            self.machines.attend(&operation.entry);
        }
        // one that lost memory never goes on, and its QEMU may not answer
        if operation.life().orphaned().is_none() {
            if let Err(error) = self.machines.settle_disks(operation) {
                tracing::warn!(machine = %operation.name, %error, "its guest may not know how large its disks are");
            }
            self.parks.settle_ports(operation, &machine);
            if let Err(error) = self.machines.settle_left_size(operation) {
                tracing::warn!(machine = %operation.name, %error, "its record may not say how much memory its guest has");
            }
            self.machines.continue_stopped(operation)?;
        }
        Ok(Taken::Over)
    }

    /// Returns why a machine that should run is not taken over by a node with a new mount.
    fn why_not_taken(&self, operation: &Operation) -> NodeError {
        let name = &operation.name;
        match self.machines.qemu_of(operation) {
            Some(_) => failed(
                MOUNT_LOST,
                format!("floe start {name} starts it from its disks, which have all that it wrote"),
            ),
            None => failed(
                "its QEMU ended while no node was there",
                format!("floe start {name} starts it from its disks"),
            ),
        }
    }

    /// Marks a machine that should run as stopped, since it has no QEMU any more.
    fn not_taken(&self, operation: &Operation, why: &str) {
        tracing::warn!(machine = %operation.name, why, "was not taken over");
        if let Err(error) = self.machines.detach(operation) {
            tracing::warn!(machine = %operation.name, %error, "the machine stays on the mount");
        }
        if let Err(error) = operation.gone(Gone::NotTakenOver(why.to_owned()), "") {
            tracing::warn!(machine = %operation.name, %error, "its record says that it runs");
        }
    }

    /// Ends QEMUs that waited in the pool and belong to no machine, and removes their files.
    fn end_leftovers(&self, pool: &Path) {
        let taken: Vec<String> = self
            .inventory
            .all()
            .iter()
            .map(|entry| entry.record().place)
            .collect();
        for dir in std::fs::read_dir(pool).into_iter().flatten().flatten() {
            let place = format!("standby/{}", dir.file_name().to_string_lossy());
            if !taken.contains(&place) {
                machines::end_vm(&dir.path().join("vm"));
                let _ = std::fs::remove_dir_all(dir.path());
            }
        }
        self.machines.resources.remove_old_groups();
    }
}

/// Begins after a while to take a machine over again; returns `None` once there is nothing to take over any more.
fn begin_again(entry: &Arc<Entry>) -> Option<Operation> {
    loop {
        // a QEMU that does not answer says nothing when it could
        std::thread::sleep(ASK_AGAIN);
        // if another operation is under way, it leaves the machine ended or started
        let operation = entry.begin(Task::Adopt).ok();
        if !entry.waits_for_adoption() {
            return None;
        }
        if operation.is_some() {
            return operation;
        }
    }
}

/// Returns the error that a clone can never go on.
fn lost_for_good(entry: &Entry) -> NodeError {
    failed(LOST, format!("floe kill {} ends it", entry.name))
}
