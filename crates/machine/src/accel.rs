//! Determines which accelerator works on this host.
//!
//! It proves nothing that `/dev/kvm` opens, or even that a VM and a vCPU can be created: under nested PVM all of that
//! works, and an ordinary guest kernel then spins forever. So that known case is recognised by its kernel module.

use std::fmt;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde::{Deserialize, Serialize};

/// How QEMU runs the guest's instructions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    /// The processor executes them.
    Kvm,
    /// QEMU translates them (TCG), which is some 10 to 50 times slower.
    Tcg {
        /// Why KVM is not used, for `floe doctor` and the run's first line.
        reason: String,
    },
}

impl Accel {
    /// Returns the group in which a machine's own user must be to open /dev/kvm; `None` if it needs none.
    pub fn device_group(&self) -> Option<u32> {
        match self {
            Accel::Kvm => std::fs::metadata(DEVICE).ok().and_then(|device| {
                let mode = device.permissions().mode();
                (mode & OTHERS != OTHERS).then_some(device.gid())
            }),
            Accel::Tcg { .. } => None,
        }
    }

    /// Returns QEMU's name of the accelerator, as it is recorded in an image's configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Accel::Kvm => "kvm",
            Accel::Tcg { .. } => "tcg",
        }
    }
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Accel::Kvm => f.write_str("KVM"),
            Accel::Tcg { reason } => write!(f, "TCG, slow: {reason}"),
        }
    }
}

const DEVICE: &str = "/dev/kvm";
/// Reading and writing, for the device's group and for everybody else.
const GROUP: u32 = 0o060;
const OTHERS: u32 = 0o006;
/// The group of root.
const ROOT_GROUP: u32 = 0;
const KVM_GET_API_VERSION: libc::c_ulong = 0xae00;
const KVM_CREATE_VM: libc::c_ulong = 0xae01;
/// The only version of the KVM API since Linux 2.6.22.
const KVM_API_VERSION: libc::c_int = 12;

/// Finds the best accelerator that can run an unmodified guest on this host.
pub fn detect() -> Accel {
    match kvm_trouble() {
        None => Accel::Kvm,
        Some(reason) => Accel::Tcg { reason },
    }
}

fn kvm_trouble() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("this processor is not x86-64".into());
    }
    // one that can't be looked at may be there
    if std::path::Path::new("/sys/module/kvm_pvm")
        .try_exists()
        .unwrap_or(true)
    {
        return Some(
            "KVM on this host is nested PVM, which can't run unmodified guest kernels".into(),
        );
    }
    let kvm = match std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(DEVICE)
    {
        Ok(kvm) => kvm,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            return Some(
                "/dev/kvm is there but this user may not open it: add the user to group kvm".into(),
            );
        }
        Err(e) => return Some(format!("/dev/kvm can't be opened ({e})")),
    };
    if rustix::process::geteuid().is_root() && !is_for_other_users(&kvm) {
        return Some(
            "/dev/kvm is for root alone, and each machine's QEMU runs as a user of its own: let its group use it \
             (chgrp kvm /dev/kvm && chmod 660 /dev/kvm)"
                .into(),
        );
    }
    // SAFETY: both requests take no pointer; the descriptor is open for the length of the calls.
    let version = unsafe { libc::ioctl(kvm.as_raw_fd(), KVM_GET_API_VERSION, 0) };
    if version != KVM_API_VERSION {
        return Some(format!(
            "/dev/kvm speaks version {version} of its interface, not {KVM_API_VERSION}"
        ));
    }
    // SAFETY: as above; the returned descriptor is ours alone.
    let vm = unsafe { libc::ioctl(kvm.as_raw_fd(), KVM_CREATE_VM, 0) };
    if vm < 0 {
        return Some(format!(
            "KVM can't create a VM ({})",
            std::io::Error::last_os_error()
        ));
    }
    // SAFETY: `vm` is the descriptor that was just created and is owned by nobody else.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(vm) });
    None
}

/// Returns whether a user who is not root can use the device, if need be as a member of its group.
fn is_for_other_users(kvm: &std::fs::File) -> bool {
    kvm.metadata().is_ok_and(|device| {
        let mode = device.permissions().mode();
        let group_may = mode & GROUP == GROUP && device.gid() != ROOT_GROUP;
        mode & OTHERS == OTHERS || group_may
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_pvm_is_never_taken_for_kvm() {
        let accel = detect();
        if std::path::Path::new("/sys/module/kvm_pvm").exists() {
            assert_eq!(accel.name(), "tcg");
            assert!(
                accel.to_string().contains("PVM"),
                "the reason is told: {accel}"
            );
        } else if !std::path::Path::new("/dev/kvm").exists() {
            assert!(
                accel.to_string().contains("/dev/kvm"),
                "the reason is told: {accel}"
            );
        }
    }
}
