//! What a build needs of the host and of its user, looked at before anything is made.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{BuildError, io, is_root, program, search_path};

const KEYRING_PACKAGE: &str = "debian-archive-keyring";
/// The programs that a build needs, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 2] = [("mmdebstrap", "mmdebstrap"), ("mkfs.ext4", "e2fsprogs")];
/// What users other than root need besides: their files get owners that only such a program may set.
const MORE_PROGRAMS: [(&str, &str); 2] = [("newuidmap", "uidmap"), ("newgidmap", "uidmap")];
/// Where the ids stand that a user may give to files of his, and the option of `usermod` that adds some.
const SUBORDINATE: [(&str, &str); 2] = [
    ("/etc/subuid", "--add-subuids"),
    ("/etc/subgid", "--add-subgids"),
];
/// Fewest ids with which each user of a Debian has one (`nobody` is the last of them).
const IDS_MIN: u64 = 65_535;

/// Checks it. The error names what is missing and how it comes.
pub fn check() -> Result<(), BuildError> {
    let path = search_path();
    let is_file = |path: PathBuf| path.metadata().is_ok_and(|meta| meta.is_file());
    let is_there = |name: &str| std::env::split_paths(&path).any(|dir| is_file(dir.join(name)));
    let more: &[_] = if is_root() { &[] } else { &MORE_PROGRAMS };
    let mut needed = PROGRAMS.iter().chain(more);
    if let Some((what, package)) = needed.find(|(name, _)| !is_there(name)) {
        return Err(missing(what, package));
    }
    // what is there and cannot be read, its reader tells
    if matches!(Path::new(super::KEYRING).try_exists(), Ok(false)) {
        return Err(missing(super::KEYRING, KEYRING_PACKAGE));
    }
    match is_root() {
        true => Ok(()),
        false => check_user(),
    }
}

fn missing(what: &str, package: &str) -> BuildError {
    BuildError::Host {
        what: format!("{what} is missing"),
        fix: format!("apt install {package}"),
    }
}

fn check_user() -> Result<(), BuildError> {
    let name = Command::new("id").arg("-un").stderr(Stdio::null()).output();
    let name = name.map_err(io("start id"))?.stdout;
    let name = String::from_utf8_lossy(&name).trim().to_owned();
    for (file, option) in SUBORDINATE {
        let text = std::fs::read_to_string(file).unwrap_or_default(); // where it is missing, nobody has any
        if !has_ids(&text, &name) {
            return Err(BuildError::Host {
                what: format!(
                    "user {name} has no 65536 ids in {file}, which own the files of the new system"
                ),
                fix: format!(
                    "as root: usermod {option} 100000-165535 {name} (ids that no other line has), or build as root"
                ),
            });
        }
    }
    // the rest depends on the kernel's settings, and is best found out by doing it
    let tried = program("mmdebstrap")
        .args(["--unshare-helper", "true"])
        .stdin(Stdio::null())
        .output()
        .map_err(io("start mmdebstrap"))?;
    if tried.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&tried.stderr);
    let said: Vec<&str> = said.lines().map(str::trim).collect();
    Err(BuildError::Host {
        what: format!(
            "user {name} can't make a user namespace here: {}",
            said.join("; ")
        ),
        fix: "build as root; or, as root, sysctl kernel.unprivileged_userns_clone=1 or \
              kernel.apparmor_restrict_unprivileged_userns=0, whichever this host has"
            .into(),
    })
}

/// Whether the first line for the user, which is the one that mmdebstrap takes, names enough ids.
fn has_ids(text: &str, user: &str) -> bool {
    let mut lines = text.lines().map(|line| line.split(':'));
    let line = lines.find_map(|mut words| (words.next() == Some(user)).then_some(words));
    let count = line.and_then(|mut words| words.nth(1)?.trim().parse::<u64>().ok());
    count.is_some_and(|count| count >= IDS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_needs_a_line_of_his_own_with_ids_for_a_whole_debian() {
        let text = "ann:100000:65536\nbob:165536:100\nbob:200000:65536\ncy:x\n1000:300000:65536\n";
        assert!(has_ids(text, "ann"));
        for user in ["bob", "cy", "an", "", "dee"] {
            assert!(!has_ids(text, user), "{user}");
        }
    }
}
