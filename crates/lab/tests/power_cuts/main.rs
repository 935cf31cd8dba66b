//! Power cuts under a node and a hub: all writes to all of their files are recorded below a real ext4 and a real xfs.
//! After a cut at any of them, the same programs must start on what is left, have everything that they acknowledged, and
//! show nothing incomplete.
//!
//! Of the writes that were not flushed, a cut keeps nothing, everything, or random sectors. Each promise is tested with a
//! cut directly after it was acknowledged, with nothing kept; further cuts are sampled: `FLOE_POWER_CUTS` says how many
//! (default 12 for each file system), `FLOE_POWER_CUTS_SEED` which.
// The kernel's protocol, shared with the mount.
#[allow(dead_code)]
#[path = "../../../mount/src/abi.rs"]
mod abi;
mod device;
mod hosts;
mod work;

use device::{Kept, Mounted, Recorder, Replay};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use work::{Fact, Promise};

/// Size of the recorded disk in bytes: xfs needs 300 MB.
const DISK_BYTES: u64 = 512 << 20;

fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| value.parse().expect(variable))
}

/// Returns where to cut and what to keep: at each promise, then at random places.
fn cuts(replay: &Replay, promises: &[Promise], seed: u64, more: u64) -> Vec<(usize, Kept)> {
    let mut cuts: Vec<(usize, Kept)> = promises
        .iter()
        .map(|promise| (promise.from, Kept::Nothing))
        .collect();
    let mut random = StdRng::seed_from_u64(seed);
    let flushes = replay.flushes();
    for _ in 0..more {
        // half of them directly before or after a flush, where one write more or less matters
        let anywhere = random.random_range(replay.from..=replay.ops.len());
        let near = flushes[random.random_range(0..flushes.len())]
            .saturating_sub(random.random_range(0..2));
        let cut = if random.random_bool(0.5) {
            anywhere
        } else {
            near.max(replay.from)
        };
        let kept = match random.random_range(0..3) {
            0 => Kept::Nothing,
            1 => Kept::Everything,
            _ => Kept::Some(random.random()),
        };
        cuts.push((cut, kept));
    }
    cuts.sort_by_key(|(cut, _)| *cut);
    cuts.dedup();
    cuts
}

fn record_and_cut(kind: &str) {
    let scratch = tempfile::Builder::new()
        .prefix("floe-cuts-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .tempdir()
        .unwrap();
    let recorder = Recorder::new(scratch.path(), kind, DISK_BYTES);
    let promises = work::run(&recorder, scratch.path());
    let replay = recorder.end();
    let seed = number("FLOE_POWER_CUTS_SEED", 1);
    let cuts = cuts(&replay, &promises, seed, number("FLOE_POWER_CUTS", 12));
    println!(
        "{kind}: {} writes and flushes, {} flushes, {} cuts",
        replay.ops.len(),
        replay.flushes().len(),
        cuts.len()
    );
    let mut failures = Vec::new();
    for (cut, kept) in cuts {
        for what in look_at(&replay, &promises, cut, kept, scratch.path()) {
            println!("{kind}, cut {cut}, {kept:?}: {what}");
            failures.push((cut, kept, what));
        }
    }
    assert!(failures.is_empty(), "{kind}, seed {seed}: {failures:#?}");
}

/// Cuts, mounts what is left, and starts everything on it.
fn look_at(
    replay: &Replay,
    promises: &[Promise],
    cut: usize,
    kept: Kept,
    scratch: &Path,
) -> Vec<String> {
    let (image, dir) = (scratch.join("cut"), scratch.join("left"));
    replay.cut(cut, kept, &image);
    let mounted = Mounted::new(&image, &dir);
    let facts: Vec<&Fact> = promises
        .iter()
        .filter(|promise| promise.from <= cut && cut <= promise.until)
        .map(|promise| &promise.fact)
        .collect();
    let wrong = work::check(&mounted.dir, scratch, &facts);
    hosts::end_leftovers(&mounted.dir);
    mounted.unmount();
    std::fs::remove_file(&image).unwrap();
    wrong
}

#[test]
#[ignore = "needs root, FUSE, loop devices, QEMU and mkfs: make test-all"]
fn a_power_cut_at_any_write_leaves_what_was_acknowledged_on_ext4() {
    record_and_cut("ext4");
}

#[test]
#[ignore = "needs root, FUSE, loop devices, QEMU and mkfs: make test-all"]
fn a_power_cut_at_any_write_leaves_what_was_acknowledged_on_xfs() {
    record_and_cut("xfs");
}
