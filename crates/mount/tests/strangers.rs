//! Tests what other users on the host, an escaped QEMU among them, can't do to a machine through the mount.

mod common;

use common::{Place, map};
use floe_mount::{MachineHandle, MachineSpec};
use std::fs::{File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const VICTIM: u32 = 90_011;
const STRANGER: u32 = 90_012;
/// Offset of the page that is attacked.
const AT: usize = 5 << 20;

/// Tries every way to map a file shared and writable; returns the mapping and how it was made, if the kernel allowed one.
fn shared_and_writable(path: &Path) -> Option<(*mut u8, &'static str)> {
    let map = |file: &File, prot| {
        // SAFETY: the kernel chooses where the new mapping goes, so it replaces no memory.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                prot,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                AT as i64,
            )
        };
        (at != libc::MAP_FAILED).then_some(at)
    };
    let (read, both) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    let later = |file: &File| {
        let at = map(file, read)?;
        // SAFETY: `at` is a mapping of one page that was just made.
        (unsafe { libc::mprotect(at, 4096, both) } == 0).then_some(at)
    };
    let write = OpenOptions::new().read(true).write(true).open(path).ok();
    let only_read = File::open(path).ok();
    let reopened = only_read.as_ref().and_then(|file| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        OpenOptions::new().read(true).write(true).open(path).ok()
    });
    let files = [&write, &only_read, &reopened];
    for file in files.into_iter().flatten() {
        if let Some(at) = map(file, both) {
            return Some((at.cast(), "mmap"));
        }
        if let Some(at) = later(file) {
            return Some((at.cast(), "mprotect"));
        }
        let _ = file.write_at(&[0xAA; 4096], AT as u64);
    }
    None
}

/// Runs in another process, as another user, if the environment variable names the file to attack.
#[test]
fn attack() {
    let Ok(path) = std::env::var("FLOE_TEST_ATTACK") else {
        return;
    };
    let got = shared_and_writable(Path::new(&path));
    if let Some((at, how)) = got {
        for _ in 0..200_000 {
            // SAFETY: the page is mapped for writing, by this process alone.
            unsafe { at.write_volatile(0xAA) };
        }
        panic!("{path} was mapped shared and writable, by {how}");
    }
    println!("refused");
}

fn attacked_by(user: u32, program: &Path, path: &Path) -> std::process::Output {
    let mut command = Command::new(program);
    command
        .args(["--exact", "attack", "--nocapture"])
        .env("FLOE_TEST_ATTACK", path)
        .uid(user)
        .gid(user);
    command.output().unwrap()
}

fn machine(place: &Place, node: &common::Node, name: &str, user: u32) -> MachineHandle {
    let spec = MachineSpec {
        name: name.into(),
        uid: user,
        gid: user,
        image: node.image.clone().unwrap(),
        dir: place.root.join("machines").join(name),
        disks: vec![],
        base: None,
    };
    node.mount.add_machine(spec).unwrap()
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn nobody_changes_a_siblings_memory_not_for_one_read() {
    let dir = tempfile::tempdir().unwrap();
    // Lets other users get as far as the mount.
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let victim = machine(&place, &node, "victim", VICTIM);
    let escaped = machine(&place, &node, "escaped", STRANGER);
    let (its, own): (PathBuf, PathBuf) = (victim.ram_path().unwrap(), escaped.ram_path().unwrap());
    // A copy of this binary that they may run.
    let program = dir.path().join("attack");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let stop = AtomicBool::new(false);
    let memory = map(&its);
    let right = &place.ram[AT..AT + 4096];
    let attacks = [
        (STRANGER, &own), // an escaped QEMU: its own memory file is its sibling's too
        (STRANGER, &its), // another user, by the sibling's path
        (0, &its),        // even root
    ];
    let changed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if memory[AT..AT + 4096] != *right {
                    changed.store(true, Ordering::Relaxed);
                }
            }
        });
        let outputs = attacks.map(|(user, path)| (user, attacked_by(user, &program, path)));
        stop.store(true, Ordering::Relaxed);
        for (user, attack) in outputs {
            let said = String::from_utf8_lossy(&attack.stdout);
            let error = String::from_utf8_lossy(&attack.stderr);
            assert!(said.contains("refused"), "user {user}: {said}{error}");
        }
    });
    assert!(!changed.into_inner(), "a sibling's page changed");
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_machine_that_opens_its_memory_for_reading_shares_pages_and_writes_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let (one, two) = (place.machine(&node, "a"), place.machine(&node, "b"));
    let whole = map(&one.ram_path().unwrap());
    assert!(whole[..] == place.ram[..]);
    let requests = node.mount.stats().region_reads;
    let file = File::open(two.ram_path().unwrap()).unwrap();
    // SAFETY: a private mapping, which nobody else changes.
    let mut private = unsafe { memmap2::MmapOptions::new().map_copy(&file).unwrap() };
    private[AT] ^= 0xFF;
    assert!(private[AT + 1..] == place.ram[AT + 1..]);
    assert!(whole[..] == place.ram[..]);
    assert_eq!(node.mount.stats().region_reads, requests);
}
