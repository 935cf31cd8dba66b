//! Bounded write-back: when a machine's dirty bytes go to the disk, and in which pieces.
//!
//! A guest's writes go to the page cache of the host. If they stay there until the guest flushes, one flush writes gigabytes, and
//! every other machine's read waits behind them in the device. So, for each machine:
//!
//! - Dirty bytes are bounded. A writer who would pass the bound waits, the first to come being the first to go on.
//! - Writing begins long before the bound: when there is enough to be worth it, or when it has been dirty for long.
//! - Everything is written in pieces, one at a time. Between two of them anybody's read gets its turn, so none is held for longer
//!   than one piece, and pieces get smaller while they take longer than [`WriteBackOptions::piece_us`].
//! - A flush is done when everything is written that was dirty when it was asked for: no sooner, and it doesn't wait for what
//!   was written later.
//!
//! [`WriteBack`] counts bytes and knows no ranges. Its caller keeps the dirty ranges in the order in which they were written; a
//! piece of some bytes is so many bytes of the oldest ones. A range that is written again while it is dirty is simply dirty twice.

use std::collections::VecDeque;

/// Writers, and flushes, that may wait at a time. A mount has fewer threads.
const WAITING_MAX: usize = 1024;
/// For so long after a failure nothing is tried again.
const RETRY_US: u64 = 1_000_000;

/// The bounds of a machine's write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBackOptions {
    /// Most bytes that are dirty, or about to be. Only a single write that is larger may exceed it, when there is nothing else.
    pub dirty_bytes_max: u64,
    /// With this many dirty bytes writing begins, and goes on until there are half as many.
    pub start_bytes: u64,
    /// What has been dirty for this long is written in any case.
    pub age_us: u64,
    /// Bytes of the smallest piece.
    pub piece_bytes_min: u64,
    /// Bytes of the largest piece.
    pub piece_bytes_max: u64,
    /// A piece that took longer is followed by one of half its size; one that took less than half of this, by one of twice its
    /// size.
    pub piece_us: u64,
}

impl Default for WriteBackOptions {
    /// A piece of 4 MiB is what a hard disk writes in 30 ms, together with the way there; 256 KiB lose a third of its throughput.
    fn default() -> WriteBackOptions {
        WriteBackOptions {
            dirty_bytes_max: 128 << 20,
            start_bytes: 16 << 20,
            age_us: 5_000_000,
            piece_bytes_min: 256 << 10,
            piece_bytes_max: 4 << 20,
            piece_us: 30_000,
        }
    }
}

/// A writer that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A flush that was asked for. Later ones are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlushId(pub u64);

/// What a writer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Write now, and then report [`WriteBack::wrote`].
    Go,
    /// Wait until an action names this ticket.
    Wait(Ticket),
    /// So many writers wait already that the caller's own bound must have failed: answer with an error.
    Refused,
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write so many bytes of the oldest dirty ones to the disk, then report [`WriteBack::written`] or [`WriteBack::failed`].
    Write {
        /// How many.
        bytes: u64,
        /// Whether a flush or a writer waits for it. Otherwise it may come after everything else.
        is_waited_for: bool,
    },
    /// This writer may write now, as with [`Admission::Go`].
    Go(Ticket),
    /// This writer gets the error that the disk gave.
    Refuse(Ticket),
    /// This flush, and all before it that are not answered yet, are done.
    Flushed(FlushId),
    /// This flush, and all before it that are not answered yet, get the error that the disk gave.
    FlushFailed(FlushId),
}

/// The write-back of one machine. Times are in microseconds of any clock that doesn't go backwards.
///
/// Positions count the bytes that ever became dirty, in their order: what is before `written` is on the disk, what is between that
/// and `wrote` is dirty.
#[derive(Debug)]
pub struct WriteBack {
    options: WriteBackOptions,
    wrote: u64,
    written: u64,
    /// Bytes of writers that were told to go and haven't reported.
    admitted: u64,
    waiting: VecDeque<(Ticket, u64)>,
    tickets: u64,
    /// Bytes of the piece that is being written, and when that began.
    piece: Option<(u64, u64)>,
    piece_bytes: u64,
    /// Whether so much is dirty that it is written in the background.
    is_draining: bool,
    /// Everything that is dirty at this time becomes old then.
    due_us: Option<u64>,
    /// Everything before this position is old, and written in the background.
    old: u64,
    /// Flushes that aren't answered, and the position up to which each wants everything written.
    flushes: VecDeque<(FlushId, u64)>,
    flush_ids: u64,
    /// Nothing is tried before this time.
    retry_us: u64,
}

impl WriteBack {
    /// Makes the write-back of a machine without dirty bytes. Bounds that contradict each other are mended: a piece has at least one
    /// byte, the largest is no smaller than the smallest, and writing begins no later than at the bound.
    pub fn new(options: WriteBackOptions) -> WriteBack {
        let smallest = options.piece_bytes_min.max(1);
        let most = options.dirty_bytes_max.max(1);
        WriteBack {
            options: WriteBackOptions {
                dirty_bytes_max: most,
                start_bytes: options.start_bytes.clamp(1, most),
                piece_bytes_min: smallest,
                piece_bytes_max: options.piece_bytes_max.max(smallest),
                ..options
            },
            wrote: 0,
            written: 0,
            admitted: 0,
            waiting: VecDeque::new(),
            tickets: 0,
            piece: None,
            piece_bytes: smallest,
            is_draining: false,
            due_us: None,
            old: 0,
            flushes: VecDeque::new(),
            flush_ids: 0,
            retry_us: 0,
        }
    }

    /// Returns how many bytes are dirty: written by the guest, and not on the disk as far as is known.
    pub fn dirty_bytes(&self) -> u64 {
        self.wrote - self.written
    }

    /// Asks whether somebody may write so many bytes now. If it has to wait, a piece may become necessary, so actions are returned too.
    pub fn admit(&mut self, now_us: u64, bytes: u64) -> (Admission, Vec<Action>) {
        if self.waiting.is_empty() && self.has_room(bytes) {
            self.admitted = self.admitted.saturating_add(bytes);
            return (Admission::Go, self.act(now_us));
        }
        if self.waiting.len() >= WAITING_MAX {
            return (Admission::Refused, self.act(now_us));
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.waiting.push_back((ticket, bytes));
        (Admission::Wait(ticket), self.act(now_us))
    }

    /// Notes that a writer that was told to go has written so many bytes to the page cache: they are dirty.
    pub fn wrote(&mut self, now_us: u64, bytes: u64) -> Vec<Action> {
        self.admitted = self.admitted.saturating_sub(bytes);
        self.wrote = self.wrote.saturating_add(bytes);
        if self.dirty_bytes() > 0 && self.due_us.is_none() {
            self.due_us = Some(now_us.saturating_add(self.options.age_us));
        }
        self.act(now_us)
    }

    /// Notes that a writer that was told to go won't write so many of its bytes after all.
    pub fn abandoned(&mut self, now_us: u64, bytes: u64) -> Vec<Action> {
        self.admitted = self.admitted.saturating_sub(bytes);
        self.act(now_us)
    }

    /// Notes that so many bytes of the piece under way are on the disk. More than its bytes count as all of them.
    pub fn written(&mut self, now_us: u64, bytes: u64) -> Vec<Action> {
        let Some((left, began_us)) = self.piece else {
            return self.act(now_us);
        };
        let bytes = bytes.min(left);
        self.written += bytes;
        if bytes < left {
            self.piece = Some((left - bytes, began_us));
        } else {
            self.piece = None;
            self.resize(now_us.saturating_sub(began_us));
        }
        self.act(now_us)
    }

    /// Notes that the disk could not write what is left of the piece under way. It stays dirty and is tried again a second later; whoever
    /// waits now gets an error, because nobody knows how long that goes on. The caller makes sure that the next try really writes: Linux
    /// forgets that a page is dirty when it can't be written.
    pub fn failed(&mut self, now_us: u64) -> Vec<Action> {
        if self.piece.take().is_none() {
            return self.act(now_us);
        }
        self.retry_us = now_us.saturating_add(RETRY_US);
        let mut actions = Vec::new();
        if let Some((last, _)) = self.flushes.back() {
            actions.push(Action::FlushFailed(*last));
        }
        self.flushes.clear();
        let refused = self.waiting.drain(..);
        actions.extend(refused.map(|(ticket, _)| Action::Refuse(ticket)));
        actions.extend(self.act(now_us));
        actions
    }

    /// Returns the position up to which the guest has written, for [`WriteBack::synced`].
    pub fn position(&self) -> u64 {
        self.wrote
    }

    /// Notes that everything before this position is on the disk, because somebody synced the whole file. Returns how many of the oldest
    /// dirty bytes the caller has to forget: none while anybody waits for a piece, which then is simply written.
    pub fn synced(&mut self, position: u64) -> u64 {
        let is_busy = self.piece.is_some() || !self.flushes.is_empty() || !self.waiting.is_empty();
        if is_busy || position <= self.written {
            return 0;
        }
        let position = position.min(self.wrote);
        let bytes = position - self.written;
        self.written = position;
        if self.dirty_bytes() == 0 {
            self.due_us = None;
        }
        bytes
    }

    /// Asks for a flush: for everything that is dirty now to be on the disk. It is done once an action says so of this flush or of a later
    /// one; that action may already be among those returned here.
    pub fn flush(&mut self, now_us: u64) -> (FlushId, Vec<Action>) {
        self.flush_ids += 1;
        let id = FlushId(self.flush_ids);
        let is_full = self.flushes.len() >= WAITING_MAX;
        match self.flushes.back_mut() {
            // answered together: they want the same, or there are so many that the earlier one has to wait a little longer
            Some(last) if last.1 == self.wrote || is_full => *last = (id, self.wrote),
            _ => self.flushes.push_back((id, self.wrote)),
        }
        (id, self.act(now_us))
    }

    /// Does what is due at the time that [`WriteBack::wake_us`] has named.
    pub fn tick(&mut self, now_us: u64) -> Vec<Action> {
        self.act(now_us)
    }

    /// Returns when [`WriteBack::tick`] is wanted, if nothing else happens before.
    pub fn wake_us(&self) -> Option<u64> {
        if self.piece.is_some() {
            return None;
        }
        let retry_us = (self.wanted() > self.written).then_some(self.retry_us);
        [retry_us, self.due_us].into_iter().flatten().min()
    }

    fn has_room(&self, bytes: u64) -> bool {
        let used = self.dirty_bytes().saturating_add(self.admitted);
        used == 0 || used.saturating_add(bytes) <= self.options.dirty_bytes_max
    }

    /// Returns the position up to which everything is to be written.
    fn wanted(&self) -> u64 {
        if self.is_draining || !self.waiting.is_empty() {
            return self.wrote;
        }
        let flush = self.flushes.back().map_or(0, |(_, position)| *position);
        flush.max(self.old)
    }

    /// Chooses the size of the next piece by how long the last one took.
    fn resize(&mut self, took_us: u64) {
        let bytes = if took_us > self.options.piece_us {
            self.piece_bytes / 2
        } else if took_us < self.options.piece_us / 2 {
            self.piece_bytes.saturating_mul(2)
        } else {
            self.piece_bytes
        };
        let (least, most) = (self.options.piece_bytes_min, self.options.piece_bytes_max);
        self.piece_bytes = bytes.clamp(least, most);
    }

    /// Returns what is to be done after anything has changed.
    fn act(&mut self, now_us: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut done = None;
        while let Some((id, position)) = self.flushes.front().copied() {
            if position > self.written {
                break;
            }
            done = Some(id);
            self.flushes.pop_front();
        }
        actions.extend(done.map(Action::Flushed));
        while let Some((ticket, bytes)) = self.waiting.front().copied() {
            if !self.has_room(bytes) {
                break;
            }
            self.waiting.pop_front();
            self.admitted = self.admitted.saturating_add(bytes);
            actions.push(Action::Go(ticket));
        }
        if self.due_us.is_some_and(|due_us| due_us <= now_us) {
            self.due_us = None;
            self.old = self.wrote;
        }
        let dirty = self.dirty_bytes();
        if dirty >= self.options.start_bytes {
            self.is_draining = true;
        } else if dirty <= self.options.start_bytes / 2 {
            self.is_draining = false;
        }
        let left = self.wanted().saturating_sub(self.written);
        if self.piece.is_none() && left > 0 && now_us >= self.retry_us {
            let bytes = left.min(self.piece_bytes);
            self.piece = Some((bytes, now_us));
            actions.push(Action::Write {
                bytes,
                is_waited_for: !self.flushes.is_empty() || !self.waiting.is_empty(),
            });
        }
        actions
    }
}

#[cfg(test)]
mod tests;
