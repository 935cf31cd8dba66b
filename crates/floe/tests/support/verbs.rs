//! Verbs on machines that exist: restart, wait, events, stats, rename.

use crate::support::command::{code, said};
use crate::support::node::TestNode;
use floe_api::*;

pub fn machine(node: &TestNode, name: &str) -> MachineInfo {
    node.client().machine(name).unwrap()
}

/// Runs a script in a guest; returns what it said.
pub fn guest(node: &TestNode, name: &str, script: &str) -> String {
    let ran = code(node, 0, &["exec", name, "--", "sh", "-c", script]);
    said(&ran).trim().to_owned()
}

/// Reads a sector from the disk, whatever the guest has in memory.
pub fn read(node: &TestNode, name: &str, sector: u64) -> String {
    let from = format!("dd if=/dev/vda bs=512 skip={sector} count=1 2>/dev/null | head -n 1");
    let fresh = format!("echo 3 > /proc/sys/vm/drop_caches; {from}");
    guest(node, name, &fresh)
}
