//! The requests that wait for chunks.
//!
//! A request that needs chunks that aren't here is *held*: its needs go to the fetcher, and the thread that brings the last
//! one tries the request again from its beginning. Trying again is the whole mechanism: a request that waited sees layers that
//! were frozen, tables that were loaded and writes that were completed in the meantime, as a later request would.
//!
//! A request whose chunks could not be had is tried again after a pause, and fails after a time if a user has set one (`patience`
//! decides). There is a thread for that ([`run`]), because trying one may read and write disks.

use crate::abi;
use crate::askers;
use crate::core::Core;
use crate::image::{Extra, First, Reading};
use crate::inbox::Message;
use crate::machine::{self, Machine};
use crate::overlay::Stop;
use crate::patience::{self, Act};
use crate::request::{Asker, Held, Op, Target, Touches, image_of};
use crate::retries::Retries;
use crate::stats::Waits;
use crate::writeback;
use floe_sched::{MachineId, Who};
use floe_source::SourceError;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How many serving threads may fetch at a time (the fetcher's default `here_max`); a mount with no more threads lets none.
const FETCHERS_HERE_MAX: usize = 2;
/// How often deadlines are checked: a fourth of the time that a request may wait, within these bounds.
const CHECK_MIN: Duration = Duration::from_millis(10);
const CHECK_MAX: Duration = Duration::from_millis(250);

impl Core {
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
    fn limit_of(&self, held: &Held) -> patience::Limit {
        let known = held.who.machine;
        if known != MachineId::NONE {
            return self.waits_max.of(known);
        }
        let machine = self.machine_of(&held.op.target(), held.asker.asking);
        let machine = machine.map_or(known, |machine| machine.id);
        self.waits_max.of(machine)
    }

    /// Ends a held request that has waited for too long.
    fn end_late(&self, held: &Arc<Held>) {
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
    fn resume(self: &Arc<Self>, held: &Arc<Held>) {
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
}

/// Runs the thread that tries requests again, until the mount is gone.
pub(crate) fn run(core: &Weak<Core>, retries: &Retries) {
    // limits may be there before this thread is
    let mut check = Some(Instant::now());
    while let Some(due) = retries.next(check) {
        let Some(core) = core.upgrade() else {
            return;
        };
        if let Some(held) = due {
            core.resume(&held);
        }
        let shortest = core.waits_max.shortest();
        let every = shortest.map(|limit| (limit / 4).clamp(CHECK_MIN, CHECK_MAX));
        let now = Instant::now();
        if every.is_none() || check.is_none_or(|at| at <= now) {
            if every.is_some() {
                end_late(&core);
            }
            check = every.map(floe_threads::from_now);
        }
    }
}

/// Fails requests past their deadline.
fn end_late(core: &Core) {
    let waiting: Vec<Arc<Held>> = core.waiting.lock().values().cloned().collect();
    let is_late = |held: &&Arc<Held>| {
        let limit = core.limit_of(held);
        limit.wait.is_some_and(|most| held.since.elapsed() >= most)
    };
    let late = waiting.iter().filter(is_late);
    late.for_each(|held| core.end_late(held));
}
