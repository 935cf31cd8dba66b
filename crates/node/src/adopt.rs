//! A node that starts takes over what an earlier one left: machines that run go on, half-made ones go away.
//!
//! Two steps. First every machine gets its files on the mount back ([`Adoption::attach_machines`]), which asks neither a QEMU nor the
//! network anything: from then on guests read and write. Then each machine's QEMU is taken over by a thread of its own
//! ([`Adoption::take_over_machines`]), so that one that does not answer delays nobody else. Until its thread is done a machine has the
//! operation `adopt`.

use crate::{
    MachineName,
    core::Core,
    error::{NodeError, failed},
    files::{RECORD_FILE, load_pauses},
    fork::{Forks, Unstored},
    inventory::{
        Entry, Inventory, Operation, Pauses,
        lifecycle::{Event, Task},
        record::{PauseReason, Record, Wanted},
    },
    machines::{self, Kin, Machines},
};
use floe_api::Happened;
use floe_machine::{Machine, Status};
use std::{
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

/// What is said of a clone whose memory is gone.
const LOST: &str = "a part of its memory went with a node that ended before the fork was stored";
/// What is said of a machine whose memory went with the mount.
const MOUNT_LOST: &str =
    "its memory was lost when this node and the mount's supervisor ended together";
/// How long until a QEMU that does not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a node that starts waits for its machines before it answers all the same.
const BEFORE_ANSWERING: Duration = Duration::from_secs(1);

/// A machine that an earlier node has left, with its operation begun.
pub(crate) struct Left {
    operation: Operation,
    wanted: Wanted,
    /// How putting it onto the mount went, if it should run.
    attached: Result<(), NodeError>,
    /// Its memory is in no file and with nobody.
    lost: bool,
}

/// What is to become of a machine whose QEMU was asked.
enum Taken {
    /// It is this node's, or it has ended.
    Over,
    /// It did not answer.
    AskAgain,
}

/// See the module. Lives as long as machines are being taken over.
pub(crate) struct Adoption {
    pub core: Arc<Core>,
    pub inventory: Arc<Inventory>,
    pub machines: Arc<Machines>,
    pub forks: Arc<Forks>,
}

impl Adoption {
    /// Puts every machine that should run back onto the mount.
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
                Ok(record) => left.extend(self.attach_left(name, &dir.path(), record)),
                // killed before the record was written: there is nothing in it yet
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

    fn attach_left(&self, name: MachineName, dir: &Path, record: Record) -> Option<Left> {
        let wanted = record.wanted;
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
            Wanted::Stopped | Wanted::Starting | Wanted::Removing => {
                if let Some(qemu) = self.machines.qemu_of(&left.operation) {
                    qemu.kill();
                }
            }
        }
        Some(left)
    }

    /// A clone's memory may have been in the earlier node's: whether it was and is lost. Whoever asks for it then waits.
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
            operation.state.write().orphaned = Some(why);
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
            let thread = std::thread::Builder::new().name("adopt".into());
            if let Err(error) = thread.spawn(work) {
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
        let _ = std::thread::Builder::new()
            .name("adopt".into())
            .spawn(leftovers);
        drop(tell);
        // nothing is ever sent: the wait ends with the last thread
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
                let record = operation.record();
                self.machines
                    .resources
                    .ended(&record.name, &record.mount_name);
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
                    match here.take_over_qemu(&operation, lost) {
                        Ok(Taken::Over) => return,
                        Ok(Taken::AskAgain) if lost => return,
                        Ok(Taken::AskAgain) => {}
                        Err(error) => {
                            here.machines.end_qemu(&operation);
                            return here.not_taken(&operation, &error.to_api().to_string());
                        }
                    }
                    // in between somebody may end it, or start it anew
                    drop((here, operation));
                    operation = match begin_again(&entry) {
                        Some(operation) => operation,
                        None => return,
                    };
                }
            }
        }
    }

    /// Asks a QEMU whose machine is on the mount.
    fn take_over_qemu(&self, operation: &Operation, lost: bool) -> Result<Taken, NodeError> {
        let taken = Machine::adopt(self.machines.vm_dir(&operation.record()));
        let machine = match taken {
            Ok(machine) => machine,
            // one that waits for memory or a disk answers nobody
            Err(error) if self.machines.qemu_of(operation).is_some() => {
                tracing::warn!(machine = %operation.name, %error, "its QEMU does not answer");
                if lost {
                    self.core
                        .tell(Happened::MachineOrphaned, operation.name.as_str(), LOST);
                }
                return Ok(Taken::AskAgain);
            }
            Err(error) => return Err(error.into()),
        };
        if let Err(error) = self.machines.started(operation, Arc::new(machine), |_| ()) {
            // a full disk: what is known of it is not new
            tracing::warn!(machine = %operation.name, %error, "its record is as the earlier node left it");
            self.machines.attend(&operation.name);
        }
        self.end_old_pause(operation)?;
        self.machines.continue_stopped(operation)?;
        if lost {
            // One that waits for memory already can't be told; it stands still by itself.
            let _ = operation.vm()?.stop();
            self.core
                .tell(Happened::MachineOrphaned, operation.name.as_str(), LOST);
        }
        self.core
            .tell(Happened::MachineAdopted, operation.name.as_str(), "");
        Ok(Taken::Over)
    }

    /// Lets a machine go on that an earlier node had stopped for work of its own. What the user has stopped stays so.
    pub(crate) fn end_old_pause(&self, entry: &Entry) -> Result<(), NodeError> {
        *entry.pauses.lock() = Pauses::after(load_pauses(&entry.dir));
        let before = entry.record().pauses;
        if before.is_empty() {
            return Ok(());
        }
        let vm = entry.vm()?;
        let still = vm.status()? == Status::Paused;
        if let Err(error) = entry.stand(Some(&vm), Event::Adopted { still }) {
            // a full disk has not kept the guest from going on
            tracing::warn!(machine = %entry.name, %error, "its record says that it stands still");
        }
        if still && before.iter().all(|reason| reason.ends_with_its_node()) {
            let before: Vec<_> = before.into_iter().collect();
            let why = format!("it had been paused for {}", words(&before));
            self.core
                .tell(Happened::MachineContinued, entry.name.as_str(), why);
        }
        Ok(())
    }

    /// Why a machine that should run is not taken over by a node whose mount is a new one.
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

    /// A machine that should run has no QEMU any more.
    fn not_taken(&self, operation: &Operation, why: &str) {
        tracing::warn!(machine = %operation.name, why, "was not taken over");
        if let Err(error) = self.machines.detach(operation) {
            tracing::warn!(machine = %operation.name, %error, "the machine stays on the mount");
        }
        operation.state.write().failed = true;
        let kept = operation.update_anew(|record| {
            record.wanted = Wanted::Stopped;
            record.detail = why.to_owned();
        });
        if let Err(error) = kept {
            tracing::warn!(machine = %operation.name, %error, "its record says that it runs");
        }
        self.core
            .tell(Happened::MachineLost, operation.name.as_str(), why);
    }

    /// Ends QEMUs that waited in the pool and belong to no machine.
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

/// Begins to take a machine over again after a while; `None` if there is nothing to take over any more.
fn begin_again(entry: &Arc<Entry>) -> Option<Operation> {
    loop {
        std::thread::sleep(ASK_AGAIN);
        // whatever else is under way ends, and leaves it as it is, ended or started
        let operation = entry.begin(Task::Adopt).ok();
        if !entry.waits_for_adoption() {
            return None;
        }
        if operation.is_some() {
            return operation;
        }
    }
}

/// Why a clone will never go on.
fn lost_for_good(entry: &Entry) -> NodeError {
    failed(LOST, format!("floe kill {} ends it", entry.name))
}

/// Reasons for a person to read.
fn words(reasons: &[PauseReason]) -> String {
    let word = |reason: &PauseReason| match reason {
        PauseReason::User => "the user",
        PauseReason::Buffering => "buffering",
        PauseReason::Orphaned => "want of its parent's node",
        PauseReason::Capture => "a capture or a fork",
        PauseReason::DiskFull => "want of room on the disk",
    };
    reasons.iter().map(word).collect::<Vec<_>>().join(" and ")
}
