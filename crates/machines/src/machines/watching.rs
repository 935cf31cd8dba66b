//! What users watch: whether a machine does what somebody waits for, and what machines use of their host.

use super::Machines;
use floe_api::{MachineInfo, MachineStatus, MachineUsage, PauseReason, UsageList, WaitFor};
use floe_ground::error::{NodeError, failed};
use floe_inventory::inventory::{Entry, lifecycle::Phase, now_us};

impl Machines {
    /// Returns the machine as it is now, if it does what is waited for. A machine that was removed has stopped.
    pub fn reached(&self, entry: &Entry, what: WaitFor) -> Option<MachineInfo> {
        // looked at first: what is shown of a machine that ends meanwhile may still be that its QEMU stands still
        let over =
            matches!(entry.phase(), Phase::Stopped | Phase::Removing) && entry.state().vm.is_none();
        let info = self.info_of(entry);
        let reached = match what {
            WaitFor::Stopped => {
                let ended = [MachineStatus::Stopped, MachineStatus::Failed];
                over && ended.contains(&info.status)
            }
            WaitFor::Running => runs(&info),
            WaitFor::Paused => {
                let lasting = [
                    PauseReason::User,
                    PauseReason::Orphaned,
                    PauseReason::Disk,
                    PauseReason::Source,
                ];
                let paused = info.status == MachineStatus::Paused;
                paused && info.paused_for.iter().any(|why| lasting.contains(why))
            }
            WaitFor::Parked => info.status == MachineStatus::Parked,
            WaitFor::Answers => runs(&info) && entry.state().guest.agent,
        };
        reached.then_some(info)
    }

    /// Returns the error for somebody who has waited so many seconds in vain for a machine to do something. An agent that is silent because
    /// pages of its guest are still to come has an error of its own.
    pub fn not_reached(&self, name: &str, what: WaitFor, limit_s: u64) -> NodeError {
        let entry = self.inventory.get(name).ok();
        let missing = entry
            .filter(|_| what == WaitFor::Answers)
            .and_then(|entry| entry.still_fetches(entry.waits()));
        let told = format!("machine {name} did not do what it was waited for within {limit_s} s");
        let told = match missing {
            Some(why) => format!("{told}: {why}"),
            None => told,
        };
        failed(told, format!("see floe ps {name}, or wait longer"))
    }

    /// Returns what the machines that have a QEMU have used of this host.
    pub fn usage(&self) -> UsageList {
        let machines = self.inventory.all();
        UsageList {
            at_unix_us: now_us(),
            machines: machines.iter().filter_map(|e| self.usage_of(e)).collect(),
        }
    }

    /// Returns a count that grows with what a machine changes: bytes that were written to its disks, and bytes of its memory that are its own
    /// by now. What is written to the same page again is not in it.
    pub fn changes_of(&self, entry: &Entry) -> u64 {
        let usage = self.usage_of(entry);
        usage.map_or(0, |usage| {
            let own = usage.own_bytes.unwrap_or_default();
            usage.disk_write_bytes.saturating_add(own)
        })
    }

    fn usage_of(&self, entry: &Entry) -> Option<MachineUsage> {
        let info = self.info_of(entry);
        let pid = info.pid?;
        let disks = entry.state().disks.clone();
        let disks = disks.map(|disks| disks.stats()).unwrap_or_default();
        let mappings = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
        let (own_bytes, shared_bytes) = mappings.ok().and_then(|text| resident(&text)).unzip();
        Some(MachineUsage {
            name: info.name,
            status: info.status,
            pid,
            ram_bytes: info.memory_bytes,
            cpu_us: info.stats.cpu_us,
            own_bytes,
            shared_bytes,
            disk_read_bytes: disks.read_bytes,
            disk_write_bytes: disks.write_bytes,
            fetched_bytes: info.stats.wire_bytes,
            network: None,
        })
    }
}

/// Whether a machine's CPUs run, but for moments that floe itself ends.
fn runs(info: &MachineInfo) -> bool {
    let brief = [PauseReason::Buffering, PauseReason::Capture];
    match info.status {
        MachineStatus::Running | MachineStatus::Buffering => true,
        MachineStatus::Paused => {
            !info.paused_for.is_empty() && info.paused_for.iter().all(|why| brief.contains(why))
        }
        MachineStatus::Starting
        | MachineStatus::Stopped
        | MachineStatus::Failed
        | MachineStatus::Parked => false,
    }
}

/// Returns how many bytes of a process's memory are its own and how many are shared, of proc(5)'s smaps_rollup.
fn resident(rollup: &str) -> Option<(u64, u64)> {
    let sum = |kinds: [&str; 2]| {
        let lines = rollup.lines().filter_map(|line| line.split_once(':'));
        let kib = lines
            .filter(|(name, _)| kinds.contains(name))
            .map(|(_, value)| value.split_whitespace().next()?.parse::<u64>().ok());
        kib.sum::<Option<u64>>()
    };
    let private = sum(["Private_Clean", "Private_Dirty"])?;
    let shared = sum(["Shared_Clean", "Shared_Dirty"])?;
    rollup
        .contains("Private_Dirty:")
        .then_some((private.saturating_mul(1024), shared.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_and_shared_memory_are_told_apart() {
        let text = "55d-7ff ---p 00000000 00:00 0    [rollup]\nRss:    300 kB\nShared_Clean:    100 kB\n\
            Shared_Dirty:     20 kB\nPrivate_Clean:     50 kB\nPrivate_Dirty:    130 kB\nSwap: 0 kB\n";
        assert_eq!(resident(text), Some((180 << 10, 120 << 10)));
        assert_eq!(resident(""), None);
        assert_eq!(resident("Private_Dirty: x kB"), None);
        let own = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        assert!(resident(&own).is_some_and(|(own, _)| own > 0));
    }
}
