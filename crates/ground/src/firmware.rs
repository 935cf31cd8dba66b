//! Where this host has a UEFI firmware for machines.

use crate::error::{NodeError, refused};
use crate::files::may_be_there;
use std::path::{Path, PathBuf};

/// A UEFI firmware's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uefi {
    /// Its code.
    pub code: PathBuf,
    /// Its variables as they are before a machine's first start.
    pub vars: PathBuf,
}

/// Largest file in bytes: both together fill at most what QEMU maps below 4 GiB.
pub const BYTES_MAX: u64 = 8 << 20;

/// Code and variables of OVMF without secure boot, as distributions install them.
const PLACES: [(&str, &str); 5] = [
    // Debian, Ubuntu
    (
        "/usr/share/OVMF/OVMF_CODE_4M.fd",
        "/usr/share/OVMF/OVMF_VARS_4M.fd",
    ),
    (
        "/usr/share/OVMF/OVMF_CODE.fd",
        "/usr/share/OVMF/OVMF_VARS.fd",
    ),
    // Fedora
    (
        "/usr/share/edk2/ovmf/OVMF_CODE.fd",
        "/usr/share/edk2/ovmf/OVMF_VARS.fd",
    ),
    // Arch
    (
        "/usr/share/edk2/x64/OVMF_CODE.4m.fd",
        "/usr/share/edk2/x64/OVMF_VARS.4m.fd",
    ),
    // openSUSE
    (
        "/usr/share/qemu/ovmf-x86_64-4m-code.bin",
        "/usr/share/qemu/ovmf-x86_64-4m-vars.bin",
    ),
];

impl Uefi {
    /// Returns this host's firmware, if it has one.
    pub fn of_this_host() -> Option<Uefi> {
        let places = PLACES
            .iter()
            .map(|(code, vars)| (Path::new(code), Path::new(vars)));
        let mut there = places.filter(|(code, vars)| may_be_there(code) && may_be_there(vars));
        there.next().map(|(code, vars)| Uefi {
            code: code.to_owned(),
            vars: vars.to_owned(),
        })
    }

    /// Returns this host's firmware; an error says which package has it.
    pub fn needed() -> Result<Uefi, NodeError> {
        Uefi::of_this_host().ok_or_else(|| {
            refused(
                "this host has no UEFI firmware for machines",
                "apt install ovmf (or your distribution's package of that firmware)",
            )
        })
    }
}
