//! Writes out what guests have written before they ask for it, and in pieces: `floe_sched::writeback` decides, this does it.
//!
//! A guest's write is answered once it is in the host's page cache. Without bounds a flush then writes all of it at once, and
//! everybody's reads wait behind that in the device. Here each disk has its write-back: pieces wait in the queue before the workers like
//! any other request, a writer who is too far ahead of the disk waits for them, and a flush waits for those that it is about and
//! then does what it always did.
//!
//! **Nothing of this makes anything durable, or is trusted to have.** A flush is answered by `Disk::flush` alone, whose `fdatasync`
//! finds most of its work done. Pieces are written through a descriptor of their own, so that an error that they meet is still
//! reported to that `fdatasync`: see `overlay::unsynced` for what depends on it.

use crate::abi;
use crate::core::Core;
use crate::job::Job;
use crate::machine::Machine;
use crate::options::IoScheduling;
use crate::overlay::{Dirty, Disk, Unwritten};
use crate::raw::Raw;
use crate::start::IO_BYTES_MAX;
use floe_sched::writeback::{Action, Admission};
use floe_sched::{Class, Full, Purpose, Who};
use std::sync::Arc;

/// A flush with no more than this to write isn't worth a piece: the sync writes it as quickly.
const FLUSH_WHOLE_MAX: u64 = 256 << 10;
/// If more than this (two pieces) was written while a flush waited for its pieces, it waits once more, for those.
const FLUSH_AGAIN_MIN: u64 = 8 << 20;
/// How often a flush waits for pieces.
const ROUNDS_MAX: u8 = 2;

/// What is to be queued.
type Todo = Vec<(Who, Job)>;

impl Unwritten {
    /// Turns what the state machine wants done into jobs.
    fn jobs(&mut self, machine: &Arc<Machine>, disk: &Arc<Disk>, actions: Vec<Action>) -> Todo {
        let mut todo = Todo::new();
        for action in actions {
            match action {
                Action::Write { bytes, .. } => {
                    let is_interactive = |who: &Who| who.class == Class::Interactive;
                    let class = match self.flushes.iter().any(|(_, who, _)| is_interactive(who)) {
                        true => Class::Normal,
                        false => Class::Bulk,
                    };
                    let who = Who {
                        class,
                        ..machine.who(Purpose::Store)
                    };
                    todo.push((who, Job::Piece(machine.clone(), disk.clone(), bytes)));
                }
                // Whether the disk fails, the sync of the guest's next flush finds out.
                Action::Go(ticket) | Action::Refuse(ticket) => {
                    let waited = self.writers.remove(&ticket);
                    todo.extend(waited.map(|(who, raw)| (who, Job::Request(raw))));
                }
                Action::Flushed(last) | Action::FlushFailed(last) => {
                    while self.flushes.front().is_some_and(|(id, ..)| *id <= last)
                        && let Some((_, who, raw)) = self.flushes.pop_front()
                    {
                        todo.push((who, Job::Request(raw)));
                    }
                }
            }
        }
        todo
    }
}

/// Returns whether write-back is ordered at all.
fn is_on(core: &Core) -> bool {
    core.options.io == IoScheduling::Vsip
}

/// Queues jobs. Without room, returns the requests that the caller then has to do itself.
fn submit(core: &Core, mut todo: Todo) -> Vec<(Who, Raw)> {
    let mut own = Vec::new();
    todo.reverse();
    while let Some((who, job)) = todo.pop() {
        let Job::Piece(..) = job else {
            let back = core.queues.work.submit_or_swap(who, job);
            own.extend(back.into_iter().filter_map(|(who, job)| match job {
                Job::Request(raw) => Some((who, raw)),
                // Nothing else is quick, so it is never given back in place of another.
                Job::Piece(..) | Job::Look(..) => None,
            }));
            continue;
        };
        let Err(Full(Job::Piece(machine, disk, bytes))) = core.queues.work.submit(who, job) else {
            continue;
        };
        // Left to the sync, so that whoever waits for it goes on: the queue is shorter than what waits for it.
        let state = &mut *disk.behind.state.lock();
        state.oldest(bytes);
        let actions = state.back.written(disk.behind.now_us(), bytes);
        todo.extend(state.jobs(&machine, &disk, actions));
    }
    own
}

/// Queues jobs, and does what there is no room for.
fn carry_out(core: &Arc<Core>, todo: Todo, reply: &mut [u8]) {
    for (who, raw) in submit(core, todo) {
        (core.handle)(core, who, raw, reply);
    }
}

/// Returns whether a write of so many bytes may go on. If not, the request that `keep` returns waits, and is queued when it may.
pub(crate) fn admit(
    core: &Arc<Core>,
    (machine, disk): (&Arc<Machine>, &Arc<Disk>),
    bytes: u64,
    keep: impl FnOnce() -> (Who, Raw),
    reply: &mut [u8],
) -> bool {
    if !is_on(core) {
        return true;
    }
    let mut state = disk.behind.state.lock();
    let (admission, actions) = state.back.admit(disk.behind.now_us(), bytes);
    if let Admission::Wait(ticket) = admission {
        let (who, mut raw) = keep();
        raw.rounds += 1;
        state.writers.insert(ticket, (who, raw));
    }
    let todo = state.jobs(machine, disk, actions);
    drop(state);
    carry_out(core, todo, reply);
    !matches!(admission, Admission::Wait(_))
}

/// Notes that bytes of a disk were written to the page cache.
pub(crate) fn wrote(
    core: &Arc<Core>,
    of: (&Arc<Machine>, &Arc<Disk>),
    written: (u64, u64),
    reply: &mut [u8],
) {
    carry_out(core, note(core, of, written), reply);
}

/// Notes the same, on a thread that has no buffer for answers.
pub(crate) fn wrote_late(core: &Arc<Core>, of: (&Arc<Machine>, &Arc<Disk>), written: (u64, u64)) {
    carry_out_late(core, note(core, of, written));
}

fn note(
    core: &Core,
    (machine, disk): (&Arc<Machine>, &Arc<Disk>),
    (offset, bytes): (u64, u64),
) -> Todo {
    if !is_on(core) {
        return Todo::new();
    }
    let layer = Arc::downgrade(&disk.top());
    let state = &mut *disk.behind.state.lock();
    match state.dirty.back_mut() {
        Some(last) if last.layer.ptr_eq(&layer) && last.offset + last.bytes == offset => {
            last.bytes += bytes;
        }
        _ => state.dirty.push_back(Dirty {
            layer,
            offset,
            bytes,
        }),
    }
    let actions = state.back.wrote(disk.behind.now_us(), bytes);
    state.jobs(machine, disk, actions)
}

/// A write that was admitted isn't done now.
pub(crate) fn abandoned(
    core: &Arc<Core>,
    (machine, disk): (&Arc<Machine>, &Arc<Disk>),
    bytes: u64,
) {
    if !is_on(core) {
        return;
    }
    let mut state = disk.behind.state.lock();
    let actions = state.back.abandoned(disk.behind.now_us(), bytes);
    let todo = state.jobs(machine, disk, actions);
    drop(state);
    carry_out_late(core, todo);
}

/// Queues jobs on a thread without a buffer for answers.
fn carry_out_late(core: &Arc<Core>, todo: Todo) {
    let own = submit(core, todo);
    if own.is_empty() {
        return;
    }
    let mut reply = vec![0; abi::OUT_HEADER_BYTES + IO_BYTES_MAX];
    for (who, raw) in own {
        (core.handle)(core, who, raw, &mut reply);
    }
}

/// Lets a flush wait until what it is about was written out, if that is worth it; returns whether it does. `raw` makes the request that
/// waits.
pub(crate) fn flush(
    core: &Arc<Core>,
    (machine, disk): (&Arc<Machine>, &Arc<Disk>),
    who: Who,
    raw: impl FnOnce() -> Raw,
    rounds: u8,
    reply: &mut [u8],
) -> bool {
    let least = match rounds {
        0 => FLUSH_WHOLE_MAX,
        _ => FLUSH_AGAIN_MIN,
    };
    let mut state = disk.behind.state.lock();
    if !is_on(core) || rounds >= ROUNDS_MAX || state.back.dirty_bytes() <= least {
        return false;
    }
    let mut raw = raw();
    raw.rounds += 1;
    let (id, actions) = state.back.flush(disk.behind.now_us());
    state.flushes.push_back((id, who, raw));
    let todo = state.jobs(machine, disk, actions);
    drop(state);
    carry_out(core, todo, reply);
    true
}

/// Writes a piece out, and lets those requests go on that have waited for it.
pub(crate) fn write_piece(
    core: &Arc<Core>,
    (machine, disk): (&Arc<Machine>, &Arc<Disk>),
    bytes: u64,
    reply: &mut [u8],
) {
    let pieces = disk.behind.state.lock().oldest(bytes);
    for (layer, ranges) in pieces {
        if let Err(error) = layer.write_out(ranges) {
            tracing::debug!(machine = machine.name, disk = disk.name, %error, "a piece was not written; the next flush tells");
        }
    }
    let mut state = disk.behind.state.lock();
    let actions = state.back.written(disk.behind.now_us(), bytes);
    let todo = state.jobs(machine, disk, actions);
    drop(state);
    carry_out(core, todo, reply);
}
