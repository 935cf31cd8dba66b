//! What floe needs of a host, and why an image can't run on one.

use crate::accel::Accel;

/// The default CPU model: old enough for every host that runs KVM today, and fully supported by TCG. It is never `host`:
/// such an image could run nowhere else.
pub const CPU_MODEL_DEFAULT: &str = "Nehalem";
/// The oldest supported QEMU version.
pub const QEMU_OLDEST: (u32, u32) = (7, 2);

/// Why an image can't run on this host, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// Another QEMU version would change ROMs and ACPI tables that the guest relies on.
    #[error(
        "the image was captured under QEMU {image} and this host has {host}: the running state can't be loaded; \
         install QEMU {image} here, run it on a host that has it, or start it cold from its disks (--cold)"
    )]
    QemuVersion {
        /// The version that the image was captured with.
        image: String,
        /// The version on this host.
        host: String,
    },
    /// QEMU on this host is too old for floe.
    #[error("QEMU {host} is too old: floe needs {}.{} or newer", QEMU_OLDEST.0, QEMU_OLDEST.1)]
    QemuTooOld {
        /// The version on this host.
        host: String,
    },
    /// QEMU on this host does not know the machine type.
    #[error(
        "the image needs machine type {image} and QEMU {qemu} on this host does not have it; \
         run it on a host whose QEMU has it, or start it cold from its disks (--cold)"
    )]
    MachineType {
        /// The machine type in the image.
        image: String,
        /// QEMU's version on this host.
        qemu: String,
    },
    /// QEMU on this host does not know the CPU model.
    #[error(
        "the image needs CPU model {model} and QEMU here does not know it; \
         run it on a host whose QEMU does, or start it cold from its disks with another model (--cold --cpu {CPU_MODEL_DEFAULT})"
    )]
    CpuModel {
        /// The model in the image.
        model: String,
    },
    /// The processor of this host lacks CPU flags that the guest has seen.
    #[error(
        "the guest uses CPU model {model} and this host lacks {}; run it on a host that has them, \
         or start it cold from its disks with a model that this host has (--cold --cpu {CPU_MODEL_DEFAULT})",
        .missing.join(", ")
    )]
    CpuFlags {
        /// The model in the image.
        model: String,
        /// The missing flags.
        missing: Vec<String>,
    },
    /// The image has a later hardware profile than this floe knows.
    #[error(
        "the image has hardware profile {image} and this floe knows profiles 1 to {known}; \
         update floe here, run it on a host with a newer one, or start it cold from its disks (--cold)"
    )]
    Profile {
        /// The profile in the image.
        image: u32,
        /// The newest profile that this floe knows.
        known: u32,
    },
    /// A processor's state under KVM can't be loaded under TCG, and vice versa.
    #[error(
        "the image was captured under {image} and this host has {host}; \
         run it on a host that has {image}, or start it cold from its disks (--cold)"
    )]
    Accel {
        /// The accelerator that the image was captured under.
        image: String,
        /// This host's accelerator, with the reason.
        host: Accel,
    },
}
