//! Counts everything that could stay behind, when all machines are removed and all processes have ended.
use super::world::{World, mounts_under, processes_with};
use floe_api::paths::Home;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Growth in bytes that does not count as a leak: databases keep some free pages, and directories their size.
const BYTES_SLACK: u64 = 4 << 20;
/// Number of bytes that count as one leak.
const BYTES_UNIT: u64 = 1 << 20;

/// The things of one kind that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// Their number.
    pub count: u64,
    /// Their names, if they have any.
    pub names: BTreeSet<String>,
}

impl From<u64> for Kind {
    fn from(count: u64) -> Kind {
        Kind {
            count,
            names: BTreeSet::new(),
        }
    }
}

/// What exists, by kind.
pub type Count = BTreeMap<String, Kind>;

/// Counts everything.
pub fn count(world: &World) -> Count {
    let mut count = Count::new();
    for (name, dir) in [
        ("node", &world.home),
        ("far node", &world.far_home),
        ("hub", &world.hub_dir),
    ] {
        let processes = processes_with(dir)
            .into_iter()
            .map(|(pid, line)| format!("{pid} {}", line.replace('\0', " ")));
        let names: BTreeSet<String> = processes.collect();
        let processes = Kind {
            count: names.len() as u64,
            names,
        };
        count.insert(format!("processes of the {name}"), processes);
        count.insert(
            format!("mounts of the {name}"),
            (mounts_under(dir).len() as u64).into(),
        );
        let mut bytes = 0;
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let part = entry.file_name().to_string_lossy().into_owned();
            // the cache may keep data within its budget
            if part == "cache" {
                continue;
            }
            let mut files = Kind::default();
            bytes += walk(&entry.path(), &entry.path(), &mut files);
            count.insert(format!("files in {part} of the {name}"), files);
        }
        count.insert(format!("bytes of the {name}"), bytes.into());
    }
    for (name, home) in [("node", &world.home), ("far node", &world.far_home)] {
        let names: BTreeSet<String> = floe_node::control_groups(&Home::at(home))
            .into_iter()
            .collect();
        let groups = Kind {
            count: names.len() as u64,
            names,
        };
        count.insert(format!("control groups of the {name}"), groups);
    }
    let named = std::fs::read_dir("/run/netns").map_or(0, |dir| dir.flatten().count());
    count.insert("named network namespaces".into(), (named as u64).into());
    count
}

/// Adds the files and directories below a path. Returns the bytes that they take.
fn walk(root: &Path, path: &Path, files: &mut Kind) -> u64 {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return 0;
    };
    if is_empty_hash_folder(path) {
        return 0;
    }
    files.count += 1;
    let relative = path.strip_prefix(root).unwrap_or(path);
    files.names.insert(relative.display().to_string());
    let mut bytes = metadata.blocks() * 512;
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            bytes += walk(root, &entry.path(), files);
        }
    }
    bytes
}

/// Returns whether this is an empty directory named after the first byte of the hashes in it: a repository keeps those,
/// at most 256.
fn is_empty_hash_folder(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let hexadecimal = name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    hexadecimal && std::fs::read_dir(path).is_ok_and(|mut dir| dir.next().is_none())
}

/// Most names of new things that are reported.
const NAMES_MAX: usize = 8;

/// Returns the things of which there are more than before, with the number of new ones; bytes count in MiB.
pub fn compare(before: &Count, after: &Count) -> Vec<(String, u64)> {
    let mut leaks = Vec::new();
    let none = Kind::default();
    for (what, now) in after {
        let before = before.get(what).unwrap_or(&none);
        let more = now.count.saturating_sub(before.count);
        if what.starts_with("bytes") {
            if more > BYTES_SLACK {
                leaks.push((format!("MiB ({what})"), more / BYTES_UNIT));
            }
        } else if more > 0 {
            let new: Vec<&str> = now
                .names
                .difference(&before.names)
                .take(NAMES_MAX)
                .map(String::as_str)
                .collect();
            leaks.push((format!("{what}: {}", new.join(", ")), more));
        }
    }
    leaks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_before_is_a_leak_and_a_few_bytes_are_none() {
        let count = |files: &[&str], bytes: u64| -> Count {
            let names: BTreeSet<String> = files.iter().map(|name| name.to_string()).collect();
            let files = Kind {
                count: names.len() as u64,
                names,
            };
            [
                ("files in tmp".to_owned(), files),
                ("bytes".to_owned(), bytes.into()),
            ]
            .into()
        };
        let before = count(&["a", "b"], 0);
        assert_eq!(compare(&before, &count(&["c"], 1 << 20)), []);
        assert_eq!(
            compare(&before, &count(&["a", "c", "d"], 9 << 20)),
            [
                ("MiB (bytes)".to_owned(), 9),
                ("files in tmp: c, d".to_owned(), 1)
            ]
        );
    }
}
