//! Nothing is left standing: what a node, its supervisor or a disk that ends or fills up at the worst moment leaves behind goes on.

use crate::support::node::{TestNode, finish};
use floe_api::*;

pub fn fork(node: &TestNode, parent: &str, clones: u32) -> ForkReport {
    let request = ForkRequest {
        clones,
        ..Default::default()
    };
    let fork = finish(node.client().fork(parent, &request).unwrap()).fork;
    fork.unwrap()
}
