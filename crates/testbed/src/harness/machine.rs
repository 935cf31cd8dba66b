//! The machine on which a figure was measured, without which the figure means nothing.
use serde::{Deserialize, Serialize};
use std::process::Command;

/// The properties of the machine that matter for the figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Number of cores that this process may use.
    pub cores: usize,
    /// The processor's name.
    pub cpu: String,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// QEMU's version, if it is installed.
    pub qemu: Option<String>,
    /// How guests run here: `kvm` or `tcg`, with the reason.
    pub accelerator: String,
    /// Whether floe was built with optimisation; figures of other builds are meaningless.
    pub optimised: bool,
}

impl MachineInfo {
    /// Examines this machine.
    pub fn here() -> MachineInfo {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        let qemu = Command::new("qemu-system-x86_64")
            .arg("--version")
            .output()
            .ok();
        let memory_kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        MachineInfo {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into()),
            memory_mib: memory_kib.unwrap_or(0) / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
            qemu: qemu.and_then(|output| {
                Some(
                    String::from_utf8_lossy(&output.stdout)
                        .lines()
                        .next()?
                        .to_string(),
                )
            }),
            accelerator: crate::guest::accelerator(),
            optimised: !cfg!(debug_assertions),
        }
    }
}
