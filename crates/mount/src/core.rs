//! What all threads of the mount share, and the requests that wait.
//!
//! A request that needs chunks that aren't here is *held*: its needs go to the fetcher, and the thread that brings the last
//! one tries the request again from its beginning. Trying again is the whole mechanism: a request that waited sees layers that
//! were frozen, tables that were loaded and writes that were completed in the meantime, as a later request would.

use crate::abi;
use crate::askers::{self, Askers, Asking};
use crate::chores::{self, Chore};
use crate::crew::Queues;
use crate::device::Device;
use crate::image::{Extra, First, Image, Reading};
use crate::inbox::Message;
use crate::io::Classes;
use crate::machine::{self, Machine};
use crate::overlay::{Disk, Stop};
use crate::patience::{self, Act, Patience};
use crate::raw::Raw;
use crate::tree::Tree;
use crate::writeback;
use crate::{MountOptions, Waits};
use floe_planner::{Event, RegionId};
use floe_sched::{Limit, MachineId, Purpose, Who};
use floe_source::{Outlook, SourceError};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// How many serving threads may fetch at a time (the fetcher's default `here_max`); a mount with no more threads lets none.
const FETCHERS_HERE_MAX: usize = 2;

#[derive(Default)]
pub(crate) struct Counters {
    pub region_reads: AtomicU64,
    pub region_read_bytes: AtomicU64,
    pub disk_reads: AtomicU64,
    pub disk_read_bytes: AtomicU64,
    pub disk_writes: AtomicU64,
    pub disk_write_bytes: AtomicU64,
    pub waits: AtomicU64,
    pub wait_us: AtomicU64,
    pub errors: AtomicU64,
    pub pushes: AtomicU64,
    pub pushed_bytes: AtomicU64,
    pub ahead_chunks: AtomicU64,
}

/// For each machine its share of the host's disk and of links, and the household with which it has that share together.
type Limits = HashMap<MachineId, (String, Limit)>;

/// What a request reads or writes.
#[derive(Clone)]
pub(crate) enum Target {
    Region(Arc<Image>, usize),
    Disk(Arc<Machine>, Arc<Disk>),
}

/// A request that may have to wait for chunks.
pub(crate) enum Op {
    Read {
        target: Target,
        offset: u64,
        len: usize,
    },
    Write {
        machine: Arc<Machine>,
        disk: Arc<Disk>,
        offset: u64,
        data: Vec<u8>,
    },
    Zero {
        machine: Arc<Machine>,
        disk: Arc<Disk>,
        offset: u64,
        len: u64,
    },
}

/// Where an answer goes, and who made the request.
#[derive(Clone, Copy)]
pub(crate) struct Asker {
    pub device: usize,
    pub unique: u64,
    pub asking: Asking,
}

/// What an answered request touched; goes into counters and traces.
pub(crate) struct Touches {
    pub target: Target,
    pub asking: Asking,
    pub firsts: Vec<First>,
    /// How long the request had to wait; `None` if it was answered at once.
    pub waited_us: Option<u64>,
}

/// A request that waits for chunks.
pub(crate) struct Held {
    pub op: Op,
    pub asker: Asker,
    /// For whom its chunks are fetched.
    pub who: Who,
    pub since: Instant,
    left: AtomicUsize,
    patience: Mutex<Patience>,
    answered: AtomicBool,
    /// Why one of its chunks is not to be had, as the latest attempt found.
    failed: Mutex<Option<SourceError>>,
    extra: Extra,
    firsts: Mutex<Vec<First>>,
}

pub(crate) struct Core {
    pub devices: Vec<Device>,
    pub tree: Tree,
    pub options: MountOptions,
    pub max_write: usize,
    pub counters: Counters,
    pub queues: Queues,
    /// How urgent each machine's disk requests are.
    pub classes: Classes,
    pub waiting: Mutex<HashMap<u64, Arc<Held>>>,
    /// Requests that came before the image or machine that they are for was added; `None` once the takeover is done.
    pub early: Mutex<Option<Vec<Raw>>>,
    pub images: RwLock<HashMap<floe_image::Hash, Arc<Image>>>,
    pub machines: RwLock<HashMap<String, Arc<Machine>>>,
    pub regions: RwLock<HashMap<RegionId, (Weak<Image>, usize)>>,
    pub askers: Askers,
    /// Held while a blank machine is bound to an image.
    pub binding: Mutex<()>,
    machines_made: AtomicU32,
    /// What machines may have of disk and links, also of those of images that are added later. Locked before `images`.
    limits: Mutex<Limits>,
    /// How long machines' requests may wait for chunks.
    pub waits_max: patience::Limits,
    /// Serving threads that are reading or writing a disk's file now.
    pub in_disks: AtomicUsize,
}

impl Op {
    pub(crate) fn target(&self) -> Target {
        match self {
            Op::Read { target, .. } => target.clone(),
            Op::Write { machine, disk, .. } | Op::Zero { machine, disk, .. } => {
                Target::Disk(machine.clone(), disk.clone())
            }
        }
    }
}

impl Op {
    /// Says in words what it does.
    fn what(&self) -> String {
        match self {
            Op::Read {
                target: Target::Region(image, region),
                ..
            } => format!("a read of {}", image.regions[*region].name),
            Op::Read {
                target: Target::Disk(_, disk),
                ..
            } => format!("a read of {}", disk.name),
            Op::Write { disk, .. } | Op::Zero { disk, .. } => format!("a write to {}", disk.name),
        }
    }
}

impl Held {
    /// Notes that a chunk is not to be had. Of several reasons the one counts that does not pass by itself.
    fn lacks(&self, error: SourceError) {
        let mut failed = self.failed.lock();
        let refused = |error: &SourceError| error.outlook() == Outlook::Refused;
        if !failed.as_ref().is_some_and(refused) {
            *failed = Some(error);
        }
    }
}

/// Returns the image whose chunks are needed to read a target.
fn image_of(target: &Target) -> Option<Arc<Image>> {
    match target {
        Target::Region(image, _) => Some(image.clone()),
        Target::Disk(_, disk) => disk.chain().base_image(),
    }
}

impl Core {
    pub(crate) fn new(
        devices: Vec<Device>,
        tree: Tree,
        options: MountOptions,
        max_write: usize,
        took_over: bool,
    ) -> Self {
        Self {
            devices,
            tree,
            max_write,
            counters: Counters::default(),
            queues: Queues::new(&options),
            waits_max: patience::Limits::new(patience::Limit {
                wait: options.io_timeout,
                believed_after: options.believed_after,
            }),
            classes: Classes::new(options.io_trace.as_deref()),
            options,
            waiting: Mutex::default(),
            early: Mutex::new(took_over.then(Vec::new)),
            images: RwLock::default(),
            machines: RwLock::default(),
            regions: RwLock::default(),
            askers: Askers::default(),
            binding: Mutex::default(),
            machines_made: AtomicU32::new(0),
            limits: Mutex::default(),
            in_disks: AtomicUsize::new(0),
        }
    }

    /// Returns a number for a new machine; the first is 1.
    pub(crate) fn next_machine(&self) -> MachineId {
        MachineId(self.machines_made.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Sets what the machines of a household, this one among them from now on, may have of the host's disk together, and of the links of
    /// all images: chunks may come over any of them.
    pub(crate) fn limit_io(&self, machine: MachineId, household: &str, limit: Limit) {
        let mut limits = self.limits.lock();
        let before = limits.insert(machine, (household.to_owned(), limit));
        if let Some((before, limit)) = before.filter(|(before, _)| before != household) {
            self.divide_io(&mut limits, &before, limit);
        }
        self.divide_io(&mut limits, household, limit);
    }

    /// Gives each machine of a household its part of a limit.
    fn divide_io(&self, limits: &mut Limits, household: &str, limit: Limit) {
        let of = limits.values().filter(|(of, _)| of == household);
        let among = of.count() as u32;
        let limit = Limit { among, ..limit };
        let images = self.images.read();
        for (machine, (of, its)) in limits.iter_mut() {
            if of != household {
                continue;
            }
            *its = limit;
            let work = &self.queues.work;
            work.policy(|policy, _| policy.limit(*machine, limit));
            let backends = images.values().map(|image| &image.backend);
            backends.for_each(|backend| backend.limit(*machine, limit));
        }
    }

    /// Sets what machines may have of the link of an image that was added.
    pub(crate) fn limit_link(&self, image: &Image) {
        let limits = self.limits.lock();
        let all = limits.iter();
        all.for_each(|(machine, (_, limit))| image.backend.limit(*machine, *limit));
    }

    /// Forgets a machine that has ended, and divides its part of the household's share among the household's other machines.
    pub(crate) fn io_gone(&self, machine: MachineId) {
        let mut limits = self.limits.lock();
        // First, and under one lock with the rest: a thread that divides the household's limit just now would otherwise enter the machine
        // in the queues again.
        let before = limits.remove(&machine);
        self.waits_max.set(machine, None);
        self.queues.work.policy(|policy, _| policy.gone(machine));
        {
            let images = self.images.read();
            let backends = images.values().map(|image| &image.backend);
            backends.for_each(|backend| backend.gone(machine));
        }
        if let Some((household, limit)) = before {
            self.divide_io(&mut limits, &household, limit);
        }
    }

    /// Tries a read into `out`; the chunks that it lacks are added to `reading`.
    pub(crate) fn read(
        &self,
        target: &Target,
        offset: u64,
        out: &mut [u8],
        reading: &mut Reading<'_>,
    ) -> Result<(), Stop> {
        match target {
            Target::Region(image, region) => {
                image.read(*region, offset, out, reading);
                match (reading.on_disk, reading.needs.is_empty()) {
                    (true, _) => Err(Stop::OnDisk),
                    (false, true) => Ok(()),
                    (false, false) => Err(Stop::Needs),
                }
            }
            Target::Disk(_, disk) => disk.read(offset, out, reading),
        }
    }

    /// Lets a request wait for what it needs.
    pub(crate) fn hold(self: &Arc<Self>, op: Op, asker: Asker, who: Who, reading: Reading<'_>) {
        let held = Arc::new(Held {
            op,
            asker,
            who,
            since: Instant::now(),
            left: AtomicUsize::new(0),
            patience: Mutex::default(),
            answered: AtomicBool::new(false),
            failed: Mutex::new(None),
            extra: Extra::default(),
            firsts: Mutex::new(Vec::new()),
        });
        machine::add(&self.counters.waits, 1);
        self.waiting.lock().insert(asker.unique, held.clone());
        // One missing chunk: the thread may fetch it itself if the link is fast, which saves two thread switches. The fetcher
        // lets two threads do so at a time, for 50 ms at most; the others go on serving.
        let here = reading.needs.len() == 1 && self.devices.len() > FETCHERS_HERE_MAX;
        self.wait_for(&held, reading, here);
    }

    fn wait_for(self: &Arc<Self>, held: &Arc<Held>, reading: Reading<'_>, here: bool) {
        let target = held.op.target();
        let who = held.who;
        self.tell_misses(&target, &reading.firsts, who);
        held.firsts.lock().extend(reading.firsts);
        let Some(image) = reading.image.or_else(|| image_of(&target)) else {
            // Can't happen: when a base is dropped, another one takes its place.
            return self.answer_errno(held, libc::EIO);
        };
        // what it has waited counts, and nothing goes on being asked for when it has failed
        let limit = self.limit_of(held).wait;
        let most = limit.map(|limit| limit.saturating_sub(held.since.elapsed()));
        if most.is_some_and(|most| most.is_zero()) {
            // for the reason that is known: nobody would be asked any more
            return self.end_late(held);
        }
        // One more than the needs, so that the count can't reach zero before all of them were demanded.
        held.left.store(reading.needs.len() + 1, Ordering::Release);
        for need in reading.needs {
            let (core, held, owner) = (self.clone(), held.clone(), image.clone());
            let done = move |result: Result<&[u8], SourceError>| {
                let accepted = result.and_then(|bytes| owner.accept(&need, bytes, &held.extra));
                if let Err(error) = accepted {
                    held.lacks(error);
                }
                core.one_less(&held);
            };
            image
                .backend
                .demand(who, most, need.kind, &need.hash, here, Box::new(done));
        }
        self.one_less(held);
    }

    fn one_less(self: &Arc<Self>, held: &Arc<Held>) {
        if held.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let failed = held.failed.lock().take();
        let Some(error) = failed else {
            return self.resume(held);
        };
        let waited = held.since.elapsed();
        let limit = self.limit_of(held);
        let (act, is_news) = {
            let mut patience = held.patience.lock();
            let act = patience.failed(waited, limit, error.clone());
            (act, patience.is_news())
        };
        match act {
            Act::Fail(errno) => self.give_up(held, errno, Some(&error)),
            Act::Again(pause) => {
                if is_news {
                    tracing::warn!(%error, "a chunk can't be had now; the request waits");
                }
                let retries = &self.queues.retries;
                retries.add(floe_threads::from_now(pause), held.clone());
            }
        }
    }

    /// Returns how long a held request may wait. Of a fault it may only be found out while it waits whose it is.
    pub(crate) fn limit_of(&self, held: &Held) -> patience::Limit {
        let known = held.who.machine;
        if known != MachineId::NONE {
            return self.waits_max.of(known);
        }
        let machine = self.machine_of(&held.op.target(), held.asker.asking);
        let machine = machine.map_or(known, |machine| machine.id);
        self.waits_max.of(machine)
    }

    /// Ends a held request that has waited for too long.
    pub(crate) fn end_late(&self, held: &Arc<Held>) {
        let own = held.patience.lock().why().cloned();
        // what the fetcher still tries has not failed for this request yet
        let of_link = || image_of(&held.op.target())?.backend.trouble();
        let error = own.or_else(of_link);
        let errno = error.as_ref().map_or(Errno::IO, patience::errno);
        self.give_up(held, errno, error.as_ref());
    }

    /// Ends a held request whose chunks its source does not give, and notes why.
    fn give_up(&self, held: &Arc<Held>, errno: Errno, error: Option<&SourceError>) {
        // first, so that of two threads that find it late only one tells of it
        if held.answered.swap(true, Ordering::AcqRel) {
            return;
        }
        let machine = self.machine_of(&held.op.target(), held.asker.asking);
        let waited_s = held.since.elapsed().as_secs();
        let what = held.op.what();
        let why = error.map_or_else(|| "nothing has come".to_owned(), SourceError::to_string);
        let name = machine.as_ref().map(|machine| machine.name.as_str());
        tracing::error!(machine = name, waited_s, %errno, why, "{what} fails");
        if let Some(machine) = machine {
            let memory = matches!(held.op.target(), Target::Region(..));
            machine.gives_up(memory, format!("{what} failed after {waited_s} s: {why}"));
        }
        self.reply_errno(held, errno.raw_os_error());
    }

    /// Tries a held request again.
    pub(crate) fn resume(self: &Arc<Self>, held: &Arc<Held>) {
        if held.answered.load(Ordering::Acquire) {
            return;
        }
        let mut reading = Reading {
            extra: Some(&held.extra),
            ..Reading::default()
        };
        let mut buf = Vec::new();
        let result = match &held.op {
            Op::Read {
                target,
                offset,
                len,
            } => {
                buf.resize(abi::OUT_HEADER_BYTES + len, 0);
                self.read(
                    target,
                    *offset,
                    &mut buf[abi::OUT_HEADER_BYTES..],
                    &mut reading,
                )
            }
            Op::Write {
                machine,
                disk,
                offset,
                data,
            } => disk.write(*offset, data, &mut reading).inspect(|()| {
                // whoever has answered the request meanwhile, it is written
                machine.files.wrote(disk, *offset, data);
                let bytes = data.len() as u64;
                writeback::wrote_late(self, (machine, disk), (*offset, bytes));
            }),
            Op::Zero {
                machine,
                disk,
                offset,
                len,
            } => disk
                .zero(*offset, *len, &mut reading)
                .inspect(|()| machine.files.zeroed(disk, *offset, *len)),
        };
        match result {
            Ok(()) => self.answer(held, &mut buf, reading),
            Err(Stop::Errno(errno)) => self.answer_errno(held, errno),
            // The disk is accessed here, so nothing is left to be read from it.
            Err(Stop::Needs | Stop::OnDisk) => self.wait_for(held, reading, false),
        }
    }

    fn answer(&self, held: &Arc<Held>, buf: &mut [u8], reading: Reading<'_>) {
        if held.answered.swap(true, Ordering::AcqRel) {
            return;
        }
        self.waiting.lock().remove(&held.asker.unique);
        let device = &self.devices[held.asker.device];
        let unique = held.asker.unique;
        match &held.op {
            Op::Read { .. } => device.reply_in_place(unique, buf),
            Op::Write { data, .. } => {
                device.reply(unique, &abi::Out::default().u32(data.len() as u32).u32(0).0)
            }
            Op::Zero { .. } => device.reply_errno(unique, 0),
        }
        let wait_us = held.since.elapsed().as_micros() as u64;
        machine::add(&self.counters.wait_us, wait_us);
        let mut firsts = std::mem::take(&mut *held.firsts.lock());
        firsts.extend(reading.firsts);
        self.account(Touches {
            target: held.op.target(),
            asking: held.asker.asking,
            firsts,
            waited_us: Some(wait_us),
        });
    }

    /// Ends a held request with an error.
    pub(crate) fn answer_errno(&self, held: &Arc<Held>, errno: i32) {
        if !held.answered.swap(true, Ordering::AcqRel) {
            self.reply_errno(held, errno);
        }
    }

    fn reply_errno(&self, held: &Held, errno: i32) {
        self.waiting.lock().remove(&held.asker.unique);
        machine::add(&self.counters.errors, 1);
        self.devices[held.asker.device].reply_errno(held.asker.unique, errno);
    }

    /// Accounts for an answered request: at once if it is known who made it, else on a thread that finds that out.
    pub(crate) fn account(&self, touches: Touches) {
        if touches.firsts.is_empty() && touches.waited_us.is_none() {
            return;
        }
        let memory = matches!(touches.target, Target::Region(..));
        if memory && matches!(self.askers.find(touches.asking), askers::Asker::Unknown) {
            chores::submit(self, Who::default(), Chore::Account(touches));
        } else {
            self.account_now(&touches);
        }
    }

    /// Records first touches in the machine's trace, and reports to the planner which of its guesses were right.
    pub(crate) fn account_now(&self, touches: &Touches) {
        let Touches { target, firsts, .. } = touches;
        let wait_us = touches.waited_us.unwrap_or(0);
        let machine = self.machine_of(target, touches.asking);
        if let Some(machine) = &machine {
            if touches.waited_us.is_some() {
                machine::add(&machine.counters.waits, 1);
                machine::add(&machine.counters.wait_us, wait_us);
                machine.is_served();
            }
            let (counter, number) = match target {
                Target::Region(image, _) => (
                    &machine.counters.faults,
                    (image.id == machine.image.id).then_some(usize::MAX),
                ),
                Target::Disk(_, disk) => {
                    (&machine.counters.disk_touches, disk.traced.map(usize::from))
                }
            };
            machine::add(counter, firsts.len() as u64);
            for first in firsts {
                let region = number.map(|n| if n == usize::MAX { first.region } else { n });
                if let Some(region) = region {
                    let wait_us = if first.missed { wait_us } else { 0 };
                    machine.trace.push(region as u8, first.chunk, wait_us);
                }
            }
        }
        let all = image_of(target).is_some_and(|i| i.streaming.is_active());
        for first in firsts.iter().filter(|f| (f.guessed || all) && !f.missed) {
            if let Some(region) = self.region_id(target, first.region) {
                self.queues.inbox.touch(Message::Event(Event::Hit {
                    region,
                    chunk: first.chunk,
                    who: who_of(machine.as_deref(), Purpose::Demand),
                }));
            }
        }
    }

    fn tell_misses(&self, target: &Target, firsts: &[First], who: Who) {
        for first in firsts.iter().filter(|f| f.missed) {
            if let Some(region) = self.region_id(target, first.region) {
                self.queues.inbox.touch(Message::Miss {
                    region,
                    chunk: first.chunk,
                    who,
                });
            }
        }
    }

    /// Returns for whom a page of an image is read, and how urgent that is, as far as that is known without I/O, which would take
    /// longer than a fault may.
    pub(crate) fn who_faults(&self, target: &Target, asking: Asking) -> Who {
        match self.machine_of(target, asking) {
            Some(machine) => self.classes.who_faults(&machine),
            None => Who::node(Purpose::Demand),
        }
    }

    /// Returns for whom something of a target is done, as far as that is known without I/O.
    pub(crate) fn who(&self, target: &Target, asking: Asking, purpose: Purpose) -> Who {
        who_of(self.machine_of(target, asking).as_deref(), purpose)
    }

    fn region_id(&self, target: &Target, region: usize) -> Option<RegionId> {
        Some(image_of(target)?.regions.get(region)?.id)
    }

    /// Returns the machine that a request is for. Clones share their memory's file, so for memory it is the machine whose
    /// process asked; if that isn't known, the only machine of the image (its QEMU reads memory before its process is noted).
    /// `None` if several machines use the image and the asking process isn't known. No I/O.
    fn machine_of(&self, target: &Target, asking: Asking) -> Option<Arc<Machine>> {
        let image = match target {
            Target::Disk(machine, _) => return Some(machine.clone()),
            Target::Region(image, _) => image,
        };
        match self.askers.find(asking) {
            askers::Asker::Machine(machine) => Some(machine),
            askers::Asker::Nobody | askers::Asker::Unknown => self.only_machine_of(image),
        }
    }

    /// Returns how long the requests of a machine have waited. May read `/proc`, so no thread that serves the kernel may call it.
    pub(crate) fn waits(&self, machine: &Arc<Machine>) -> Waits {
        let waiting: Vec<Arc<Held>> = self.waiting.lock().values().cloned().collect();
        let mut waits = Waits::default();
        for held in waiting {
            let (target, asking) = (held.op.target(), held.asker.asking);
            let memory = matches!(target, Target::Region(..));
            if memory && matches!(self.askers.find(asking), askers::Asker::Unknown) {
                self.askers.look_up(asking.thread);
            }
            let of = self.machine_of(&target, asking);
            if of.is_none_or(|of| !Arc::ptr_eq(&of, machine)) {
                continue;
            }
            let oldest = match memory {
                true => &mut waits.memory,
                false => &mut waits.disks,
            };
            *oldest = (*oldest).max(Some(held.since.elapsed()));
        }
        waits
    }

    /// Returns why the requests of a machine wait, if their source has said anything.
    pub(crate) fn why_waits(&self, machine: &Arc<Machine>) -> Option<SourceError> {
        let waiting: Vec<Arc<Held>> = self.waiting.lock().values().cloned().collect();
        let is_its = |held: &&Arc<Held>| {
            let of = self.machine_of(&held.op.target(), held.asker.asking);
            of.is_some_and(|of| Arc::ptr_eq(&of, machine))
        };
        let mut of = waiting.iter().filter(is_its);
        of.find_map(|held| held.patience.lock().why().cloned())
    }

    fn only_machine_of(&self, image: &Arc<Image>) -> Option<Arc<Machine>> {
        let machines = self.machines.read();
        let mut of_image = machines.values().filter(|m| Arc::ptr_eq(&m.image, image));
        let first = of_image.next()?;
        of_image.next().is_none().then(|| first.clone())
    }
}

fn who_of(machine: Option<&Machine>, purpose: Purpose) -> Who {
    machine.map_or(Who::node(purpose), |machine| machine.who(purpose))
}

impl Drop for Core {
    fn drop(&mut self) {
        self.queues.close();
    }
}

/// Returns whether a thread has been killed (SIGKILL is pending) or is gone.
pub(crate) fn is_killed(thread: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else {
        return true;
    };
    let pending = status
        .lines()
        .filter(|l| l.starts_with("SigPnd:") || l.starts_with("ShdPnd:"));
    let masks = pending.filter_map(|l| u64::from_str_radix(l.split_whitespace().nth(1)?, 16).ok());
    masks.fold(0, |all, m| all | m) >> (libc::SIGKILL - 1) & 1 == 1
}
