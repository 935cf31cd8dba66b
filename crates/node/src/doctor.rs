//! What the node itself sees: the host ([`crate::host`]) and its own mount.

use crate::Node;
use floe_api::{Check, CheckStatus, DoctorReport};

/// Looks at the host and at what only the node can see.
pub fn examine(node: &Node) -> DoctorReport {
    let mut report = crate::host::report(&node.home);
    report.checks.push(mount(node));
    report
}

fn mount(node: &Node) -> Check {
    let mountpoint = node.mountpoint();
    let (status, detail, fix) = match std::fs::read_dir(mountpoint.join("images")) {
        Ok(_) => (
            CheckStatus::Ok,
            format!("{} answers", mountpoint.display()),
            "",
        ),
        Err(error) => (
            CheckStatus::Fail,
            format!("{}: {error}", mountpoint.display()),
            "restart the node; if it stays so, stop the machines and umount it",
        ),
    };
    Check {
        name: "mount".into(),
        status,
        detail,
        fix: fix.into(),
    }
}
