//! What the node itself can check: the host ([`floe_inventory::host`]), its own mount, and whether the host's QEMU loads the states that are here.

mod states;

use crate::Node;
use floe_api::{Check, CheckStatus, CpuSched, DoctorReport, SchedActing, is_qemu_version};
use floe_ground::{
    caller::Caller,
    error::{NodeError, usage},
};

/// Checks the host, and what only the node can see. With `qemu`, the version of a QEMU, states are held against that one.
pub(crate) fn examine(
    node: &Node,
    caller: &Caller,
    qemu: Option<&str>,
) -> Result<DoctorReport, NodeError> {
    if let Some(version) = qemu.filter(|version| !is_qemu_version(version)) {
        return Err(usage(
            format!("{version:?} is no version of QEMU"),
            "write it as qemu-system-x86_64 --version does, such as 10.0 or 7.2.22",
        ));
    }
    let mut report = floe_inventory::host::report(&node.core.home);
    report.checks.push(mount(node));
    report.checks.push(promises(node));
    report.checks.push(groups(node));
    report.checks.extend(vcpus(node));
    report.checks.push(states::check(node, caller, qemu));
    Ok(report)
}

fn groups(node: &Node) -> Check {
    let (status, detail, fix) = match node.machines.resources.why_no_groups() {
        None => (
            CheckStatus::Ok,
            "machines have groups of their own and can be limited".to_owned(),
            "",
        ),
        Some(why) => (
            CheckStatus::Warn,
            format!("machines run without limits: {why}"),
            "run the node as root, on a host whose /sys/fs/cgroup can be written and has the controllers cpu, memory and pids",
        ),
    };
    Check {
        name: "control groups".into(),
        status,
        detail,
        fix: fix.into(),
    }
}

/// What has become of `--cpu-sched`, if it was given.
fn vcpus(node: &Node) -> Option<Check> {
    // a report of a node that does not look after vCPUs asks all QEMUs
    if node.core.options.cpu_sched == CpuSched::Off {
        return None;
    }
    let told = node.vcpus.report();
    let (status, fix) = match told.acting {
        SchedActing::Off => return None,
        SchedActing::Acts | SchedActing::Tries | SchedActing::DoesNotHelp => (CheckStatus::Ok, ""),
        SchedActing::Costly => (
            CheckStatus::Warn,
            "start the node without --cpu-sched: it would cost more than it brings",
        ),
        SchedActing::Refused => (
            CheckStatus::Warn,
            "run the node as root, or as the user that its QEMUs run as",
        ),
    };
    let detail = match told.why.as_str() {
        "" => "vCPUs of one machine are kept apart".to_owned(),
        why => why.to_owned(),
    };
    Some(Check {
        name: "--cpu-sched".into(),
        status,
        detail,
        fix: fix.into(),
    })
}

fn promises(node: &Node) -> Check {
    Check {
        name: "promises".into(),
        status: CheckStatus::Ok,
        detail: node.machines.resources.summary(),
        fix: String::new(),
    }
}

fn mount(node: &Node) -> Check {
    let mountpoint = node.images.mountpoint();
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
