//! What all threads of the mount share.

use crate::askers::{self, Askers, Asking};
use crate::classes::Classes;
use crate::device::Device;
use crate::image::{Image, Reading};
use crate::inbox::Message;
use crate::job::Chore;
use crate::machine::{self, Machine};
use crate::options::MountOptions;
use crate::overlay::Stop;
use crate::patience;
use crate::queues::Queues;
use crate::raw::Raw;
use crate::request::{Held, Target, Touches, image_of};
use crate::tree::Tree;
use floe_planner::{Event, RegionId};
use floe_sched::{Full, Limit, MachineId, Purpose, Who};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

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

/// Handles a request that was handed over, on a thread that may be slow and has a buffer for the answer.
pub(crate) type Handle = fn(&Arc<Core>, Who, Raw, &mut [u8]);

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
    /// How a request is handled that no queue has room for. What serves requests (`serve`) stands above all of this.
    pub handle: Handle,
}

impl Core {
    pub(crate) fn new(
        devices: Vec<Device>,
        tree: Tree,
        options: MountOptions,
        max_write: usize,
        took_over: bool,
        handle: Handle,
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
            handle,
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

    /// Hands a chore to the thread that does them. Without room it is answered as if it had failed, and what was touched is
    /// accounted for by what is known.
    pub(crate) fn chore(&self, who: Who, chore: Chore) {
        let Err(Full(chore)) = self.queues.chores.submit(who, chore) else {
            return;
        };
        let answer = |event| self.queues.inbox.answer(event);
        match chore {
            Chore::Tables { region, segments } => {
                for segment in segments {
                    let ok = false;
                    answer(Event::SegmentLoaded {
                        region,
                        segment,
                        ok,
                    });
                }
            }
            // All may be worth it: those that aren't are left out when they are to be fetched.
            Chore::Look { region, block } => answer(Event::Candidates {
                region,
                block,
                candidates: u64::MAX,
                who,
            }),
            Chore::Fetch {
                region,
                block,
                chunks,
            } => answer(Event::Fetched {
                region,
                block,
                chunks,
                ok: false,
                who,
            }),
            Chore::Account(touches) => self.account_now(&touches),
        }
    }

    /// Accounts for an answered request: at once if it is known who made it, else on a thread that finds that out.
    pub(crate) fn account(&self, touches: Touches) {
        if touches.firsts.is_empty() && touches.waited_us.is_none() {
            return;
        }
        let memory = matches!(touches.target, Target::Region(..));
        if memory && matches!(self.askers.find(touches.asking), askers::Asker::Unknown) {
            self.chore(Who::default(), Chore::Account(touches));
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

    pub(crate) fn region_id(&self, target: &Target, region: usize) -> Option<RegionId> {
        Some(image_of(target)?.regions.get(region)?.id)
    }

    /// Returns the machine that a request is for. Clones share their memory's file, so for memory it is the machine whose
    /// process asked; if that isn't known, the only machine of the image (its QEMU reads memory before its process is noted).
    /// `None` if several machines use the image and the asking process isn't known. No I/O.
    pub(crate) fn machine_of(&self, target: &Target, asking: Asking) -> Option<Arc<Machine>> {
        let image = match target {
            Target::Disk(machine, _) => return Some(machine.clone()),
            Target::Region(image, _) => image,
        };
        match self.askers.find(asking) {
            askers::Asker::Machine(machine) => Some(machine),
            askers::Asker::Nobody | askers::Asker::Unknown => self.only_machine_of(image),
        }
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
