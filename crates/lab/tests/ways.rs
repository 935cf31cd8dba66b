//! Each way in which a machine comes to run, once, with a file system in the guest. The lab goes all pairs of them.
mod common;

/// As many as there are ways.
const WAYS: &str = "13";

#[test]
#[ignore = "needs root, FUSE, QEMU and the tiny guest: make test-all"]
fn a_disk_is_what_it_was_in_whatever_way_its_machine_comes_to_run() {
    let measured = common::Measured::of(&["ways", "--steps", WAYS]);
    // the first way has none before it
    measured.holds("pairs", |value| value == 12.0);
    for name in ["wrong_bytes", "lost_machines"] {
        measured.holds(name, |value| value == 0.0);
    }
}
