//! The node's list of machines, what is known of each, and the rule that a machine has one operation at a time.
//!
//! A call begins its operation first and holds it until it changes nothing more. What changes about a machine is private to this
//! room: other services read it and call verbs ([`Entry::drive`] for its life, `parts` for what it is made of, `identity` for
//! its guest). Locks of a machine, in this order: `pauses`, `driving`, `writing`, then `life` and `state`. Everybody reads those
//! two, so they are never held while the disk or QEMU is waited for. The list's own lock is held only briefly.

pub mod afterwards;
mod asleep;
mod clock;
mod disks;
pub mod given;
mod identity;
mod independent;
mod kept;
mod left_alone;
pub mod lifecycle;
mod named;
mod new_record;
mod parts;
mod pauses;
pub mod record;
pub mod small;
pub mod turn;
mod users;

pub use clock::Setter;
pub use disks::check_alias;
pub use identity::{AGENT_LABEL, GuestState, is_pending};
pub use independent::checked_rate;
pub use kept::RECORD_FILE;
pub use left_alone::{LeftAlone, remove_all};
pub use named::Named;
pub use new_record::{NewMachine, sample_record};
pub use parts::{HeldPort, Place};
pub use pauses::{Pauses, now_us};
pub use users::{For, Users};

use crate::inventory::{
    asleep::Asleep,
    left_alone::check_free,
    lifecycle::{Life, OnDisk, Phase, Task, Tell},
    record::{Record, Wanted},
};
use floe_api::PauseReason;
use floe_ground::{
    error::{NodeError, busy, failed, not_found, refused},
    names::{MachineName, similar},
    reserve::Reserve,
};
use floe_image::Hash;
use floe_machine::Machine;
use floe_mount::{ImageHandle, MachineHandle};
use floe_source::Fetcher;
use floe_threads::{Cancel, Pulse, Waited};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a call waits for a short task to end: many times what the slowest takes.
const SHORT_WAIT: Duration = Duration::from_secs(60);

/// How much of a name is in that of a directory with a number behind it, in bytes: room for the number within
/// [`MACHINE_NAME_MAX`](floe_ground::names::MACHINE_NAME_MAX).
const PLACE_HEAD: usize = 29;

/// All machines by name.
pub struct Inventory {
    entries: RwLock<BTreeMap<MachineName, Arc<Entry>>>,
    /// Those whose records can't be read. Locked after `entries`.
    left_alone: RwLock<BTreeMap<MachineName, LeftAlone>>,
    /// Beats when something about a machine has changed.
    changed: Arc<Pulse>,
    reserve: Arc<Reserve>,
    /// The user ids of machines, and of QEMUs that wait.
    pub users: Users,
    tell: Tell,
}

/// One machine.
pub struct Entry {
    /// Its name.
    pub name: Named,
    /// Its directory, `machines/NAME` with the name that it had first.
    pub dir: PathBuf,
    /// Its phase, its operation, and why it stands still.
    life: Mutex<Life>,
    /// Beats when something about a machine has changed: the same for all machines.
    changed: Arc<Pulse>,
    /// Held while what its life demands is carried out.
    driving: Mutex<()>,
    /// Held while the record is changed and written, so that nothing else is locked during the write.
    writing: Mutex<()>,
    /// When it was paused for buffering.
    pauses: Mutex<Pauses>,
    /// Everything else that changes.
    state: RwLock<State>,
    /// Disk space set aside for its record, for when the disk is full.
    reserve: Arc<Reserve>,
    /// Publishes its events.
    tell: Tell,
}

/// What changes about a machine.
pub struct State {
    /// The record as it is on the disk. A change replaces it, so that whoever reads it shares it.
    pub record: Arc<Record>,
    /// Its QEMU, if this node has one.
    pub vm: Option<Arc<Machine>>,
    /// Its disks on the mount.
    pub disks: Option<MachineHandle>,
    /// Its images on the mount: the one that it started from, and those under its disks.
    pub images: Vec<ImageHandle>,
    /// Fetches its image's chunks.
    pub fetcher: Option<Arc<Fetcher>>,
    /// The sockets of its forwarded ports while it is parked.
    pub held: Vec<HeldPort>,
    /// Why it can't be taken over from an earlier node yet; may be empty.
    pub waits: String,
    /// What is known of failures to wake it, while it is parked.
    pub asleep: Asleep,
    /// What is known of its guest.
    pub guest: GuestState,
    /// Length in bytes of its trace file when the trace was last taken.
    pub taken_bytes: u64,
    /// Bytes that its sources had sent when it started.
    pub wire_before: u64,
    /// How far its image is brought to this host, once that has begun under this node.
    pub independence: Option<floe_api::Independence>,
}

impl State {
    /// Returns the state of a machine without a QEMU.
    pub fn new(record: Record) -> State {
        State {
            record: Arc::new(record),
            vm: None,
            disks: None,
            images: Vec::new(),
            fetcher: None,
            held: Vec::new(),
            waits: String::new(),
            asleep: Asleep::default(),
            guest: GuestState::default(),
            taken_bytes: 0,
            wire_before: 0,
            independence: None,
        }
    }
}

/// An operation on a machine. While it exists no other can begin.
pub struct Operation {
    /// The machine.
    pub entry: Arc<Entry>,
}

impl std::ops::Deref for Operation {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        &self.entry
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.entry.life.lock().finish();
        self.entry.changed.beat();
    }
}

impl Entry {
    /// Returns what changes about it, for reading.
    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Returns a copy of its life as it is now.
    pub fn life(&self) -> Life {
        self.life.lock().clone()
    }

    /// Returns its phase.
    pub fn phase(&self) -> Phase {
        self.life.lock().phase()
    }

    /// Returns the record as it is now.
    pub fn record(&self) -> Arc<Record> {
        self.state().record.clone()
    }

    /// Changes the record, on the disk first. `wanted` and `pauses` stay as they are: only [`Entry::drive`] changes those. The
    /// record of a machine that is being removed stays as it is: writing it would create its directory again.
    pub fn update(&self, change: impl FnOnce(&mut Record)) -> Result<(), NodeError> {
        self.save(|record| {
            let (wanted, pauses) = (record.wanted, record.pauses.clone());
            change(record);
            (record.wanted, record.pauses) = (wanted, pauses);
        })
    }

    /// Writes what the record says of the machine's life, with another change.
    fn write(&self, on_disk: &OnDisk, change: impl FnOnce(&mut Record)) -> Result<(), NodeError> {
        self.save(|record| {
            change(record);
            record.wanted = on_disk.wanted;
            record.pauses = on_disk.pauses.clone();
        })
    }

    fn save(&self, change: impl FnOnce(&mut Record)) -> Result<(), NodeError> {
        let _writing = self.writing.lock();
        let before = self.record();
        if before.wanted == Wanted::Removing {
            return Ok(());
        }
        let mut record = Record::clone(&before);
        change(&mut record);
        if record == *before {
            return Ok(());
        }
        self.reserve.write(|| match record.rests_on_this_node() {
            // such a machine does not survive a power cut, so its record need not either
            true => record.save_soon(&self.dir),
            false => record.save(&self.dir),
        })?;
        self.state.write().record = Arc::new(record);
        self.changed.beat();
        Ok(())
    }

    /// Returns its QEMU, or an error that says that there is none.
    pub fn vm(&self) -> Result<Arc<Machine>, NodeError> {
        let vm = self.state.read().vm.clone();
        vm.ok_or_else(|| match self.is_here() {
            // nothing here would have it go on
            Err(elsewhere) => elsewhere,
            Ok(()) if self.is_parked() => refused(
                format!("machine {} is parked", self.name),
                format!("floe wake {} lets it go on", self.name),
            ),
            Ok(()) => failed(
                format!("machine {} is not running", self.name),
                format!("floe start {}", self.name),
            ),
        })
    }

    /// Whether it has no QEMU and goes on from its stored memory when it is woken.
    pub fn is_parked(&self) -> bool {
        self.phase() == Phase::Parked
    }

    /// Returns its disks on the mount, or an error that says that they are not there.
    pub fn mounted(&self) -> Result<MachineHandle, NodeError> {
        self.state.read().disks.clone().ok_or_else(|| {
            failed(
                format!("machine {} is not on the mount", self.name),
                "restart the node",
            )
        })
    }

    /// Whether it should be running but its QEMU, which an earlier node has started, has not answered this node yet.
    pub fn waits_for_adoption(&self) -> bool {
        self.phase() == Phase::Left
    }

    /// Begins an operation, or returns an error that names the one under way. Short tasks ([`Task::is_short`]) are waited
    /// for, since no user has asked for them.
    pub fn begin(self: &Arc<Self>, what: Task) -> Result<Operation, NodeError> {
        let until = Instant::now() + SHORT_WAIT;
        let begun = self.changed.wait_for(Some(until), None, || {
            let mut life = self.life.lock();
            let short = life.task().is_some_and(Task::is_short);
            (!short).then(|| life.begin(what))
        });
        let begun = match begun {
            Waited::Come(begun) => begun,
            Waited::TimedOut | Waited::Cancelled => self.life.lock().begin(what),
        };
        if let Err(other) = begun {
            return Err(busy(
                format!("machine {}: {other} is under way", self.name),
                match what.is_unasked() {
                    true => "wait for it to end, then try again".to_owned(),
                    false => format!("wait for it to end, then {what} again"),
                },
            ));
        }
        let operation = Operation {
            entry: self.clone(),
        };
        operation.can_do(what).map(|()| operation)
    }

    /// Returns what is being done with it.
    pub fn task(&self) -> Option<Task> {
        self.life.lock().task()
    }

    /// Begins an operation once none is under way and its QEMU answers, if it must. Returns `None` if `over` is thrown before that.
    pub fn begin_when_free(self: &Arc<Self>, what: Task, over: &Cancel) -> Option<Operation> {
        let free = || {
            let mut life = self.life.lock();
            let may = !(what.needs_answers() && life.hangs());
            may.then(|| life.begin(what).ok()).flatten()
        };
        let begun = self.changed.wait_for(None, Some(over), free);
        let entry = self.clone();
        begun.come().map(|()| Operation { entry })
    }

    /// Returns why its CPUs stand still.
    pub fn reasons(&self) -> Vec<PauseReason> {
        self.life.lock().reasons()
    }
}

impl Inventory {
    /// Returns an empty list. Machines' records get room on a full disk from `reserve`, machines their users from `users`; `tell`
    /// publishes what happens to machines.
    pub fn new(reserve: Arc<Reserve>, users: Users, tell: Tell) -> Inventory {
        Inventory {
            entries: RwLock::default(),
            left_alone: RwLock::default(),
            changed: Arc::default(),
            reserve,
            users,
            tell,
        }
    }

    /// Returns whether there is no machine.
    pub fn is_empty(&self) -> bool {
        self.entries.read().is_empty()
    }

    /// Returns how many machines there are.
    pub fn len(&self) -> usize {
        self.entries.read().len()
    }

    /// Returns all machines, by name.
    pub fn all(&self) -> Vec<Arc<Entry>> {
        let entries = self.entries.read();
        // one that is just being renamed is there under both of its names
        let once = entries.iter().filter(|(name, entry)| **name == *entry.name);
        once.map(|(_, entry)| entry.clone()).collect()
    }

    /// Returns one machine, or an error if the name is invalid or unknown.
    pub fn get(&self, name: &str) -> Result<Arc<Entry>, NodeError> {
        let parsed: MachineName =
            name.parse()
                .map_err(|error: floe_ground::names::NameError| {
                    floe_ground::error::usage(error.to_string(), "")
                })?;
        let entries = self.entries.read();
        entries.get(&parsed).cloned().ok_or_else(|| {
            if let Some(error) = self.unusable(&parsed) {
                return error;
            }
            let near = similar(name, entries.keys().map(MachineName::as_str));
            let fix = near.map_or_else(
                || "see `floe ps`".to_owned(),
                |near| format!("did you mean {near}? `floe ps` lists all"),
            );
            not_found(format!("there is no machine {name}"), fix)
        })
    }

    /// Adds a machine under the wanted name, or one made from its image's name, with its first operation begun. `make` gets its
    /// name, a name for its directories that no other machine's have, and the id of its user, which no machine of this host has.
    pub fn reserve(
        &self,
        wanted: Option<MachineName>,
        image_name: &str,
        make: impl FnOnce(&MachineName, &str, Option<u32>) -> (PathBuf, Record),
        what: Task,
    ) -> Result<Operation, NodeError> {
        // not while the list is locked: other nodes may have to be waited for
        let uid = self.users.claim(For::Machine)?;
        let added = self.add(
            wanted,
            image_name,
            |name, place| make(name, place, uid),
            what,
        );
        added.inspect_err(|_| self.users.release(uid))
    }

    fn add(
        &self,
        wanted: Option<MachineName>,
        image_name: &str,
        make: impl FnOnce(&MachineName, &str) -> (PathBuf, Record),
        what: Task,
    ) -> Result<Operation, NodeError> {
        let mut entries = self.entries.write();
        let name = match wanted {
            Some(name) => {
                check_free(&entries, &self.left_alone.read(), &name)?;
                name
            }
            None => MachineName::from_image(image_name, |name| {
                check_free(&entries, &self.left_alone.read(), name).is_err()
            }),
        };
        let place = free_place(&name, |place| {
            self.has_left_alone(place) || has_place(&entries, place)
        });
        let (dir, record) = make(&name, &place);
        let entry = self.entry(&name, dir, record, Some(what));
        entries.insert(name, entry.clone());
        Ok(Operation { entry })
    }

    /// Adds a machine that was found on the disk.
    pub fn insert(&self, name: MachineName, dir: PathBuf, record: Record) -> Arc<Entry> {
        self.keep_user(&name, record.uid);
        let entry = self.entry(&name, dir, record, None);
        self.entries.write().insert(name, entry.clone());
        entry
    }

    /// Makes the entry of a machine with its first operation begun. The caller puts it into the list.
    fn entry(
        &self,
        name: &MachineName,
        dir: PathBuf,
        record: Record,
        operation: Option<Task>,
    ) -> Arc<Entry> {
        let mut life = Life::recorded(OnDisk {
            wanted: record.wanted,
            pauses: record.pauses.clone(),
        });
        if let Some(task) = operation {
            let _ = life.begin(task); // a new life has no other
        }
        Arc::new(Entry {
            name: Named::new(name.clone()),
            dir,
            life: Mutex::new(life),
            changed: self.changed.clone(),
            driving: Mutex::default(),
            writing: Mutex::default(),
            pauses: Mutex::default(),
            state: RwLock::new(State::new(record)),
            reserve: self.reserve.clone(),
            tell: self.tell.clone(),
        })
    }

    /// Gives a machine another name, on the disk first: a node that is killed leaves the old name or the new one.
    pub fn rename(&self, operation: &Operation, to: &MachineName) -> Result<(), NodeError> {
        let entry = &operation.entry;
        let from = entry.name.clone();
        {
            let mut entries = self.entries.write();
            check_free(&entries, &self.left_alone.read(), to)?;
            // takes the new name, so that no other machine can have it meanwhile
            entries.insert(to.clone(), entry.clone());
        }
        let written = entry.update(|record| record.name = to.to_string());
        let mut entries = self.entries.write();
        match written {
            Ok(()) => {
                entry.name.becomes(to.clone());
                entries.remove(&from);
                Ok(())
            }
            Err(error) => {
                entries.remove(to);
                Err(error)
            }
        }
    }

    /// Removes a machine from the list, whose QEMU and files are gone.
    pub fn remove(&self, name: &MachineName) {
        let removed = self.entries.write().remove(name);
        self.users
            .release(removed.and_then(|entry| entry.state().record.uid));
        self.changed.beat();
    }

    /// Returns what beats when something about a machine has changed: its operation has ended, its record, its life or what is
    /// known of its guest is another, or it is gone.
    pub fn changed(&self) -> &Arc<Pulse> {
        &self.changed
    }

    /// Returns in words which machine uses an image, if any does.
    pub fn user_of(&self, id: &Hash) -> Option<String> {
        let used = self.all().iter().find_map(|entry| {
            let uses = entry.record().images().contains(id);
            uses.then(|| format!("machine {}", entry.name))
        });
        used.or_else(|| {
            let mut left = self.images_left_alone().into_iter();
            let (_, name) = left.find(|(image, _)| image == id)?;
            Some(format!("machine {name}, whose record can't be read"))
        })
    }

    /// Returns the images that machines use.
    pub fn images(&self) -> Vec<Hash> {
        let mut images: Vec<Hash> = self
            .all()
            .iter()
            .flat_map(|entry| entry.record().images())
            .chain(self.images_left_alone().into_iter().map(|(id, _)| id))
            .collect();
        images.sort_unstable();
        images.dedup();
        images
    }

    /// Flushes the disks of all machines, and leaves the machines running.
    pub fn leave(&self) {
        for entry in self.all() {
            let disks = entry.state().disks.clone();
            if let Some(disks) = disks
                && let Err(error) = disks.flush()
            {
                tracing::warn!(machine = %entry.name, %error, "disks were not flushed");
            }
        }
    }
}

/// Whether a machine's directories, here or on the mount, have this name.
fn has_place(entries: &BTreeMap<MachineName, Arc<Entry>>, place: &str) -> bool {
    entries.values().any(|entry| {
        let dir = entry.dir.file_name().is_some_and(|dir| dir == place);
        dir || entry.state().record.mount_name == place
    })
}

/// Returns a name for a new machine's directories, here and on the mount, that no other machine uses. It may differ from the machine's
/// name, since a machine that is renamed keeps its directories.
fn free_place(name: &MachineName, used: impl Fn(&str) -> bool) -> String {
    let head: String = name.as_str().chars().take(PLACE_HEAD).collect();
    let head = head.trim_end_matches('.');
    let numbered = (2u32..).map(|number| format!("{head}.{number}"));
    std::iter::once(name.to_string())
        .chain(numbered)
        .find(|place| !used(place))
        .expect("fewer than 2^32 machines on a node")
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::ErrorCode;
    use std::path::Path;

    pub fn inventory() -> Inventory {
        Inventory::new(Arc::default(), Users::default(), Arc::new(|_, _| ()))
    }

    fn record(name: &MachineName, uid: Option<u32>) -> Record {
        Record {
            name: name.to_string(),
            image_name: "tiny".into(),
            image: Hash::of(b"image"),
            disk_base: Hash::of(b"base"),
            origin: Default::default(),
            forwards: Vec::new(),
            restored: false,
            wanted: Wanted::Starting,
            uid,
            place: format!("machines/{name}"),
            mount_name: name.to_string(),
            ..sample_record()
        }
    }

    pub fn reserve(machines: &Inventory, name: Option<&str>) -> Result<Operation, NodeError> {
        let make = |name: &MachineName, place: &str, uid: Option<u32>| {
            (Path::new("/nowhere").join(place), record(name, uid))
        };
        machines.reserve(
            name.map(|name| name.parse().unwrap()),
            "tiny",
            make,
            Task::Run,
        )
    }

    #[test]
    fn two_operations_on_one_machine_are_refused_by_name() {
        let machines = inventory();
        let first = reserve(&machines, Some("web")).unwrap();
        let error = machines
            .get("web")
            .unwrap()
            .begin(Task::Capture)
            .err()
            .unwrap()
            .to_api();
        assert_eq!(error.code, ErrorCode::Busy);
        assert!(error.message.contains("run is under way"), "{error}");
        drop(first);
        let second = machines.get("web").unwrap().begin(Task::Capture).unwrap();
        assert!(machines.get("web").unwrap().begin(Task::Stop).is_err());
        drop(second);
        assert!(machines.get("web").unwrap().begin(Task::Stop).is_ok());
    }

    #[test]
    fn a_user_waits_for_what_no_user_has_asked_for() {
        let machines = inventory();
        drop(reserve(&machines, Some("web")).unwrap());
        let web = machines.get("web").unwrap();
        let parks = web.begin(Task::ParkIdle).unwrap();
        let removes = std::thread::scope(|scope| {
            let user = scope.spawn(|| web.begin(Task::Remove));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!user.is_finished(), "it waits");
            drop(parks);
            user.join().unwrap().is_ok()
        });
        assert!(removes);
    }

    #[test]
    fn a_name_is_taken_once_and_every_machine_has_a_user_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let users = users::tests::of(&dir.path().join("claims"), &dir.path().join("home"));
        let machines = Inventory::new(Arc::default(), users, Arc::new(|_, _| ()));
        let kept: Vec<_> = (0..3).map(|_| reserve(&machines, None).unwrap()).collect();
        let names: Vec<_> = kept
            .iter()
            .map(|operation| operation.name.as_str())
            .collect();
        assert_eq!(names, ["tiny", "tiny-2", "tiny-3"]);
        let mut uids: Vec<_> = kept
            .iter()
            .map(|operation| operation.record().uid)
            .collect();
        uids.dedup();
        assert_eq!(uids.len(), 3);
        assert_eq!(
            reserve(&machines, Some("tiny-2"))
                .err()
                .unwrap()
                .to_api()
                .code,
            ErrorCode::Busy
        );
        machines.remove(&"tiny-2".parse().unwrap());
        assert_eq!(
            reserve(&machines, None).unwrap().record().uid,
            Some(floe_machine::exec::UID_FIRST + 1)
        );
    }

    #[test]
    fn an_unknown_machine_is_not_found_and_a_strange_name_is_refused() {
        let machines = inventory();
        assert_eq!(
            machines.get("web").err().unwrap().to_api().code,
            ErrorCode::NotFound
        );
        assert_eq!(
            machines.get("../web").err().unwrap().to_api().code,
            ErrorCode::Usage
        );
    }

    #[test]
    fn an_image_is_in_use_by_what_runs_and_by_what_its_disks_stand_on() {
        let machines = inventory();
        let _web = reserve(&machines, Some("web")).unwrap();
        assert!(
            machines
                .user_of(&Hash::of(b"image"))
                .unwrap()
                .contains("web")
        );
        assert!(machines.user_of(&Hash::of(b"base")).is_some());
        assert!(machines.user_of(&Hash::of(b"other")).is_none());
    }
}
