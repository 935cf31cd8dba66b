//! What floe needs of a host, and which package has it.

use crate::{
    api::{Check, CheckStatus, DoctorReport},
    node::Node,
};
use std::{path::Path, process::Command};

/// Free space below which a node will soon stand still, bytes: one captured machine and its overlay.
const FREE_BYTES_LOW: u64 = 2 << 30;

/// Looks at the host; with a node also at what the node sees. Needs no node, so that it can tell why there is none.
pub fn examine(node: Option<&Node>) -> DoctorReport {
    let home = node.map_or_else(crate::paths::Home::from_env, |node| node.home.clone());
    let mut checks = vec![
        qemu(),
        tool(
            "qemu-img",
            "qemu-utils",
            "importing qcow2, vmdk and vdi; raw works without",
        ),
        accel(),
        fuse(),
    ];
    if !rustix::process::geteuid().is_root() {
        checks.push(tool("fusermount3", "fuse3", "mounting without being root"));
        checks.push(check(
            "user",
            CheckStatus::Warn,
            "floe is not root: machines run as this user, not as users of their own",
            "run the node as root (systemctl start floe-node)",
        ));
    }
    checks.push(pagemap());
    checks.push(space(home.root()));
    if let Some(node) = node {
        checks.push(node_check(node));
    }
    DoctorReport { checks }
}

fn check(name: &str, status: CheckStatus, detail: impl Into<String>, fix: &str) -> Check {
    Check {
        name: name.into(),
        status,
        detail: detail.into(),
        fix: fix.into(),
    }
}

fn qemu() -> Check {
    match first_line("qemu-system-x86_64", "--version") {
        None => check(
            "qemu",
            CheckStatus::Fail,
            "qemu-system-x86_64 is not installed",
            "apt install qemu-system-x86",
        ),
        Some(line) => match qemu_version(&line) {
            Some(version) if version >= floe_machine::QEMU_OLDEST => {
                check("qemu", CheckStatus::Ok, line, "")
            }
            _ => check(
                "qemu",
                CheckStatus::Fail,
                format!("{line}: too old, 7.2 is needed"),
                "upgrade qemu-system-x86",
            ),
        },
    }
}

/// `QEMU emulator version 7.2.15 (Debian ...)`.
fn qemu_version(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line
        .split("version ")
        .nth(1)?
        .split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn tool(name: &str, package: &str, used_for: &str) -> Check {
    match first_line(name, "--version") {
        Some(line) => check(name, CheckStatus::Ok, line, ""),
        None => check(
            name,
            CheckStatus::Warn,
            format!("not installed; it is needed for {used_for}"),
            &format!("apt install {package}"),
        ),
    }
}

fn first_line(program: &str, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .next()
        .map(str::to_owned)
}

fn accel() -> Check {
    match floe_machine::accel::detect() {
        floe_machine::Accel::Kvm => check("acceleration", CheckStatus::Ok, "KVM", ""),
        floe_machine::Accel::Tcg { reason } => check(
            "acceleration",
            CheckStatus::Warn,
            format!("{reason}; guests are emulated, 10 to 30 times slower"),
            "enable virtualisation in the firmware, or nested virtualisation in the hypervisor; modprobe kvm_intel or kvm_amd",
        ),
    }
}

fn fuse() -> Check {
    match std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
    {
        Ok(_) => check("fuse", CheckStatus::Ok, "/dev/fuse can be opened", ""),
        Err(error) => check(
            "fuse",
            CheckStatus::Fail,
            format!("/dev/fuse: {error}"),
            "modprobe fuse; in a container give it the device /dev/fuse and CAP_SYS_ADMIN",
        ),
    }
}

fn pagemap() -> Check {
    match std::fs::File::open("/proc/self/pagemap") {
        Ok(_) => check("pagemap", CheckStatus::Ok, "dirty pages can be found", ""),
        Err(error) => check(
            "pagemap",
            CheckStatus::Fail,
            format!("/proc/self/pagemap: {error}; machines can't be captured"),
            "use a kernel with CONFIG_PROC_PAGE_MONITOR",
        ),
    }
}

fn space(home: &Path) -> Check {
    let existing = home
        .ancestors()
        .find(|dir| dir.exists())
        .unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(existing) {
        Err(error) => check(
            "space",
            CheckStatus::Warn,
            format!("{}: {error}", existing.display()),
            "",
        ),
        Ok(fs) => {
            let free = fs.f_bavail * fs.f_frsize;
            let detail = format!("{} GiB free for {}", free >> 30, home.display());
            let (status, fix) = match free {
                0..FREE_BYTES_LOW => (
                    CheckStatus::Warn,
                    "floe cache gc, or set FLOE_HOME to a larger disk",
                ),
                _ => (CheckStatus::Ok, ""),
            };
            check("space", status, detail, fix)
        }
    }
}

fn node_check(node: &Node) -> Check {
    let mountpoint = node.mountpoint();
    match std::fs::read_dir(mountpoint.join("images")) {
        Ok(_) => check(
            "mount",
            CheckStatus::Ok,
            format!("{} answers", mountpoint.display()),
            "",
        ),
        Err(error) => check(
            "mount",
            CheckStatus::Fail,
            format!("{}: {error}", mountpoint.display()),
            "restart the node; if it stays so, stop the machines and umount it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_distributions_are_understood() {
        assert_eq!(
            qemu_version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"),
            Some((7, 2))
        );
        assert_eq!(qemu_version("QEMU emulator version 10.0.2"), Some((10, 0)));
        assert_eq!(qemu_version("bash: qemu: not found"), None);
    }

    #[test]
    fn whatever_is_wrong_comes_with_its_remedy() {
        for check in examine(None).checks {
            assert!(!check.detail.is_empty(), "{}", check.name);
            assert_eq!(
                check.status == CheckStatus::Ok,
                check.fix.is_empty(),
                "{check:?}"
            );
        }
    }
}
