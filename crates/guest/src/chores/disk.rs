//! Finds what a disk is used for, before it is taken away: the kernel would release it whatever is mounted from it.

use crate::files::{content, if_there};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Most uses in an answer: one of them is reason enough.
const USES_MAX: usize = 16;

/// What a disk is used for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    /// The kernel's name of it (`vdb`); `None` if it has no such disk.
    pub device: Option<String>,
    /// Each use in words, with the place.
    pub used_by: Vec<String>,
}

/// Looks for the disk with this serial number; `root` is `/`, or a directory like it.
pub(super) fn look(root: &Path, serial: &str) -> Result<DiskUse, String> {
    let block = root.join("sys/block");
    let entries = fs::read_dir(&block).map_err(|error| format!("{}: {error}", block.display()))?;
    let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // told only if no disk has it: another one's number need not be readable
    let mut unread = None;
    let has_it = |name: &String| {
        let found = has_serial(&block.join(name), serial);
        found.unwrap_or_else(|error| {
            unread = Some(error);
            false
        })
    };
    let Some(device) = names.find(has_it) else {
        return unread.map_or(Ok(DiskUse::default()), Err);
    };
    let parts = parts(&block.join(&device), &device)?;
    let mut used_by = Vec::new();
    let read = |path: &str| content(&root.join(path));
    for line in read("proc/self/mountinfo")?.lines() {
        if let Some((part, place)) = mounted(line, &parts) {
            used_by.push(format!("{part} is mounted on {place}"));
        }
    }
    for line in read("proc/swaps")?.lines() {
        let swap = line.split_whitespace().next().unwrap_or_default();
        if let Some(part) = swap
            .strip_prefix("/dev/")
            .filter(|part| parts.contains_key(*part))
        {
            used_by.push(format!("{part} is swap space"));
        }
    }
    for part in parts.keys() {
        let dir = match *part == device {
            true => block.join(&device),
            false => block.join(&device).join(part),
        };
        for holder in list(&dir.join("holders"))? {
            used_by.push(format!("{} is made of {part}", holder.to_string_lossy()));
        }
    }
    used_by.truncate(USES_MAX);
    Ok(DiskUse {
        device: Some(device),
        used_by,
    })
}

/// Whether a disk has this serial number: virtio tells it as text, SCSI in a page with four bytes before it.
fn has_serial(dir: &Path, serial: &str) -> Result<bool, String> {
    let is = |bytes: &[u8]| bytes.trim_ascii() == serial.as_bytes();
    let read = |name: &str| {
        let path = dir.join(name);
        if_there(&path, fs::read(&path))
    };
    if read("serial")?.is_some_and(|bytes| is(&bytes)) {
        return Ok(true);
    }
    let page = read("device/vpd_pg80")?;
    Ok(page.is_some_and(|page| page.get(4..).is_some_and(is)))
}

/// Returns the names in a directory; none if it is not there.
fn list(dir: &Path) -> Result<Vec<OsString>, String> {
    let mut names = Vec::new();
    for entry in if_there(dir, fs::read_dir(dir))?.into_iter().flatten() {
        let entry = entry.map_err(|error| format!("{}: {error}", dir.display()))?;
        names.push(entry.file_name());
    }
    Ok(names)
}

/// Returns the numbers (`254:16`) of a disk and of its partitions, by their names.
fn parts(dir: &Path, device: &str) -> Result<BTreeMap<String, String>, String> {
    let mut parts = BTreeMap::new();
    let names = list(dir)?;
    let names = names.iter().filter_map(|name| name.to_str());
    let partitions = names.filter(|name| name.starts_with(device));
    let places = partitions.map(|name| (name, dir.join(name)));
    for (name, place) in places.chain([(device, dir.to_owned())]) {
        let number = content(&place.join("dev"))?;
        if !number.is_empty() {
            parts.insert(name.to_owned(), number.trim().to_owned());
        }
    }
    Ok(parts)
}

/// Returns which of the parts a line of `mountinfo` is about, and where it is mounted.
fn mounted<'a>(line: &str, parts: &'a BTreeMap<String, String>) -> Option<(&'a str, String)> {
    let (place, source) = line.split_once(" - ")?;
    let mut fields = place.split(' ');
    let number = fields.nth(2)?;
    let place = fields.nth(1)?;
    // some file systems have numbers of their own, and name the device
    let source = source.split(' ').nth(1)?.strip_prefix("/dev/");
    let mut known = parts.iter();
    let (part, _) =
        known.find(|(part, known)| *known == number || source == Some(part.as_str()))?;
    Some((part, place.replace("\\040", " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_of_a_disk_and_of_its_partitions_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/block/vda/serial", "disk0");
        write("sys/block/vda/dev", "254:0\n");
        write("sys/block/vdb/serial", "disk1\n");
        write("sys/block/vdb/dev", "254:16\n");
        write("sys/block/vdb/vdb1/dev", "254:17\n");
        write("sys/block/vdb/queue/rotational", "1");
        write("sys/block/sda/device/vpd_pg80", "\0\u{1}\0\u{5}disk2");
        write("sys/block/sda/dev", "8:0\n");
        let used = |serial: &str| look(root, serial).unwrap();
        assert_eq!(used("disk7"), DiskUse::default());
        assert_eq!(used("disk2").device.as_deref(), Some("sda"));
        assert_eq!(used("disk1").used_by, [""; 0]);
        write(
            "proc/self/mountinfo",
            "22 1 254:0 / / rw - ext4 /dev/root rw\n\
             30 22 254:17 / /srv/a\\040b rw,noatime shared:1 - ext4 /dev/vdb1 rw\n\
             31 22 0:40 / /data rw - btrfs /dev/vdb rw\nodd\n",
        );
        write("proc/swaps", "Filename Type\n/dev/vdb1 partition\n");
        write("sys/block/vdb/holders/dm-0", "");
        let uses = [
            "vdb1 is mounted on /srv/a b",
            "vdb is mounted on /data",
            "vdb1 is swap space",
            "dm-0 is made of vdb",
        ];
        assert_eq!(used("disk1").used_by, uses);
        assert_eq!(used("disk0").used_by, ["vda is mounted on /"]);
        assert!(look(&root.join("nowhere"), "disk1").is_err());
    }
}
