//! Commands, copies and connections in real guests: `floe exec`, `floe cp`, `floe dial`.

use crate::support::{
    command::run,
    node::{PATIENCE, TestNode},
};
use std::time::Instant;

/// Runs a shell's line in the guest; it must succeed. Returns its output.
pub fn sh(node: &TestNode, line: &str) -> String {
    let done = run(node, &["exec", "web", "--", "sh", "-c", line]);
    assert!(done.status.success(), "{line}: {done:?}\n{}", node.log());
    String::from_utf8(done.stdout).unwrap()
}

/// Waits until a shell's line in the guest succeeds.
pub fn wait_for(node: &TestNode, machine: &str, line: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let done = run(node, &["exec", machine, "--", "sh", "-c", line]);
        if done.status.success() {
            return;
        }
        assert!(Instant::now() < until, "{line}: {done:?}\n{}", node.log());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
