//! QEMUs that are started before it is known which image they will load: for the clones of a machine whose guest has a ticket or that was
//! forked before, and for runs of later states of an image that was run.
//!
//! Starting QEMU is most of what a clone costs, and needs only the hardware. So such a QEMU waits on blank files of the mount
//! (`floe_mount::BlankSpec`), which get their content when it is taken. Those of one family share the blank memory file, so that
//! clones find each other's pages in the page cache. `families` decides who waits for whom.
//!
//! One that dies while it waits, or that can't be used, is ended, and the machine is started as if there had been none.
//!
//! Locks: `inner`, and nothing else while it is held. A QEMU is started, bound and ended without it.

use super::{
    families::{Families, Terms, Whose},
    launch::{Attached, disk_specs},
    standby::PREPARING_END,
};
use crate::machines::Machines;
use floe_ground::{
    error::{NodeError, at},
    options::BLANK_BYTES,
    time::unix_now,
};
use floe_image::memory_region;
use floe_inventory::{
    inventory::{
        Entry, NewMachine, Operation, Place, is_pending,
        record::{Household, Origin, Record},
    },
    resources::Ahead,
};
use floe_library::{images::sources::Found, traces::models::Coming};
use floe_machine::{Blank, MEMORY_BYTES_DEFAULT, Standby};
use floe_mount::{BlankDisk, BlankSpec, DiskSpec, ImageHandle, MachineHandle, Mount};
use parking_lot::{Condvar, Mutex};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// What QEMU reads of a disk before its guest runs: the first sector, for the geometry that it tells the guest.
const BEGINNING_BYTES: usize = 512;

/// The QEMUs that wait, and those that are being started.
#[derive(Default)]
pub(crate) struct Blanks {
    inner: Mutex<Inner>,
    /// Notified when a thread that starts or ends some is done.
    done: Condvar,
}

#[derive(Default)]
struct Inner {
    families: Families<WaitingBlank, Files>,
    threads: usize,
}

/// What the QEMUs of a family are started with.
#[derive(Clone)]
struct Files {
    image: ImageHandle,
    disks: Vec<DiskSpec>,
    /// The record of the machine that they are to become copies of, as far as QEMU's start needs it.
    record: Arc<Record>,
    /// Whether each gets network addresses of its own.
    renew: bool,
}

/// Whose clones QEMUs wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Those that a user makes, each with limits of its own.
    User,
    /// Those that the guest makes, within its own limits.
    Guest,
}

/// A QEMU that waits.
struct WaitingBlank {
    blank: Blank,
    // after the QEMU, so that its files go later
    _disks: MachineHandle,
    place: Place,
    dir: PathBuf,
    /// Its reservation of the host's memory.
    _room: Ahead,
}

impl Terms {
    fn of(record: &Record) -> Terms {
        Terms {
            hardware: floe_machine::hardware_of(&record.config),
            access: record.host_access.clone(),
            limits: record.limits,
            household: record.household.joined.then(|| record.household.id.clone()),
        }
    }
}

/// Returns the family whose waiting QEMUs could become this machine. `None` if no waiting QEMU could: one in a family's network gets the
/// host's end of it, with the member's number, at its start, and a UEFI firmware and its variables are read whole then.
fn whose(record: &Record) -> Option<Whose> {
    let special = |disk: &String| floe_image::is_special_disk(disk);
    if record.network.is_some() || record.config.disks.iter().any(special) {
        return None;
    }
    Some(match &record.family {
        Some(family) => Whose::ClonesOf(family.parent.clone()),
        None => Whose::RunOf(record.config.devices.clone()),
    })
}

impl Machines {
    /// Returns how many QEMUs wait that are not bound to an image.
    pub fn blanks_len(&self) -> usize {
        self.blanks.inner.lock().families.waiting()
    }

    /// Starts QEMUs for `count` clones of a machine in the background, on so many threads, as far as the options allow it.
    pub fn prepare_clones(
        self: &Arc<Self>,
        parent: &Arc<Entry>,
        maker: Maker,
        count: u32,
        threads: usize,
    ) {
        let of = Whose::ClonesOf(parent.name.to_string());
        let (parent, record) = (parent.clone(), parent.record());
        // those that wait would take from the memory that the guest may have
        if maker == Maker::Guest && record.limits.memory_max_bytes.is_some() {
            return;
        }
        let household = match maker {
            Maker::User => Household::default(),
            Maker::Guest => Household::join(record.household_id()),
        };
        self.on_a_thread(move |machines| {
            machines.prepare_blanks(&parent, |_| of, household, count as usize, threads);
        });
    }

    /// Starts a QEMU for the next run of an image with the hardware and the addresses of a machine that was run from one: of a
    /// later state of it, say.
    pub(crate) fn prepare_run(self: &Arc<Self>, like: &Arc<Entry>) {
        let like = like.clone();
        self.on_a_thread(move |machines| {
            let options = &machines.core.options.standby;
            let of = |record: &Record| Whose::RunOf(record.config.devices.clone());
            machines.prepare_blanks(&like, of, Household::default(), options.each, 1);
            let mut inner = machines.blanks.inner.lock();
            let gone = inner.families.keep_for_runs(options.images);
            drop(inner);
            gone.into_iter().for_each(|gone| machines.end_blank(gone));
        });
    }

    /// Reads the beginnings of the machine's disks, which may take long, and starts threads that start QEMUs.
    fn prepare_blanks(
        self: &Arc<Self>,
        like: &Entry,
        of: impl FnOnce(&Record) -> Whose,
        household: Household,
        count: usize,
        threads: usize,
    ) {
        let options = &self.core.options.standby;
        let most = match options.each {
            0 => 0,
            _ => (options.blank_bytes / BLANK_BYTES) as usize,
        };
        if most == 0 || whose(&like.record()).is_none() {
            return;
        }
        let mut files = match self.blank_files(like, household) {
            Ok(files) => files,
            Err(error) => {
                tracing::info!(machine = %like.name, %error, "no QEMU waits without an image");
                return;
            }
        };
        let (whose, terms) = (of(&files.record), Terms::of(&files.record));
        files.renew = matches!(whose, Whose::ClonesOf(_));
        let mut inner = self.blanks.inner.lock();
        let asked = inner
            .families
            .ask(Instant::now(), (whose, terms), files, count, most);
        drop(inner);
        self.end_blanks_soon(asked.gone);
        for _ in 0..asked.start.map_or(0, |(_, left)| left.min(threads)) {
            let number = asked.start.map_or(0, |(number, _)| number);
            self.on_a_thread(move |machines| machines.start_blanks(number));
        }
    }

    /// Makes the blank files for clones of a machine as it is now, which join this household if it is one.
    fn blank_files(&self, parent: &Entry, household: Household) -> Result<Files, NodeError> {
        let config = parent.vm()?.config();
        let shown = parent.mounted()?;
        let ram = config.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT);
        let blocks = std::iter::once(&ram).chain(&config.memory_blocks);
        let memory = blocks.enumerate();
        let memory = memory.map(|(number, bytes)| (memory_region(number), *bytes));
        let mut disks = Vec::new();
        for (name, size) in shown.disk_sizes() {
            let mut beginning = vec![0; BEGINNING_BYTES];
            let path = shown.disk_path(&name).unwrap_or_default();
            let read = File::open(&path).and_then(|f| f.read_exact_at(&mut beginning, 0));
            read.map_err(at(format!("cannot read {}", path.display())))?;
            disks.push(BlankDisk {
                name,
                size,
                beginning,
            });
        }
        let specs = disks.iter();
        let specs = specs.map(|disk| DiskSpec::of_region(&disk.name, disk.size));
        let specs = specs.collect();
        let spec = BlankSpec {
            memory: memory.collect(),
            disks,
        };
        let image = self.images.with_mount(|mount| Ok(mount.blank(spec)))?;
        let parent = parent.record();
        // each that is started gets a user and a place of its own
        let record = Record {
            host_access: parent.host_access.clone(),
            limits: parent.limits,
            ..Record::new(NewMachine {
                name: "standby",
                image_name: "",
                image: image.id(),
                origin: Origin::default(),
                config,
                restored: true,
                created_unix_s: unix_now(),
                uid: None,
                place: String::new(),
                mount_name: String::new(),
                household,
            })
        };
        Ok(Files {
            image,
            disks: specs,
            record: Arc::new(record),
            renew: false,
        })
    }

    /// Starts those that are still to be started of a family, one after the other.
    fn start_blanks(self: &Arc<Self>, number: u64) {
        loop {
            let begun = self.blanks.inner.lock().families.begin(number);
            let Some(files) = begun else {
                return;
            };
            let started = self.start_blank(&files).inspect_err(|error| {
                tracing::info!(%error, "a QEMU was not started ahead");
            });
            let late = self
                .blanks
                .inner
                .lock()
                .families
                .enter(number, started.ok());
            late.into_iter().for_each(|late| self.end_blank(late));
        }
    }

    fn start_blank(&self, files: &Files) -> Result<WaitingBlank, NodeError> {
        let room = self.resources.ahead_of_image()?;
        let household = match files.record.household.joined {
            true => files.record.household.clone(),
            false => Household::begin(),
        };
        let (place, dir) = self.standby_place(household)?;
        let mut record = Record {
            place: place.directory.clone(),
            mount_name: place.mount_name.clone(),
            uid: place.uid,
            household: place.household.clone(),
            ..Record::clone(&files.record)
        };
        if files.renew {
            floe_machine::renew_mac(&mut record.config);
        }
        let start = || -> Result<(Blank, MachineHandle), NodeError> {
            let disks = files.disks.clone();
            let spec = self.mount_spec(&record, files.image.clone(), disks)?;
            let disks = self.images.with_mount(|mount| mount.add_machine(spec))?;
            let spec = self.spec(&record, &disks, None)?;
            Ok((Blank::start(spec, &disks.memory_paths())?, disks))
        };
        match start() {
            Ok((blank, disks)) => Ok(WaitingBlank {
                blank,
                _disks: disks,
                place,
                dir,
                _room: room,
            }),
            Err(error) => {
                self.clear_standby(&place, &dir);
                Err(error)
            }
        }
    }

    /// Has a QEMU that waits for a machine like this load the machine's state. Returns `None` if there is none, or none that can
    /// be used.
    pub(super) fn load_on_blank(
        self: &Arc<Self>,
        entry: &Operation,
        found: &Found,
        model: &Coming,
    ) -> Option<Standby> {
        let record = entry.record();
        let (whose, terms) = (whose(&record)?, Terms::of(&record));
        let waiting = loop {
            let mut inner = self.blanks.inner.lock();
            let taken = inner.families.take(&whose, &terms, &found.id);
            drop(inner);
            let taken = taken?;
            if !taken.blank.machine().wait_end(Duration::ZERO) {
                break taken;
            }
            tracing::warn!(machine = %entry.name, "a QEMU that waited has ended");
            self.end_blanks_soon(vec![taken]);
        };
        let WaitingBlank {
            blank, place, dir, ..
        } = waiting;
        // written to the disk once the guest runs; after a crash before that, QEMUs that had waited are ended anyway
        entry.moves_to(place.clone());
        match self.load_bound(entry, found, model, blank) {
            Ok(loaded) => {
                self.inventory.users.release(record.uid);
                Some(loaded)
            }
            Err(error) => {
                tracing::warn!(machine = %entry.name, %error, "a QEMU that waited could not be used");
                entry.is_detached();
                self.clear_standby(&place, &dir);
                entry.moves_to(Place::of(&record));
                None
            }
        }
    }

    /// Binds the files of a QEMU that waited to a machine's image, and has it load the state.
    fn load_bound(
        self: &Arc<Self>,
        entry: &Operation,
        found: &Found,
        model: &Coming,
        blank: Blank,
    ) -> Result<Standby, NodeError> {
        let record = entry.record();
        let attached = self.bind_record(&record, found)?;
        let (disks, images) = (attached.disks.clone(), attached.images.clone());
        entry.is_attached(attached.disks, attached.images, found.fetcher.clone());
        self.streams(entry, model)?;
        let snapshot = self.snapshot(found, &disks, &images)?;
        Ok(blank.load(&record.config, &snapshot, is_pending(&record))?)
    }

    /// Puts a machine onto the mount whose QEMU has blank files there.
    fn bind_record(&self, record: &Record, found: &Found) -> Result<Attached, NodeError> {
        let manifest = found.manifest.clone();
        let disks = disk_specs(record, &manifest);
        let fetcher = found.fetcher.clone();
        let base = self.traces.base_for(&record.image, &manifest);
        let image = self.images.show_image(record.image, manifest, fetcher)?;
        self.traces.shows(&image);
        let mut spec = self.mount_spec(record, image.clone(), disks)?;
        spec.base = Some(base);
        let bind = |mount: &Mount| mount.bind_machine(spec);
        Ok(Attached {
            images: vec![image],
            disks: self.images.with_mount(bind)?,
        })
    }

    /// Ends those that a machine's fork did not use: they could only load that fork's image.
    pub fn end_left_blanks(self: &Arc<Self>, parent: &str) {
        self.close_blanks(parent, true);
    }

    /// Ends those that wait for clones of a machine.
    pub fn drop_blanks(self: &Arc<Self>, parent: &str) {
        self.close_blanks(parent, false);
    }

    fn close_blanks(self: &Arc<Self>, parent: &str, bound: bool) {
        let whose = Whose::ClonesOf(parent.to_owned());
        let gone = self.blanks.inner.lock().families.close(&whose, bound);
        self.end_blanks_soon(gone);
    }

    /// Ends those that have waited too long.
    pub fn end_old_blanks(self: &Arc<Self>) {
        let gone = self.blanks.inner.lock().families.expire(Instant::now());
        self.end_blanks_soon(gone);
    }

    /// Ends one, so that there is more memory. Returns false if none waits.
    pub(super) fn end_a_blank(&self) -> bool {
        let gone = self.blanks.inner.lock().families.oldest();
        gone.map(|gone| self.end_blank(gone)).is_some()
    }

    /// Ends all; none is started from now on. Returns whether the threads that start and end them have ended.
    pub(super) fn end_blanks(&self) -> bool {
        let mut inner = self.blanks.inner.lock();
        let gone = inner.families.end();
        let waited =
            self.blanks
                .done
                .wait_while_for(&mut inner, |inner| inner.threads > 0, PREPARING_END);
        drop(inner);
        gone.into_iter().for_each(|gone| self.end_blank(gone));
        !waited.timed_out()
    }

    fn end_blanks_soon(self: &Arc<Self>, gone: Vec<WaitingBlank>) {
        if gone.is_empty() {
            return;
        }
        let gone = Arc::new(Mutex::new(gone));
        let end = |machines: &Machines, gone: &Mutex<Vec<WaitingBlank>>| {
            let gone = std::mem::take(&mut *gone.lock());
            gone.into_iter().for_each(|gone| machines.end_blank(gone));
        };
        let there = gone.clone();
        if !self.on_a_thread(move |machines| end(machines, &there)) {
            end(self, &gone);
        }
    }

    fn end_blank(&self, gone: WaitingBlank) {
        let WaitingBlank {
            blank, place, dir, ..
        } = gone;
        drop(blank); // ends QEMU
        self.clear_standby(&place, &dir);
    }

    /// Does something on a thread that the node's end waits for. Returns false, and drops `work`, if there is no thread for it.
    fn on_a_thread(self: &Arc<Self>, work: impl FnOnce(&Arc<Machines>) + Send + 'static) -> bool {
        self.blanks.inner.lock().threads += 1;
        let over = Over(self.clone());
        let spawned = floe_threads::spawn("standby", move || {
            let over = over; // also after a panic, and if the thread can't be started
            work(&over.0);
        });
        if let Err(error) = &spawned {
            tracing::warn!(%error, "no thread for QEMUs that wait");
        }
        spawned.is_ok()
    }
}

/// Notes at its drop that a thread is done.
struct Over(Arc<Machines>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.blanks.inner.lock().threads -= 1;
        self.0.blanks.done.notify_all();
    }
}
