//! Limits what a guest, or a foreign disk image, can make QEMU's programs reach on the host.
//!
//! QEMU's user network (libslirp) opens ordinary sockets of the host for its guest. 10.0.2.2 becomes 127.0.0.1, fec0::2
//! becomes ::1, and a link-local address stays what it is, such as that of the cloud's metadata service. QEMU has no
//! option against that. The alternatives:
//!
//! | way | why (not) |
//! | --- | --- |
//! | a library in QEMU that replaces `connect` and `sendto` | **chosen**: needs no privileges, no other process, no state outside of QEMU: it works if the node is not root, after the node has died, and in machines that were restored or adopted |
//! | nftables by QEMU's user id | root only, and a forwarded port's answers to 127.0.0.1 need connection tracking of all of the host's loopback |
//! | a BPF program on a control group | root only, and a group for each machine |
//! | the kernel asking another process (seccomp notification) | that process must live as long as QEMU, and every datagram must wait for it |
//! | a network namespace | root or user namespaces; forwarded ports and the host's routes would have to be rebuilt inside |
//!
//! It confines a *guest*. A QEMU that its guest has taken over can make the system calls itself; that one is confined by
//! its own user and QEMU's own sandbox, and can reach what any local user can reach.
//!
//! The library (`preload.rs`, its decisions in `rules.rs`) is compiled by `build.rs`, embedded here, and given to the
//! program as a sealed file in memory. A QEMU that runs without it (because it is linked statically, say) is ended at
//! once: see `is_in`.

#[allow(dead_code, reason = "the guard is what decides by them")]
mod rules;

pub use rules::METADATA_V4;

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::str::FromStr;

use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};

use crate::process::Mapping;

/// The compiled library.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guard.so"));
/// Its name in the list of a process's mappings.
const NAME: &str = "floe-guard";
/// Most ports that can be listed.
const PORTS_MAX: usize = 64;
/// Largest size of the current console log, in bytes. The log before it is as large, so that a console takes up to twice
/// this. QEMU's own log takes no more than this.
pub const CONSOLE_LOG_BYTES: u64 = 4 << 20;

/// What a guest on the user network can reach of its host's loopback addresses, of link-local addresses, and of its
/// cloud's metadata service. All other destinations are open to it, and so is the host's resolver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum HostAccess {
    /// Nothing.
    #[default]
    None,
    /// All ports.
    All,
    /// Only these ports.
    Ports(Vec<u16>),
}

/// The form that the guard and the machine's record use: `none`, `all`, or `80,443`.
impl fmt::Display for HostAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostAccess::None => f.write_str("none"),
            HostAccess::All => f.write_str("all"),
            HostAccess::Ports(ports) => {
                let words: Vec<String> = ports.iter().map(u16::to_string).collect();
                f.write_str(&words.join(","))
            }
        }
    }
}

impl FromStr for HostAccess {
    type Err = String;

    fn from_str(text: &str) -> Result<HostAccess, String> {
        match text {
            "none" => return Ok(HostAccess::None),
            "all" => return Ok(HostAccess::All),
            _ => {}
        }
        let port = |word: &str| {
            let port = word.parse().ok().filter(|port: &u16| *port > 0);
            port.ok_or_else(|| format!("{word:?} is no port: give numbers from 1 to 65535"))
        };
        let ports: Vec<u16> = text.split(',').map(port).collect::<Result<_, _>>()?;
        match ports.len() {
            ..=PORTS_MAX => Ok(HostAccess::Ports(ports)),
            many => Err(format!(
                "{many} ports of the host: name at most {PORTS_MAX}, or allow all of them"
            )),
        }
    }
}

impl From<HostAccess> for String {
    fn from(access: HostAccess) -> String {
        access.to_string()
    }
}

impl TryFrom<String> for HostAccess {
    type Error = String;

    fn try_from(text: String) -> Result<HostAccess, String> {
        text.parse()
    }
}

/// What the guard enforces in a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Confines a guest.
    Machine {
        /// What the guest can reach of the host.
        access: HostAccess,
        /// Largest size of the current console log, in bytes.
        log_bytes: u64,
    },
    /// Gives a tool its two files and `/dev/null`, nothing else.
    Tool,
}

impl Role {
    /// Returns the environment variables from which the guard takes its settings.
    fn environment(&self) -> Vec<(&'static str, String)> {
        match self {
            Role::Tool => vec![("FLOE_GUARD", "tool".into())],
            Role::Machine { access, log_bytes } => vec![
                ("FLOE_GUARD", "machine".into()),
                ("FLOE_GUARD_ALLOW", access.to_string()),
                ("FLOE_GUARD_LOG_BYTES", log_bytes.to_string()),
            ],
        }
    }
}

/// Loads the guard into the program that this process executes next. Only for the exec wrapper: it changes the
/// environment, so the process must have one thread.
pub(crate) fn install(role: &Role) -> io::Result<()> {
    // The program inherits the file's descriptor and opens the library through it, so QEMU's user needs no access to any
    // directory. Where the kernel forbids executing files in memory, the flag EXEC asks for permission.
    let flags = MemfdFlags::ALLOW_SEALING;
    let made = rustix::fs::memfd_create(NAME, flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(NAME, flags));
    let mut library = File::from(made?);
    library.write_all(LIBRARY)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&library, seals)?;
    let path = format!("/proc/self/fd/{}", library.as_raw_fd());
    let preload = [("LD_PRELOAD", path)];
    for (name, value) in role.environment().into_iter().chain(preload) {
        // SAFETY: the wrapper has one thread.
        unsafe { std::env::set_var(name, value) };
    }
    std::mem::forget(library); // keep it open for the program's dynamic linker
    Ok(())
}

/// Returns whether a process has loaded the guard.
pub(crate) fn is_in(mappings: &[Mapping]) -> bool {
    let name = format!("/memfd:{NAME} (deleted)");
    mappings
        .iter()
        .any(|mapping| mapping.path == name && mapping.permissions.contains('x'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_survives_its_text() {
        for access in [
            HostAccess::None,
            HostAccess::All,
            HostAccess::Ports(vec![80, 443]),
        ] {
            assert_eq!(access.to_string().parse(), Ok(access));
        }
        for bad in ["", "0", "80,", "65536", "ALL", "80 443", &"1,".repeat(65)] {
            assert!(bad.parse::<HostAccess>().is_err(), "{bad:?}");
        }
    }
}
