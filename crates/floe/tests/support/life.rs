//! A machine's life as its user steers it: pause and resume, starts that wait for nothing or for a sign of life, stops that are told
//! as what they were, and a node that has ended when `floe down` says so.

use crate::support::node::TestNode;
use floe_api::*;

pub fn machine(node: &TestNode, name: &str) -> MachineInfo {
    node.client().machine(name).unwrap()
}

pub fn runs(node: &TestNode, name: &str) -> bool {
    machine(node, name).status == MachineStatus::Running
}
