//! Why a mount was refused, and what lets it through: by far the most refusals are AppArmor's, whose error says no more than "Permission
//! denied".

use crate::MountError;
use std::path::Path;

/// The profile that Ubuntu's and Debian's apparmor confine fusermount3 by since 2025, and the file for what an administrator adds to it.
const PROFILE: &str = "/etc/apparmor.d/fusermount3";
const LOCAL: &str = "/etc/apparmor.d/local/fusermount3";

/// What else on this host may have refused a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Around {
    /// Whether the program fusermount3 has an AppArmor profile here.
    fusermount_is_confined: bool,
    /// The AppArmor profile that this process runs under, if one confines it.
    profile: Option<String>,
}

impl Around {
    /// Looks at this host.
    pub fn look() -> Around {
        let enabled = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
        let enabled = enabled.is_ok_and(|text| text.trim() == "Y");
        let of_this_process = || {
            let text = std::fs::read_to_string("/proc/self/attr/apparmor/current");
            text.or_else(|_| std::fs::read_to_string("/proc/self/attr/current"))
        };
        Around {
            fusermount_is_confined: enabled && Path::new(PROFILE).try_exists().is_ok_and(|is| is),
            profile: match enabled {
                true => of_this_process().ok().and_then(|text| enforced(&text)),
                false => None,
            },
        }
    }
}

/// Returns the profile of a process that it must obey, from what the kernel says of it: `docker-default (enforce)`.
fn enforced(current: &str) -> Option<String> {
    let profile = current.trim().strip_suffix(" (enforce)")?;
    Some(profile.to_owned())
}

/// Returns the error of a mount that fusermount3 has not made, by what it said.
pub(crate) fn by_fusermount(mountpoint: &Path, said: &str, around: &Around) -> MountError {
    let reason = match said.trim() {
        "" => "fusermount3 failed and said nothing".to_owned(),
        said => said.to_owned(),
    };
    let denied = denies(&reason);
    let (reason, fix) = match around {
        _ if reason.contains("user_allow_other") => {
            (reason, "put user_allow_other in /etc/fuse.conf".to_owned())
        }
        Around {
            fusermount_is_confined: true,
            ..
        } if denied => (
            format!("{reason}: the AppArmor profile {PROFILE} does not let fusermount3 mount there"),
            local_rule(mountpoint),
        ),
        Around {
            profile: Some(profile),
            ..
        } if denied => confined(reason, profile),
        _ if denied => (
            reason,
            "fusermount3 must belong to root and be set-uid (chmod u+s), on a file system that is not mounted nosuid, or the node run \
             as root"
                .to_owned(),
        ),
        _ => (reason, "put right what fusermount3 said".to_owned()),
    };
    cannot(mountpoint, reason, fix)
}

/// Returns the error of a mount that the kernel has refused to this process.
pub(crate) fn by_kernel(mountpoint: &Path, said: &str, around: &Around) -> MountError {
    let reason = format!("mount: {said}");
    let (reason, fix) = match &around.profile {
        Some(profile) if denies(said) => confined(reason, profile),
        _ => (
            reason,
            "the directory must exist, and a container needs CAP_SYS_ADMIN".to_owned(),
        ),
    };
    cannot(mountpoint, reason, fix)
}

fn denies(said: &str) -> bool {
    ["Permission denied", "Operation not permitted"]
        .iter()
        .any(|words| said.contains(words))
}

/// Says what lets fusermount3 mount on a directory. AppArmor's rules name a directory with a slash at its end.
fn local_rule(mountpoint: &Path) -> String {
    let place = mountpoint.display();
    format!(
        "add the lines `mount fstype=@{{fuse_types}} options=(nosuid,nodev) options in (ro,rw) -> {place}/,` and `umount {place}/,` to \
         {LOCAL} and load it with `apparmor_parser -r {PROFILE}`, or let FLOE_HOME name a directory below your home directory"
    )
}

fn confined(reason: String, profile: &str) -> (String, String) {
    (
        format!("{reason}: this process is confined by the AppArmor profile {profile}"),
        format!(
            "let {profile} mount (`mount fstype=fuse.floe,` and `umount,`), or start the container with --security-opt \
             apparmor=unconfined"
        ),
    )
}

fn cannot(mountpoint: &Path, reason: String, fix: String) -> MountError {
    MountError::Cannot {
        path: mountpoint.to_owned(),
        reason,
        fix: fix.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(fusermount_is_confined: bool, profile: Option<&str>) -> Around {
        Around {
            fusermount_is_confined,
            profile: profile.map(str::to_owned),
        }
    }

    #[test]
    fn a_mount_that_apparmor_refuses_names_path_profile_and_rule() {
        const SAID: &str = "fusermount3: mount failed: Permission denied\n";
        let place = Path::new("/srv/floe/mnt");
        let error = by_fusermount(place, SAID, &around(true, None)).to_string();
        for part in [
            "/srv/floe/mnt: fusermount3: mount failed: Permission denied: ",
            "/etc/apparmor.d/fusermount3 does not let",
            "-> /srv/floe/mnt/,`",
            "`umount /srv/floe/mnt/,`",
            "/etc/apparmor.d/local/fusermount3",
            "apparmor_parser -r /etc/apparmor.d/fusermount3",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let error = by_fusermount(place, SAID, &around(false, None)).to_string();
        assert!(
            !error.contains("apparmor") && error.contains("set-uid"),
            "{error}"
        );
        let container = around(false, enforced("docker-default (enforce)\n").as_deref());
        for error in [
            by_fusermount(place, SAID, &container),
            by_kernel(place, "Permission denied (os error 13)", &container),
        ] {
            let error = error.to_string();
            assert!(error.contains("profile docker-default;"), "{error}");
        }
    }

    #[test]
    fn other_refusals_are_not_apparmors() {
        let place = Path::new("/srv/mnt");
        let all = around(true, Some("docker-default"));
        let other = "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf";
        let error = by_fusermount(place, other, &all).to_string();
        assert!(
            error.ends_with("put user_allow_other in /etc/fuse.conf"),
            "{error}"
        );
        let error = by_kernel(place, "No such file or directory (os error 2)", &all).to_string();
        assert!(error.contains("the directory must exist"), "{error}");
        assert_eq!(enforced("unconfined\n"), None);
        assert_eq!(enforced("snap.floe (complain)"), None);
    }
}
