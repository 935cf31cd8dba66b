//! What machines take of their host, on real guests: nobody is promised what another one has, limits hold, and nothing of it is
//! forgotten by a node that dies.

use crate::support::node::{Setup, TestNode};
use floe_api::{LimitRequest, Outcome, RunRequest, Wait};

/// A node whose machines have so many MiB.
pub fn with_memory(mib: u64) -> TestNode {
    TestNode::with(Setup {
        args: ["--memory".into(), format!("{mib}M")].into(),
        ..Default::default()
    })
}

pub fn request(image: &str, name: &str) -> RunRequest {
    RunRequest {
        image: image.into(),
        name: Some(name.into()),
        wait: Wait::None,
        ..Default::default()
    }
}

pub fn run(node: &TestNode, request: &RunRequest) -> Result<Outcome, String> {
    let events = node.client().run(request).unwrap();
    events.finish(|_| ()).map_err(|error| error.to_string())
}

/// What the node has promised, in its own words.
pub fn promised(node: &TestNode) -> String {
    let checks = node.client().doctor().unwrap().checks;
    let mut checks = checks.into_iter();
    checks
        .find(|check| check.name == "promises")
        .unwrap()
        .detail
}

pub fn now() -> floe_api::StopRequest {
    floe_api::StopRequest {
        now: true,
        timeout_s: None,
    }
}

/// Asserts that machines of this node have control groups.
pub fn needs_groups(node: &TestNode) {
    let checks = node.client().doctor().unwrap().checks;
    let groups = checks.iter().find(|check| check.name == "control groups");
    let groups = groups.unwrap();
    assert_eq!(groups.status, floe_api::CheckStatus::Ok, "{groups:?}");
}

pub fn limit(node: &TestNode, name: &str, millicores: u32) {
    let request = LimitRequest {
        cpu_millicores: Some(millicores),
        memory_max_bytes: None,
        ..Default::default()
    };
    node.client().limit(name, &request).unwrap();
}
