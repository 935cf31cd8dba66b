//! Maps of real file systems say what e2fsprogs says.

mod e2fs;

use e2fs::{Image, KINDS, run};
use floe_extents::{Error, Kind, LeftOut, Limits, Map, signatures};
use std::process::Command;

#[test]
fn every_block_belongs_to_whom_debugfs_says() {
    for (name, mib, options) in KINDS {
        println!("{name}");
        let image = Image::new(*mib, options);
        let map = image.map();
        assert_eq!(map.left_out(), LeftOut::default(), "{name}");
        image.check(&map);
        assert!(
            map.files()
                .any(|file| map.path(file).ends_with("/level23/deepest"))
        );
    }
}

#[test]
fn file_systems_are_found_in_partitions() {
    let image = Image::new(24, "-t ext4 -b 1024");
    let system = image.read();
    let alone = image.map();
    let sector = |disk: &mut [u8], at: usize, entries: &[(u8, u32)]| {
        for (n, (kind, first)) in entries.iter().enumerate() {
            let entry = at * 512 + 446 + 16 * n;
            disk[entry + 4] = *kind;
            disk[entry + 8..entry + 12].copy_from_slice(&first.to_le_bytes());
        }
        disk[at * 512 + 510..][..2].copy_from_slice(b"\x55\xaa");
    };
    let mut mbr = vec![0; 64 << 20];
    sector(&mut mbr, 0, &[(0x83, 2048), (0x05, 60_000)]);
    sector(&mut mbr, 60_000, &[(0x83, 64)]);
    let mut gpt = vec![0; 64 << 20];
    sector(&mut gpt, 0, &[(0xee, 1)]);
    gpt[512..520].copy_from_slice(b"EFI PART");
    (gpt[512 + 72], gpt[512 + 80], gpt[512 + 84]) = (2, 128, 128);
    for (index, first) in [2048u64, 60_064].into_iter().enumerate() {
        let entry = 1024 + 128 * index;
        gpt[entry] = 1;
        gpt[entry + 32..entry + 40].copy_from_slice(&first.to_le_bytes());
    }
    for mut disk in [mbr, gpt] {
        for first in [2048 * 512, 60_064 * 512] {
            disk[first..first + system.len()].copy_from_slice(&system);
        }
        let map = Map::read(&*disk, Limits::default()).unwrap();
        assert_eq!(map.at(0), None);
        let files = alone.files().count();
        assert_eq!(map.files().count(), 2 * files);
        for (range, kind) in alone.extents() {
            let first = map.at(2048 * 512 + range.start);
            assert_eq!(first, Some(kind));
            let second = map.at(60_064 * 512 + range.start);
            match (kind, second) {
                (Kind::File(one), Some(Kind::File(other))) => {
                    assert_eq!((other.system, other.inode), (1, one.inode));
                    assert_eq!(map.path(other), alone.path(one));
                }
                (_, second) => assert_eq!(second.is_some(), first.is_some()),
            }
        }
        // the second one alone, when the first is damaged
        disk[2048 * 512 + 1024 + 0x18] = 0xff;
        let map = Map::read(&*disk, Limits::default()).unwrap();
        assert_eq!(map.files().count(), files);
        assert!(
            matches!(map.skipped(), [Error::Damaged { offset, .. }] if *offset == 2048 * 512 + 1024)
        );
    }
}

#[test]
fn what_floe_cannot_read_is_called_by_its_name() {
    let error = |disk: &[u8]| Map::read(disk, Limits::default()).unwrap_err().to_string();
    let mut disk = vec![0; 1 << 20];
    assert_eq!(error(&disk), "no file system was recognized on the disk");
    assert_eq!(error(&[]), "no file system was recognized on the disk");
    disk[..6].copy_from_slice(b"LUKS\xba\xbe");
    assert_eq!(
        error(&disk),
        "the disk has LUKS, of which floe makes no map"
    );
    disk[510..512].copy_from_slice(b"\x55\xaa");
    (disk[446 + 4], disk[446 + 8]) = (0x83, 64);
    disk[64 * 512..][..4].copy_from_slice(b"XFSB");
    assert_eq!(error(&disk), "the disk has XFS, of which floe makes no map");
    let image = Image::new(24, "-t ext4 -b 1024");
    let mut disk = image.read();
    disk[1024 + 0x60] |= 1;
    assert_eq!(
        error(&disk),
        "the ext4 at byte 1024 has unknown features 0x1"
    );
    let head = &disk[..signatures::HEAD_BYTES];
    assert_eq!(signatures::of_disk(head), Some(signatures::EXT4));
}

#[test]
fn what_exceeds_the_limits_is_left_out_and_told() {
    let image = Image::new(24, "-t ext2 -b 1024");
    let all = Limits::default();
    let few = Limits { inodes: 100, ..all };
    let map = Map::read(&*image.read(), few).unwrap();
    assert!(map.left_out().inodes > 600);
    assert!(map.files().count() < 100);
    let few = Limits {
        extents: 300,
        ..all
    };
    let map = Map::read(&*image.read(), few).unwrap();
    assert!(map.left_out().extents > 300);
    assert!(map.extents().count() <= 300);
    let few = Limits { extents: 2, ..all };
    let error = Map::read(&*image.read(), few).unwrap_err().to_string();
    assert!(error.contains("more groups of blocks"), "{error}");
    let few = Limits {
        name_bytes: 10_000,
        ..all
    };
    let map = Map::read(&*image.read(), few).unwrap();
    assert!(map.left_out().directory_blocks > 9);
    let few = Limits {
        read_bytes: 1 << 20,
        ..all
    };
    let map = Map::read(&*image.read(), few).unwrap();
    assert!(map.left_out().blocks > 0);
}

#[test]
fn a_damaged_file_system_costs_only_what_is_damaged() {
    let image = Image::new(40, "-t ext4 -b 1024");
    let sound = image.map();
    let mut disk = image.read();
    // every list of blocks outside of inodes
    for block in disk
        .chunks_exact_mut(1024)
        .filter(|block| block.starts_with(b"\x0a\xf3"))
    {
        block[1] = 0;
    }
    let map = Map::read(&*disk, Limits::default()).unwrap();
    assert!(map.left_out().damaged > 0);
    assert_eq!(map.files().count(), sound.files().count());
    let lost: std::collections::BTreeSet<_> = sound
        .extents()
        .filter(|(range, kind)| map.at(range.start) != Some(*kind))
        .filter_map(|(_, kind)| match kind {
            Kind::File(file) => Some(sound.path(file)),
            _ => None,
        })
        .collect();
    assert_eq!(
        lost.into_iter().collect::<Vec<_>>(),
        ["/fragments", "/holes"]
    );
    let cut = &image.read()[..20 << 20];
    Map::read(cut, Limits::default()).unwrap();
}

#[test]
fn a_map_is_stale_once_the_file_system_was_resized() {
    let image = Image::new(24, "-t ext4 -b 1024");
    let mut map = image.map();
    let before = image.read();
    map.wrote(0, &before);
    assert!(!map.is_stale());
    run(Command::new("resize2fs").arg(image.path()).arg("20M"));
    map.wrote(0, &image.read()[..4096]);
    assert!(map.is_stale());
}
