//! A map that is kept up by the blocks that change is the same as one that is made anew, whatever the order of the blocks. So is that of a
//! disk's copy, which is told of those changed blocks alone of which the disk's map was made.

mod e2fs;

use e2fs::{Image, KINDS, run};
use floe_extents::{Kind, Map};
use proptest::{prelude::*, test_runner::TestRunner};
use std::{ops::Range, process::Command};

/// What happens to a file system between two looks at it.
#[derive(Clone, Debug)]
enum Step {
    /// A file with so many bytes, in a directory.
    Write(u8, u8, usize),
    /// One with holes, which has many runs of blocks.
    Fragments(u8, u8),
    Remove(u8, u8),
    /// The name alone.
    Unlink(u8, u8),
    MakeDirectory(u8, u8),
    RemoveDirectory(u8, u8),
    Link(u8, u8, u8),
    Symlink(u8, u8, usize),
    Punch(u8, u8, u64),
    Reserve(u8, u8, u64),
    /// Sixty files at once, so that a directory grows.
    Many(u8, u8),
    RemoveMany(u8, u8),
    /// One that was there from the beginning.
    RemoveOld(u16),
    Attribute(u8, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let dir = || 0..4u8;
    let name = || 0..6u8;
    let size = || prop_oneof![Just(0), Just(30), Just(900), Just(5000), Just(400_000)];
    let step = prop_oneof![
        4 => (dir(), name(), size()).prop_map(|(dir, name, size)| Step::Write(dir, name, size)),
        2 => (dir(), name()).prop_map(|(dir, name)| Step::Fragments(dir, name)),
        4 => (dir(), name()).prop_map(|(dir, name)| Step::Remove(dir, name)),
        1 => (dir(), name()).prop_map(|(dir, name)| Step::Unlink(dir, name)),
        4 => (dir(), dir()).prop_map(|(dir, name)| Step::MakeDirectory(dir, name)),
        2 => (dir(), dir()).prop_map(|(dir, name)| Step::RemoveDirectory(dir, name)),
        1 => (dir(), name(), name()).prop_map(|(dir, old, new)| Step::Link(dir, old, new)),
        1 => (dir(), name(), 1..200usize).prop_map(|(dir, name, size)| Step::Symlink(dir, name, size)),
        2 => (dir(), name(), 0..200u64).prop_map(|(dir, name, block)| Step::Punch(dir, name, block)),
        2 => (dir(), name(), 1..300u64).prop_map(|(dir, name, blocks)| Step::Reserve(dir, name, blocks)),
        2 => (dir(), name()).prop_map(|(dir, name)| Step::Many(dir, name)),
        2 => (dir(), name()).prop_map(|(dir, name)| Step::RemoveMany(dir, name)),
        2 => (0..700u16).prop_map(Step::RemoveOld),
        1 => (dir(), name()).prop_map(|(dir, name)| Step::Attribute(dir, name)),
    ];
    prop::collection::vec(step, 1..25)
}

/// The directories are in each other, those that exist.
fn commands(image: &Image, steps: &[Step]) -> Vec<String> {
    let mut all = Vec::new();
    for step in steps {
        let mut at = |dir: u8, commands: Vec<String>| {
            all.push("cd /".into());
            all.extend((0..dir).map(|level| format!("cd d{level}")));
            all.extend(commands);
        };
        let many = |name: u8, command: &str| {
            let names = (0..60).map(|n| format!("{command}f{name}-of-sixty-with-a-long-name-{n}"));
            names.collect::<Vec<_>>()
        };
        match step {
            Step::Write(dir, name, size) => {
                let source = image.source(*size);
                at(*dir, vec![format!("write {} f{name}", source.display())]);
            }
            Step::Fragments(dir, name) => {
                let source = image.fragments();
                at(*dir, vec![format!("write {} f{name}", source.display())]);
            }
            Step::Remove(dir, name) => {
                at(*dir, vec![format!("rm f{name}"), format!("rm s{name}")]);
            }
            Step::Unlink(dir, name) => at(*dir, vec![format!("unlink f{name}")]),
            Step::MakeDirectory(dir, name) => at(*dir, vec![format!("mkdir d{name}")]),
            Step::RemoveDirectory(dir, name) => at(*dir, vec![format!("rmdir d{name}")]),
            // debugfs leaves the count of links as it is
            Step::Link(dir, old, new) => {
                let counted = format!("set_inode_field f{old} links_count 99");
                at(*dir, vec![counted, format!("ln f{old} l{new}")]);
            }
            Step::Symlink(dir, name, size) => {
                at(*dir, vec![format!("symlink s{name} {}", "x".repeat(*size))]);
            }
            Step::Punch(dir, name, block) => {
                at(*dir, vec![format!("punch f{name} {block} {}", block + 7)]);
            }
            Step::Reserve(dir, name, blocks) => {
                at(*dir, vec![format!("fallocate f{name} 0 {blocks}")]);
            }
            Step::Many(dir, name) => {
                let source = image.source(30);
                at(*dir, many(*name, &format!("write {} ", source.display())));
            }
            Step::RemoveMany(dir, name) => at(*dir, many(*name, "rm ")),
            Step::RemoveOld(number) => at(
                0,
                vec![format!(
                    "rm /many/a-file-with-a-rather-long-name-{number:04}"
                )],
            ),
            Step::Attribute(dir, name) => {
                let value = image.source(900);
                at(
                    *dir,
                    vec![format!("ea_set f{name} user.x -f {}", value.display())],
                );
            }
        }
    }
    all
}

/// Does the steps, and puts the file system in order if that is asked for, which writes directories anew, with an index.
fn change(image: &Image, steps: &[Step], check: bool) {
    // debugfs leaves a removed directory's inode in use and frees its blocks: nothing may take those before they are in order again
    let removes = |step: &Step| matches!(step, Step::RemoveDirectory(..));
    let (last, mut all): (Vec<_>, Vec<_>) = steps.iter().cloned().partition(removes);
    let check = check || !last.is_empty();
    all.extend(last);
    image.change(&commands(image, &all));
    if check {
        put_in_order(image);
    }
}

fn put_in_order(image: &Image) {
    let mut e2fsck = Command::new("e2fsck");
    let done = e2fsck.args(["-fyD"]).arg(image.path()).output().unwrap();
    assert!(done.status.code().is_some_and(|code| code < 4), "{done:?}");
}

/// A disk as a guest writes it, and the map beside it.
struct Kept {
    disk: Vec<u8>,
    map: Map,
    random: u64,
}

impl Kept {
    fn below(&mut self, n: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(99);
        (self.random >> 33) as usize % n.max(1)
    }

    /// Writes what differs, in no order and in pieces of a few sectors to many blocks.
    fn follow(&mut self, new: &[u8]) {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < new.len() {
            let length = 512 << self.below(8);
            let end = new.len().min(at + length);
            if self.disk[at..end] != new[at..end] {
                pieces.push((at, end));
            }
            at = end;
        }
        while !pieces.is_empty() {
            let (at, end) = pieces.swap_remove(self.below(pieces.len()));
            self.disk[at..end].copy_from_slice(&new[at..end]);
            if self.map.cares(at as u64..end as u64) {
                self.map.wrote(at as u64, &new[at..end]);
            }
            match self.below(16) {
                0 => self.map.catch_up(&*self.disk).unwrap(),
                1 => {
                    // one of those that are wanted
                    if let Some(range) = self.map.wanted() {
                        let bytes = range.start as usize..range.end as usize;
                        self.map.wrote(range.start, &self.disk[bytes]);
                    }
                }
                _ => {}
            }
        }
        self.map.catch_up(&*self.disk).unwrap();
    }
}

/// The map of a copy of a disk, by the disk's own map and what was written to the copy since.
fn of_copy(base: &Map, before: &[u8], now: &[u8]) -> Map {
    let copy = base.of_copy(now).unwrap();
    let mut copy = copy.expect("it is the same file system");
    for part in base.counts() {
        let bytes = part.start as usize..part.end as usize;
        if before[bytes.clone()] != now[bytes.clone()] {
            copy.wrote(part.start, &now[bytes]);
        }
    }
    copy.catch_up(now).unwrap();
    copy
}

/// The first runs of blocks that only one of two maps knows, or knows otherwise.
fn difference(kept: &Map, new: &Map) -> String {
    let all = |map: &Map| map.extents().collect::<Vec<_>>();
    let (kept_all, new_all) = (all(kept), all(new));
    let only = |some: &[(Range<u64>, Kind)], others: &[(Range<u64>, Kind)]| {
        let missing = some.iter().filter(|extent| !others.contains(extent));
        format!("{:?}", missing.take(4).collect::<Vec<_>>())
    };
    format!(
        "kept alone {}, new alone {}, left out {:?} and {:?}",
        only(&kept_all, &new_all),
        only(&new_all, &kept_all),
        kept.left_out(),
        new.left_out()
    )
}

#[test]
fn a_map_that_is_kept_up_is_as_good_as_a_new_one() {
    let config = ProptestConfig {
        // there are many kinds, and each case starts a dozen programs
        cases: 1,
        max_shrink_iters: 0,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    for (name, mib, options) in KINDS {
        println!("{name}");
        let image = Image::new(*mib, options);
        let first = image.read();
        let rounds = prop::collection::vec((steps(), any::<bool>()), 2..5);
        let result =
            TestRunner::new(config.clone()).run(&(rounds, any::<u64>()), |(rounds, random)| {
                std::fs::write(image.path(), &first).unwrap();
                let base = image.map();
                let mut kept = Kept {
                    map: image.map(),
                    disk: first.clone(),
                    random,
                };
                let mut is_as_good = || {
                    kept.follow(&image.read());
                    let new = image.map();
                    prop_assert!(!kept.map.is_stale());
                    prop_assert!(
                        kept.map == new,
                        "the map differs from a new one: {}",
                        difference(&kept.map, &new)
                    );
                    let copy = of_copy(&base, &first, &kept.disk);
                    prop_assert!(
                        copy == new,
                        "the copy's map differs from a new one: {}",
                        difference(&copy, &new)
                    );
                    Ok(())
                };
                for (steps, check) in rounds {
                    change(&image, &steps, check);
                    if image.contradicts_itself() {
                        return Ok(());
                    }
                    is_as_good()?;
                }
                // debugfs leaves the block of attributes of what it removes in use, which no inode has then
                put_in_order(&image);
                is_as_good()?;
                image.check(&kept.map);
                Ok(())
            });
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn a_copy_that_has_another_file_system_by_now_is_read_anew() {
    let image = Image::new(24, "-t ext4 -b 1024");
    let (base, disk) = (image.map(), image.read());
    assert!(base.of_copy(&*disk).unwrap().as_ref() == Some(&base));
    // a larger disk is the same one, until the file system has grown as well
    let mut grown = disk.clone();
    grown.resize(32 << 20, 0);
    assert!(base.of_copy(&*grown).unwrap().as_ref() == Some(&base));
    std::fs::write(image.path(), &grown).unwrap();
    run(Command::new("resize2fs").arg(image.path()));
    assert!(base.of_copy(&*image.read()).unwrap().is_none());
    // made anew, moved, or gone
    let other = Image::new(24, "-t ext4 -b 1024").read();
    assert!(base.of_copy(&*other).unwrap().is_none());
    let mut moved = vec![0; 64 << 20];
    (moved[446 + 4], moved[446 + 9]) = (0x83, 8);
    moved[510..512].copy_from_slice(b"\x55\xaa");
    moved[2048 * 512..][..disk.len()].copy_from_slice(&disk);
    assert!(base.of_copy(&*moved).unwrap().is_none());
    assert!(base.of_copy(&[0u8; 1 << 20][..]).is_err());
}

#[test]
fn what_counts_is_what_the_map_cares_for() {
    for (name, mib, options) in KINDS {
        println!("{name}");
        let image = Image::new(*mib, options);
        let map = image.map();
        let mut end = 0;
        for part in map.counts() {
            assert!(part.start >= end && part.start < part.end, "{part:?}");
            assert!(map.cares(part.clone()), "{part:?}");
            assert!(!map.cares(end..part.start), "{:?}", end..part.start);
            end = part.end;
        }
        assert!(!map.cares(end..mib << 20));
    }
}

#[test]
fn a_new_file_has_no_name_until_its_directory_was_written() {
    let image = Image::new(24, "-t ext4 -b 1024");
    let mut map = image.map();
    let old = image.read();
    let source = image.source(5000);
    image.change(&[format!("write {} new", source.display())]);
    let new = image.read();
    let (mut root, mut file) = (None, None);
    for at in (0..new.len()).step_by(1024) {
        let bytes = &new[at..at + 1024];
        if bytes == &old[at..at + 1024] || !map.cares(at as u64..at as u64 + 1024) {
            continue;
        }
        match map.at(at as u64) {
            Some(Kind::Directory(_)) => root = Some(at),
            _ => map.wrote(at as u64, bytes),
        }
    }
    map.catch_up(&*new).unwrap();
    let fresh = image.map();
    for (range, kind) in fresh.extents() {
        if let Kind::File(id) = kind
            && fresh.path(id) == "/new"
        {
            assert_eq!(map.at(range.start), Some(kind));
            file = Some(id);
        }
    }
    let file = file.expect("the file has blocks");
    assert_eq!(map.path(file), format!("inode {}", file.inode));
    let root = root.expect("the root directory was written");
    map.wrote(root as u64, &new[root..root + 1024]);
    assert_eq!(map.path(file), "/new");
    assert!(map == fresh);
}

#[test]
fn a_directory_that_is_gone_is_forgotten() {
    let image = Image::new(24, "-t ext4 -b 4096");
    let map = image.map();
    let disk = image.read();
    let mut kept = Kept {
        map,
        disk,
        random: 1,
    };
    let directories = |map: &Map| {
        let all = map.extents().filter_map(|(_, kind)| match kind {
            Kind::Directory(id) => Some(map.path(id)),
            _ => None,
        });
        all.collect::<Vec<_>>()
    };
    assert!(directories(&kept.map).contains(&"/empty".into()));
    image.change(&[
        "set_inode_field /empty links_count 0".into(),
        "rmdir /empty".into(),
    ]);
    kept.follow(&image.read());
    assert!(kept.map == image.map());
    assert!(!directories(&kept.map).contains(&"/empty".into()));
}

#[test]
fn data_that_is_written_does_not_concern_the_map() {
    let image = Image::new(24, "-t ext4 -b 4096");
    let map = image.map();
    let (mut files, mut others) = (0, 0);
    for (range, kind) in map.extents() {
        match kind {
            Kind::File(_) | Kind::Journal => {
                assert!(!map.cares(range.clone()));
                files += 1;
            }
            Kind::Directory(_) => {
                assert!(map.cares(range.start + 1..range.start + 2));
                others += 1;
            }
            Kind::Meta => {}
        }
    }
    assert!(files > 700 && others > 24, "{files}, {others}");
    let end = image.read().len() as u64;
    assert!(!map.cares(end..end + 4096) && map.cares(0..end));
    run(Command::new("e2fsck").arg("-fn").arg(image.path()));
}
