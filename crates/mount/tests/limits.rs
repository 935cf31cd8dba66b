//! How long requests wait whose source gives nothing, and what those are told that wait no longer.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod common;

use common::Place;
use common::frail::eventually;
use floe_mount::MachineHandle;
use floe_source::SourceError;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn disk_of(machine: &MachineHandle) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(machine.disk_path("disk0").unwrap())
        .unwrap()
}

/// Reads the beginning of a disk.
fn beginning(disk: &File) -> io::Result<[u8; 8192]> {
    let mut bytes = [0; 8192];
    disk.read_exact_at(&mut bytes, 0).map(|()| bytes)
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_machine_with_a_limit_is_told_who_denies_its_chunk_and_one_without_waits_on() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let (limited, patient) = (place.machine(&node, "a"), place.machine(&node, "b"));
    let (of_limited, of_patient) = (disk_of(&limited), disk_of(&patient));
    node.source.denies.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| beginning(&of_limited));
        // what the fetcher was told reaches the mount, which tries again
        let is_denied = || matches!(limited.why_waits(), Some(SourceError::Denied { .. }));
        eventually("it is denied and waits", || {
            is_denied() && node.source.denied.load(Ordering::Relaxed) >= 3
        });
        assert!(!reader.is_finished() && limited.given_up().is_none());
        assert!(is_denied() && limited.given_up_memory().is_none());
        // a limit holds for what waits already
        limited.limit_waits(Some(Duration::from_millis(50)));
        let error = reader.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));

        let reader = scope.spawn(|| beginning(&of_patient));
        eventually("the other one waits", || node.mount.stats().waiting > 0);
        node.source.denies.store(false, Ordering::Relaxed);
        assert_eq!(reader.join().unwrap().unwrap(), place.disk[..8192]);
    });
    let why = limited.newly_given_up().unwrap();
    assert!(
        why.contains("a read of disk0 failed") && why.contains("floe login"),
        "{why}"
    );
    assert_eq!(limited.newly_given_up(), None);
    assert_eq!(limited.given_up(), Some(why));
    assert_eq!(limited.given_up_memory(), None, "it was a disk's");
    assert_eq!(patient.given_up(), None);
    assert_eq!(beginning(&of_limited).unwrap(), place.disk[..8192]);
}
