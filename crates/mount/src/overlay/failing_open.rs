//! Tests that nothing is lost or taken for something else when a disk can't be opened. Each single thing that is asked of the file
//! system on the way fails once, with each of several errors. Then it is an error that names the file, every byte that was there is
//! there still, and the next start finds the disk whole.

use super::layer_files::map_path;
use super::storage::failing::with_fault;
use super::*;
use crate::image::Reading;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The disk's size in bytes.
const SIZE: u64 = 64 << 10;
const ERRORS: [i32; 4] = [libc::EIO, libc::EACCES, libc::EMFILE, libc::ENOSPC];

/// What came before the start.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    /// The node was killed: the live maps are there, and know more than the durable ones.
    Kill,
    /// Power was lost: a new top layer's map is all zeros, and the layer below the first one was not removed yet.
    PowerCut,
    /// The disk was grown, and the node was killed before it made the new layer.
    Growth,
}

/// A disk with layers, and what is to be read from it.
struct Scene {
    dir: tempfile::TempDir,
    content: Vec<u8>,
}

impl Scene {
    fn new(layers: u32, before: Before) -> Self {
        let mut scene = Self {
            // in memory: thousands of openings would wait for a disk
            dir: tempfile::tempdir_in("/dev/shm").unwrap(),
            content: vec![0; SIZE as usize],
        };
        std::fs::create_dir(scene.live()).unwrap();
        let disk = scene.open().unwrap();
        for layer in 1..=layers {
            if layer > 1 {
                disk.freeze().unwrap();
            }
            // each layer covers the last sector of the one below, and leaves the others
            scene.write(&disk, u64::from(layer) * 7, layer as u8);
            disk.flush().unwrap();
        }
        match before {
            Before::Kill => scene.write(&disk, 100, 99),
            Before::PowerCut => {
                std::fs::remove_dir_all(scene.live()).unwrap();
                std::fs::create_dir(scene.live()).unwrap();
                for number in [0, layers + 1] {
                    let mut data = vec![0; SIZE as usize];
                    data[8192..12288].fill(200 + number as u8);
                    std::fs::write(layer_files::data_path(&scene.disk(), number), data).unwrap();
                }
                let map = map_path(&scene.disk(), layers + 1);
                std::fs::write(map, vec![0; 4096 + 16]).unwrap();
                std::fs::copy(map_path(&scene.disk(), 1), map_path(&scene.disk(), 0)).unwrap();
            }
            Before::Growth => {
                let mut record = BaseRecord::read(&scene.disk()).unwrap().unwrap();
                record.disk_bytes = 2 * SIZE;
                record.write(&scene.disk()).unwrap();
                scene.content.resize(2 * SIZE as usize, 0);
            }
        }
        scene
    }

    fn write(&mut self, disk: &Disk, sector: u64, value: u8) {
        let bytes = vec![value; 8 * 512];
        let at = sector * 512;
        disk.write(at, &bytes, &mut Reading::default()).unwrap();
        self.content[at as usize..][..bytes.len()].copy_from_slice(&bytes);
    }

    fn disk(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    fn live(&self) -> PathBuf {
        self.dir.path().join("live")
    }

    fn open(&self) -> Result<Disk, MountError> {
        let size = self.content.len() as u64;
        Disk::open(&self.disk(), &self.live(), "disk0", size, None, |_| None)
    }

    /// Opens the disk, and finds in it what is to be read.
    fn is_whole(&self) {
        let disk = self.open().unwrap();
        let mut now = vec![0; self.content.len()];
        disk.read(0, &mut now, &mut Reading::default()).unwrap();
        assert!(now == self.content);
    }

    /// Returns the files of the disk and of the live maps.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = [self.disk(), self.live()].map(|dir| std::fs::read_dir(dir).unwrap());
        let paths = entries.into_iter().flatten().map(|e| e.unwrap().path());
        let files = paths.filter(|path| path.is_file());
        files
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect()
    }

    /// Finds every byte of these files under its own name, or set aside.
    fn has(&self, files: &[(PathBuf, Vec<u8>)]) {
        let now = self.files();
        for (path, bytes) in files {
            let name = path.file_name().unwrap().to_str().unwrap();
            let found = now.iter().any(|(at, content)| {
                let at = at.file_name().unwrap().to_str().unwrap();
                let aside = at.strip_prefix("aside-").and_then(|at| at.split_once('-'));
                (at == name || aside.is_some_and(|(_, at)| at == name)) && content == bytes
            });
            assert!(found, "{name} is not as it was");
        }
    }

    /// Puts everything back as it was: files are overwritten in place, with their holes.
    fn restore(&self, files: &[(PathBuf, Vec<u8>)]) {
        for dir in [self.disk(), self.live()] {
            std::fs::remove_dir_all(&dir).unwrap();
            std::fs::create_dir(&dir).unwrap();
        }
        for (path, bytes) in files {
            let file = File::create(path).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
            for (at, page) in (0..).step_by(4096).zip(bytes.chunks(4096)) {
                if page.iter().any(|byte| *byte != 0) {
                    file.write_all_at(page, at).unwrap();
                }
            }
        }
    }
}

#[test]
fn whatever_fails_when_a_disk_is_opened_is_told_and_loses_nothing() {
    for layers in 1..=3 {
        for before in [Before::Kill, Before::PowerCut, Before::Growth] {
            let scene = Scene::new(layers, before);
            let files = scene.files();
            for errno in ERRORS {
                let mut number = 0;
                loop {
                    scene.restore(&files);
                    let (opened, met) = with_fault(number, errno, || scene.open());
                    let Some(met) = met else {
                        opened.unwrap();
                        break;
                    };
                    let told = opened.err().map(|error| error.to_string());
                    let told =
                        told.unwrap_or_else(|| panic!("{before:?}: {met:?} does not matter"));
                    assert!(told.contains(met.to_str().unwrap()), "{told}");
                    scene.has(&files);
                    scene.is_whole();
                    scene.has(&files);
                    number += 1;
                }
                assert!(number > 10, "only {number} things were asked");
            }
            // what belongs to no layer is not looked at twice
            scene.is_whole();
            scene.has(&files);
        }
    }
}

#[test]
fn a_freeze_or_a_growth_that_fails_leaves_a_disk_that_can_be_opened() {
    for errno in ERRORS {
        for grow in [false, true] {
            for number in 0.. {
                let mut scene = Scene::new(1, Before::Kill);
                let disk = scene.open().unwrap();
                let (done, met) = with_fault(number, errno, || match grow {
                    true => disk.grow(2 * SIZE),
                    false => disk.freeze().map(drop),
                });
                assert_eq!(done.is_err(), met.is_some(), "{met:?}");
                // the guest goes on, with or without the new layer
                scene.write(&disk, 50, 55);
                if grow && done.is_ok() {
                    scene.content.resize(2 * SIZE as usize, 0);
                }
                drop(disk);
                scene.is_whole();
                if met.is_none() {
                    break;
                }
            }
        }
    }
}

#[test]
fn what_lies_in_a_files_place_and_can_not_be_read_is_told_with_its_path() {
    let scene = Scene::new(2, Before::Kill);
    let all = scene.files();
    for (path, _) in &all {
        for link in [false, true] {
            let kept = scene.dir.path().join("kept");
            std::fs::rename(path, &kept).unwrap();
            match link {
                true => std::os::unix::fs::symlink(path, path).unwrap(),
                false => std::fs::create_dir(path).unwrap(),
            }
            let others = scene.files();
            let told = scene.open().err().map(|error| error.to_string());
            let told = told.unwrap_or_else(|| panic!("opened without {path:?}"));
            assert!(told.contains(path.to_str().unwrap()), "{told}");
            assert!(scene.files() == others);
            match link {
                true => std::fs::remove_file(path).unwrap(),
                false => std::fs::remove_dir(path).unwrap(),
            }
            std::fs::rename(&kept, path).unwrap();
            scene.is_whole();
            scene.has(&all);
        }
    }
}

#[test]
fn a_missing_map_below_what_was_flushed_and_a_missing_record_are_told() {
    let scene = Scene::new(3, Before::Kill);
    let all = scene.files();
    for (name, told) in [
        (map_path(&scene.disk(), 2), "layer-2.map is missing"),
        (
            scene.disk().join(RECORD),
            "it is missing, but a guest wrote",
        ),
    ] {
        let kept = scene.dir.path().join("kept");
        std::fs::rename(&name, &kept).unwrap();
        let refused = scene.open().err().unwrap().to_string();
        assert!(refused.contains(told), "{refused}");
        std::fs::rename(&kept, &name).unwrap();
        scene.has(&all);
        scene.is_whole();
    }
}

#[test]
fn what_is_set_aside_stays_for_ever_and_what_is_blank_does_not() {
    let scene = Scene::new(1, Before::Kill);
    for round in 1..4 {
        let data = layer_files::data_path(&scene.disk(), 2);
        std::fs::write(&data, [round; 4096]).unwrap();
        scene.is_whole();
        assert!(!data.exists());
        let aside = (1..=round).map(|round| {
            let path = scene.disk().join(format!("aside-{round}-layer-2.data"));
            (path, vec![round; 4096])
        });
        scene.has(&aside.collect::<Vec<_>>());
    }
    let before = scene.files().len();
    let layer = Layer::create(&scene.disk(), &scene.live(), 2, SIZE).unwrap();
    layer.close();
    // a power cut took the header
    let map = File::options().write(true).open(map_path(&scene.disk(), 2));
    map.unwrap().set_len(0).unwrap();
    scene.is_whole();
    assert_eq!(scene.files().len(), before);
}
