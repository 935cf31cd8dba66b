//! The threads that answer the kernel. This file only translates: `image` and `overlay` decide what a read returns,
//! `waiting` keeps what has to wait.

use crate::abi::{self, Header, op, open};
use crate::askers::Asking;
use crate::core::{Core, is_killed};
use crate::image::{First, Reading};
use crate::job::Job;
use crate::machine::{self, Machine};
use crate::options::IoScheduling;
use crate::overlay::{Disk, Stop};
use crate::pinned::Pinned;
use crate::push;
use crate::queue::{Queue, Queued};
use crate::raw::Raw;
use crate::request::{Asker, Op, Target, Touches};
use crate::start::IO_BYTES_MAX;
use crate::tree::{Found, Node, Tree};
use crate::writeback;
use floe_image::CHUNK_SIZE;
use floe_sched::{Full, Who};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Serves one descriptor until the mount is gone.
pub(crate) fn run(core: &Arc<Core>, device: usize, request: &mut Pinned, reply: &mut Pinned) {
    loop {
        match core.devices[device].read(request) {
            Ok(Some(n)) => handle(core, device, &request[..n], Before::default(), reply),
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "reading from /dev/fuse failed");
                return;
            }
        }
    }
}

/// Runs a worker: does disk requests that were handed over, and may be slow.
pub(crate) fn work(core: &Weak<Core>, queue: &Queue<Job>, reply: &mut Pinned) {
    while let Some((who, job)) = queue.next() {
        let Some(core) = core.upgrade() else {
            return;
        };
        let work = job.work();
        match job {
            Job::Request(raw) => handle_raw(&core, who, raw, reply),
            Job::Piece(machine, disk, bytes) => {
                writeback::write_piece(&core, (&machine, &disk), bytes, reply);
            }
            Job::Look(read, _) => read(),
        }
        queue.served(who, work);
    }
}

/// What became of a request before it is handled now; by default it was just read from the kernel's queue.
#[derive(Default)]
struct Before {
    /// Who made it, if that was found out.
    who: Option<Who>,
    /// What it touched for the first time.
    firsts: Vec<First>,
    /// How often it has waited for its disk's write-back.
    rounds: u8,
    /// Whether it was handed over, so that the thread may be slow.
    handed_over: bool,
}

/// Handles a request that was handed over, on a thread that may be slow.
pub(crate) fn handle_raw(core: &Arc<Core>, who: Who, raw: Raw, reply: &mut [u8]) {
    handle_again(core, Some(who), raw, reply);
}

/// Handles a request that came too early.
pub(crate) fn handle_early(core: &Arc<Core>, raw: Raw, reply: &mut [u8]) {
    handle_again(core, None, raw, reply);
}

fn handle_again(core: &Arc<Core>, who: Option<Who>, raw: Raw, reply: &mut [u8]) {
    let before = Before {
        who,
        firsts: raw.firsts,
        rounds: raw.rounds,
        handed_over: true,
    };
    handle(core, raw.device, &raw.bytes, before, reply);
}

/// Handles one request: answers it now, or lets it wait.
fn handle(core: &Arc<Core>, device: usize, request: &[u8], before: Before, reply: &mut [u8]) {
    let Some((header, body)) = abi::parse(request) else {
        tracing::error!(
            bytes = request.len(),
            "a request that is shorter than it says"
        );
        return;
    };
    let call = Call {
        core,
        device,
        header,
        body,
        request,
        who: before.who,
        firsts: Cell::new(before.firsts),
        rounds: before.rounds,
        serving: !before.handed_over,
    };
    match header.opcode {
        op::READ => call.node(|node| call.read(node, reply)),
        op::WRITE => call.node(|node| call.write(node, reply)),
        op::LOOKUP => call.lookup(),
        op::GETATTR => {
            call.node(|node| call.reply(&abi::attr_out(&core.tree.attr(header.node, &node))))
        }
        op::SETATTR => call.node(|node| call.setattr(&node)),
        op::OPEN => call.node(|node| call.open(&node)),
        op::READDIR => call.node(|node| call.readdir(&node)),
        op::OPENDIR => call.reply(&abi::open_out(0)),
        op::RELEASE | op::RELEASEDIR => call.errno(0),
        op::FSYNC => call.node(|node| call.fsync(&node, reply)),
        op::FALLOCATE => call.node(|node| call.fallocate(&node, reply)),
        op::STATFS => call.reply(&abi::statfs_out()),
        op::INTERRUPT => call.interrupt(),
        op::FORGET | op::BATCH_FORGET => {}
        op::DESTROY => call.errno(0),
        _ => call.errno(libc::ENOSYS),
    }
}

/// What a request does to a disk: how, from which byte on, and to how many.
type Work = (floe_sched::Op, u64, u64);

struct Call<'a> {
    core: &'a Arc<Core>,
    device: usize,
    header: Header,
    body: &'a [u8],
    request: &'a [u8],
    /// Who made it, if that was found out before.
    who: Option<Who>,
    /// What it touched for the first time when it was tried before.
    firsts: Cell<Vec<First>>,
    /// How often it has waited for its disk's write-back.
    rounds: u8,
    /// Whether this thread reads the kernel's queue, and so must not be slow.
    serving: bool,
}

impl Call<'_> {
    fn reply(&self, body: &[u8]) {
        self.core.devices[self.device].reply(self.header.unique, body);
    }

    fn errno(&self, errno: i32) {
        self.core.devices[self.device].reply_errno(self.header.unique, errno);
    }

    fn fail(&self, errno: i32) {
        machine::add(&self.core.counters.errors, 1);
        self.errno(errno);
    }

    fn asker(&self) -> Asker {
        Asker {
            device: self.device,
            unique: self.header.unique,
            asking: self.asking(),
        }
    }

    fn asking(&self) -> Asking {
        Asking {
            uid: self.header.uid,
            thread: self.header.pid,
        }
    }

    /// Calls `go_on` with the node that the request is for; answers ESTALE if there is none.
    fn node(&self, go_on: impl FnOnce(Node)) {
        if let Some((_, node)) = self.find(libc::ESTALE, |tree| tree.node(self.header.node)) {
            go_on(node);
        }
    }

    /// Returns what `look` finds. Otherwise keeps the request until the takeover has added it, or answers it: with the errno
    /// `nothing` if there is no such node.
    fn find(&self, nothing: i32, look: impl Fn(&Tree) -> Found) -> Option<(u64, Node)> {
        let mut found = look(&self.core.tree);
        if matches!(found, Found::Expected) {
            let mut early = self.core.early.lock();
            // It may have been added, and the takeover may have ended, since the first look.
            found = look(&self.core.tree);
            if let (Found::Expected, Some(early)) = (&found, &mut *early) {
                early.push(self.raw());
                return None;
            }
        }
        match found {
            Found::Node(ino, node) => return Some((ino, node)),
            Found::Expected => self.errno(libc::ESTALE),
            Found::Nothing => self.errno(nothing),
        }
        None
    }

    fn raw(&self) -> Raw {
        Raw {
            device: self.device,
            bytes: self.request.to_vec(),
            firsts: self.firsts.take(),
            rounds: self.rounds,
        }
    }

    /// Returns who made the request of a disk.
    fn who(&self, machine: &Machine, disk: &Arc<Disk>, work: Work) -> Who {
        let classes = &self.core.classes;
        self.who.unwrap_or_else(|| classes.who(machine, disk, work))
    }

    /// Returns who made the request that reads a target.
    fn who_reads(&self, target: &Target, work: Work) -> Who {
        match target {
            Target::Disk(machine, disk) => self.who(machine, disk, work),
            Target::Region(..) => self
                .who
                .unwrap_or_else(|| self.core.who_faults(target, self.asking())),
        }
    }

    /// Does the request, which accesses the host's disk, here if its turn is now and this thread may be slow; else a worker does it.
    fn read_in_turn(&self, who: Who, reply: &mut [u8]) {
        let Some(_slot) = self.slot() else {
            return self.hand_over(who, reply);
        };
        let queue = &self.core.queues.work;
        match queue.submit_or_start(who, Job::Request(self.raw())) {
            Ok(None) => {}
            Ok(Some((who, job))) => {
                let work = job.work();
                if let Job::Request(raw) = job {
                    handle_raw(self.core, who, raw, reply);
                }
                queue.served(who, work);
            }
            Err(Full(job)) => self.swap(who, job, reply),
        }
    }

    /// Hands the request to a worker. If too many wait already, this thread does one of them, a quick one if there is any; that
    /// holds the thread up for as long as the disk takes, which slows down the guests that write so much.
    fn hand_over(&self, who: Who, reply: &mut [u8]) {
        self.swap(who, Job::Request(self.raw()), reply);
    }

    fn swap(&self, who: Who, job: Job, reply: &mut [u8]) {
        for (who, job) in self.core.queues.work.submit_or_swap(who, job) {
            // Nothing else is quick, so it is never given back in place of another.
            if let Job::Request(request) = job {
                handle_raw(self.core, who, request, reply);
            }
        }
    }

    fn lookup(&self) {
        let Some(name) = abi::parse_name(self.body) else {
            return self.errno(libc::ENOENT);
        };
        let look = |tree: &Tree| tree.lookup(self.header.node, name);
        if let Some((ino, node)) = self.find(libc::ENOENT, look) {
            self.reply(&abi::entry(&self.core.tree.attr(ino, &node)));
        }
    }

    /// Answers SETATTR. Sizes are the node's to change: setting the present size succeeds, another is refused. Times and modes are ignored.
    fn setattr(&self, node: &Node) {
        let attr = self.core.tree.attr(self.header.node, node);
        match abi::parse_setattr(self.body) {
            Some((valid, size)) if valid & abi::FATTR_SIZE != 0 && size != attr.size => {
                self.errno(libc::EPERM)
            }
            Some(_) => self.reply(&abi::attr_out(&attr)),
            None => self.errno(libc::EINVAL),
        }
    }

    fn open(&self, node: &Node) {
        match node {
            Node::Dir { .. } => self.errno(libc::EISDIR),
            // All machines share this inode and its pages in the page cache: nobody may write these, not even until the write
            // is refused. Opened for writing, the file gets direct I/O: the kernel refuses to map it shared (as INIT doesn't
            // ask for DIRECT_IO_ALLOW_MMAP), now and by a later mprotect. A private mapping still uses the page cache, which
            // the kernel drops first; opening for reading, as machines' QEMUs do, spares the others that.
            Node::Region { .. } => {
                let direct = match abi::parse_open(self.body) {
                    Some(false) => 0,
                    _ => open::DIRECT_IO,
                };
                self.reply(&abi::open_out(direct | open::KEEP_CACHE | open::NOFLUSH))
            }
            // Never through the page cache: the guest has its own, and layers change below it.
            Node::Disk { .. } => self.reply(&abi::open_out(
                open::DIRECT_IO | open::PARALLEL_DIRECT_WRITES | open::NOFLUSH,
            )),
        }
    }

    fn readdir(&self, node: &Node) {
        let (Node::Dir { path, .. }, Some((offset, size))) = (node, abi::parse_read(self.body))
        else {
            return self.errno(libc::ENOTDIR);
        };
        let mut out = Vec::new();
        for (i, (ino, directory, name)) in self
            .core
            .tree
            .list(path)
            .into_iter()
            .enumerate()
            .skip(offset as usize)
        {
            if !abi::push_dirent(&mut out, size as usize, ino, i as u64 + 1, directory, &name) {
                break;
            }
        }
        self.reply(&out);
    }

    fn read(&self, node: Node, reply: &mut [u8]) {
        let Some((offset, len)) = abi::parse_read(self.body) else {
            return self.errno(libc::EINVAL);
        };
        let (target, size) = match node {
            Node::Region { image, region } => (
                Target::Region(image.clone(), region),
                image.regions[region].size,
            ),
            Node::Disk { machine, disk } => {
                let size = disk.size();
                (Target::Disk(machine, disk), size)
            }
            Node::Dir { .. } => return self.errno(libc::EISDIR),
        };
        let len = size
            .saturating_sub(offset)
            .min(u64::from(len))
            .min(IO_BYTES_MAX as u64) as usize;
        let scheduled = self.core.options.io != IoScheduling::Off;
        let work = (floe_sched::Op::Read, offset, len as u64);
        let _slot = match &target {
            // Nothing is scheduled: this thread accesses the disk if it may.
            Target::Disk(..) if self.serving && !scheduled => match self.slot() {
                Some(slot) => slot,
                None => return self.hand_over(self.who_reads(&target, work), reply),
            },
            _ => Slot(None),
        };
        let mut reading = Reading {
            now: scheduled && self.serving,
            firsts: self.firsts.take(),
            ..Reading::default()
        };
        let out = &mut reply[..abi::OUT_HEADER_BYTES + len];
        match self.core.read(
            &target,
            offset,
            &mut out[abi::OUT_HEADER_BYTES..],
            &mut reading,
        ) {
            Ok(()) => {
                // Counted before the answer, so that whoever has the answer finds it counted.
                self.count_read(&target, len as u64);
                self.core.devices[self.device].reply_in_place(self.header.unique, out);
                self.note_hit(&target, work);
                let (bytes, asking) = (&out[abi::OUT_HEADER_BYTES..], self.asking());
                let chunk = offset / CHUNK_SIZE as u64;
                push::around(self.core, (&target, asking), self.header.node, chunk, bytes);
                self.core.account(Touches {
                    target,
                    asking: self.asking(),
                    firsts: reading.firsts,
                    waited_us: None,
                });
            }
            Err(Stop::OnDisk) => {
                self.firsts.set(reading.firsts);
                self.read_in_turn(self.who_reads(&target, work), reply);
            }
            Err(Stop::Needs) => {
                self.count_read(&target, len as u64);
                let who = self.who_reads(&target, work);
                let op = Op::Read {
                    target,
                    offset,
                    len,
                };
                self.core.hold(op, self.asker(), who, reading);
            }
            Err(Stop::Errno(errno)) => self.fail(errno),
        }
    }

    /// Notes who read what was in memory and so waited for nothing: a program is known by all that it reads, not by what of that happened
    /// to be on the host's disk. Whatever did wait was noted when it was queued. Memory's pages are noted only then: most of those that a
    /// guest touches are in the kernel's page cache, and never come here.
    fn note_hit(&self, target: &Target, work: Work) {
        let is_scheduled = self.core.options.io != IoScheduling::Off;
        if let (Target::Disk(machine, disk), None, true) = (target, self.who, is_scheduled) {
            self.core.classes.who(machine, disk, work);
        }
    }

    fn count_read(&self, target: &Target, bytes: u64) {
        let c = &self.core.counters;
        match target {
            Target::Region(..) => {
                machine::add(&c.region_reads, 1);
                machine::add(&c.region_read_bytes, bytes);
            }
            Target::Disk(m, _) => {
                machine::add(&c.disk_reads, 1);
                machine::add(&c.disk_read_bytes, bytes);
                machine::add(&m.counters.reads, 1);
                machine::add(&m.counters.read_bytes, bytes);
            }
        }
    }

    /// Takes one of the places for serving threads in disks' files; `None` if all are taken. A busy disk (the kernel throttles
    /// heavy writers) must leave threads for memory faults, so at most half of them may be there; the rest goes to the workers.
    fn slot(&self) -> Option<Slot<'_>> {
        if !self.serving {
            return Some(Slot(None));
        }
        let most = (self.core.devices.len() / 2).max(1);
        let in_disks = &self.core.in_disks;
        if in_disks.fetch_add(1, Ordering::AcqRel) >= most {
            in_disks.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(Slot(Some(self.core)))
    }

    fn write(&self, node: Node, reply: &mut [u8]) {
        let Some((offset, flags, data)) = abi::parse_write(self.body) else {
            return self.errno(libc::EINVAL);
        };
        let (machine, disk) = match node {
            Node::Disk { machine, disk } => (machine, disk),
            _ => return self.refuse_write(offset, flags, data.len()),
        };
        let (of, bytes) = ((&machine, &disk), data.len() as u64);
        let work = (floe_sched::Op::Write, offset, bytes);
        let Some(_slot) = self.slot() else {
            return self.hand_over(self.who(&machine, &disk, work), reply);
        };
        let keep = || (self.who(&machine, &disk, work), self.raw());
        if self.rounds == 0 && !writeback::admit(self.core, of, bytes, keep, reply) {
            return;
        }
        let mut reading = Reading::default();
        match disk.write(offset, data, &mut reading) {
            Ok(()) => {
                machine.files.wrote(&disk, offset, data);
                self.reply(&abi::Out::default().u32(data.len() as u32).u32(0).0);
                count_write(self.core, &machine, bytes);
                writeback::wrote(self.core, of, (offset, bytes), reply);
                machine::relieve(&machine, &disk);
            }
            Err(Stop::Needs | Stop::OnDisk) => {
                count_write(self.core, &machine, bytes);
                writeback::abandoned(self.core, of, bytes);
                let who = self.who(&machine, &disk, work);
                let op = Op::Write {
                    machine,
                    disk,
                    offset,
                    data: data.to_vec(),
                };
                self.core.hold(op, self.asker(), who, reading);
            }
            Err(Stop::Errno(errno)) => {
                tracing::error!(
                    machine = machine.name,
                    disk = disk.name,
                    errno,
                    "a disk's write failed"
                );
                writeback::abandoned(self.core, of, bytes);
                self.fail(errno);
            }
        }
    }

    /// Refuses a write to an image. One from the page cache means that somebody has a shared mapping, through a descriptor
    /// opened before such mappings were refused: the pages are dropped, so that others get the image's content again.
    fn refuse_write(&self, offset: u64, flags: u32, len: usize) {
        self.errno(libc::EPERM);
        if flags & abi::WRITE_CACHE != 0 {
            tracing::error!(
                pid = self.header.pid,
                "an image was written through a shared mapping; refused"
            );
            let core = Arc::downgrade(self.core);
            let (device, node) = (self.device, self.header.node);
            // Not on this thread: the kernel blocks on pages that are being read.
            let told = floe_threads::spawn("floe-invalidate", move || {
                let head = abi::notify_inval_inode(node, offset, len as u64);
                core.upgrade()
                    .map(|c| c.devices[device].notify(abi::notify::INVAL_INODE, &head, &[]))
            });
            if let Err(error) = told {
                tracing::error!(%error, "others may see what was written for a while");
            }
        }
    }

    fn fsync(&self, node: &Node, reply: &mut [u8]) {
        let Node::Disk { machine, disk } = node else {
            return self.errno(0);
        };
        let who = self.who(machine, disk, (floe_sched::Op::Flush, 0, 0));
        let raw = || self.raw();
        if writeback::flush(self.core, (machine, disk), who, raw, self.rounds, reply) {
            return;
        }
        if self.serving {
            return self.hand_over(who, reply);
        }
        match disk.flush() {
            Ok(flushed) => {
                machine::add(&machine.counters.flushes, u64::from(flushed));
                self.errno(0);
            }
            Err(error) => {
                tracing::error!(machine = machine.name, disk = disk.name, %error, "a disk's flush failed");
                self.fail(error.raw_os_error().unwrap_or(libc::EIO));
            }
        }
    }

    fn fallocate(&self, node: &Node, reply: &mut [u8]) {
        let Some((offset, len, mode)) = abi::parse_fallocate(self.body) else {
            return self.errno(libc::EINVAL);
        };
        let (machine, disk) = match node {
            // A balloon gives memory back: QEMU then drops its private copy, and the page is the image's again.
            Node::Region { .. } => return self.errno(0),
            Node::Dir { .. } => return self.errno(libc::EISDIR),
            Node::Disk { machine, disk } => (machine, disk),
        };
        let zeroing = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        let keep = mode as i32 & libc::FALLOC_FL_KEEP_SIZE != 0;
        let within = offset
            .checked_add(len)
            .is_some_and(|end| end <= disk.size());
        if !within && (!keep || mode as i32 & zeroing == 0) {
            return self.errno(libc::EFBIG);
        }
        if mode as i32 & zeroing == 0 {
            // A request to reserve space: nothing is reserved here, and a full disk pauses the machine.
            return self.errno(0);
        }
        let work = (floe_sched::Op::Write, offset, 0);
        if self.serving {
            return self.hand_over(self.who(machine, disk, work), reply);
        }
        let mut reading = Reading::default();
        match disk.zero(offset, len, &mut reading) {
            Ok(()) => {
                machine.files.zeroed(disk, offset, len);
                self.errno(0);
            }
            Err(Stop::Needs | Stop::OnDisk) => {
                let op = Op::Zero {
                    machine: machine.clone(),
                    disk: disk.clone(),
                    offset,
                    len,
                };
                let who = self.who(machine, disk, work);
                self.core.hold(op, self.asker(), who, reading);
            }
            Err(Stop::Errno(errno)) => self.fail(errno),
        }
    }

    /// A signal reached a thread that waits. Only one that kills ends the request: an error in a page fault is a SIGBUS, and
    /// QEMU's threads get signals all the time.
    fn interrupt(&self) {
        let waits =
            abi::parse_interrupt(self.body).and_then(|u| self.core.waiting.lock().get(&u).cloned());
        if let Some(held) = waits.filter(|p| is_killed(p.asker.asking.thread)) {
            self.core.answer_errno(&held, libc::EINTR);
        }
    }
}

fn count_write(core: &Core, machine: &Machine, bytes: u64) {
    machine::add(&core.counters.disk_writes, 1);
    machine::add(&core.counters.disk_write_bytes, bytes);
    machine::add(&machine.counters.writes, 1);
    machine::add(&machine.counters.write_bytes, bytes);
}

/// A place that [`Call::slot`] gave; dropping it gives the place back.
struct Slot<'a>(Option<&'a Arc<Core>>);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let Some(core) = self.0 {
            core.in_disks.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
