//! A machine's memory in a capture: copied ahead of the pause as far as the kernel notes what is written meanwhile, and for the rest in the
//! pause.
//!
//! Ahead of the pause, in rounds ([`Rounds`]): protect what was written and list it, have the disks' requests end, copy what
//! is listed. The order matters. A request that was under way when its pages were protected writes to them behind the
//! kernel's back, but has ended before they are copied; one that begins later makes the kernel note its pages as written. So
//! in the pause, which begins with the end of all requests, exactly the pages that are protected still have the content of
//! their copies.
//!
//! If anything of this fails, or the kernel does not offer it, everything is copied in the pause. Whatever happens, the
//! memory is not registered for longer than a [`Copying`] exists: while it is, the kernel maps no neighbours at a page
//! fault.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::memory::Memory;
use crate::pages::{Budget, Copies, CopyError, Pages};
use crate::process::Process;
use crate::rounds::{Rounds, Step};
use crate::writes::{Unwatched, Writes};

/// All regions of a machine's memory that are copied.
pub(crate) struct Copying {
    regions: Vec<Region>,
    budget: Arc<Budget>,
}

struct Region {
    memory: Memory,
    copies: Copies,
    /// Notes what is written, if something is copied ahead of the pause.
    writes: Option<Writes>,
}

/// Why nothing was copied ahead of the pause.
pub(crate) enum NotAhead<E> {
    /// The kernel does not note what is written.
    Unwatched(Unwatched),
    /// Something could not be scanned or copied.
    Copy(CopyError),
    /// The requests of the disks could not be ended.
    Drain(E),
}

impl<E> From<Unwatched> for NotAhead<E> {
    fn from(e: Unwatched) -> Self {
        NotAhead::Unwatched(e)
    }
}

impl<E> From<CopyError> for NotAhead<E> {
    fn from(e: CopyError) -> Self {
        NotAhead::Copy(e)
    }
}

impl Copying {
    /// Makes room for the copies of these regions, of which no more than `limit` bytes are made; in a memory file, if one is given.
    pub fn new(memories: Vec<Memory>, limit: u64, file: Option<&File>) -> io::Result<Copying> {
        let budget = Budget::new(limit);
        let region = |memory: Memory| -> io::Result<Region> {
            let copies = Copies::new(memory.size(), memory.rest(), file, &budget)?;
            let writes = None;
            Ok(Region {
                memory,
                copies,
                writes,
            })
        };
        let regions: Vec<Region> = memories
            .into_iter()
            .map(region)
            .collect::<io::Result<_>>()?;
        Ok(Copying { regions, budget })
    }

    /// Copies memory while the guest runs, until little is left for the pause. `drain` is to return when all requests of the
    /// disks that were under way when it was called have ended. After an error, [`Copying::prepare`] prepares a pause that
    /// copies everything.
    pub fn ahead<E>(
        &mut self,
        process: &Process,
        mut drain: impl FnMut() -> Result<(), E>,
    ) -> Result<Rounds, NotAhead<E>> {
        for region in &mut self.regions {
            region.writes = Some(region.memory.watch(process)?);
        }
        let mut rounds = Rounds::default();
        loop {
            let mut found = Vec::new();
            for (memory, copies, writes) in self.watched() {
                found.push(memory.written(writes, copies)?);
            }
            if rounds.next(found.iter().map(|found| found.bytes).sum()) == Step::Pause {
                let regions = self.regions.iter().zip(&found);
                regions.for_each(|(region, found)| region.copies.make_room(found.new_bytes));
                return Ok(rounds);
            }
            for (memory, copies, writes) in self.watched() {
                memory.list(writes, copies)?;
            }
            drain().map_err(NotAhead::Drain)?;
            for (memory, copies, writes) in self.watched() {
                memory.copy_listed(writes, copies)?;
            }
        }
    }

    /// Faults in buffers for a pause in which little is copied.
    pub fn make_room(&self) {
        self.regions
            .iter()
            .for_each(|region| region.copies.make_room(0));
    }

    /// Prepares a pause in which everything is copied: forgets what was copied, and counts what there will be to copy.
    pub fn prepare(&mut self) -> Result<(), CopyError> {
        let mut all = 0;
        for region in &mut self.regions {
            region.writes = None;
            region.copies.forget();
            let expected = region.memory.count()?;
            all += expected;
            self.budget.check(all)?;
            // what was copied ahead has its room
            let more = expected.saturating_sub(region.copies.bytes());
            region.copies.make_room(more);
        }
        Ok(())
    }

    /// Copies all that has no copy, or an older one. The guest must be paused.
    pub fn copy(&mut self) -> Result<(), CopyError> {
        for region in &mut self.regions {
            let Some(writes) = &region.writes else {
                region.memory.copy(&mut region.copies)?;
                continue;
            };
            match region.memory.copy_rest(writes, &mut region.copies) {
                Err(CopyError::Io(error)) => {
                    tracing::warn!(
                        "the pause is longer, because all memory is copied in it: {error}"
                    );
                    region.writes = None;
                    region.memory.copy(&mut region.copies)?;
                }
                copied => copied?,
            }
        }
        Ok(())
    }

    /// Returns what was copied of each region.
    pub fn into_pages(self) -> Vec<Pages> {
        let regions = self.regions.into_iter();
        regions.map(|region| region.copies.into_pages()).collect()
    }

    /// The regions whose writes are noted.
    fn watched(&mut self) -> impl Iterator<Item = (&Memory, &mut Copies, &Writes)> {
        self.regions.iter_mut().filter_map(|region| {
            let writes = region.writes.as_ref()?;
            Some((&region.memory, &mut region.copies, writes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::PAGE;
    use crate::pages::Rest;
    use crate::process::Span;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::io::{Read, Write};
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::unix::fs::FileExt;

    const PAGES: u32 = 9000;
    const SIZE: u64 = PAGES as u64 * PAGE;
    /// Pages that a child writes at first: more than what is left to a pause.
    const WRITTEN: u32 = 5000;
    /// Pages that the private mapping's file has; the rest of it are zeros.
    const BASE: u32 = 8000;

    /// What a child is told to do with a page.
    #[derive(Clone, Copy)]
    #[repr(u8)]
    enum Do {
        /// Fill it with a value.
        Write,
        Read,
        /// Give it back to the kernel, as QEMU does with what a guest reports.
        GiveBack,
        /// Ask the kernel to swap it out.
        PageOut,
        /// Write to many pages in turn, for ever.
        WriteOn,
    }

    /// Another process with a region of memory, which does what it is told.
    struct Child {
        process: Process,
        /// Whether its kernel offered what notes writes.
        is_watched: bool,
        commands: io::PipeWriter,
        answers: io::PipeReader,
        file: File,
        address: u64,
        shared: bool,
    }

    impl Child {
        fn start(shared: bool, wants_watch: bool) -> Child {
            let file: File = match shared {
                true => memfd_create("test", MemfdFlags::CLOEXEC).unwrap().into(),
                false => tempfile::tempfile().unwrap(),
            };
            file.set_len(SIZE).unwrap();
            if !shared {
                let base = vec![7; (u64::from(BASE) * PAGE) as usize];
                file.write_all_at(&base, 0).unwrap();
            }
            let kind = if shared {
                libc::MAP_SHARED
            } else {
                libc::MAP_PRIVATE
            };
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
            // SAFETY: a new mapping, which this process does not touch.
            let memory = unsafe { libc::mmap(none, SIZE as usize, access, kind, fd, 0) };
            assert_ne!(memory, libc::MAP_FAILED);
            let (theirs, commands) = io::pipe().unwrap();
            let (mut answers, ours) = io::pipe().unwrap();
            // SAFETY: the child makes system calls and writes to that mapping, nothing else, until it is killed.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let fds = [fd, theirs.as_raw_fd(), ours.as_raw_fd()];
                // SAFETY: this is the child; the mapping is as long as the region, and the descriptors are its own.
                unsafe { serve(memory.cast(), fds, wants_watch) }
            }
            assert!(pid > 0);
            // SAFETY: this process's mapping of it, which nobody uses here.
            unsafe { libc::munmap(memory, SIZE as usize) };
            drop((theirs, ours));
            let mut ready = [0];
            answers.read_exact(&mut ready).unwrap();
            Child {
                process: Process::hold(pid as u32).unwrap(),
                is_watched: ready[0] == 1,
                commands,
                answers,
                file,
                address: memory as u64,
                shared,
            }
        }

        /// Starts one that has written to its memory; `None`, and a word about it, if this kernel does not note writes.
        fn watched(shared: bool) -> Option<Child> {
            let mut child = Child::start(shared, true);
            if !child.is_watched {
                println!(
                    "this kernel notes no writes for others (Linux 6.7 does): nothing to test"
                );
                return None;
            }
            (0..WRITTEN).for_each(|page| child.write(page, 1 + (page % 200) as u8));
            Some(child)
        }

        fn tell(&mut self, what: Do, page: u32, value: u8) {
            let [a, b, c, d] = page.to_ne_bytes();
            self.commands
                .write_all(&[what as u8, value, a, b, c, d])
                .unwrap();
            self.answers.read_exact(&mut [0]).unwrap();
        }

        fn write(&mut self, page: u32, value: u8) {
            self.tell(Do::Write, page, value);
        }

        fn memory(&self) -> Memory {
            if self.shared {
                return Memory::shared(self.file.try_clone().unwrap()).unwrap();
            }
            // described in two parts, as the kernel may split a mapping
            let cut = 100 * PAGE;
            let span = |from: u64, to: u64| Span {
                address: self.address + from,
                len: to - from,
                offset: from,
            };
            let spans = vec![span(cut, SIZE), span(0, cut)];
            Memory::private(self.process.id().pid, spans, SIZE, Rest::Base).unwrap()
        }

        fn copying(&self, limit: u64) -> Copying {
            Copying::new(vec![self.memory()], limit, None).unwrap()
        }

        /// Stops it as a pause does.
        fn stop(&self) {
            let pid = self.process.id().pid as i32;
            // SAFETY: a signal to this process's own child, and waiting for it.
            unsafe {
                assert_eq!(libc::kill(pid, libc::SIGSTOP), 0);
                assert_eq!(
                    libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED),
                    pid
                );
            }
        }

        /// Whether any of its memory is registered.
        fn is_registered(&self) -> bool {
            let smaps = format!("/proc/{}/smaps", self.process.id().pid);
            let smaps = std::fs::read_to_string(smaps).unwrap();
            let mut flags = smaps
                .lines()
                .filter_map(|line| line.strip_prefix("VmFlags:"));
            flags.any(|flags| flags.split_whitespace().any(|flag| flag == "uw"))
        }

        /// Whether there is a page: of a shared memory in its file, otherwise in its page table.
        fn has(&self, page: u32) -> bool {
            let offset = u64::from(page) * PAGE;
            if self.shared {
                use rustix::fs::{SeekFrom, seek};
                return seek(&self.file, SeekFrom::Data(offset)).is_ok_and(|data| data == offset);
            }
            let mut entry = [0; 8];
            let pagemap = File::open(format!("/proc/{}/pagemap", self.process.id().pid)).unwrap();
            let at = self.address / PAGE * 8 + u64::from(page) * 8;
            pagemap.read_exact_at(&mut entry, at).unwrap();
            u64::from_ne_bytes(entry) & (1 << 63) != 0
        }

        /// What is copied of it if everything is copied in the pause.
        fn plain(&self) -> Pages {
            let mut plain = self.copying(u64::MAX);
            assert!(plain.prepare().is_ok());
            assert!(plain.copy().is_ok());
            plain.into_pages().remove(0)
        }

        /// Checks that what was copied is what a pause for everything would have copied.
        fn check(&self, copying: Copying) -> Pages {
            let pages = copying.into_pages().remove(0);
            assert!(!self.is_registered());
            let plain = self.plain();
            let chunks = |pages: &Pages| pages.iter().map(|(chunk, _)| chunk).collect::<Vec<_>>();
            assert_eq!(chunks(&pages), chunks(&plain));
            let differs = pages
                .iter()
                .zip(plain.iter())
                .find(|(ours, theirs)| ours != theirs);
            assert!(differs.is_none(), "{:?}", differs.map(|(ours, _)| ours.0));
            assert_eq!(
                (pages.rest(), pages.zeroed()),
                (plain.rest(), plain.zeroed())
            );
            pages
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            self.process.kill();
            // SAFETY: waits for this process's own child; no status is asked for.
            unsafe { libc::waitpid(self.process.id().pid as i32, std::ptr::null_mut(), 0) };
        }
    }

    /// What a child does, with its region's file, the pipe of commands and that of answers. No other thread of its process
    /// lives on in it, so that it must wait for none.
    unsafe fn serve(memory: *mut u8, fds: [RawFd; 3], watch: bool) -> ! {
        let [file, commands, answers] = fds;
        // SAFETY: as the caller vouches.
        unsafe {
            // what this process has of other children is not this child's
            let others = (3..1024).filter(|fd| !fds.contains(fd));
            others.for_each(|fd| {
                libc::close(fd);
            });
            let mut ready = [u8::from(watch)];
            if watch {
                let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | 1;
                let descriptor = libc::syscall(libc::SYS_userfaultfd, flags) as i32;
                let mut api = [0xaa_u64, 1 << 15, 0];
                let call = 0xC018_AA3F_u32 as libc::Ioctl;
                if descriptor < 0 || libc::ioctl(descriptor, call, api.as_mut_ptr()) != 0 {
                    ready = [0];
                }
            }
            libc::write(answers, ready.as_ptr().cast(), 1);
            let mut command = [0_u8; 6];
            while libc::read(commands, command.as_mut_ptr().cast(), 6) == 6 {
                let [what, value, a, b, c, d] = command;
                let at = u32::from_ne_bytes([a, b, c, d]) as usize * PAGE as usize;
                let page = memory.add(at);
                match what {
                    what if what == Do::Write as u8 => page.write_bytes(value, PAGE as usize),
                    what if what == Do::Read as u8 => ready[0] = page.read_volatile(),
                    what if what == Do::PageOut as u8 => {
                        libc::madvise(page.cast(), PAGE as usize, libc::MADV_PAGEOUT);
                    }
                    what if what == Do::GiveBack as u8 => {
                        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                        if value == 1 {
                            libc::fallocate(file, hole, at as libc::off_t, PAGE as libc::off_t);
                        }
                        libc::madvise(page.cast(), PAGE as usize, libc::MADV_DONTNEED);
                    }
                    _ => write_on(memory, answers),
                }
                libc::write(answers, ready.as_ptr().cast(), 1);
            }
            libc::_exit(0)
        }
    }

    /// Writes numbers to the beginnings of many pages, in turn and for ever; answers when each has one.
    unsafe fn write_on(memory: *mut u8, answers: RawFd) -> ! {
        let mut number = 0_u64;
        loop {
            number += 1;
            for page in 0..WRITTEN as usize {
                // SAFETY: as the caller vouches; a page's beginning is aligned.
                unsafe {
                    memory
                        .add(page * PAGE as usize)
                        .cast::<u64>()
                        .write_volatile(number)
                };
            }
            if number == 1 {
                // SAFETY: writes one byte of a constant.
                unsafe { libc::write(answers, [1_u8].as_ptr().cast(), 1) };
            }
        }
    }

    /// Copies a child's memory ahead of a pause.
    fn ahead(
        copying: &mut Copying,
        child: &Child,
        drain: impl FnMut() -> Result<(), String>,
    ) -> Rounds {
        match copying.ahead(&child.process, drain) {
            Ok(rounds) => rounds,
            Err(NotAhead::Unwatched(e)) => panic!("{e}"),
            Err(NotAhead::Copy(e)) => panic!("{e:?}"),
            Err(NotAhead::Drain(e)) => panic!("{e}"),
        }
    }

    fn give_back(child: &mut Child, page: u32) {
        let punch = u8::from(child.shared);
        child.tell(Do::GiveBack, page, punch);
    }

    fn what_changes_while_it_is_copied_is_as_in_the_pause(shared: bool) {
        let Some(mut child) = Child::watched(shared) else {
            return;
        };
        child.write(10, 0);
        child.write(11, 0);
        let mut copying = child.copying(u64::MAX);
        assert!(!child.is_registered());
        let process = Process::hold(child.process.id().pid).unwrap();
        let rounds = copying.ahead(&process, || {
            assert!(child.is_registered());
            // listed, and not copied yet
            child.write(20, 201);
            child.write(21, 0);
            give_back(&mut child, 22);
            give_back(&mut child, 23);
            child.write(23, 202);
            Ok::<_, String>(())
        });
        assert_eq!(rounds.ok().map(|rounds| rounds.made), Some(1));
        assert!(!child.has(22), "what was given back is not made anew");
        assert!(child.has(23));
        // copied
        child.write(30, 203);
        child.write(31, 0);
        child.write(10, 204); // was zero
        give_back(&mut child, 11); // the same
        for page in 32..40 {
            give_back(&mut child, page);
        }
        child.tell(Do::Read, 33, 0);
        child.write(34, 205);
        child.tell(Do::Read, 35, 0);
        child.write(35, 0);
        (40..44).for_each(|page| child.tell(Do::PageOut, page, 0));
        // never written before, with and without a page of the file
        child.tell(Do::Read, 6000, 0);
        child.write(6001, 206);
        child.write(BASE + 1, 207);
        child.write(PAGES - 1, 208);
        assert!(copying.copy().is_ok());
        let pages = child.check(copying);
        let of = |page: u32| {
            pages
                .iter()
                .find(|(chunk, _)| *chunk == page)
                .map(|(_, content)| content[100])
        };
        let zero = (!shared).then_some(0);
        assert_eq!(
            [of(20), of(21), of(22), of(23)],
            [Some(201), zero, None, Some(202)]
        );
        assert_eq!(
            [of(30), of(31), of(10), of(11)],
            [Some(203), zero, Some(204), None]
        );
        assert_eq!(
            [of(32), of(33), of(34), of(35)],
            [None, None, Some(205), zero]
        );
        assert_eq!([of(40), of(6000), of(6001)], [Some(41), None, Some(206)]);
        assert_eq!(
            [of(BASE + 1), of(PAGES - 1), of(4999)],
            [Some(207), Some(208), Some(200)]
        );
    }

    #[test]
    fn what_a_private_mapping_has_is_copied_ahead_as_it_would_be_in_the_pause() {
        what_changes_while_it_is_copied_is_as_in_the_pause(false);
    }

    #[test]
    fn what_a_shared_memory_has_is_copied_ahead_as_it_would_be_in_the_pause() {
        what_changes_while_it_is_copied_is_as_in_the_pause(true);
    }

    /// One number of a sequence that is the same in each run.
    fn random(state: &mut u64) -> u32 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (*state >> 33) as u32
    }

    fn act(child: &mut Child, state: &mut u64) {
        for _ in 0..400 {
            // many of them hit the same pages
            let of = if random(state).is_multiple_of(2) {
                64
            } else {
                PAGES
            };
            let page = random(state) % of;
            match random(state) % 8 {
                0..4 => {
                    let value = random(state) as u8 % 4;
                    child.write(page, value);
                }
                4 => child.tell(Do::Read, page, 0),
                5 => child.tell(Do::PageOut, page, 0),
                _ => give_back(child, page),
            }
        }
    }

    #[test]
    fn whatever_a_process_does_meanwhile_the_copies_are_of_the_pause() {
        for (shared, seed) in [(false, 1), (true, 2), (false, 3), (true, 4)] {
            let Some(mut child) = Child::watched(shared) else {
                return;
            };
            let mut state = seed;
            // again, over what an earlier capture has left
            for _ in 0..3 {
                act(&mut child, &mut state);
                let mut copying = child.copying(u64::MAX);
                let process = Process::hold(child.process.id().pid).unwrap();
                let rounds = copying.ahead(&process, || {
                    act(&mut child, &mut state);
                    Ok::<_, String>(())
                });
                assert!(rounds.is_ok());
                act(&mut child, &mut state);
                assert!(copying.copy().is_ok());
                child.check(copying);
            }
        }
    }

    #[test]
    fn a_process_that_never_stops_writing_is_copied_as_it_is_in_the_pause() {
        for shared in [false, true] {
            let Some(mut child) = Child::watched(shared) else {
                return;
            };
            child.tell(Do::WriteOn, 0, 0);
            let mut copying = child.copying(u64::MAX);
            let rounds = ahead(&mut copying, &child, || Ok(()));
            assert!(rounds.made >= 1, "{rounds:?}");
            child.stop();
            assert!(copying.copy().is_ok());
            let pages = child.check(copying);
            let number = |content: &[u8]| u64::from_ne_bytes(content[..8].try_into().unwrap());
            let numbers: Vec<u64> = pages.iter().map(|(_, content)| number(content)).collect();
            assert_eq!(numbers.len(), WRITTEN as usize);
            assert!(
                numbers.is_sorted_by(|a, b| a >= b),
                "one moment of the sequence"
            );
            assert!(numbers[0] - numbers[numbers.len() - 1] <= 1);
        }
    }

    #[test]
    fn memory_is_not_registered_after_a_capture_that_failed() {
        let Some(child) = Child::watched(false) else {
            return;
        };
        let mut copying = child.copying(100 * PAGE);
        let failed = copying.ahead(&child.process, || Ok::<_, String>(()));
        assert!(matches!(
            failed,
            Err(NotAhead::Copy(CopyError::TooLarge(_)))
        ));
        assert!(child.is_registered());
        drop(copying);
        assert!(!child.is_registered());
        let mut copying = child.copying(u64::MAX);
        let failed = copying.ahead(&child.process, || Err("no"));
        assert!(matches!(failed, Err(NotAhead::Drain("no"))));
        // everything is left to the pause then
        assert!(copying.prepare().is_ok());
        assert!(!child.is_registered());
        assert!(copying.copy().is_ok());
        assert_eq!(child.check(copying).len(), WRITTEN as usize);
    }

    #[test]
    fn what_an_earlier_capture_has_left_registered_is_no_hindrance() {
        let Some(mut child) = Child::watched(false) else {
            return;
        };
        // as if its node had been killed: nothing unregisters the memory
        let mut copying = child.copying(u64::MAX);
        ahead(&mut copying, &child, || Ok(()));
        std::mem::forget(copying);
        assert!(child.is_registered());
        give_back(&mut child, 5);
        child.write(6, 209);
        let mut copying = child.copying(u64::MAX);
        assert_eq!(ahead(&mut copying, &child, || Ok(())).made, 1);
        assert!(copying.copy().is_ok());
        child.check(copying);
    }

    #[test]
    fn a_process_that_has_ended_is_not_taken_for_one_without_memory() {
        for shared in [false, true] {
            let Some(child) = Child::watched(shared) else {
                return;
            };
            let mut copying = child.copying(u64::MAX);
            ahead(&mut copying, &child, || Ok(()));
            child.process.kill();
            assert!(child.process.wait(std::time::Duration::from_secs(100)));
            match copying.copy() {
                // the file has it all still
                Ok(()) if shared => assert_eq!(copying.into_pages()[0].len(), WRITTEN as usize),
                done => assert!(!shared && matches!(done, Err(CopyError::Io(_))), "{done:?}"),
            }
        }
    }

    #[test]
    fn without_a_userfaultfd_everything_is_left_to_the_pause() {
        for shared in [false, true] {
            let mut child = Child::start(shared, false);
            (0..WRITTEN).for_each(|page| child.write(page, 9));
            let mut copying = child.copying(u64::MAX);
            let refused = copying.ahead(&child.process, || Ok::<_, String>(()));
            assert!(matches!(
                refused,
                Err(NotAhead::Unwatched(Unwatched::NoDescriptor))
            ));
            assert!(copying.prepare().is_ok());
            child.write(3, 8);
            assert!(copying.copy().is_ok());
            assert_eq!(child.check(copying).len(), WRITTEN as usize);
        }
    }
}
