//! The description of a machine: everything that the caller decides.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use floe_image::MachineConfig;
use serde::{Deserialize, Serialize};

use crate::accel::Accel;
use crate::cgroup::Group;
use crate::error::MachineError;
use crate::exec::User;
use crate::guard::{CONSOLE_LOG_BYTES, HostAccess};
use crate::profile::Profile;

/// Default RAM in bytes: 1 GiB.
pub const MEMORY_BYTES_DEFAULT: u64 = 1 << 30;
/// Smallest RAM in bytes: with less, SeaBIOS and a Linux kernel don't fit.
pub const MEMORY_BYTES_MIN: u64 = 32 << 20;
/// Largest RAM in bytes: 1 TiB, the physical address space of the default CPU model.
pub const MEMORY_BYTES_MAX: u64 = 1 << 40;
/// Most vCPUs: the limit of the q35 machine types without an interrupt remapper.
pub const CPUS_MAX: u32 = 255;
/// Most disks: the slots of the root bus that floe gives out.
pub const DISKS_MAX: usize = 20;
/// Most bytes of a machine's name.
pub const NAME_BYTES_MAX: usize = 64;
/// Most bytes of the kernel's command line: Linux's own limit on x86.
pub const CMDLINE_BYTES_MAX: usize = 2048;

/// TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A port of the host that is forwarded to a port of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortForward {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The address of the host to listen on. IPv4 only, as QEMU's user network forwards nothing else.
    pub host_address: IpAddr,
    /// The host's port.
    pub host_port: u16,
    /// The guest's port.
    pub guest_port: u16,
}

impl PortForward {
    /// Makes a TCP forward from the host's loopback address.
    pub fn tcp(host_port: u16, guest_port: u16) -> PortForward {
        PortForward {
            protocol: Protocol::Tcp,
            host_address: IpAddr::from([127, 0, 0, 1]),
            host_port,
            guest_port,
        }
    }

    /// Returns the host's side in QEMU's notation: `tcp:127.0.0.1:8080`.
    pub(crate) fn host_side(&self) -> String {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        format!("{protocol}:{}:{}", self.host_address, self.host_port)
    }
}

/// The whole forward in QEMU's notation: `tcp:127.0.0.1:8080-:80`.
impl fmt::Display for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-:{}", self.host_side(), self.guest_port)
    }
}

/// The host's end of a machine's network card: a tap device without a virtio header. The caller opens it, because QEMU
/// has no privileges to do so. Without that header the card offers the guest the same features as on QEMU's user network,
/// so that a state that was saved on one can be restored on the other.
#[derive(Debug, Clone)]
pub struct Tap(Arc<OwnedFd>);

impl Tap {
    /// Wraps the descriptor of a tap device.
    pub fn new(fd: OwnedFd) -> Tap {
        Tap(Arc::new(fd))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PartialEq for Tap {
    fn eq(&self, other: &Tap) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Tap {}

/// The kernel that QEMU loads itself. Without one, the firmware boots the first disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// The kernel file, readable by the machine's user.
    pub kernel: PathBuf,
    /// The initial RAM disk file, readable by the machine's user.
    pub initrd: Option<PathBuf>,
}

/// The programs that run machines on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// The QEMU program.
    pub qemu: PathBuf,
    /// The command that passes its further arguments to [`exec::run`](crate::exec::run): `["/usr/bin/floe",
    /// "exec-qemu"]`.
    pub wrapper: Vec<OsString>,
}

impl Programs {
    /// Returns Debian's QEMU, and this program itself with the subcommand `exec-qemu`.
    pub fn of_this_host() -> std::io::Result<Programs> {
        Ok(Programs {
            qemu: "/usr/bin/qemu-system-x86_64".into(),
            wrapper: vec![std::env::current_exe()?.into(), "exec-qemu".into()],
        })
    }
}

/// Everything about a machine that the caller decides. [`Spec::new`] sets sensible values for all but the paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// 1 to 64 characters of `a-z A-Z 0-9 . _ -`, beginning with a letter or digit.
    pub name: String,
    /// The machine's own directory; created if missing. Sockets and logs are in its subdirectory `run/`, the record is
    /// `machine.json`.
    pub dir: PathBuf,
    /// What the guest sees. At a cold start, empty fields get defaults; at a restore, it must be the image's
    /// configuration.
    pub config: MachineConfig,
    /// The hardware profile of a cold start; a restore uses the image's.
    pub profile: Profile,
    /// One file for each of `config.disks`, read and written with O_DIRECT by the machine's user.
    pub disks: Vec<PathBuf>,
    /// Kernel and initrd for a direct boot. Not used at a restore, where QEMU would read both files completely.
    pub boot: Option<Boot>,
    /// Ports of the host that are forwarded to the guest.
    pub forwards: Vec<PortForward>,
    /// What the guest can reach of the host over QEMU's user network.
    pub host_access: HostAccess,
    /// Largest size of the current console log, in bytes; the log before it is as large. QEMU's own log is no larger either.
    pub console_log_bytes: u64,
    /// Whether the network leads nowhere, neither to the host nor beyond: for a copy that must not be noticed.
    pub isolated: bool,
    /// Whether the network card starts without a cable, until [`Machine::set_network`](crate::Machine::set_network)
    /// connects one.
    pub network_down: bool,
    /// A tap device to which the network card is connected instead of QEMU's user network. Only the latter supports
    /// forwards.
    pub tap: Option<Tap>,
    /// KVM or TCG, normally from [`accel::detect`](crate::accel::detect).
    pub accel: Accel,
    /// Largest size in MiB of the translated code that an emulated guest keeps; with `None` QEMU decides (an eighth of
    /// the host's memory, at most 1024).
    pub emulator_cache_mib: Option<u32>,
    /// The machine's control group; with `None`, QEMU runs in the caller's.
    pub cgroup: Option<Group>,
    /// The machine's own user, normally from [`User::for_machine`]; with `None`, QEMU runs as the caller.
    pub user: Option<User>,
    /// The programs that run the machine.
    pub programs: Programs,
}

impl Spec {
    /// Returns the spec of a machine without disks or forwards that runs as the caller's user.
    pub fn new(
        name: impl Into<String>,
        dir: impl Into<PathBuf>,
        accel: Accel,
        programs: Programs,
    ) -> Spec {
        Spec {
            name: name.into(),
            dir: dir.into(),
            config: MachineConfig::default(),
            profile: Profile::Growable,
            disks: Vec::new(),
            boot: None,
            forwards: Vec::new(),
            host_access: HostAccess::None,
            console_log_bytes: CONSOLE_LOG_BYTES,
            isolated: false,
            network_down: false,
            tap: None,
            accel,
            emulator_cache_mib: None,
            cgroup: None,
            user: None,
            programs,
        }
    }

    /// Refuses a spec that can't be carried out, before anything is started.
    pub fn check(&self) -> Result<(), MachineError> {
        let refuse = |what: String| Err(MachineError::Spec { what });
        let mut letters = self.name.bytes();
        let good_start = letters.next().is_some_and(|b| b.is_ascii_alphanumeric());
        if !good_start
            || self.name.len() > NAME_BYTES_MAX
            || !letters.all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        {
            return refuse(format!(
                "name {:?} must be 1 to {NAME_BYTES_MAX} of a-z A-Z 0-9 . _ - and begin with a letter or digit",
                self.name
            ));
        }
        if self.disks.len() != self.config.disks.len() {
            return refuse(format!(
                "{} disks are configured, {} files are given",
                self.config.disks.len(),
                self.disks.len()
            ));
        }
        if let Some(bad) = self.forwards.iter().find(|f| !f.host_address.is_ipv4()) {
            return refuse(format!(
                "forward {bad}: QEMU's user network listens on IPv4 addresses only; use 127.0.0.1 or 0.0.0.0"
            ));
        }
        if self.tap.is_some() && !self.forwards.is_empty() {
            return refuse(
                "forwards belong to QEMU's user network, and the machine is on another".into(),
            );
        }
        let mut paths = self.disks.iter().chain(
            self.boot
                .iter()
                .flat_map(|b| std::iter::once(&b.kernel).chain(&b.initrd)),
        );
        if let Some(bad) = paths.find(|p| !p.is_absolute()) {
            return refuse(format!(
                "path {} must be absolute: QEMU runs in a directory of its own",
                bad.display()
            ));
        }
        Ok(())
    }
}
