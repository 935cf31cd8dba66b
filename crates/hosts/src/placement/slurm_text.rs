//! Parses what Slurm's tools print. No I/O.

/// Most nodes that one line of output may stand for.
const NODES_MAX: usize = 65_536;
/// Longest name of a node in bytes: that of a host in DNS.
const NAME_BYTES_MAX: usize = 255;

/// A node as Slurm sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlurmNode {
    /// Its name.
    pub name: String,
    /// CPUs that no job has.
    pub free_cpus: u32,
    /// Memory in MiB that no job has.
    pub free_mib: u64,
    /// Why it takes no jobs, if it does not.
    pub out: Option<String>,
}

impl SlurmNode {
    /// Returns how many clones of this size fit on it.
    pub fn fits(&self, cpus: u32, mib: u64) -> u32 {
        if self.out.is_some() {
            return 0;
        }
        let by_memory = self.free_mib / mib.max(1);
        (self.free_cpus / cpus.max(1)).min(u32::try_from(by_memory).unwrap_or(u32::MAX))
    }
}

/// Returns the number of the job in salloc's output: `salloc: Granted job allocation 17`.
pub(crate) fn job_of(text: &str) -> Option<String> {
    let line = text
        .lines()
        .rfind(|line| line.contains("job allocation "))?;
    let last = line.rsplit("job allocation ").next()?;
    let number: String = last.chars().take_while(char::is_ascii_digit).collect();
    (!number.is_empty()).then_some(number)
}

/// Returns the value of `NAME=value` in a line of scontrol's output.
pub fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Parses the output of `scontrol show nodes -o`: one line per node.
pub(crate) fn parse_nodes(text: &str) -> Vec<SlurmNode> {
    let number = |line: &str, names: &[&str]| -> u64 {
        let value = names.iter().find_map(|name| field(line, name));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    let node = |line: &str| {
        let name = field(line, "NodeName")?.to_owned();
        let cpus = number(line, &["CPUEfctv", "CPUTot"]);
        let free_cpus = cpus.saturating_sub(number(line, &["CPUAlloc"]));
        let memory = number(line, &["RealMemory"]);
        let state = field(line, "State").unwrap_or("UNKNOWN");
        // `IDLE`, `MIXED+DRAIN`, `DOWN*`: flags follow a plus; a star marks a node that does not answer
        let good = ["IDLE", "MIXED", "ALLOCATED", "COMPLETING"];
        let mut parts = state.split('+');
        let base = parts.next().unwrap_or_default();
        let flags_good = parts.all(|flag| matches!(flag, "COMPLETING" | "CLOUD" | "DYNAMIC_NORM"));
        Some(SlurmNode {
            name,
            free_cpus: u32::try_from(free_cpus).unwrap_or(u32::MAX),
            free_mib: memory.saturating_sub(number(line, &["AllocMem"])),
            out: (!good.contains(&base) || !flags_good).then(|| state.to_owned()),
        })
    };
    text.lines().filter_map(node).collect()
}

/// Parses the output of `scontrol show job -d -o`: `Nodes=n[1-2] CPU_IDs=0-1,4 Mem=200` for each group of equal nodes.
pub(crate) fn parse_layout(text: &str, cpus: u32, mib: u64) -> Result<Vec<(String, u32)>, String> {
    let mut tasks = Vec::new();
    let mut words = text.split_ascii_whitespace();
    while let Some(word) = words.next() {
        let Some(names) = word.strip_prefix("Nodes=") else {
            continue;
        };
        let Some(ids) = words.next().and_then(|w| w.strip_prefix("CPU_IDs=")) else {
            continue;
        };
        let memory = words.next().and_then(|w| w.strip_prefix("Mem="));
        let memory: u64 = memory.and_then(|m| m.parse().ok()).unwrap_or(0);
        let by_cpus = count_ids(ids).ok_or_else(|| format!("{ids:?} are no CPUs"))? / cpus.max(1);
        let count = match memory {
            0 => by_cpus, // Slurm does not allocate memory in this cluster
            _ => by_cpus.min(u32::try_from(memory / mib.max(1)).unwrap_or(u32::MAX)),
        };
        for name in expand(names).ok_or_else(|| format!("{names:?} are no nodes"))? {
            if tasks.len() >= NODES_MAX {
                return Err(format!("it has more than {NODES_MAX} nodes"));
            }
            tasks.push((name, count));
        }
    }
    match tasks.is_empty() {
        true => Err("it tells no nodes".into()),
        false => Ok(tasks),
    }
}

/// Returns how many numbers `0-1,4` stands for.
fn count_ids(text: &str) -> Option<u32> {
    let mut count = 0u32;
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        count = count.checked_add(to.checked_sub(from)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Returns the names that `n[01-03,7],login` stands for.
pub fn expand(text: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        let (prefix, tail) = rest.split_at(end);
        let Some(inside) = tail.strip_prefix('[') else {
            if prefix.len() > NAME_BYTES_MAX || names.len() >= NODES_MAX {
                return None;
            }
            names.push(prefix.to_owned());
            rest = tail.strip_prefix(',').unwrap_or_default();
            continue;
        };
        let (ranges, after) = inside.split_once(']')?;
        for range in ranges.split(',') {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let width = from.len();
            let (from, to): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
            let room = NODES_MAX.saturating_sub(names.len()) as u64;
            // in `8-10` the last number has more digits than the first
            let digits = width.max(to.checked_ilog10().unwrap_or(0) as usize + 1);
            if to.checked_sub(from)? >= room || prefix.len() + digits > NAME_BYTES_MAX {
                return None;
            }
            names.extend((from..=to).map(|n| format!("{prefix}{n:0width$}")));
        }
        rest = match after.strip_prefix(',') {
            Some(rest) => rest,
            None if after.is_empty() => after,
            None => return None, // text after the numbers is not supported
        };
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_allocation_tells_how_many_clones_which_node_takes() {
        let text = "JobId=1 NodeList=n[1-3] NumTasks=4 JOB_GRES=(null)   Nodes=n1 CPU_IDs=0-1 Mem=200 GRES=   Nodes=n[2-3] CPU_IDs=0 Mem=100 GRES= MinCPUsNode=1";
        let of = |name: &str, count| (name.to_owned(), count);
        assert_eq!(
            parse_layout(text, 1, 100).unwrap(),
            [of("n1", 2), of("n2", 1), of("n3", 1)]
        );
        assert_eq!(
            parse_layout(text, 1, 200).unwrap()[..2],
            [of("n1", 1), of("n2", 0)]
        );
        assert!(parse_layout("JobId=1", 1, 1).is_err());
        assert_eq!(
            expand("a[08-10,3],b,c[1]").unwrap(),
            ["a08", "a09", "a10", "a3", "b", "c1"]
        );
        assert_eq!(expand("a[1-99999999]"), None);
        assert_eq!(expand("b,a[0-18446744073709551615]"), None);
        assert_eq!(expand(&format!("a[{:0300}-2]", 1)), None);
        let long = "n".repeat(NAME_BYTES_MAX - 1);
        assert_eq!(expand(&format!("{long}[8-9]")).unwrap().len(), 2);
        assert_eq!(expand(&format!("{long}[8-10]")), None);
        assert_eq!(
            job_of("salloc: Pending job allocation 3\nsalloc: Granted job allocation 31\n")
                .unwrap(),
            "31"
        );
        assert_eq!(job_of("salloc: error: Job submit/allocate failed"), None);
    }

    proptest! {
        #[test]
        fn whatever_the_tools_print_is_read_or_refused(text in "(Nodes=|CPU_IDs=|Mem=|NodeName=|State=|[n0-9\\[\\],\\- ]){0,30}") {
            let _ = parse_nodes(&text);
            let _ = parse_layout(&text, 1, 1);
            let _ = expand(&text);
            let _ = job_of(&text);
        }
    }
}
