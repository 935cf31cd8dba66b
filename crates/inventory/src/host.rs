//! Checks what floe needs of a host: for `floe doctor` and the node's `GET /v1/doctor`.
//!
//! Every check says what it found and, if something is missing, which Debian package or command puts it right. The checks
//! leave nothing behind: whether a mount is allowed is seen by one, in a directory of its own, which is gone at once.

mod sched;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use floe_api::paths::Home;
use floe_api::{Check, CheckStatus, DoctorReport};
use floe_machine::QEMU_OLDEST;

use floe_ground::files::may_be_there;
use floe_ground::firmware::Uefi;
use floe_ground::programs::{find, find_admin};

/// The first Linux with FUSE_NOTIFY_RESEND, which a node needs to take over running machines from a killed node.
const KERNEL_TAKEOVER: (u32, u32) = (6, 9);
/// Free memory below which a machine of 512 MiB and its QEMU do not fit.
const MEMORY_LOW_BYTES: u64 = 1 << 30;
/// Number of machines below which a limit of descriptors is called low: forks of a hundred clones are nothing special.
const MACHINES_FEW: u64 = 200;
/// Free disk space below which an import of a small disk may fail.
const DISK_LOW_BYTES: u64 = 10 << 30;
/// Free disk space below which nothing can be stored.
const DISK_NONE_BYTES: u64 = 256 << 20;

/// Checks everything that can be checked without a node.
pub fn report(home: &Home) -> DoctorReport {
    DoctorReport {
        checks: vec![
            qemu(),
            acceleration(),
            qemu_img(),
            agent_tools(),
            uefi(),
            fuse(),
            mount(home.root()),
            user(home.root()),
            kernel(),
            sched::vcpus(),
            pagemap(),
            memory(),
            lending(),
            descriptors(),
            disk(home.root()),
        ],
    }
}

fn check(name: &str, status: CheckStatus, detail: impl Into<String>, fix: &str) -> Check {
    Check {
        name: name.into(),
        status,
        detail: detail.into(),
        fix: fix.into(),
    }
}

fn ok(name: &str, detail: impl Into<String>) -> Check {
    check(name, CheckStatus::Ok, detail, "")
}

/// Returns the first line that `program --version` prints.
fn version(program: &Path) -> Option<String> {
    let out = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().next().map(str::to_owned)
}

/// Returns the first `major.minor` in a text.
fn major_minor(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.')
        .find_map(|word| {
            let mut parts = word.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        })
}

fn qemu() -> Check {
    const FIX: &str = "apt install qemu-system-x86";
    let Some(program) = find("qemu-system-x86_64") else {
        let text = "qemu-system-x86_64 is not in the search path: no machine can run";
        return check("qemu", CheckStatus::Fail, text, FIX);
    };
    let line = version(&program).unwrap_or_default();
    match major_minor(&line) {
        None => {
            let text = format!("{} does not tell its version: {line:?}", program.display());
            check("qemu", CheckStatus::Fail, text, FIX)
        }
        Some(found) if found < QEMU_OLDEST => {
            let (major, minor) = QEMU_OLDEST;
            let text = format!("{line} is too old, {major}.{minor} or newer is needed");
            check("qemu", CheckStatus::Fail, text, FIX)
        }
        Some(_) => ok("qemu", format!("{line} ({})", program.display())),
    }
}

fn acceleration() -> Check {
    match floe_machine::accel::detect() {
        floe_machine::accel::Accel::Kvm => ok("kvm", "usable: guests run on the processor itself"),
        floe_machine::accel::Accel::Tcg { reason } => {
            let fix = if reason.contains("permission") || reason.contains("group kvm") {
                "usermod -aG kvm $USER, then log in again"
            } else if reason.contains("PVM") {
                "use a host whose KVM runs ordinary guests"
            } else {
                "modprobe kvm_intel or kvm_amd; in a virtual machine, turn nested virtualisation on"
            };
            let text = format!("{reason}; guests run under TCG, 10 to 50 times slower");
            check("kvm", CheckStatus::Warn, text, fix)
        }
    }
}

fn qemu_img() -> Check {
    const FIX: &str = "apt install qemu-utils";
    match find("qemu-img") {
        None => {
            let text = "not in the search path: only raw disks can be imported";
            check("qemu-img", CheckStatus::Warn, text, FIX)
        }
        Some(program) => ok("qemu-img", program.display().to_string()),
    }
}

/// What `floe image import --agent` needs, and nothing else.
fn agent_tools() -> Check {
    let mut needed = ["debugfs", "e2fsck"].into_iter();
    match needed.find(|name| find_admin(name).is_none()) {
        Some(name) => {
            let text = format!(
                "{name} is not in the search path: only floe image import --agent needs it"
            );
            check(
                "e2fsprogs",
                CheckStatus::Warn,
                text,
                "apt install e2fsprogs",
            )
        }
        None => ok("e2fsprogs", "debugfs and e2fsck are there"),
    }
}

fn uefi() -> Check {
    match Uefi::of_this_host() {
        Some(uefi) => ok("uefi", uefi.code.display().to_string()),
        None => check(
            "uefi",
            CheckStatus::Warn,
            "no firmware found: machines can't be started with --firmware uefi",
            "apt install ovmf",
        ),
    }
}

fn fuse() -> Check {
    let open = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    match open {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            let text = format!("/dev/fuse cannot be opened: {e}");
            check(
                "fuse",
                CheckStatus::Fail,
                text,
                "chmod 666 /dev/fuse, or run as root",
            )
        }
        Err(e) => {
            let text = format!("/dev/fuse cannot be opened: {e}");
            let fix = "modprobe fuse; in a container, give it the device /dev/fuse";
            check("fuse", CheckStatus::Fail, text, fix)
        }
        Ok(_) if !rustix::process::geteuid().is_root() && find("fusermount3").is_none() => {
            let text = "/dev/fuse is there, but fusermount3 is not: only root can mount";
            check("fuse", CheckStatus::Fail, text, "apt install fuse3")
        }
        Ok(_) => ok("fuse", "/dev/fuse can be opened"),
    }
}

/// Tries a mount where the state directory is: AppArmor's profiles name directories.
fn mount(home: &Path) -> Check {
    const NAME: &str = "mounting";
    let untried = |why: String| {
        let text = format!("not tried in {}: {why}", home.display());
        let fix = "run floe doctor as the user who starts the node";
        check(NAME, CheckStatus::Warn, text, fix)
    };
    let Some(place) = home.ancestors().find(|path| may_be_there(path)) else {
        return untried("none of the directories on the way to it is there".into());
    };
    let dir = tempfile::Builder::new()
        .prefix(".floe-doctor-")
        .tempdir_in(place);
    let dir = match dir {
        Ok(dir) => dir,
        Err(error) => return untried(error.to_string()),
    };
    match floe_mount::try_mount(dir.path()) {
        Ok(()) => ok(NAME, format!("a mount in {} works", place.display())),
        Err(floe_mount::MountError::Cannot { reason, fix, .. }) => {
            // what is to be allowed is the node's own mountpoint, not the directory that this was tried in
            let mountpoint = Home::at(home).mountpoint().display().to_string();
            let fix = fix.replace(&dir.path().display().to_string(), &mountpoint);
            let text = format!("cannot mount in {}: {reason}", place.display());
            check(NAME, CheckStatus::Fail, text, &fix)
        }
        Err(error) => {
            let text = error.to_string();
            check(
                NAME,
                CheckStatus::Fail,
                text,
                "install the package fuse3, or run as root",
            )
        }
    }
}

/// Returns the directory on the way to `home` that the machines' own users can't traverse, if there are such users and such a
/// directory.
pub(crate) fn impassable(home: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    const OTHERS_PASS: u32 = 0o001;
    let closed = |dir: &&Path| {
        std::fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & OTHERS_PASS == 0)
    };
    let root = rustix::process::geteuid().is_root();
    let dir = home.ancestors().filter(closed).last()?;
    root.then(|| dir.to_owned())
}

fn user(home: &Path) -> Check {
    if let Some(dir) = impassable(home) {
        let text = format!(
            "the machines' own users can't pass {} on the way to {}",
            dir.display(),
            home.display()
        );
        let fix = format!(
            "chmod o+x {}, or name another place with FLOE_HOME",
            dir.display()
        );
        return check("user", CheckStatus::Fail, text, &fix);
    }
    if rustix::process::geteuid().is_root() {
        return ok("user", "root: each machine's QEMU gets a user of its own");
    }
    let text = format!(
        "user {}: works, but every machine's QEMU runs as this user",
        rustix::process::geteuid().as_raw()
    );
    let fix = "run the node as root (systemctl start floe-node) to keep machines apart";
    check("user", CheckStatus::Warn, text, fix)
}

fn kernel() -> Check {
    // the kernel's own text: it can always be read
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    if major_minor(release).is_some_and(|found| found < KERNEL_TAKEOVER) {
        let (major, minor) = KERNEL_TAKEOVER;
        let text = format!(
            "Linux {release}: requests in flight are lost when a node is killed ({major}.{minor} keeps them)"
        );
        let fix = "apt install -t bookworm-backports linux-image-amd64";
        return check("kernel", CheckStatus::Warn, text, fix);
    }
    ok("kernel", format!("Linux {release}"))
}

fn pagemap() -> Check {
    match std::fs::File::open("/proc/self/pagemap") {
        Ok(_) => ok("pagemap", "a capture can tell which pages a guest wrote"),
        Err(e) => {
            let text = format!("/proc/self/pagemap: {e}; running machines cannot be captured");
            let fix = "use a kernel with CONFIG_PROC_PAGE_MONITOR, and mount /proc";
            check("pagemap", CheckStatus::Fail, text, fix)
        }
    }
}

fn memory() -> Check {
    let Some(memory) = crate::resources::host::memory() else {
        let text = "/proc/meminfo does not tell what is free";
        return check("memory", CheckStatus::Warn, text, "mount /proc");
    };
    let free = memory.available_bytes;
    let detail = format!(
        "{} of {} available",
        floe_api::size_text(free),
        floe_api::size_text(memory.total_bytes)
    );
    if free < MEMORY_LOW_BYTES {
        let fix = "end other programs, or give machines less (--memory 256M)";
        return check("memory", CheckStatus::Warn, detail, fix);
    }
    ok("memory", detail)
}

/// Whether the kernel sets a machine's whole memory aside at its start.
fn lending() -> Check {
    const NAME: &str = "overcommit";
    match crate::resources::host::commit_bytes() {
        None => ok(NAME, "the kernel lends memory: clones take what they write"),
        Some(left) => {
            let text = format!(
                "vm.overcommit_memory is 2: each machine and clone needs all of its memory at its start, and {} are left",
                floe_api::size_text(left)
            );
            check(NAME, CheckStatus::Warn, text, crate::resources::COMMIT_FIX)
        }
    }
}

/// For how many machines a node that is started from here has descriptors. A node raises its limit as far as it may.
fn descriptors() -> Check {
    use crate::resources::host::{NODE_DESCRIPTORS, descriptors_of};
    const NAME: &str = "open files";
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let Some(most) = most else {
        return ok(NAME, "not limited");
    };
    let machines = most.saturating_sub(NODE_DESCRIPTORS) / descriptors_of(1);
    let text = format!(
        "at most {most}: a node that is started from here has room for {machines} machines or clones"
    );
    match machines {
        0 => check(
            NAME,
            CheckStatus::Fail,
            text,
            crate::resources::DESCRIPTORS_FIX,
        ),
        1..MACHINES_FEW => check(
            NAME,
            CheckStatus::Warn,
            text,
            crate::resources::DESCRIPTORS_FIX,
        ),
        _ => ok(NAME, text),
    }
}

fn disk(home: &Path) -> Check {
    // before the first start there is no state directory: its nearest existing ancestor is on the same file system
    let Some(existing) = home.ancestors().find(|path| may_be_there(path)) else {
        let text = format!("{} has no ancestor that exists", home.display());
        return check(
            "disk",
            CheckStatus::Fail,
            text,
            "set FLOE_HOME to a directory",
        );
    };
    let stat = match rustix::fs::statvfs(existing) {
        Ok(stat) => stat,
        Err(e) => {
            let text = format!("{}: {e}", existing.display());
            return check(
                "disk",
                CheckStatus::Fail,
                text,
                "set FLOE_HOME to a readable directory",
            );
        }
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let detail = format!("{} free for {}", floe_api::size_text(free), home.display());
    let fix = "make room (floe cache gc), or set FLOE_HOME to a larger disk";
    match free {
        0..DISK_NONE_BYTES => check("disk", CheckStatus::Fail, detail, fix),
        DISK_NONE_BYTES..DISK_LOW_BYTES => check("disk", CheckStatus::Warn, detail, fix),
        _ => ok("disk", detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        let line = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)";
        assert_eq!(major_minor(line), Some((7, 2)));
        assert_eq!(major_minor("6.18.5-cloud-amd64"), Some((6, 18)));
        assert_eq!(major_minor("unknown"), None);
    }

    #[test]
    fn whatever_is_wrong_comes_with_its_remedy() {
        let dir = tempfile::tempdir().unwrap();
        for check in report(&Home::at(dir.path().join("not/yet/there"))).checks {
            assert!(!check.detail.is_empty(), "{check:?}");
            assert_eq!(
                check.status == CheckStatus::Ok,
                check.fix.is_empty(),
                "{check:?}"
            );
        }
    }
}
