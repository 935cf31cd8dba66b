//! CPU time and memory of processes.

use anyhow::Context as _;

/// Milliseconds of the kernel's unit of CPU time (USER_HZ is 100 on every Linux).
const TICK_MS: f64 = 10.0;

/// The CPU time that a process has used so far.
#[derive(Clone, Copy, Debug)]
pub struct CpuTimes {
    /// Its own, with all of its threads, in milliseconds.
    pub own_ms: f64,
    /// That of its children that have ended and of theirs, in milliseconds.
    pub children_ms: f64,
}

/// Returns the CPU time of a process; an error if there is no such process.
pub fn cpu_times(pid: u32) -> anyhow::Result<CpuTimes> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = text.rsplit_once(") ").context("a process's name ends")?;
    // proc(5) counts the fields from 1; `rest` begins with the third
    let ticks = |field: usize| -> anyhow::Result<f64> {
        let word = rest.split_whitespace().nth(field - 3).context("a field")?;
        Ok(word.parse()?)
    };
    Ok(CpuTimes {
        own_ms: (ticks(14)? + ticks(15)?) * TICK_MS,
        children_ms: (ticks(16)? + ticks(17)?) * TICK_MS,
    })
}

/// What the processors of this host have done so far, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTimes {
    idle: u64,
    all: u64,
}

impl HostTimes {
    /// Returns them as they are now.
    pub fn now() -> anyhow::Result<HostTimes> {
        HostTimes::read(&std::fs::read_to_string("/proc/stat")?)
    }

    /// Reads the first line of `/proc/stat`: ticks as user, nice, system, idle, waiting for disks and so on. Those of guests are among the
    /// user's already.
    fn read(text: &str) -> anyhow::Result<HostTimes> {
        let line = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("cpu "));
        let words = line
            .context("no line of all processors")?
            .split_whitespace();
        let ticks: Vec<u64> = words.take(8).map(str::parse).collect::<Result<_, _>>()?;
        let idle = ticks.get(3..5).context("too few numbers")?;
        Ok(HostTimes {
            idle: idle.iter().sum(),
            all: ticks.iter().sum(),
        })
    }

    /// Returns the share of the processors' time, 0 to 1, that nothing used since then; 0 if no time has passed.
    pub fn idle_since(&self, before: &HostTimes) -> f64 {
        let idle = self.idle.saturating_sub(before.idle) as f64;
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        idle / all
    }
}

/// Returns the bytes of a process's memory that are no file's; an error if there is no such process.
pub fn own_memory(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let word = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = word.context("no RssAnon in /proc/PID/status")?.parse()?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_is_what_was_idle_or_waited_for_disks() {
        let read = |line: &str| HostTimes::read(line).unwrap();
        let before = read("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3\n");
        let after = read("cpu  160 0 110 720 105 0 5 0 90 0\n");
        assert!((after.idle_since(&before) - 0.25).abs() < 1e-9);
        assert_eq!(before.idle_since(&before), 0.0);
        assert!(HostTimes::read("cpu0 1 2 3 4 5").is_err() && HostTimes::read("cpu 1 2").is_err());
    }
}
