//! What this host can do for the vCPUs of machines, and why.

use super::{check, ok};
use floe_api::{Check, CheckStatus};
use floe_scx::{Host, SCHED_EXT, ScxError, file_beside};
use std::{fs, io, path::Path};

const NAME: &str = "vCPUs";
/// Bit of the capability to set affinities and nice values of other users' threads (capabilities(7)).
const CAP_SYS_NICE: u64 = 1 << 23;

/// Reads a file; `None` only if it is not there.
fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text.map(|text| Some(text.trim().to_owned())),
    }
}

/// Whether this process may set affinities and nice values of other users' threads, by the text of /proc/self/status.
fn may_nice(status: &str) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set & CAP_SYS_NICE != 0)
}

/// What `floe node --cpu-sched` can do here.
pub(super) fn vcpus() -> Check {
    let told = read(Path::new("/proc/self/schedstat"));
    // the kernel's own text of this process: it can always be read
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let host = Host::at(Path::new(SCHED_EXT));
    let file = file_beside(&std::env::current_exe().unwrap_or_default());
    // one that can't be looked at is found out about when it is loaded
    let file = file.try_exists().unwrap_or(true).then_some(file);
    told_of(&host, file.as_deref(), &told, may_nice(&status))
}

/// `file` is floe's compiled scheduler, if it is there.
fn told_of(
    host: &Result<Host, ScxError>,
    file: Option<&Path>,
    schedstat: &io::Result<Option<String>>,
    may_nice: bool,
) -> Check {
    let kernel = match host {
        Ok(Host::Absent) => {
            "the kernel lets nobody replace its scheduler (no sched_ext: CONFIG_SCHED_CLASS_EXT)"
                .to_owned()
        }
        Ok(Host::Free) => match file {
            Some(file) => format!(
                "with --cpu-sched root's node puts its own scheduler in the kernel instead (sched_ext; {})",
                file.display()
            ),
            None => "the kernel could have floe's scheduler (sched_ext), but that is not installed: packages of floe have it if \
                     clang was there when they were made, and make scx makes it"
                .to_owned(),
        },
        Ok(Host::Loaded(name)) if name == floe_scx::NAME => {
            "floe's scheduler is in the kernel (sched_ext)".to_owned()
        }
        Ok(Host::Loaded(name)) => format!(
            "the scheduler {name} is loaded (sched_ext) and places all threads; affinities hold, nice values are as it likes"
        ),
        Err(why) => format!("whether a scheduler is loaded is not known: {why}"),
    };
    match schedstat {
        Ok(Some(_)) if may_nice => ok(
            NAME,
            format!("floe node --cpu-sched works by affinities and nice values; {kernel}"),
        ),
        Ok(Some(_)) => ok(
            NAME,
            format!(
                "floe node --cpu-sched balance works for QEMUs of this user; sbco lends nothing without CAP_SYS_NICE; {kernel}"
            ),
        ),
        told => {
            let why = match told {
                Err(error) => error.to_string(),
                Ok(_) => "it is not there".to_owned(),
            };
            let text = format!(
                "/proc/self/schedstat: {why}; floe node --cpu-sched can't see who waits; {kernel}"
            );
            check(
                NAME,
                CheckStatus::Warn,
                text,
                "only --cpu-sched needs it: use a kernel with CONFIG_SCHED_INFO",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_works_is_said_by_what_the_kernel_tells_and_allows() {
        let told = Ok(Some("1 2 3".to_owned()));
        let of = |host, may| told_of(&Ok(host), None, &told, may);
        let absent = of(Host::Absent, true);
        assert!(absent.detail.contains("affinities and nice"));
        assert!(of(Host::Free, true).detail.contains("make scx"));
        let few = of(Host::Loaded("lavd".into()), false);
        assert!(few.detail.contains("CAP_SYS_NICE") && few.detail.contains("lavd"));
        let none = told_of(&Ok(Host::Absent), None, &Ok(None), true);
        assert_eq!(none.status, CheckStatus::Warn);
        assert!(may_nice("Name:\tx\nCapEff:\t0000000000800000\n"));
        assert!(!may_nice("CapEff:\t000000000000ffff\n") && !may_nice(""));
    }
}
