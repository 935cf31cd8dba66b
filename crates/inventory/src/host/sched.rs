//! What this host can do for the vCPUs of machines, and why.

use super::{check, ok};
use floe_api::{Check, CheckStatus};
use std::{fs, io, path::Path};

const NAME: &str = "vCPUs";
/// Where a kernel with sched_ext tells of it.
const SCHED_EXT: &str = "/sys/kernel/sched_ext";
/// Bit of the capability to set affinities and nice values of other users' threads (capabilities(7)).
const CAP_SYS_NICE: u64 = 1 << 23;

/// What the kernel says of schedulers that replace its own.
#[derive(Debug, PartialEq, Eq)]
enum Ext {
    /// It can have one, and has none.
    Free,
    /// It has this one.
    Loaded(String),
    /// It can't have one.
    Absent,
    /// It does not say.
    Unknown(String),
}

/// Reads a file; `None` only if it is not there.
fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text.map(|text| Some(text.trim().to_owned())),
    }
}

impl Ext {
    /// Finds out by the directory in which a kernel tells of its sched_ext.
    fn at(dir: &Path) -> Ext {
        let found = read(&dir.join("state")).and_then(|state| match state.as_deref() {
            None => Ok(Ext::Absent),
            Some("disabled") => Ok(Ext::Free),
            Some(_) => {
                let name = read(&dir.join("root/ops"))?;
                Ok(Ext::Loaded(name.unwrap_or_else(|| {
                    "of a name that it does not tell".into()
                })))
            }
        });
        found.unwrap_or_else(|error| Ext::Unknown(format!("{}: {error}", dir.display())))
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
    let ext = Ext::at(Path::new(SCHED_EXT));
    told_of(&ext, &told, may_nice(&status))
}

fn told_of(ext: &Ext, schedstat: &io::Result<Option<String>>, may_nice: bool) -> Check {
    let kernel = match ext {
        Ext::Absent => {
            "the kernel lets nobody replace its scheduler (no sched_ext: CONFIG_SCHED_CLASS_EXT)"
                .to_owned()
        }
        Ext::Free => "the kernel could load another scheduler (sched_ext), and has none".to_owned(),
        Ext::Loaded(name) => format!(
            "the scheduler {name} is loaded (sched_ext) and places all threads; affinities hold, nice values are as it likes"
        ),
        Ext::Unknown(why) => format!("whether a scheduler is loaded is not known: {why}"),
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
    fn another_scheduler_is_named_and_a_kernel_without_any_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Ext::at(dir.path()), Ext::Absent);
        fs::write(dir.path().join("state"), "disabled\n").unwrap();
        assert_eq!(Ext::at(dir.path()), Ext::Free);
        fs::write(dir.path().join("state"), "enabled\n").unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        fs::write(dir.path().join("root/ops"), "lavd\n").unwrap();
        assert_eq!(Ext::at(dir.path()), Ext::Loaded("lavd".into()));
        fs::remove_file(dir.path().join("state")).unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        assert!(matches!(Ext::at(dir.path()), Ext::Unknown(_)));
    }

    #[test]
    fn what_works_is_said_by_what_the_kernel_tells_and_allows() {
        let told = Ok(Some("1 2 3".to_owned()));
        let of = |ext: &Ext, may| told_of(ext, &told, may);
        assert!(
            of(&Ext::Absent, true)
                .detail
                .contains("affinities and nice")
        );
        let few = of(&Ext::Loaded("lavd".into()), false);
        assert!(few.detail.contains("CAP_SYS_NICE") && few.detail.contains("lavd"));
        let none = told_of(&Ext::Absent, &Ok(None), true);
        assert_eq!(none.status, CheckStatus::Warn);
        assert!(may_nice("Name:\tx\nCapEff:\t0000000000800000\n"));
        assert!(!may_nice("CapEff:\t000000000000ffff\n") && !may_nice(""));
    }
}
