//! Tests power cuts on a modelled disk: after one, each sector is as it was at the last flush or as it was written later, never
//! anything else. The model keeps what the files were at the last `fdatasync`. At a cut the map goes back to that; each sector
//! of data that was written since goes back or stays at random, as the kernel may have written it or not. The live map is lost.

use super::*;
use crate::image::Reading;
use proptest::prelude::*;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

const SIZE: u64 = 64 << 10;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Zero(u64, u64),
    Flush,
    Freeze,
    Cut(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let span = || (0u64..120, 1u64..8);
    let step = prop_oneof![
        6 => (span(), 1u8..255).prop_map(|((at, n), v)| Step::Write(at, n, v)),
        1 => span().prop_map(|(at, n)| Step::Zero(at, n)),
        2 => Just(Step::Flush),
        1 => Just(Step::Freeze),
        1 => any::<u64>().prop_map(Step::Cut),
    ];
    proptest::collection::vec(step, 1..50)
}

fn open(dir: &Path) -> Disk {
    // Uses another live directory at each opening, because a power cut empties it.
    let live = tempfile::tempdir_in(dir).unwrap().keep();
    Disk::open(&dir.join("disk"), &live, "disk0", SIZE, None, |_| None).unwrap()
}

fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(dir.join("disk"))
        .unwrap()
        .map(|e| e.unwrap().path());
    entries
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

/// Puts the files back to what was durable; bits of `dice` decide which sectors of data that were written later stay.
fn cut(dir: &Path, durable: &[(PathBuf, Vec<u8>)], dice: u64) {
    for (path, now) in files(dir) {
        let Some((_, before)) = durable.iter().find(|(p, _)| *p == path) else {
            // Its directory entry was never made durable.
            std::fs::remove_file(&path).unwrap();
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_power_cut_loses_nothing_that_was_flushed(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = open(dir.path());
        disk.flush().unwrap();
        let mut durable = files(dir.path());
        // The values that each sector may have: the one at the last flush, then those written since.
        let mut values: Vec<Vec<u8>> = vec![vec![0]; (SIZE / 512) as usize];
        for step in steps {
            match step {
                Step::Write(at, n, v) => {
                    disk.write(at * 512, &vec![v; n as usize * 512], &mut Reading::default()).unwrap();
                    values[at as usize..(at + n) as usize].iter_mut().for_each(|s| s.push(v));
                }
                Step::Zero(at, n) => {
                    disk.zero(at * 512, n * 512, &mut Reading::default()).unwrap();
                    values[at as usize..(at + n) as usize].iter_mut().for_each(|s| s.push(0));
                }
                Step::Flush => {
                    disk.flush().unwrap();
                    durable = files(dir.path());
                    values.iter_mut().for_each(|s| *s = vec![*s.last().unwrap()]);
                }
                Step::Freeze => drop(disk.freeze().unwrap()),
                Step::Cut(dice) => {
                    drop(disk);
                    cut(dir.path(), &durable, dice);
                    disk = open(dir.path());
                    let mut now = vec![0; SIZE as usize];
                    disk.read(0, &mut now, &mut Reading::default()).unwrap();
                    for (sector, values) in now.chunks(512).zip(&mut values) {
                        prop_assert!(sector.iter().all(|b| *b == sector[0]));
                        prop_assert!(values.contains(&sector[0]), "{} of {:?}", sector[0], values);
                        *values = vec![sector[0]];
                    }
                    disk.flush().unwrap();
                    durable = files(dir.path());
                }
            }
        }
        let mut now = vec![0; SIZE as usize];
        disk.read(0, &mut now, &mut Reading::default()).unwrap();
        for (sector, values) in now.chunks(512).zip(&values) {
            prop_assert_eq!(sector[0], *values.last().unwrap());
        }
    }
}
