//! The targets of maps of disks: what they make of their bytes, and what a map never does.

use crate::kept;
use floe_extents::{Disk, Kind, Limits, Map};

/// In the place of a block: it is written after the map was made.
const LATER: u16 = 0x8000;
/// Little, so that they are met.
const LIMITS: Limits = Limits {
    inodes: 200,
    extents: 500,
    name_bytes: 20_000,
    read_bytes: 8 << 20,
};

/// A disk with a stranger's file system, and what is written to it later. 2 bytes: the disk's length in KiB; then blocks of 1 KiB, each
/// behind 2 bytes that say where it stands. The highest of those bits says that it is written after the map was made.
pub fn extents(data: &[u8]) {
    let Some((length, blocks)) = data.split_first_chunk() else {
        return;
    };
    let mut disk = vec![0; usize::from(u16::from_le_bytes(*length).min(4096)) << 10];
    let blocks = blocks
        .chunks(2 + 1024)
        .filter_map(|block| block.split_first_chunk());
    let blocks = blocks.map(|(place, block)| (u16::from_le_bytes(*place), block));
    let (later, first): (Vec<_>, Vec<_>) = blocks.partition(|(place, _)| place & LATER != 0);
    let place = |disk: &mut [u8], place: u16, block: &[u8]| {
        let at = usize::from(place & !LATER) << 10;
        let room = disk.get_mut(at..).unwrap_or_default();
        let length = room.len().min(block.len());
        room[..length].copy_from_slice(&block[..length]);
    };
    for (at, block) in first {
        place(&mut disk, at, block);
    }
    let Ok(mut map) = Map::read(&*disk, LIMITS) else {
        return;
    };
    check(&map, disk.len());
    let copy = map.of_copy(&*disk).expect("it can be read");
    assert!(copy.is_some_and(|copy| copy == map));
    for (at, block) in later {
        map.wrote(u64::from(at & !LATER) << 10, block);
        if let Some(range) = map.wanted() {
            map.wrote(range.start, &disk[range.start as usize..range.end as usize]);
        }
    }
    check(&map, disk.len());
    assert!(map.catch_up(&*disk).is_ok());
    check(&map, disk.len());
}

/// The largest disk of a mount, which looks at the length before anything else.
const DISK_BYTES_MAX: u64 = 64 << 40;

/// The file in which the map of a disk is kept, without its checksum: the map that is made of it is like any other.
pub fn kept_map(data: &[u8]) {
    let mut sealed = data.to_vec();
    sealed.extend(floe_image::Hash::of(data).0);
    let Ok(disk) = kept::Recorded::decode(&sealed) else {
        return;
    };
    if disk.bytes() <= DISK_BYTES_MAX
        && let Ok(map) = Map::read(&disk, LIMITS)
    {
        check(&map, disk.bytes() as usize);
    }
}

/// Whatever is on a disk, its parts are in order and within it, and no more than the limits allow.
fn check(map: &Map, disk_bytes: usize) {
    let (mut end, mut count) = (0, 0);
    for (range, kind) in map.extents() {
        assert!(range.start >= end && range.start < range.end);
        assert!(map.at(range.start) == Some(kind) && map.at(range.end - 1) == Some(kind));
        if let Kind::File(file) | Kind::Directory(file) = kind {
            assert!(map.path(file).len() < 32 << 10);
        }
        (end, count) = (range.end, count + 1);
    }
    assert!(end <= disk_bytes as u64 && count <= LIMITS.extents);
    let mut end = 0;
    for part in map.counts() {
        assert!(part.start >= end && part.start < part.end && map.cares(part.clone()));
        end = part.end;
    }
    assert!(end <= disk_bytes as u64);
    assert!(map.files().count() <= LIMITS.inodes);
}
