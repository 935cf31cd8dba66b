//! What could stay behind, counted when all machines are removed and everything is down.
use super::world::{World, mounts_under, processes_with};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// More than this many bytes is a leak: databases keep some free pages, and directories their size.
const BYTES_SLACK: u64 = 4 << 20;
/// Bytes that count as one leak.
const BYTES_UNIT: u64 = 1 << 20;

/// By name, how many there are.
pub type Count = BTreeMap<String, u64>;

/// Counts.
pub fn count(world: &World) -> Count {
    let mut count = Count::new();
    for (name, dir) in [("node", &world.home), ("far node", &world.far_home), ("hub", &world.hub_dir)] {
        count.insert(format!("processes of the {name}"), processes_with(dir).len() as u64);
        count.insert(format!("mounts of the {name}"), mounts_under(dir).len() as u64);
        let mut bytes = 0;
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let part = entry.file_name().to_string_lossy().into_owned();
            // what may stay as long as it is within its budget
            if part == "cache" {
                continue;
            }
            let (files, size) = walk(&entry.path());
            bytes += size;
            // names of what is there once; the rest is what machines, images and forks have
            count.insert(format!("files in {part}/ of the {name}"), files);
        }
        count.insert(format!("bytes of the {name}"), bytes);
    }
    let named = std::fs::read_dir("/run/netns").map_or(0, |dir| dir.flatten().count());
    count.insert("named network namespaces".into(), named as u64);
    count
}

/// Files and directories below a path, and the bytes that they take.
fn walk(path: &Path) -> (u64, u64) {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return (0, 0);
    };
    let mut total = (1, metadata.blocks() * 512);
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            let (files, bytes) = walk(&entry.path());
            total = (total.0 + files, total.1 + bytes);
        }
    }
    total
}

/// What there is more of than before: each with how many, bytes as MiB.
pub fn compare(before: &Count, after: &Count) -> Vec<(String, u64)> {
    let mut leaks = Vec::new();
    for (what, now) in after {
        let more = now.saturating_sub(before.get(what).copied().unwrap_or(0));
        if what.starts_with("bytes") {
            if more > BYTES_SLACK {
                leaks.push((format!("MiB ({what})"), more / BYTES_UNIT));
            }
        } else if more > 0 {
            leaks.push((what.clone(), more));
        }
    }
    leaks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_before_is_a_leak_and_a_few_bytes_are_none() {
        let count = |files, bytes| -> Count {
            [("files in tmp/ of the node".to_owned(), files), ("bytes of the hub".to_owned(), bytes)].into()
        };
        assert_eq!(compare(&count(3, 0), &count(2, 1 << 20)), []);
        assert_eq!(
            compare(&count(3, 0), &count(5, 9 << 20)),
            [("MiB (bytes of the hub)".to_owned(), 9), ("files in tmp/ of the node".to_owned(), 2)]
        );
        assert_eq!(compare(&Count::new(), &count(1, 0)), [("files in tmp/ of the node".to_owned(), 1)]);
    }
}
