//! The node's promises about machines, kept with real guests: FUSE, QEMU, and processes that are killed.

use crate::support::node::{TestNode, finish};
use floe_api::*;

pub fn capture(name: &str) -> CaptureRequest {
    CaptureRequest {
        name: Some(name.into()),
        ..Default::default()
    }
}

/// Boots the tiny guest as `one`, puts `marker-42` into a file in its memory, captures it as `tiny-live`.
pub fn capture_with_a_mark(node: &TestNode) -> Outcome {
    node.boot_tiny("one");
    node.type_and_wait(
        "one",
        "echo marker-$((40+2)) > /www/mark; echo wrote-$((1+1))",
        "wrote-2",
    );
    finish(node.client().capture("one", &capture("tiny-live")).unwrap())
}
