//! Which file of a machine's disk each block belongs to, by the disk's own file system (`floe-extents`).
//!
//! A map, which is made when `file_maps` says so, begins as a copy of the map of what the disk is based on, which is made once for all
//! machines of an image ([`crate::maps`]), and is told of what this machine has written since. Where the base has no map, or the machine has
//! made its file systems anew, the file system is read as the machine sees it. A thread of its own does all that, so that neither a start
//! nor a request waits for it; the reads count as nobody's touches, and where they access the host's disk they wait in its queue behind
//! what guests wait for. From then on the map is kept up by what the guest writes. Whatever goes wrong (nothing known on the disk, damage,
//! a part of it that isn't on this host) means no map, and no harm. What could not be read is tried again at a later input: an image may
//! have come to this host since.
//!
//! Locks: each map's own, last of all, for as long as a lookup takes. A read that finds the lock taken does without the map; a write waits
//! for it for a while, then goes on, and the map is made again.

use crate::image::{Extra, Image, Need, Reading};
use crate::overlay::{Base, Disk, Stop};
use floe_extents::{Error, FileId, Kind, Limits, Map};
use floe_image::Hash;
use floe_sched::classify::{ImageId, Program};
use floe_sched::{Purpose, Who};
use floe_source::SourceError;
use parking_lot::{Mutex, RwLock};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The bounds of one disk's map.
const LIMITS: Limits = Limits {
    inodes: 1 << 18,
    extents: 1 << 18,
    name_bytes: 16 << 20,
    read_bytes: 1 << 30,
};
/// Disks of a machine that get a map.
const DISKS_MAX: usize = 4;
/// Writes that are noted while a map is made. If more come, it is made again,
const WRITTEN_MAX: usize = 4096;
/// at most this many times. A part of the disk that is written while it is read is read again as many times.
const TRIES_MAX: usize = 4;
/// How often a disk's map is made: a guest may make its file systems anew again and again.
const MADE_MAX: usize = 16;
/// Bytes of a disk that are read to keep its map up: millions of new directories. The bound is needed because a guest may declare all of
/// its disk to be directories, again and again, and reads of what the host has in memory are charged to nobody.
const KEPT_UP_BYTES_MAX: u64 = 16 << 30;
/// Bytes of zeros that are handed to a map in one call.
const ZEROS: &[u8] = &[0; 64 << 10];
/// Most of a range of zeros that is handed to a map. Of the rest the map goes on to say what it said before, until the guest writes there.
const ZEROED_MAX: u64 = 64 << 20;
/// How much is read at once of what was written while a map was made.
const PART_BYTES: u64 = 256 << 10;
/// In pieces of this length it is looked what a machine has written of that of which its base's map was made.
const LOOK_BYTES: u64 = 64 << 10;
/// How long a write waits for its disk's map. One block of a hostile disk may take the map a good part of a second, and the threads that
/// would wait meanwhile serve all machines.
const NOTED_WITHIN: Duration = Duration::from_millis(50);

/// A read that accesses the host's disk.
pub(crate) type Look = Box<dyn FnOnce() + Send>;

/// Has a read of so many bytes done at the cost of the map's machine, when no guest waits for anything. Gives it back if there is no room
/// for it.
pub(crate) type InTurn = Arc<dyn Fn(Look, u64) -> io::Result<Option<Look>> + Send + Sync>;

/// The maps of a machine's disks.
#[derive(Default)]
pub(crate) struct Files {
    /// Whether there are any, which each write asks.
    any: AtomicBool,
    maps: RwLock<Vec<Arc<DiskMap>>>,
}

/// A disk and its map.
pub(crate) struct DiskMap {
    disk: Arc<Disk>,
    in_turn: InTurn,
    /// The number of the disk among its machine's.
    number: u64,
    state: Mutex<State>,
    /// The map that this one began with: other machines find it as long as one has it.
    base: Mutex<Option<Arc<Map>>>,
    made: AtomicUsize,
    /// Bytes that were read to keep the map up.
    kept_up: AtomicU64,
    /// Whether a write found the map held for too long, and so isn't known to it: it is made again.
    is_behind: AtomicBool,
}

enum State {
    /// The file system is being read; what was written meanwhile, or `None` if that is too much.
    Reading(Option<Vec<Range<u64>>>),
    Ready(Box<Ready>),
    /// There is none; why, and whether there may be one later.
    None {
        why: String,
        for_now: bool,
    },
}

impl State {
    fn never(why: &str) -> State {
        State::None {
            why: why.into(),
            for_now: false,
        }
    }
}

struct Ready {
    map: Map,
    /// Whether a thread reads what the map wants to know.
    is_busy: bool,
    /// The part of the disk that is being read, and whether it was written since.
    part: Option<Range<u64>>,
    is_written: bool,
}

impl Files {
    /// Returns the file that a byte of a disk belongs to and the directory of that, as far as this is known at once. `image` is the one that
    /// the machine began with.
    pub(crate) fn at(
        &self,
        image: &Hash,
        disk: &Arc<Disk>,
        offset: u64,
    ) -> Option<(Program, Option<Program>)> {
        let found = self.of(disk)?;
        let state = found.state.try_lock()?;
        let State::Ready(ready) = &*state else {
            return None;
        };
        match ready.map.at(offset)? {
            Kind::File(file) => {
                let image = ImageId(*image.as_bytes());
                let folder = ready.map.directory(file).map(|folder| Program::Folder {
                    image,
                    inode: number(found.number, folder),
                });
                let inode = number(found.number, file);
                Some((Program::File { image, inode }, folder))
            }
            // everybody reads those
            Kind::Directory(_) | Kind::Journal | Kind::Meta => None,
        }
    }

    /// Forgets a disk that the machine no longer has. (One that it is given later gets a map when all of them are made anew.)
    pub(crate) fn forget(&self, disk: &Arc<Disk>) {
        self.maps
            .write()
            .retain(|map| !Arc::ptr_eq(&map.disk, disk));
    }

    /// Returns the path of what [`Files::at`] has returned.
    pub(crate) fn path(&self, program: &Program) -> Option<String> {
        let (Program::File { inode, .. } | Program::Folder { inode, .. }) = program else {
            return None;
        };
        let maps = self.maps.read().clone();
        let found = maps.iter().find(|map| map.number == inode >> 48)?;
        match &*found.state.lock() {
            State::Ready(ready) => Some(ready.map.path(FileId {
                system: (inode >> 32) as u16,
                inode: *inode as u32,
            })),
            _ => None,
        }
    }

    /// Returns how many files are known, or why none are. `None` if nobody has asked for a map.
    pub(crate) fn known(&self) -> Option<Result<usize, String>> {
        let maps = self.maps.read().clone();
        let all: Vec<Result<usize, String>> = maps
            .iter()
            .filter_map(|map| match &*map.state.lock() {
                State::Reading(_) => None,
                State::Ready(ready) => Some(Ok(ready.map.files().count())),
                State::None { why, .. } => Some(Err(why.clone())),
            })
            .collect();
        let found = all.iter().flatten().copied().reduce(|sum, one| sum + one);
        found.map(Ok).or_else(|| all.into_iter().next())
    }

    fn of(&self, disk: &Arc<Disk>) -> Option<Arc<DiskMap>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let maps = self.maps.read();
        maps.iter()
            .find(|map| Arc::ptr_eq(&map.disk, disk))
            .cloned()
    }
}

/// Returns a number that no other file or directory of a machine's disks has.
fn number(disk: u64, file: FileId) -> u64 {
    disk << 48 | u64::from(file.system) << 32 | u64::from(file.inode)
}

impl Files {
    /// Enters a map for each disk, which is to be made. From here on all writes are noted.
    pub(crate) fn of_all_disks(
        &self,
        disks: Vec<Arc<Disk>>,
        in_turn: &InTurn,
    ) -> Vec<Arc<DiskMap>> {
        let disks = disks.into_iter().zip(0..).take(DISKS_MAX);
        let maps: Vec<Arc<DiskMap>> = disks
            .map(|(disk, number)| {
                let state = Mutex::new(State::Reading(Some(Vec::new())));
                Arc::new(DiskMap {
                    disk,
                    in_turn: in_turn.clone(),
                    number,
                    state,
                    base: Mutex::default(),
                    made: AtomicUsize::new(0),
                    kept_up: AtomicU64::new(0),
                    is_behind: AtomicBool::new(false),
                })
            })
            .collect();
        *self.maps.write() = maps.clone();
        self.any.store(true, Ordering::Release);
        maps
    }

    /// Returns those maps that could not be read, which are to be made now. From here on all writes to their disks are noted.
    pub(crate) fn unread(&self) -> Vec<Arc<DiskMap>> {
        let maps = self.maps.read();
        let unread = maps.iter().filter(|map| match map.state.try_lock() {
            Some(mut state) if matches!(*state, State::None { for_now: true, .. }) => {
                *state = State::Reading(Some(Vec::new()));
                true
            }
            // whoever has locked it reads or uses it
            _ => false,
        });
        unread.cloned().collect()
    }

    /// Notes what a guest has written to a disk.
    pub(crate) fn wrote(&self, disk: &Arc<Disk>, offset: u64, data: &[u8]) {
        let Some(map) = self.of(disk) else {
            return;
        };
        let range = offset..offset.saturating_add(data.len() as u64);
        if map.note(&range, |map| map.wrote(offset, data)) {
            map.catch_up_later();
        }
    }

    /// Notes that a guest has written zeros.
    pub(crate) fn zeroed(&self, disk: &Arc<Disk>, offset: u64, len: u64) {
        let Some(map) = self.of(disk) else {
            return;
        };
        let end = offset.saturating_add(len.min(ZEROED_MAX));
        // the map is held for a piece at a time: the disk's other writers wait for it
        for range in pieces(offset..end, ZEROS.len() as u64) {
            let zeros = &ZEROS[..(range.end - range.start) as usize];
            if map.note(&range, |map| map.wrote(range.start, zeros)) {
                map.catch_up_later();
            }
        }
    }

    /// Gives all maps up, and returns them.
    pub(crate) fn give_up(&self) -> Vec<Arc<DiskMap>> {
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *self.maps.write())
    }
}

/// Makes maps, one after the other, on a thread of its own.
pub(crate) fn make_all(machine: String, maps: Vec<Arc<DiskMap>>) {
    let name = machine.clone();
    let work = move || {
        for map in maps {
            map.make();
            if let State::None { why, .. } = &*map.state.lock() {
                tracing::debug!(
                    machine,
                    disk = map.disk.name,
                    why,
                    "its files are not known"
                );
            }
        }
    };
    if let Err(error) = floe_threads::spawn("floe-files", work) {
        tracing::warn!(machine = name, %error, "no thread for the map of its files");
    }
}

/// Divides a range into pieces of at most so many bytes.
fn pieces(range: Range<u64>, bytes_max: u64) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = range;
    let starts = (start..end).step_by(bytes_max as usize);
    starts.map(move |at| at..end.min(at.saturating_add(bytes_max)))
}

impl DiskMap {
    /// Makes the map, from the beginning, or again.
    fn make(&self) {
        if self.made.fetch_add(1, Ordering::Relaxed) >= MADE_MAX {
            *self.state.lock() = State::never("its file systems are made anew all the time");
            return;
        }
        for _ in 0..TRIES_MAX {
            // what was written before this is read now
            self.is_behind.store(false, Ordering::Release);
            *self.state.lock() = State::Reading(Some(Vec::new()));
            let read = self.read_map();
            let mut state = self.state.lock();
            let State::Reading(written) = &mut *state else {
                return;
            };
            let (map, above) = match read {
                Ok(read) => read,
                Err(error) => {
                    let source = std::error::Error::source(&error);
                    let why = source.map_or(error.to_string(), |s| format!("{error}: {s}"));
                    let for_now = matches!(error, Error::Read { .. });
                    // nothing was made
                    self.made.fetch_sub(usize::from(for_now), Ordering::Relaxed);
                    *state = State::None { why, for_now };
                    return;
                }
            };
            let is_behind = self.is_behind.load(Ordering::Acquire);
            let Some(written) = written.take().filter(|_| !is_behind) else {
                continue; // too much was written meanwhile
            };
            *state = State::Ready(Box::new(Ready {
                map,
                is_busy: true,
                part: None,
                is_written: false,
            }));
            drop(state);
            // of what was written meanwhile the map may be from before or after it: once more, so that it is known
            let parts = above.into_iter().chain(written);
            for part in parts.flat_map(|range| pieces(range, PART_BYTES)) {
                if self.cares(&part) {
                    self.read_part(part);
                }
            }
            return self.read_wanted();
        }
        *self.state.lock() = State::never("it is written faster than it can be read");
    }

    /// Reads the map, and returns it with those parts of the disk that it must be told of.
    fn read_map(&self) -> Result<(Map, Vec<Range<u64>>), Error> {
        match self.copy_of_base() {
            Some(copy) => Ok(copy),
            None => {
                let disk = What::Disk(self.disk.clone());
                Ok((Map::read(&self.of(&disk), LIMITS)?, Vec::new()))
            }
        }
    }

    /// Copies the map of what the disk is based on. `None` if there is none, or it says nothing of this disk any more: whatever is wrong is
    /// found out again when the disk itself is read.
    fn copy_of_base(&self) -> Option<(Map, Vec<Range<u64>>)> {
        let chain = self.disk.chain();
        let base = chain.base()?;
        if base.image.blank.is_some() {
            return None;
        }
        let region = &base.image.regions[base.region].name;
        let disk = What::Base(base.clone());
        let map = base.image.maps.of(region, &self.of(&disk), LIMITS).ok()?;
        let disk = What::Disk(self.disk.clone());
        let copy = map.of_copy(&self.of(&disk)).ok()??;
        if copy.is_stale() {
            return None;
        }
        let (mut above, mut left) = (Vec::new(), LIMITS.read_bytes);
        for part in map.counts() {
            // a map of more lacks the rest
            left = left.checked_sub(part.end - part.start)?;
            above.extend(pieces(part, LOOK_BYTES).filter(|piece| chain.has(piece)));
        }
        *self.base.lock() = Some(map);
        Some((copy, above))
    }

    fn of<'a>(&'a self, what: &'a What) -> Quiet<'a> {
        Quiet { by: self, what }
    }

    /// Returns whether there is a map to which it matters what stands here.
    fn cares(&self, part: &Range<u64>) -> bool {
        match &*self.state.lock() {
            State::Ready(ready) => ready.map.cares(part.clone()),
            State::Reading(_) | State::None { .. } => false,
        }
    }

    /// Notes a write to this range, and calls `tell` to tell the map of it if that matters to the map. Returns whether the map then needs
    /// something read.
    fn note(&self, range: &Range<u64>, tell: impl FnOnce(&mut Map)) -> bool {
        let Some(mut state) = self.state.try_lock_for(NOTED_WITHIN) else {
            self.is_behind.store(true, Ordering::Release);
            return false;
        };
        match &mut *state {
            State::None { .. } => false,
            State::Reading(written) => {
                if written.as_ref().is_some_and(|all| all.len() >= WRITTEN_MAX) {
                    *written = None;
                }
                if let Some(written) = written {
                    match written.last_mut() {
                        // a disk is mostly written from one end to the other
                        Some(last) if last.end == range.start => last.end = range.end,
                        _ => written.push(range.clone()),
                    }
                }
                false
            }
            State::Ready(ready) => {
                if let Some(part) = &ready.part {
                    ready.is_written |= range.start < part.end && part.start < range.end;
                }
                let is_behind = self.is_behind.load(Ordering::Acquire);
                if ready.map.cares(range.clone()) {
                    tell(&mut ready.map);
                } else if !is_behind {
                    return false;
                }
                let wants = is_behind || ready.map.is_stale() || ready.map.has_wanted();
                wants && !std::mem::replace(&mut ready.is_busy, true)
            }
        }
    }

    /// Reads on a thread of its own what the map wants to know.
    fn catch_up_later(self: &Arc<Self>) {
        let map = self.clone();
        if let Err(error) = floe_threads::spawn("floe-files", move || map.read_wanted()) {
            tracing::debug!(%error, "a map of files lags behind");
            if let State::Ready(ready) = &mut *self.state.lock() {
                ready.is_busy = false;
            }
        }
    }

    /// Reads until the map wants nothing more. Only called by the one thread for which it is busy.
    fn read_wanted(&self) {
        loop {
            let mut state = self.state.lock();
            let State::Ready(ready) = &mut *state else {
                return;
            };
            if ready.map.is_stale() || self.is_behind.load(Ordering::Acquire) {
                drop(state);
                return self.make();
            }
            let Some(part) = ready.map.wanted() else {
                ready.is_busy = false;
                return;
            };
            drop(state);
            self.read_part(part);
        }
    }

    /// Reads a part of the disk and hands it to the map, unless the guest has written there meanwhile: then it is read again.
    fn read_part(&self, part: Range<u64>) {
        let bytes = part.end - part.start;
        for _ in 0..TRIES_MAX {
            if self.kept_up.fetch_add(bytes, Ordering::Relaxed) >= KEPT_UP_BYTES_MAX {
                let why = "too much of it is read again and again to know its files";
                *self.state.lock() = State::never(why);
                return;
            }
            if let State::Ready(ready) = &mut *self.state.lock() {
                ready.part = Some(part.clone());
                ready.is_written = false;
            }
            // at most as long as a map wants at once
            let read = self.read(&What::Disk(self.disk.clone()), part.start, bytes as usize);
            let mut state = self.state.lock();
            let State::Ready(ready) = &mut *state else {
                return;
            };
            ready.part = None;
            let Ok(read) = read else {
                return; // the map lacks it
            };
            if !ready.is_written {
                ready.map.wrote(part.start, &read);
                return;
            }
        }
    }

    /// Reads a disk without that anything counts as touched. What isn't here is fetched after everything else, and only from this host:
    /// the map of an image that comes over a network would cost as much of the link as some program's launch.
    fn read(&self, what: &What, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let extra = Arc::new(Extra::default());
        let mut bytes = vec![0; length];
        loop {
            let mut tried = Tried::new(what, (offset, bytes), &extra, true);
            if let Err(Stop::OnDisk) = tried.result {
                tried = self.read_in_turn(what, (offset, tried.bytes), &extra)?;
            }
            match tried.result {
                Ok(()) => return Ok(tried.bytes),
                Err(Stop::Errno(errno)) => return Err(io::Error::from_raw_os_error(errno)),
                Err(Stop::Needs | Stop::OnDisk) => bytes = tried.bytes,
            }
            let image = tried.image.or_else(|| what.image());
            let Some(image) = image.filter(|image| image.is_here()) else {
                return Err(io::Error::other("not all of it is on this host"));
            };
            for need in &tried.needs {
                let (tell, told) = crossbeam_channel::bounded(1);
                let done = move |result: Result<&[u8], SourceError>| {
                    let _ = tell.send(result.map(<[u8]>::to_vec));
                };
                let who = Who::node(Purpose::Settle);
                image
                    .backend
                    .demand(who, None, need.kind, &need.hash, false, Box::new(done));
                let bytes = told.recv().map_err(io::Error::other)?;
                let accepted = bytes.and_then(|bytes| image.accept(need, &bytes, &extra));
                accepted.map_err(io::Error::other)?;
            }
        }
    }

    /// Reads what the host's disk has to be accessed for, at the machine's cost, when no guest waits for anything.
    fn read_in_turn(
        &self,
        what: &What,
        (offset, bytes): (u64, Vec<u8>),
        extra: &Arc<Extra>,
    ) -> io::Result<Tried> {
        let (tell, told) = crossbeam_channel::bounded(1);
        let (what, extra, length) = (what.clone(), extra.clone(), bytes.len() as u64);
        let read = move || {
            let _ = tell.send(Tried::new(&what, (offset, bytes), &extra, false));
        };
        if let Some(read) = (self.in_turn)(Box::new(read), length)? {
            read();
        }
        told.recv().map_err(io::Error::other)
    }
}

/// What came of reading a disk.
struct Tried {
    result: Result<(), Stop>,
    bytes: Vec<u8>,
    needs: Vec<Need>,
    image: Option<Arc<Image>>,
}

impl Tried {
    /// Reads from an offset on into these bytes; if `now`, only what the host has in memory.
    fn new(what: &What, (offset, mut bytes): (u64, Vec<u8>), extra: &Extra, now: bool) -> Tried {
        let mut reading = Reading {
            now,
            quiet: true,
            extra: Some(extra),
            ..Reading::default()
        };
        let result = match what {
            What::Disk(disk) => disk.read(offset, &mut bytes, &mut reading),
            What::Base(base) => base.read(offset, &mut bytes, &mut reading),
        };
        Tried {
            result,
            bytes,
            needs: reading.needs,
            image: reading.image,
        }
    }
}

/// What is read for a map: a machine's disk as the machine sees it, or what that is based on.
#[derive(Clone)]
enum What {
    Disk(Arc<Disk>),
    Base(Base),
}

impl What {
    /// Returns the image whose chunks may be needed for it.
    fn image(&self) -> Option<Arc<Image>> {
        match self {
            What::Disk(disk) => disk.chain().base_image(),
            What::Base(base) => Some(base.image.clone()),
        }
    }
}

/// The same, as it is read at the cost of a machine, and after all that guests wait for.
struct Quiet<'a> {
    by: &'a DiskMap,
    what: &'a What,
}

impl floe_extents::Disk for Quiet<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.copy_from_slice(&self.by.read(self.what, offset, buffer.len())?);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        match self.what {
            What::Disk(disk) => disk.size(),
            What::Base(base) => base.size(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_divided_without_gaps_and_its_last_piece_ends_with_it() {
        let all = |range, bytes_max| pieces(range, bytes_max).collect::<Vec<_>>();
        assert_eq!(all(3..11, 4), [3..7, 7..11]);
        assert_eq!(all(3..12, 4), [3..7, 7..11, 11..12]);
        assert_eq!((all(5..6, 4).len(), all(5..5, 4).len()), (1, 0));
        let end = u64::MAX;
        assert_eq!(all(end - 5..end, 4), [end - 5..end - 1, end - 1..end]);
    }
}
