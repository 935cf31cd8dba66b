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

/// Returns the bytes of a process's memory that are no file's; an error if there is no such process.
pub fn own_memory(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let word = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = word.context("no RssAnon in /proc/PID/status")?.parse()?;
    Ok(kib * 1024)
}
