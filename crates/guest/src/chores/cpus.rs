//! Brings CPUs online and takes them offline.

use super::{REFUSED_MAX, Refused, numbers};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// For how long a change is retried while the kernel is busy: for example, it refuses to change any CPU while a device is being probed.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// Pause before each retry.
const AGAIN: Duration = Duration::from_millis(50);

/// Which CPUs a guest has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    /// How many are online now.
    pub online: u32,
    /// How many the guest's kernel knows.
    pub present: u32,
    /// Those that did not change as they should.
    pub refused: Vec<Refused>,
}

/// Counts the CPUs.
pub(super) fn count(system: &Path) -> Result<Cpus, String> {
    let dir = system.join("cpu");
    let all = numbers(&dir, "cpu")?;
    let online = all.iter().filter(|number| is_online(&dir, number)).count();
    Ok(Cpus {
        online: online as u32,
        present: all.len() as u32,
        refused: Vec::new(),
    })
}

fn is_online(dir: &Path, number: &u32) -> bool {
    let state = fs::read_to_string(dir.join(format!("cpu{number}/online")));
    // the CPU that the guest began on has no such file in most kernels: it is always online
    state.map_or(true, |state| state.trim() == "1")
}

/// Brings so many CPUs online, those with the lowest numbers, and takes the others offline, the highest first.
pub(super) fn bring(system: &Path, count: &str) -> Result<Cpus, String> {
    let wanted: u32 = match count.parse() {
        Ok(count) if count > 0 => count,
        _ => return Err(format!("{count:?} is no number of CPUs")),
    };
    let dir = system.join("cpu");
    let all = numbers(&dir, "cpu")?;
    let is_online = |number: &u32| is_online(&dir, number);
    // for all of them together
    let until = Instant::now() + BUSY_LIMIT;
    let mut refused = Vec::new();
    let mut set = |number: &u32, online: &str| {
        let file = dir.join(format!("cpu{number}/online"));
        let written = match file.try_exists() {
            Ok(false) => Err("its kernel can't take it offline".to_owned()),
            there => there
                .and_then(|_| until_not_busy(until, AGAIN, || fs::write(&file, online)))
                .map_err(|error| error.to_string()),
        };
        let why = written.err();
        if let Some(why) = why.filter(|_| refused.len() < REFUSED_MAX) {
            let what = format!("cpu{number}");
            refused.push(Refused { what, why });
        }
    };
    let count = || all.iter().filter(|number| is_online(number)).count() as u32;
    for number in all.iter().filter(|number| !is_online(number)) {
        if count() < wanted {
            set(number, "1");
        }
    }
    for number in all.iter().rev().filter(|number| is_online(number)) {
        if count() > wanted {
            set(number, "0");
        }
    }
    Ok(Cpus {
        online: count(),
        present: all.len() as u32,
        refused,
    })
}

/// Writes again and again while the kernel is busy, until a time.
fn until_not_busy(
    until: Instant,
    pause: Duration,
    mut write: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    loop {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(pause);
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(states: &[Option<&str>]) -> tempfile::TempDir {
        let system = tempfile::tempdir().unwrap();
        for (number, state) in states.iter().enumerate() {
            let dir = system.path().join(format!("cpu/cpu{number}"));
            fs::create_dir_all(&dir).unwrap();
            if let Some(state) = state {
                fs::write(dir.join("online"), format!("{state}\n")).unwrap();
            }
        }
        fs::create_dir_all(system.path().join("cpu/cpufreq")).unwrap();
        system
    }

    fn states(system: &tempfile::TempDir, count: usize) -> String {
        let state = |number| {
            let file = system.path().join(format!("cpu/cpu{number}/online"));
            fs::read_to_string(file).map_or('-', |state| state.chars().next().unwrap())
        };
        (0..count).map(state).collect()
    }

    #[test]
    fn the_lowest_cpus_come_online_and_the_highest_go() {
        let guest = guest(&[None, Some("0"), Some("1"), Some("0"), Some("0")]);
        for (wanted, online, expected) in [
            ("3", 3, "-1100"),
            ("5", 5, "-1111"),
            ("2", 2, "-1000"),
            ("1", 1, "-0000"),
            ("9", 5, "-1111"),
        ] {
            let cpus = bring(guest.path(), wanted).unwrap();
            assert_eq!((cpus.online, cpus.present), (online, 5), "{wanted}");
            assert!(cpus.refused.is_empty(), "{cpus:?}");
            assert_eq!(states(&guest, 5), expected, "{wanted}");
            assert_eq!(count(guest.path()).unwrap(), cpus);
        }
        assert!(bring(guest.path(), "0").is_err());
    }

    #[test]
    fn a_cpu_that_stays_is_named() {
        let guest = guest(&[None, None, Some("1")]);
        let cpus = bring(guest.path(), "1").unwrap();
        assert_eq!((cpus.online, cpus.present), (2, 3));
        assert_eq!(cpus.refused[0].what, "cpu1");
        assert_eq!(states(&guest, 3), "--0");
    }

    #[test]
    fn a_kernel_that_is_busy_for_a_moment_is_asked_again_and_one_that_stays_so_is_believed() {
        let busy = || io::Error::from_raw_os_error(libc::EBUSY);
        let later = Instant::now() + Duration::from_secs(3600);
        let mut asked = 0;
        let done = until_not_busy(later, Duration::ZERO, || {
            asked += 1;
            match asked {
                1..=3 => Err(busy()),
                _ => Ok(()),
            }
        });
        assert!(done.is_ok());
        assert_eq!(asked, 4);
        // its time is over
        let done = until_not_busy(Instant::now(), Duration::ZERO, || Err(busy()));
        assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EBUSY));
        // any other reason is the answer
        let denied = || Err(io::Error::from_raw_os_error(libc::EPERM));
        let done = until_not_busy(later, Duration::ZERO, denied);
        assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
