//! Takes over what an earlier node left: machines that run go on, and those that were being created are removed.
//!
//! This has two steps. First every machine gets its files on the mount back ([`Adoption::attach_machines`]), which waits for
//! neither a QEMU nor the network: from then on guests read and write. Then a thread for each machine takes over its QEMU
//! ([`Adoption::take_over_machines`]), so that one that does not answer delays no other. Until its thread is done a machine
//! has the operation `adopt`.

use floe_api::paths::Home;
use floe_fork::{Forks, Unstored};
use floe_ground::{
    aside,
    error::{NodeError, failed},
    names::MachineName,
    news::News,
};
use floe_inventory::{
    core::Core,
    inventory::{
        Entry, Inventory, Operation, RECORD_FILE,
        afterwards::wait_after,
        lifecycle::{Event, Gone, Task},
        record::{Record, Wanted},
    },
};
use floe_machine::{Machine, Status};
use floe_machines::machines::{self, Kin, Machines, is_a_guests};
use floe_park::park::Parks;
use floe_threads::Cancel;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::Duration,
};

/// The message about a clone whose memory is lost.
const LOST: &str = "a part of its memory went with a node that ended before the fork was stored";
/// The message about a clone whose memory may still exist, but can't be read now.
const UNREAD: &str = "a part of its memory can't be read now, see the node's log";
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
    /// It is not yet, for this reason.
    AskAgain(String),
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
    /// Puts every machine that should run back onto the mount; returns all machines that were found. Those whose records can't be read
    /// are left alone.
    pub(crate) fn attach_machines(&self, found: Vec<Found>) -> Vec<Left> {
        let (mut left, mut alone) = (Vec::new(), Vec::new());
        for Found { name, dir, record } in without_begun(found) {
            match record {
                Ok(record) => match self.attach_left(&dir, record) {
                    Ok(machine) => left.extend(machine),
                    Err(error) => alone.push((name, dir, error)),
                },
                Err(error) => alone.push((name, dir, error)),
            }
        }
        // after all others, which have their names from their records
        for (name, dir, error) in alone {
            let why = error.to_string();
            let name = self.inventory.leave_alone(name, dir.clone(), why.clone());
            tracing::error!(machine = %name, dir = %dir.display(), %error, "the machine is left alone");
            self.core.tell(name.as_str(), &News::LeftAlone(why));
        }
        self.machines.settle_limits();
        self.forks.share_all_again();
        left
    }

    fn attach_left(&self, dir: &Path, record: Record) -> Result<Option<Left>, NodeError> {
        let wanted = record.wanted;
        // not the directory's: a machine that was renamed keeps that
        let name: MachineName = record
            .name
            .parse()
            .map_err(|error: floe_ground::names::NameError| failed(error.to_string(), ""))?;
        // a copy of a machine's directory names that machine, whose files are not in it
        self.inventory.check_free(&name)?;
        let entry = self.inventory.insert(name, dir.to_owned(), record);
        let Ok(operation) = entry.begin(Task::Adopt) else {
            return Ok(None);
        };
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
                match self.machines.qemu_of(&left.operation) {
                    Ok(qemu) => qemu.iter().for_each(|qemu| qemu.kill()),
                    Err(error) => {
                        tracing::error!(machine = %left.operation.name, %error, "a QEMU that may run is not ended");
                    }
                }
            }
        }
        Ok(Some(left))
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
        if let Some(why) = why_lost(rests_on, operation) {
            let why = why.to_api().to_string();
            let _ = operation.drive(Event::Loses(why)); // nothing is written for it
            return true;
        }
        let settled = operation.update(|record| {
            if let Some(family) = &mut record.family {
                family.settled = true;
            }
        });
        if let Err(error) = settled {
            tracing::warn!(machine = %operation.name, %error, "its record still says that it needs its parent");
        }
        false
    }

    /// Takes over the QEMUs, each on a thread of its own; waits a moment for those that answer.
    pub(crate) fn take_over_machines(self: &Arc<Self>, left: Vec<Left>) {
        let (tell, told) = mpsc::channel::<()>();
        let waited = self.find_leftovers();
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
        let leftovers = move || {
            if let Some(adoption) = adoption.upgrade() {
                adoption.end_leftovers(&waited);
            }
        };
        let _ = self.core.threads.start("adopt", leftovers);
        drop(tell);
        // nothing is ever sent: the wait ends when the last thread drops its sender
        let _ = told.recv_timeout(BEFORE_ANSWERING);
    }

    fn take_over(self: Arc<Self>, left: Left) {
        let Left {
            operation,
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
                self.machines.resources.ended(&operation.record());
            }
            // killed while it parked or woke: its guest stood still from when it was stored, and has not executed since
            Wanted::Parked => {
                self.machines.end_qemu(&operation);
                self.end_former(&operation); // which has its ports
                self.machines.resources.ended(&operation.record());
                self.parks.hold_again(&operation.entry);
            }
            Wanted::Starting | Wanted::Removing => {
                self.machines.end_qemu(&operation);
                self.machines.discard(&operation);
                if let Err(error) = self.forks.removed(operation.name.as_str()) {
                    tracing::warn!(machine = %operation.name, %error, "it stays in its fork's record");
                }
            }
            Wanted::Running => match self.why_ended(&operation, lost, &attached) {
                Some(why) => {
                    self.machines.end_qemu(&operation);
                    self.not_taken(&operation, &why.to_api().to_string());
                }
                None => self.take_over_running(operation, attached, lost),
            },
        }
    }

    /// Returns why a machine that should run can't, if that is so for ever. A machine that can't be put onto the mount now may be later.
    fn why_ended(
        &self,
        operation: &Operation,
        lost: bool,
        attached: &Result<(), NodeError>,
    ) -> Option<NodeError> {
        let rests_on = lost.then(|| self.forks.find_unstored(&operation.record().image));
        let is_gone = attached.is_err() && rests_on == Some(Unstored::Lost);
        if self.core.took_over && !is_gone {
            return None;
        }
        let why = rests_on.and_then(|rests_on| why_lost(rests_on, operation));
        Some(why.unwrap_or_else(|| self.why_not_taken(operation)))
    }

    /// Takes over a machine that should run, as soon as its files are on the mount and its QEMU answers. Until then its guest waits.
    fn take_over_running(
        self: Arc<Self>,
        mut operation: Operation,
        mut attached: Result<(), NodeError>,
        lost: bool,
    ) {
        let (adoption, entry) = (Arc::downgrade(&self), operation.entry.clone());
        let over = self.core.threads.over().clone();
        let mut failed = 0;
        drop(self);
        while let Some(here) = adoption.upgrade() {
            let is_attached = attached.is_ok();
            let (taken, wait) = match attached {
                Ok(()) => (here.take_over_qemu(&operation), ASK_AGAIN),
                Err(error) => {
                    failed += 1;
                    let what =
                        "its files can't be put onto the mount, and its guest waits for them";
                    let taken = here.unless_ended(&operation, what, error);
                    (taken, wait_after(failed))
                }
            };
            match taken {
                Ok(Taken::Over) => return operation.waits_because(String::new()),
                Ok(Taken::AskAgain(_)) if lost => return,
                Ok(Taken::AskAgain(why)) => operation.waits_because(why),
                Err(error) => return here.not_taken(&operation, &error.to_api().to_string()),
            }
            // meanwhile a user may end the machine or start it anew
            drop((here, operation));
            operation = match begin_again(&entry, wait, &over) {
                Some(operation) => operation,
                None => return,
            };
            let Some(here) = adoption.upgrade() else {
                return;
            };
            attached = match is_attached {
                true => Ok(()),
                false => here.machines.attach(&operation),
            };
        }
    }

    /// Decides what an error of a machine's QEMU means. If the QEMU has ended, returns the error; otherwise that it is to be asked again,
    /// and why. The error alone does not say that it has ended.
    fn unless_ended(
        &self,
        operation: &Operation,
        what: &str,
        error: NodeError,
    ) -> Result<Taken, NodeError> {
        if matches!(self.machines.qemu_of(operation), Ok(None)) {
            return Err(error);
        }
        let name = &operation.name;
        tracing::warn!(machine = %name, %error, what, "it is not taken over yet");
        Ok(Taken::AskAgain(format!(
            "{what}: {}; it is tried again, and floe stop --now {name} ends it",
            error.to_api()
        )))
    }

    /// Asks the QEMU of a machine that is on the mount.
    fn take_over_qemu(&self, operation: &Operation) -> Result<Taken, NodeError> {
        let adopted = Machine::adopt(self.machines.vm_dir(&operation.record()));
        let asked = adopted.and_then(|machine| {
            let still = machine.status()? == Status::Paused;
            Ok((Arc::new(machine), still))
        });
        let (machine, still) = match asked {
            Ok(asked) => asked,
            // one that waits for memory or a disk does not answer
            Err(error) => {
                let what = "its QEMU does not answer this node yet";
                return self.unless_ended(operation, what, error.into());
            }
        };
        operation.load_pauses();
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
            if let Err(error) = self.machines.continue_stopped(operation) {
                tracing::warn!(machine = %operation.name, %error, "its guest may stand still");
            }
        }
        Ok(Taken::Over)
    }

    /// Returns why a machine that should run is not taken over by a node with a new mount.
    fn why_not_taken(&self, operation: &Operation) -> NodeError {
        let name = &operation.name;
        match self.machines.qemu_of(operation) {
            Err(error) => error,
            Ok(Some(_)) => failed(
                MOUNT_LOST,
                format!("floe start {name} starts it from its disks, which have all that it wrote"),
            ),
            Ok(None) => failed(
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
            tracing::warn!(machine = %operation.name, %error, "its record still says that it runs");
        }
        if let Err(error) = self.machines.end_takeover() {
            tracing::warn!(machine = %operation.name, %error, "its files stay on the mount");
        }
    }

    /// Returns the directories of standby QEMUs that belong to no machine. Called before this node answers anybody, since QEMUs that wait
    /// there from then on are its own.
    fn find_leftovers(&self) -> Vec<PathBuf> {
        let entries = self.inventory.all();
        let taken: Vec<String> = entries
            .iter()
            .map(|entry| entry.state().record.place.clone())
            .collect();
        let standby = self.core.home.root().join(machines::STANDBY_DIR);
        let found = aside::list(&standby).unwrap_or_else(|error| {
            tracing::error!(%error, "QEMUs that waited under the earlier node stay");
            Vec::new()
        });
        let is_taken = |name: &str| taken.contains(&format!("{}/{name}", machines::STANDBY_DIR));
        let left = found
            .iter()
            .filter(|dir| !is_taken(&dir.file_name().to_string_lossy()));
        left.map(std::fs::DirEntry::path).collect()
    }

    /// Ends standby QEMUs that belong to no machine, and removes their files. What a guest wrote is set aside; while the
    /// records of some machines can't be read, it may be theirs, and stays.
    fn end_leftovers(&self, waited: &[PathBuf]) {
        let alone = self.inventory.any_left_alone();
        for dir in waited {
            if alone && aside::holds(dir, &is_a_guests).unwrap_or(true) {
                tracing::warn!(dir = %dir.display(), "may belong to a machine whose record can't be read; it stays there");
                continue;
            }
            machines::end_vm(&dir.join(machines::VM_DIR));
            aside::remove_or_set_aside(self.core.home.root(), dir, is_a_guests);
        }
        for entry in self.inventory.all() {
            self.end_former(&entry);
        }
        self.machines.resources.remove_old_groups();
        if !alone {
            self.inventory.users.release_left();
        }
    }

    /// If a machine's files are not in its record's directory, ends the QEMU that it had there and removes what is left: a node was killed
    /// while the machine went back to an image.
    fn end_former(&self, entry: &Entry) {
        if self.core.home.root().join(&entry.record().place) == entry.dir {
            return;
        }
        machines::end_vm(&entry.dir.join(machines::VM_DIR));
        self.machines.clear_former(entry, &entry.dir, true);
    }
}

/// Begins after a while to take a machine over again; returns `None` once there is nothing to take over any more, or the node ends.
fn begin_again(entry: &Arc<Entry>, wait: Duration, over: &Cancel) -> Option<Operation> {
    loop {
        // a QEMU that does not answer says nothing when it could
        if !over.sleep(wait) {
            return None;
        }
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

/// Returns the error that a clone can't go on because of where its memory is.
fn why_lost(rests_on: Unstored, entry: &Entry) -> Option<NodeError> {
    match rests_on {
        Unstored::Kept | Unstored::Stored => None,
        Unstored::Lost => Some(failed(LOST, format!("floe kill {} ends it", entry.name))),
        Unstored::Unread => Some(failed(UNREAD, "restart the node: it tries again then")),
    }
}

/// A machine's directory, and its record or why that can't be read.
pub(crate) struct Found {
    name: MachineName,
    dir: PathBuf,
    record: Result<Record, NodeError>,
}

impl Found {
    /// Whether its record says that its files are in its own directory.
    fn is_at_home(&self) -> bool {
        let own = |record: &Record| Path::new(&record.place).file_name() == self.dir.file_name();
        self.record.as_ref().is_ok_and(own)
    }
}

/// Looks for what an earlier node left, and changes nothing. An error means that nobody knows which machines there are.
pub(crate) fn find_machines(home: &Home) -> Result<Vec<Found>, NodeError> {
    let mut found = Vec::new();
    let mut entries = aside::list(&home.machines())?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (name, dir) = (entry.file_name(), entry.path());
        let parsed = name.to_str().map(str::parse::<MachineName>);
        let Some(Ok(name)) = parsed else {
            tracing::warn!(?name, "is no machine's directory");
            continue;
        };
        let record = Record::load(&dir);
        found.push(Found { name, dir, record });
    }
    // a copy of a machine's directory comes after the machine
    found.sort_by_key(|one| !one.is_at_home());
    Ok(found)
}

/// Returns all but those that had only just been begun, whose directories are removed.
fn without_begun(mut found: Vec<Found>) -> Vec<Found> {
    found.retain(|one| one.record.is_ok() || !remove_begun(&one.dir));
    found
}

/// Removes the directory of a machine that was just being made: a node was killed before it wrote the record, which is the first thing
/// in it. Returns false if there is anything else in it, or no telling.
fn remove_begun(dir: &Path) -> bool {
    let Ok(within) = aside::list(dir) else {
        return false;
    };
    // half a record, as it is called until it is complete
    let half = dir.join(format!("{RECORD_FILE}.tmp"));
    if within.iter().any(|entry| entry.path() != half) {
        return false;
    }
    let _ = std::fs::remove_file(half); // the next call fails if it is still there
    std::fs::remove_dir(dir).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_inventory::inventory::sample_record as record;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn only_what_never_held_anything_is_removed_and_what_cannot_be_read_is_told() {
        let root = tempfile::tempdir().unwrap();
        let home = Home::at(root.path());
        let (path, disk) = (|name: &str| home.machine(name), b"a guest wrote this");
        for name in ["a-copy", "web", "begun", "half", "isdir", "loops", "lost"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        record().save(&path("web")).unwrap();
        record().save(&path("a-copy")).unwrap();
        fs::write(path("half").join("machine.json.tmp"), b"{\"versi").unwrap();
        fs::create_dir(path("isdir").join(RECORD_FILE)).unwrap();
        let loops = path("loops").join(RECORD_FILE);
        symlink(&loops, &loops).unwrap();
        for name in ["isdir", "loops", "lost"] {
            fs::create_dir(path(name).join("disks")).unwrap();
            fs::write(path(name).join("disks/layer-0.data"), disk).unwrap();
        }
        fs::write(path("plain"), disk).unwrap();
        // the disk that it leads to is not there
        symlink("/nowhere/floe", path("moved")).unwrap();
        let found = without_begun(find_machines(&home).unwrap());
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        let order = ["web", "a-copy", "isdir", "loops", "lost", "moved", "plain"];
        assert_eq!(names, order);
        assert!(found[..2].iter().all(|one| one.record.is_ok()));
        for one in &found[2..] {
            let error = one.record.as_ref().unwrap_err().to_string();
            assert!(
                error.contains(path(one.name.as_str()).to_str().unwrap()),
                "{error}"
            );
        }
        assert!(!path("begun").exists() && !path("half").exists());
        for name in ["isdir", "loops", "lost"] {
            let kept = fs::read(path(name).join("disks/layer-0.data")).unwrap();
            assert_eq!(kept, disk, "{name}");
        }
        assert_eq!(fs::read(path("plain")).unwrap(), disk);
        assert!(path("moved").is_symlink());
    }

    #[test]
    fn machines_that_cannot_be_listed_are_an_error_that_names_their_directory() {
        let root = tempfile::tempdir().unwrap();
        let home = Home::at(root.path());
        assert!(find_machines(&home).unwrap().is_empty());
        symlink(home.machines(), home.machines()).unwrap();
        let error = find_machines(&home).map(drop).unwrap_err().to_string();
        assert!(error.contains(home.machines().to_str().unwrap()), "{error}");
    }
}
