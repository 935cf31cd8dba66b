//! What machines take of their host, on real guests: nobody is promised what another one has, limits hold, and nothing of it is
//! forgotten by a node that dies.

use crate::support::node::{Setup, TestNode};
use floe_api::{LimitRequest, Outcome, RunRequest, Wait};
use std::path::{Path, PathBuf};

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

/// The process of a machine's QEMU.
pub fn pid(node: &TestNode, name: &str) -> u32 {
    node.client().machine(name).unwrap().pid.unwrap()
}

/// The control group of a process, as its kernel shows it, and whether it is one of version 1: then of this controller.
pub fn group(pid: u32, controller: &str) -> (PathBuf, bool) {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let of = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let one = controllers.split(',').any(|name| name == controller);
        assert!(!one || path.starts_with("/floe/"), "{groups}");
        let two = controllers.is_empty() && path.starts_with("/floe/");
        (one || two).then(|| match one {
            true => (format!("/sys/fs/cgroup/{controller}{path}").into(), true),
            false => (format!("/sys/fs/cgroup{path}").into(), false),
        })
    };
    groups.lines().find_map(of).unwrap()
}

/// What a file of a control group says, of version 1 or 2.
pub fn said_by((group, is_one): &(PathBuf, bool), one: &str, two: &str) -> String {
    let path = group.join(if *is_one { one } else { two });
    let text = std::fs::read_to_string(&path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim().to_owned()
}

/// The control group of the household of a process.
pub fn household(pid: u32, controller: &str) -> (PathBuf, bool) {
    let (group, is_one) = group(pid, controller);
    let above = group.parent().unwrap();
    assert!(of_household(above), "{}", group.display());
    (above.to_owned(), is_one)
}

fn of_household(group: &Path) -> bool {
    let name = group.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with('_'))
}

/// The limit of a household's time in thousandths of a core, as the kernel of one of its processes has it.
pub fn quota_of(pid: u32) -> Option<u32> {
    let quota = said_by(&household(pid, "cpu"), "cpu.cfs_quota_us", "cpu.max");
    let us: Option<u32> = quota.split_whitespace().next().unwrap().parse().ok();
    us.map(|us| us / 100)
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
