//! Tests layers on a host disk that fails as Linux lets disks fail: a sync that can't write pages reports that once and marks
//! them clean, so that the next sync has nothing to do. What wasn't written may stay in the page cache or be thrown away.

use super::layer::Layer;
use super::storage::Storage;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

const SIZE: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// What a sync does with dirty pages.
#[derive(Clone, Copy, PartialEq)]
enum Health {
    Good,
    /// Fails, and the page cache keeps what it could not write.
    Fails,
    /// Fails, and these pages (and only these) are thrown away.
    Drops(&'static [u64]),
}

struct Host {
    cache: Vec<u8>,
    disk: Vec<u8>,
    dirty: BTreeSet<u64>,
    health: Health,
    syncs: u32,
}

/// A file of such a host.
#[derive(Clone)]
struct Flaky(Arc<Mutex<Host>>);

impl Flaky {
    fn new(content: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Host {
            disk: content.clone(),
            cache: content,
            dirty: BTreeSet::new(),
            health: Health::Good,
            syncs: 0,
        })))
    }

    fn is(&self, health: Health) {
        self.0.lock().health = health;
    }

    /// Returns what a power cut now would leave.
    fn on_disk(&self, at: u64, len: usize) -> Vec<u8> {
        self.0.lock().disk[at as usize..][..len].to_vec()
    }
}

impl Storage for Flaky {
    fn read(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        out.copy_from_slice(&self.0.lock().cache[offset as usize..][..out.len()]);
        Ok(())
    }

    fn read_now(&self, out: &mut [u8], offset: u64) -> io::Result<bool> {
        self.read(out, offset).map(|()| true)
    }

    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let host = &mut *self.0.lock();
        host.cache[offset as usize..][..data.len()].copy_from_slice(data);
        let end = offset + data.len() as u64;
        host.dirty.extend(offset / PAGE..end.div_ceil(PAGE));
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write(&vec![0; len as usize], offset)
    }

    fn sync(&self) -> io::Result<()> {
        let host = &mut *self.0.lock();
        host.syncs += 1;
        let failed = host.health != Health::Good && !host.dirty.is_empty();
        for page in std::mem::take(&mut host.dirty) {
            let at = (page * PAGE) as usize;
            let to = (at + PAGE as usize).min(host.disk.len());
            match host.health {
                Health::Good => host.disk[at..to].copy_from_slice(&host.cache[at..to]),
                Health::Drops(pages) if pages.contains(&page) => {
                    host.cache[at..to].copy_from_slice(&host.disk[at..to]);
                }
                _ => {}
            }
        }
        if failed {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    fn stored_bytes(&self) -> u64 {
        0
    }
}

/// A layer that had one good flush, with both of its files on failing disks.
struct Rig {
    dir: tempfile::TempDir,
    layer: Layer,
    data: Flaky,
    map: Flaky,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let layer = Layer::create(dir.path(), dir.path(), 1, SIZE).unwrap();
        let (data, map) = (
            Flaky::new(vec![0; SIZE as usize]),
            Flaky::new(vec![0; 8192]),
        );
        let layer = layer.on(Box::new(data.clone()), Box::new(map.clone()));
        layer.write(0, &[1; 16 << 10]).unwrap();
        assert!(layer.flush().unwrap());
        Self {
            dir,
            layer,
            data,
            map,
        }
    }

    /// The node is killed, and the next one opens the layer.
    fn restart(&mut self) {
        let dir: &Path = self.dir.path();
        let layer = Layer::open(dir, dir, 1, SIZE).unwrap();
        self.layer = layer.on(Box::new(self.data.clone()), Box::new(self.map.clone()));
    }

    fn read(&self, at: u64) -> Result<u8, i32> {
        let mut out = [0; 512];
        let read = self.layer.read(&mut out, at);
        read.map(|()| out[0]).map_err(|e| e.raw_os_error().unwrap())
    }

    fn flush(&self) -> Result<bool, i32> {
        self.layer.flush().map_err(|e| e.raw_os_error().unwrap())
    }
}

#[test]
fn a_flush_after_a_failed_one_is_answered_only_when_the_data_is_on_the_disk() {
    let rig = Rig::new();
    rig.layer.write(4096, &[2; 8192]).unwrap();
    rig.data.is(Health::Fails);
    assert_eq!(rig.flush(), Err(libc::EIO));
    assert_eq!(rig.flush(), Err(libc::EIO));
    assert_eq!(rig.layer.failure().unwrap().lost_bytes, 0);
    assert_eq!(rig.read(4096), Ok(2));
    rig.data.is(Health::Good);
    assert_eq!(rig.flush(), Ok(true));
    assert_eq!(rig.data.on_disk(4096, 8192), [2; 8192]);
    assert_eq!(rig.layer.failure(), None);
    assert_eq!(rig.flush(), Ok(false));
}

#[test]
fn lost_sectors_fail_flushes_and_are_never_read_until_they_are_written_again() {
    let rig = Rig::new();
    rig.layer.write(4096, &[2; 4096]).unwrap();
    rig.layer.write(8192 + 512, &[3; 1024]).unwrap();
    rig.data.is(Health::Drops(&[2]));
    assert_eq!(rig.flush(), Err(libc::EIO));
    rig.data.is(Health::Good);
    assert_eq!(rig.flush(), Err(libc::EIO));
    assert_eq!(rig.layer.failure().unwrap().lost_bytes, 1024);
    assert_eq!(rig.read(8192 + 512), Err(libc::EIO));
    // The first was not written since the last good flush; the second was kept.
    assert_eq!(rig.read(8192), Ok(1));
    assert_eq!(rig.read(4096), Ok(2));

    rig.layer.write(8192 + 512, &[4; 512]).unwrap();
    assert_eq!(rig.read(8192 + 512), Ok(4));
    assert_eq!(rig.flush(), Err(libc::EIO));
    assert_eq!(rig.layer.failure().unwrap().lost_bytes, 512);
    rig.layer.write(8192 + 1024, &[5; 512]).unwrap();
    assert_eq!(rig.flush(), Ok(true));
    assert_eq!(rig.layer.failure(), None);
    assert_eq!(rig.data.on_disk(4096, 4096), [2; 4096]);
    assert_eq!(rig.data.on_disk(8192 + 512, 512), [4; 512]);
    assert_eq!(rig.data.on_disk(8192 + 1024, 512), [5; 512]);
}

#[test]
fn a_discard_of_what_was_lost_puts_it_right() {
    let rig = Rig::new();
    let all: Vec<u8> = vec![7; 512 << 10];
    rig.layer.write(0, &all).unwrap();
    // One lost page is in the middle of the discarded range, the other at its edge.
    rig.data.is(Health::Drops(&[0, 64]));
    assert_eq!(rig.flush(), Err(libc::EIO));
    rig.data.is(Health::Good);
    assert_eq!(rig.read(64 * 4096), Err(libc::EIO));
    rig.layer.zero(0, 512 << 10).unwrap();
    assert_eq!(rig.read(64 * 4096), Ok(0));
    assert_eq!(rig.flush(), Ok(true));
    assert!(rig.data.on_disk(0, 4096) == [0; 4096]);
}

#[test]
fn a_node_that_is_killed_does_not_take_the_error_along() {
    let mut rig = Rig::new();
    rig.layer.write(4096, &[2; 4096]).unwrap();
    rig.data.is(Health::Drops(&[1]));
    assert_eq!(rig.flush(), Err(libc::EIO));
    // The layer has failed, so this write is recorded beside it.
    rig.layer.write(12288, &[6; 4096]).unwrap();
    rig.data.is(Health::Good);
    rig.restart();
    assert_eq!(rig.read(4096), Err(libc::EIO));
    assert_eq!(rig.flush(), Err(libc::EIO));
    assert_eq!(rig.read(12288), Ok(6));
    assert_eq!(rig.layer.failure().unwrap().lost_bytes, 4096);
    rig.layer.write(4096, &[8; 4096]).unwrap();
    assert_eq!(rig.flush(), Ok(true));
    rig.restart();
    assert_eq!((rig.read(4096), rig.layer.failure()), (Ok(8), None));
    assert_eq!(rig.flush(), Ok(true));
}

#[test]
fn a_guest_that_starts_anew_takes_the_disk_as_it_is() {
    let mut rig = Rig::new();
    rig.layer.write(4096, &[2; 4096]).unwrap();
    rig.data.is(Health::Drops(&[1]));
    assert_eq!(rig.flush(), Err(libc::EIO));
    rig.data.is(Health::Good);
    rig.restart();
    rig.layer.accept_losses();
    assert_eq!((rig.read(4096), rig.flush()), (Ok(1), Ok(true)));
    rig.restart();
    assert_eq!(rig.layer.failure(), None);
}

#[test]
fn what_an_earlier_node_wrote_can_not_be_checked_and_so_is_not_called_durable() {
    let mut rig = Rig::new();
    rig.layer.write(4096, &[2; 4096]).unwrap();
    rig.restart();
    rig.data.is(Health::Drops(&[1]));
    assert_eq!(rig.flush(), Err(libc::EIO));
    rig.data.is(Health::Good);
    assert_eq!(rig.flush(), Err(libc::EIO));
    assert!(rig.layer.failure().unwrap().unknown);
    rig.restart();
    assert_eq!(rig.flush(), Err(libc::EIO));
}

#[test]
fn a_failed_sync_of_the_map_is_made_good_from_memory() {
    let rig = Rig::new();
    rig.layer.write(64 << 10, &[2; 4096]).unwrap();
    rig.map.is(Health::Drops(&[1]));
    assert_eq!(rig.flush(), Err(libc::EIO));
    assert_eq!(rig.map.on_disk(4096 + 16, 1), [0]);
    rig.map.is(Health::Good);
    assert_eq!(rig.flush(), Ok(true));
    assert_eq!(rig.map.on_disk(4096 + 16, 1), [0xFF]);
    assert_eq!(rig.map.on_disk(4096, 4), [0xFF; 4]);
}

#[test]
fn the_header_of_a_new_map_is_written_again_too() {
    let dir = tempfile::tempdir().unwrap();
    let layer = Layer::create(dir.path(), dir.path(), 1, SIZE).unwrap();
    let (data, map) = (
        Flaky::new(vec![0; SIZE as usize]),
        Flaky::new(vec![0; 8192]),
    );
    let layer = layer.on(Box::new(data), Box::new(map.clone()));
    layer.write(0, &[1; 512]).unwrap();
    map.is(Health::Drops(&[0, 1]));
    assert!(layer.flush().is_err());
    map.is(Health::Good);
    assert!(layer.flush().unwrap());
    assert_eq!(map.on_disk(0, 8), b"FLOEMAPD");
    assert_eq!(map.on_disk(4096, 1), [1]);
}
