//! The node's promises about forks, kept with real guests.

use crate::support::node::TestNode;
use floe_api::*;

/// Boots the tiny guest as `web` with a mark in its memory.
pub fn with_a_mark(node: &TestNode) {
    node.boot_tiny("web");
    node.type_and_wait(
        "web",
        "echo before-$((40+2)) > /www/mark; echo wrote-$((1+1))",
        "wrote-2",
    );
}

/// Forks and shows how long what took.
pub fn fork(node: &TestNode, parent: &str, request: &ForkRequest) -> (ForkReport, f64) {
    let mut shown = String::new();
    let outcome = node
        .client()
        .fork(parent, request)
        .unwrap()
        .finish(|event| {
            if let Event::Stage { name, ms } = event {
                shown += &format!(" {name} {ms}");
            }
            if let Event::Clone(clone) = event {
                shown += &format!(" {}@{:?}", clone.name, clone.running_ms);
            }
        });
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}\n{shown}\n{}", node.log()));
    let fork = outcome.fork.unwrap();
    eprintln!(
        "fork {parent}: {} ms, pause {:?} ms, {} dirty, descriptor {}:{shown}",
        outcome.total_ms, outcome.pause_ms, fork.dirty_chunks, fork.descriptor_bytes
    );
    (fork, outcome.pause_ms.unwrap_or_default())
}

pub fn clones(n: u32) -> ForkRequest {
    ForkRequest {
        clones: n,
        ..Default::default()
    }
}

/// The same, independent of its parent as soon as it can be.
pub fn settling(n: u32) -> ForkRequest {
    ForkRequest {
        settle: true,
        ..clones(n)
    }
}
