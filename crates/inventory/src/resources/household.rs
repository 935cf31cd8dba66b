//! How a household shares its limits with its clones on other hosts. No I/O.
//!
//! A household is the machines that share what they may use: one that a user made, and all clones that its guest, and
//! the guests of those, have made. Those on one host are in one control group. A clone that a guest makes on another host gets a fixed part
//! of processor time and memory: the whole, divided by the number of machines that the household may have. This host's control group is
//! limited to that much less until the clone is gone. So all hosts together never allow more than the household has, whether they hear of
//! each other or not.
//!
//! Weight and cap of disk requests are parts of one host's disk, and are not divided among hosts.

use floe_api::{CPU_MILLICORES_MIN, Limits, MEMORY_MAX_BYTES_MIN, size_text};

/// Returns the part of its household's limits that a clone on another host gets, or why that would be too little. The clone can't make
/// clones of its own there.
pub fn share(limits: &Limits) -> Result<Limits, String> {
    let machines = limits.clones.unwrap_or(0).saturating_add(1);
    let cpu = limits.cpu_millicores.map(|all| all / machines);
    let memory = limits.memory_max_bytes.map(|all| all / u64::from(machines));
    if let Some(least) = cpu.filter(|part| *part < CPU_MILLICORES_MIN) {
        return Err(format!(
            "a limit of processor time for {machines} machines is {least} thousandths of a core for each, and {CPU_MILLICORES_MIN} is the least"
        ));
    }
    if let Some(least) = memory.filter(|part| *part < MEMORY_MAX_BYTES_MIN) {
        return Err(format!(
            "a limit of memory for {machines} machines is {} for each, and QEMU alone needs {}",
            size_text(least),
            size_text(MEMORY_MAX_BYTES_MIN)
        ));
    }
    Ok(Limits {
        cpu_millicores: cpu,
        memory_max_bytes: memory,
        clones: None,
        ..*limits
    })
}

/// Adds the part of one more clone on another host to the sum.
pub fn plus(given: &Limits, more: &Limits) -> Limits {
    let cpu = [given.cpu_millicores, more.cpu_millicores];
    let memory = [given.memory_max_bytes, more.memory_max_bytes];
    Limits {
        cpu_millicores: cpu.into_iter().flatten().reduce(u32::saturating_add),
        memory_max_bytes: memory.into_iter().flatten().reduce(u64::saturating_add),
        ..Limits::default()
    }
}

/// Returns what a household has left of its limits on this host when its clones on other hosts have `given`, or why that is too little.
pub fn left(limits: &Limits, given: &Limits) -> Result<Limits, String> {
    let cpu = limits
        .cpu_millicores
        .map(|all| all.saturating_sub(given.cpu_millicores.unwrap_or(0)));
    let memory = limits
        .memory_max_bytes
        .map(|all| all.saturating_sub(given.memory_max_bytes.unwrap_or(0)));
    if cpu.is_some_and(|left| left < CPU_MILLICORES_MIN) {
        return Err(format!(
            "clones on other hosts have {} of the {} thousandths of a core",
            given.cpu_millicores.unwrap_or(0),
            limits.cpu_millicores.unwrap_or(0)
        ));
    }
    if memory.is_some_and(|left| left < MEMORY_MAX_BYTES_MIN) {
        return Err(format!(
            "clones on other hosts have {} of the {} of memory",
            size_text(given.memory_max_bytes.unwrap_or(0)),
            size_text(limits.memory_max_bytes.unwrap_or(0))
        ));
    }
    Ok(Limits {
        cpu_millicores: cpu,
        memory_max_bytes: memory,
        ..*limits
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits(cpu: Option<u32>, memory: Option<u64>, clones: u32) -> Limits {
        Limits {
            cpu_millicores: cpu,
            memory_max_bytes: memory,
            io_weight: Some(7),
            clones: Some(clones),
            ..Default::default()
        }
    }

    #[test]
    fn a_clone_elsewhere_takes_one_part_of_all_and_the_rest_stays() {
        let all = limits(Some(1800), Some(9 << 30), 8);
        let part = share(&all).unwrap();
        assert_eq!(
            (part.cpu_millicores, part.memory_max_bytes),
            (Some(200), Some(1 << 30))
        );
        assert_eq!((part.clones, part.io_weight), (None, Some(7)));
        let given = plus(&plus(&Limits::default(), &part), &part);
        let here = left(&all, &given).unwrap();
        assert_eq!(
            (here.cpu_millicores, here.memory_max_bytes),
            (Some(1400), Some(7 << 30))
        );
        assert_eq!(here.clones, Some(8));
        // what has no limit has none anywhere
        let part = share(&limits(None, None, 8)).unwrap();
        assert_eq!((part.cpu_millicores, part.memory_max_bytes), (None, None));
        assert_eq!(
            left(&limits(None, None, 8), &given).unwrap(),
            limits(None, None, 8)
        );
    }

    #[test]
    fn what_cannot_be_divided_is_refused_in_words() {
        let why = share(&limits(Some(50), None, 8)).unwrap_err();
        assert!(why.contains("5 thousandths of a core"), "{why}");
        let why = share(&limits(None, Some(256 << 20), 8)).unwrap_err();
        assert!(why.contains("for 9 machines"), "{why}");
        let given = limits(Some(95), None, 0);
        let why = left(&limits(Some(100), None, 0), &given).unwrap_err();
        assert!(why.contains("95 of the 100"), "{why}");
        let given = limits(None, Some(200 << 20), 0);
        assert!(left(&limits(None, Some(256 << 20), 0), &given).is_err());
    }

    proptest! {
        #[test]
        fn all_hosts_together_never_allow_more_than_the_household_has(
            cpu in 10u32..10_000_000,
            memory in (64u64 << 20)..(1 << 40),
            clones in 0u32..64,
            away in 0u32..64,
        ) {
            let all = limits(Some(cpu), Some(memory), clones);
            let Ok(part) = share(&all) else { return Ok(()) };
            let given = (0..away.min(clones)).fold(Limits::default(), |given, _| plus(&given, &part));
            // as many as it may have always fit
            let here = left(&all, &given).unwrap();
            let sum_cpu = here.cpu_millicores.unwrap() + given.cpu_millicores.unwrap_or(0);
            let sum_memory = here.memory_max_bytes.unwrap() + given.memory_max_bytes.unwrap_or(0);
            prop_assert!(sum_cpu <= cpu && sum_memory <= memory);
        }
    }
}
