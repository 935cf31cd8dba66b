//! Restarts services that have something of the other machine in their memory, so that they read what is in the files now.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The journal writes under the machine id that it has read at its start, and clients of DHCP say who they are by it; servers of
/// SSH have read their keys.
const UNITS: [&str; 6] = [
    "systemd-journald.service",
    "systemd-networkd.service",
    "NetworkManager.service",
    "ssh.service",
    "sshd.service",
    "dropbear.service",
];
/// Services that, when they restart, would take away an address that they have not set.
const NETWORKS: [&str; 2] = ["systemd-networkd.service", "NetworkManager.service"];
/// The program that restarts them.
const SYSTEMCTL: [&str; 2] = ["usr/bin/systemctl", "bin/systemctl"];

/// Restarts those that run, under systemd; elsewhere OpenSSH's server is told to read its keys again.
pub(super) fn begin_anew(root: &Path) -> Result<(), String> {
    let systemd = root.join("run/systemd/system");
    if !systemd.try_exists().map_err(super::said(&systemd))? {
        reload_ssh(root);
        return Ok(());
    }
    let systemctl = SYSTEMCTL.map(|place| root.join(place));
    // one that can't be looked at can't be started either, which is told
    let is_there = |place: &PathBuf| place.try_exists().unwrap_or(true);
    let Some(systemctl) = systemctl.into_iter().find(is_there) else {
        return Err("systemd runs here, and there is no systemctl to restart services with".into());
    };
    let has_address = has_address(root);
    let runs = |unit: &&str| {
        let running = root.join(format!("run/systemd/units/invocation:{unit}"));
        fs::symlink_metadata(running).is_ok() && !(has_address && NETWORKS.contains(unit))
    };
    let units: Vec<&str> = UNITS.into_iter().filter(runs).collect();
    if units.is_empty() {
        return Ok(());
    }
    let done = Command::new(&systemctl)
        .arg("try-restart")
        .args(&units)
        .stdin(Stdio::null())
        .output()
        .map_err(super::said(&systemctl))?;
    if done.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&done.stderr);
    Err(format!(
        "systemctl try-restart {}: {}",
        units.join(" "),
        why.trim()
    ))
}

/// Whether this machine has got its address from its node: then no DHCP client has one.
fn has_address(root: &Path) -> bool {
    let identity = root.join(crate::files::IDENTITY_PATH.trim_start_matches('/'));
    let identity = fs::read_to_string(identity).unwrap_or_default();
    identity.lines().any(|line| line.starts_with("address="))
}

fn reload_ssh(root: &Path) {
    let pid = fs::read_to_string(root.join("run/sshd.pid"));
    let pid = pid.ok().and_then(|pid| pid.trim().parse().ok());
    let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else {
        return;
    };
    let name = fs::read_to_string(format!("/proc/{pid}/comm", pid = pid.as_raw_nonzero()));
    if name.is_ok_and(|name| name.trim() == "sshd") {
        // one that has ended meanwhile reads them when it starts
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::HUP);
    }
}
