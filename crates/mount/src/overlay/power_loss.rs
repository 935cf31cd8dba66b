//! Tests power cuts on a modelled disk: after one, each sector is as it was at the last flush or as it was written later, never
//! anything else. The model keeps what the files were at the last `fdatasync`. At a cut the map goes back to that; each sector
//! of data that was written since goes back or stays at random, as the kernel may have written it or not. A file that is new since is
//! gone, or there without its content. The live map is lost. A kill, by contrast, loses nothing at all.

use super::*;
use crate::image::Reading;
use proptest::prelude::*;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// The disk's first size in bytes, and the most that it grows to.
const SIZE: u64 = 64 << 10;
const SIZE_MAX: u64 = 160 << 10;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Zero(u64, u64),
    Flush,
    Freeze,
    /// By so many sectors; nothing happens where that is too large.
    Grow(u64),
    /// As `Grow`, and the process ends between the record and the layer.
    GrowHalf(u64),
    Kill,
    Cut(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // reaches beyond the end of a disk that was not grown
    let span = || (0u64..SIZE_MAX / 512 - 8, 1u64..8);
    let step = prop_oneof![
        6 => (span(), 1u8..255).prop_map(|((at, n), v)| Step::Write(at, n, v)),
        1 => span().prop_map(|(at, n)| Step::Zero(at, n)),
        2 => Just(Step::Flush),
        1 => Just(Step::Freeze),
        1 => (1u64..40).prop_map(Step::Grow),
        1 => (1u64..40).prop_map(Step::GrowHalf),
        1 => Just(Step::Kill),
        1 => any::<u64>().prop_map(Step::Cut),
    ];
    proptest::collection::vec(step, 1..50)
}

/// Opens the disk with the size that its record has. After a power cut the live directory is another, empty one.
fn open(dir: &Path, live: &Path) -> Disk {
    let record = BaseRecord::read(&dir.join("disk")).unwrap();
    let size = record.map_or(SIZE, |record| record.disk_bytes);
    Disk::open(&dir.join("disk"), live, "disk0", size, None, |_| None).unwrap()
}

fn new_live(dir: &Path) -> PathBuf {
    tempfile::tempdir_in(dir).unwrap().keep()
}

type Files = Vec<(PathBuf, Vec<u8>)>;

fn files(dir: &Path) -> Files {
    let entries = std::fs::read_dir(dir.join("disk"))
        .unwrap()
        .map(|e| e.unwrap().path());
    entries
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

/// Puts the files back to what was durable; bits of `dice` decide which sectors of data that were written later stay.
fn cut(dir: &Path, durable: &Files, dice: u64) {
    for (at, (path, now)) in files(dir).into_iter().enumerate() {
        let Some((_, before)) = durable.iter().find(|(p, _)| *p == path) else {
            match dice.rotate_left(at as u32 * 11) & 1 {
                // Its directory entry was never made durable.
                0 => std::fs::remove_file(&path).unwrap(),
                _ => std::fs::write(&path, vec![0; now.len()]).unwrap(),
            }
            continue;
        };
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let data = path.extension().is_some_and(|e| e == "data");
        for (i, (old, new)) in before.chunks(512).zip(now.chunks(512)).enumerate() {
            let stays = data && dice.rotate_left(i as u32 * 7) & 1 == 1;
            file.write_all_at(if stays { new } else { old }, i as u64 * 512)
                .unwrap();
        }
    }
}

/// A disk, and what is known of it.
struct Rig {
    dir: tempfile::TempDir,
    live: PathBuf,
    disk: Option<Disk>,
    durable: Files,
    /// The values that each sector may have: the one at the last flush, then those written since.
    values: Vec<Vec<u8>>,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let live = new_live(dir.path());
        let mut rig = Rig {
            disk: Some(open(dir.path(), &live)),
            durable: Vec::new(),
            values: vec![vec![0]; (SIZE / 512) as usize],
            live,
            dir,
        };
        rig.flush();
        rig
    }

    fn disk(&self) -> &Disk {
        self.disk.as_ref().unwrap()
    }

    fn flush(&mut self) {
        self.disk().flush().unwrap();
        self.durable = files(self.dir.path());
        let last = |s: &mut Vec<u8>| *s = vec![*s.last().unwrap()];
        self.values.iter_mut().for_each(last);
    }

    /// The new part of a disk is zero, and its record is durable at once.
    fn grown(&mut self, bytes: u64) {
        self.values.resize((bytes / 512) as usize, vec![0]);
        let path = self.dir.path().join("disk/base.json");
        let record = std::fs::read(&path).unwrap();
        let known = self.durable.iter_mut().find(|(p, _)| *p == path);
        known.unwrap().1 = record;
    }

    fn reopen(&mut self) {
        self.disk = None;
        self.disk = Some(open(self.dir.path(), &self.live));
    }

    fn read(&self) -> Vec<u8> {
        let disk = self.disk();
        assert_eq!(disk.size(), self.values.len() as u64 * 512);
        let mut now = vec![0; disk.size() as usize];
        disk.read(0, &mut now, &mut Reading::default()).unwrap();
        now
    }

    fn step(&mut self, step: Step) {
        let sectors = self.values.len() as u64;
        let reading = &mut Reading::default();
        match step {
            Step::Write(at, n, v) => {
                let bytes = vec![v; n as usize * 512];
                let written = self.disk().write(at * 512, &bytes, reading);
                assert_eq!(written.is_ok(), at + n <= sectors, "{at} {n} of {sectors}");
                if written.is_ok() {
                    let range = at as usize..(at + n) as usize;
                    self.values[range].iter_mut().for_each(|s| s.push(v));
                }
            }
            Step::Zero(at, n) if at + n <= sectors => {
                self.disk().zero(at * 512, n * 512, reading).unwrap();
                let range = at as usize..(at + n) as usize;
                self.values[range].iter_mut().for_each(|s| s.push(0));
            }
            Step::Flush => self.flush(),
            Step::Freeze => {
                let frozen = self.disk().freeze().unwrap();
                assert_eq!(frozen.size(), sectors * 512);
            }
            Step::Grow(by) if (sectors + by) * 512 <= SIZE_MAX => {
                let bytes = (sectors + by) * 512;
                assert!(self.disk().grow(bytes - by * 512 - 512).is_err());
                self.disk().grow(bytes).unwrap();
                self.grown(bytes);
            }
            Step::GrowHalf(by) if (sectors + by) * 512 <= SIZE_MAX => {
                let dir = self.dir.path().join("disk");
                let mut record = BaseRecord::read(&dir).unwrap().unwrap();
                record.disk_bytes = (sectors + by) * 512;
                record.write(&dir).unwrap();
                self.grown(record.disk_bytes);
                self.reopen();
            }
            Step::Kill => self.reopen(),
            Step::Cut(dice) => {
                self.disk = None;
                cut(self.dir.path(), &self.durable, dice);
                self.live = new_live(self.dir.path());
                self.reopen();
                let now = self.read();
                for (sector, values) in now.chunks(512).zip(&mut self.values) {
                    assert!(sector.iter().all(|b| *b == sector[0]));
                    assert!(values.contains(&sector[0]), "{} of {values:?}", sector[0]);
                    *values = vec![sector[0]];
                }
                self.flush();
            }
            Step::Zero(..) | Step::Grow(_) | Step::GrowHalf(_) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_power_cut_loses_nothing_that_was_flushed(steps in steps()) {
        let mut rig = Rig::new();
        for step in steps {
            rig.step(step);
        }
        let now = rig.read();
        for (sector, values) in now.chunks(512).zip(&rig.values) {
            prop_assert_eq!(sector[0], *values.last().unwrap());
        }
    }
}
