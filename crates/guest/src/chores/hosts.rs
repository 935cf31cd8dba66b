//! Tells this machine the names of the others in its network, where every program looks for them: in `/etc/hosts`.

use super::forget;
use crate::files::{content, replace};
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

/// Most names that are taken: each has an address of one small network.
pub const HOSTS_NAMES_MAX: usize = 512;
/// Longest name of a host, in bytes.
const NAME_BYTES_MAX: usize = 63;
/// The line before the names. What stands between it and [`END`] is floe's, and is written anew each time.
const BEGIN: &str = "# floe: the machines that were activated together";
/// The line after them.
const END: &str = "# floe: end";

/// How many names a machine knows now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hosts {
    /// Lines of `/etc/hosts` that are floe's.
    pub names: u64,
}

/// Writes the names, each given as `NAME=ADDRESS`. `root` is the root directory, or one like it in a test.
pub(super) fn write(root: &Path, given: &[&str]) -> Result<Hosts, String> {
    if given.len() > HOSTS_NAMES_MAX {
        return Err(format!("{} names are too many", given.len()));
    }
    let mut block = format!("{BEGIN}\n");
    for one in given {
        let (name, address) = parse(one).ok_or_else(|| format!("{one:?} is no NAME=ADDRESS"))?;
        block += &format!("{address}\t{name}\n");
    }
    block += &format!("{END}\n");
    // else whoever looks up the machine that was docked would be led to this one
    forget::names(root, content(&root.join("etc/hostname"))?.trim())?;
    let path = root.join("etc/hosts");
    let said = |error| format!("{}: {error}", path.display());
    let before = match fs::metadata(&path) {
        Ok(found) if found.len() > forget::NAMES_BYTES_MAX => {
            return Err(format!("{} is too large to be changed", path.display()));
        }
        Ok(_) => fs::read_to_string(&path).map_err(said)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::write(&path, "127.0.0.1\tlocalhost\n").map_err(said)?;
            "127.0.0.1\tlocalhost\n".into()
        }
        Err(error) => return Err(said(error)),
    };
    replace(&path, (others(&before) + &block).as_bytes(), 0o644).map_err(said)?;
    Ok(Hosts {
        names: given.len() as u64,
    })
}

fn parse(one: &str) -> Option<(&str, Ipv4Addr)> {
    let (name, address) = one.split_once('=')?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
    let good = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(plain);
    Some((name, address.parse().ok().filter(|_| good)?))
}

/// Returns the lines that are not floe's.
fn others(text: &str) -> String {
    let mut inside = false;
    let mut kept = String::new();
    for line in text.lines() {
        match line {
            BEGIN => inside = true,
            END => inside = false,
            _ if inside => {}
            line => kept += &format!("{line}\n"),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_anew_and_what_others_wrote_stays() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir(root.join("etc")).unwrap();
        let read = || fs::read_to_string(root.join("etc/hosts")).unwrap();
        // a guest without such a file gets one
        write(root, &["db=10.0.2.15"]).unwrap();
        assert!(read().starts_with("127.0.0.1\tlocalhost\n"), "{}", read());
        fs::write(root.join("etc/hostname"), "web\n").unwrap();
        fs::write(
            root.join("etc/hosts"),
            "127.0.0.1 localhost\n127.0.1.1 old\n192.0.2.7 printer",
        )
        .unwrap();
        let told = write(root, &["db=10.0.2.15", "web=10.0.2.16"]).unwrap();
        assert_eq!(told.names, 2);
        let first = read();
        assert!(
            first.starts_with("127.0.0.1 localhost\n127.0.1.1\tweb\n192.0.2.7 printer\n"),
            "{first}"
        );
        assert!(first.contains("10.0.2.15\tdb\n10.0.2.16\tweb\n"), "{first}");
        write(root, &["db=10.0.2.20"]).unwrap();
        let second = read();
        assert!(second.contains("10.0.2.20\tdb\n"), "{second}");
        assert!(!second.contains("10.0.2.15") && second.contains("printer"));
    }

    #[test]
    fn what_is_no_name_is_refused_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        for bad in [
            "db",
            "=10.0.2.15",
            "db=10.0.2",
            "a b=10.0.2.15",
            "a\nb=10.0.2.15",
        ] {
            assert!(write(dir.path(), &[bad]).is_err(), "{bad:?}");
        }
        let many = vec!["db=10.0.2.15"; HOSTS_NAMES_MAX + 1];
        assert!(write(dir.path(), &many).is_err());
        assert!(!dir.path().join("etc").exists());
    }
}
