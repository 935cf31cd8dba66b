//! Whose rights a process gets, by `/etc/passwd` and `/etc/group`. The C library's ways to other lists of users need its
//! shared libraries, which a static program has not.

use crate::files::{content, if_there};
use std::fs;
use std::path::{Path, PathBuf};

/// Largest file of users that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A user of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// All groups, `gid` included.
    pub groups: Vec<u32>,
    pub home: PathBuf,
    pub shell: PathBuf,
}

/// Returns a user by name or number; root for an empty name, whether a file names it or not.
pub(super) fn find(name: &str) -> Result<User, String> {
    let name = if name.is_empty() { "root" } else { name };
    let (users, groups) = (read("/etc/passwd")?, read("/etc/group")?);
    find_in(name, &users, &groups)
}

/// Returns whether the agent has this user's rights itself, and no others.
pub(super) fn is_own(user: &User) -> bool {
    use rustix::process::{getegid, geteuid, getgroups};
    let mut groups: Vec<u32> = match getgroups() {
        Ok(groups) => groups.into_iter().map(|group| group.as_raw()).collect(),
        Err(_) => return false,
    };
    groups.push(getegid().as_raw());
    groups.sort_unstable();
    groups.dedup();
    (geteuid().as_raw(), getegid().as_raw(), groups) == (user.uid, user.gid, user.groups.clone())
}

fn read(path: &str) -> Result<String, String> {
    let path = Path::new(path);
    match if_there(path, fs::metadata(path))? {
        Some(file) if file.len() > FILE_BYTES_MAX => Err(format!(
            "{} has more than {FILE_BYTES_MAX} bytes",
            path.display()
        )),
        _ => content(path),
    }
}

fn find_in(name: &str, users: &str, groups: &str) -> Result<User, String> {
    let number: Option<u32> = name.parse().ok();
    let of = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let [known, _, uid, gid, _, home, shell, ..] = fields[..] else {
            return None;
        };
        let uid = uid.parse().ok()?;
        (known == name || number == Some(uid)).then(|| User {
            name: known.into(),
            uid,
            gid: gid.parse().unwrap_or(uid),
            groups: Vec::new(),
            home: home.into(),
            shell: match shell {
                "" => "/bin/sh".into(),
                shell => shell.into(),
            },
        })
    };
    let mut user = match (users.lines().find_map(of), number) {
        (Some(user), _) => user,
        (None, _) if name == "root" || number == Some(0) => User {
            name: "root".into(),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            home: "/root".into(),
            shell: "/bin/sh".into(),
        },
        (None, Some(uid)) => User {
            name: name.into(),
            uid,
            gid: uid,
            groups: Vec::new(),
            home: "/".into(),
            shell: "/bin/sh".into(),
        },
        (None, None) => return Err(format!("no user {name:?} in the guest's /etc/passwd")),
    };
    let member = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, gid, members] = fields[..] else {
            return None;
        };
        let is_member = members.split(',').any(|member| member == user.name);
        is_member.then(|| gid.parse().ok()).flatten()
    };
    user.groups = groups.lines().filter_map(member).collect();
    user.groups.push(user.gid);
    user.groups.sort_unstable();
    user.groups.dedup();
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str =
        "root:x:0:0:root:/root:/bin/bash\nbad line\nann:x:1000:1000:Ann,,,:/home/ann:\n";
    const GROUPS: &str = "root:x:0:\nwheel:x:10:bob,ann\nann:x:1000:\nother:x:11:annabel\n";

    #[test]
    fn a_user_is_found_by_name_and_by_number_with_all_groups() {
        let ann = find_in("ann", USERS, GROUPS).unwrap();
        assert_eq!(find_in("1000", USERS, GROUPS), Ok(ann.clone()));
        assert_eq!((ann.uid, ann.groups), (1000, vec![10, 1000]));
        assert_eq!(ann.shell, Path::new("/bin/sh"));
        assert_eq!(
            find_in("root", USERS, GROUPS).unwrap().home,
            Path::new("/root")
        );
    }

    #[test]
    fn a_guest_without_a_list_of_users_has_root_and_numbers() {
        assert_eq!(find_in("root", "", "").unwrap().uid, 0);
        assert_eq!(find_in("33", "", "").unwrap().gid, 33);
        assert!(find_in("ann", "", "").unwrap_err().contains("ann"));
    }
}
