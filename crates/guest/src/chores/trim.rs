//! Tells disks which of their blocks the file systems on them no longer use, so that the host gets them back.

use super::{REFUSED_MAX, Refused};
use crate::files::content;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// File systems that can tell.
const KINDS: [&str; 8] = [
    "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "vfat", "xfs",
];
/// `_IOWR('X', 121, struct fstrim_range)`
const FITRIM: libc::Ioctl = 0xc018_5879_u32 as libc::Ioctl;

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trimmed {
    /// How many bytes the file systems have told of. The disks may have known of some.
    pub bytes: u64,
    /// How many file systems have told.
    pub places: u32,
    /// Those that did not, although they can.
    pub refused: Vec<Refused>,
}

/// The kernel's `struct fstrim_range`.
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
    min_len: u64,
}

/// Has every file system that is mounted to be written tell; `root` is `/`, or a directory like it.
pub(super) fn trim(root: &Path) -> Result<Trimmed, String> {
    trim_by(root, &fitrim)
}

fn trim_by(root: &Path, tell: &dyn Fn(&Path) -> io::Result<u64>) -> Result<Trimmed, String> {
    let mut done = Trimmed::default();
    for place in places(&content(&root.join("proc/self/mountinfo"))?) {
        match tell(&root.join(place.trim_start_matches('/'))) {
            Ok(bytes) => {
                done.bytes = done.bytes.saturating_add(bytes);
                done.places += 1;
            }
            // its disk takes no such word
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY)) => {
            }
            Err(error) if done.refused.len() < REFUSED_MAX => done.refused.push(Refused {
                what: place,
                why: error.to_string(),
            }),
            Err(_) => {}
        }
    }
    Ok(done)
}

/// Returns where file systems that can tell are mounted to be written, each device once, as a `mountinfo` has them.
fn places(mounts: &str) -> Vec<String> {
    let mut known = BTreeSet::new();
    let place = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let place = before.split(' ').nth(4)?;
        let mut fields = after.split(' ');
        let (kind, device, options) = (fields.next()?, fields.next()?, fields.next()?);
        let written = !options.split(',').any(|option| option == "ro");
        let can = KINDS.contains(&kind) && device.starts_with("/dev/");
        (written && can && known.insert(device.to_owned())).then(|| unescaped(place))
    };
    mounts.lines().filter_map(place).collect()
}

/// Puts back the characters that the kernel writes as three octal digits.
fn unescaped(text: &str) -> String {
    let marks = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    marks
        .into_iter()
        .fold(text.to_owned(), |text, (mark, letter)| {
            text.replace(mark, letter)
        })
}

/// Has the file system at a place tell its disk of all blocks that it does not use; returns how many bytes that are.
fn fitrim(place: &Path) -> io::Result<u64> {
    let dir = File::open(place)?;
    let mut range = Range {
        start: 0,
        len: u64::MAX,
        min_len: 0,
    };
    // SAFETY: the kernel reads and writes one `Range`, which is there for as long as the call lasts.
    let done = unsafe { libc::ioctl(dir.as_raw_fd(), FITRIM, &raw mut range) };
    match done {
        0 => Ok(range.len),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::fs;

    #[test]
    fn each_disk_is_told_once_and_what_can_not_tell_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc/self");
        fs::create_dir_all(&proc).unwrap();
        fs::write(
            proc.join("mountinfo"),
            "22 1 254:1 / / rw - ext4 /dev/vda1 rw,errors=remount-ro\n\
             23 22 0:5 / /proc rw - proc proc rw\n\
             24 22 254:1 /srv /bound rw - ext4 /dev/vda1 rw\n\
             30 22 254:17 / /srv/a\\040b rw shared:1 - xfs /dev/vdb1 rw\n\
             31 22 254:33 / /ro ro - ext4 /dev/vdc1 ro\n\
             32 22 254:49 / /old rw - vfat /dev/vdd1 rw\n\
             33 22 254:65 / /bad rw - btrfs /dev/vde rw\n\
             34 22 0:40 / /net rw - nfs4 host:/x rw\nodd\n",
        )
        .unwrap();
        let told = RefCell::new(Vec::new());
        let tell = |place: &Path| {
            let place = place.strip_prefix(dir.path()).unwrap();
            told.borrow_mut().push(place.to_str().unwrap().to_owned());
            match place.to_str().unwrap() {
                "old" => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
                "bad" => Err(io::Error::from_raw_os_error(libc::EIO)),
                _ => Ok(4096),
            }
        };
        let done = trim_by(dir.path(), &tell).unwrap();
        assert_eq!(*told.borrow(), ["", "srv/a b", "old", "bad"]);
        assert_eq!((done.bytes, done.places), (8192, 2));
        assert_eq!(done.refused.len(), 1);
        assert_eq!(done.refused[0].what, "/bad");
    }
}
