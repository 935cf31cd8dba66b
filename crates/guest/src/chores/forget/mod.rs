//! Makes this machine forget what it has from the machine that it was copied from, beyond what its identity sets anew: keys, seeds,
//! leases and the logs of who was there. A machine that shares any of these with another is not yet one of its own.
//!
//! It may be cut off at any moment and is then done again, from the beginning. What it has done is on the disk when it says so: a
//! machine that has a network must not become its parent again by a power cut.

mod keys;
mod services;

use crate::files::{content, if_there, replace};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What a machine forgets, in words, in this order. The first three come with its identity, the rest is this chore's.
pub const FORGOTTEN: [&str; 7] = [
    "host name",
    "network addresses",
    "machine id",
    "SSH host keys",
    "random seeds",
    "DHCP leases",
    "logs of logins and the journal",
];
/// How many entries of a directory there may be. One with more is an error: what was not looked at is not forgotten.
const ENTRIES_MAX: usize = 10_000;
/// Bytes of a random seed: more than systemd writes and any kernel asks for.
const SEED_BYTES: usize = 512;
/// Most bytes of a file with names: a larger one is left as it is.
pub(super) const NAMES_BYTES_MAX: u64 = 1 << 20;
/// Held while a machine forgets: a node that takes it over may begin again before the first has ended.
const LOCK: &str = "run/floe.forget";

/// Files with random numbers that the next start of the guest, or its boot loader, begins with.
const SEEDS: [&str; 9] = [
    "var/lib/systemd/random-seed",
    "var/lib/urandom/random-seed",
    "var/lib/random-seed",
    "var/lib/misc/random-seed",
    "var/lib/seedrng/seed.credit",
    "var/lib/seedrng/seed.no-credit",
    "boot/loader/random-seed",
    "boot/efi/loader/random-seed",
    "efi/loader/random-seed",
];
/// Directories of DHCP clients, each with how the names of its leases end; and the files with the keys from which clients derive their ids.
const LEASES: [(&str, &[&str]); 8] = [
    ("var/lib/dhcp", &[".leases", ".leases6", ".lease"]),
    ("var/lib/dhclient", &[".leases", ".lease"]),
    ("var/lib/dhcpcd", &[".lease", ".lease6", "duid", "secret"]),
    ("var/lib/dhcpcd5", &[".lease", ".lease6", "duid", "secret"]),
    ("etc", &["dhcpcd.duid", "dhcpcd.secret"]),
    ("var/lib/NetworkManager", &[".lease", "secret_key"]),
    ("run/systemd/netif/leases", &[""]),
    ("var/lib/systemd/network", &[""]),
];
/// Files that the system makes anew when they are needed: the key with which systemd encrypts the credentials of services, and the greeting
/// that users see when they log in, which has the host name.
const REMADE: [&str; 2] = ["var/lib/systemd/credential.secret", "run/motd.dynamic"];
/// Who logged in, and who tried; and what was written when a cloud's keys and names were set up. Their older parts have a dot or a
/// dash behind these names.
const LOGS: [&str; 8] = [
    "wtmp",
    "btmp",
    "lastlog",
    "faillog",
    "auth.log",
    "secure",
    "cloud-init.log",
    "cloud-init-output.log",
];
/// The same as databases.
const LOGIN_DATABASES: [&str; 2] = ["var/lib/wtmpdb/wtmp.db", "var/lib/lastlog/lastlog2.db"];
/// Where journals are, each in a directory that is called after a machine id.
const JOURNALS: [&str; 2] = ["var/log/journal", "run/log/journal"];
/// Hex digits of a machine id.
const ID_DIGITS: usize = 32;

/// Most names in an answer, and most bytes of them together.
const NAMED_MAX: usize = 32;
const NAMED_BYTES_MAX: usize = 2 << 10;

/// What was forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    /// How many files were there and are new or gone now.
    pub files: u64,
    /// The names of the first of them.
    pub names: Vec<String>,
}

impl Forgotten {
    fn add(&mut self, path: &Path) {
        self.files += 1;
        let name = text(path);
        let bytes: usize = self.names.iter().map(String::len).sum();
        if self.names.len() < NAMED_MAX && bytes + name.len() <= NAMED_BYTES_MAX {
            self.names.push(name);
        }
    }
}

/// Makes this machine forget. What is done is on its disks then.
pub(super) fn this_machine() -> Result<Forgotten, String> {
    let done = forget(Path::new("/"))?;
    rustix::fs::sync();
    Ok(done)
}

/// Forgets everything; a file that is not there was never known. `root` is the root directory, or one like it in a test.
fn forget(root: &Path) -> Result<Forgotten, String> {
    let _alone = alone(root)?;
    let mut done = Forgotten::default();
    names(root, content(&root.join("etc/hostname"))?.trim())?;
    keys::renew(root, &mut done)?;
    for seed in SEEDS.map(|seed| root.join(seed)) {
        if leads_to_file(&seed)? {
            reseed(&seed).map_err(said(&seed))?;
            done.add(&seed);
        }
    }
    for file in REMADE.map(|file| root.join(file)) {
        if is_file(&file)? {
            remove(&file, &mut done)?;
        }
    }
    for (dir, ends) in LEASES {
        for lease in entries(&root.join(dir))? {
            let name = text(lease.file_name().unwrap_or_default());
            if ends.iter().any(|end| name.ends_with(end)) && is_file(&lease)? {
                remove(&lease, &mut done)?;
            }
        }
    }
    logs(root, &mut done)?;
    // before journals go: until then one is written that belongs to the old machine id
    services::begin_anew(root)?;
    journals(root, &mut done)?;
    Ok(done)
}

/// Waits until nobody else makes this machine forget.
fn alone(root: &Path) -> Result<Option<File>, String> {
    let path = root.join(LOCK);
    let file = match File::create(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(said(&path))?,
    };
    flock(&file, FlockOperation::LockExclusive).map_err(|error| said(&path)(error.into()))?;
    Ok(Some(file))
}

fn said(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

fn text(name: impl AsRef<std::ffi::OsStr>) -> String {
    name.as_ref().to_string_lossy().into_owned()
}

/// Returns whether a path is a file itself, not a link to one.
fn is_file(path: &Path) -> Result<bool, String> {
    Ok(if_there(path, fs::symlink_metadata(path))?.is_some_and(|found| found.is_file()))
}

/// Returns whether a path is a file or a link to one.
fn leads_to_file(path: &Path) -> Result<bool, String> {
    Ok(if_there(path, fs::metadata(path))?.is_some_and(|found| found.is_file()))
}

fn remove(path: &Path, done: &mut Forgotten) -> Result<(), String> {
    fs::remove_file(path).map_err(said(path))?;
    done.add(path);
    Ok(())
}

/// Returns what is in a directory, by name; nothing if there is none.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let Some(found) = if_there(dir, fs::read_dir(dir))? else {
        return Ok(Vec::new());
    };
    let paths = found
        .take(ENTRIES_MAX + 1)
        .map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(said(dir))?;
    if paths.len() > ENTRIES_MAX {
        let dir = dir.display();
        return Err(format!(
            "{dir} has more than {ENTRIES_MAX} entries: remove what nobody needs in the machine that is docked, and dock it again"
        ));
    }
    paths.sort();
    Ok(paths)
}

/// Puts the name that the machine has now where programs other than the kernel look for it.
pub(super) fn names(root: &Path, name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Ok(());
    }
    // the address that Debian keeps for the machine's own name
    let own = |line: &str| line.split_whitespace().next() == Some("127.0.1.1");
    edit(&root.join("etc/hosts"), |line| match own(line) {
        true => Some(format!("127.0.1.1\t{name}")),
        false => Some(line.to_owned()),
    })?;
    edit(&root.join("etc/mailname"), |_| Some(name.to_owned()))?;
    edit(&root.join("etc/machine-info"), |line| {
        let pretty = line.trim_start().starts_with("PRETTY_HOSTNAME=");
        (!pretty).then(|| line.to_owned())
    })
}

/// Changes a file line by line, `None` drops one; one that is not there, too long or no text stays as it is.
fn edit(path: &Path, change: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let known = if_there(path, fs::metadata(path))?;
    if !known.is_some_and(|known| known.is_file() && known.len() <= NAMES_BYTES_MAX) {
        return Ok(());
    }
    let before = fs::read(path).map_err(said(path))?;
    let Ok(before) = String::from_utf8(before) else {
        return Ok(());
    };
    let lines = before.lines().filter_map(change);
    let after: String = lines.map(|line| line + "\n").collect();
    if after == before {
        return Ok(());
    }
    replace(path, after.as_bytes(), 0o644).map_err(said(path))
}

fn reseed(path: &Path) -> io::Result<()> {
    let mut seed = [0; SEED_BYTES];
    // the kernel's generator was seeded anew before this chore
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    replace(path, &seed, 0o600)
}

/// Empties logs and removes their older parts.
fn logs(root: &Path, done: &mut Forgotten) -> Result<(), String> {
    let mut empty = |log: &Path| {
        let cut = OpenOptions::new().write(true).truncate(true).open(log);
        cut.map_err(said(log))?;
        done.add(log);
        Ok::<_, String>(())
    };
    let mut older = Vec::new();
    for log in entries(&root.join("var/log"))? {
        let name = text(log.file_name().unwrap_or_default());
        let rest = LOGS.iter().find_map(|known| name.strip_prefix(known));
        match rest {
            Some("") if is_file(&log)? => empty(&log)?,
            Some(rest) if rest.starts_with(['.', '-']) && is_file(&log)? => older.push(log),
            _ => {}
        }
    }
    for database in LOGIN_DATABASES.map(|database| root.join(database)) {
        if is_file(&database)? {
            empty(&database)?;
        }
    }
    older.iter().try_for_each(|log| remove(log, done))
}

/// Removes the journals of other machines: each entry has the old machine id and the old name.
fn journals(root: &Path, done: &mut Forgotten) -> Result<(), String> {
    let own = content(&root.join("etc/machine-id"))?;
    for dir in JOURNALS.map(|dir| root.join(dir)) {
        for of_one in entries(&dir)? {
            let name = text(of_one.file_name().unwrap_or_default());
            // one of a name space has that behind the id
            let id = name.split('.').next().unwrap_or_default();
            let of_machine = id.len() == ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit());
            if !of_machine || id == own.trim() {
                continue;
            }
            let known = if_there(&of_one, fs::symlink_metadata(&of_one))?;
            if !known.is_some_and(|known| known.is_dir()) {
                continue;
            }
            for journal in entries(&of_one)? {
                if is_file(&journal)? {
                    remove(&journal, done)?;
                }
            }
            match fs::remove_dir(&of_one) {
                Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                    return Err(said(&of_one)(error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
